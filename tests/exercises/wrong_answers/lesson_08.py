"""Lesson 08: wrong answers that are no slips, and what the check has to say of each."""

DOT = "tl.dot(q, tl.trans(k), input_precision=\"ieee\") * (scale * 1.4426950408889634)"
LOOP = "for start_n in range(0, kv_end, BLOCK_N):"
SEES = "offs_n[None, :] <= offs_m[:, None] + n_k - n_q"

WRONG_ANSWERS = {
    "kv_loop_bounds": {
        "full_end without + 1": ({"start_m + 1 + n_k - n_q": "start_m + n_k - n_q"}, ""),
        "kv_end rounded up": ({"    return first_sees // block_n * block_n, kv_end": "    return first_sees // block_n * block_n, -(-kv_end // block_n) * block_n"}, ""),
        "the last query is beyond the tile": ({"last_row = min(start_m + block_m, n_q)": "last_row = min(start_m + block_m + 1, n_q)"}, ""),
        "full_end of the last query": ({"start_m + 1 + n_k - n_q": "start_m + block_m + n_k - n_q"}, ""),
        "in tiles": ({"first_sees // block_n * block_n, kv_end": "first_sees // block_n, kv_end"}, ""),
        "floats": ({"first_sees // block_n * block_n": "first_sees / block_n * block_n"}, ""),
        "exchanged": ({"first_sees // block_n * block_n, kv_end": "kv_end, first_sees // block_n * block_n"}, ""),
        "top-left": ({"start_m + 1 + n_k - n_q": "start_m + 1", "last_row + n_k - n_q": "last_row"}, ""),
        "block_m for block_n": ({"first_sees // block_n * block_n": "first_sees // block_m * block_m"}, ""),
    },
    "lse_epilogue": {
        "constants of hint length": ({"0.6931471805599453": "0.6931"}, ""),
        "log2(e) for ln 2": ({"0.6931471805599453": "1.4426950408889634"}, ""),
        "ln 2 for l alone": ({"(m_i + tl.log2(l_safe)) * 0.6931471805599453": "m_i + tl.log2(l_safe) * 0.6931471805599453"}, ""),
        "ln 2 for m alone": ({"(m_i + tl.log2(l_safe)) * 0.6931471805599453": "m_i * 0.6931471805599453 + tl.log2(l_safe)"}, ""),
        "natural log of l": ({"tl.log2(l_safe)": "tl.log(l_safe)"}, ""),
        "m is forgotten": ({"m_i + tl.log2(l_safe)": "tl.log2(l_safe)"}, ""),
        "HEAD_DIM for BLOCK_D": ({"offs_m[:, None] * HEAD_DIM": "offs_m[:, None] * BLOCK_D"}, ""),
        "multiplied by l": ({"acc / l_safe[:, None]": "acc * l_safe[:, None]"}, ""),
        "lse of an empty row is 0": ({'float("-inf"), (m_i': "0.0, (m_i"}, ""),
        "an epsilon": ({"l_safe = tl.where(l_i == 0.0, 1.0, l_i)": "l_safe = l_i + 1e-6"}, ""),
    },
    "flash_forward": {
        "scale is 1 / sqrt(d)": ({"(scale * 1.4426950408889634)": "(HEAD_DIM ** -0.5 * 1.4426950408889634)"}, ""),
        "scale is 1 / sqrt(BLOCK_D)": ({"(scale * 1.4426950408889634)": "(BLOCK_D ** -0.5 * 1.4426950408889634)"}, ""),
        "1.4427": ({"1.4426950408889634": "1.4427"}, ""),
        "0.6931": ({"0.6931471805599453": "0.6931"}, ""),
        "no input_precision for q k": ({DOT: DOT.replace(', input_precision="ieee"', "")}, "TF32"),
        "no input_precision for p v": ({'tl.dot(p.to(v.dtype), v, input_precision="ieee")': "tl.dot(p.to(v.dtype), v)"}, "TF32"),
        "no program id": ({"start_m = tl.program_id(0) * BLOCK_M": "start_m = 0"}, ""),
        "the row stride is BLOCK_D": ({"offs_m[:, None] * stride_qm": "offs_m[:, None] * BLOCK_D"}, ""),
        "k's row stride is HEAD_DIM": ({"offs_n[:, None] * stride_kn": "offs_n[:, None] * HEAD_DIM"}, ""),
        "V without other": ({"v = tl.load(v_ptrs, mask=mask_n[:, None] & mask_d[None, :], other=0.0)": "v = tl.load(v_ptrs, mask=mask_n[:, None] & mask_d[None, :])"}, ""),
        "K without other": ({"k = tl.load(k_ptrs, mask=mask_n[:, None] & mask_d[None, :], other=0.0)": "k = tl.load(k_ptrs, mask=mask_n[:, None] & mask_d[None, :])"}, ""),
        "the grid's axes exchanged": ({"tl.program_id(0)": "tl.program_id(2)", "tl.program_id(1)": "tl.program_id(0)"} | {"tl.program_id(2)": "tl.program_id(1)"}, ""),
        "alpha upside down": ({"tl.exp2(m_i - m_ref)": "tl.exp2(m_ref - m_i)"}, ""),
        "p in the unshifted base": ({"p = tl.exp2(scores - m_ref[:, None])": "p = tl.exp(scores - m_ref[:, None])"}, ""),
        "acc is rescaled after the product": (
            {"        acc = acc * alpha[:, None]\n": "", 'acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")': 'acc = (acc + tl.dot(p.to(v.dtype), v, input_precision="ieee")) * alpha[:, None]'},
            "",
        ),
        "sum over the wrong axis": ({"tl.sum(p, axis=1)": "tl.sum(p, axis=0)"}, ""),
        "the loop ends at n_q": ({"kv_end = n_k\n": "kv_end = n_q\n"}, ""),
        "every key tile of a causal mask": ({"    if IS_CAUSAL:\n        kv_end": "    if False:\n        kv_end"}, ""),
        "stores every row": ({"tl.store(lse_ptr + head * stride_lh + offs_m, lse, mask=mask_m)": "tl.store(lse_ptr + head * stride_lh + offs_m, lse)"}, ""),
        "l counts hidden keys": ({"tl.sum(p, axis=1)": "tl.sum(tl.where(visible, p, 1e-3), axis=1)"}, ""),
        "heads of k are q's": ({"k_ptr + head * stride_kh": "k_ptr + head * stride_qh"}, ""),
        "causal, whole tiles": ({SEES: "offs_n[None, :] // BLOCK_N <= (offs_m[:, None] + n_k - n_q) // BLOCK_N"}, ""),
        "m starts low": ({'tl.full([BLOCK_M], float("-inf"), tl.float32)': "tl.full([BLOCK_M], -100.0, tl.float32)"}, ""),
        "the accumulator is float16": ({"acc = acc * alpha[:, None]": "acc = (acc * alpha[:, None]).to(v.dtype).to(tl.float32)"}, ""),
    },
}  # fmt: skip
