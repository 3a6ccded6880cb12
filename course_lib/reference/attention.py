"""Standard attention: the whole matrix of scores, its softmax, the weighted sum of values."""

import numpy as np

from course_lib import masks

from .dot import as_float_array, resolve_scale, scores, statistics_dtype
from .softmax import logsumexp, normalise_state, stable_softmax, weighted_sum


def attention(q, k, v, *, causal=False, scale=None, return_lse=False):
    """O = softmax(Q K^T * scale) V for one head.

    q: [n_q, d]; k, v: [n_k, d]; float16, float32 or float64, one dtype. scale: finite; None means 1/sqrt(d).
    causal: hide keys from queries as `masks.causal` does; the last query sees every key.
    Returns o: [n_q, d] in q's dtype, and with return_lse also lse: [n_q], natural logarithm, float32 (float64
    for float64). Scores and sums are kept in float32 (float64). A row with no visible key has o = 0 and
    lse = -inf.
    nan or inf in an input spreads to the rows that see it, and to no others. Nothing is modified.
    Raises TypeError or ValueError, naming the argument, for inputs of another dtype, shape or length 0.
    FA2 section 2.2 ("standard attention implementation").
    """
    Q, K, V, scale = checked_inputs(q, k, v, scale)
    with np.errstate(invalid="ignore"):  # inf - inf may occur in scores that the mask hides
        S = scores(Q, K, scale)  # [n_q, d] @ [d, n_k]
    if causal:
        S = np.where(causal_mask(*S.shape), S, -np.inf)
    P = stable_softmax(S)
    O = weighted_sum(P, V, S).astype(Q.dtype, copy=False)  # [n_q, n_k] @ [n_k, d]
    return (O, logsumexp(S)) if return_lse else O


def causal_mask(n_q, n_k):
    """[n_q, n_k] of bool: whether query i sees key j under `masks.causal`."""
    return masks.causal().dense(n_q, n_k)


def standard_attention_on_machine(machine, Q, K, V, S, P, O, *, block_q, causal=False, scale=None):
    """`attention` in three passes on handles of `machine`, with the whole of S and P written to HBM. FA1 Alg. 0.

    Q, O: [n_q, d]; K, V: [n_k, d]; S, P: [n_q, n_k]; one float dtype. block_q: rows of a tile, at least 1; the last
    tile may be shorter. Every element is read once and written once, as in `traffic.standard_attention`. This takes an
    SRAM that grows with n_k: it holds all of K during the first pass and all of V during the third, beside tiles of
    block_q rows. Products, maximum and sums are float32 (float64 for float64). S, P and O are rounded to their own
    dtype when they are stored; in float16, a score beyond 65504 becomes inf.
    Hidden scores are stored as -inf; a row with no visible key has P = 0 and O = 0. Unlike in `attention`,
    nan or inf in a value reaches every row, since P V multiplies it by 0 where it is hidden.
    Raises ValueError or TypeError for block_q or scale, machine.SRAMOverflow if the tiles do not fit.
    """
    (n_q, d), n_k = Q.shape, len(K)
    mask = masks.causal() if causal else masks.full()
    tiles = mask.tiles(n_q, n_k, block_q, n_k)  # one key tile, which holds all keys
    scale = resolve_scale(scale, d)
    dtype = statistics_dtype(Q.dtype)

    k = machine.load(K, (0, n_k))
    for i, rows in enumerate(tiles.query_rows):  # FA1 Alg. 0, line 1
        s = np.matmul(machine.load(Q, rows), k.T, dtype=dtype)  # [block_q, d] @ [d, n_k]
        s *= scale
        if causal:
            s[~tiles.visible(i, 0)] = -np.inf
        machine.store(S, rows, s.astype(S.dtype, copy=False))
        del s  # otherwise it would still take SRAM beside the next tile
    del k

    for rows in tiles.query_rows:  # line 2
        s = machine.load(S, rows).astype(dtype, copy=False)
        m = s.max(axis=1)
        p = np.exp(s - np.where(m == -np.inf, 0, m)[:, None])  # -inf minus -inf would be nan
        machine.store(P, rows, normalise_state(p.sum(axis=1), p).astype(P.dtype, copy=False))
        del s, m, p

    v = machine.load(V, (0, n_k))
    for rows in tiles.query_rows:  # line 3
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
