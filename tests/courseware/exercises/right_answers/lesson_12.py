"""Lesson 12: right answers written differently."""

import itertools

import numpy as np


def map_by_divmod(thread, step, n_threads, rows, columns):
    row, column = divmod(thread + n_threads * step, columns)
    return [row, column] if row < rows else None


def map_by_walking(thread, step, n_threads, rows, columns):
    """Hands out the tile's places one after the other."""
    places = itertools.product(range(rows), range(columns))
    for _ in range(step * n_threads + thread):
        next(places, None)
    return next(places, None)


def sectors_by_numpy(addresses, element_bytes):
    asked = np.unique([address for address in addresses if address is not None])
    return [np.unique(asked // 32).size, (asked.size * element_bytes + 31) // 32]


def sectors_by_bits(addresses, element_bytes):
    touched, bytes_asked = 0, 0
    for address in set(addresses) - {None}:
        touched |= 1 << (address >> 5)
        bytes_asked += element_bytes
    return touched.bit_count(), -(-bytes_asked // 32)


def passes_by_numpy(addresses):
    words = np.unique([address // 4 for address in addresses if address is not None]).astype(int)
    return np.bincount(words % 32, minlength=32).max()


def passes_one_by_one(addresses):
    wanted, passes = set(addresses) - {None}, 0
    while wanted:
        busy = set()
        for address in sorted(wanted):
            if address % 128 not in busy:
                busy.add(address % 128)
                wanted.remove(address)
        passes += 1
    return passes


def races_by_pairs(accesses):
    return sorted(
        one[3]
        for one, other in itertools.permutations(accesses, 2)
        if one[0] != other[0] and one[1] == other[1] and one[3] == other[3] and one[2] == "store"
    )


def races_with_the_last_store(accesses):
    """Stores first, and any one of them: all others race with it, except those of its own thread."""
    racing = set()
    stores = [access for access in accesses if access[2] == "store"]
    for thread, interval, _, word in stores:
        racing |= {w for t, i, _, w in accesses if (w, i) == (word, interval) and t != thread}
    return frozenset(racing)


def softmax_chunk_by_chunk():
    """One running max for the whole warp; lane 0 adds up, and hands out what it has."""
    return r"""
#define ALL 0xffffffffu

__device__ float highest(float value) {
  #pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) value = fmaxf(value, __shfl_xor_sync(ALL, value, apart));
  return value;
}

extern "C" __global__ void warp_softmax(const float* __restrict__ x, float* __restrict__ y, int n_rows, int n) {
  const size_t row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row < n_rows) {
    float m = -3.4e38f, l = 0;
    for (int start = 0; start < n; start += 32) {
      const int i = start + threadIdx.x;
      const float value = i < n ? x[row * n + i] : -3.4e38f;
      const float before = m;
      m = fmaxf(m, highest(value));
      l *= __expf(before - m);
      if (i < n) l += __expf(value - m);
    }
    for (int apart = 16; apart > 0; apart >>= 1) l += __shfl_down_sync(ALL, l, apart);
    const float scale = 1 / __shfl_sync(ALL, l, 0);
    for (int i = threadIdx.x; i < n; i += warpSize) y[row * n + i] = __expf(x[row * n + i] - m) * scale;
  }
}
"""


def softmax_with_branches():
    """In base 2, without an exponential for the element that is the new maximum, merged in the other order."""
    return r"""
struct State { float m, l; };

__device__ State merged(State a, State b) {
  if (a.m < b.m) { State c = a; a = b; b = c; }
  return {a.m, b.l > 0 ? a.l + b.l * exp2f(b.m - a.m) : a.l};
}

extern "C" __global__ void warp_softmax(const float* x, float* y, int n_rows, int n) {
  const int lane = threadIdx.x, row = blockIdx.x * 4 + threadIdx.y;
  if (row >= n_rows) return;
  State mine = {__int_as_float(0xff800000), 0.0f};
  for (int i = lane; i < n; i += 32) {
    const float value = __ldg(&x[(long long)row * n + i]) * 1.44269504f;
    if (value > mine.m) {
      mine.l = 1.0f + mine.l * exp2f(mine.m - value);
      mine.m = value;
    } else if (value > __int_as_float(0xff800000)) {
      mine.l += exp2f(value - mine.m);
    }
  }
  for (int apart = 1; apart < 32; apart *= 2) {
    State other = {__shfl_xor_sync(0xffffffff, mine.m, apart), __shfl_xor_sync(0xffffffff, mine.l, apart)};
    mine = merged(mine, other);
  }
  for (int i = lane; i < n; i += 32) {
    const long long place = (long long)row * n + i;
    y[place] = exp2f(x[place] * 1.44269504f - mine.m) / mine.l;
  }
}
"""


def attention_by_tiles():
    """Threads copy the tile as one run of elements; lane j has key j's score, and the warp takes the tile's maximum."""
    return r"""
#define ALL 0xffffffffu
constexpr int KEYS = 16, MAX_D = 128;

__device__ float summed(float x) {
  for (int apart = 1; apart < 32; apart *= 2) x += __shfl_xor_sync(ALL, x, apart);
  return x;
}

extern "C" __global__ void __launch_bounds__(512) solve(const float* __restrict__ Q, const float* __restrict__ K,
    const float* __restrict__ V, float* __restrict__ output, int M, int N, int d) {
  __shared__ float keys[KEYS * MAX_D];
  __shared__ float values[KEYS * MAX_D];
  const int lane = threadIdx.x, thread = threadIdx.y * 32 + lane;
  const int row = blockIdx.x * KEYS + threadIdx.y;
  const float scale = rsqrtf(d) * 1.44269504f;  // in base 2
  float q[MAX_D / 32] = {}, acc[MAX_D / 32] = {}, m = -3.4e38f, l = 0.0f;
  if (row < M)
    for (int c = lane; c < d; c += 32) q[c / 32] = Q[(size_t)row * d + c] * scale;
  for (int start = 0; start < N; start += KEYS) {
    const int n = min(KEYS, N - start);
    __syncthreads();  // the tile before is used up
    for (int i = thread; i < n * d; i += 512) {
      keys[i] = K[(size_t)start * d + i];
      values[i] = V[(size_t)start * d + i];
    }
    __syncthreads();
    if (row >= M) continue;
    float mine = -3.4e38f;  // lane j's: key j
    for (int j = 0; j < n; j++) {
      float part = 0;
      for (int c = lane; c < d; c += 32) part = fmaf(q[c / 32], keys[j * d + c], part);
      part = summed(part);
      if (lane == j) mine = part;
    }
    float m_new = fmaxf(m, mine);
    for (int apart = 16; apart; apart >>= 1) m_new = fmaxf(m_new, __shfl_xor_sync(ALL, m_new, apart));
    const float p = lane < n ? exp2f(mine - m_new) : 0.0f, alpha = exp2f(m - m_new);
    m = m_new;
    l = l * alpha + summed(p);
    for (float& a : acc) a *= alpha;
    for (int j = 0; j < n; j++) {
      const float weight = __shfl_sync(ALL, p, j);
      for (int c = lane; c < d; c += 32) acc[c / 32] += weight * values[j * d + c];
    }
  }
  if (row < M)
    for (int c = lane; c < d; c += 32) output[(size_t)row * d + c] = acc[c / 32] * (1.0f / l);
}
"""


RIGHT_ANSWERS = {
    "thread_map": {"by divmod, as a list": map_by_divmod, "place by place": map_by_walking},
    "sectors": {"by np.unique": sectors_by_numpy, "a bit for each sector": sectors_by_bits},
    "bank_conflicts": {"by np.bincount": passes_by_numpy, "pass by pass": passes_one_by_one},
    "find_the_race": {"pair by pair, as a list": races_by_pairs, "store by store": races_with_the_last_store},
    "warp_softmax": {
        "chunk by chunk": softmax_chunk_by_chunk,
        "in base 2, with branches": softmax_with_branches,
        "the long way round the first element": {
            "x += (long long)row * n;": "if (n < 1) return;\n      x += (long long)row * n;"
        },
    },
    "solve": {
        "tile by tile, a key for each lane": attention_by_tiles,
        "the query in shared memory": {
            "k_tile[16][128], v_tile[16][128];": "k_tile[16][128], v_tile[16][128], q_tile[16][128];",
            "q[i] = row < M && c < d ?": "q_tile[warp][c] = row < M && c < d ?",
            "key = start + warp;  // each warp copies one row of both tiles": (
                "key = start + warp;\n"
                "        for (int i = 0; i < 4; i++) q[i] = lane + 32 * i < d ? q_tile[warp][lane + 32 * i] : 0.0f;"
            ),
        },
        "the values copied while the keys are used": {
            "          v_tile[warp][c] = key < N ? V[key * d + c] : 0.0f;\n": "",
            "        for (int j = 0; j < 16; j++) {\n          float score": (
                "        for (int c = lane; c < d; c += 32) v_tile[warp][c] = key < N ? V[key * d + c] : 0.0f;\n"
                "        __syncthreads();\n"
                "        for (int j = 0; j < 16; j++) {\n          float score"
            ),
        },
    },
}
