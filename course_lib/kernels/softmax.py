"""Softmax by rows in Triton, one row a program: in one block, and as statistics of a row of any length.

`online_row_stats` is Milakov and Gimelshein (2018), Alg. 3, with blocks for single scores.
"""

from course_lib.language import tl, triton


@triton.jit
def row_softmax(x_ptr, out_ptr, stride_xm, stride_xn, stride_om, stride_on, n_cols, BLOCK: tl.constexpr):
    """The softmax of each row, one row for each program.

    x_ptr, out_ptr: float32 [n_rows, n_cols]; element (i, j) of x lies stride_xm * i + stride_xn * j elements after
        x_ptr, and likewise out. n_cols: at least 1. BLOCK: a power of two, at least n_cols.
    Launched with n_rows programs, along axis 0. Each element is read once and written once.
    Scores lie between -1e4 and 1e4.

    >>> x = np.array([[0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]])
    >>> strides = {"x_ptr": ("stride_xm", "stride_xn"), "out_ptr": ("stride_om", "stride_on")}
    >>> launch = launched(row_softmax, (2,), {"out_ptr": (2, 4)}, strides=strides, x_ptr=x, n_cols=4, BLOCK=4)
    >>> launch.outputs["out_ptr"].round(3)
    array([[0.25 , 0.25 , 0.25 , 0.25 ],
           [0.032, 0.087, 0.237, 0.644]], dtype=float32)
    """
    row = tl.program_id(0)
    offs_n = tl.arange(0, BLOCK)
    mask = offs_n < n_cols
    x = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=mask, other=float("-inf"))
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride_om + offs_n * stride_on, p / tl.sum(p, axis=0), mask=mask)


@triton.jit
def online_row_stats(x_ptr, m_ptr, l_ptr, stride_xm, stride_xn, n_cols, BLOCK: tl.constexpr):
    """Maximum and softmax normaliser of each row in one pass, one row for each program.

    x_ptr: float32 [n_rows, n_cols], with strides in elements. m_ptr, l_ptr: float32 [n_rows], contiguous.
    n_cols: any length of at least 1, also far beyond BLOCK. BLOCK: a power of two.
    m is the largest score of the row, l the sum of exp(score - m). A score lies between -1e4 and 1e4, or is -inf
        (a masked key); a row of nothing but -inf has m = -inf, l = 0.
    Launched with n_rows programs, along axis 0. Each element is read once, BLOCK of them at a time.

    >>> x, strides = np.array([[1.0, 2.0, 3.0, 4.0]]), {"x_ptr": ("stride_xm", "stride_xn")}
    >>> outputs = {"m_ptr": (1,), "l_ptr": (1,)}
    >>> launch = launched(online_row_stats, (1,), outputs, strides=strides, x_ptr=x, n_cols=4, BLOCK=2)
    >>> print("m", launch.outputs["m_ptr"], "l", launch.outputs["l_ptr"].round(3))
    m [4.] l [1.553]
    """
    row = tl.program_id(0)
    m_i = float("-inf")
    l_i = 0.0
    for start in range(0, n_cols, BLOCK):
        offs_n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride_xm + offs_n * stride_xn, mask=offs_n < n_cols, other=float("-inf"))
        m_new = tl.maximum(m_i, tl.max(x, axis=0))
        m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)  # -inf minus -inf would be NaN
        l_i = l_i * tl.exp(m_i - m_ref) + tl.sum(tl.exp(x - m_ref), axis=0)
        m_i = m_new
    tl.store(m_ptr + row, m_i)
    tl.store(l_ptr + row, l_i)
