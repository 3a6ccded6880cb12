"""Scores of queries and keys, one tile for each program."""

import numpy as np
from hypothesis import strategies as st

from course_lib import language
from course_lib.exercises.common.generators import arrays
from course_lib.exercises.lesson_07.launches import agrees
from course_lib.grading.diagnosis import expected
from course_lib.grading.exercise import Exercise, Slip
from course_lib.grading.kernel_calls import TRITON, kernel_checks, rounds_products

triton, tl = language.WRITTEN.triton, language.WRITTEN.tl


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
    BLOCK_M, BLOCK_N: powers of two. Compiled, tl.dot takes no BLOCK_D below 16; the interpreter takes any.
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


def scores(q, k, scale, **blocks):
    return expected("s", lambda q, k: q @ k.T * q.dtype.type(scale), q, k, terms=np.abs(q) @ np.abs(k).T * abs(scale))


def once(q, k, BLOCK_M, BLOCK_N, **_):
    tiles_m, tiles_n = -(-len(q) // BLOCK_M), -(-len(k) // BLOCK_N)
    return {"q": (q.size * 4 * tiles_n, 0), "k": (k.size * 4 * tiles_m, 0), "s": (0, len(q) * len(k) * 4)}


def inputs(q, k, block_m, block_n, block_d=None):
    block_d = block_d or 1 << (q.shape[1] - 1).bit_length()
    return {"q": q, "k": k, "scale": 0.5, "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_D": block_d}


def case(n_q, n_k, d, *blocks):
    """Integers, each row and column of the product unlike the others."""
    q = (np.arange(n_q * d) * 7 % 11 - 4.0).reshape(n_q, d)
    k = (np.arange(n_k * d) * 5 % 13 - 5.0).reshape(n_k, d)
    return inputs(q, k, *blocks)


@st.composite
def queries_and_keys(draw, n_q, n_k, d, block_d):
    rows_q, rows_k, columns = (draw(st.sampled_from(choices)) for choices in (n_q, n_k, d))
    return inputs(arrays(draw, rows_q, columns), arrays(draw, rows_k, columns), 2, 4, block_d)


CALL = """\
launched(scores_tile, (-(-len(q) // BLOCK_M), -(-len(k) // BLOCK_N)), {"s_ptr": (len(q), len(k))}, q_ptr=q, k_ptr=k,
         n_q=len(q), n_k=len(k), scale=scale, HEAD_DIM=q.shape[1], BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_D=BLOCK_D,
         strides={"q_ptr": ("stride_qm", "stride_qd"), "k_ptr": ("stride_kn", "stride_kd"),
                  "s_ptr": ("stride_sm", "stride_sn")})"""
Q_MASK, K_MASK = "mask=mask_m[:, None] & mask_d[None, :]", "mask=mask_n[:, None] & mask_d[None, :]"
LOAD_Q = f"    q = tl.load(q_ptrs, {Q_MASK}, other=0.0)\n"
SCALED, PRECISION = " * scale\n", ', input_precision="ieee"'
check = kernel_checks(CALL, agrees(scores))

check(
    "one tile: scale times Q K^T", [case(2, 4, 2, 2, 4), case(4, 4, 4, 4, 4), queries_and_keys([2], [4], [2], 2)]
).catches(
    Slip("scale missing", {SCALED: "\n"}),
    Slip("scaled twice", {SCALED: " * scale * scale\n"}),
    Slip("K not transposed", {"tl.trans(k)": "k"}),
    Slip(
        "the stride of columns for rows of K",
        {"offs_n[:, None] * stride_kn": "offs_n[:, None] * stride_kd"},
        {"* stride_kn + ": "* stride_kd + ", "offs_d[None, :] * stride_kd": "offs_d[None, :] * stride_kn"},
    ),
    Slip(
        "columns taken for neighbours in memory",
        {" * stride_qd": ""},
        {" * stride_qd": "", " * stride_kd": "", " * stride_sn": ""},
    ),
)
check(
    "several tiles: axis 0 counts query tiles, axis 1 key tiles",
    [case(4, 4, 2, 2, 4), case(2, 8, 2, 2, 4), case(6, 8, 2, 2, 4), queries_and_keys([2, 4], [4, 8], [2], 2)],
).catches(
    Slip(
        "program ids exchanged",
        {
            "tl.program_id(0) * BLOCK_M": "tl.program_id(1) * BLOCK_M",
            "tl.program_id(1) * BLOCK_N": "tl.program_id(0) * BLOCK_N",
        },
    ),
    Slip("BLOCK_M for both", {"tl.program_id(1) * BLOCK_N": "tl.program_id(1) * BLOCK_M"}),
    Slip("the first keys for all", {"tl.program_id(1) * BLOCK_N + ": ""}),
)
check(
    "lengths that no tile divides: nothing outside is touched",
    [case(3, 4, 2, 2, 4), case(2, 5, 2, 2, 4), case(5, 9, 2, 2, 4), queries_and_keys([1, 2, 3], [1, 2, 3, 5], [2], 2)],
).catches(
    Slip("queries not masked", {Q_MASK: "mask=mask_d[None, :]"}),
    Slip("keys not masked", {K_MASK: "mask=mask_d[None, :]"}),
    Slip("store not masked", {"s, mask=mask_m[:, None] & mask_n[None, :])": "s)"}),
    Slip("whole tiles only", {"offs_n < n_k,": "offs_n < n_k // BLOCK_N * BLOCK_N,"}),
)
check(
    "a head_dim that is no power of two",
    [case(2, 4, 3, 2, 4), case(2, 4, 1, 2, 4, 4), case(18, 33, 20, 16, 16), queries_and_keys([2], [4], [1, 3], 4)],
).catches(
    Slip("columns not masked", {Q_MASK: "mask=mask_m[:, None]"}),
    Slip("no other", {f"{K_MASK}, other=0.0": K_MASK}),
    Slip(
        "padding of 1", {f"{Q_MASK}, other=0.0": f"{Q_MASK}, other=1.0", f"{K_MASK}, other=0.0": f"{K_MASK}, other=1.0"}
    ),
)
check(
    "each program reads its rows once and writes its tile once",
    [case(4, 8, 2, 2, 4), case(5, 9, 3, 2, 4)],
    test=agrees(scores, once),
).catches(Slip("Q loaded twice", {LOAD_Q: LOAD_Q + LOAD_Q}))
check("float32 products: nothing is rounded to TF32 on a GPU", [case(2, 4, 2, 2, 4)], test=rounds_products).catches(
    Slip("input_precision left out", {PRECISION: ""}, {PRECISION: ', input_precision="tf32"'})
)

EXERCISE = Exercise(__file__, scores_tile, check, points=3, minutes=12, difficulty="medium", imports=TRITON)
