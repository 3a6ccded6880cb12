"""Lesson 09: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

import numpy as np


def delta_in_place(O, dO):
    o = O.astype(np.float32, copy=False)
    o *= dO
    return o.sum(axis=1)


def p_and_ds_by_slices(q, k, v, do, lse, delta, first_q, first_k, n_q, n_k, causal=False):
    P, dS = np.zeros((len(q), len(k))), np.zeros((len(q), len(k)))
    for i in range(len(q)):
        seen = min(len(k), first_q + i + n_k - n_q + 1 - first_k) if causal else len(k)
        if lse[i] > -np.inf:
            P[i, :seen] = np.exp(k[:seen] @ q[i] / np.sqrt(len(q[i])) - lse[i])
            dS[i, :seen] = P[i, :seen] * (v[:seen] @ do[i] - delta[i])
    return P, dS


START = "tl.maximum(start_n + n_q - n_k, 0) // BLOCK_M * BLOCK_M"
DOT = 'tl.dot(q, tl.trans(k), input_precision="ieee") * scale'

WRONG_ANSWERS = {
    "softmax_vjp": {
        "the sum of dP": ({"(P * dP).sum(": "dP.sum("}, "dS is wrong at every row"),
        "the mean": ({".sum(axis=1": ".mean(axis=1"}, "dS is wrong at every row"),
    },
    "p_and_ds": {
        "lse is changed": ({"    P = np.exp(S - np.where(lse == -np.inf, 0.0, lse)[:, None])": "    lse[lse == -np.inf] = 0.0\n    P = np.exp(S - lse[:, None])"}, "the call changed its argument lse in place"),
        "a slice's end below 0": (p_and_ds_by_slices, "a slice counts negative numbers from the end"),
    },
    "delta": {
        "in place, where no copy is made": (delta_in_place, "the call changed its argument O in place"),
        "rows exchanged": ({"dO.astype(dtype)": "dO.astype(dtype)[::-1]"}, "delta is wrong at every query"),
    },
    "attention_backward": {
        "dQ and dK exchanged": ({"return dQ, dK, dV": "return dK, dQ, dV"}, "dQ and dK are swapped"),
        "in the order dV, dK, dQ": ({"return dQ, dK, dV": "return dV, dK, dQ"}, "dQ and dV are swapped"),
        "sum(axis=0)": ({"(P * dP).sum(axis=1, keepdims=True)": "(P * dP).sum(axis=0)"}, "dQ is wrong at every query"),
        "delta of all": ({"(P * dP).sum(axis=1, keepdims=True)": "(P * dP).sum()"}, "dQ is wrong at every query"),
        "dO for O": ({"dV = P.T @ dO": "dV = P.T @ (P @ V)"}, "dV is wrong at every key"),
        "signs": ({"dP - (P * dP)": "dP + (P * dP)"}, "dQ is wrong at every query"),
    },
    "tiled_backward": {
        "delta from float16 tiles": ({"(load(O, q_rows) * load(dO, q_rows)).sum(axis=1)": "(machine.load(O, q_rows) * machine.load(dO, q_rows)).sum(axis=1)"}, "delta is right to about 3 digits only"),
        "dQ is kept in float16": ({"dq += ds @ k": "dq = (dq + ds @ k).astype(np.float16).astype(np.float32)"}, "line 68: dq = (dq + ds @ k).astype(np.float16)"),
        "lse and delta are loaded at once": ({"    for k_rows in k_tiles:\n        k, v = load(K, k_rows), load(V, k_rows)\n        dk, dv": "    all_lse = load(lse, (0, n_q))\n    for k_rows in k_tiles:\n        k, v = load(K, k_rows), load(V, k_rows)\n        dk, dv", "    for q_rows in q_tiles:\n        q, do, lse_i, delta_i = (load(handle, q_rows) for handle in (Q, dO, lse, delta))\n        dq": "    for q_rows in q_tiles:\n        q, do, delta_i = (load(handle, q_rows) for handle in (Q, dO, delta))\n        lse_i = all_lse[q_rows[0] : q_rows[1]]\n        dq"}, "600 rows of lse are loaded at once, before dV is stored; a tile of queries has 4"),
        "keeps the tiles": ({"        del k, v, dk, dv\n": "        kept.append((k, v, dk, dv))\n", "    scale = d**-0.5\n": "    scale = d**-0.5\n    kept = []\n"}, "at least one for each of the 40 tiles of keys"),
        "the pass for dQ visits one tile too many": ({"            if hidden(q_rows, k_rows):\n                break": "            if causal and q_rows[1] + n_k - n_q < k_rows[0]:\n                break"}, "tiles that causal hides are read in the pass for dQ"),
        "skips one tile too many": ({"return causal and q_rows[1] - 1 + n_k - n_q < k_rows[0]": "return causal and q_rows[1] - 1 + n_k - n_q <= k_rows[0]"}, "dQ is off by the factor -1.144 at query 1 of 2"),
        "dQ and dK exchanged": ({"machine.store(dQ, q_rows, (scale * dq).astype(dQ.dtype))": "machine.store(dK, q_rows, (scale * dq).astype(dQ.dtype))"}, "these rows of dQ were never stored: [0, 1]"),
        "delta is never stored": ({"    for q_rows in q_tiles:\n        machine.store(delta": "    for q_rows in q_tiles:\n        (delta"}, "these rows of delta were never stored: [0, 1]"),
    },
    "dkdv_tile": {
        "the causal start of a tile's last key": ({START: "tl.maximum(start_n + BLOCK_N - 1 + n_q - n_k, 0) // BLOCK_M * BLOCK_M"}, "dk is wrong at keys 32 to 35 of 40"),
        "starts one query late": ({START: "tl.maximum(start_n + 1 + n_q - n_k, 0) // BLOCK_M * BLOCK_M"}, "dv is wrong at key 0 of 16"),
        "starts at a multiple of BLOCK_N": ({START: "tl.maximum(start_n + n_q - n_k, 0) // BLOCK_N * BLOCK_N"}, "the launch reads 3072 bytes of q, where 2048 are enough"),
        "scale 0.25": ({DOT: DOT.replace("* scale", "* 0.25")}, "dk is wrong at every key"),
        "scale HEAD_DIM ** -0.5": ({DOT: DOT.replace("* scale", "* HEAD_DIM ** -0.5")}, "dk is wrong at every key"),
        "dK and dV exchanged": ({"dk_ptr + offs_n[:, None] * stride_dkn + offs_d[None, :], dk * scale": "dv_ptr + offs_n[:, None] * stride_dvn + offs_d[None, :], scale * dk", "dv_ptr + offs_n[:, None] * stride_dvn + offs_d[None, :], dv,": "dk_ptr + offs_n[:, None] * stride_dkn + offs_d[None, :], dv,"}, "dk and dv are swapped"),
        "the row stride is BLOCK_D": ({"offs_m[:, None] * stride_qm": "offs_m[:, None] * BLOCK_D"}, "program 0 reads columns 16 to 79 of q, which has 16"),
        "sum(axis=0)": ({"ds = p * (dp - delta[:, None])": "ds = p * (dp - tl.sum(p * dp, axis=1)[:, None])"}, "dk is wrong at every key"),
    },
}  # fmt: skip
