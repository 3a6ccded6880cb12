// Every access to memory: counted, and looked at for mistakes.
//
// Compiled with -fsanitize=thread, the kernel calls one of the functions at the end of this file before each access.
// The address to which they return tells the instruction.
#pragma once
#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include "threads.h"

enum Access : uint8_t { LOAD, STORE };
static const char* name_of(Access access) { return access == STORE ? "store" : "load"; }

// Each array lies in the middle of 16 GiB of addresses of its own: an address that strays still says from which array.
const int SLOT_BITS = 34;
const int SHARED = -1, NOWHERE = -2;  // for addresses that are in no array
struct Word;
struct Array {
  Address begin;
  size_t bytes;
  Word* words;
};
static std::vector<Array> arrays;
static Address arrays_begin, arrays_end, code_begin, code_end;
static Array shared;                      // all shared memory
static std::vector<Array> shared_arrays;  // its parts
static std::vector<bool> shared_exists;   // for each word, whether it is in one of the parts

static int array_of(Address a) {
  if (a >= arrays_begin && a < arrays_end) return int((a - arrays_begin) >> SLOT_BITS);
  return shared.bytes && a + 65536 >= shared.begin && a < shared.begin + shared.bytes + 65536 ? SHARED : NOWHERE;
}

// ------------------------------------------------------------------------------------------------------ counting
//
// A request is one instruction of one warp. Which accesses of its lanes belong together? A lane's n-th execution of an
// instruction with the n-th of the other lanes, where n counts from the latest barrier or shuffle: an interval.

struct Request {
  unsigned lanes;  // a bit for each
  Address address[LANES];
};
struct Counts { long long requests, bytes, sectors, passes, conflicts; };
struct Site {  // an instruction
  Address code;
  Access access;
  unsigned size;
  unsigned interval, executed[LANES];  // how often in this interval, by lane
  std::vector<Request> requests;       // of this interval, as many as in_use
  size_t in_use;
  std::map<int, Counts> counts;  // by array
};
static std::vector<Site> sites;
static std::vector<unsigned short> site_at;  // for each address of the program, 0 or the index of its site
static std::vector<Site*> active_sites;      // in this interval
static unsigned interval = 1;

// Device memory moves in sectors of 32 bytes: how many does a request touch?
static int count_sectors(const Request& request) {
  Address seen[LANES];
  int count = 0;
  for (int lane = 0; lane < LANES; lane++) {
    Address sector = request.address[lane] / 32;
    if (request.lanes >> lane & 1 && std::find(seen, seen + count, sector) == seen + count) seen[count++] = sector;
  }
  return count;
}

// Shared memory has 32 banks, and in one pass each delivers one word of 4 bytes, to all lanes that want it. Further
// words of the same bank take further passes: conflicts.
struct Passes { int all, conflicts; };
static Passes serve(const Request& request, unsigned size, int lanes_at_once) {
  Passes passes{};
  for (int first = 0; first < LANES; first += lanes_at_once) {
    Address words[32][LANES], previous = 0;
    int in_bank[32] = {}, most = 0;
    for (int lane = first; lane < first + lanes_at_once; lane++) {
      if (!(request.lanes >> lane & 1) || request.address[lane] == previous) continue;
      previous = request.address[lane];
      for (Address word = previous / 4; word * 4 < previous + size; word++) {
        Address* bank = words[word % 32];
        int& count = in_bank[word % 32];
        if (std::find(bank, bank + count, word) == bank + count) bank[count++] = word;
        most = max(most, count);
      }
    }
    passes.all += most;
    passes.conflicts += max(most - 1, 0);
  }
  return passes;
}

// A pass moves at most 128 bytes: lanes with 8 bytes each are served half a warp at a time, and with 16 bytes a quarter.
// Twice as many are, in a load, if each lane's address is that of lane ^ 1, or each that of lane ^ 2. (NVIDIA developer
// forum, "Unexpected shared memory bank conflict", for compute capability 7.0 and later.)
static Passes count_passes(const Request& request, const Site& site) {
  if (site.size <= 4) return serve(request, site.size, LANES);
  Passes passes = serve(request, site.size, 128 / site.size);
  for (int apart = 1; apart <= 2 && site.access == LOAD; apart++) {
    bool paired = true;
    for (int lane = 0; lane < LANES; lane++) {
      bool both = request.lanes >> lane & 1 && request.lanes >> (lane ^ apart) & 1;
      paired &= !both || request.address[lane] == request.address[lane ^ apart];
    }
    Passes in_pairs = serve(request, site.size, 256 / site.size);
    if (paired && in_pairs.all <= passes.all) passes = in_pairs;
  }
  return passes;
}

// Counts the requests of the warp that ran last. All its lanes wait, so that no request is still growing.
static void end_interval() {
  for (Site* site : active_sites) {
    for (size_t i = 0; i < site->in_use; i++) {
      Request request = site->requests[i];
      for (unsigned left = request.lanes; left; left &= ~request.lanes) {  // once, if all lanes access one array
        int array = array_of(request.address[__builtin_ctz(left)]);
        request.lanes = 0;
        for (int lane = 0; lane < LANES; lane++)
          if (left >> lane & 1 && array_of(request.address[lane]) == array) request.lanes |= 1u << lane;
        Counts& counts = site->counts[array];
        counts.requests++;
        counts.bytes += site->size * __builtin_popcount(request.lanes);
        if (array == SHARED) {
          Passes passes = count_passes(request, *site);
          counts.passes += passes.all;
          counts.conflicts += passes.conflicts;
        } else {
          counts.sectors += count_sectors(request);
        }
      }
    }
  }
  active_sites.clear();
  interval++;
}

static unsigned short record(Address a, unsigned size, Access access, Address code) {
  unsigned short& index = site_at[code - code_begin];
  if (!index) {
    if (sites.size() == sites.capacity()) abort();  // active_sites points to them
    index = sites.size();
    sites.push_back(Site{code, access, size});
  }
  Site& site = sites[index];
  if (site.interval != interval) {
    site.interval = interval;
    site.in_use = 0;
    memset(site.executed, 0, sizeof site.executed);
    active_sites.push_back(&site);
  }
  int lane = me % LANES;
  size_t n = site.executed[lane]++;
  if (n == site.in_use) {
    if (n == site.requests.size()) site.requests.emplace_back();
    site.requests[site.in_use++].lanes = 0;
  }
  site.requests[n].lanes |= 1u << lane;
  site.requests[n].address[lane] = a;
  return index;
}

// ------------------------------------------------------------------------------------------------------- mistakes
//
// Two threads access the same address, one of them at least stores, and nothing decides which is first: a race. What
// decides is __syncthreads, and for lanes of one warp __syncwarp. Shuffles and votes order no memory (CUDA C++
// Programming Guide, "Warp Shuffle Functions"), and since Volta it is not enough to be in one warp, either.

struct Event {  // an access; epoch 0: there was none
  unsigned epoch, step;
  unsigned short thread, site;
  uint8_t bytes;  // of the word, a bit for each
};
struct Word { Event stored, loaded, also_loaded; };  // its latest store, and two loads by different threads

struct Unwritten { Address a, code; int thread; Word* word; };
static std::vector<Unwritten> unwritten;  // loads in this epoch of shared memory that nobody had stored

// One finding for each kind, pair of instructions, and relation of the two threads.
static void find(const char* kind, Address code, Address a, unsigned size, Access access, int thread,
                 const Event* other = nullptr, Access other_access = LOAD) {
  static std::set<std::tuple<std::string, Address, Address, bool>> found;
  Address other_code = other ? sites[other->site].code : 0;
  bool in_one_warp = other && other->thread / LANES == thread / LANES;
  if (found.size() > 100 || !found.insert({kind, code, other_code, in_one_warp}).second) return;
  int array = array_of(a);
  Address begin = array >= 0 ? arrays[array].begin : array == SHARED ? shared.begin : 0;
  fprintf(report, "finding\t%s\t0x%zx\t%u\t%d\t%d\t%lld\t%u\t%s", kind, size_t(code), block_number(), thread, array,
          (long long)(a - begin), size, name_of(access));
  if (other) {
    auto later = std::upper_bound(first_epochs.begin(), first_epochs.end(), other->epoch);
    fprintf(report, "\t0x%zx\t%d\t%d\t%s", size_t(other_code), int(later - first_epochs.begin()) - 1, other->thread,
            name_of(other_access));
  }
  fprintf(report, "\n");
}

static bool races(const Event& other, const Event& now, bool in_shared) {
  if (!other.epoch || !(other.bytes & now.bytes)) return false;
  if (other.epoch < first_epoch_of_block) return !in_shared;  // of another block, which has its own shared memory
  if (other.epoch < now.epoch || other.thread == now.thread) return false;
  if (other.thread / LANES != now.thread / LANES) return true;
  return warps[me / LANES].together[other.thread % LANES][now.thread % LANES] <= other.step;
}

// A later store races with one of two threads that load, whichever thread it comes from. They should be of two warps.
static void remember_load(Word* word, const Event& now) {
  auto is_over = [&](const Event& event) {
    bool in_my_warp = event.thread / LANES == now.thread / LANES;
    return event.epoch < now.epoch || event.thread == now.thread || (in_my_warp && event.step < now.step);
  };
  int warp = word->loaded.thread / LANES;
  bool both_of_another_warp = warp == word->also_loaded.thread / LANES && warp != now.thread / LANES;
  if (is_over(word->loaded)) word->loaded = now;
  else if (is_over(word->also_loaded) || both_of_another_warp) word->also_loaded = now;
}

static void end_epoch() {
  for (const Unwritten& load : unwritten)
    // If another thread did store it before the barrier, that was found to be a race.
    if (load.word->stored.epoch < epoch) find("unwritten", load.code, load.a, 4, LOAD, load.thread);
  unwritten.clear();
}

static void access(Address a, unsigned size, Access kind, Address code) {
  latest_call = code;
  if (a >= stacks_begin && a < stacks_end) return;  // a variable of the thread's own
  int number = array_of(a);
  const bool outside = number == NOWHERE && a >= code_begin && a < code_end;  // a constant, or a __device__ variable
  if (outside && kind == LOAD) return;
  in_runner = true;
  if (outside) {
    find("global variable", code, a, size, kind, me);
    stop();
  }
  const Array& array = number >= 0 ? arrays[number] : shared;
  size_t offset = a - array.begin, last = offset + size - 1;
  bool exists = number != NOWHERE && offset < array.bytes && last < array.bytes;
  if (exists && number == SHARED) exists = shared_exists[offset / 4] && shared_exists[last / 4];
  if (!exists || a % size) {
    find(exists ? "misaligned" : "out of bounds", code, a, size, kind, me);
    stop();
  }
  unsigned short site = record(a, size, kind, code);
  uint8_t bytes = size >= 4 ? 15 : ((1 << size) - 1) << a % 4;
  const Event now{epoch, warps[me / LANES].step, (unsigned short)me, site, bytes};
  const bool in_shared = number == SHARED;
  for (Word* word = array.words + offset / 4; word <= array.words + last / 4; word++) {
    Address at = max(a, array.begin + (word - array.words) * 4);
    auto check = [&](const Event& other, Access other_kind) {
      if (races(other, now, in_shared)) find("race", code, at, min(size, 4u), kind, me, &other, other_kind);
    };
    check(word->stored, STORE);
    if (kind == STORE) {
      check(word->loaded, LOAD);
      check(word->also_loaded, LOAD);
      word->stored = now;
    } else {
      if (in_shared && word->stored.epoch < first_epoch_of_block && unwritten.size() < 1000)
        unwritten.push_back({at, code, me, word});
      remember_load(word, now);
    }
  }
  in_runner = false;
  if (out_of_time) stop_because("time limit", code);
  // A thread that never waits would keep the other lanes from running, and its requests from being counted.
  if (++threads[me].accesses == 1 << 14) wait_as(READY, 0);
}

static void access_each_word(const void* begin, size_t bytes, Access kind, Address code) {
  for (size_t i = 0; i < bytes; i += 4) access(Address(begin) + i, bytes - i < 4 ? 1 : 4, kind, code);
}

extern "C" {
#define CODE Address(__builtin_return_address(0))
#define ANNOUNCED(size)                                                             \
  void __tsan_read##size(void* a) { access(Address(a), size, LOAD, CODE); }         \
  void __tsan_write##size(void* a) { access(Address(a), size, STORE, CODE); }       \
  void __tsan_unaligned_read##size(void* a) { access(Address(a), size, LOAD, CODE); } \
  void __tsan_unaligned_write##size(void* a) { access(Address(a), size, STORE, CODE); }
ANNOUNCED(1) ANNOUNCED(2) ANNOUNCED(4) ANNOUNCED(8) ANNOUNCED(16)
void __tsan_read_range(void* a, size_t bytes) { access_each_word(a, bytes, LOAD, CODE); }
void __tsan_write_range(void* a, size_t bytes) { access_each_word(a, bytes, STORE, CODE); }
void* __tsan_memset(void* a, int value, size_t bytes) {
  access_each_word(a, bytes, STORE, CODE);
  return memset(a, value, bytes);
}
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  access_each_word(from, bytes, LOAD, CODE);
  access_each_word(to, bytes, STORE, CODE);
  return memcpy(to, from, bytes);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
