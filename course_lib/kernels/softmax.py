"""Softmax by rows in Triton, one row a program: in one block, and as statistics of a row of any length."""

import triton
import triton.language as tl


@triton.jit
def row_softmax(x_ptr, out_ptr, stride_xm, stride_xn, stride_om, stride_on, n_cols, BLOCK: tl.constexpr):
    """The softmax of each row of x [n_rows, n_cols]; BLOCK a power of two, at least n_cols; n_rows programs.

    Stable: the row's maximum is subtracted. Each element is read once and written once.
    """
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.arange(0, BLOCK)
    mask_n = offs_n < n_cols
    scores = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=mask_n, other=float("-inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    total = tl.sum(weights, axis=0)
    tl.store(out_ptr + row * stride_om + offs_n * stride_on, weights / total, mask=mask_n)


@triton.jit
def online_row_stats(x_ptr, m_ptr, l_ptr, stride_xm, stride_xn, n_cols, BLOCK: tl.constexpr):
    """Maximum m and normaliser l = sum of exp(score - m) of each row of x [n_rows, n_cols]; n_rows programs.

    Milakov and Gimelshein (2018), Alg. 3, with blocks for single scores: each element is read once. A row that is
    -inf throughout has m = -inf, l = 0.
    """
    row = tl.program_id(0).to(tl.int64)
    m_i = tl.full([], float("-inf"), tl.float32)
    l_i = tl.full([], 0.0, tl.float32)
    for start in range(0, n_cols, BLOCK):
        offs_n = start + tl.arange(0, BLOCK)
        scores = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=offs_n < n_cols, other=float("-inf"))
        m_new = tl.maximum(m_i, tl.max(scores, axis=0))
        # -inf minus -inf must not be evaluated: nothing visible so far leaves exp(-inf - 0) = 0.
        m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)
        l_i = l_i * tl.exp(m_i - m_ref) + tl.sum(tl.exp(scores - m_ref), axis=0)
        m_i = m_new
    tl.store(m_ptr + row, m_i)
    tl.store(l_ptr + row, l_i)
