"""Running max and normaliser of a stream of scores, in one pass: Milakov and Gimelshein (2018), Alg. 3."""

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from courseware.checks import Checks, Exercise, agrees, compare, expected, single_finding
from courseware.checks.read_counting import growth_bytes_per_item
from courseware.exercises.common.generators import LARGE_SCORES, MASKED_SCORES, NUMBERS


def online_normalizer(stream):
    """Running max and normaliser of a softmax, in one pass over its scores.

    stream: iterable of floats that can be gone through once; it has no length and no indices. A score may be
        -inf (a masked key), never +inf or NaN.
    Returns (m, l), two floats: m is the largest score and l the sum of exp(s - m) over all scores s. If every
        score is -inf, or there is none, that is (-inf, 0.0).
    Keep two numbers between one score and the next, however long the stream.

    >>> m, l = online_normalizer([1.0, 2.0, 3.0, 4.0])
    >>> print(f"{m:.4f} {l:.4f}")
    4.0000 1.5530
    """
    m, l = -np.inf, 0.0
    for s in stream:
        m_new = max(m, s)
        if m_new == -np.inf:  # every score so far is masked, and -inf minus -inf would be NaN
            continue
        l = l * np.exp(m - m_new) + np.exp(s - m_new)
        m = m_new
    return m, l


def normalizer(stream):
    """(m, l) of the whole stream, as outputs to compare with."""

    def m_and_l(*state_and_block):
        return reference.online_softmax_update(*state_and_block)[:2]

    no_values = np.zeros(1), np.array(stream, dtype=np.float64), np.zeros((len(stream), 1))
    return expected(("m", "l"), m_and_l, -np.inf, 0.0, *no_values, terms=(0.0, None))


def growing(run, n, text, test, given):
    """Evidence if what the answer keeps grows with n, or if it is wrong for that many, or None.

    run(given(n)): calls the answer; given: makes the inputs beforehand. test(returned, n): Evidence or None.
    text: says that it grows, with {} for the bytes per item.
    """
    returned = {}

    def call(size_and_inputs):
        size, inputs = size_and_inputs
        returned[size] = run(inputs)

    growth = growth_bytes_per_item(call, n // 8, n, lambda size: (size, given(size)))
    if growth >= 1:
        return single_finding("memory", text.format(f"{round(growth, -1) or round(growth):.0f}"))
    return next(filter(None, (test(came, size) for size, came in returned.items())), None)


def memory(answer, n):
    text = "memory grows with the stream, by about {} bytes a score: the scores are kept"

    def stream(n):
        # No two are alike: who keeps each number once keeps them all.
        return (-float(i) for i in range(n))

    return growing(answer, n, text, lambda returned, n: compare(returned, normalizer(list(stream(n)))), stream)


def of(*scores):
    return {"stream": list(scores)}


def streams(scores):
    return st.lists(scores, min_size=1, max_size=6).map(lambda drawn: of(*drawn))


check = Checks(online_normalizer, agrees(normalizer))

check("one score alone: m is the score and l is 1", [of(0.0), of(-3.0), of(3.0)])
check("after a smaller score m is as before, and l has one more term", [of(2.0, 1.0), of(-1.0, -3.0)])
check("after a new max m is that score, and l the sum of all terms measured from it", [of(1.0, 2.0), of(-3.0, -1.0)])
check(
    "any stream gives the max and the sum of exp(s - max)",
    [of(1.0, 2.0, 3.0, 4.0), of(*[2.0] * 5), of(0.5, 3.0, -1.0, 3.0, 4.5, 0.0, 4.0, -2.5), streams(NUMBERS)],
)
check("scores near 1000 and near -1000", [of(0.0, 1000.0), of(-1000.0, -1001.0), streams(LARGE_SCORES)])
check("scores near -1e37", [of(-1e37, -2e37)])
check(
    "with masked scores (-inf): as if they were not there, first, last or alone",
    [of(-np.inf), of(-np.inf, -np.inf), of(-np.inf, 1.0), of(1.0, -np.inf), streams(MASKED_SCORES)],
)
check("the stream is gone through once", [of(0.0, 1.0)], call="online_normalizer(iter(stream))")
check(
    "what is kept does not grow with the stream",
    [{"n": 2048}],
    calls=memory,
    call="online_normalizer(-float(i) for i in range(n))",
)
check("no score at all gives (-inf, 0.0)", [of()])

EXERCISE = Exercise(__file__, online_normalizer, check, points=2, minutes=8, difficulty="easy")
