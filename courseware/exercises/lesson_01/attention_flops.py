"""How many floating-point operations attention takes."""

import numbers

from hypothesis import strategies as st

from course_lib import traffic
from courseware.checks import AnswerError, Checks, Exercise, agrees, compare, exactly, single_finding


def attention_flops(n_q, n_k, d, d_v):
    """Floating-point operations of attention's two matrix products and its softmax, for one head.

    n_q, n_k: numbers of queries and of keys. d: number of components of a query and of a key. d_v: number of
        components of a value. Whole numbers of at least 1.
    Returns an int: the multiplications and additions of S = Q K^T and of P V, where a sum of k products counts
        as k multiplications and k additions, and four operations of the softmax for each number of S:
        subtracting the row's maximum, the exponential, adding to the row's sum (k additions for k numbers),
        and dividing. The scale and the search for the maximum are not counted.

    >>> attention_flops(1, 1, 1, 1)
    8
    """
    products = 2 * n_q * n_k * d + 2 * n_q * n_k * d_v
    return products + 4 * n_q * n_k


def count(n_q, n_k, d, d_v):
    return exactly("the count", right_count(n_q, n_k, d, d_v), 0.0)


def right_count(n_q, n_k, d, d_v):
    """From the count for values as long as queries: each product is half of that."""
    products = sum(traffic.attention_flops(n_q, n_k, length) for length in (d, d_v)) // 2
    return products + 4 * n_q * n_k


def is_large(answer, **sizes):
    """The count is right, or the answer is still counting: one by one takes long, and is not wrong."""
    right = right_count(**sizes)
    try:
        returned = answer(*sizes.values())
    except AnswerError as error:
        if error.finding.kind == "timeout":
            return None
        raise
    evidence = compare(returned, count(**sizes))
    if evidence or returned == right:
        return evidence
    text = f"the count is {abs(returned - right):.0f} too {'large' if returned > right else 'small'}"
    return single_finding("inexact", text, str(returned), str(right), "the count")


def is_whole(returned, **sizes):
    evidence = compare(returned, count(**sizes))
    if evidence or isinstance(returned, numbers.Integral):
        return evidence
    text = f"the count came back as {type(returned).__name__}, not as an int"
    return single_finding("float", text, str(float(returned)), str(right_count(**sizes)), "the count")


check = Checks(attention_flops, agrees(count))

check("one query and one key", [(1, 1, 1, 1), (1, 1, 3, 1), (1, 1, 1, 4), (1, 1, 5, 2)])
check("any numbers of queries, keys and components", [(2, 3, 5, 7), (3, 7, 2, 2), st.tuples(*[st.integers(1, 16)] * 4)])
check("131071 queries and 131073 keys, counted exactly", [(131071, 131073, 192, 128)], calls=is_large)
check("the count is a whole number, of type int", [(3, 5, 2, 4)], test=is_whole)

EXERCISE = Exercise(__file__, attention_flops, check, points=1, minutes=6, difficulty="easy")
