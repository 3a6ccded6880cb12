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
    },
    "tiled_backward": {
        "delta from float16 tiles": ({"(load(O, q_rows) * load(dO, q_rows)).sum(axis=1)": "(machine.load(O, q_rows) * machine.load(dO, q_rows)).sum(axis=1)"}, "delta is right to about 3 digits only"),
        "lse and delta are loaded at once": ({"    for k_rows in k_tiles:\n        k, v = load(K, k_rows), load(V, k_rows)\n        dk, dv": "    all_lse = load(lse, (0, n_q))\n    for k_rows in k_tiles:\n        k, v = load(K, k_rows), load(V, k_rows)\n        dk, dv", "    for q_rows in q_tiles:\n        q, do, lse_i, delta_i = (load(handle, q_rows) for handle in (Q, dO, lse, delta))\n        dq": "    for q_rows in q_tiles:\n        q, do, delta_i = (load(handle, q_rows) for handle in (Q, dO, delta))\n        lse_i = all_lse[q_rows[0] : q_rows[1]]\n        dq"}, "600 rows of lse are loaded at once, before dV is stored; a tile of queries has 4"),
    },
    "dkdv_tile": {
        "the causal start of a tile's last key": ({START: "tl.maximum(start_n + BLOCK_N - 1 + n_q - n_k, 0) // BLOCK_M * BLOCK_M"}, "dk is wrong at keys 32 to 35 of 40"),
        "starts one query late": ({START: "tl.maximum(start_n + 1 + n_q - n_k, 0) // BLOCK_M * BLOCK_M"}, "dv is wrong at key 0 of 16"),
    },
}  # fmt: skip
