"""Softmax over the visible entries of each row."""

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from courseware.checks import Checks, Exercise, expected

from ..common.generators import NUMBERS, arrays
from ..common.precision import keeps_float64
from .inputs import EACH_DTYPE, HALF, HALVES, agrees_and_vanishes, index_of, keeps_promises, rounds_once


def masked_softmax(x, mask):
    """Softmax along the last axis over the entries that are visible.

    x: float16, float32 or float64, [..., n], n at least 1. mask: bool, x's shape or one that broadcasts to it;
        True is visible, and x is finite there. What x holds where the mask is False does not matter, be it NaN or
        infinite.
    Returns an array of x's shape and dtype: 0 where hidden, and the weights of a row's visible entries add up to
        1. A row in which nothing is visible is 0 throughout. Every step on the way is in float32 or a wider
        dtype, for float64 in float64 or a wider one. x and mask are not modified.

    >>> x = np.array([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    >>> mask = np.array([[True, True, True, False], [False, False, False, False]])
    >>> print(masked_softmax(x, mask).round(4))
    [[0.09   0.2447 0.6652 0.    ]
     [0.     0.     0.     0.    ]]
    """
    s = np.where(mask, x, -np.inf).astype(np.promote_types(x.dtype, np.float32))
    m = s.max(axis=-1, keepdims=True)
    p = np.exp(s - np.where(m == -np.inf, 0, m))  # never -inf - -inf
    l = p.sum(axis=-1, keepdims=True)
    return (p / np.where(l == 0, 1, l)).astype(x.dtype)


def softmax(x, mask):
    return expected("softmax", reference.stable_softmax, np.where(mask, x, -np.inf), index=index_of(x))


def case(x, mask):
    return {"x": np.array(x, dtype=np.float64), "mask": np.array(mask, dtype=bool)}


@st.composite
def masked(draw, hidden=NUMBERS, offset=0.0):
    """hidden: of what a hidden entry holds. offset: added to visible ones."""
    shape = [draw(st.integers(1, 2)), draw(st.integers(1, 3))][draw(st.integers(0, 1)) :]
    mask = arrays(draw, *shape, of=st.sampled_from([1, 0])) == 1
    mask[..., 0] |= ~mask.any(axis=-1)
    return np.where(mask, arrays(draw, *shape) + offset, arrays(draw, *shape, of=hidden)), mask


check = Checks(masked_softmax, agrees_and_vanishes(softmax), case)

check("with everything visible it is the softmax", [([1, 2, 3, 4], [1] * 4), ([[0, 1, 1], [2, 4, 0]], [[1, 1, 1]] * 2)])
check(
    "hidden entries get 0, and the visible ones of a row add up to 1",
    [([1, 2, 3, 4], [1, 1, 1, 0]), ([[0, 1, 3], [2, 4, 1]], [[1, 0, 1], [1, 1, 0]]), masked()],
)
check("visible entries 1000 below a hidden one", [([[-1000, -1001, 0]], [[1, 1, 0]]), masked(offset=-1000.0)])
check(
    "rows that lie 1000 apart are each right, and so are logits of 2000 beside 0",
    [([[0, 1, 3], [1000, 1001, 0]], [[1, 1, 1], [1, 1, 0]]), ([2000, 0, 2000, 0], [1, 1, 1, 1])],
)
check(
    "a row in which nothing is visible is 0 throughout, and the other rows stay right",
    [([0], [0]), ([[0, 1], [2, 4]], [[0, 0], [1, 1]]), ([[1000, 1001], [0, 1]], [[1, 1], [0, 0]])],
)
check(
    "no visible entry is so low that a hidden one counts beside it",
    [
        ([-20_000, -20_001, 0], [1, 1, 0]),
        ([-1e37, 0], [1, 0]),
        {"x": np.array([np.finfo(np.float32).min, 0], np.float32), "mask": np.array([True, False])},
    ],
)
NO_NUMBERS = st.sampled_from([np.nan, np.inf, -np.inf, 0.0])
check(
    "a hidden NaN or inf reaches nothing", [([[0, np.nan], [np.inf, 2]], [[1, 0], [0, 1]]), masked(hidden=NO_NUMBERS)]
)
check(
    "float16 logits are computed in float32, and rounded once",
    HALVES,
    call=f"{HALF}\nmasked_softmax(x, np.ones(n, dtype=bool))",
    test=rounds_once("softmax", reference.stable_softmax),
)
check(
    "float64 logits keep their digits",
    [([0.1, 0.7, 1.3], [1, 1, 1]), ([30, 0, -30], [1, 1, 1]), ([0.1, 0.7, 0.9, 1.3], [1, 1, 0, 1])],
    test=keeps_float64(softmax),
)
TABLE, TABLES = [[0, 1, 2], [2, 4, 0]], [[[0, 1, 2], [2, 4, 0]], [[1, 3, 1], [0, 2, 5]]]
check("one mask can serve all rows", [(TABLE, [1, 1, 0]), (TABLE, [[1], [0]]), (TABLES, [[[1], [1]], [[0], [1]]])])
check(
    "x and mask are not modified, and x's dtype comes back",
    [case | {"mask": np.array([True, False])} for case in EACH_DTYPE],
    calls=keeps_promises(lambda dtype: dtype),
)

EXERCISE = Exercise(__file__, masked_softmax, check, points=3, minutes=15, difficulty="medium")
