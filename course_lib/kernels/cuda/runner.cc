// Runs one launch of a CUDA kernel on a CPU, thread by thread, and looks at every access to memory.
//
// The kernel's threads are fibers: each has a stack of its own and runs until it reaches a barrier or a shuffle, or
// returns. Warps take turns, and blocks run one after the other. The compiler, asked for -fsanitize=thread, puts a call
// before each access to memory (__tsan_read4 and so on, below). That shows which thread accesses which address with
// which instruction; everything that is reported follows from it.
//
//   requests    one per warp and instruction: a lane's n-th execution of an instruction belongs with the n-th of the
//               other lanes, counted anew after each barrier or shuffle
//   races       two threads, one address, at least one store, and nothing that orders the two: __syncthreads, or
//               __syncwarp for lanes of one warp. Shuffles and votes order no memory (CUDA C++ Programming Guide, "Warp
//               Shuffle Functions"); neither does running in one warp (since Volta).
//   barriers    all threads of the block that have not returned must be waiting, and in the same line
//
// Linked with the kernel into a program: see runner.py, which calls it and reads the report.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "device.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

extern "C" void kernel_kinds(const char** out);  // of its parameters; runner.py adds both functions to the kernel
extern "C" void kernel_call(const Argument* arguments);

typedef uintptr_t Address;
enum Access : uint8_t { LOAD, STORE };
const int LANES = 32, MAX_FINDINGS = 20;
const size_t STACK_BYTES = 256 << 10;

// ---------------------------------------------------------------------------------------------- what was launched

// Each array lies in the middle of 16 GiB of addresses of its own, so that an address that strays still says from where.
const int SLOT_BITS = 34;
struct Array { Address begin; size_t bytes; };
static std::vector<Array> arrays, shared_arrays;
static Address arrays_begin, arrays_end, shared_begin, shared_end, stacks_begin, stacks_end, code_begin, code_end;
static std::vector<bool> shared_exists;  // for each word of shared memory, whether it belongs to an array
static std::vector<Argument> arguments;
static uint3 grid, block, block_index;
static FILE* report;

// ------------------------------------------------------------------------------------------------------- threads

enum State { READY, AT_BARRIER, IN_EXCHANGE, RETURNED };
struct Thread {
  jmp_buf context;
  uint3 index;
  State state;
  int line;  // where it waits
  // of the exchange in which it waits
  Exchange what;
  unsigned mask;
  uint64_t value;
  int source;  // the lane whose value it gets
  unsigned accesses;  // since the others of its warp had their turn
};
struct Warp {
  unsigned step;                     // counts __syncwarp
  unsigned together[LANES][LANES];  // the latest step that ordered the accesses of two lanes
};
static std::vector<Thread> threads;
static std::vector<Warp> warps;
static int me;  // the thread that runs
static bool in_kernel;
static jmp_buf scheduler, launch_end;
static unsigned epoch, first_epoch_of_block;  // counts the barriers of all blocks
static std::vector<unsigned> first_epochs;
static long long barriers, shuffles;

// Ends the launch at once. Also called in a thread of the kernel and in a signal handler.
[[noreturn]] static void stop() { _longjmp(launch_end, 1); }

static void wait_as(State state, int line) {
  threads[me].state = state;
  threads[me].line = line;
  if (!_setjmp(threads[me].context)) _longjmp(scheduler, 1);
}

// ----------------------------------------------------------------------------------------------- counting requests

struct Counts { long long requests, bytes, sectors, passes, conflicts; };
struct Request {
  unsigned lanes;  // a bit for each lane
  Address address[LANES];
};
struct Site {  // an instruction that accesses memory
  Address code;
  Access access;
  unsigned size;
  unsigned interval, executed[LANES];  // how often, by each lane, in this interval
  std::vector<Request> requests;       // of this interval; the vector may hold more from earlier ones
  size_t in_use;
  std::map<int, Counts> counts;  // by array; SHARED for shared memory
};
const int SHARED = -1;
static std::vector<Site> sites;
static std::vector<unsigned short> site_at;  // for each address of the program's code, 0 or the site's index
static std::vector<Site*> active_sites;      // in this interval
static unsigned interval = 1;

// Device memory is moved in sectors of 32 bytes: how many a request touches.
static int sectors_of(const Request& request, unsigned size) {
  Address seen[LANES];
  int count = 0;
  for (int lane = 0; lane < LANES; lane++) {
    if (!(request.lanes >> lane & 1)) continue;
    Address sector = request.address[lane] / 32;  // aligned accesses of at most 16 bytes lie in one sector
    bool known = false;
    for (int i = count - 1; i >= 0 && !known; i--) known = seen[i] == sector;
    if (!known) seen[count++] = sector;
  }
  return count;
}

// Shared memory has 32 banks, each of which delivers one word of 4 bytes in a pass. All lanes that want the same word get
// it at once; several words of one bank take as many passes. What the lanes get in a pass are 32 words: with 8 bytes a
// lane, half a warp takes part in it, with 16 bytes a quarter. For loads, twice as many do if every lane wants the same
// address as its neighbour, lane ^ 1, or every lane the same as lane ^ 2. (NVIDIA's developer forum, "Unexpected shared
// memory bank conflict", on compute capability 7.0 and later.) Passes beyond the first of such a group are conflicts.
static void count_passes(const Request& request, unsigned size, Access access, Counts& counts) {
  int group = size == 16 ? 8 : size == 8 ? 16 : 32;
  for (int apart = 1; apart <= 2 && access == LOAD && group < 32; apart++) {
    bool paired = true;
    for (int lane = 0; lane < LANES; lane++) {
      bool both = (request.lanes >> lane & 1) && (request.lanes >> (lane ^ apart) & 1);
      paired &= !both || request.address[lane] == request.address[lane ^ apart];
    }
    if (paired) {
      group *= 2;
      break;
    }
  }
  for (int first = 0; first < LANES; first += group) {
    Address words[32][LANES];
    int in_bank[32] = {}, passes = 0;
    for (int lane = first; lane < first + group; lane++) {
      if (!(request.lanes >> lane & 1)) continue;
      for (Address word = request.address[lane] / 4; word * 4 < request.address[lane] + size; word++) {
        int bank = word % 32;
        bool known = false;
        for (int i = 0; i < in_bank[bank] && !known; i++) known = words[bank][i] == word;
        if (!known) words[bank][in_bank[bank]++] = word;
        passes = max(passes, in_bank[bank]);
      }
    }
    counts.passes += passes;
    counts.conflicts += passes ? passes - 1 : 0;
  }
}

static int array_of(Address a) { return a >= arrays_begin && a < arrays_end ? int((a - arrays_begin) >> SLOT_BITS) : SHARED; }

// Counts the requests of the warp that ran last. All its lanes wait now, so that no request is still growing.
static void end_interval() {
  for (Site* site : active_sites) {
    for (size_t i = 0; i < site->in_use; i++) {
      Request request = site->requests[i];
      for (unsigned left = request.lanes; left;) {  // once, unless the lanes access different arrays
        int array = array_of(request.address[__builtin_ctz(left)]);
        request.lanes = 0;
        for (unsigned todo = left; todo; todo &= todo - 1) {
          int lane = __builtin_ctz(todo);
          if (array_of(request.address[lane]) == array) request.lanes |= 1u << lane;
        }
        left &= ~request.lanes;
        Counts& counts = site->counts[array];
        counts.requests++;
        counts.bytes += site->size * __builtin_popcount(request.lanes);
        if (array == SHARED) count_passes(request, site->size, site->access, counts);
        else counts.sectors += sectors_of(request, site->size);
      }
    }
  }
  active_sites.clear();
  interval++;
}

static Site& record(Address a, unsigned size, Access access, Address code) {
  unsigned short& index = site_at[code - code_begin];
  if (!index) {
    if (sites.size() == sites.capacity()) abort();  // sites must not move
    sites.push_back(Site{code, access, size});
    index = sites.size() - 1;
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
  Request& request = site.requests[n];
  request.lanes |= 1u << lane;
  request.address[lane] = a;
  return site;
}

// -------------------------------------------------------------------------------------------------- finding errors

struct Event { unsigned epoch, step; unsigned short thread, site; uint8_t bytes; };  // the latest of its kind; epoch 0: none
struct Word {  // of memory: who accessed it
  Event stored, loaded, loaded_by_other;  // two loads by different threads, of different warps if there were any
};
static std::vector<Word*> words_of_array;
static Word* words_of_shared;

// Findings go to the report as they are made: one for each kind and pair of instructions.
static void find(const char* kind, Address code, Address a, unsigned size, Access access, const Event* other, Access other_access) {
  static std::set<std::pair<std::string, std::pair<Address, Address>>> found;
  Address other_code = other ? sites[other->site].code : 0;
  if (found.size() >= MAX_FINDINGS || !found.insert({kind, {code, other_code}}).second) return;
  int array = array_of(a);
  bool shared = a >= shared_begin && a < shared_end;
  long long offset = array != SHARED ? (long long)(a - arrays[array].begin) : shared ? (long long)(a - shared_begin) : (long long)a;
  fprintf(report, "finding\t%s\t0x%zx\t%u\t%d\t%s\t%lld\t%u\t%s", kind, size_t(code - code_begin), block_index.x + grid.x * (block_index.y + grid.y * block_index.z), me,
          array != SHARED ? std::to_string(array).c_str() : shared ? "shared" : "nowhere", offset, size, access == STORE ? "store" : "load");
  if (other) {
    size_t other_block = std::upper_bound(first_epochs.begin(), first_epochs.end(), other->epoch) - first_epochs.begin() - 1;
    fprintf(report, "\t0x%zx\t%zu\t%d\t%s", size_t(other_code - code_begin), other_block, other->thread, other_access == STORE ? "store" : "load");
  }
  fprintf(report, "\n");
}

static bool races(const Event& other, uint8_t bytes, bool shared) {
  if (!other.epoch || other.thread == me && other.epoch >= first_epoch_of_block || !(other.bytes & bytes)) return false;
  if (other.epoch < first_epoch_of_block) return !shared;  // blocks run in no order, but each has its own shared memory
  if (other.epoch < epoch) return false;
  if (other.thread / LANES != me / LANES) return true;
  return warps[me / LANES].together[other.thread % LANES][me % LANES] <= other.step;
}

static void access(Address a, unsigned size, Access access, Address code) {
  if (a >= stacks_begin && a < stacks_end || !in_kernel) return;  // a variable of the thread's own
  bool shared = a >= shared_begin && a < shared_end;
  int array = shared ? SHARED : array_of(a);
  if (array == SHARED && !shared && a >= code_begin && a < code_end) return;  // a constant
  bool exists = shared ? shared_exists[(a - shared_begin) / 4] && shared_exists[(a + size - 1 - shared_begin) / 4]
                       : array != SHARED && a >= arrays[array].begin && a + size <= arrays[array].begin + arrays[array].bytes;
  if (!exists || a % size) {
    find(exists ? "misaligned" : "out of bounds", code, a, size, access, nullptr, LOAD);
    stop();
  }
  unsigned site = &record(a, size, access, code) - sites.data();
  Word* words = shared ? words_of_shared : words_of_array[array];
  Address begin = shared ? shared_begin : arrays[array].begin;
  uint8_t bytes = size >= 4 ? 15 : ((1 << size) - 1) << (a % 4);
  Event now{epoch, warps[me / LANES].step, (unsigned short)me, (unsigned short)site, bytes};
  for (Word* word = words + (a - begin) / 4; word <= words + (a + size - 1 - begin) / 4; word++) {
    Address at = size > 4 ? begin + (word - words) * 4 : a;
    if (races(word->stored, bytes, shared)) find("race", code, at, min(size, 4u), access, &word->stored, STORE);
    if (access == STORE) {
      if (races(word->loaded, bytes, shared)) find("race", code, at, min(size, 4u), access, &word->loaded, LOAD);
      else if (races(word->loaded_by_other, bytes, shared)) find("race", code, at, min(size, 4u), access, &word->loaded_by_other, LOAD);
      word->stored = now;
    } else {
      if (shared && word->stored.epoch < first_epoch_of_block) find("unwritten", code, at, min(size, 4u), access, nullptr, LOAD);
      if (word->loaded.thread != me) {
        int warp = me / LANES, last = word->loaded.thread / LANES;
        if (word->loaded_by_other.epoch < epoch || last != warp || word->loaded_by_other.thread / LANES == warp) word->loaded_by_other = word->loaded;
      }
      word->loaded = now;
    }
  }
  // A thread that never waits would keep the others of its warp from running, and its requests from being counted.
  if (++threads[me].accesses == 1 << 14) wait_as(READY, 0);
}

// What the compiler calls before each access.
#define CODE Address(__builtin_return_address(0))
extern "C" {
#define ANNOUNCED(bytes)                                                                     \
  void __tsan_read##bytes(void* a) { access(Address(a), bytes, LOAD, CODE); }                \
  void __tsan_write##bytes(void* a) { access(Address(a), bytes, STORE, CODE); }              \
  void __tsan_unaligned_read##bytes(void* a) { access(Address(a), bytes, LOAD, CODE); }      \
  void __tsan_unaligned_write##bytes(void* a) { access(Address(a), bytes, STORE, CODE); }
ANNOUNCED(1) ANNOUNCED(2) ANNOUNCED(4) ANNOUNCED(8) ANNOUNCED(16)
static void each_word(void* a, size_t bytes, Access kind, Address code) {
  for (size_t i = 0; i < bytes; i += 4) access(Address(a) + i, bytes - i < 4 ? 1 : 4, kind, code);
}
void __tsan_read_range(void* a, size_t bytes) { each_word(a, bytes, LOAD, CODE); }
void __tsan_write_range(void* a, size_t bytes) { each_word(a, bytes, STORE, CODE); }
void* __tsan_memset(void* a, int value, size_t bytes) { return each_word(a, bytes, STORE, CODE), memset(a, value, bytes); }
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  each_word(const_cast<void*>(from), bytes, LOAD, CODE);
  return each_word(to, bytes, STORE, CODE), memcpy(to, from, bytes);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}

// ------------------------------------------------------------------------------------------- what the kernel calls

uint3 runner_thread_index() { return threads[me].index; }
uint3 runner_block_index() { return block_index; }
uint3 runner_block_size() { return block; }
uint3 runner_grid_size() { return grid; }

void runner_barrier(int line) { wait_as(AT_BARRIER, line); }

uint64_t runner_exchange(Exchange what, unsigned mask, uint64_t value, int operand, int width, int line) {
  int lane = me % LANES, segment = lane & -width, source = lane;
  if (what == SHUFFLE) source = segment | (operand & (width - 1));
  if (what == SHUFFLE_UP && lane - operand >= segment) source = lane - operand;
  if (what == SHUFFLE_DOWN && lane + operand < segment + width) source = lane + operand;
  if (what == SHUFFLE_XOR && (lane ^ operand) < segment + width) source = lane ^ operand;
  Thread& thread = threads[me];
  thread.what = what, thread.mask = mask, thread.value = value, thread.source = source;
  wait_as(IN_EXCHANGE, line);
  return thread.value;
}
}

// ------------------------------------------------------------------------------------------------------- scheduler

static void run(int thread) {
  me = thread;
  threads[me].state = READY;
  threads[me].accesses = 0;
  in_kernel = true;
  if (!_setjmp(scheduler)) _longjmp(threads[me].context, 1);
  in_kernel = false;
}

static void life_of_a_thread() {
  for (;;) {
    wait_as(RETURNED, 0);  // until its block's turn comes
    kernel_call(arguments.data());
  }
}

// One line for each group of threads that wait in the same way, for runner.py to say why none can go on.
static void report_waiting() {
  std::map<std::pair<int, int>, std::vector<int>> groups;
  for (size_t i = 0; i < threads.size(); i++) groups[{threads[i].state == RETURNED ? 2 : threads[i].state == IN_EXCHANGE, threads[i].line}].push_back(i);
  fprintf(report, "waiting\t%u", block_index.x + grid.x * (block_index.y + grid.y * block_index.z));
  for (auto& group : groups) {
    fprintf(report, "\t%d,%d", group.first.first, group.first.second);
    for (int i : group.second) fprintf(report, ",%d", i);
  }
  fprintf(report, "\n");
}

static void report_lane(const char* kind, int thread, int other) {
  fprintf(report, "lane\t%s\t%u\t%d\t%d\t%d\n", kind, block_index.x + grid.x * (block_index.y + grid.y * block_index.z), thread, threads[thread].line, other);
  stop();
}

// Lets those lanes of a warp go on whose exchange all named lanes have reached. Returns whether there were any.
static bool complete_exchanges(int warp) {
  Thread* lanes = &threads[warp * LANES];
  int count = min(LANES, int(threads.size()) - warp * LANES);
  bool any = false;
  for (int first = 0; first < count; first++) {
    const Thread one = lanes[first];
    if (one.state != IN_EXCHANGE) continue;
    unsigned there = 0;
    bool complete = true;
    for (int lane = 0; lane < count; lane++) {
      if (!(one.mask >> lane & 1) || lanes[lane].state == RETURNED) continue;
      complete &= lanes[lane].state == IN_EXCHANGE && lanes[lane].what == one.what && lanes[lane].mask == one.mask && lanes[lane].line == one.line;
      there |= 1u << lane;
    }
    if (!(one.mask >> first & 1)) report_lane("not in its own mask", warp * LANES + first, 0);
    if (!complete) continue;
    unsigned votes = 0;
    uint64_t values[LANES];
    for (int lane = 0; lane < count; lane++) values[lane] = lanes[lane].value;
    for (int lane = 0; lane < count; lane++) if (there >> lane & 1) votes |= unsigned(values[lane]) << lane;
    if (one.what == SYNC) warps[warp].step++;
    else shuffles++;
    for (int lane = 0; lane < count; lane++) {
      if (!(there >> lane & 1)) continue;
      if (one.what == SYNC) {
        for (int other = 0; other < count; other++) if (there >> other & 1) warps[warp].together[lane][other] = warps[warp].step;
      } else if (one.what == VOTE) {
        lanes[lane].value = votes;
      } else if (there >> lanes[lane].source & 1) {
        lanes[lane].value = values[lanes[lane].source];
      } else {
        report_lane("reads from a lane that takes no part", warp * LANES + lane, lanes[lane].source);
      }
      lanes[lane].state = READY;
    }
    any = true;
  }
  return any;
}

static void run_block() {
  int count = threads.size();
  first_epoch_of_block = ++epoch;
  first_epochs.push_back(epoch);
  for (Thread& thread : threads) thread.state = READY;
  for (;;) {
    for (int first = 0; first < count; first += LANES) {
      do {
        for (int i = first; i < min(first + LANES, count); i++) if (threads[i].state == READY) run(i);
        end_interval();
      } while (complete_exchanges(first / LANES));
    }
    int returned = 0, at_barrier = 0, ready = 0, line = 0;
    bool one_line = true;
    for (const Thread& thread : threads) {
      returned += thread.state == RETURNED;
      ready += thread.state == READY;
      if (thread.state != AT_BARRIER) continue;
      one_line &= !at_barrier++ || thread.line == line;
      line = thread.line;
    }
    if (returned == count) return;
    if (ready) continue;
    if (at_barrier + returned < count || !one_line) {
      report_waiting();
      stop();
    }
    for (Thread& thread : threads) if (thread.state == AT_BARRIER) thread.state = READY;
    barriers++;
    epoch++;
  }
}

// --------------------------------------------------------------------------------------------------------- process

// A crash, or the end of the time limit, while the kernel runs.
static void on_signal(int signal, siginfo_t* info, void* context) {
  const mcontext_t& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  Address code = machine.gregs[REG_RIP];
#else
  Address code = machine.pc;
#endif
  const char* kind = signal == SIGPROF ? "time limit" : signal == SIGFPE ? "division by zero" : signal == SIGABRT ? "aborted" : "crash";
  Address fault = Address(info->si_addr);
  if (signal == SIGSEGV && fault >= stacks_begin && fault < stacks_end) kind = "stack overflow";
  fprintf(report, "stopped\t%s\t0x%zx\t%u\t%d\n", kind, size_t(code + 1 - code_begin), block_index.x + grid.x * (block_index.y + grid.y * block_index.z), me);
  stop();
}

static int find_program(dl_phdr_info* program, size_t, void*) {
  code_begin = program->dlpi_addr;
  for (int i = 0; i < program->dlpi_phnum; i++) {
    const auto& part = program->dlpi_phdr[i];
    if (part.p_type == PT_LOAD) code_end = max(code_end, Address(program->dlpi_addr + part.p_vaddr + part.p_memsz));
    if (part.p_type == PT_TLS) shared_begin = Address(program->dlpi_tls_data), shared_end = shared_begin + part.p_memsz;
  }
  return 1;  // the first is the program itself
}

static char* reserve(size_t bytes, int protection) {
  void* begin = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) perror("mmap"), exit(3);
  return static_cast<char*>(begin);
}
static Word* words_for(size_t bytes) { return reinterpret_cast<Word*>(reserve((bytes / 4 + 1) * sizeof(Word), PROT_READ | PROT_WRITE)); }

static void make_threads(int count) {
  size_t page = sysconf(_SC_PAGESIZE);
  stacks_begin = Address(reserve(STACK_BYTES * count, PROT_READ | PROT_WRITE));
  stacks_end = stacks_begin + STACK_BYTES * count;
  threads.resize(count);
  warps.resize((count + LANES - 1) / LANES);
  for (me = 0; me < count; me++) {
    char* stack = reinterpret_cast<char*>(stacks_begin) + STACK_BYTES * me;
    mprotect(stack, page, PROT_NONE);  // where a stack ends that grows too large
    ucontext_t start, here;
    getcontext(&start);
    start.uc_stack.ss_sp = stack;
    start.uc_stack.ss_size = STACK_BYTES - me % 64 * 192;  // so that not all stacks compete for the same cache lines
    makecontext(&start, life_of_a_thread, 0);
    threads[me].index = {me % block.x, me / block.x % block.y, me / block.x / block.y};
    if (!_setjmp(scheduler)) swapcontext(&here, &start);
  }
}

static uint3 three(char** words) { return {unsigned(atoi(words[0])), unsigned(atoi(words[1])), unsigned(atoi(words[2]))}; }

// runner DATA REPORT LIMIT_S GRID BLOCK SHARED ARGUMENT...
// DATA: file with the arrays, each from a new page on. GRID, BLOCK: three numbers each. SHARED: offset:bytes of the arrays
// in shared memory, with commas between. ARGUMENT: kind:value, as in f4:0.125; for an array *f4:bytes.
int main(int count, char** words) {
  int data = open(words[1], O_RDWR);
  report = fopen(words[2], "w");
  grid = three(words + 4), block = three(words + 7);
  dl_iterate_phdr(find_program, nullptr);
  site_at.resize(code_end - code_begin);
  sites.reserve(1 << 16);
  sites.emplace_back();
  shared_exists.resize((shared_end - shared_begin) / 4 + 4);
  words_of_shared = words_for(shared_end - shared_begin);
  for (char* part = strtok(words[10], ","); part; part = strtok(nullptr, ",")) {
    size_t offset, bytes;
    sscanf(part, "%zu:%zu", &offset, &bytes);
    shared_arrays.push_back({offset, bytes});
    for (size_t i = offset / 4; i < (offset + bytes + 3) / 4; i++) shared_exists[i] = true;
  }
  const char* kinds[128];
  kernel_kinds(kinds);
  const size_t slot = size_t(1) << SLOT_BITS, page = sysconf(_SC_PAGESIZE);
  arrays_begin = Address(reserve(slot * (count - 11), PROT_NONE));
  size_t in_file = 0;
  for (int i = 11; i < count; i++) {
    std::string word = words[i], kind = word.substr(0, word.find(':')), value = word.substr(word.find(':') + 1);
    const char* wanted = kinds[i - 11];
    bool fits = wanted && (kind == wanted || (kind[0] == '*' && wanted[0] == '*' && wanted[1] == 'V') || (kind[0] == 'i' && wanted[0] == 'i') || wanted[0] == 'f' && kind[0] != '*');
    if (!fits) return fprintf(report, "refused\t%d\t%s\n", i - 11, wanted ? wanted : "nothing"), 0;
    Argument argument{};
    argument.real = atof(value.c_str()), argument.integer = atoll(value.c_str());
    if (kind[0] == '*') {
      size_t bytes = argument.integer;
      char* begin = reinterpret_cast<char*>(arrays_begin + slot * arrays.size() + slot / 2);
      if (mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, data, in_file) == MAP_FAILED) perror("mmap"), exit(3);
      in_file += (bytes + page - 1) / page * page;
      arrays.push_back({Address(begin), bytes});
      words_of_array.push_back(words_for(bytes));
      argument.array = begin;
    }
    arguments.push_back(argument);
  }
  if (kinds[arguments.size()]) return fprintf(report, "refused\t%zu\t%s\n", arguments.size(), kinds[arguments.size()]), 0;
  arrays_end = arrays_begin + slot * arrays.size();

  make_threads(block.x * block.y * block.z);
  stack_t alternate{};
  alternate.ss_sp = reserve(1 << 16, PROT_READ | PROT_WRITE), alternate.ss_size = 1 << 16;
  sigaltstack(&alternate, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_signal, action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGPROF}) sigaction(signal, &action, nullptr);
  double limit_s = atof(words[3]);
  itimerval limit{{0, 0}, {time_t(limit_s), suseconds_t((limit_s - floor(limit_s)) * 1e6)}};
  setitimer(ITIMER_PROF, &limit, nullptr);

  bool complete = false;
  if (!_setjmp(launch_end)) {
    for (block_index.z = 0; block_index.z < grid.z; block_index.z++)
      for (block_index.y = 0; block_index.y < grid.y; block_index.y++)
        for (block_index.x = 0; block_index.x < grid.x; block_index.x++) run_block();
    complete = true;
  }

  for (const Site& site : sites)
    for (const auto& entry : site.counts) {
      const Counts& counts = entry.second;
      fprintf(report, "site\t0x%zx\t%s\t%s\t%lld\t%lld\t%lld\t%lld\t%lld\n", size_t(site.code - code_begin), entry.first == SHARED ? "shared" : std::to_string(entry.first).c_str(),
              site.access == STORE ? "store" : "load", counts.requests, counts.bytes, counts.sectors, counts.passes, counts.conflicts);
    }
  fprintf(report, "end\t%lld\t%lld\t%s", barriers, shuffles, complete ? "complete" : "stopped");
  for (size_t i = 0; i < shared_arrays.size(); i++) {
    bool touched = false;
    for (size_t word = shared_arrays[i].begin / 4; word * 4 < shared_arrays[i].begin + shared_arrays[i].bytes; word++)
      touched |= words_of_shared[word].stored.epoch || words_of_shared[word].loaded.epoch;
    if (touched) fprintf(report, "\t%zu", i);
  }
  fprintf(report, "\n");
  fclose(report);
  fflush(stdout);
  _exit(0);
}
