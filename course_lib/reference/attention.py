"""Standard attention: the whole matrix of scores, its softmax, the weighted sum of values."""

import numpy as np

from .dot import as_float_array, resolve_scale, scores, statistics_dtype
from .softmax import logsumexp, normalise_state, stable_softmax, weighted_sum


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


def standard_attention_on_machine(machine, Q, K, V, S, P, O, *, block_q, causal=False, scale=None):
    """`attention` in three passes on handles of `machine`, with S and P written to HBM whole. FA1 Alg. 0.

    Q, O: [n_q, d]; K, V: [n_k, d]; S, P: [n_q, n_k]; one float dtype. block_q: rows a tile, at least 1; the
    last tile may be shorter. Every element is read once and written once, as `traffic.standard_attention`
    has it. For that all of K has to lie in SRAM during the first pass, and all of V during the third, beside
    tiles of block_q rows: the SRAM needed grows with n_k. Products, maximum and sums are float32 (float64 for
    float64); S, P and O are rounded to their own dtype when they are stored, so that in float16 a score
    beyond 65504 is lost.
    Hidden scores are stored as -inf; a row with no visible key has P = 0 and O = 0. Unlike in `attention`,
    nan or inf in a value reaches every row, since P V multiplies it by 0 where it is hidden.
    Raises ValueError or TypeError for block_q or scale, machine.SRAMOverflow if the tiles do not fit.
    """
    if isinstance(block_q, bool) or not isinstance(block_q, int | np.integer):
        raise TypeError(f"block_q is {block_q!r}; accepted: a whole number of at least 1")
    if block_q < 1:
        raise ValueError(f"block_q is {block_q}; accepted: a whole number of at least 1")
    (n_q, d), n_k = Q.shape, len(K)
    scale = resolve_scale(scale, d)
    dtype = statistics_dtype(Q.dtype)
    tiles = [(start, min(start + block_q, n_q)) for start in range(0, n_q, block_q)]

    k = machine.load(K, (0, n_k))
    for rows in tiles:  # FA1 Alg. 0, line 1
        s = np.matmul(machine.load(Q, rows), k.T, dtype=dtype)  # [block_q, d] @ [d, n_k]
        s *= scale
        if causal:
            s[np.arange(n_k) > np.arange(*rows)[:, None] + (n_k - n_q)] = -np.inf
        machine.store(S, rows, s.astype(S.dtype, copy=False))
        del s  # or it would lie in SRAM beside the next tile
    del k

    for rows in tiles:  # line 2
        s = machine.load(S, rows).astype(dtype, copy=False)
        m = s.max(axis=1)
        p = np.exp(s - np.where(m == -np.inf, 0, m)[:, None])  # never -inf minus -inf
        machine.store(P, rows, normalise_state(p.sum(axis=1), p).astype(P.dtype, copy=False))
        del s, m, p

    v = machine.load(V, (0, n_k))
    for rows in tiles:  # line 3
        o = np.matmul(machine.load(P, rows), v, dtype=dtype)  # [block_q, n_k] @ [n_k, d]
        machine.store(O, rows, o.astype(O.dtype, copy=False))
        del o


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
