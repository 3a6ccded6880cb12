// Attention in CUDA C++ as fast as float32 arithmetic allows it: FlashAttention-2's forward (Dao 2023, Alg. 1) for one
// head. plain_attention.cu is the same algorithm without what makes this one fast:
//
// - A thread computes ROWS x KEYS scores and ROWS x COLUMNS elements of the output in registers, so that each float4
//   from shared memory serves several rows, or several keys.
// - The lanes of a warp are arranged so that every one of these loads takes two passes over the banks, the fewest that
//   16-byte loads can take.
// - The next tile is on its way from device memory to registers while the present one is multiplied.
// - Few queries leave most of a GPU idle: the keys are then split over blockIdx.y, and merge_splits merges the states.
//
// Compiled by NVRTC or nvcc for a GPU, and by g++ or clang++ for the runner on a CPU.

constexpr int THREADS = 256;  // of a block of `attention`
constexpr int MERGE_THREADS = 128;
constexpr int MAX_SPLITS = 1024;

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

__device__ __forceinline__ float4& four_at(float* x) { return *reinterpret_cast<float4*>(x); }

// x[row, col] to x[row, col + 3] of a matrix [n_rows, d]; 0 for what lies outside.
__device__ __forceinline__ float4 load_four(const float* x, int row, int col, int n_rows, int d) {
  float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (row < n_rows && col < d) {
    const float* from = x + (long long)row * d + col;  // 64-bit: a matrix may have more than 2^31 elements
    if (d % 4 == 0) {
      four = *reinterpret_cast<const float4*>(from);
    } else {  // rows do not begin at multiples of 16 bytes
      four.x = from[0];
      if (col + 1 < d) four.y = from[1];
      if (col + 2 < d) four.z = from[2];
      if (col + 3 < d) four.w = from[3];
    }
  }
  return four;
}

__device__ __forceinline__ void store_four(float* to, float4 four, int col, int d) {
  if (col >= d) return;
  if (d % 4 == 0) {
    four_at(to + col) = four;
  } else {
    to[col] = four.x;
    if (col + 1 < d) to[col + 1] = four.y;
    if (col + 2 < d) to[col + 2] = four.z;
    if (col + 3 < d) to[col + 3] = four.w;
  }
}

// A tile of keys or values between device memory, a block's registers, and shared memory with rows of STRIDE floats.
template <int D, int ROWS_OF_TILE>
struct Tile {
  // Four floats more than a row has: rows below each other begin in different banks.
  static constexpr int STRIDE = D + 4, FOURS = ROWS_OF_TILE * D / (4 * THREADS);
  float4 fours[FOURS];

  __device__ __forceinline__ void load(const float* x, int first_row, int n_rows, int d) {
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
      const int element = 4 * (threadIdx.x + i * THREADS);
      fours[i] = load_four(x, first_row + element / D, element % D, n_rows, d);
    }
  }

  __device__ __forceinline__ void store(float* tile) const {
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
      const int element = 4 * (threadIdx.x + i * THREADS);
      four_at(tile + element / D * STRIDE + element % D) = fours[i];
    }
  }
};

// Q, output: [M, d]. K, V: [N, d]. All float32, row-major and aligned to 16 bytes; M, N at least 1, 1 <= d <= D.
// states: where gridDim.y > 1, room for gridDim.y * M * (d + 2) floats: acc of each split and row, then (m, l) of each.
// scale_log2: multiplies the scores, times log2(e). keys_per_split: a multiple of BLOCK_N.
// D: 32, 64 or 128. BLOCK_M: 32, 64 or 128 queries a block. BLOCK_N: 32 or 64 keys a tile.
// Launched with ceil(M / BLOCK_M) x ceil(N / keys_per_split) blocks of THREADS threads, and shared memory for Q, V, and
// the larger of K and P: (BLOCK_M + BLOCK_N) * (D + 4) + max(BLOCK_N * (D + 4), BLOCK_M * (BLOCK_N + 8)) floats.
template <int D, int BLOCK_M, int BLOCK_N>
__global__ void __launch_bounds__(THREADS)
attention(const float* Q, const float* K, const float* V, float* output, float* states, int M, int N, int d,
          float scale_log2, int keys_per_split) {
  constexpr int ROWS = BLOCK_M / 32, KEYS = BLOCK_N / 8, COLUMNS = D / 8;  // of a thread
  typedef Tile<D, BLOCK_N> KeyTile;
  constexpr int STRIDE = KeyTile::STRIDE, P_STRIDE = BLOCK_N + 8;
  extern __shared__ float4 shared[];
  float* q_tile = reinterpret_cast<float*>(shared);
  float* v_tile = q_tile + BLOCK_M * STRIDE;
  float* k_tile = v_tile + BLOCK_N * STRIDE;
  float* p_tile = k_tile;  // P takes the place of K

  // A warp takes 4 rows and 8 keys at a time. Neighbouring lanes have the same keys, every other lane the same row:
  // then a 16-byte load of a warp is served in two passes instead of four.
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int tx = lane / 2 % 8, ty = 4 * warp + 2 * (lane / 16) + lane % 2;
  const int first_query = blockIdx.x * BLOCK_M;
  const int first_key = blockIdx.y * keys_per_split, end_n = min(N, first_key + keys_per_split);

  for (int element = 4 * threadIdx.x; element < BLOCK_M * D; element += 4 * THREADS) {
    const int row = element / D, col = element % D;
    four_at(q_tile + row * STRIDE + col) = load_four(Q, first_query + row, col, M, d);
  }
  KeyTile next;
  next.load(K, first_key, end_n, d);

  float m_i[ROWS], l_i[ROWS] = {}, acc[ROWS][COLUMNS] = {};
#pragma unroll
  for (int i = 0; i < ROWS; i++) m_i[i] = -infinity();

  for (int start_n = first_key; start_n < end_n; start_n += BLOCK_N) {
    next.store(k_tile);
    __syncthreads();
    next.load(V, start_n, end_n, d);  // on its way during the first product

    // line 8: S_ij = Q_i K_j^T; this thread's rows are ty + 32 i, its keys tx + 8 j
    float s[ROWS][KEYS] = {};
#pragma unroll 4
    for (int c = 0; c < D; c += 4) {
      float4 k[KEYS];
#pragma unroll
      for (int j = 0; j < KEYS; j++) k[j] = four_at(k_tile + (tx + 8 * j) * STRIDE + c);
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        const float4 q = four_at(q_tile + (ty + 32 * i) * STRIDE + c);
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
          s[i][j] += q.x * k[j].x;
          s[i][j] += q.y * k[j].y;
          s[i][j] += q.z * k[j].z;
          s[i][j] += q.w * k[j].w;
        }
      }
    }
    __syncthreads();  // every warp has read K: its place is free for P

    // line 9: the online softmax. The 8 lanes of a row differ in bits 1 to 3 of their number.
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      float m_new = -infinity();
#pragma unroll
      for (int j = 0; j < KEYS; j++) {
        if (start_n + tx + 8 * j >= end_n) s[i][j] = -infinity();
        m_new = fmaxf(m_new, s[i][j]);
      }
#pragma unroll
      for (int bit = 2; bit <= 8; bit *= 2) m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, bit));
      m_new = fmaxf(m_i[i], m_new);
      const float m_ref = m_new == -infinity() ? 0.0f : m_new;  // -inf - (-inf) is never computed
      const float alpha = exp2f((m_i[i] - m_ref) * scale_log2);
      m_i[i] = m_new;
      l_i[i] *= alpha;  // of this thread's keys alone, until the end
#pragma unroll
      for (int j = 0; j < KEYS; j++) {
        const float p = exp2f((s[i][j] - m_ref) * scale_log2);  // fmaf(s, scale, -m * scale) rounds one product only
        l_i[i] += p;
        p_tile[(ty + 32 * i) * P_STRIDE + tx + 8 * j] = p;
      }
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) acc[i][c] *= alpha;
    }
    next.store(v_tile);
    next.load(K, start_n + BLOCK_N, end_n, d);  // on its way during the second product
    __syncthreads();

    // line 10: O_i += P_ij V_j; this thread's columns are 4 tx + 32 c to 4 tx + 32 c + 3
#pragma unroll 2
    for (int n = 0; n < BLOCK_N; n += 4) {
      float4 p[ROWS];
#pragma unroll
      for (int i = 0; i < ROWS; i++) p[i] = four_at(p_tile + (ty + 32 * i) * P_STRIDE + n);
#pragma unroll
      for (int key = 0; key < 4; key++) {
        float4 v[COLUMNS / 4];
#pragma unroll
        for (int c = 0; c < COLUMNS / 4; c++) v[c] = four_at(v_tile + (n + key) * STRIDE + 4 * tx + 32 * c);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
          const float weight = key == 0 ? p[i].x : key == 1 ? p[i].y : key == 2 ? p[i].z : p[i].w;
#pragma unroll
          for (int c = 0; c < COLUMNS / 4; c++) {
            acc[i][4 * c] += weight * v[c].x;
            acc[i][4 * c + 1] += weight * v[c].y;
            acc[i][4 * c + 2] += weight * v[c].z;
            acc[i][4 * c + 3] += weight * v[c].w;
          }
        }
      }
    }
    __syncthreads();  // every warp has read P and V
  }

  // lines 12 and 14: O_i, or the state of this split
  const bool is_split = gridDim.y > 1;
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    float l = l_i[i];
#pragma unroll
    for (int bit = 2; bit <= 8; bit *= 2) l += __shfl_xor_sync(0xffffffffu, l, bit);
    const int row = first_query + ty + 32 * i;
    if (row >= M) continue;
    const long long state = (long long)blockIdx.y * M + row;
    if (is_split && tx == 0) {
      float* statistics = states + (long long)gridDim.y * M * d + 2 * state;
      statistics[0] = m_i[i];
      statistics[1] = l;
    }
    float* to = is_split ? states + state * d : output + (long long)row * d;
    const float divisor = is_split ? 1.0f : l;
#pragma unroll
    for (int c = 0; c < COLUMNS; c += 4) {
      const float4 four = make_float4(acc[i][c] / divisor, acc[i][c + 1] / divisor, acc[i][c + 2] / divisor,
                                      acc[i][c + 3] / divisor);
      store_four(to, four, 4 * tx + 8 * c, d);
    }
  }
}

// output: [M, d], d <= MERGE_THREADS. states, scale_log2: as of `attention`. splits: at most MAX_SPLITS.
// Launched with M blocks of MERGE_THREADS threads; block i merges the states of row i, lesson 05's merge_states.
__global__ void __launch_bounds__(MERGE_THREADS)
merge_splits(float* output, const float* states, int M, int d, float scale_log2, int splits) {
  __shared__ float alpha[MAX_SPLITS], l_of_warp[MERGE_THREADS / 32];
  const int row = blockIdx.x, thread = threadIdx.x;
  const float* statistics = states + (long long)splits * M * d + 2 * row;
  float m = -infinity(), l = 0.0f;
  for (int i = 0; i < splits; i++) m = fmaxf(m, statistics[2ll * i * M]);
  for (int i = thread; i < splits; i += MERGE_THREADS) {
    alpha[i] = exp2f((statistics[2ll * i * M] - m) * scale_log2);
    l += statistics[2ll * i * M + 1] * alpha[i];
  }
#pragma unroll
  for (int bit = 1; bit < 32; bit *= 2) l += __shfl_xor_sync(0xffffffffu, l, bit);
  if (thread % 32 == 0) l_of_warp[thread / 32] = l;
  __syncthreads();
  if (thread >= d) return;
  l = 0.0f;
  for (int i = 0; i < MERGE_THREADS / 32; i++) l += l_of_warp[i];
  const float* acc = states + (long long)row * d + thread;
  float sum = 0.0f;
#pragma unroll 8
  for (int i = 0; i < splits; i++) sum += alpha[i] * acc[(long long)i * M * d];
  output[(long long)row * d + thread] = sum / l;
}
