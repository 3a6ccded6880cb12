"""P and dS of one tile: FlashAttention-2 (Dao, 2023), Alg. 2, lines 11 to 14."""

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from course_lib.reference.attention import causal_mask
from courseware.checks import Checks, Exercise, compare, expected, not_modified

from .gradients import ALIKE, COLUMN, FEWER_KEYS, FEWER_QUERIES, HIDDEN, SENTENCE, SQUARE, small_inputs


def p_and_ds(q, k, v, do, lse, delta, first_q, first_k, n_q, n_k, causal=False):
    """P and dS of one tile, from what is known of its rows: the part of the backward that every pass over tiles needs.

    q, do: [rows, d], of queries first_q, first_q + 1 and so on. k, v: [columns, d], of keys first_k and so on.
    lse (natural logarithm), delta: [rows], one number for each of these queries, over all the keys that it sees.
    All arrays are float64.
    n_q, n_k: how many queries and keys there are in all. causal: query i sees keys 0 to i + n_k - n_q; one that sees
        none has lse = -inf.
    Returns (P, dS), each [rows, columns]: the tile's part of the weights, 0 where a query does not see a key, and of
        the gradient with respect to the scaled scores. The scores' scale is 1/sqrt(d). Nothing is NaN, and
        nothing is modified.

    >>> q, k, v, do = np.array([[0.0]]), np.array([[1.0]]), np.array([[4.0]]), np.array([[1.0]])
    >>> P, dS = p_and_ds(q, k, v, do, lse=np.log([2.0]), delta=np.array([3.0]), first_q=0, first_k=1, n_q=1, n_k=2)
    >>> print(P.round(3), dS.round(3))
    [[0.5]] [[0.5]]
    """
    S = q @ k.T * q.shape[1] ** -0.5
    if causal:
        i, j = first_q + np.arange(len(q)), first_k + np.arange(len(k))
        S = np.where(j <= i[:, None] + n_k - n_q, S, -np.inf)
    P = np.exp(S - np.where(lse == -np.inf, 0.0, lse)[:, None])
    dP = do @ v.T
    return P, P * (dP - delta[:, None])


def part_of_the_whole(returned, q, k, v, do, rows, keys, causal, **_):
    def whole(q, k, v, do):
        S = reference.scores(q, k)
        S = np.where(causal_mask(*S.shape), S, -np.inf) if causal else S
        P = np.where(np.isneginf(S).all(axis=1, keepdims=True), S.dtype.type(0), reference.stable_softmax(S))
        return P[slice(*rows), slice(*keys)], reference.softmax_vjp(P, do @ v.T)[slice(*rows), slice(*keys)]

    # A score's own rounding, relative to its terms, is a relative error of its weight.
    conditioning = min(1 + (np.abs(q) @ np.abs(k).T).max(), 1e3)
    terms = conditioning, conditioning * (np.abs(do) @ np.abs(v).T).max()
    return compare(returned, expected(("P", "dS"), whole, q, k, v, do, terms=terms, index="row"))


def tile(inputs, rows, keys, causal=False):
    return inputs | {"rows": rows, "keys": keys, "causal": causal}


@st.composite
def any_tile(draw):
    inputs = draw(small_inputs(most=4))
    begins = [(draw(st.integers(0, len(inputs[name]) - 1)), len(inputs[name])) for name in ("q", "k")]
    rows, keys = ((begin, draw(st.integers(begin + 1, end))) for begin, end in begins)
    return tile(inputs, rows, keys, draw(st.booleans()))


def arguments(inputs):
    """All that p_and_ds is called with: causal, one tile that holds everything."""
    q, k, v, do = (inputs[name] for name in ("q", "k", "v", "do"))
    o, lse = reference.attention(q, k, v, causal=True, return_lse=True)
    given = {"q": q, "k": k, "v": v, "do": do, "lse": lse, "delta": (o * do).sum(axis=1)}
    return given | {"first_q": 0, "first_k": 0, "n_q": len(q), "n_k": len(k), "causal": True}


CALL = """\
from course_lib import reference
o, lse = reference.attention(q, k, v, causal=causal, return_lse=True)
i, j = slice(*rows), slice(*keys)
p_and_ds(q[i], k[j], v[j], do[i], lse[i], (o * do).sum(axis=1)[i], rows[0], keys[0], len(q), len(k), causal)"""
check = Checks(CALL, part_of_the_whole, tile)

check("all keys and values alike: P = exp(S - lse) is 1/2, dP is delta, and dS is 0", [(ALIKE, (0, 2), (0, 2))])
check("one column, whose scale is 1: dS = P * (dP - delta)", [(COLUMN, (0, 2), (0, 2))])
check("several columns: the scale is 1/sqrt(d)", [(SQUARE, (0, 2), (0, 2)), (SENTENCE, (0, 4), (0, 4))])
check(
    "some of the queries, some of the keys: P is a part of the whole row's softmax",
    [(SENTENCE, (0, 4), (1, 3)), (SENTENCE, (1, 4), (2, 4)), (SENTENCE, (2, 3), (0, 3))],
)
check("causal, a tile that holds everything", [(SENTENCE, (0, 4), (0, 4), True)])
check(
    "causal: queries and keys are counted from the start of the sequence",
    [
        (SENTENCE, (1, 4), (2, 4), True),
        (SENTENCE, (0, 4), (2, 4), True),  # no key for the first two queries, and not one less than none
    ],
)
check("causal, more keys than queries: the last query sees the last key", [(FEWER_QUERIES, (1, 3), (1, 4), True)])
check(
    "causal, more queries than keys: a query that sees no key has P = 0 and dS = 0, never NaN",
    [(FEWER_KEYS, (0, 3), (0, 2), True), (FEWER_KEYS, (1, 4), (1, 2), True), any_tile()],
)
check(
    "hidden scores far above or far below the visible ones stay hidden",
    [(inputs, (0, 2), (0, 2), True) for inputs in HIDDEN],
)
check("causal is off unless it is given", [(SENTENCE, (0, 2), (1, 4))], call=CALL.replace("len(k), causal)", "len(k))"))
check(
    "the inputs are not modified",
    [arguments(FEWER_KEYS)],
    call="p_and_ds(q, k, v, do, lse, delta, first_q, first_k, n_q, n_k, causal)",
    calls=not_modified,
)

EXERCISE = Exercise(__file__, p_and_ds, check, points=3, minutes=10, difficulty="medium")
