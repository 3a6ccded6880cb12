// The threads of a launch: fibers, each with a stack of its own. A thread runs until it waits at a barrier, or in an
// exchange with other lanes of its warp, or returns. Warps take turns, and blocks run one after the other.
#pragma once
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <vector>

#include "device.h"
using namespace runner;

typedef uintptr_t Address;
const int LANES = 32;
const size_t STACK_BYTES = 256 << 10;

static void end_interval();                              // in accesses.h: a warp's turn is over
[[noreturn]] static void finish(bool complete);          // in runner.cc: writes the report

struct Thread {
  jmp_buf context;
  Address stack_top;
  State state;  // what it waits in
  int line;     // and where
  unsigned mask;
  int source;  // the lane whose value it receives
  uint64_t value, received;
  unsigned synced[LANES];  // when __syncwarp last ordered what it and another lane do
  unsigned accesses;       // since the other lanes of its warp had their turn
};

static FILE* report;
static char** arguments;
static std::vector<Thread> threads;
static int me;  // the thread that runs
static uint3 grid, block;
static unsigned block_number;
static Address stacks_begin, stacks_end;
static jmp_buf scheduler;
// Time passes where memory is ordered: at barriers and with each __syncwarp. No two blocks have one in common.
static unsigned now = 0, barrier_time;
static long long barriers, shuffles;
static size_t stack_bytes;  // the most that a thread's variables took while it waited
static volatile bool out_of_time;

[[noreturn]] static void stop(const char* kind, int thread, int line, int other_lane = 0) {
  fprintf(report, "found\t%s\t%d\t%u\t%d\t%d\n", kind, line, block_number, thread, other_lane);
  finish(false);
}

static void wait_as(State state, int line) {
  Thread& thread = threads[me];
  thread.state = state;
  thread.line = line;
  stack_bytes = max(stack_bytes, thread.stack_top - Address(__builtin_frame_address(0)));
  if (!_setjmp(thread.context)) _longjmp(scheduler, 1);
  if (out_of_time && line) stop("time limit", me, line);  // without a line, at its next access
}

static void run(int thread) {
  me = thread;
  threads[me].state = READY;
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
    ucontext_t start, here;
    getcontext(&start);
    start.uc_stack.ss_sp = stack;
    start.uc_stack.ss_size = STACK_BYTES - me % 64 * 192;  // lest all stacks compete for the same lines of the cache
    makecontext(&start, life_of_a_thread, 0);
    threads[me].stack_top = Address(stack) + start.uc_stack.ss_size;
    if (!_setjmp(scheduler)) swapcontext(&here, &start);
  }
}

// What the kernel calls.
extern "C" unsigned runner_index(int of, int axis) {
  const auto index = [](unsigned n, uint3 size) { return uint3{n % size.x, n / size.x % size.y, n / size.x / size.y}; };
  const uint3 what = of == 0 ? index(me, block) : of == 1 ? index(block_number, grid) : of == 2 ? block : grid;
  return axis == 0 ? what.x : axis == 1 ? what.y : what.z;
}

extern "C" uint64_t runner_wait(State what, unsigned mask, uint64_t value, int operand, int width, int line) {
  int lane = me % LANES, segment = lane & -width, source = lane;
  if (what == SHUFFLE) source = segment | (operand & (width - 1));
  if (what == SHUFFLE_UP && lane - operand >= segment) source = lane - operand;
  if (what == SHUFFLE_DOWN && lane + operand < segment + width) source = lane + operand;
  if (what == SHUFFLE_XOR && (lane ^ operand) < segment + width) source = lane ^ operand;
  Thread& thread = threads[me];
  thread.mask = mask, thread.value = value, thread.source = source;
  wait_as(what, line);
  return thread.received;
}

// Lets the threads go on that wait like this one, once all do that it waits for: those of first to end - 1 which its
// mask names and which have not returned.
static bool release(int thread, int first, int end) {
  const State what = threads[thread].state;
  const int line = threads[thread].line;
  const unsigned mask = threads[thread].mask;
  auto takes_part = [&](int i) { return i < end && mask >> i % LANES & 1 && threads[i].state != RETURNED; };
  if (!takes_part(thread)) stop("not in its own mask", thread, line);
  uint64_t votes = 0;
  for (int i = first; i < end; i++) {
    const Thread& other = threads[i];
    if (!takes_part(i)) continue;
    if (other.state != what || other.line != line || other.mask != mask) return false;
    votes |= other.value << i % LANES;  // if this is a vote
  }
  if (what == BARRIER) barrier_time = ++now, barriers++;
  else if (what == SYNC) now++;
  else shuffles++;
  for (int i = first; i < end; i++) {
    if (!takes_part(i)) continue;
    Thread& other = threads[i];
    int source = i - i % LANES + other.source;
    if (!takes_part(source)) stop("its source takes no part", i, line, other.source);
    other.received = what == VOTE ? votes : threads[source].value;
    other.state = READY;
    for (int lane = 0; lane < LANES && what == SYNC; lane++)
      if (takes_part(first + lane)) other.synced[lane] = now;
  }
  return true;
}

static void run_block() {
  const int count = threads.size();
  barrier_time = ++now;
  for (Thread& thread : threads) thread.state = READY;
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (int first = 0, end; first < count; first = end) {
      end = min(first + LANES, count);
      for (int i = first; i < end; i++) if (threads[i].state == READY) run(i);
      end_interval();
      for (int i = first; i < end; i++) if (threads[i].state > BARRIER) release(i, first, end);
      for (int i = first; i < end; i++) goes_on |= threads[i].state == READY;
    }
    for (int i = 0; i < count && !goes_on; i++) if (threads[i].state == BARRIER) goes_on = release(i, 0, count);
  }
  bool returned = true;
  for (const Thread& thread : threads) returned &= thread.state == RETURNED;
  if (returned) return;
  fprintf(report, "waiting\t%u", block_number);
  for (const Thread& thread : threads) fprintf(report, "\t%d,%d", thread.state, thread.line);
  fprintf(report, "\n");
  finish(false);
}
