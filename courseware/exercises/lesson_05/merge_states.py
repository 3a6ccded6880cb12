"""Merge two partial softmax states: the operator that lets keys be split over programs, or over GPUs."""

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from courseware.checks import Checks, Exercise, agrees, expected, keeps_dtype, not_modified
from courseware.exercises.common.generators import arrays, as_floats, state
from courseware.exercises.common.precision import keeps_float64


def merge_states(a, b):
    """Combine two partial softmax states into the state of their union.

    a, b: states (m, l, acc) of two disjoint sets of keys. m: [...], the set's largest score. l: [...], its
        sum of exp(s - m). acc: [..., d_v], its sum of exp(s - m) * value, not divided by l. The state of a
        set with no visible key is (-inf, 0, 0). [...] is any leading shape: none for one query, [rows] for
        many, each with a set of its own, which may be empty for some and not for others.
    Returns (m, l, acc) with the same shapes and dtype, as if both sets had been one. The inputs are not
        modified.

    >>> a = (np.float64(2.0), np.float64(1.3679), np.array([0.7358, 2.0]))      # scores 1, 2
    >>> b = (np.float64(4.0), np.float64(1.3679), np.array([3.3679, -0.6321]))  # scores 3, 4
    >>> m, l, acc = merge_states(a, b)
    >>> print(f"{m:.3f} {l:.3f}", acc.round(3))
    4.000 1.553 [ 3.467 -0.361]
    """
    m_a, l_a, acc_a = a
    m_b, l_b, acc_b = b
    m = np.maximum(m_a, m_b)
    shift = np.where(m == -np.inf, 0.0, m)  # two empty states: -inf - 0, not -inf - -inf
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)
    return m, w_a * l_a + w_b * l_b, w_a[..., None] * acc_a + w_b[..., None] * acc_b


def merged(a, b):
    """The state of the union, as outputs to compare with."""
    (m_a, l_a, acc_a), (m_b, l_b, acc_b) = a, b
    acc_terms = reference.merge_states((m_a, l_a, np.abs(acc_a)), (m_b, l_b, np.abs(acc_b)))[2]
    return expected(("m", "l", "acc"), reference.merge_states, a, b, terms=(0.0, None, acc_terms))


def merged_in_turn(a, b, c):
    return merged(reference.merge_states(a, b), c)


def case(*states):
    """a, b and, of three states, c: each from (m, l, acc) as lists and numbers."""
    return {"abc"[i]: tuple(as_floats(m=m, l=l, acc=acc).values()) for i, (m, l, acc) in enumerate(states)}


def in_both_orders(*pairs):
    return [order for a, b in pairs for order in ((a, b), (b, a))]


@st.composite
def states(draw, rows=False, empty=False, spread=1.0):
    shape, d_v = (draw(st.integers(2, 3)),) if rows else (), draw(st.integers(1, 2))
    return {name: state(draw, spread * arrays(draw, *shape), d_v, empty and draw(st.booleans())) for name in "ab"}


E = -np.inf
EMPTY = E, 0, [0]
# No two axes of acc have the same length, so that none can stand in for another.
STACKED = (
    ([[0, 2, 1], [3, 0, 1]], [[1, 2, 1], [1, 1, 2]], np.arange(24).reshape(2, 3, 4)),
    ([[1, 1, 0], [0, 2, 1]], [[2, 1, 1], [1, 3, 1]], 7 - np.arange(24).reshape(2, 3, 4) % 5),
)
ROWS = ([0, 2], [1, 2], [[1, 4, 0], [1, 3, 2]]), ([1, 1], [2, 1], [[3, 2, 1], [1, 5, 0]])
IN_FLOAT32 = {name: tuple(x.astype(np.float32) for x in state) for name, state in case(*ROWS).items()}
check = Checks(merge_states, agrees(merged), case)

check(
    "a has the smaller max: its sums are carried over to the larger one, b's stay",
    [((0, 1.5, [1]), (1, 2, [3.5])), ((-3, 2, [1, 4]), (-1, 3, [2, -1]))],
)
check(
    "b has the smaller max: its sums are carried over to the larger one, a's stay",
    [((1, 2, [3]), (0, 1, [1])), ((-1, 3, [2, -1]), (-3, 2, [1, 4]))],
)
check("many queries at once, each with its own max", [ROWS, STACKED, states(rows=True)])
check(
    "the state of no keys, (-inf, 0, 0), changes nothing on either side",
    [
        *in_both_orders((EMPTY, (-2, 1, [1])), (([E, 0], [0, 1], [[0], [2]]), ([E, 1], [0, 2], [[0], [3]]))),
        *in_both_orders((EMPTY, EMPTY), (([E, 1], [0, 1], [[0], [2]]), ([0, 0], [1, 1], [[5], [7]]))),
        states(empty=True),
    ],
)
check(
    "maxima 20 or 1000 apart, and maxima near -1000",
    [*in_both_orders(((-1000, 1, [1]), (-1001, 1, [2])), ((20, 1, [1]), (0, 1e9, [2e9]))), states(spread=500.0)],
)
check("maxima near -1e30", in_both_orders(((-1e30, 1, [1]), (-2e30, 1, [2]))))
check(
    "merging is associative",
    [((0, 1, [1]), (2, 1, [2]), (1, 1, [3])), (EMPTY, (2, 1, [2]), EMPTY)],
    test=agrees(merged_in_turn),
    call="merge_states(a, merge_states(b, c))",
)
check("the inputs are not modified", [ROWS, IN_FLOAT32], calls=not_modified)
check("float32 in, float32 out", [IN_FLOAT32], test=keeps_dtype("m", "l", "acc"))
check(
    "float64 states keep their digits",
    in_both_orders(((0.1, 1.3, [0.7, -2.9]), (0.8, 2.1, [3.3, 0.4])), ((-3.7, 1.9, [1.1]), (2.3, 1.2, [0.9]))),
    test=keeps_float64(merged),
)

EXERCISE = Exercise(__file__, merge_states, check, points=3, minutes=6, difficulty="medium")
