"""Softmax with the maximum of each slice subtracted."""

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from courseware.checks import Checks, Exercise, expected

from ..common.precision import keeps_float64
from .inputs import EACH_DTYPE, HALF, HALVES, agrees_and_vanishes, case, index_of, keeps_promises, logits, rounds_once


def stable_softmax(x, axis=-1):
    """Softmax along an axis, with the largest entry of each slice subtracted before the exponential.

    x: float16, float32 or float64, any shape. Each entry is finite or -inf, and -inf gets 0; each slice along
        `axis` has at least one that is finite.
    axis: the axis along which the results add up to 1.
    Returns an array of x's shape and dtype. Every step on the way is in float32 or a wider dtype, for float64 in
        float64 or a wider one, and the result is rounded to x's dtype. It is as exact near 10,000 as near 0. x is
        not modified.

    >>> print(stable_softmax(np.array([1.0, 2.0, 3.0, 4.0])).round(4))
    [0.0321 0.0871 0.2369 0.6439]
    """
    s = x.astype(np.promote_types(x.dtype, np.float32))
    p = np.exp(s - s.max(axis=axis, keepdims=True))
    return (p / p.sum(axis=axis, keepdims=True)).astype(x.dtype)


def softmax(x, axis=-1):
    return expected("softmax", lambda x: reference.stable_softmax(x, axis), x, index=index_of(x))


check = Checks("stable_softmax(x)", agrees_and_vanishes(softmax))

check("each row gives exp(x) over the sum of exp(x)", [case([1, 2, 3, 4]), case([[0, 1, 2], [2, 0, 0]]), logits()])
check("logits near 1000, alone and beside much smaller ones", [case([1000, 999]), case([1999, -1000, 2000])])
check("logits near -1000, alone and beside 0", [case([-1000, -1001]), case([0, -1000])])
check(
    "rows that lie 1000 apart are each right",
    [case([[0, 1], [1000, 1001]]), logits(offsets=st.sampled_from([0.0, 1000.0, -1000.0]))],
)
check(
    "float32 logits near 10,000 keep their digits",
    [{"x": np.float32([[10_000.0, 10_001.0, 10_003.0], [-9_999.5, -9_998.25, -9_998.0]])}],
)
check(
    "any axis of any array can be the one that adds up to 1",
    [case([[0, 1], [2, 4]], axis=0), case([[[0, 1, 3], [2, 0, 1]]], axis=1), logits(dimensions=(1, 3), with_axis=True)],
    call="stable_softmax(x, axis)",
)
check(
    "an entry of -inf gets 0, and the others add up to 1",
    [case([0, -np.inf]), case([[-np.inf, 1, 2], [0, -np.inf, -np.inf]]), {"x": np.float32([-3.4028235e38, -np.inf])}],
)
check(
    "float16 logits are computed in float32, and rounded once",
    HALVES,
    call=f"{HALF}\nstable_softmax(x)",
    test=rounds_once("softmax", reference.stable_softmax),
)
check("float64 logits keep their digits", [case([0.1, 0.7, 1.3]), case([30, 0, -30])], test=keeps_float64(softmax))
check("x is not modified, and its dtype comes back", EACH_DTYPE, calls=keeps_promises(lambda dtype: dtype))

EXERCISE = Exercise(__file__, stable_softmax, check, points=2, minutes=10, difficulty="easy")
