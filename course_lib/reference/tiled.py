"""Attention tile by tile, without the matrix of scores: both FlashAttention loop orders, on the machine.

FA1: Dao, Fu, Ermon, Rudra, Re, "FlashAttention" (2022), Alg. 1. FA2: Dao, "FlashAttention-2" (2023), Alg. 1.
`tiled_attention` runs the same code as `tiled_attention_on_machine`, on a machine with unlimited SRAM. So the code
whose bytes the course counts is the code whose results the tests check.
"""

import numpy as np

from course_lib import masks
from course_lib.machine import Machine

from .attention import checked_inputs
from .dot import resolve_scale, statistics_dtype
from .softmax import log_sum_exp_of_state, merge_states, normalise_state, online_softmax_update


def tiled_attention(q, k, v, *, block_q, block_k, causal=False, scale=None, order="q_outer", return_lse=False):
    """`attention`, computed in tiles of block_q queries by block_k keys.

    Arguments, results, causal alignment, rows with no visible key, nan locality and errors are those of
    `attention`. block_q, block_k: at least 1, whatever they divide. order: "q_outer" (FA2 Alg. 1), "kv_outer"
    (FA1 Alg. 1, where O in q's dtype is written back at every step, and rounded each time).
    """
    q, k, v, scale = checked_inputs(q, k, v, scale)
    machine = Machine()
    o = np.empty_like(q)
    Q, K, V, O = (machine.hbm(array, name) for array, name in ((q, "Q"), (k, "K"), (v, "V"), (o, "O")))
    l, m, lse = (np.empty(len(q), statistics_dtype(q.dtype)) for _ in range(3))
    options = {"block_q": block_q, "block_k": block_k, "causal": causal, "scale": scale, "order": order}
    if order == "kv_outer":
        tiled_attention_on_machine(machine, Q, K, V, O, l=machine.hbm(l, "l"), m=machine.hbm(m, "m"), **options)
        lse = log_sum_exp_of_state(m, l)
    else:
        tiled_attention_on_machine(machine, Q, K, V, O, lse=machine.hbm(lse, "lse"), **options)
    return (o, lse) if return_lse else o


def tiled_attention_on_machine(
    machine, Q, K, V, O, *, block_q, block_k, causal=False, scale=None, order="q_outer", lse=None, l=None, m=None
):
    """`tiled_attention` on handles of `machine`; the result is stored in O, loads and stores are counted.

    Q, O: [n_q, d]; K, V: [n_k, d]; one float dtype. Statistics are float32, or float64 for float64, and so
    are the handles for them: lse: [n_q], order "q_outer" only, written if given; l, m: [n_q], order
    "kv_outer" only, where they are required (lse = m + log(l)). Raises ValueError or TypeError for a block
    size or an order that is not accepted, machine.SRAMOverflow if the tiles do not fit.
    """
    mask = masks.causal() if causal else masks.full()
    grid = mask.tiles(len(Q), len(K), block_q, block_k)
    scale = resolve_scale(scale, Q.shape[1])
    if order == "q_outer":
        if l is not None or m is not None:
            raise ValueError('order "q_outer" takes no l and no m: it keeps them in SRAM')
        _q_outer(machine, Q, K, V, O, lse, grid, scale)
    elif order == "kv_outer":
        if l is None or m is None or lse is not None:
            raise ValueError('order "kv_outer" takes l and m and no lse: lse = m + log(l)')
        _kv_outer(machine, Q, K, V, O, l, m, grid, scale)
    else:
        raise ValueError(f'order is {order!r}; accepted: "q_outer" (FlashAttention-2), "kv_outer" (FlashAttention-1)')


def _q_outer(machine, Q, K, V, O, lse, grid, scale):
    """FA2 Alg. 1: a query tile stays in SRAM while the tiles of keys and values that it sees pass by."""
    d = Q.shape[1]
    dtype = statistics_dtype(Q.dtype)
    for i, q_rows in enumerate(grid.query_rows):  # FA2 Alg. 1, line 3
        Q_i = machine.load(Q, q_rows)  # line 4
        m_i = machine.full(len(Q_i), -np.inf, dtype)  # line 5
        l_i = machine.full(len(Q_i), 0, dtype)
        acc = machine.full((len(Q_i), d), 0, dtype)
        for j in grid.key_tiles(i):  # line 6, without the key tiles that the mask hides
            K_j, V_j = machine.load(K, grid.key_rows[j]), machine.load(V, grid.key_rows[j])  # line 7
            S_ij = scores_tile(Q_i, K_j, grid, i, j, scale)  # line 8
            m_i, l_i, acc = online_softmax_update(m_i, l_i, acc, S_ij, V_j)  # lines 9, 10
            del K_j, V_j, S_ij  # otherwise they would still take SRAM while the next tiles are loaded
        machine.store(O, q_rows, normalise_state(l_i, acc).astype(O.dtype, copy=False))  # lines 12, 14
        if lse is not None:
            machine.store(lse, q_rows, log_sum_exp_of_state(m_i, l_i))  # lines 13, 15
        del Q_i, m_i, l_i, acc


def _kv_outer(machine, Q, K, V, O, l, m, grid, scale):
    """FA1 Alg. 1: a tile of keys and values stays in SRAM while query tiles and their unfinished results pass by."""
    d = Q.shape[1]
    for q_rows in grid.query_rows:  # FA1 Alg. 1, line 2
        rows = q_rows[1] - q_rows[0]
        machine.store(O, q_rows, machine.full((rows, d), 0, O.dtype))
        machine.store(l, q_rows, machine.full(rows, 0, l.dtype))
        machine.store(m, q_rows, machine.full(rows, -np.inf, m.dtype))
    for j, k_rows in enumerate(grid.key_rows):  # line 5
        K_j, V_j = machine.load(K, k_rows), machine.load(V, k_rows)  # line 6
        for i in grid.query_tiles(j):  # line 7, without the query tiles that see none of these keys
            q_rows = grid.query_rows[i]
            Q_i, O_i = machine.load(Q, q_rows), machine.load(O, q_rows)  # line 8
            l_i, m_i = machine.load(l, q_rows), machine.load(m, q_rows)
            S_ij = scores_tile(Q_i, K_j, grid, i, j, scale)  # line 9
            new = online_softmax_update(-np.inf, 0, 0, S_ij, V_j)  # line 10: the tile's own m, l and P V
            old = (m_i, l_i, l_i[:, None] * O_i)  # O_i is normalised: diag(l_i) undoes that
            m_i, l_i, acc = merge_states(old, new)  # lines 11, 12
            machine.store(O, q_rows, normalise_state(l_i, acc).astype(O.dtype, copy=False))  # line 12
            machine.store(l, q_rows, l_i)  # line 13
            machine.store(m, q_rows, m_i)
            del Q_i, O_i, l_i, m_i, S_ij, new, old, acc  # otherwise they would still take SRAM in the next round
        del K_j, V_j


def scores_tile(Q_i, K_j, grid, i, j, scale):
    """S_ij = Q_i K_j^T * scale, with -inf for the pairs that the mask of `grid`, a masks.Tiles, hides."""
    with np.errstate(invalid="ignore"):  # inf - inf may occur in scores that the mask hides
        S_ij = np.matmul(Q_i, K_j.T, dtype=statistics_dtype(Q_i.dtype))  # [block_q, d] @ [d, block_k]
    S_ij *= scale
    if grid.kinds[i, j] == masks.PARTIAL:
        S_ij[~grid.visible(i, j)] = -np.inf
    return S_ij
