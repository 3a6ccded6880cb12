"""The softmax of a row by one warp, in CUDA C++."""


def warp_softmax():
    """CUDA C++ of a kernel that writes the softmax of each row of x to y, with one warp for each row.

    Its head: extern "C" __global__ void warp_softmax(const float* x, float* y, int n_rows, int n)
    x, y: [n_rows, n], row after row; n_rows and n at least 1. A row may hold -inf, whose weight is 0, but has at least
        one finite element. Rows 1000 apart, or elements of size 1000, must do no harm.
    Launched with blocks of 32 x 4 threads: threadIdx.x is the lane, and threadIdx.y the warp. Warp w of block b has row
        4 b + w, which may be beyond the last one. There are ceil(n_rows / 4) blocks.
    x is read at most twice and y written once, in requests for 32 consecutive elements: lane i takes elements i,
        i + 32, i + 64 and so on. So while reading x for the first time, each lane keeps the running max m and the
        running sum l of its own elements. Then __shfl_xor_sync merges the 32 states.

    >>> x, y = np.array([[0, 0, 0, 0]], np.float32), np.zeros((1, 4), np.float32)
    >>> run_cuda(warp_softmax(), "warp_softmax", 1, (32, 4), x=x, y=y, n_rows=1, n=4).findings
    []
    >>> y
    array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """
    return r"""
    extern "C" __global__ void warp_softmax(const float* x, float* y, int n_rows, int n) {
      const float infinity = __int_as_float(0x7f800000);
      const int lane = threadIdx.x, row = blockIdx.x * 4 + threadIdx.y;
      if (row >= n_rows) return;  // the whole warp, so that no lane waits for another in vain
      x += (long long)row * n;
      y += (long long)row * n;

      float m = -infinity, l = 0.0f;
      for (int i = lane; i < n; i += 32) {
        const float value = x[i], m_new = fmaxf(m, value);
        if (m_new > -infinity) l = l * expf(m - m_new) + expf(value - m_new);
        m = m_new;
      }

      for (int apart = 16; apart > 0; apart /= 2) {
        const float m_other = __shfl_xor_sync(0xffffffff, m, apart);
        const float l_other = __shfl_xor_sync(0xffffffff, l, apart);
        const float m_new = fmaxf(m, m_other);
        if (m_new > -infinity) l = l * expf(m - m_new) + l_other * expf(m_other - m_new);
        m = m_new;
      }

      for (int i = lane; i < n; i += 32) y[i] = expf(x[i] - m) / l;
    }
    """
