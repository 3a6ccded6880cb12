// Runs one launch of a CUDA kernel on a CPU. Linked with the kernel into a program, which runner.py starts with a file as
// its standard input. The file begins with numbers of 8 bytes: a Place, and what `main` reads. Then come the arrays, where
// the kernel's stores go. Behind them, the program writes what report.py reads.
#include <sys/time.h>

#include "accesses.h"  // and threads.h

[[noreturn]] static void finish(bool complete) {
  for (const Site* site : site_at) {
    if (!site) continue;
    for (const auto& [request, count] : site->counts) {
      fprintf(report, "requests\t%s\t%u\t%d\t%lld", VERBS[site->access], site->size, request.first, count);
      for (Address a : request.second) fprintf(report, "\t%zu", a);
      fprintf(report, "\n");
    }
  }
  fprintf(report, "end\t%d\t%lld\t%lld\t%zu\n", complete, barriers, shuffles, stack_bytes);
  fflush(report);
  fflush(stdout);
  _exit(0);
}

__attribute__((aligned(128))) thread_local char runner_shared;  // a variable by which the kernel's are found

int main() {
  const size_t file_bytes = lseek(0, 0, SEEK_END);
  void* file = mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, 0, 0);
  running = static_cast<Running*>(file);
  arguments = reinterpret_cast<uint64_t*>(running + 1);
  report = fdopen(0, "r+");
  const auto next = [] { return *arguments++; };
  const itimerval limit{{0, 0}, {long(next()), long(next())}};
  for (uint3* size : {&grid, &block}) *size = {unsigned(next()), unsigned(next()), unsigned(next())};
  for (auto count = next(); count > 0; count--) {
    Array array{next(), next(), next(), next()};
    array.words = static_cast<Word*>(calloc(array.bytes / 4 + 1, sizeof(Word)));
    if (!array.file_offset) array.stray += Address(&runner_shared), array.begin += Address(&runner_shared);
    else mmap((void*)array.begin, array.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, 0, array.file_offset);
    arrays.push_back(array);
  }
  site_at.resize(&end - &__executable_start);
  make_threads();
  setitimer(ITIMER_PROF, &limit, nullptr);  // SIGPROF ends this process
  for (; running->block < grid.x * grid.y * grid.z; running->block++) run_block();
  finish(true);
}
