// What CUDA C++ gives to a kernel, for a C++ compiler: with this header, g++ or clang++ compiles the unmodified source
// for a CPU, and runner.cc runs it thread by thread. With -fsanitize=thread, both compilers announce every access to
// memory to runner.cc. What they cannot know of is declared here: barriers, shuffles, the indices of a thread.
#pragma once
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>

// A kernel includes no header, and without one CUDA's run-time compiler, NVRTC, does not know these.
#undef DBL_MAX
#undef FLT_EPSILON
#undef FLT_MAX
#undef FLT_MIN
#undef HUGE_VAL
#undef HUGE_VALF
#undef INFINITY
#undef INT_MAX
#undef INT_MIN
#undef M_LN2
#undef M_LOG2E
#undef NAN

// Inline, so that the compiler leaves out a kernel that is not launched, with its shared memory; never inlined, because
// what calls it is not announced.
#define __global__ inline __attribute__((noinline))
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define alignas(bytes) __attribute__((aligned(bytes)))  // CUDA C++ takes it behind __shared__, too
// Thread-local is the one kind of variable that C++ lets a function declare both with `extern` and without it. The CPU
// runs all threads of the kernel, and one block after the other, in one thread of its own, so that they all share it.
#define __shared__ __attribute__((aligned(128))) thread_local

// Of a number and NaN, the number.
template <class A, class B> inline auto min(A a, B b) { return a != a || b < a ? b : a; }
template <class A, class B> inline auto max(A a, B b) { return a != a || a < b ? b : a; }

// Constants, so that the compiler announces no access when a kernel reads them. threads.h stores them before a thread
// has its turn.
struct uint3 { unsigned x, y, z; };
extern const uint3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

// Vectors, which a GPU loads and stores with one instruction. `asm` keeps the compiler from taking that access
// apart: x stands for a register that holds a vector, on x86-64 and on ARM.
namespace runner {
struct Two { typedef double Piece __attribute__((may_alias)); float x, y; };
struct Four { typedef float Piece __attribute__((vector_size(16), may_alias)); float x, y, z, w; };
template <class Parts> struct alignas(sizeof(Parts)) Vector : Parts {
  constexpr Vector() : Parts() {}  // constexpr: an array in shared memory needs no code that initialises it
  template <class... Rest> __forceinline__ Vector(float x, float y, Rest... rest) : Parts{x, y, float(rest)...} {}
  __forceinline__ Vector(const Vector& from) { *this = from; }
  __forceinline__ Vector& operator=(const Vector& from) {
    auto piece = reinterpret_cast<const typename Parts::Piece&>(from);
    asm("" : "+x"(piece));
    reinterpret_cast<typename Parts::Piece&>(*this) = piece;
    return *this;
  }
};
template <class To, class From> __forceinline__ inline To same_bits(From from) {
  static_assert(sizeof(To) <= 8 && sizeof(From) <= 8 && std::is_trivially_copyable_v<From>, "at most 8 bytes");
  To to = To();
  memcpy(&to, &from, sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From));
  return to;
}
}  // namespace runner
typedef runner::Vector<runner::Two> float2;
typedef runner::Vector<runner::Four> float4;
__forceinline__ inline float2 make_float2(float x, float y) { return {x, y}; }
__forceinline__ inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

using std::isfinite, std::isinf, std::isnan;
inline float __int_as_float(int bits) { return runner::same_bits<float>(bits); }
inline int __float_as_int(float x) { return runner::same_bits<int>(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class T> __forceinline__ inline T __ldg(const T* from) { return *from; }

// A thread waits for all of its block, or for lanes of its warp that show each other a value. `line` is where the
// kernel calls.
#define CALLING_LINE int line = __builtin_LINE()
namespace runner {
enum State { SHUFFLE, VOTE, SYNC, BARRIER, RETURNED, READY };
// Returns the value of the lane `source`, or for a vote, one bit of each lane.
extern "C" uint64_t runner_wait(State what, unsigned mask, uint64_t value, int source, int line);
inline int lane() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % warpSize; }
}  // namespace runner
inline void __syncthreads(CALLING_LINE) { runner::runner_wait(runner::BARRIER, ~0u, 0, 0, line); }
inline void __syncwarp(unsigned mask = ~0u, CALLING_LINE) { runner::runner_wait(runner::SYNC, mask, 0, 0, line); }
inline unsigned __ballot_sync(unsigned mask, int vote, CALLING_LINE) {
  return unsigned(runner::runner_wait(runner::VOTE, mask, vote != 0, 0, line));
}
inline int __any_sync(unsigned mask, int vote, CALLING_LINE) { return __ballot_sync(mask, vote, line) != 0; }
inline int __all_sync(unsigned mask, int vote, CALLING_LINE) { return __ballot_sync(mask, !vote, line) == 0; }
// A segment of the warp is the lanes first to end - 1. A lane whose source lies outside of it keeps its own value.
#define SHUFFLE_FUNCTION(name, source)                                                                               \
  template <class T> T name(unsigned mask, T value, int operand, int width = warpSize, CALLING_LINE) {               \
    const int lane = runner::lane(), first = lane & -width, end = first + width;                                     \
    uint64_t bits = runner::same_bits<uint64_t>(value);                                                              \
    return runner::same_bits<T>(runner::runner_wait(runner::SHUFFLE, mask, bits, source, line));                     \
  }
SHUFFLE_FUNCTION(__shfl_sync, first | (operand & (width - 1)))
SHUFFLE_FUNCTION(__shfl_up_sync, lane - operand < first ? lane : lane - operand)
SHUFFLE_FUNCTION(__shfl_down_sync, lane + operand < end ? lane + operand : lane)
SHUFFLE_FUNCTION(__shfl_xor_sync, (lane ^ operand) < end ? lane ^ operand : lane)

// How a kernel is called. Each argument comes as 8 bytes: an integer, an address, or a double. compiling.py finds the
// types of the parameters in the symbol of `call`.
namespace runner {
template <class P> P argument(uint64_t bits) {
  if constexpr (std::is_floating_point_v<P>) return P(same_bits<double>(bits));
  else return (P)bits;
}
template <class... P> __attribute__((noinline, no_sanitize("thread")))
void call(void (*kernel)(P...), const uint64_t* bits) {
  std::tuple<P...> arguments{argument<P>(*bits++)...};
  std::apply(kernel, arguments);
}
extern "C" void kernel_call(const uint64_t* bits);
}  // namespace runner
#define KERNEL_TO_RUN(...) \
  extern "C" void runner::kernel_call(const uint64_t* bits) { runner::call(__VA_ARGS__, bits); }
