"""Several heads: attention on d columns each, side by side, mixed by Wo."""

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from courseware.checks import Checks, Exercise, agrees, expected, not_modified
from courseware.exercises.common.generators import in_both_dtypes


def multi_head_attention(X, Wq, Wk, Wv, Wo, n_heads, causal=False):
    """Multi-head attention of a sequence with itself.

    X: [n, d_model]. Wq, Wk, Wv, Wo: [d_model, d_model]. All float32 or all float64. n_heads divides d_model, and d =
        d_model / n_heads.
    The queries of all heads are X @ Wq: head h has the d columns from h * d up to, but not including, (h + 1) * d.
        Keys and values likewise, with Wk and Wv. Each head attends by itself, with scale 1 / sqrt(d), causal or
        not. The heads' outputs [n, d], side by side in the same order, make [n, d_model], and that times Wo is
        the result.
    Returns [n, d_model] in float32 or float64, whichever you compute in: float32 is exact enough, also for
        float64. The inputs are not modified.

    >>> X = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> I = np.eye(2)
    >>> print(multi_head_attention(X, I, I, I, 2 * I, n_heads=2).round(4))
    [[1.4621 1.    ]
     [1.     1.4621]]
    """
    n, d_model = X.shape
    d = d_model // n_heads
    # [n, d_model] -> [n_heads, n, d]: cut each row into heads, then bring the heads to the front.
    Q, K, V = ((X @ W).reshape(n, n_heads, d).transpose(1, 0, 2) for W in (Wq, Wk, Wv))
    S = Q @ K.transpose(0, 2, 1) / np.sqrt(d)  # [n_heads, n, d] @ [n_heads, d, n]
    if causal:
        S = np.where(np.tri(n, dtype=bool), S, -np.inf)
    P = np.exp(S - S.max(axis=-1, keepdims=True))
    O = P / P.sum(axis=-1, keepdims=True) @ V  # [n_heads, n, n] @ [n_heads, n, d]
    return O.transpose(1, 0, 2).reshape(n, d_model) @ Wo


def output(X, Wq, Wk, Wv, Wo, n_heads, causal):
    """One head after the other, with the reference."""

    def attend(Q, K, V, Wo):
        heads = zip(*(np.split(x, n_heads, axis=1) for x in (Q, K, V)), strict=True)
        outputs = [reference.attention(*map(np.ascontiguousarray, head), causal=causal) for head in heads]
        return np.concatenate(outputs, axis=1) @ Wo

    def of(X, Wq, Wk, Wv, Wo):
        return attend(X @ Wq, X @ Wk, X @ Wv, Wo)

    terms = attend(X @ Wq, X @ Wk, abs(X) @ abs(Wv), abs(Wo))
    return expected("the output", of, X, Wq, Wk, Wv, Wo, terms=terms)


def seeded(seed, n, d_model, n_heads, causal=False, size=1.0):
    rng = np.random.default_rng(seed)
    return *(size * rng.integers(-2, 3, (rows, d_model)) / 2 for rows in (n, *[d_model] * 4)), n_heads, causal


# By a seed: so many numbers, drawn one by one, would take seconds.
DRAWN = st.builds(
    lambda seed, d, causal: seeded(seed, 3, 2 * d, 2, causal), st.integers(0, 99), st.integers(1, 2), st.booleans()
)
check = Checks(multi_head_attention, agrees(output))

check("one head: attention of X Wq, X Wk, X Wv, times Wo", [seeded(1, 2, 3, 1), seeded(6, 3, 2, 1)])
check("two heads: each attends with its own d columns", [seeded(2, 3, 4, 2), seeded(5, 4, 6, 3)])
check("causal: every head hides what comes later", [seeded(3, 4, 4, 2, causal=True), DRAWN])
# One head has scores near 1000, and the other near 0; then rows far apart, and rows far below 0.
I, FAR = np.eye(2), [[32, 1], [30, -1], [-31, 0]]
check(
    "scores near 1000 and near -1000, in one head or row and not in another",
    [
        (FAR, I, I, I, I, 2, True),
        ([[0], [32], [64]], [[1]], [[1]], [[1]], [[1]], 1),
        ([[32], [30]], [[1]], [[-1]], [[1]], [[1]], 1),
    ],
)
check(
    "no visible score is so low that a hidden one counts beside it",
    [([[32], [30]], [[20]], [[-1]], [[1]], [[1]], 1, True), ([[1e8], [1]], [[1]], [[-1]], [[1]], [[1]], 1, True)],
)
check(
    "without `causal`, every query sees every key",
    [seeded(3, 4, 4, 2)],
    call="multi_head_attention(X, Wq, Wk, Wv, Wo, n_heads)",
)
check("the inputs are not modified", in_both_dtypes(check.case(*seeded(4, 3, 4, 2))), calls=not_modified)

EXERCISE = Exercise(__file__, multi_head_attention, check, points=3, minutes=14, difficulty="hard")
