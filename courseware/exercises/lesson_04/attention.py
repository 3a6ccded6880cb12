"""Attention of one head, causal or not, for any two lengths."""

import functools

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from course_lib.reference import example
from courseware.checks import Checks, Exercise, agrees, expected, not_modified
from courseware.exercises.common.generators import drawn_case, in_both_dtypes


def attention(Q, K, V, causal=False):
    """Attention of one head: the softmax of the scaled scores, times the values.

    Q: [n_q, d], K: [n_k, d], V: [n_k, d], all float32 or all float64, finite. The scale is 1 / sqrt(d).
    causal: if True, query i sees key j only where j <= i + n_k - n_q, so that the last query sees every key,
        whatever the two lengths.
    Returns [n_q, d] in float32 or float64, whichever you compute in: float32 is exact enough, also for float64.
        The row of a query that sees no key is 0. No exponential may overflow, and the inputs are not modified.

    >>> Q = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 2.0]])
    >>> K = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> V = np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0], [3.0, -1.0]])
    >>> print(attention(Q, K, V, causal=True)[[0, -1]].round(4))
    [[ 2.      0.    ]
     [ 2.0112 -0.0112]]
    """
    n_q, n_k, d = len(Q), len(K), Q.shape[1]
    S = Q @ K.T / np.sqrt(d)  # [n_q, d] @ [d, n_k]
    if causal:
        visible = np.arange(n_k) <= np.arange(n_q)[:, None] + n_k - n_q
        S = np.where(visible, S, -np.inf)
    m = S.max(axis=1, keepdims=True)
    P = np.exp(S - np.where(m == -np.inf, 0, m))  # never -inf - -inf
    l = P.sum(axis=1, keepdims=True)
    return P / np.where(l == 0, 1, l) @ V  # [n_q, n_k] @ [n_k, d]


def output(Q, K, V, causal):
    def of(Q, K, V):
        return reference.attention(Q, K, V, causal=causal)

    return expected("the output", of, Q, K, V, terms=of(Q, K, abs(V)))


SHAPES = {"Q": "n_q d", "K": "n_k d", "V": "n_k d"}
inputs = functools.partial(drawn_case, {"n_q": 3, "n_k": 3, "d": 3}, **SHAPES, causal=st.just(False))
Q, K, V = example.Q, example.K, example.V
# 2 queries, 4 keys and d = 3: no two of the sizes can be taken for one another.
OWN_SIZES = [[1, 2, 0], [0, 1, -1]], [[1, 0, 1], [0, 1, 1], [1, 1, 0], [2, 1, 0]], np.eye(4, 3) + [[0, 0, 2]]
check = Checks(attention, agrees(output))

check(
    "each output is the values' average, weighted by the softmax of its query's scaled scores",
    [OWN_SIZES, (Q, K, V), ([[1, 2, 0, 1, 1]], [[1, 0, 2, 0, 1], [1, 1, 0, 0, 0]], np.eye(2, 5)), inputs()],
)
check(
    "causal: query i sees the keys 0 to i, its own among them",
    [([[1, 0], [0, 1], [1, 2]], [[1, 0], [0, 1], [1, 1]], [[2, 0], [0, 2], [3, -1]], True)],
)
check("causal with fewer queries than keys: the last query sees every key", [(*OWN_SIZES, True), (Q[:3], K, V, True)])
check(
    "scores near 1000 and near -1000",
    [
        # Rows 1000 apart; a large score that is hidden.
        ([[32], [-32]], [[32], [30]], [[1], [2]]),
        ([[1000], [1]], [[0], [1]], [[3], [5]], True),
        ([[1]], [[0], [0], [2000]], [[1], [2], [4]]),
        inputs(of=st.sampled_from([32.0, 30.0, -32.0, 0.0])),
    ],
)
check(
    "no visible score is so low that a hidden one counts beside it",
    [([[-200], [1]], [[100], [-1]], [[3], [5]], True), ([[-1e15], [1]], [[1e15], [-1]], [[3], [5]], True)],
)
check(
    "causal with more queries than keys: a query that sees no key gives 0",
    [(Q, K[:2], V[:2], True), ([[1000], [1000], [1000]], [[1], [2]], [[3], [5]], True), inputs(causal=st.just(True))],
)
check("without `causal`, every query sees every key", [([[1, 2]], K, V), (Q, K, V)], call="attention(Q, K, V)")
check("the inputs are not modified", in_both_dtypes(check.case(Q, K, V, True)), calls=not_modified)

EXERCISE = Exercise(__file__, attention, check, points=3, minutes=12, difficulty="medium")
