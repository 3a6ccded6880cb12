"""How many floating-point operations attention takes."""

import numbers

import numpy as np
from hypothesis import strategies as st

from course_lib import traffic
from course_lib.grading import Checks, Exercise, ExpectedOutput, agrees, compare, show, single_finding


def attention_flops(n_q, n_k, d):
    """Floating-point operations of the two matrix products of attention.

    n_q, n_k: queries and keys. d: length of a query, of a key and of a value. Whole numbers of at least 1.
    Returns an int: the multiplications and additions of S = Q K^T, [n_q, d] times [d, n_k], and of P V,
        [n_q, n_k] times [n_k, d]. A sum of k products counts as k multiplications and k additions. Scale and
        softmax are not counted.

    >>> attention_flops(4, 4, 2)
    128
    """
    return 4 * n_q * n_k * d


def count(n_q, n_k, d):
    exact = np.float64(traffic.attention_flops(n_q, n_k, d))
    return [ExpectedOutput("the count", exact, exact, exact)]


def is_whole(returned, **sizes):
    evidence = compare(returned, count(**sizes))
    if evidence or isinstance(returned, numbers.Integral):
        return evidence
    text = f"the count came back as {type(returned).__name__}, not as an int"
    return single_finding("float", text, show(returned), str(traffic.attention_flops(**sizes)), "the count")


check = Checks(attention_flops, agrees(count))

check("one query, one key, d = 2: 8", [(1, 1, 2)])
check(
    "any numbers of queries, keys and components",
    [(2, 3, 5), (4, 4, 2), (1024, 1024, 64), st.tuples(*[st.integers(1, 64)] * 3)],
)
check("131072 queries and keys do not overflow", [(131072, 131072, 128)])
check("the count is a whole number, of type int", [(3, 5, 2)], test=is_whole)

EXERCISE = Exercise(__file__, attention_flops, check, points=1, minutes=5, difficulty="easy")
