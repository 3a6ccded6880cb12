// What one multiprocessor does in a clock, and how long one thread waits for its data. rates.py launches these.

constexpr int UNROLLED = 256;  // instructions between two jumps, so that the loop's own hardly count

__device__ long long now() {
    long long clocks;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(clocks)::"memory");
    return clocks;
}

// Every thread executes `instruction` `count` times in all, a multiple of UNROLLED: on `chains` variables in turns, so
// that so many instructions need not wait for each other. Each thread has its own values: where the compiler sees that
// all threads have the same one, it leaves a shuffle out.
#define KERNEL(name, instruction, chains)                                                  \
    extern "C" __global__ void name(float *sink, long long *clocks, int count, float one) { \
        float x[chains], sum = 0;                                                          \
        for (int i = 0; i < chains; i++) x[i] = one + (i + 1) * threadIdx.x * 1e-9f;       \
        __syncthreads();                                                                   \
        const long long begin = now();                                                     \
        for (int done = 0; done < count; done += UNROLLED)                                 \
            _Pragma("unroll") for (int i = 0; i < UNROLLED; i++) instruction(x[i % chains]); \
        clocks[2 * threadIdx.x] = begin;                                                   \
        clocks[2 * threadIdx.x + 1] = now();                                               \
        for (int i = 0; i < chains; i++) sum += x[i];                                      \
        sink[threadIdx.x] = sum;                                                           \
    }
#define BOTH(name, instruction)          \
    KERNEL(rate_##name, instruction, 8)  \
    KERNEL(latency_##name, instruction, 1)
#define FMA(x) asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x) : "f"(one))
#define ADD(x) asm volatile("add.f32 %0, %0, %1;" : "+f"(x) : "f"(one))
#define MUL(x) asm volatile("mul.f32 %0, %0, %1;" : "+f"(x) : "f"(one))
#define MAX(x) asm volatile("max.f32 %0, %0, %1;" : "+f"(x) : "f"(one))
#define EX2(x) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x))
#define SHUFFLE(x) asm volatile("shfl.sync.down.b32 %0, %0, 1, 31, -1;" : "+f"(x))
#define CONVERT(x) asm volatile("{.reg .b32 t; cvt.rn.f16x2.f32 t, %0, %0; mov.b32 %0, t;}" : "+f"(x))
BOTH(fma, FMA)
BOTH(add, ADD)
BOTH(mul, MUL)
BOTH(max, MAX)
BOTH(exp2, EX2)
BOTH(shuffle, SHUFFLE)
BOTH(convert, CONVERT)

// One thread follows pointers: first `warm_up` of them untimed, then `steps`.
#define CHASE(name, load)                                                                       \
    extern "C" __global__ void name(const void *first, long long *clocks, int warm_up, int steps) { \
        unsigned long long p = (unsigned long long)first;                                       \
        for (int i = 0; i < warm_up; i++) asm volatile(load : "+l"(p)::"memory");               \
        const long long begin = now();                                                          \
        _Pragma("unroll 16") for (int i = 0; i < steps; i++) asm volatile(load : "+l"(p)::"memory"); \
        clocks[0] = begin;                                                                      \
        clocks[1] = now() + (p == 0);                                                           \
    }
CHASE(chase_l1, "ld.global.ca.u64 %0, [%0];")
CHASE(chase_l2, "ld.global.cg.u64 %0, [%0];")

extern "C" __global__ void chase_shared(long long *clocks, int steps) {
    __shared__ unsigned next[1024];
    for (int i = 0; i < 1024; i++) next[i] = (unsigned)__cvta_generic_to_shared(&next[(i + 33) % 1024]);
    unsigned p = next[0];
    const long long begin = now();
#pragma unroll 16
    for (int i = 0; i < steps; i++) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(p)::"memory");
    clocks[0] = begin;
    clocks[1] = now() + (p == 0);
}

// Clocks and nanoseconds, both at the beginning and at the end of a wait.
extern "C" __global__ void tick(long long *clocks, int wait) {
    long long begin_ns, end_ns;
    const long long begin = now();
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin_ns)::"memory");
    while (now() - begin < wait) {}
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end_ns)::"memory");
    clocks[0] = begin;
    clocks[1] = now();
    clocks[2] = begin_ns;
    clocks[3] = end_ns;
}
