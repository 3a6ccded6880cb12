"""Maximum and softmax normaliser of each row, in one pass."""

import numpy as np

from course_lib import language
from course_lib.exercises.common.generators import MASKED_SCORES
from course_lib.exercises.lesson_07.launches import WIDE, agrees, rows, rows_case
from course_lib.grading.diagnosis import expected
from course_lib.grading.exercise import Before, Exercise, Slip
from course_lib.grading.kernel_calls import TRITON, kernel_checks

triton, tl = language.WRITTEN.triton, language.WRITTEN.tl


@triton.jit
def online_row_stats(x_ptr, m_ptr, l_ptr, stride_xm, stride_xn, n_cols, BLOCK: tl.constexpr):
    """Maximum and softmax normaliser of each row in one pass, one row for each program.

    x_ptr: float32 [n_rows, n_cols], with strides in elements. m_ptr, l_ptr: float32 [n_rows], contiguous.
    n_cols: any length of at least 1, also far beyond BLOCK. BLOCK: a power of two.
    m is the largest score of the row, l the sum of exp(score - m). A score may be -inf (a masked key); a row of
        nothing else has m = -inf, l = 0.
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


def row_stats(x):
    m = x.max(axis=1)
    finite = np.where(np.isneginf(m), x.dtype.type(0), m)
    return m, np.exp(x - finite[:, None]).sum(axis=1)


def stats(x, BLOCK):
    return expected(("m", "l"), row_stats, x, terms=(0.0, None))


def once(x, BLOCK):
    return {"x": (x.size * 4, 0), "m": (0, len(x) * 4), "l": (0, len(x) * 4)}


CALL = """\
launched(online_row_stats, (len(x),), {"m_ptr": (len(x),), "l_ptr": (len(x),)}, x_ptr=x, n_cols=x.shape[1], BLOCK=BLOCK,
         strides={"x_ptr": ("stride_xm", "stride_xn")})"""
OFFSET = "row * stride_xm + offs_n * stride_xn"
MASK, OTHER = ", mask=offs_n < n_cols", ', other=float("-inf")'
check = kernel_checks(CALL, agrees(stats))

check(
    "one block: the max, and the sum of exp(score - max)",
    [rows_case([[1, 2, 3, 4]]), rows_case([[-1, -3]]), rows_case([[-2.0]]), rows([1], [4])],
).catches(
    Slip("running max starts at 0", {'m_i = float("-inf")\n': "m_i = 0.0\n"}),
    Slip("max not subtracted", {"tl.exp(x - m_ref)": "tl.exp(x)"}),
    Slip("columns taken for neighbours in memory", {OFFSET: "row * stride_xm + offs_n"}),
)
check(
    "a later block with a smaller max leaves m alone",
    [rows_case([[4, 3, 2, 1]], 2), rows_case([[2, 1, 0, -1, -2, -3]], 2)],
).catches(
    Slip("tile max for running max", {"tl.maximum(m_i, tl.max(x, axis=0))": "tl.max(x, axis=0)"}),
    Slip("terms measured from the tile max", {"tl.exp(x - m_ref)": "tl.exp(x - tl.max(x, axis=0))"}),
)
check(
    "a new max rescales the old sum",
    [rows_case([[1, 2, 3, 4]], 2), rows_case([[1, 2]], 1), rows_case([[0, 0, 3, 3, 5, 4]], 2), rows([1], [4], block=2)],
).catches(
    Slip("no rescale of l", {"l_i * tl.exp(m_i - m_ref)": "l_i"}),
    Slip("rescale upside down", {"tl.exp(m_i - m_ref)": "tl.exp(tl.where(m_i == float('-inf'), 0.0, m_ref - m_i))"}),
)
check(
    "a length that no block divides: all of the row, and nothing else",
    [
        rows_case([[-1, -2, -5]], 2),
        rows_case([[1, 2, 3]], 4),
        rows_case(WIDE[:1], 16),
        rows_case([[1, 2, 3, 4, 5]], 2),
        rows([1], [1, 2, 3, 5]),
    ],
).catches(
    Slip("last block dropped", {"range(0, n_cols, BLOCK)": "range(0, n_cols // BLOCK * BLOCK, BLOCK)"}),
    Slip("padding of 0", {OTHER: ", other=0.0"}),
    Slip("no mask", {MASK + OTHER: ""}),
    Slip("no other", {OTHER: ""}),
)
check(
    "every program has its row, wherever it begins",
    [rows_case([[1, 2, 3, 4], [8, 7, 6, 7]], 2), rows_case([[0, 1], [2, 3], [5, 9]], 2), rows([2, 3], [4], block=2)],
).catches(
    Slip("the stride of columns for rows", {"row * stride_xm": "row * stride_xn"}),
    Slip("n_cols for the stride", {"row * stride_xm": "row * n_cols"}),
    Slip("all results in one place", {"tl.store(l_ptr + row, l_i)": "tl.store(l_ptr, l_i)"}),
)
check(
    "masked scores (-inf) add nothing, also when they come first",
    [
        rows_case([[-np.inf, -np.inf, 1, 2]], 2),
        rows_case([[-np.inf, -np.inf]], 2),
        rows_case([[1, -np.inf, 0, 1]], 2),
        rows([1], [4], block=2, of=MASKED_SCORES),
    ],
).catches(Slip("-inf minus -inf", {'tl.where(m_new == float("-inf"), 0.0, m_new)': "m_new"}))
check(
    "each element is read once", [rows_case([[1, 2, 3, 4, 5]], 2), rows_case(WIDE, 16)], test=agrees(stats, once)
).catches(
    Slip(
        "two passes",
        {
            Before("for start in"): "for start in range(0, n_cols, BLOCK):\n"
            "    offs_n = start + tl.arange(0, BLOCK)\n"
            f"    x = tl.load(x_ptr + {OFFSET}{MASK}{OTHER})\n"
            "    m_i = tl.maximum(m_i, tl.max(x, axis=0))"
        },
    )
)

EXERCISE = Exercise(__file__, online_row_stats, check, points=4, minutes=15, difficulty="hard", imports=TRITON)
