"""The online-softmax update on a block of scores and values: FlashAttention-2 (Dao, 2023), Alg. 1, lines 9 and 10."""

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from courseware.checks import Checks, Exercise, agrees, expected, keeps_dtype, not_modified

from ..common.generators import LARGE_SCORES, MASKED_SCORES, NUMBERS, arrays, as_floats, in_float32, state
from ..common.precision import keeps_float64


def online_softmax_update(m, l, acc, scores, values):
    """State of a softmax-weighted sum after one more block of scores and values.

    m: [...], the largest score so far. l: [...], the sum of exp(s - m) so far. acc: [..., d_v], the sum of
        exp(s - m) * value so far, not divided by l. Before the first block they are -inf, 0 and 0.
    scores: [..., block], at least one key; a score may be -inf (a masked key). values: [block, d_v], one row a key,
        all finite. [...] is any leading shape: none for one query, [rows] for many. All are float32, or all float64.
    Returns (m, l, acc) with the same shapes and dtype, the block included. The inputs are not modified. While
        every score is -inf, the state that comes back is (-inf, 0, 0).

    >>> m, l, acc = np.float64(2.0), np.float64(1.3679), np.array([0.7358, 2.0])    # after scores 1 and 2
    >>> scores, values = np.array([3.0, 4.0]), np.array([[1.0, 1.0], [3.0, -1.0]])
    >>> m, l, acc = online_softmax_update(m, l, acc, scores, values)
    >>> print(f"{m:.3f} {l:.3f}", acc.round(3))
    4.000 1.553 [ 3.467 -0.361]
    """
    m_new = np.maximum(m, scores.max(axis=-1))
    shift = np.where(m_new == -np.inf, 0.0, m_new)  # finite, so that -inf - shift is -inf and never NaN
    alpha = np.exp(m - shift)
    p = np.exp(scores - shift[..., None])
    return m_new, alpha * l + p.sum(axis=-1), alpha[..., None] * acc + p @ values


def updated(m, l, acc, scores, values):
    """The state with the block, as outputs to compare with."""
    update = reference.online_softmax_update
    acc_terms = update(m, l, np.abs(acc), scores, np.abs(values))[2]
    return expected(("m", "l", "acc"), update, m, l, acc, scores, values, terms=(0.0, None, acc_terms))


@st.composite
def updates(draw, rows=False, empty=False, of=NUMBERS):
    shape = (draw(st.integers(2, 3)),) if rows else ()
    block, d_v = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    return *state(draw, arrays(draw, *shape), d_v, empty), arrays(draw, *shape, block, of=of), arrays(draw, block, d_v)


def case(m, l, acc, scores, values):
    return as_floats(m=m, l=l, acc=acc, scores=scores, values=values)


E = -np.inf
TWO = [[1], [2]]  # values of two keys
# No two of rows, keys and columns are as many: an axis that is forgotten cannot fit by chance.
ROWS = [0, 2], [1, 3], [[1, 2, 0, 1], [1, 4, 2, 3]], [[1, 0, 2], [0, 1, -1]], [[1, 3, 0, 2], [2, -1, 1, 0], [4] * 4]
check = Checks(online_softmax_update, agrees(updated), case)

check("the first block, from the state (-inf, 0, 0)", [(E, 0, [0], [-1, -2], TWO), updates(empty=True)])
check(
    "a block below the running max: m stays, and the block's terms are added to l and acc",
    [(2, 1, [1], [1], [[1]]), (0, 2, [1, 4], [-1, -2], [[1, 2], [3, -1]])],
)
check(
    "a block above the running max: m rises, and all of l and acc is measured from it",
    [(1, 1, [1], [2], [[1]]), (-3, 2, [3, 5], [-2, -1], [[1, 2], [2, -1]])],
)
check(
    "many queries at once, each with its own max",
    [ROWS, ([[0, 1]], [[1, 1]], [[[1], [1]]], [[[1, 0], [0, 2]]], TWO), updates(rows=True)],
)
check(
    "a masked key changes nothing, even where every key of the block is masked",
    [
        (1, 1, [1], [E], [[1]]),
        ([1, 0], [1, 1], [[0], [1]], [[E], [2]], [[1]]),
        ([E, 0], [0, 1], [[0], [1]], [[E], [E]], [[1]]),
        updates(of=MASKED_SCORES, empty=True),
    ],
)
check("scores near 1000 and near -1000", [(1000, 1, [1], [999, 1001], TWO), updates(of=LARGE_SCORES)])
check("scores far below -1000", [(E, 0, [0], [-2e37, -1e37], TWO), (E, 0, [0], [-1e5, E], TWO)])
check(
    "two blocks, one after the other, give the state of both at once",
    [(E, 0, [0], [1, 2, 3, 4], [[1], [2], [3], [4]]), ROWS],
    call="""\
online_softmax_update(
    *online_softmax_update(m, l, acc, scores[..., :1], values[:1]), scores[..., 1:], values[1:]
)""",
)
check("the inputs are not modified", [ROWS, in_float32(case(*ROWS))], calls=not_modified)
check("float32 in, float32 out", [in_float32(case(*ROWS))], test=keeps_dtype("m", "l", "acc"))
check(
    "float64 inputs keep their digits",
    [(0.9, 1.3, [0.7, -2.9], [0.1, 1.7], [[3.3, 0.4], [-0.6, 1.1]]), (E, 0, [0], [0.1, 0.6], [[1.3], [0.7]])],
    test=keeps_float64(updated),
)

EXERCISE = Exercise(__file__, online_softmax_update, check, points=4, minutes=12, difficulty="medium")
