// Looks at every access to memory for mistakes, and has it counted.
//
// Compiled with -fsanitize=thread, the kernel calls one of the functions at the end of this file before each access.
// The address to which they return tells the instruction.
#pragma once
#include <set>

#include "threads.h"

// An access in the past; time 0: there was none. bytes: of the word, a bit for each.
struct Event { unsigned time, block, place; unsigned short thread; uint8_t bytes; };
struct Word { Event stored, loaded, also_loaded; };  // its latest store, and two loads by different threads
// stray: where addresses begin that stray from this array. file_offset: 0 for an array in shared memory.
struct Array { Address stray, begin; size_t bytes, file_offset; Word* words; };
static std::vector<Array> arrays;  // in the order of their addresses
const size_t STRAY_BYTES = 16ull << 30;
extern "C" char __executable_start, end;  // of the program; from the linker

// The number of the array in which an address lies, or from which it strays; -1 if it is far from all.
static int array_at(Address a) {
  int n = arrays.size() - 1;
  while (n >= 0 && a < arrays[n].stray) n--;
  return n >= 0 && a - arrays[n].stray < STRAY_BYTES ? n : -1;
}

// Two threads access the same address, one of them at least stores, and nothing decides which is first: a race. What
// decides is __syncthreads, and for lanes of one warp __syncwarp. Shuffles and votes order no memory (CUDA C++
// Programming Guide, "Warp Shuffle Functions"), and since Volta it is not enough to be in one warp, either.

#define ACCESSES "%ss {%d %zd %u}"
#define BOTH_ACCESS ACCESSES ", which <%d> %ss in line @%u"
static const char* const RACES[] = {
    BOTH_ACCESS " as part of block %u. Blocks run in any order, and none can wait for another",
    BOTH_ACCESS ", and no barrier decides which is first",
    BOTH_ACCESS ", and nothing decides which is first. Both are in one warp: __syncwarp() would order them"};

// One finding of each rank for a pair of instructions.
static bool is_new(int rank, unsigned place, unsigned other_place) {
  static std::set<std::tuple<int, unsigned, unsigned>> known;
  return known.size() <= 100 && known.insert({rank, place, other_place}).second;
}

static bool of_one_warp(int thread, int other) { return (thread ^ other) < LANES; }

// Whether what a thread of this block did comes before all that this thread does from now on.
static inline __attribute__((always_inline)) bool is_over(const Event& event) {
  if (event.time < barrier_time || event.thread == me) return true;
  return of_one_warp(event.thread, me) && event.time < threads[me].synced[event.thread % LANES];
}

static void access(Address a, unsigned size, Access kind, unsigned code) {
  if (a >= stacks_begin && a < stacks_end) return;  // a variable of the thread's own
  const char* verb = VERBS[kind];
  if (a >= Address(&__executable_start) && a < Address(&end)) {  // a constant, or a __device__ variable
    if (kind == LOAD) return;
    found(0, "global variable", code, "stores to a variable outside the kernel. The runner counts accesses to shared "
                                      "memory and to arrays among the arguments only");
  }
  Site*& site = site_at[code - Address(&__executable_start)];
  if (!site) site = new Site{kind, size, -1};
  int& number = site->array;
  if (number < 0 || a - arrays[number].begin >= arrays[number].bytes) number = array_at(a);
  if (number < 0) found(0, "out of bounds", code, "%ss from address %#zx, outside every array", verb, a);
  const Array& array = arrays[number];
  const size_t offset = a - array.begin, last = offset + size - 1;
  const unsigned width = min(size, 4u);
  if (offset >= array.bytes || last >= array.bytes)
    found(0, "out of bounds", code, ACCESSES ", outside {%d}", verb, number, offset, width, number);
  if (a & (size - 1))
    found(0, "misaligned", code, ACCESSES " and what follows, %u bytes at once, from an address that is no multiple of "
                                          "%u", verb, number, offset, width, size, size);
  const bool shared = !array.file_offset;
  record(site, shared ? SHARED : number, me % LANES, a);
  const uint8_t bytes = size >= 4 ? 15 : ((1 << size) - 1) << a % 4;
  const Event event{now, block_number, code, (unsigned short)me, bytes};
  for (size_t i = offset / 4; i <= last / 4; i++) {
    Word& word = array.words[i];
    const size_t at = max(offset, 4 * i);
    auto check = [&](const Event& other, Access other_kind) __attribute__((always_inline)) {
      if (!other.time || !(other.bytes & bytes)) return;
      const bool same_block = other.block == block_number;
      if (same_block ? is_over(other) : shared) return;  // each block has its own
      const int race = same_block ? 1 + of_one_warp(other.thread, me) : 0, rank = max(race, 1);
      if (is_new(rank, code, other.place))
        found(rank, "race", code, RACES[race], verb, number, at, width, other.thread, VERBS[other_kind], other.place,
              other.block);
    };
    check(word.stored, STORE);
    if (kind == STORE) {
      check(word.loaded, LOAD);
      check(word.also_loaded, LOAD);
      word.stored = event;
    } else {
      if (shared && (!word.stored.time || word.stored.block != block_number) && is_new(3, code, 0))
        found(3, "unwritten", code, ACCESSES ", which no thread of the block has stored", verb, number, at, width);
      // A later store races with one of two threads that load, whichever it comes from. They should be of two warps.
      const bool both_of_one = of_one_warp(word.loaded.thread, word.also_loaded.thread);
      if (is_over(word.loaded)) word.loaded = event;
      else if (is_over(word.also_loaded) || (both_of_one && !of_one_warp(word.loaded.thread, me)))
        word.also_loaded = event;
    }
  }
  // A thread that never waits would keep the other lanes from running, and its requests from being counted.
  if (++threads[me].accesses == 1 << 14) wait_as(READY, code);
}

static void access_each_word(const void* begin, size_t bytes, Access kind, unsigned code) {
  for (size_t i = 0; i < bytes; i += 4) access(Address(begin) + i, bytes - i < 4 ? 1 : 4, kind, code);
}

extern "C" {
#define CODE unsigned(Address(__builtin_return_address(0)))
#define ANNOUNCED(size)                                                               \
  void __tsan_read##size(void* a) { access(Address(a), size, LOAD, CODE); }           \
  void __tsan_write##size(void* a) { access(Address(a), size, STORE, CODE); }         \
  void __tsan_unaligned_read##size(void* a) { access(Address(a), size, LOAD, CODE); } \
  void __tsan_unaligned_write##size(void* a) { access(Address(a), size, STORE, CODE); }
ANNOUNCED(1) ANNOUNCED(2) ANNOUNCED(4) ANNOUNCED(8) ANNOUNCED(16)
void __tsan_read_range(void* a, size_t bytes) { access_each_word(a, bytes, LOAD, CODE); }
void __tsan_write_range(void* a, size_t bytes) { access_each_word(a, bytes, STORE, CODE); }
void __tsan_init() {}
}
