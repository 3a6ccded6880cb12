"""The backward pass: the gradients of Q, K and V from dO, the gradient of the output. Whole, and in tiles.

With S = scale Q K^T, P = softmax(S), O = P V, and a loss whose gradient with respect to O is dO:

    dV = P^T dO,    dP = dO V^T,    dS = P * (dP - delta),    dQ = scale dS K,    dK = scale dS^T Q

where delta_i = sum_j P_ij dP_ij, a sum over all keys. It equals dO_i . O_i, which can be computed without P.

FA2: Dao, "FlashAttention-2" (2023), section 2.3.2 and Alg. 2.
"""

import numpy as np

from course_lib import masks
from course_lib.machine import Machine

from .attention import causal_mask, checked_inputs
from .dot import as_float_array, resolve_scale, scores, statistics_dtype
from .tiled import scores_tile


def softmax_vjp(P, dP):
    """dS = P * (dP - rowsum(P * dP)): the gradient through a row-wise softmax, from its result alone.

    P: [..., n], rows of a softmax (or 0 throughout: a row with nothing visible); dP: [..., n], the gradient with
    respect to P. Returns dS: [..., n], the gradient with respect to what the softmax was taken of. The matrix of
    derivatives of a row is diag(p) - p p^T; it is never formed.
    """
    return P * (dP - (P * dP).sum(axis=-1, keepdims=True))


def delta(o, do):
    """delta_i = sum_d o_id do_id, which equals sum_j P_ij dP_ij: FA2 Alg. 2, line 4.

    o, do: [n_q, d], one dtype. Returns [n_q] in the statistics dtype (float32, or float64 for float64). The sum has d
    terms, where the definition has n_k.
    """
    dtype = statistics_dtype(o.dtype)
    return (o.astype(dtype, copy=False) * do.astype(dtype, copy=False)).sum(axis=-1)


def attention_backward(q, k, v, o, lse, do, *, causal=False, scale=None):
    """The gradients (dq, dk, dv) of one head, with the matrices of size n_q n_k written out.

    q, o, do: [n_q, d]; k, v: [n_k, d]; one float dtype; lse: [n_q], natural logarithm, in the statistics dtype.
    o and lse are what `attention(..., return_lse=True)` returned for q, k, v, causal and scale. P is recomputed
    as exp(S - lse), without another maximum or sum. Returns q's dtype; sums are kept in float32 (float64 for float64).
    A row with no visible key has lse = -inf; its gradients are 0, and it adds nothing to others. Inputs must be
    finite: unlike in `attention`, a nan may spread to rows that do not see it. Nothing is modified.
    Raises TypeError or ValueError, naming the argument. FA2 section 2.3.2.
    """
    Q, K, V, scale = checked_inputs(q, k, v, scale)
    O, dO, lse = _checked_results(Q, o, lse, do)
    S = scores(Q, K, scale)  # [n_q, d] @ [d, n_k]
    if causal:
        S = np.where(causal_mask(*S.shape), S, -np.inf)
    P = _probabilities(S, lse)
    dtype = P.dtype
    dV = np.matmul(P.T, dO, dtype=dtype)  # [n_k, n_q] @ [n_q, d]
    dP = np.matmul(dO, V.T, dtype=dtype)  # [n_q, d] @ [d, n_k]
    dS = P * (dP - delta(O, dO)[:, None])  # softmax_vjp(P, dP), with delta from O
    dQ = np.matmul(dS, K, dtype=dtype) * scale  # [n_q, n_k] @ [n_k, d]
    dK = np.matmul(dS.T, Q, dtype=dtype) * scale  # [n_k, n_q] @ [n_q, d]
    return tuple(x.astype(Q.dtype, copy=False) for x in (dQ, dK, dV))


def tiled_backward(q, k, v, o, lse, do, *, block_q, block_k, causal=False, scale=None):
    """`attention_backward`, computed in tiles of block_q queries by block_k keys, with no array of size n_q n_k.

    Arguments, results and errors are those of `attention_backward`. block_q, block_k: at least 1.
    """
    q, k, v, scale = checked_inputs(q, k, v, scale)
    o, do, lse = _checked_results(q, o, lse, do)
    machine = Machine()
    given = {"Q": q, "K": k, "V": v, "O": o, "lse": lse, "dO": do}
    made = {"dQ": np.empty_like(q), "dK": np.empty_like(k), "dV": np.empty_like(v), "delta": np.empty_like(lse)}
    handles = {name: machine.hbm(array, name) for name, array in (given | made).items()}
    tiled_backward_on_machine(machine, **handles, block_q=block_q, block_k=block_k, causal=causal, scale=scale)
    return made["dQ"], made["dK"], made["dV"]


def tiled_backward_on_machine(
    machine, Q, K, V, O, lse, dO, dQ, dK, dV, delta, *, block_q, block_k, dq_blocks=None, causal=False, scale=None
):
    """`tiled_backward` on handles of `machine`: FA2 Alg. 2 in three passes, each output row written once.

        delta   rowsum(dO * O), block_q rows at a time
        dK, dV  keys outermost: a key tile stays in SRAM while the query tiles that see it pass by
        dQ      queries outermost: a query tile stays in SRAM while the key tiles that it sees pass by

    Alg. 2 has a single pass for dK, dV and dQ, which reads and rewrites dQ in HBM for every key tile. Here both passes
    compute S and dP, so that there are 7 matrix products instead of 5, but dQ is written only once.
    Q, O, dO, dQ: [n_q, d]; K, V, dK, dV: [n_k, d], one float dtype; lse, delta: [n_q], float32, or float64 for
    float64. dq_blocks: (block_q, block_k) of the dQ pass if they differ. Raises ValueError or TypeError for a
    block size that is not accepted, machine.SRAMOverflow if the tiles do not fit.
    """
    dq_block_q, dq_block_k = dq_blocks or (block_q, block_k)
    mask = masks.causal() if causal else masks.full()
    grid = mask.tiles(len(Q), len(K), block_q, block_k)
    masks.check_counts(dq_block_q=dq_block_q, dq_block_k=dq_block_k)
    dq_grid = mask.tiles(len(Q), len(K), dq_block_q, dq_block_k)
    scale = resolve_scale(scale, Q.shape[1])
    for q_rows in grid.query_rows:  # FA2 Alg. 2, line 4
        O_i, dO_i = (machine.load(handle, q_rows).astype(delta.dtype, copy=False) for handle in (O, dO))
        machine.store(delta, q_rows, (O_i * dO_i).sum(axis=-1))
        del O_i, dO_i  # otherwise they would still take SRAM in the next round
    _dkdv_pass(machine, Q, K, V, lse, dO, dK, dV, delta, grid, scale)
    _dq_pass(machine, Q, K, V, lse, dO, dQ, delta, dq_grid, scale)


def _dkdv_pass(machine, Q, K, V, lse, dO, dK, dV, delta, grid, scale):
    dtype = lse.dtype
    for j, k_rows in enumerate(grid.key_rows):  # FA2 Alg. 2, line 5
        K_j, V_j = machine.load(K, k_rows), machine.load(V, k_rows)  # line 6
        dK_j, dV_j = (machine.full(K_j.shape, 0, dtype) for _ in range(2))  # line 7
        for i in grid.query_tiles(j):  # line 8, without the query tiles that see none of these keys
            q_rows = grid.query_rows[i]
            Q_i, dO_i = machine.load(Q, q_rows), machine.load(dO, q_rows)  # line 9
            lse_i, delta_i = machine.load(lse, q_rows), machine.load(delta, q_rows)
            P_ij, dS_ij = _p_and_ds(Q_i, K_j, V_j, dO_i, lse_i, delta_i, grid, i, j, scale)
            dV_j += np.matmul(P_ij.T, dO_i, dtype=dtype)  # line 12: [block_k, block_q] @ [block_q, d]
            dK_j += np.matmul(dS_ij.T, Q_i, dtype=dtype)  # line 16: likewise
            del Q_i, dO_i, lse_i, delta_i, P_ij, dS_ij  # otherwise they would still take SRAM in the next round
        dK_j *= scale
        machine.store(dK, k_rows, dK_j.astype(dK.dtype, copy=False))  # line 18
        machine.store(dV, k_rows, dV_j.astype(dV.dtype, copy=False))
        del K_j, V_j, dK_j, dV_j


def _dq_pass(machine, Q, K, V, lse, dO, dQ, delta, grid, scale):
    dtype = lse.dtype
    for i, q_rows in enumerate(grid.query_rows):
        Q_i, dO_i = machine.load(Q, q_rows), machine.load(dO, q_rows)
        lse_i, delta_i = machine.load(lse, q_rows), machine.load(delta, q_rows)
        dQ_i = machine.full(Q_i.shape, 0, dtype)
        for j in grid.key_tiles(i):  # the key tiles that the forward pass visits
            K_j, V_j = machine.load(K, grid.key_rows[j]), machine.load(V, grid.key_rows[j])
            _, dS_ij = _p_and_ds(Q_i, K_j, V_j, dO_i, lse_i, delta_i, grid, i, j, scale)
            dQ_i += np.matmul(dS_ij, K_j, dtype=dtype)  # FA2 Alg. 2, line 15: [block_q, block_k] @ [block_k, d]
            del K_j, V_j, dS_ij
        dQ_i *= scale
        machine.store(dQ, q_rows, dQ_i.astype(dQ.dtype, copy=False))
        del Q_i, dO_i, lse_i, delta_i, dQ_i


def _p_and_ds(Q_i, K_j, V_j, dO_i, lse_i, delta_i, grid, i, j, scale):
    """P_ij and dS_ij of one tile, [block_q, block_k] each: FA2 Alg. 2, lines 10, 11, 13, 14. Two matrix products."""
    P_ij = _probabilities(scores_tile(Q_i, K_j, grid, i, j, scale), lse_i)
    dP_ij = np.matmul(dO_i, V_j.T, dtype=P_ij.dtype)  # [block_q, d] @ [d, block_k]
    dP_ij -= delta_i[:, None]
    dP_ij *= P_ij
    return P_ij, dP_ij


def _probabilities(S, lse):
    """P = exp(S - lse), row by row; 0 where the row sees no key, since -inf - (-inf) would be nan."""
    return np.exp(S - np.where(lse == -np.inf, 0, lse)[..., None])


def _checked_results(q, o, lse, do):
    """o, do, lse as arrays; TypeError or ValueError, naming the one whose dtype or shape does not match q."""
    o, do, lse = as_float_array(o, "o"), as_float_array(do, "do"), as_float_array(lse, "lse")
    for name, x in (("o", o), ("do", do)):
        if x.dtype != q.dtype:
            raise TypeError(f"{name} has dtype {x.dtype} and q {q.dtype}; accepted: one dtype for all")
        if x.shape != q.shape:
            raise ValueError(f"{name} has shape {x.shape}; accepted: {q.shape}, the shape of q")
    if lse.dtype != statistics_dtype(q.dtype):
        raise TypeError(f"lse has dtype {lse.dtype}; accepted: {statistics_dtype(q.dtype)}")
    if lse.shape != q.shape[:1]:
        raise ValueError(f"lse has shape {lse.shape}; accepted: {q.shape[:1]}, one number for each query")
    return o, do, lse
