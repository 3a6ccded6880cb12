"""Attention in CUDA C++, with the scores split over the lanes of a warp."""


def solve():
    """CUDA C++ of a kernel that writes softmax(Q K^T / sqrt(d)) V to output, without the M x N matrix.

    Its head: extern "C" __global__ void solve(
        const float* Q, const float* K, const float* V, float* output, int M, int N, int d)
    Q, output: [M, d]. K, V: [N, d]. All row after row; M and N at least 1, and 1 <= d <= 128.
    Launched with ceil(M / 16) blocks of 32 x 16 threads: threadIdx.x is the lane, and threadIdx.y the warp. Warp w of
        block b has row 16 b + w, which may be beyond the last one.
    The keys pass by in tiles of 16: the block copies a tile of K and one of V to shared memory, all warps use them.
    Q is read and output written once, K and V once for each block, in requests for 32 consecutive elements of a row.
    The scores are split over the lanes of a warp: lane i multiplies elements i, i + 32, i + 64 and so on of a query and
        a key, and shuffles add up the 32 sums. So a warp reads each element of a tile of K and of V, and of its row of
        Q, at most once from shared memory: 33 ceil(d / 32) load requests for each warp and tile are enough.

    >>> Q = K = V = np.ones((1, 2), np.float32)
    >>> output = np.zeros((1, 2), np.float32)
    >>> run_cuda(solve(), "solve", 1, (32, 16), Q=Q, K=K, V=V, output=output, M=1, N=1, d=2).findings
    []
    >>> output
    array([[1., 1.]], dtype=float32)
    """
    return r"""
    extern "C" __global__ void solve(
        const float* Q, const float* K, const float* V, float* output, int M, int N, int d) {
      __shared__ float k_tile[16][128], v_tile[16][128];
      const float infinity = __int_as_float(0x7f800000), scale = 1.0f / sqrtf(d);
      const int lane = threadIdx.x, warp = threadIdx.y;
      const long long row = (long long)blockIdx.x * 16 + warp;

      float q[4], acc[4], m = -infinity, l = 0.0f;
      for (int i = 0; i < 4; i++) {
        const int c = lane + 32 * i;
        q[i] = row < M && c < d ? Q[row * d + c] * scale : 0.0f;
        acc[i] = 0.0f;
      }

      for (int start = 0; start < N; start += 16) {
        const long long key = start + warp;
        for (int c = lane; c < d && key < N; c += 32) {
          k_tile[warp][c] = K[key * d + c];
          v_tile[warp][c] = V[key * d + c];
        }
        __syncthreads();  // the tiles are complete

        for (int j = 0; j < 16 && start + j < N; j++) {
          float score = 0.0f;
          for (int i = 0; i < 4; i++) {
            if (lane + 32 * i < d) score += q[i] * k_tile[j][lane + 32 * i];
          }
          for (int apart = 16; apart > 0; apart /= 2) score += __shfl_xor_sync(0xffffffff, score, apart);

          const float m_new = fmaxf(m, score), alpha = expf(m - m_new), p = expf(score - m_new);
          m = m_new;
          l = l * alpha + p;
          for (int i = 0; i < 4; i++) {
            if (lane + 32 * i < d) acc[i] = acc[i] * alpha + p * v_tile[j][lane + 32 * i];
          }
        }
        __syncthreads();  // all warps are done with the tiles
      }

      for (int i = 0; i < 4; i++) {
        if (row < M && lane + 32 * i < d) output[row * d + lane + 32 * i] = acc[i] / l;
      }
    }
    """
