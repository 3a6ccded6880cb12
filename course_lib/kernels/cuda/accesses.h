// Every access to memory: gathered to requests, and looked at for mistakes.
//
// Compiled with -fsanitize=thread, the kernel calls one of the functions at the end of this file before each access.
// The address to which they return tells the instruction.
#pragma once
#include <array>
#include <map>
#include <set>
#include <string>

#include "threads.h"

enum Access : uint8_t { LOAD, STORE };
static const char* const VERBS[] = {"load", "store"};

// An access in the past; time 0: there was none. bytes: of the word, a bit for each.
struct Event { unsigned time, block, code; unsigned short thread; uint8_t bytes; };
struct Word { Event stored, loaded, also_loaded; };  // its latest store, and two loads by different threads
struct Array {
  Address begin;
  size_t bytes;
  std::vector<bool> gaps;  // in shared memory: words that lie between its arrays
  Word* words = static_cast<Word*>(calloc(bytes / 4 + 1, sizeof(Word)));
};
static std::vector<Array> arrays;  // shared memory, and one for each argument; of 0 bytes for a number
const int SHARED = 0, NOWHERE = -1;
extern "C" char __executable_start, end;  // of the program; from the linker

static int array_of(Address a) {
  const size_t number = (a + SLOT_BYTES / 2) / SLOT_BYTES;
  if (number > 0 && number < arrays.size() && arrays[number].bytes) return number;
  const Array& shared = arrays[SHARED];
  return shared.bytes && a + 65536 >= shared.begin && a < shared.begin + shared.bytes + 65536 ? SHARED : NOWHERE;
}

// ------------------------------------------------------------------------------------------------------ counting
//
// A request is one instruction of one warp. Which accesses of its lanes belong together? A lane's n-th execution of an
// instruction with the n-th of the other lanes, where n counts from the latest barrier or shuffle: an interval. What a
// request costs depends on where its lanes are within 128 bytes, so that requests alike are counted, and report.py looks
// at one of them.

typedef std::pair<int, std::array<Address, LANES>> Request;  // an array, and the lanes' addresses: 0 for one that is off
struct Site {                                                // an instruction
  Access access;
  unsigned size;
  size_t executed[LANES];         // how often in this interval, by lane
  std::vector<Request> requests;  // of this interval
  std::map<Request, long long> counts;
};
static std::vector<Site*> site_at;       // for each address of the program
static std::vector<Site*> active_sites;  // in this interval

static void record(Address a, unsigned size, Access access, int array, Address code) {
  Site*& site = site_at[code - Address(&__executable_start)];
  if (!site) site = new Site{access, size};
  if (site->requests.empty()) active_sites.push_back(site);
  size_t& n = site->executed[me % LANES];
  while (n < site->requests.size() && site->requests[n].first != array) n++;
  if (n == site->requests.size()) site->requests.emplace_back(array, std::array<Address, LANES>{});
  site->requests[n++].second[me % LANES] = a;
}

// All lanes of the warp that ran last wait, so that no request is still growing.
static void end_interval() {
  for (Site* site : active_sites) {
    for (Request& request : site->requests) {
      Address least = ~Address(0);
      for (Address a : request.second) if (a) least = std::min(least, a);
      for (Address& a : request.second) if (a) a = a - least / 128 * 128 + 128;
      site->counts[request]++;
    }
    site->requests.clear();
    memset(site->executed, 0, sizeof site->executed);
  }
  active_sites.clear();
}

// ------------------------------------------------------------------------------------------------------- mistakes
//
// Two threads access the same address, one of them at least stores, and nothing decides which is first: a race. What
// decides is __syncthreads, and for lanes of one warp __syncwarp. Shuffles and votes order no memory (CUDA C++
// Programming Guide, "Warp Shuffle Functions"), and since Volta it is not enough to be in one warp, either.

// One finding for each kind and pair of instructions.
static void find(const char* kind, Address code, int array, Address a, unsigned size, Access access,
                 const Event* other = nullptr, Access other_access = LOAD) {
  static std::set<std::tuple<std::string, Address, Address>> found;
  if (found.size() > 100 || !found.insert({kind, code, other ? other->code : 0}).second) return;
  const Address begin = array == NOWHERE ? 0 : arrays[array].begin;
  fprintf(report, "found\t%s\t0x%zx\t%u\t%d\t%d\t%lld\t%u\t%s", kind, size_t(code), block_number, me, array,
          (long long)(a - begin), size, VERBS[access]);
  if (other) fprintf(report, "\t0x%x\t%u\t%d\t%s", other->code, other->block, other->thread, VERBS[other_access]);
  fprintf(report, "\n");
}

static bool of_one_warp(int thread, int other) { return (thread ^ other) < LANES; }

// Whether what a thread of this block did comes before all that this thread does from now on.
static inline __attribute__((always_inline)) bool is_over(const Event& event) {
  if (event.time < barrier_time || event.thread == me) return true;
  return of_one_warp(event.thread, me) && event.time < threads[me].synced[event.thread % LANES];
}

static void access(Address a, unsigned size, Access kind, Address code) {
  if (out_of_time) {
    fprintf(report, "found\ttime limit\t0x%zx\t%u\t%d\n", size_t(code), block_number, me);
    finish(false);
  }
  if (a >= stacks_begin && a < stacks_end) return;  // a variable of the thread's own
  const bool outside = a >= Address(&__executable_start) && a < Address(&end);  // a constant, or a __device__ variable
  if (outside && kind == LOAD) return;
  const int number = array_of(a);
  const Array& array = arrays[max(number, 0)];
  const size_t offset = a - array.begin, last = offset + size - 1;
  bool exists = number != NOWHERE && offset < array.bytes && last < array.bytes;
  if (exists && number == SHARED) exists = !array.gaps[offset / 4] && !array.gaps[last / 4];
  if (!exists || a & (size - 1)) {
    find(outside ? "global variable" : exists ? "misaligned" : "out of bounds", code, number, a, size, kind);
    finish(false);
  }
  record(a, size, kind, number, code);
  const uint8_t bytes = size >= 4 ? 15 : ((1 << size) - 1) << a % 4;
  const Event event{now, block_number, unsigned(code), (unsigned short)me, bytes};
  for (size_t i = offset / 4; i <= last / 4; i++) {
    Word& word = array.words[i];
    const Address at = max(a, array.begin + 4 * i);
    auto check = [&](const Event& other, Access other_kind) {
      if (!other.time || !(other.bytes & bytes)) return;
      if (other.block == event.block ? is_over(other) : number == SHARED) return;  // each block has its own
      const char* race = of_one_warp(other.thread, me) ? "race within a warp" : "race between warps";
      find(other.block == event.block ? race : "race between blocks", code, number, at, min(size, 4u), kind, &other,
           other_kind);
    };
    check(word.stored, STORE);
    if (kind == STORE) {
      check(word.loaded, LOAD);
      check(word.also_loaded, LOAD);
      word.stored = event;
    } else {
      if (number == SHARED && (!word.stored.time || word.stored.block != event.block))
        find("unwritten", code, number, at, 4, LOAD);
      // A later store races with one of two threads that load, whichever it comes from. They should be of two warps.
      const bool both_of_one = of_one_warp(word.loaded.thread, word.also_loaded.thread);
      if (is_over(word.loaded)) word.loaded = event;
      else if (is_over(word.also_loaded) || (both_of_one && !of_one_warp(word.loaded.thread, me)))
        word.also_loaded = event;
    }
  }
  // A thread that never waits would keep the other lanes from running, and its requests from being counted.
  if (++threads[me].accesses == 1 << 14) wait_as(READY, 0);
}

static void access_each_word(const void* begin, size_t bytes, Access kind, Address code) {
  for (size_t i = 0; i < bytes; i += 4) access(Address(begin) + i, bytes - i < 4 ? 1 : 4, kind, code);
}

extern "C" {
#define CODE Address(__builtin_return_address(0))
#define ANNOUNCED(size)                                                               \
  void __tsan_read##size(void* a) { access(Address(a), size, LOAD, CODE); }           \
  void __tsan_write##size(void* a) { access(Address(a), size, STORE, CODE); }         \
  void __tsan_unaligned_read##size(void* a) { access(Address(a), size, LOAD, CODE); } \
  void __tsan_unaligned_write##size(void* a) { access(Address(a), size, STORE, CODE); }
ANNOUNCED(1) ANNOUNCED(2) ANNOUNCED(4) ANNOUNCED(8) ANNOUNCED(16)
void __tsan_read_range(void* a, size_t bytes) { access_each_word(a, bytes, LOAD, CODE); }
void __tsan_write_range(void* a, size_t bytes) { access_each_word(a, bytes, STORE, CODE); }
void* __tsan_memset(void* a, int value, size_t bytes) {
  return access_each_word(a, bytes, STORE, CODE), memset(a, value, bytes);
}
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  access_each_word(from, bytes, LOAD, CODE), access_each_word(to, bytes, STORE, CODE);
  return memcpy(to, from, bytes);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
