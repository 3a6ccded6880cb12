"""The softmax of every row, one row for each program."""

import numpy as np

from course_lib import reference
from course_lib.kernels import triton_basics as kernels
from courseware.checks import Exercise, expected
from courseware.checks.compile_calls import compiles
from courseware.checks.kernel_calls import TRITON, kernel_checks, launch_agrees, plain
from courseware.exercises.common.explanations import explain, explain_softmax
from courseware.exercises.common.generators import LARGE_SCORES
from courseware.exercises.lesson_07.launches import WIDE, rows, rows_case, shared_out

row_softmax = plain(kernels.row_softmax)


def softmax(x, BLOCK):
    terms = reference.stable_softmax(x) * (1 + np.abs(x - x.max(axis=1, keepdims=True)))
    return expected("out", reference.stable_softmax, x, terms=terms)


CALL = """\
launched(row_softmax, (len(x),), {"out_ptr": x.shape}, x_ptr=x, n_cols=x.shape[1], BLOCK=BLOCK,
         strides={"x_ptr": ("stride_xm", "stride_xn"), "out_ptr": ("stride_om", "stride_on")})"""
agrees = explain(launch_agrees(softmax), lambda launch, x, **_: explain_softmax(x, launch.outputs["out_ptr"]))
check = kernel_checks(CALL, agrees, rows_case)

check("a row as long as the block", [([[0, 1, 2, 3]], 4), ([[1.0]], 1), ([[-80, -30]], 2), rows([1], [4])])
check("every program has its row, wherever it begins", [([[0, 1, 2, 3], [3, 1, 0, 0]], 4), rows([2, 3], [4])])
check(
    "rows shorter than the block: the rest of it counts for nothing",
    [([[1, 2, 3]], 4), ([[-3, -5, -4]], 8), (WIDE, 32), rows([1, 2], [1, 2, 3])],
)
check(
    "the softmax of scores as large as 1e4, of either sign",
    [([[1000, 999]], 2), ([[-1e4, 1e4, 0]], 4), ([[-5000, -5001, -5003]], 4), rows([1], [2, 3, 4], of=LARGE_SCORES)],
)
check(
    "every program reads and writes one row, as a whole",
    [([[1, 2, 3], [2, 2, 2]], 4), (WIDE, 32)],
    test=shared_out(softmax, lambda x, BLOCK: (len(x), BLOCK, {("x", "load"): 1, ("out", "store"): 1})),
)
compiles(check, np.zeros((3, 45)), 64)

EXERCISE = Exercise(__file__, row_softmax, check, points=3, minutes=10, difficulty="medium", imports=TRITON)
