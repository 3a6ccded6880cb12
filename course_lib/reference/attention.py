"""Standard attention: the whole matrix of scores, its softmax, the weighted sum of values."""

import numpy as np

from .dot import as_float_array, resolve_scale, scores
from .softmax import logsumexp, stable_softmax, weighted_sum


def attention(q, k, v, *, causal=False, scale=None, return_lse=False):
    """O = softmax(Q K^T * scale) V for one head.

    q: [n_q, d]; k, v: [n_k, d]; float16, float32 or float64, one dtype. scale: finite; None means 1/sqrt(d).
    causal: query i sees key j when j <= i + n_k - n_q (aligned bottom-right: the last query sees every key).
    Returns o: [n_q, d] in q's dtype, and with return_lse also lse: [n_q], natural logarithm, float32 (float64
    for float64). Scores and sums are kept in float32 (float64). A row with no visible key has o = 0 and
    lse = -inf.
    nan or inf in an input spreads to the rows that see it, and to no other. Nothing is modified.
    Raises TypeError or ValueError, naming the argument, for inputs of another dtype, shape or length 0.
    FA2 section 2.2 ("standard attention implementation").
    """
    Q, K, V, scale = checked_inputs(q, k, v, scale)
    with np.errstate(invalid="ignore"):  # inf - inf in a score that the mask then hides is no one's concern
        S = scores(Q, K, scale)  # [n_q, d] @ [d, n_k]
    if causal:
        S = np.where(causal_mask(*S.shape), S, -np.inf)
    P = stable_softmax(S)
    O = weighted_sum(P, V, S).astype(Q.dtype, copy=False)  # [n_q, n_k] @ [n_k, d]
    return (O, logsumexp(S)) if return_lse else O


def causal_mask(n_q, n_k):
    """[n_q, n_k] of bool: True where query i sees key j, j <= i + n_k - n_q (aligned bottom-right)."""
    return np.arange(n_k) <= np.arange(n_q)[:, None] + (n_k - n_q)


def checked_inputs(q, k, v, scale):
    """q, k, v as arrays, scale as a float; TypeError or ValueError naming what is not accepted."""
    arrays = {name: as_float_array(x, name) for name, x in (("q", q), ("k", k), ("v", v))}
    for name, x in arrays.items():
        if x.ndim != 2:
            raise ValueError(f"{name} has shape {x.shape}; accepted: two dimensions, [seq, head_dim]")
        if 0 in x.shape:
            raise ValueError(f"{name} has shape {x.shape}; accepted: lengths and head_dim of at least 1")
    q, k, v = arrays.values()
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise TypeError(f"{name} has dtype {x.dtype} and q {q.dtype}; accepted: one dtype for q, k and v")
        if x.shape[1] != q.shape[1]:
            raise ValueError(f"{name} has head_dim {x.shape[1]}; accepted: {q.shape[1]}, the head_dim of q")
    if v.shape[0] != k.shape[0]:
        raise ValueError(f"v has length {v.shape[0]}; accepted: {k.shape[0]}, the length of k")
    return q, k, v, resolve_scale(scale, q.shape[1])
