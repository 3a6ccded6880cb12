"""Maximum and softmax normaliser of each row, in one pass."""

import numpy as np

from course_lib.kernels import triton_basics as kernels
from courseware.checks import Exercise, expected
from courseware.checks.compile_calls import compiles
from courseware.checks.kernel_calls import TRITON, kernel_checks, launch_agrees, plain
from courseware.exercises.common.generators import MASKED_SCORES
from courseware.exercises.lesson_07.launches import WIDE, rows, rows_case, shared_out

online_row_stats = plain(kernels.online_row_stats)


def row_stats(x):
    m = x.max(axis=1)
    finite = np.where(np.isneginf(m), x.dtype.type(0), m)
    return m, np.exp(x - finite[:, None]).sum(axis=1)


def stats(x, BLOCK):
    return expected(("m", "l"), row_stats, x, terms=(0.0, None))


def once(x, BLOCK):
    return {"x": (x.size * 4, 0), "m": (0, len(x) * 4), "l": (0, len(x) * 4)}


def block_by_block(x, BLOCK):
    return len(x), BLOCK, {("x", "load"): -(-x.shape[1] // BLOCK)}


CALL = """\
launched(online_row_stats, (len(x),), {"m_ptr": (len(x),), "l_ptr": (len(x),)}, x_ptr=x, n_cols=x.shape[1], BLOCK=BLOCK,
         strides={"x_ptr": ("stride_xm", "stride_xn")})"""
check = kernel_checks(CALL, launch_agrees(stats), rows_case)

check("equal scores: m is that score, l counts them", [([[2, 2, 2, 2]], 2), ([[-1, -1]], 2), ([[3]], 1)])
check("one block: the max, and the sum of exp(score - max)", [([[1, 2, 3, 4]], 4), ([[-1, -3]], 2), rows([1], [4])])
check("a later block with a smaller max leaves m alone", [([[4, 3, 2, 0]], 2), ([[2, 1, 0, -2, -1, -4]], 2)])
check("a new max rescales the old sum", [([[1, 2, 3, 4]], 2), ([[0, 0, 3, 3, 5, 4]], 2), rows([1], [4], block=2)])
check(
    "a length that no block divides: all of the row, and nothing else",
    [([[-1, -2, -5]], 2), ([[1, 2, 3]], 4), (WIDE[:1], 16), ([[1, 2, 3, 4, 5]], 2), rows([1], [1, 2, 3, 5])],
)
check("every program has its row, wherever it begins", [([[1, 2, 3, 4], [8, 7, 6, 7]], 2), rows([2, 3], [4], block=2)])
check(
    "masked scores (-inf) add nothing, also when they come first",
    [
        ([[-np.inf, -np.inf, -1, -2]], 2),
        ([[2, 1, -np.inf, -np.inf, 1, 3]], 2),
        rows([1], [4], block=2, of=MASKED_SCORES).filter(lambda row: np.isfinite(row["x"]).any()),
    ],
)
check("a row of nothing but -inf: m is -inf, l is 0", [([[1, 2, 3], [-np.inf, -np.inf, -np.inf]], 2)])
check("scores as large as 1e4, of either sign", [([[9999, 9998, 1e4, 0]], 2), ([[-9999, -1e4, -1e4, -9998]], 2)])
check("each element is read once", [([[1, 2, 3, 4, 5]], 2), (WIDE, 16)], test=launch_agrees(stats, once))
check("a row is read BLOCK elements at a time", [([[1, 2, 3, 4, 5]], 2)], test=shared_out(stats, block_by_block))
compiles(check, np.zeros((3, 45)), 16)

EXERCISE = Exercise(__file__, online_row_stats, check, points=4, minutes=15, difficulty="hard", imports=TRITON)
