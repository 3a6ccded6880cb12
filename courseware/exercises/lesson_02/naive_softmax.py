"""Softmax exactly as its formula is written, to see where it breaks."""

import functools

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from courseware.checks import Checks, Exercise, agrees, expected, not_modified, show, single_finding
from courseware.exercises.common.generators import drawn_case
from courseware.exercises.common.precision import keeps_float64


def naive_softmax(x):
    """exp(x) / sum(exp(x)) along the last axis, as the formula is written.

    x: [..., n], float16, float32 or float64, finite. Every size is at least 1.
    Returns the weights, in x's shape and dtype. Every step is done in that dtype: exp, the sum (in any order,
        rounded after each addition or, as NumPy may do, once at its end) and the division of each exp by its
        sum. So the function breaks where one of these steps breaks, and nowhere else. x is not modified.

    >>> print(naive_softmax(np.array([1.0, 2.0, 3.0, 4.0])).round(4))
    [0.0321 0.0871 0.2369 0.6439]
    """
    exp_x = np.exp(x)
    return exp_x / exp_x.sum(axis=-1, keepdims=True)


def weights(x):
    return expected("weights", reference.naive_softmax, x)


def keeps_dtype(returned, x):
    if isinstance(returned, (np.ndarray, np.generic)) and returned.dtype == x.dtype:
        return None
    came = getattr(returned, "dtype", type(returned).__name__)
    return single_finding("dtype", f"{x.dtype} went in, {came} came back", str(came), str(x.dtype))


def breaks_as_written(returned, x):
    expected = reference.naive_softmax(x)
    if np.array_equal(returned, expected, equal_nan=True):
        return None
    with np.errstate(all="ignore"):
        terms = np.exp(x)
        total = terms.sum()
    is_so = {"exp overflows": np.isinf(terms).any(), "the sum overflows": np.isinf(total)}
    is_so |= {"every exp vanishes": total == 0, "small exps vanish": True}
    how = next(filter(is_so.get, is_so))
    text = f"with each step done in {x.dtype}, {how} here,\nand what came back is not what the formula makes of that"
    return single_finding("survives", text, show(returned), show(expected))


logits = functools.partial(drawn_case, of=st.sampled_from([0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5, -4.0]))


def case(x, dtype=np.float64):
    return {"x": np.array(x, dtype)}


check = Checks(naive_softmax, agrees(weights))

check(
    "a row of logits gives exp(x) / sum(exp(x))",
    [case([0, 1]), case([1, 2, 3, 4]), case([-5]), logits({"n": 4}, x="n")],
)
check(
    "each row of a matrix has a softmax of its own",
    [
        case([[0, 1], [2, 2]]),
        case([[[0, 1, 3], [2, 2, 0]], [[1, 0, 0], [3, 1, 2]]]),
        logits({"rows": [2, 3], "n": 3}, x="rows n"),
    ],
)
check("the weights have x's dtype", [case([0, 1], np.float16), case([0, 1], np.float32)], test=keeps_dtype)
check(
    "it breaks where the formula breaks",
    [
        *(case(row, np.float16) for row in ([12, 12], [12, 0], [11, 11], [-20, -20])),
        case([88.5, 88.5], np.float32),
        case([709.5, 709.5]),
        # The first digits of e are not enough: with 2.7182818 this does not overflow.
        case([709.782715, 0]),
        # So large that it does not fit a long double either.
        case([12000, 12000]),
        case([-800, -800, -801]),
        # Below the largest logit every other exp vanishes: only a step in x's own dtype makes these 0.
        case([[0, -18], [1, -17]], np.float16),
    ],
    test=breaks_as_written,
)
# Where the sum is below 1 / the largest number, the formula gives a half each, but 1 / sum overflows.
check(
    "it does not break where the formula does not",
    [case([-12, -12], np.float16), case([[-12, -12], [0, 0]], np.float16), case([-90, -90], np.float32)],
)
check("the inputs are not modified", [case([0, 1]), case([0, 1], np.float32)], calls=not_modified)
check("float64 logits keep their digits", [case([0.1, 0.7, 1.3]), case([[30, 0, -30]])], test=keeps_float64(weights))

EXERCISE = Exercise(__file__, naive_softmax, check, points=1, minutes=5, difficulty="easy")
