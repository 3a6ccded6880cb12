// Runs one launch of a CUDA kernel on a CPU. Linked with the kernel into a program, which runner.py starts with a file
// as its standard input. The file begins with numbers of 8 bytes, which `main` reads. Then come the arrays, where the
// kernel's stores go. Behind them, the program writes what report.py reads.
//
// Each of these files includes the one before it and uses nothing of those that follow: device.h, which the kernel
// includes, too; requests.h, which counts; threads.h, which takes turns; accesses.h, which finds mistakes; runner.cc.
#include <execinfo.h>
#include <link.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include "accesses.h"

static void on_signal(int signal, siginfo_t* info, void*) {
  if (signal == SIGPROF && !out_of_time) {
    out_of_time = true;  // which a thread notices when it next has its turn; if none does, the signal comes again
    return;
  }
  const Address fault = Address(info->si_addr);
  const char *kind = "crash", *did = "crashed";
  if (signal == SIGPROF) kind = "time limit", did = OUT_OF_TIME;
  if (signal == SIGFPE) kind = "division by zero", did = "divides an integer by zero";
  if (signal == SIGABRT) kind = "aborted", did = "failed an assertion";
  if (signal == SIGSEGV && fault >= stacks_begin - (64 << 20) && fault < stacks_end)
    kind = "stack overflow", did = "goes beyond its own memory: an index outside an array of its own, or too many variables";
  void* callers[32];
  fprintf(report, "callers");
  for (int i = 2, count = backtrace(callers, 32); i < count; i++)  // the first two belong to this function
    fprintf(report, "\t@%zu", Address(callers[i]) + (i == 2));
  fprintf(report, "\n");
  found(0, kind, 0, did);
}

static void limit_time(long limit_us) {
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

// From here on the process can compute, have memory, and write to what it has open. Where the system knows no such
// filters, a kernel is as free as any program.
static void give_up_the_rest() {
#if defined(__x86_64__) || defined(__aarch64__)
#ifdef __x86_64__
  const unsigned architecture = AUDIT_ARCH_X86_64;
#else
  const unsigned architecture = AUDIT_ARCH_AARCH64;
#endif
  std::vector<sock_filter> steps{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, architecture, 1, 0),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL),
                                 BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (unsigned call : {SYS_write, SYS_lseek, SYS_mmap, SYS_munmap, SYS_mremap, SYS_brk, SYS_madvise, SYS_fstat,
                        SYS_newfstatat, SYS_futex, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_getpid,
                        SYS_gettid, SYS_tgkill, SYS_exit_group}) {
    steps.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    steps.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  steps.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1));
  const sock_fprog filter{(unsigned short)steps.size(), steps.data()};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
#endif
}

int main() {
  const size_t file_bytes = lseek(0, 0, SEEK_END);
  arguments = static_cast<uint64_t*>(mmap(nullptr, file_bytes, PROT_READ, MAP_SHARED, 0, 0));
  report = fdopen(0, "r+");
  const auto next = [] { return *arguments++; };
  const long limit_us = next();
  for (uint3* size : {&grid, &block}) *size = {unsigned(next()), unsigned(next()), unsigned(next())};
  Address shared;
  dl_iterate_phdr(find_shared, &shared);
  for (auto count = next(); count > 0; count--) {
    Array array{next(), next(), next(), next()};
    array.words = static_cast<Word*>(calloc(array.bytes / 4 + 1, sizeof(Word)));
    if (!array.file_offset) array.stray += shared, array.begin += shared;
    else mmap((void*)array.begin, array.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, 0, array.file_offset);
    arrays.push_back(array);
  }
  site_at.resize(&end - &__executable_start);
  make_threads();
  limit_time(limit_us);
  give_up_the_rest();
  for (; block_number < grid.x * grid.y * grid.z; block_number++) run_block();
  finish(true);
}
