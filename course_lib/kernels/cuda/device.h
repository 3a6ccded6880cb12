// What CUDA C++ gives to a kernel, for a C++ compiler: with this header, g++ or clang++ compiles the unmodified source
// for a CPU, and runner.cc runs it thread by thread. With -fsanitize=thread, both compilers announce every access to
// memory to runner.cc. What they cannot know of is declared here: barriers, shuffles, the indices of a thread.
#pragma once
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ __attribute__((always_inline))
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define alignas(bytes) __attribute__((aligned(bytes)))  // CUDA C++ takes it behind __shared__, too
// Thread-local is the one kind of variable that C++ lets a function declare both with `extern` and without it. The CPU
// runs all threads of the kernel, and one block after the other, in one thread of its own, so that they all share it.
#define __shared__ __attribute__((aligned(128))) thread_local

template <class A, class B> inline typename std::common_type<A, B>::type min(A a, B b) {
  if constexpr (std::is_floating_point<decltype(a + b)>::value) return std::fmin(a, b);
  else return b < a ? b : a;
}
template <class A, class B> inline typename std::common_type<A, B>::type max(A a, B b) {
  if constexpr (std::is_floating_point<decltype(a + b)>::value) return std::fmax(a, b);
  else return a < b ? b : a;
}

struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// These look like variables. They are functions, because reading a variable would be announced as an access to memory.
// One for each number, not for a uint3: compilers do not merge calls that return a structure, and so would not merge two
// loads of x[threadIdx.x] either.
extern "C" unsigned runner_index(int of, int axis) __attribute__((const));
#define RUNNER_INDEX(of) (uint3{runner_index(of, 0), runner_index(of, 1), runner_index(of, 2)})
#define threadIdx RUNNER_INDEX(0)
#define blockIdx RUNNER_INDEX(1)
#define blockDim RUNNER_INDEX(2)
#define gridDim RUNNER_INDEX(3)
constexpr int warpSize = 32;

namespace runner {
// Vectors, which a GPU loads and stores with one instruction. `asm` keeps the compiler from taking that access apart.
#if defined(__x86_64__)
#define IN_ONE_REGISTER(value) asm("" : "+x"(value))
#else
#define IN_ONE_REGISTER(value) asm("" : "+w"(value))
#endif
template <size_t BYTES> struct Register;
template <> struct Register<8> { typedef double type __attribute__((may_alias)); };
template <> struct Register<16> { typedef float type __attribute__((vector_size(16), may_alias)); };
template <class Vector> __forceinline__ inline void copy_in_one_piece(Vector* to, const Vector* from) {
  typedef typename Register<sizeof(Vector)>::type Piece;
  Piece piece = *reinterpret_cast<const Piece*>(from);
  IN_ONE_REGISTER(piece);
  *reinterpret_cast<Piece*>(to) = piece;
}
template <class T> struct alignas(2 * sizeof(T)) Vector2 {
  T x, y;
  constexpr Vector2() : x(), y() {}  // constexpr: an array in shared memory needs no code that initialises it
  __forceinline__ Vector2(T x, T y) : x(x), y(y) {}
  __forceinline__ Vector2(const Vector2& from) { copy_in_one_piece(this, &from); }
  __forceinline__ Vector2& operator=(const Vector2& from) { return copy_in_one_piece(this, &from), *this; }
};
template <class T> struct alignas(4 * sizeof(T)) Vector4 {
  T x, y, z, w;
  constexpr Vector4() : x(), y(), z(), w() {}
  __forceinline__ Vector4(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}
  __forceinline__ Vector4(const Vector4& from) { copy_in_one_piece(this, &from); }
  __forceinline__ Vector4& operator=(const Vector4& from) { return copy_in_one_piece(this, &from), *this; }
};
}  // namespace runner
typedef runner::Vector2<float> float2;
typedef runner::Vector4<float> float4;
typedef runner::Vector2<int> int2;
typedef runner::Vector4<int> int4;
__forceinline__ inline float2 make_float2(float x, float y) { return {x, y}; }
__forceinline__ inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
__forceinline__ inline int2 make_int2(int x, int y) { return {x, y}; }
__forceinline__ inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

namespace runner {
template <class To, class From> __forceinline__ inline To same_bits(From from) {
  static_assert(sizeof(To) <= 8 && sizeof(From) <= 8 && std::is_trivially_copyable<From>::value, "at most 8 bytes");
  To to = To();
  memcpy(&to, &from, sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From));
  return to;
}
}  // namespace runner
inline float __int_as_float(int bits) { return runner::same_bits<float>(bits); }
inline float __uint_as_float(unsigned bits) { return runner::same_bits<float>(bits); }
inline int __float_as_int(float x) { return runner::same_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return runner::same_bits<unsigned>(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T> __forceinline__ inline T __ldg(const T* from) { return *from; }

// Barriers, and exchanges among the lanes of a warp. `line` is the line in which the kernel calls the function.
#define CALLING_LINE int line = __builtin_LINE()
namespace runner {
enum Exchange { SYNC, VOTE, SHUFFLE, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR };
extern "C" void runner_barrier(int line);
extern "C" uint64_t runner_exchange(Exchange what, unsigned mask, uint64_t value, int operand, int width, int line);
template <class T> T shuffle(Exchange how, unsigned mask, T value, int operand, int width, int line) {
  return same_bits<T>(runner_exchange(how, mask, same_bits<uint64_t>(value), operand, width, line));
}
}  // namespace runner
inline void __syncthreads(CALLING_LINE) { runner::runner_barrier(line); }
inline void __syncwarp(unsigned mask = ~0u, CALLING_LINE) {
  runner::runner_exchange(runner::SYNC, mask, 0, 0, warpSize, line);
}
inline unsigned __ballot_sync(unsigned mask, int vote, CALLING_LINE) {
  return unsigned(runner::runner_exchange(runner::VOTE, mask, vote != 0, 0, warpSize, line));
}
inline int __any_sync(unsigned mask, int vote, CALLING_LINE) { return __ballot_sync(mask, vote, line) != 0; }
inline int __all_sync(unsigned mask, int vote, CALLING_LINE) { return __ballot_sync(mask, !vote, line) == 0; }
template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, CALLING_LINE) {
  return runner::shuffle(runner::SHUFFLE, mask, value, source, width, line);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = warpSize, CALLING_LINE) {
  return runner::shuffle(runner::SHUFFLE_UP, mask, value, by, width, line);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = warpSize, CALLING_LINE) {
  return runner::shuffle(runner::SHUFFLE_DOWN, mask, value, by, width, line);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int with, int width = warpSize, CALLING_LINE) {
  return runner::shuffle(runner::SHUFFLE_XOR, mask, value, with, width, line);
}

// How runner.cc calls a kernel. Kinds of parameters are written as in NumPy: f4, i8, and *f4 for an array.
namespace runner {
struct Argument {
  char* array;
  long long integer;
  double real;
};
#define NOT_ANNOUNCED __attribute__((no_sanitize("thread")))
template <class P> NOT_ANNOUNCED const char* kind_of() {
  static char kind[8];
  typedef typename std::remove_cv<typename std::remove_pointer<P>::type>::type Value;
  char type = std::is_floating_point<Value>::value ? 'f' : std::is_integral<Value>::value ? 'i' : 'V';
  snprintf(kind, sizeof kind, "%s%c%d", std::is_pointer<P>::value ? "*" : "", type, int(sizeof(Value)));
  return kind;
}
template <class... P> NOT_ANNOUNCED void write_kinds(void (*)(P...), const char** out) {
  ((*out++ = kind_of<P>()), ...), *out = nullptr;
}
template <class P> NOT_ANNOUNCED P value_of(const Argument& argument) {
  if constexpr (std::is_pointer<P>::value) return reinterpret_cast<P>(argument.array);
  else return std::is_floating_point<P>::value ? P(argument.real) : P(argument.integer);
}
template <class... P, size_t... I>
NOT_ANNOUNCED void call(void (*kernel)(P...), const Argument* arguments, std::index_sequence<I...>) {
  kernel(value_of<P>(arguments[I])...);
}
template <class... P> NOT_ANNOUNCED void call(void (*kernel)(P...), const Argument* arguments) {
  call(kernel, arguments, std::index_sequence_for<P...>());
}
}  // namespace runner
#define KERNEL_TO_RUN(...)                                                                                \
  extern "C" NOT_ANNOUNCED void kernel_kinds(const char** out) { runner::write_kinds(__VA_ARGS__, out); } \
  extern "C" NOT_ANNOUNCED void kernel_call(const runner::Argument* arguments) {                          \
    runner::call(__VA_ARGS__, arguments);                                                                 \
  }
