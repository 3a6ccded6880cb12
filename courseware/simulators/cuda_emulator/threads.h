// The threads of a launch: fibers, each with a stack of its own. A thread runs until it waits at a barrier, or in an
// exchange with other lanes of its warp, or returns. Warps take turns, and blocks run one after the other.
#pragma once
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "requests.h"
using namespace runner;

const size_t STACK_BYTES = 256 << 10;

struct Thread {
  jmp_buf context;
  Address stack_top;
  State state;     // what it waits in
  unsigned place;  // and where: a line, or the address of an instruction
  unsigned mask;   // the lanes that it waits for; afterwards, those that came
  uint64_t value, shown;   // to other lanes; shown: what the value was when all had come
  unsigned synced[LANES];  // when __syncwarp last ordered what it and another lane do
  unsigned accesses;       // since the other lanes of its warp had their turn
};

static FILE* report;
static const uint64_t* arguments;
static std::vector<Thread> threads;
static int me;  // the thread that runs
uint3 thread_index asm("threadIdx"), block_index asm("blockIdx"), block asm("blockDim"), grid asm("gridDim");
static Address stacks_begin, stacks_end;
static jmp_buf scheduler;
static unsigned block_number;
// Time passes where memory is ordered: at barriers and exchanges. No two blocks have one in common.
static unsigned now = 0, barrier_time;
static long long barriers, shuffles;
static size_t stack_bytes;  // the most that a thread's variables took while it waited
static volatile bool out_of_time;
static const char* const OUT_OF_TIME = "was running when the time limit was reached";

[[noreturn]] static void finish(bool complete) {
  signal(SIGPROF, SIG_IGN);
  write_counts(report);
  fprintf(report, "end\t%d\t%lld\t%lld\t%zu\n", complete, barriers, shuffles, stack_bytes);
  fflush(report);
  fflush(stdout);
  _exit(0);
}

// Something is wrong with what this thread did: a sentence in which report.py puts names for <thread>, {array},
// {array offset bytes} and @place. At rank 0, the launch ends. Of findings with other ranks, only those with the lowest
// are told, because the others may follow from them.
template <class... T> __attribute__((noinline, cold))
static void found(int rank, const char* kind, unsigned place, const char* did, T... values) {
  fprintf(report, "found\t%d\t@%u\t%s\t<%d> of block %u ", rank, place, kind, me, block_number);
  fprintf(report, did, values...);
  fprintf(report, ".\n");
  if (rank == 0) finish(false);
}

static uint3 index(unsigned n, uint3 size) { return {n % size.x, n / size.x % size.y, n / size.x / size.y}; }

static void wait_as(State state, unsigned place) {
  Thread& thread = threads[me];
  thread.state = state, thread.place = place;
  stack_bytes = max(stack_bytes, thread.stack_top - Address(__builtin_frame_address(0)));
  if (!_setjmp(thread.context)) _longjmp(scheduler, 1);
  if (out_of_time) found(0, "time limit", place, OUT_OF_TIME);
}

static void run(int thread) {
  me = thread;
  thread_index = index(thread, block);
  threads[me].accesses = 0;
  if (!_setjmp(scheduler)) _longjmp(threads[me].context, 1);
}

static void life_of_a_thread() {
  for (;;) {
    wait_as(RETURNED, 0);  // until the turn of its next block
    kernel_call(arguments);
  }
}

static void make_threads() {
  const int count = block.x * block.y * block.z, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char* stack = static_cast<char*>(mmap(nullptr, STACK_BYTES * count, PROT_READ | PROT_WRITE, flags, -1, 0));
  stacks_begin = Address(stack), stacks_end = stacks_begin + STACK_BYTES * count;
  threads.resize(count);
  for (me = 0; me < count; me++, stack += STACK_BYTES) {
    mprotect(stack, sysconf(_SC_PAGESIZE), PROT_NONE);  // the end of a stack: they grow downwards
    ucontext_t start;
    getcontext(&start);
    start.uc_stack.ss_sp = stack;
    start.uc_stack.ss_size = STACK_BYTES - me % 64 * 192;  // lest all stacks compete for the same lines of the cache
    makecontext(&start, life_of_a_thread, 0);
    threads[me].stack_top = Address(stack) + start.uc_stack.ss_size;
    if (!_setjmp(scheduler)) setcontext(&start);
  }
}

// What the kernel calls.
extern "C" uint64_t runner_wait(State what, unsigned mask, uint64_t value, int source, int line) {
  Thread& thread = threads[me];
  thread.mask = mask, thread.value = value;
  if (!(mask >> me % LANES & 1)) found(0, "shuffle", line, "calls this with a mask that does not name its own lane");
  wait_as(what, line);
  if (what == BARRIER) return 0;
  const Thread* warp = &threads[me - me % LANES];
  if (what == SHUFFLE) {
    if (source < 0 || source >= LANES || !(thread.mask >> source & 1))
      found(0, "shuffle", line, "reads from lane %d, which takes no part", source);
    return warp[source].shown;
  }
  uint64_t votes = 0;
  for (int lane = 0; lane < LANES; lane++) {
    if (!(thread.mask >> lane & 1)) continue;
    votes |= warp[lane].shown << lane;
    if (what == SYNC) thread.synced[lane] = now;
  }
  return votes;
}

// Lets the threads go on that wait like this one, once all do that it waits for: those of its block, or of its warp,
// which its mask names and which have not returned.
static bool release(int thread) {
  const State what = threads[thread].state;
  const unsigned place = threads[thread].place, mask = threads[thread].mask;
  const int count = threads.size(), first = what == BARRIER ? 0 : thread - thread % LANES;
  const int end = what == BARRIER ? count : min(first + LANES, count);
  unsigned came = 0;
  for (int i = first; i < end; i++) {
    const Thread& other = threads[i];
    if (!(mask >> i % LANES & 1) || other.state == RETURNED) continue;
    if (other.state != what || other.place != place || other.mask != mask) return false;
    came |= 1u << i % LANES;
  }
  now++;
  if (what == BARRIER) barrier_time = now, barriers++;
  else if (what != SYNC) shuffles++;
  for (int i = first; i < end; i++) {
    Thread& other = threads[i];
    if (came >> i % LANES & 1 && other.state == what) other.state = READY, other.mask = came, other.shown = other.value;
  }
  return true;
}

// When no thread can go on: which wait where?
[[noreturn]] static void stop_waiting() {
  static const char* const WAITS[] = {"wait%s for other lanes of the warp in line %u",
                                      "wait%s at __syncthreads() in line %u", "returned"};
  std::map<std::pair<int, unsigned>, std::vector<int>> groups;
  for (size_t i = 0; i < threads.size(); i++) groups[{max(threads[i].state, SYNC), threads[i].place}].push_back(i);
  const auto [state, place] = groups.begin()->first;
  fprintf(report, "found\t0\t@%u\t%s\tin block %u", place, state == BARRIER ? "barrier" : "shuffle", block_number);
  for (const auto& [where, group] : groups) {
    fprintf(report, group.size() > 1 ? ", <%d> and %zu more " : ", <%d> ", group[0], group.size() - 1);
    fprintf(report, WAITS[where.first - SYNC], group.size() > 1 ? "" : "s", where.second);
  }
  fprintf(report, state == BARRIER ? ". All threads of a block that have not returned must reach the same barrier.\n"
                                   : ". All lanes that the mask names must take part, unless they have returned.\n");
  finish(false);
}

static void run_block() {
  const int count = threads.size();
  barrier_time = ++now;
  block_index = index(block_number, grid);
  for (Thread& thread : threads) thread.state = READY;
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (int i = 0; i < count; i++) {
      if (threads[i].state == READY) run(i);
      if (i % LANES == LANES - 1 || i == count - 1) end_interval();
    }
    for (int i = 0; i < count; i++) goes_on |= threads[i].state == READY || (threads[i].state <= SYNC && release(i));
    for (int i = 0; i < count && !goes_on; i++) goes_on = threads[i].state == BARRIER && release(i);
  }
  for (const Thread& thread : threads) if (thread.state != RETURNED) stop_waiting();
}
