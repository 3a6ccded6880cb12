"""One number per row that stands for a sum over all keys: FlashAttention-2 (Dao, 2023), Alg. 2, line 4."""

import numpy as np

from courseware.checks import Checks, Exercise, agrees, not_modified
from courseware.exercises.common.generators import as_floats, drawn_case, in_both_dtypes
from courseware.exercises.lesson_09.gradients import expected_delta


def delta(O, dO):
    """The one number that the backward needs of each row: delta_i = sum over j of P_ij dP_ij, from O and dO alone.

    O, dO: [n_q, d], one float dtype.
    Returns [n_q] in float32 or in float64; either will do for any input. Nothing is rounded to float16 on the way, and
        nothing is modified.

    >>> delta(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])).tolist()
    [11.0]
    """
    dtype = np.result_type(O.dtype, np.float32)
    return (O.astype(dtype) * dO.astype(dtype)).sum(axis=1)


def float16_delta(o, do, **_):
    """The budget is that of float32: a sum in float16 loses too many digits for it."""
    return expected_delta(o.astype(np.float64), do.astype(np.float64))


TWO_ROWS = as_floats(o=[[1, 2], [3, 4]], do=[[1, 1], [2, 0]])
OUTPUTS = drawn_case({"n_q": 3, "d": 3}, o="n_q d", do="n_q d")
check = Checks("delta(o, do)", agrees(expected_delta))

check("one row: the sum over d of O times dO", [as_floats(o=[[1, 2, 3, 4]], do=[[2, 1, 1, 1]])])
check("a number for each row", [TWO_ROWS, as_floats(o=[[1, 2], [3, 4], [0, 1]], do=[[1, 1]] * 3), OUTPUTS])
check("the inputs are not modified", in_both_dtypes(TWO_ROWS), calls=not_modified)
check(
    "float16 comes in: products and sums are float32",
    # 33 * 65 is no float16, and neither is the first sum.
    [{"o": np.float16([o]), "do": np.float16([do])} for o, do in (([33, 1], [65, 2]), ([33, 32], [65, -67]))],
    test=agrees(float16_delta),
)

EXERCISE = Exercise(__file__, delta, check, points=1, minutes=5, difficulty="easy")
