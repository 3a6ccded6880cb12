"""Lesson 09: wrong answers that are no slips, and what the check has to say of each."""

START = "tl.maximum(start_n + n_q - n_k, 0) // BLOCK_M * BLOCK_M"
DOT = 'tl.dot(q, tl.trans(k), input_precision="ieee") * scale'

WRONG_ANSWERS = {
    "softmax_vjp": {
        "axis=0": ({"axis=1": "axis=0"}, ""),
        "the sum of dP": ({"(P * dP).sum(": "dP.sum("}, ""),
        "one sum for all": ({"axis=1, keepdims=True": ""}, ""),
        "the mean": ({".sum(axis=1": ".mean(axis=1"}, ""),
        "sigmoid": ({"P * (dP - row_sums)": "P * (1 - P) * dP"}, ""),
    },
    "delta": {
        "rows exchanged": ({"dO.astype(dtype)": "dO.astype(dtype)[::-1]"}, ""),
        "float16 sums": ({".sum(axis=1)": ".astype(O.dtype).sum(axis=1)"}, ""),
        "axis=0": ({"axis=1": "axis=0"}, ""),
    },
    "attention_backward": {
        "a global maximum": ({"S.max(axis=1, keepdims=True)": "S.max()"}, ""),
        "dQ and dK exchanged": ({"return dQ, dK, dV": "return dK, dQ, dV"}, ""),
        "in the order dV, dK, dQ": ({"return dQ, dK, dV": "return dV, dK, dQ"}, ""),
        "sum(axis=0)": ({"(P * dP).sum(axis=1, keepdims=True)": "(P * dP).sum(axis=0)"}, ""),
        "delta of all": ({"(P * dP).sum(axis=1, keepdims=True)": "(P * dP).sum()"}, ""),
        "dO for O": ({"dV = P.T @ dO": "dV = P.T @ (P @ V)"}, ""),
        "signs": ({"dP - (P * dP)": "dP + (P * dP)"}, ""),
    },
    "tiled_backward": {
        "delta from float16 tiles": ({"(load(O, q_rows) * load(dO, q_rows)).sum(axis=1)": "(machine.load(O, q_rows) * machine.load(dO, q_rows)).sum(axis=1)"}, ""),
        "dQ is kept in float16": ({"dq += ds @ k": "dq = (dq + ds @ k).astype(np.float16).astype(np.float32)"}, ""),
        "skips one tile too many": ({"return causal and q_rows[1] - 1 + n_k - n_q < k_rows[0]": "return causal and q_rows[1] - 1 + n_k - n_q <= k_rows[0]"}, ""),
        "dQ and dK exchanged": ({"machine.store(dQ, q_rows, (scale * dq).astype(dQ.dtype))": "machine.store(dK, q_rows, (scale * dq).astype(dQ.dtype))"}, ""),
        "delta is never stored": ({"    for q_rows in q_tiles:\n        machine.store(delta": "    for q_rows in q_tiles:\n        (delta"}, ""),
    },
    "dkdv_tile": {
        "the first query tile by BLOCK_M": ({START: "tl.maximum(tl.program_id(0) * BLOCK_M + n_q - n_k, 0) // BLOCK_M * BLOCK_M"}, ""),
        "the causal start of a tile's last key": ({START: "tl.maximum(start_n + BLOCK_N - 1 + n_q - n_k, 0) // BLOCK_M * BLOCK_M"}, ""),
        "scale 0.25": ({DOT: DOT.replace("* scale", "* 0.25")}, ""),
        "scale HEAD_DIM ** -0.5": ({DOT: DOT.replace("* scale", "* HEAD_DIM ** -0.5")}, ""),
        "one input_precision is left out": ({DOT: DOT.replace(', input_precision="ieee"', "")}, ""),
        "dK and dV exchanged": ({"dk_ptr + offs_n[:, None] * stride_dkn + offs_d[None, :], dk * scale": "dv_ptr + offs_n[:, None] * stride_dvn + offs_d[None, :], scale * dk", "dv_ptr + offs_n[:, None] * stride_dvn + offs_d[None, :], dv,": "dk_ptr + offs_n[:, None] * stride_dkn + offs_d[None, :], dv,"}, ""),
        "the row stride is BLOCK_D": ({"offs_m[:, None] * stride_qm": "offs_m[:, None] * BLOCK_D"}, ""),
        "sum(axis=0)": ({"ds = p * (dp - delta[:, None])": "ds = p * (dp - tl.sum(p * dp, axis=1)[:, None])"}, ""),
    },
}  # fmt: skip
