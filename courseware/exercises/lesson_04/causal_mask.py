"""The causal mask for any two lengths, aligned bottom-right."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from course_lib.reference.attention import causal_mask as reference_mask
from courseware.checks import Checks, Exercise, Finding, compare, exactly, keeps_dtype, named, show


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


def is_mask(returned, n_q, n_k):
    """Whatever dtype stands for True and False: that is a property of its own."""
    exact = reference_mask(n_q, n_k)
    is_bools = isinstance(returned, np.ndarray) and returned.dtype == bool
    evidence = compare(returned.astype(np.float64) if is_bools else returned, exactly("the mask", exact))
    evidence = evidence and replace(evidence, returned=show(returned), expected=show(exact))
    if evidence is None or not is_bools or returned.shape != exact.shape:
        return evidence
    query = int(np.flatnonzero((returned != exact).any(axis=1))[0])
    sees, should = (_keys(mask[query]) for mask in (returned, exact))
    text = f"query {query} sees {sees}; it should see {should}"
    return replace(evidence, findings=(Finding("the mask", "values", text),))


def _keys(visible):
    return named("key", np.flatnonzero(visible).tolist()) if visible.any() else "no key"


check = Checks(causal_mask, is_mask)

check("as many queries as keys: a triangle with its diagonal", [(2, 2), (4, 4), (1, 1)])
check("fewer queries than keys: the last query sees every key", [(1, 4), (2, 5)])
check(
    "more queries than keys: the first see none, the last sees every key",
    [(4, 1), (5, 2), st.tuples(st.integers(1, 7), st.integers(1, 7))],
)
check("the mask is an array of bool", [(2, 3)], test=keeps_dtype("the mask", of=("bool",)))

EXERCISE = Exercise(__file__, causal_mask, check, points=1, minutes=6, difficulty="easy")
