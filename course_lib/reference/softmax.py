"""Softmax: naive, stable, and online, over a stream of blocks.

The online form is Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), Alg. 3, with
the weighted sum of values carried along as in FlashAttention-2 (Dao, 2023), Alg. 1, lines 9 and 10.

A score of -inf means "not visible". A row in which nothing is visible has softmax 0, and log-sum-exp -inf.
-inf minus -inf is never evaluated.
"""

import numpy as np

from .dot import as_float_array, statistics_dtype


def naive_softmax(x, axis=-1):
    """exp(x) / sum(exp(x)) as written, every step in x's own dtype, so that it overflows where that does.

    x: float16, float32 or float64, any shape. Returns x's shape and dtype; inf / inf = nan once exp overflows
    (x over 11.09 in float16, 88.72 in float32, 709.78 in float64). Raises TypeError for another dtype.
    """
    x = as_float_array(x, "x")
    exp_x = np.exp(x)
    return exp_x / exp_x.sum(axis=axis, keepdims=True, dtype=x.dtype)


def stable_softmax(x, axis=-1):
    """Softmax with the maximum subtracted first, so that exp never sees a positive number.

    x: float16, float32 or float64, any shape. Returns x's shape and dtype, computed in float32 (float64 for
    float64). Entries of -inf get 0, and a slice that is -inf throughout is 0 throughout. Raises TypeError for
    another dtype.
    """
    x = as_float_array(x, "x")
    s = x.astype(statistics_dtype(x.dtype), copy=False)
    m = s.max(axis=axis, keepdims=True, initial=-np.inf)
    p = np.exp(s - _finite_shift(m))
    l = p.sum(axis=axis, keepdims=True)
    return (p / _safe_divisor(l)).astype(x.dtype, copy=False)


def logsumexp(x, axis=-1):
    """log(sum(exp(x))) along `axis`, natural logarithm, computed as m + log(sum(exp(x - m))).

    x: float16, float32 or float64, any shape. Returns x's shape without `axis`, in the statistics dtype
    (float32, or float64 for float64); -inf where every entry is -inf. Raises TypeError for another dtype.
    """
    x = as_float_array(x, "x")
    s = x.astype(statistics_dtype(x.dtype), copy=False)
    m = s.max(axis=axis, keepdims=True, initial=-np.inf)
    l = np.exp(s - _finite_shift(m)).sum(axis=axis, keepdims=True)
    return log_sum_exp_of_state(m, l).squeeze(axis)


def online_softmax_update(m, l, acc, scores, values):
    """Take one more block of scores and values into the running state of a softmax-weighted sum.

    With s over all scores seen so far and v their values, the state is
        m = max(s),  l = sum(exp(s - m)),  acc = sum(exp(s - m) * v)     (out = acc / l, lse = m + log(l))
    and the update keeps that true: FA2 Alg. 1, lines 9 (m, P, l) and 10 (acc). acc is not normalised.

    m, l: [...]; acc: [..., d]; scores: [..., block]; values: [block, d]. Start from (-inf, 0, 0). Scores up
    to float32 make a float32 state, float64 a float64 one. A score of -inf is a pair that is not visible: its
    value adds nothing, not even when it is nan. Returns the new (m, l, acc); no argument is modified.
    """
    S = scores.astype(statistics_dtype(scores.dtype), copy=False)
    m_new = np.maximum(m, S.max(axis=-1, initial=-np.inf))
    shift = _finite_shift(m_new)
    alpha = np.exp(m - shift)  # [...]: what the old terms shrink by now that the maximum has moved
    P = np.exp(S - shift[..., None])  # [..., block]
    l_new = alpha * l + P.sum(axis=-1)
    acc_new = alpha[..., None] * acc + weighted_sum(P, values, S)  # [..., block] @ [block, d]
    return m_new, l_new, acc_new


def merge_states(a, b):
    """The state (m, l, acc) of the union of two disjoint parts, from the states of the parts.

    a, b: (m, l, acc) with m, l: [...] and acc: [..., d], as in `online_softmax_update`. Associative and
    commutative up to rounding; the identity is (-inf, 0, 0). No argument is modified.
    Milakov and Gimelshein (2018), section 3.1.
    """
    (m_a, l_a, acc_a), (m_b, l_b, acc_b) = a, b
    m = np.maximum(m_a, m_b)
    shift = _finite_shift(m)
    alpha_a, alpha_b = np.exp(m_a - shift), np.exp(m_b - shift)
    l = alpha_a * l_a + alpha_b * l_b
    acc = alpha_a[..., None] * acc_a + alpha_b[..., None] * acc_b
    return m, l, acc


def log_sum_exp_of_state(m, l):
    """m + log(l) for m, l: [...]; -inf, with no warning, where nothing was visible (m = -inf, l = 0)."""
    return m + np.log(_safe_divisor(l))


def normalise_state(l, acc):
    """acc / l for l: [...], acc: [..., d]; 0 where nothing was visible (l = 0)."""
    return acc / _safe_divisor(l)[..., None]


def weighted_sum(P, V, S):
    """P @ V in which a pair with score -inf adds nothing, whatever its value holds.

    P: [..., block] weights, V: [block, d] values, S: [..., block] the scores the weights came from.
    A plain product would let a nan in V reach every row, since 0 * nan is nan.
    """
    with np.errstate(invalid="ignore"):  # a product with a hidden pair's value concerns no one
        out = P @ V
        if np.isfinite(out).all():
            return out
        finite = np.isfinite(V).all(axis=-1)
        out = P @ np.where(finite[:, None], V, 0)
        for j in range(V.shape[0]):
            if not finite[j]:
                out = out + np.where(S[..., j, None] == -np.inf, 0, P[..., j, None] * V[j])
        return out


def _finite_shift(m):
    """m, with 0 in place of -inf: subtracting it from a row of -inf leaves -inf, where m would make nan."""
    return np.where(m == -np.inf, 0, m)


def _safe_divisor(l):
    """l, with 1 in place of 0: where nothing is visible, acc / l is 0 / 1 and m + log(l) is -inf + 0."""
    return np.where(l == 0, 1, l)
