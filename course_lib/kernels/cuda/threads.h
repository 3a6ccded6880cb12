// The threads of a launch: fibers, each with a stack of its own. A thread runs until it waits at a barrier, or in an
// exchange with other lanes of its warp, or returns. Warps take turns, and blocks run one after the other.
#pragma once
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <vector>

#include "device.h"
using namespace runner;
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

typedef uintptr_t Address;
const int LANES = 32;
const size_t STACK_BYTES = 256 << 10;

extern "C" void kernel_kinds(const char** out);  // KERNEL_TO_RUN in device.h defines both
extern "C" void kernel_call(const Argument* arguments);
// In accesses.h: a warp's turn is over, and all threads of the block wait at a barrier or have returned.
static void end_interval();
static void end_epoch();

enum State { READY, IN_EXCHANGE, AT_BARRIER, RETURNED };
static const char* const STATES[] = {"ready", "exchange", "barrier", "returned"};
struct Thread {
  jmp_buf context;
  Address stack_top;  // where the kernel's own variables begin, downwards
  uint3 index;
  State state;
  int line;           // where it waits
  unsigned accesses;  // since the other lanes of its warp had their turn
  // Of the exchange in which it waits:
  Exchange what;
  unsigned mask;
  uint64_t value;
  int source;  // the lane whose value it gets
};
struct Warp {
  unsigned step;                    // counts __syncwarp
  unsigned together[LANES][LANES];  // for two lanes, the latest step in which both took part
};

static FILE* report;
static std::vector<Argument> arguments;
static std::vector<Thread> threads;
static std::vector<Warp> warps;
static uint3 grid, block, block_index;
static Address stacks_begin, stacks_end;
static int me;  // the thread that runs
static jmp_buf scheduler, launch_end;
// Epochs lie between barriers. No two blocks have one in common.
static unsigned epoch, first_epoch_of_block;
static std::vector<unsigned> first_epochs;
static long long barriers, shuffles;
static size_t stack_bytes;  // the most that a thread's variables took while it waited
static volatile bool in_runner, out_of_time;
static Address latest_call;  // from the kernel: the instruction after it

static unsigned block_number() { return block_index.x + grid.x * (block_index.y + grid.y * block_index.z); }

// Ends the launch, from wherever it is called.
[[noreturn]] static void stop() { _longjmp(launch_end, 1); }

[[noreturn]] static void stop_because(const char* what, Address code) {
  fprintf(report, "stopped\t%s\t0x%zx\t0x%zx\t%u\t%d\n", what, size_t(code), size_t(latest_call), block_number(), me);
  stop();
}

static void wait_as(State state, int line) {
  in_runner = true;
  threads[me].state = state;
  threads[me].line = line;
  Address here = Address(__builtin_frame_address(0));
  if (state == RETURNED) threads[me].stack_top = here;
  stack_bytes = max(stack_bytes, size_t(threads[me].stack_top - here));
  if (!_setjmp(threads[me].context)) _longjmp(scheduler, 1);
  in_runner = false;
  if (out_of_time) stop_because("time limit", 0);
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
    kernel_call(arguments.data());
  }
}

static void make_threads() {
  int count = block.x * block.y * block.z, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char* stack = static_cast<char*>(mmap(nullptr, STACK_BYTES * count, PROT_READ | PROT_WRITE, flags, -1, 0));
  stacks_begin = Address(stack);
  stacks_end = stacks_begin + STACK_BYTES * count;
  threads.resize(count);
  warps.resize((count + LANES - 1) / LANES);
  for (me = 0; me < count; me++, stack += STACK_BYTES) {
    mprotect(stack, sysconf(_SC_PAGESIZE), PROT_NONE);  // the end of a stack: they grow downwards
    ucontext_t start, here;
    getcontext(&start);
    start.uc_stack.ss_sp = stack;
    start.uc_stack.ss_size = STACK_BYTES - me % 64 * 192;  // lest all stacks compete for the same lines of the cache
    makecontext(&start, life_of_a_thread, 0);
    threads[me].index = {me % block.x, me / block.x % block.y, me / block.x / block.y};
    if (!_setjmp(scheduler)) swapcontext(&here, &start);
  }
}

// What the kernel calls.
extern "C" {
unsigned runner_index(int of, int axis) {
  const uint3 index[] = {threads[me].index, block_index, block, grid};  // in the order of device.h
  return axis == 0 ? index[of].x : axis == 1 ? index[of].y : index[of].z;
}

void runner_barrier(int line) {
  latest_call = Address(__builtin_return_address(0));
  wait_as(AT_BARRIER, line);
}

uint64_t runner_exchange(Exchange what, unsigned mask, uint64_t value, int operand, int width, int line) {
  int lane = me % LANES, segment = lane & -width, source = lane;
  if (what == SHUFFLE) source = segment | (operand & (width - 1));
  if (what == SHUFFLE_UP && lane - operand >= segment) source = lane - operand;
  if (what == SHUFFLE_DOWN && lane + operand < segment + width) source = lane + operand;
  if (what == SHUFFLE_XOR && (lane ^ operand) < segment + width) source = lane ^ operand;
  Thread& thread = threads[me];
  thread.what = what, thread.mask = mask, thread.value = value, thread.source = source;
  latest_call = Address(__builtin_return_address(0));
  wait_as(IN_EXCHANGE, line);
  return thread.value;
}
}

[[noreturn]] static void stop_for_lane(const char* what, int thread, int other_lane) {
  fprintf(report, "lane\t%s\t%u\t%d\t%d\t%d\n", what, block_number(), thread, threads[thread].line, other_lane);
  stop();
}

// Carries out the exchange in which a lane waits, once all lanes that its mask names take part or have returned.
static bool complete_exchange(int warp, int lane) {
  Thread* lanes = &threads[warp * LANES];
  int count = min(LANES, int(threads.size()) - warp * LANES);
  const Thread one = lanes[lane];
  if (!(one.mask >> lane & 1)) stop_for_lane("not in its own mask", warp * LANES + lane, lane);
  uint64_t values[LANES] = {}, votes = 0;
  bool takes_part[LANES] = {};
  for (int i = 0; i < count; i++) {
    const Thread& other = lanes[i];
    if (!(one.mask >> i & 1) || other.state == RETURNED) continue;
    if (other.state != IN_EXCHANGE || other.what != one.what || other.mask != one.mask || other.line != one.line)
      return false;
    takes_part[i] = true;
    values[i] = other.value;
    votes |= other.value << i;  // if this is a vote
  }
  if (one.what == SYNC) warps[warp].step++;
  else shuffles++;
  for (int i = 0; i < count; i++) {
    if (!takes_part[i]) continue;
    Thread& thread = lanes[i];
    if (!takes_part[thread.source]) stop_for_lane("its source takes no part", warp * LANES + i, thread.source);
    thread.value = one.what == VOTE ? votes : values[thread.source];
    thread.state = READY;
    if (one.what != SYNC) continue;
    for (int other = 0; other < count; other++)
      if (takes_part[other]) warps[warp].together[i][other] = warps[warp].step;
  }
  return true;
}

// Runs a warp until none of its lanes can go on without another warp.
static void run_warp(int warp) {
  int first = warp * LANES, end = min(first + LANES, int(threads.size()));
  for (bool again = true; again;) {
    for (int i = first; i < end; i++) if (threads[i].state == READY) run(i);
    end_interval();
    again = false;
    for (int i = first; i < end; i++) if (threads[i].state == IN_EXCHANGE) again |= complete_exchange(warp, i - first);
  }
}

// No thread can go on: for each group that waits alike, its state, line and threads.
[[noreturn]] static void stop_waiting() {
  std::map<std::pair<State, int>, std::vector<size_t>> groups;
  for (size_t i = 0; i < threads.size(); i++) groups[{threads[i].state, threads[i].line}].push_back(i);
  fprintf(report, "waiting\t%u", block_number());
  for (const auto& [how, group] : groups)
    fprintf(report, "\t%s,%d,%zu,%zu", STATES[how.first], how.second, group.size(), group[0]);
  fprintf(report, "\n");
  stop();
}

static void run_block() {
  first_epoch_of_block = ++epoch;
  first_epochs.push_back(epoch);
  for (Thread& thread : threads) thread.state = READY;
  for (;;) {
    for (size_t warp = 0; warp < warps.size(); warp++) run_warp(warp);
    size_t returned = 0, waiting = 0, ready = 0;
    int line = 0;
    bool one_line = true;
    for (const Thread& thread : threads) {
      returned += thread.state == RETURNED;
      ready += thread.state == READY;  // it has used up its turn
      if (thread.state != AT_BARRIER) continue;
      one_line &= waiting++ == 0 || thread.line == line;
      line = thread.line;
    }
    if (ready) continue;
    if (returned + waiting < threads.size() || !one_line) stop_waiting();
    end_epoch();
    if (!waiting) return;
    for (Thread& thread : threads) if (thread.state == AT_BARRIER) thread.state = READY;
    barriers++;
    epoch++;
  }
}
