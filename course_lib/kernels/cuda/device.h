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

template <class A, class B> inline std::common_type_t<A, B> min(A a, B b) {
  if constexpr (std::is_floating_point_v<decltype(a + b)>) return std::fmin(a, b);
  else return b < a ? b : a;
}
template <class A, class B> inline std::common_type_t<A, B> max(A a, B b) {
  if constexpr (std::is_floating_point_v<decltype(a + b)>) return std::fmax(a, b);
  else return a < b ? b : a;
}

// These look like variables. They are functions, because reading a variable would be announced as an access to memory.
// One for each number, not for a uint3: compilers do not merge calls that return a structure, and so would not merge two
// loads of x[threadIdx.x] either.
struct uint3 { unsigned x, y, z; };
extern "C" unsigned runner_index(int of, int axis) __attribute__((const));
#define RUNNER_INDEX(of) (uint3{runner_index(of, 0), runner_index(of, 1), runner_index(of, 2)})
#define threadIdx RUNNER_INDEX(0)
#define blockIdx RUNNER_INDEX(1)
#define blockDim RUNNER_INDEX(2)
#define gridDim RUNNER_INDEX(3)
constexpr int warpSize = 32;

// Vectors, which a GPU loads and stores with one instruction. `asm` keeps the compiler from taking that access apart.
namespace runner {
#if defined(__x86_64__)
#define IN_ONE_REGISTER(value) asm("" : "+x"(value))
#else
#define IN_ONE_REGISTER(value) asm("" : "+w"(value))
#endif
struct Two { typedef double Piece __attribute__((may_alias)); float x, y; };
struct Four { typedef float Piece __attribute__((vector_size(16), may_alias)); float x, y, z, w; };
template <class Parts> struct alignas(sizeof(Parts)) Vector : Parts {
  constexpr Vector() : Parts() {}  // constexpr: an array in shared memory needs no code that initialises it
  template <class... Rest> __forceinline__ Vector(float x, float y, Rest... rest) : Parts{x, y, float(rest)...} {}
  __forceinline__ Vector(const Vector& from) { *this = from; }
  __forceinline__ Vector& operator=(const Vector& from) {
    auto piece = reinterpret_cast<const typename Parts::Piece&>(from);
    IN_ONE_REGISTER(piece);
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

inline float __int_as_float(int bits) { return runner::same_bits<float>(bits); }
inline int __float_as_int(float x) { return runner::same_bits<int>(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class T> __forceinline__ inline T __ldg(const T* from) { return *from; }

// What a thread waits in: a barrier, or an exchange with other lanes of its warp. `line` is where the kernel calls it.
#define CALLING_LINE int line = __builtin_LINE()
namespace runner {
enum State { READY, RETURNED, BARRIER, SYNC, VOTE, SHUFFLE, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR };
extern "C" uint64_t runner_wait(State what, unsigned mask, uint64_t value, int operand, int width, int line);
}  // namespace runner
inline void __syncthreads(CALLING_LINE) { runner::runner_wait(runner::BARRIER, ~0u, 0, 0, warpSize, line); }
inline void __syncwarp(unsigned mask = ~0u, CALLING_LINE) {
  runner::runner_wait(runner::SYNC, mask, 0, 0, warpSize, line);
}
inline unsigned __ballot_sync(unsigned mask, int vote, CALLING_LINE) {
  return unsigned(runner::runner_wait(runner::VOTE, mask, vote != 0, 0, warpSize, line));
}
inline int __any_sync(unsigned mask, int vote, CALLING_LINE) { return __ballot_sync(mask, vote, line) != 0; }
inline int __all_sync(unsigned mask, int vote, CALLING_LINE) { return __ballot_sync(mask, !vote, line) == 0; }
#define SHUFFLE_FUNCTION(name, what)                                                                                 \
  template <class T> T name(unsigned mask, T value, int operand, int width = warpSize, CALLING_LINE) {               \
    uint64_t bits = runner::same_bits<uint64_t>(value);                                                              \
    return runner::same_bits<T>(runner::runner_wait(runner::what, mask, bits, operand, width, line));            \
  }
SHUFFLE_FUNCTION(__shfl_sync, SHUFFLE)
SHUFFLE_FUNCTION(__shfl_up_sync, SHUFFLE_UP)
SHUFFLE_FUNCTION(__shfl_down_sync, SHUFFLE_DOWN)
SHUFFLE_FUNCTION(__shfl_xor_sync, SHUFFLE_XOR)

// How runner.cc calls a kernel, whose arguments come as text: a number, or for an array "*" and its kind as in NumPy:
// *f4. Each array begins in the middle of 16 GiB of addresses of its own, a slot: an address that strays still says from
// which array. The first slot is nobody's.
namespace runner {
const uint64_t SLOT_BYTES = 1ull << 34;
inline void* array_place(int argument) { return reinterpret_cast<void*>((argument + 1) * SLOT_BYTES); }
extern "C" void runner_refuse(int argument, const char* kind);  // ends the program
#define NOT_ANNOUNCED __attribute__((noinline, no_sanitize("thread")))
template <class P> NOT_ANNOUNCED P argument(char** texts, int number) {
  typedef std::remove_cv_t<std::remove_pointer_t<P>> Value;
  const char type = std::is_floating_point_v<Value> ? 'f' : std::is_integral_v<Value> ? 'i' : 'V';  // V: float4
  char kind[8], *text = texts[number], *rest = text;
  snprintf(kind, sizeof kind, "%s%c%d", std::is_pointer_v<P> ? "*" : "", type, int(sizeof(Value)));
  if constexpr (std::is_pointer_v<P>) {
    if (text && text[0] == '*' && (type == 'V' || !strcmp(text, kind))) return static_cast<P>(array_place(number));
  } else {
    const P value = !text ? 0 : type == 'i' ? P(strtoull(text, &rest, 10)) : P(strtod(text, &rest));
    if (rest != text && !*rest) return value;
  }
  runner_refuse(number, kind);
  return P();
}
template <class... P> NOT_ANNOUNCED void call(void (*kernel)(P...), char** texts) {
  int number = 0;
  std::tuple<P...> arguments{argument<P>(texts, number++)...};
  if (texts[number]) runner_refuse(number, "none");
  std::apply(kernel, arguments);
}
extern "C" void kernel_call(char** texts);
}  // namespace runner
#define KERNEL_TO_RUN(...)                                                                                           \
  extern "C" NOT_ANNOUNCED void runner::kernel_call(char** texts) { runner::call(__VA_ARGS__, texts); }
