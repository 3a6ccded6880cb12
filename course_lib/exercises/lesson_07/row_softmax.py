"""The softmax of every row, one row for each program."""

import numpy as np

from course_lib import language, reference
from course_lib.exercises.common.generators import LARGE_SCORES
from course_lib.exercises.lesson_07.launches import WIDE, agrees, rows, rows_case
from course_lib.grading.diagnosis import expected
from course_lib.grading.exercise import Exercise, Slip
from course_lib.grading.kernel_calls import TRITON, kernel_checks

triton, tl = language.WRITTEN.triton, language.WRITTEN.tl


@triton.jit
def row_softmax(x_ptr, out_ptr, stride_xm, stride_xn, stride_om, stride_on, n_cols, BLOCK: tl.constexpr):
    """The softmax of each row, one row for each program.

    x_ptr, out_ptr: float32 [n_rows, n_cols]; element (i, j) of x lies stride_xm * i + stride_xn * j elements after
        x_ptr, and likewise out. n_cols: at least 1. BLOCK: a power of two, at least n_cols.
    Launched with n_rows programs, along axis 0. Each element is read once and written once.
    Scores may be as large as 1e4 in size.

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


def softmax(x, BLOCK):
    terms = reference.stable_softmax(x) * (1 + np.abs(x - x.max(axis=1, keepdims=True)))
    return expected("out", reference.stable_softmax, x, terms=terms)


def once(x, BLOCK):
    return {"x": (x.size * 4, 0), "out": (0, x.size * 4)}


CALL = """\
launched(row_softmax, (len(x),), {"out_ptr": x.shape}, x_ptr=x, n_cols=x.shape[1], BLOCK=BLOCK,
         strides={"x_ptr": ("stride_xm", "stride_xn"), "out_ptr": ("stride_om", "stride_on")})"""
IN, OUT = "row * stride_xm + offs_n * stride_xn", "row * stride_om + offs_n * stride_on"
EXP = "tl.exp(x - tl.max(x, axis=0))"
QUOTIENT = "p / tl.sum(p, axis=0)"
check = kernel_checks(CALL, agrees(softmax))

check(
    "a row as long as the block", [rows_case([[0, 1, 2, 3]]), rows_case([[1.0]]), rows_case([[2, 1]]), rows([1], [4])]
).catches(
    Slip("row and column strides swapped", {IN: "row * stride_xn + offs_n * stride_xm"}),
    Slip(
        "columns taken for neighbours in memory",
        {IN: "row * stride_xm + offs_n"},
        {IN: "row * stride_xm + offs_n", OUT: "row * stride_om + offs_n"},
    ),
    Slip("not divided by the sum", {QUOTIENT: "p"}),
    Slip("exp2 without log2 e", {"tl.exp(": "tl.exp2("}),
    Slip("divided by the largest", {QUOTIENT: "x / tl.max(x, axis=0)"}),
)
check(
    "every program has its row, wherever it begins",
    [rows_case([[0, 1, 2, 3], [3, 1, 0, 0]]), rows_case([[0, 1], [1, 0], [2, 5]]), rows([2, 3], [4])],
).catches(
    Slip("n_cols for the stride", {"row * stride_xm": "row * n_cols"}),
    Slip("the first row for all", {"row * stride_xm + ": ""}),
    Slip("every row is written to the first", {"row * stride_om + ": ""}),
)
check(
    "rows shorter than the block: the rest of it counts for nothing",
    [rows_case([[1, 2, 3]], 4), rows_case([[-3, -5, -4]], 8), rows_case(WIDE), rows([1, 2], [1, 2, 3])],
).catches(
    Slip("padding of 0", {'float("-inf"))': "0.0)"}),
    Slip("no other", {', other=float("-inf")': ""}),
    Slip("no mask on the load", {', mask=mask, other=float("-inf")': ""}),
    Slip("no mask on the store", {"axis=0), mask=mask)": "axis=0))"}),
)
check(
    "scores near 1000 and -1000 neither overflow nor vanish",
    [
        rows_case([[1000, 999]]),
        rows_case([[-1000, -999]]),
        rows_case([[-1e4, 1e4, 0]]),
        rows([1], [2, 3, 4], of=LARGE_SCORES),
    ],
).catches(
    Slip("max not subtracted", {EXP: "tl.exp(x)"}),
    Slip("max starts at 0", {EXP: "tl.exp(x - tl.maximum(tl.max(x, axis=0), 0.0))"}),
)
check(
    "each element is read once and written once",
    [rows_case([[1, 2, 3], [2, 2, 2]]), rows_case(WIDE)],
    test=agrees(softmax, once),
).catches(
    Slip(
        "the row loaded for each use",
        {
            f"    p = {EXP}": "    m = tl.max(x, axis=0)\n"
            f"    x = tl.load(x_ptr + {IN}, mask=mask, other=-float('inf'))\n    p = tl.exp(x - m)"
        },
    )
)

EXERCISE = Exercise(__file__, row_softmax, check, points=3, minutes=10, difficulty="medium", imports=TRITON)
