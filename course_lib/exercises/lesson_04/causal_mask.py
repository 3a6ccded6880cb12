"""The causal mask for any two lengths, aligned bottom-right."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from course_lib.exercises.common.generators import case_of
from course_lib.grading.diagnosis import compare, show
from course_lib.grading.exercise import Checks, Evidence, Exercise, ExpectedOutput, Finding
from course_lib.reference.attention import causal_mask as reference_mask


def causal_mask(n_q, n_k):
    """Which query sees which key when each sees its own position and those before it.

    n_q, n_k: numbers of queries and keys, at least 1. The queries are the last n_q of n_k positions: query i
        sees key j where j <= i + n_k - n_q (bottom-right: the last query sees every key).
    Returns [n_q, n_k] of bool, True where visible. With more queries than keys the first n_q - n_k rows are
        False throughout.

    >>> print(causal_mask(2, 3))
    [[ True  True False]
     [ True  True  True]]
    """
    return np.arange(n_k) <= np.arange(n_q)[:, None] + (n_k - n_q)


def is_mask(answer, n_q, n_k):
    """Whatever dtype stands for True and False: that is a property of its own."""
    returned = answer(n_q, n_k)
    exact = reference_mask(n_q, n_k).astype(np.float64)
    expected = [ExpectedOutput("the mask", exact, exact, 1.0)]
    if not isinstance(returned, np.ndarray) or returned.dtype != bool:
        return compare(returned, expected)
    evidence = compare(returned.astype(np.float64), expected)
    return evidence and replace(evidence, returned=show(returned), expected=show(reference_mask(n_q, n_k)))


def is_bool(answer, n_q, n_k):
    returned = answer(n_q, n_k)
    if isinstance(returned, np.ndarray) and returned.dtype == bool:
        return None
    dtype = np.asarray(returned).dtype
    return Evidence((Finding("the mask", "dtype", f"the mask has dtype {dtype}"),), str(dtype), "bool")


case = case_of(causal_mask)
PAIRS = st.tuples(st.integers(1, 6), st.integers(1, 6))
check = Checks(causal_mask, is_mask)

check(
    "as many queries as keys: a triangle with its diagonal",
    [case(2, 2), case(4, 4), case(1, 1), st.integers(2, 7).map(lambda n: case(n, n))],
)
check(
    "fewer queries than keys: the last query sees every key",
    [case(1, 4), case(2, 5), PAIRS.map(lambda drawn: case(drawn[0], drawn[0] + drawn[1]))],
)
check(
    "more queries than keys: the first queries see none",
    [case(4, 1), case(5, 2), PAIRS.map(lambda drawn: case(drawn[0] + drawn[1], drawn[0]))],
)
check("the mask is an array of bool", [case(2, 3)], test=is_bool)

EXERCISE = Exercise(__file__, causal_mask, check, points=1, minutes=6, difficulty="easy")
