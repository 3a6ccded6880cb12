// Runs one launch of a CUDA kernel on a CPU. Linked with the kernel into a program, which runner.py starts:
//
//   program FOLDER LIMIT_US GRID BLOCK COUNT SHARED... ARGUMENT...
//
// GRID, BLOCK: three numbers each. SHARED: offset and bytes of COUNT arrays in shared memory. ARGUMENT: a number, or
// "*" and the kind of an array: that of the n-th argument, from 0, is the file FOLDER/n, and stores go there.
// FOLDER/report is what report.py reads.
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <sys/time.h>

#include "accesses.h"  // and threads.h

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
  fprintf(report, "\t%u\t%d\n", block_number, me);
  finish(false);
}

static void limit_time(long long limit_us) {
  static char stack[1 << 16];
  const stack_t alternate{stack, 0, sizeof stack};
  sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_signal, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGPROF}) sigaction(signal, &action, nullptr);
  const itimerval limit{{0, 100000}, {limit_us / 1000000, limit_us % 1000000}};
  setitimer(ITIMER_PROF, &limit, nullptr);
  void* callers[1];
  backtrace(callers, 1);  // its first call loads a library, which a signal's handler must not do
}

static int find_shared(dl_phdr_info* program, size_t, void* begin) {
  *static_cast<Address*>(begin) = Address(program->dlpi_tls_data);
  return 1;  // the first is the program itself, the others are libraries
}

extern "C" void runner_refuse(int argument, const char* kind) {
  fprintf(report, "refused\t%d\t%s\n", argument, kind);
  finish(false);
}

int main(int, char** words) {
  const std::string folder = *++words;
  report = fopen((folder + "/report").c_str(), "w");
  const auto next = [&] { return strtoull(*++words, nullptr, 10); };
  const long long limit_us = next();
  for (uint3* size : {&grid, &block}) size->x = next(), size->y = next(), size->z = next();
  Array shared{};
  dl_iterate_phdr(find_shared, &shared.begin);
  for (auto parts = next(); parts > 0; parts--) {
    const size_t offset = next(), bytes = next();
    shared.bytes = max(shared.bytes, offset + bytes);
    shared.gaps.resize(shared.bytes / 4 + 1, true);
    for (size_t i = offset / 4; i < (offset + bytes + 3) / 4; i++) shared.gaps[i] = false;
  }
  arrays.push_back({shared.begin, shared.bytes, shared.gaps});
  arguments = words + 1;
  for (int n = 0; arguments[n]; n++) {
    if (arguments[n][0] != '*') {
      arrays.push_back({});
      continue;
    }
    const int file = open((folder + "/" + std::to_string(n)).c_str(), O_RDWR);
    const size_t bytes = lseek(file, 0, SEEK_END);
    const int flags = MAP_SHARED | MAP_FIXED;
    arrays.push_back({Address(mmap(array_place(n), bytes, PROT_READ | PROT_WRITE, flags, file, 0)), bytes});
  }
  site_at.resize(&end - &__executable_start);
  make_threads();
  limit_time(limit_us);
  for (; block_number < grid.x * grid.y * grid.z; block_number++) run_block();
  finish(true);
}
