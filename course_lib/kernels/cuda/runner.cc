// Runs one launch of a CUDA kernel on a CPU. Linked with the kernel into a program, which runner.py calls:
//
//   program DATA REPORT LIMIT_US GRID BLOCK COUNT SHARED... COUNT BYTES... ARGUMENT...
//
// DATA: file with the arrays, each from a new page on; stores go there. REPORT: file to write. GRID, BLOCK: three
// numbers each. SHARED: offset and bytes of each array in shared memory. BYTES: of each array among the arguments.
// ARGUMENT: a word of 8 bytes, as a number; the n-th array's is n times 16 GiB, where it is put.
//
//   program     prints the kinds of the kernel's parameters
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <sys/time.h>

#include "accesses.h"  // and threads.h

extern "C" void kernel_kinds();  // KERNEL_TO_RUN in device.h defines it

[[noreturn]] static void finish(bool complete) {
  signal(SIGPROF, SIG_IGN);
  for (size_t code = 0; code < site_at.size(); code++) {
    if (!site_at[code]) continue;
    for (const auto& [request, count] : site_at[code]->counts) {
      fprintf(report, "requests\t0x%zx\t%s\t%u\t%d\t%lld", Address(&__executable_start) + code,
              VERBS[site_at[code]->access], site_at[code]->size, request.first, count);
      for (Address a : request.second) fprintf(report, "\t%zu", size_t(a));
      fprintf(report, "\n");
    }
  }
  fprintf(report, "end\t%d\t%lld\t%lld\t%zu\n", complete, barriers, shuffles, stack_bytes);
  fclose(report);
  fflush(stdout);
  _exit(0);
}

static void on_signal(int signal, siginfo_t* info, void*) {
  if (signal == SIGPROF && !out_of_time) {
    out_of_time = true;  // which the kernel's next access or barrier notices; if there is none, the signal comes again
    return;
  }
  const Address fault = Address(info->si_addr);
  const bool in_stacks = signal == SIGSEGV && fault >= stacks_begin - (64 << 20) && fault < stacks_end;
  fprintf(report, "found\t%s\t", in_stacks ? "stack overflow" : strsignal(signal));
  void* callers[32];
  for (int i = 2, count = backtrace(callers, 32); i < count; i++)  // the first two belong to this function
    fprintf(report, "%s0x%zx", i > 2 ? " " : "", size_t(callers[i]) + (i == 2));
  fprintf(report, "\t%u\t%d\n", block_number(), me);
  finish(false);
}

static void limit_time(long long limit_us) {
  static char stack[1 << 16];
  stack_t alternate{};
  alternate.ss_sp = stack, alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_signal, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGPROF}) sigaction(signal, &action, nullptr);
  itimerval limit{{0, 100000}, {limit_us / 1000000, limit_us % 1000000}};
  setitimer(ITIMER_PROF, &limit, nullptr);
  void* callers[1];
  backtrace(callers, 1);  // its first call loads a library, which a signal's handler must not do
}

static int find_shared(dl_phdr_info* program, size_t, void* begin) {
  *static_cast<Address*>(begin) = Address(program->dlpi_tls_data);
  return 1;  // the first is the program itself, the others are libraries
}

int main(int count, char** words) {
  if (count == 1) return kernel_kinds(), 0;
  char **word = words + 2, **last = words + count;
  auto next = [&] { return strtoull(*++word, nullptr, 10); };
  auto next_three = [&] { return uint3{unsigned(next()), unsigned(next()), unsigned(next())}; };
  report = fopen(words[2], "w");
  const long long limit_us = next();
  grid = next_three(), block = next_three();
  Address shared_begin;
  dl_iterate_phdr(find_shared, &shared_begin);
  size_t shared_bytes = 0;
  std::vector<bool> gaps;
  for (auto parts = next(); parts > 0; parts--) {
    const size_t offset = next(), bytes = next();
    shared_bytes = max(shared_bytes, offset + bytes);
    gaps.resize(shared_bytes / 4 + 1, true);
    for (size_t i = offset / 4; i < (offset + bytes + 3) / 4; i++) gaps[i] = false;
  }
  arrays.push_back({shared_begin, shared_bytes, gaps});
  const int data = open(words[1], O_RDWR);
  size_t in_file = 0, page = sysconf(_SC_PAGESIZE);
  for (auto n = next(); n > 0; n--) {
    const size_t bytes = next();
    void* begin = reinterpret_cast<void*>(arrays.size() << SLOT_BITS);
    if (mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, data, in_file) != begin) return 1;
    arrays.push_back({Address(begin), bytes});
    in_file += (bytes + page - 1) / page * page;
  }
  while (word + 1 < last) arguments.push_back(next());
  site_at.resize(&end - &__executable_start);
  make_threads();
  limit_time(limit_us);
  for (block_index.z = 0; block_index.z < grid.z; block_index.z++)
    for (block_index.y = 0; block_index.y < grid.y; block_index.y++)
      for (block_index.x = 0; block_index.x < grid.x; block_index.x++) run_block();
  finish(true);
}
