"""Lesson 07's kernels: a vector sum, tiles of scores and what the compiler says of one, the softmax of rows.

`online_row_stats` is Milakov and Gimelshein (2018), Alg. 3, with blocks for single scores.
"""

import subprocess
import sys

from course_lib import runtime
from course_lib.language import tl, triton


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out = x + y, one block of BLOCK elements for each program.

    x_ptr, y_ptr, out_ptr: float32 [n], contiguous. n: any length of at least 1. BLOCK: a power of two.
    Launched with cdiv(n, BLOCK) programs, along axis 0. Each program loads and stores its block at once, not one
        element at a time. Each element is read once and written once.

    >>> x, y = np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0])
    >>> launched(vector_add, (2,), {"out_ptr": (3,)}, x_ptr=x, y_ptr=y, n=3, BLOCK=2).outputs["out_ptr"].tolist()
    [11.0, 22.0, 33.0]
    """
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def scores_tile(
    q_ptr, k_ptr, s_ptr,
    stride_qm, stride_qd,
    stride_kn, stride_kd,
    stride_sm, stride_sn,
    n_q, n_k, scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """S = scale * Q K^T, one tile of BLOCK_M queries by BLOCK_N keys for each program.

    q_ptr: float32 [n_q, HEAD_DIM]; k_ptr: float32 [n_k, HEAD_DIM]; s_ptr: float32 [n_q, n_k]; each with strides of
        its own, in elements. n_q, n_k: at least 1. BLOCK_D: a power of two, at least HEAD_DIM.
    BLOCK_M, BLOCK_N: powers of two. When it is compiled, tl.dot takes no BLOCK_D below 16; the interpreter takes any.
    Launched with cdiv(n_q, BLOCK_M) programs along axis 0 and cdiv(n_k, BLOCK_N) along axis 1.
    Each program reads its rows of Q and of K once, and writes its tile once. Use tl.dot with
        input_precision="ieee".

    >>> q, k = np.array([[1.0, 0.0], [1.0, 2.0]]), np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
    >>> sizes = {"n_q": 2, "n_k": 3, "HEAD_DIM": 2, "BLOCK_M": 2, "BLOCK_N": 2, "BLOCK_D": 2}
    >>> strides = {"q_ptr": ("stride_qm", "stride_qd"), "k_ptr": ("stride_kn", "stride_kd"),
    ...            "s_ptr": ("stride_sm", "stride_sn")}
    >>> launch = launched(scores_tile, (1, 2), {"s_ptr": (2, 3)}, strides=strides, q_ptr=q, k_ptr=k, scale=1.0, **sizes)
    >>> launch.outputs["s_ptr"].tolist()
    [[1.0, 0.0, 2.0], [1.0, 2.0, 4.0]]
    """
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    mask_m, mask_n, mask_d = offs_m < n_q, offs_n < n_k, offs_d < HEAD_DIM
    # [BLOCK_M, BLOCK_D] and [BLOCK_N, BLOCK_D]
    q_ptrs = q_ptr + offs_m[:, None] * stride_qm + offs_d[None, :] * stride_qd
    k_ptrs = k_ptr + offs_n[:, None] * stride_kn + offs_d[None, :] * stride_kd
    q = tl.load(q_ptrs, mask=mask_m[:, None] & mask_d[None, :], other=0.0)
    k = tl.load(k_ptrs, mask=mask_n[:, None] & mask_d[None, :], other=0.0)
    # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    s_ptrs = s_ptr + offs_m[:, None] * stride_sm + offs_n[None, :] * stride_sn
    tl.store(s_ptrs, s, mask=mask_m[:, None] & mask_n[None, :])


def compile_scores_tile(block_d):
    """What the compiler says of `scores_tile` for tiles of 16 x 16 and this BLOCK_D: "compiled", or why not.

    It compiles for sm_90, without a GPU, in a process of its own, because one that interprets cannot compile.
    """
    code = f"from course_lib.kernels import triton_basics; triton_basics._compile_scores_tile({block_d})"
    environment = runtime.environment(interpreting=False)
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    return "compiled" if run.returncode == 0 else run.stderr.strip().splitlines()[-1]


def _compile_scores_tile(block_d):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    sizes = {"HEAD_DIM": block_d, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": block_d}
    types = {name: "*fp32" if name.endswith("_ptr") else "i32" for name in scores_tile.arg_names}
    types |= {"scale": "fp32"} | dict.fromkeys(sizes, "constexpr")
    triton.compile(ASTSource(scores_tile, types, sizes), target=GPUTarget("cuda", 90, 32))


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
