// Attention in CUDA C++ at its plainest: FlashAttention-2's forward (Dao 2023, Alg. 1) for one head in float32.
//
// A thread block computes BLOCK_M rows of the output, a warp computes one of them, and a lane (threadIdx.x) owns the
// columns lane, lane + 32, lane + 64 and so on. Every lane computes all scores of its row, the same as the other 31, so
// that no lane has to tell another anything. counts.py predicts from this mapping what a profiler counts.
//
// Compiled by NVRTC or nvcc for a GPU, and by g++ or clang++ for the runner on a CPU.

constexpr int BLOCK_M = 16;  // query rows of a block, and its warps
constexpr int BLOCK_N = 16;  // keys of a tile
constexpr int LANES = 32;

// Q, output: [M, d]. K, V: [N, d]. All float32 and row-major; M and N at least 1, 1 <= d <= D.
// scale: multiplies the scores. D: columns in shared memory, a multiple of 32 and at most 128; zeros fill d to D - 1.
// Launched with ceil(M / BLOCK_M) blocks of LANES x BLOCK_M threads.
template <int D>
__global__ void __launch_bounds__(LANES * BLOCK_M)
plain_attention(const float* Q, const float* K, const float* V, float* output, int M, int N, int d, float scale) {
  constexpr int COLUMNS = D / LANES;  // that a lane owns
  __shared__ float4 q_tile[BLOCK_M][D / 4], k_tile[BLOCK_N][D / 4];
  __shared__ float v_tile[BLOCK_N][D];
  const float infinity = __int_as_float(0x7f800000);
  const int lane = threadIdx.x, warp = threadIdx.y;
  const long long row = (long long)blockIdx.x * BLOCK_M + warp;  // 64-bit: a matrix may have more than 2^31 elements

  // line 5: load Q_i. A row beyond the last one is computed from zeros, and not stored.
  float* q_row = (float*)q_tile[warp];
  for (int c = lane; c < D; c += LANES) q_row[c] = row < M && c < d ? Q[row * d + c] : 0.0f;

  float m_i = -infinity, l_i = 0.0f, acc[COLUMNS];
  for (int i = 0; i < COLUMNS; i++) acc[i] = 0.0f;

  for (int start_n = 0; start_n < N; start_n += BLOCK_N) {
    // line 7: load K_j and V_j; this warp loads one row of each.
    const long long key = start_n + warp;
    float* k_row = (float*)k_tile[warp];
    for (int c = lane; c < D; c += LANES) {
      const bool exists = key < N && c < d;
      const float k = exists ? K[key * d + c] : 0.0f, v = exists ? V[key * d + c] : 0.0f;
      k_row[c] = k;
      v_tile[warp][c] = v;
    }
    __syncthreads();  // the tile is complete before any warp reads it

    // line 8: S_ij = Q_i K_j^T, for one row and BLOCK_N keys
    float scores[BLOCK_N];
    for (int j = 0; j < BLOCK_N; j++) scores[j] = 0.0f;
    for (int c = 0; c < D / 4; c++) {
      const float4 q = q_tile[warp][c];
      for (int j = 0; j < BLOCK_N; j++) {
        const float4 k = k_tile[j][c];
        scores[j] += q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w;
      }
    }

    // lines 9 and 10: the online softmax. The tile's last keys may not exist: they get no weight.
    float m_new = m_i;
    for (int j = 0; j < BLOCK_N; j++) {
      scores[j] = start_n + j < N ? scores[j] * scale : -infinity;
      m_new = fmaxf(m_new, scores[j]);
    }
    const float m_ref = m_new == -infinity ? 0.0f : m_new;  // -inf - (-inf) is never computed
    const float alpha = expf(m_i - m_ref);
    m_i = m_new;
    l_i *= alpha;
    for (int i = 0; i < COLUMNS; i++) acc[i] *= alpha;
    for (int j = 0; j < BLOCK_N; j++) {
      const float p = expf(scores[j] - m_ref);
      l_i += p;
      for (int i = 0; i < COLUMNS; i++) acc[i] += p * v_tile[j][lane + i * LANES];
    }
    __syncthreads();  // every warp is done with the tile before the next one replaces it
  }

  // lines 12 and 14: O_i
  for (int i = 0; i < COLUMNS; i++) {
    const int c = lane + i * LANES;
    if (row < M && c < d) output[row * d + c] = acc[i] / l_i;
  }
}
