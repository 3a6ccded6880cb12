// Runs one launch of a CUDA kernel on a CPU. Linked with the kernel into a program, which runner.py calls:
//
//   program DATA REPORT LIMIT_S GRID BLOCK SHARED ARGUMENT...
//
// DATA: file with the arrays, each from a new page on; stores go there. REPORT: file to write. GRID, BLOCK: three
// numbers each. SHARED: offset:bytes of each array in shared memory, with commas between. ARGUMENT: kind:value, such as
// f8:0.125 or i8:64; of an array *f4:bytes.
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "accesses.h"  // and threads.h

static void on_signal(int signal, siginfo_t* info, void* context) {
  if (signal == SIGPROF && in_runner) {
    out_of_time = true;  // and that is noticed as soon as what is being done now is complete
    return;
  }
  const mcontext_t& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  Address code = machine.gregs[REG_RIP];
#else
  Address code = machine.pc;
#endif
  Address fault = Address(info->si_addr);
  bool in_stacks = fault >= stacks_begin - (64 << 20) && fault < stacks_end;
  stop_because(signal == SIGPROF                ? "time limit"
               : signal == SIGFPE               ? "division by zero"
               : signal == SIGABRT              ? "aborted"
               : signal == SIGXFSZ              ? "printed too much"
               : signal == SIGSEGV && in_stacks ? "stack overflow"
                                                : "crash",
               code + 1);
}

static void limit_time(double seconds) {
  static char stack[1 << 16];
  stack_t alternate{};
  alternate.ss_sp = stack, alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_signal, action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGXFSZ, SIGPROF}) sigaction(signal, &action, nullptr);
  itimerval limit{{0, 0}, {time_t(seconds), suseconds_t((seconds - floor(seconds)) * 1e6)}};
  setitimer(ITIMER_PROF, &limit, nullptr);
  rlimit printed{64 << 20, 64 << 20};
  setrlimit(RLIMIT_FSIZE, &printed);
}

static int find_program(dl_phdr_info* program, size_t, void*) {
  code_begin = program->dlpi_addr;
  for (int i = 0; i < program->dlpi_phnum; i++) {
    const auto& part = program->dlpi_phdr[i];
    if (part.p_type == PT_LOAD) code_end = max(code_end, Address(code_begin + part.p_vaddr + part.p_memsz));
    if (part.p_type == PT_TLS) shared = {Address(program->dlpi_tls_data), part.p_memsz, nullptr};
  }
  return 1;  // the first is the program itself, the others are libraries
}

static char* reserve(size_t bytes, int protection) {
  void* begin = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) perror("memory for the arrays"), exit(3);
  return static_cast<char*>(begin);
}
static Word* words_for(size_t bytes) {
  return reinterpret_cast<Word*>(reserve((bytes / 4 + 1) * sizeof(Word), PROT_READ | PROT_WRITE));
}

static void read_shared_arrays(char* list) {
  shared.words = words_for(shared.bytes);
  shared_exists.resize(shared.bytes / 4 + 1);
  for (char* part = strtok(list, ","); part; part = strtok(nullptr, ",")) {
    size_t offset, bytes;
    sscanf(part, "%zu:%zu", &offset, &bytes);
    shared_arrays.push_back({offset, bytes, shared.words + offset / 4});
    for (size_t i = offset / 4; i < (offset + bytes + 3) / 4; i++) shared_exists[i] = true;
  }
}

// Returns whether these are the arguments that the kernel takes.
static bool read_arguments(int data, char** words, int count) {
  const char* kinds[256];
  kernel_kinds(kinds);
  const size_t slot = size_t(1) << SLOT_BITS, page = sysconf(_SC_PAGESIZE);
  arrays_begin = Address(reserve(slot * (count + 1), PROT_NONE));
  size_t in_file = 0;
  for (int i = 0; i <= count; i++) {
    char kind[8] = "", value[64] = "";
    if (i < count) sscanf(words[i], "%7[^:]:%63s", kind, value);
    const char* wanted = kinds[i] ? kinds[i] : "";
    bool number = kind[0] == 'i' || (kind[0] == 'f' && wanted[0] == 'f');
    bool vectors = kind[0] == '*' && !strncmp(wanted, "*V", 2);  // of whatever: float4, for instance
    if (strcmp(kind, wanted) && !vectors && !(number && wanted[0] && wanted[0] != '*'))
      return fprintf(report, "refused\t%d\t%s\n", i, wanted), false;
    if (i == count) break;
    Argument argument{nullptr, atoll(value), atof(value)};
    if (kind[0] == '*') {
      size_t bytes = argument.integer;
      argument.array = reinterpret_cast<char*>(arrays_begin + slot * arrays.size() + slot / 2);
      void* mapped = mmap(argument.array, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, data, in_file);
      if (mapped == MAP_FAILED) perror("the arrays"), exit(3);
      in_file += (bytes + page - 1) / page * page;
      arrays.push_back({Address(argument.array), bytes, words_for(bytes)});
    }
    arguments.push_back(argument);
  }
  arrays_end = arrays_begin + slot * arrays.size();
  return true;
}

static void write_counts(bool complete) {
  for (const Site& site : sites)
    for (const auto& [array, counts] : site.counts)
      fprintf(report, "site\t0x%zx\t%d\t%s\t%lld\t%lld\t%lld\t%lld\t%lld\n", size_t(site.code), array,
              name_of(site.access), counts.requests, counts.bytes, counts.sectors, counts.passes, counts.conflicts);
  fprintf(report, "end\t%s\t%lld\t%lld\t%zu", complete ? "complete" : "stopped", barriers, shuffles, stack_bytes);
  for (size_t i = 0; i < shared_arrays.size(); i++) {
    const Array& array = shared_arrays[i];
    auto is_used = [](const Word& word) { return word.stored.epoch || word.loaded.epoch; };
    if (std::any_of(array.words, array.words + array.bytes / 4, is_used)) fprintf(report, "\t%zu", i);
  }
  fprintf(report, "\n");
}

int main(int count, char** words) {
  auto number = [&](int i) { return unsigned(atoi(words[i])); };
  report = fopen(words[2], "w");
  grid = {number(4), number(5), number(6)}, block = {number(7), number(8), number(9)};
  dl_iterate_phdr(find_program, nullptr);
  fprintf(report, "begin\t0x%zx\n", size_t(code_begin));
  site_at.resize(code_end - code_begin);
  sites.reserve(1 << 16);
  sites.emplace_back();  // index 0 means none
  read_shared_arrays(words[10]);
  if (!read_arguments(open(words[1], O_RDWR), words + 11, count - 11)) return fclose(report);
  make_threads();
  limit_time(atof(words[3]));
  volatile bool complete = false;
  if (!_setjmp(launch_end)) {
    for (block_index.z = 0; block_index.z < grid.z; block_index.z++)
      for (block_index.y = 0; block_index.y < grid.y; block_index.y++)
        for (block_index.x = 0; block_index.x < grid.x; block_index.x++) run_block();
    complete = true;
  }
  signal(SIGPROF, SIG_IGN);
  write_counts(complete);
  fclose(report);
  fflush(stdout);
  _exit(0);
}
