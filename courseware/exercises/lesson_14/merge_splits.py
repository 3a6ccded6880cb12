"""Merge the states of any number of splits at once, to the output and its log-sum-exp."""

import functools

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from course_lib.reference.softmax import log_sum_exp_of_state, normalise_state
from courseware.checks import Checks, Exercise, case_of, compare, expected, keeps_dtype, not_modified, show
from courseware.exercises.common.explanations import explain
from courseware.exercises.common.generators import COUNTS, arrays, in_float32
from courseware.exercises.common.precision import lost_digits


def merge_splits(m, l, acc):
    """Output and log-sum-exp of rows whose keys were split, from the states of all splits at once.

    m, l: [..., n_splits]; acc: [..., n_splits, d]. A split's m is its largest score, l its sum of exp(s - m) and acc
        its sum of exp(s - m) * value, as in lesson 05. A split without keys has m = -inf, l = 0, acc = 0, and there may
        be rows all of whose splits have none. [...] is any leading shape: none for one row, [rows] for many.
    Returns (o, lse), o: [..., d], lse: [...], in the inputs' dtype, float32 or float64, right up to its rounding:
        softmax(s) times the values, over the keys of all splits, and the natural logarithm of their sum of exp(s).
        Without any key they are 0 and -inf.
    The inputs are not modified. A loop over rows or splits is not needed.

    >>> m, l = np.array([1.0, 3.0]), np.array([2.0, 1.0])
    >>> o, lse = merge_splits(m, l, acc=np.array([[6.0, 2.0], [0.0, 4.0]]))
    >>> print(o.round(3), lse.round(3))
    [0.639 3.361] 3.24
    """
    m_all = m.max(axis=-1, keepdims=True)
    shift = np.where(m_all == -np.inf, 0.0, m_all)
    alpha = np.exp(m - shift)
    l_all = (alpha * l).sum(axis=-1)
    acc_all = (alpha[..., None] * acc).sum(axis=-2)
    l_safe = np.where(l_all == 0, 1.0, l_all)
    return acc_all / l_safe[..., None], m_all[..., 0] + np.log(l_safe)


def merged_in_turn(m, l, acc):
    """The whole state (m, l, acc), two states at a time."""
    states = ((m[..., s], l[..., s], acc[..., s, :]) for s in range(m.shape[-1]))
    return functools.reduce(reference.merge_states, states)


def o_and_lse(m, l, acc, **_):
    def merged(*splits):
        m, l, acc = merged_in_turn(*splits)
        return normalise_state(l, acc), log_sum_exp_of_state(m, l)

    largest, weight, terms = merged_in_turn(m, l, np.abs(acc))
    sizes = normalise_state(weight, terms), np.maximum(1, np.abs(np.where(np.isinf(largest), 0, largest)))
    return expected(("o", "lse"), merged, m, l, acc, terms=sizes)


def agrees_in_its_dtype(returned, m, l, acc, **_):
    """Within the error budget of float32, and of float64 where the inputs are: the outputs have their dtype."""
    parts = o_and_lse(m, l, acc)
    if (evidence := compare(returned, parts)) or m.dtype != np.float64:
        return evidence
    # A weight that is computed as exp(m - lse) is off by the rounding of m, as a part of itself.
    rounding = np.maximum(1, np.where(np.isinf(m), 0, np.abs(m)).max(axis=-1))
    return lost_digits(returned, parts, (parts[0].terms * rounding[..., None], rounding))


def sums(returned, m, l, acc, **_):
    """Of the first row that is wrong, what the outputs are made of: only what the answer does not have right."""
    m_all, l_all, acc_all = (np.atleast_1d(x) for x in merged_in_turn(m, l, acc))
    (o, lse), rows = (part.expected for part in o_and_lse(m, l, acc)), l_all.shape
    came = [np.asarray(x, np.float64).reshape(*rows, -1) for x in returned]
    right = [
        np.isclose(x, y.reshape(*rows, -1), 1e-12, 1e-12).all(axis=-1) for x, y in zip(came, (o, lse), strict=True)
    ]
    row = tuple(np.argwhere(~(right[0] & right[1]))[0].tolist())
    largest = m_all[row] if np.isfinite(m_all[row]) else 0.0
    factors = np.exp(m.reshape(*rows, -1)[row] - largest)
    where = f" in row {', '.join(map(str, row))}" * (m.ndim > 1)
    if right[0][row]:
        if m_all[row] == -np.inf:
            return ""
        return f"lse should be {show(m_all[row])} + log({show(l_all[row])}){where}"
    if l_all[row] == 0:
        return ""
    if right[1][row] or (factors == 1).all():
        return f"o should be {show(acc_all.reshape(*rows, -1)[row])} / {show(l_all[row])}{where}"
    return f"the factors of the splits, exp(m - max), should be {show(factors)}{where}"


case = case_of(merge_splits)


@st.composite
def splits(draw, rows=0, empty=False, spread=1.0):
    """rows: at most so many; 0 for one row without an axis. empty: splits may be without keys."""
    n_splits, d = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    shape = (draw(st.integers(1, rows)), n_splits) if rows else (n_splits,)
    m, l, acc = spread * arrays(draw, *shape), 1 + arrays(draw, *shape, of=COUNTS), arrays(draw, *shape, d)
    if empty:
        without = arrays(draw, *shape, of=st.booleans()) == 1
        m, l, acc = np.where(without, -np.inf, m), np.where(without, 0, l), np.where(without[..., None], 0, acc)
    return case(m, l, acc)


E = -np.inf
ROWS = case([[0, 2, 1], [3, -1, 2]], [[1, 2, 3], [2, 1, 4]], [[[1, 4], [1, 3], [2, 2]], [[5, 1], [3, 2], [-1, 6]]])
SOME_EMPTY = case([[E, -2, -1], [1, E, E]], [[0, 2, 1], [4, 0, 0]], [[[0], [6], [5]], [[3], [0], [0]]])
NO_KEYS = case([[E, E], [1, E]], [[0, 0], [2, 0]], [[[0], [0]], [[5], [0]]])
check = Checks(merge_splits, explain(agrees_in_its_dtype, sums), case)

check("one split: o is acc / l, and lse is m + log(l)", [case([2], [4], [[6, -2]]), case([-1], [3], [[5, 1, -4]])])
check("splits with the same max: their sums add up", [case([-1] * 3, [1, 4, 2], [[1, 5], [2, 2], [7, 3]])])
check("splits with different maxima", [case([1, 3], [2, 1], [[6, 2], [0, 4]]), splits()])
check("several rows, each with its own max", [ROWS, case(**{n: x[None] for n, x in ROWS.items()}), splits(rows=2)])
check(
    "splits without keys change nothing",
    [SOME_EMPTY, case([[E, -4e6], [2, E]], [[0, 3], [1, 0]], [[[0], [6]], [[4], [0]]])],
)
check("a row without any key: o is 0, lse is -inf", [NO_KEYS, splits(rows=2, empty=True)])
check(
    "maxima 1000 apart, from split to split and from row to row",
    [case([1000, 0], [1, 2], [[3], [5]]), ROWS | {"m": ROWS["m"] * [[1000], [-1000]]}, splits(rows=2, spread=500.0)],
)
check("float32 in, float32 out", [in_float32(ROWS), in_float32(NO_KEYS)], test=keeps_dtype("o", "lse"))
check("the inputs are not modified", [ROWS, SOME_EMPTY, in_float32(ROWS), NO_KEYS], calls=not_modified)

EXERCISE = Exercise(__file__, merge_splits, check, points=3, minutes=10, difficulty="medium")
