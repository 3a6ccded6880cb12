"""Lesson 08: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

DOT = 'tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)'
LOOP = "for start_n in range(0, kv_end, BLOCK_N):"
SEES_LINE = "visible = visible & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)"
SEES = "offs_n[None, :] <= offs_m[:, None] + n_k - n_q"

WRONG_ANSWERS = {
    "kv_loop_bounds": {
        "kv_end rounded up": ({"    return first_sees // block_n * block_n, kv_end": "    return first_sees // block_n * block_n, -(-kv_end // block_n) * block_n"}, "kv_end is 6, more than 5"),
        "the last query is beyond the tile": ({"last_row = min(start_m + block_m, n_q)": "last_row = min(start_m + block_m + 1, n_q)"}, "kv_end is 3, more than 2"),
        "in tiles": ({"first_sees // block_n * block_n, kv_end": "first_sees // block_n, kv_end"}, "full_end is 2, less than 4"),
        "exchanged": ({"first_sees // block_n * block_n, kv_end": "kv_end, first_sees // block_n * block_n"}, "full_end is 5, more than 4"),
        "block_m for block_n": ({"first_sees // block_n * block_n": "first_sees // block_m * block_m"}, "full_end is 1, more than 0"),
    },
    "lse_epilogue": {
        "log2(e) for ln 2": ({"0.6931471805599453": "1.4426950408889634"}, "lse is too large by the same factor 2.081 at every row"),
        "ln 2 for m alone": ({"(m_i + tl.log2(l_safe)) * 0.6931471805599453": "m_i * 0.6931471805599453 + tl.log2(l_safe)"}, "lse is wrong at every row"),
        "m is forgotten": ({"m_i + tl.log2(l_safe)": "tl.log2(l_safe)"}, "lse is wrong at every row"),
        "HEAD_DIM for BLOCK_D": ({"offs_m[:, None] * HEAD_DIM": "offs_m[:, None] * BLOCK_D"}, "program 0 reads elements 16 to 66 of acc, which has 15"),
        "multiplied by l": ({"acc / l_safe[:, None]": "acc * l_safe[:, None]"}, "acc is multiplied by l"),
    },
    "flash_forward": {
        "K without other": ({"k = tl.load(k_ptrs, mask=mask_n[:, None] & mask_d[None, :], other=0.0)": "k = tl.load(k_ptrs, mask=mask_n[:, None] & mask_d[None, :])"}, "o is NaN at every row"),
        "p in the unshifted base": ({"p = tl.exp2(scores - m_ref[:, None])": "p = tl.exp(scores - m_ref[:, None])"}, "o is wrong at every row"),
        "acc is rescaled after the product": (
            {"        acc = acc * alpha[:, None]\n": "", 'acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")': 'acc = (acc + tl.dot(p.to(v.dtype), v, input_precision="ieee")) * alpha[:, None]'},
            "o is 0 at every row",
        ),
        "sum over the wrong axis": ({"tl.sum(p, axis=1)": "tl.sum(p, axis=0)"}, "the answer raised ValueError: Cannot make_shape_compatible: incompatible dimensions at index 0: 32 and 64"),
        "the loop ends at n_q": ({"kv_end = n_k\n": "kv_end = n_q\n"}, "o is wrong at every row"),
        "l counts hidden keys": ({"tl.sum(p, axis=1)": "tl.sum(tl.where(visible, p, 1e-3), axis=1)"}, "o is off by a factor of each row's own"),
        "causal, whole tiles": ({SEES: "offs_n[None, :] // BLOCK_N <= (offs_m[:, None] + n_k - n_q) // BLOCK_N"}, "o is wrong at rows 0 to 14 of 16"),
        "scores hidden with a number of its own": (
            {SEES_LINE: "scores = tl.where(offs_n[None, :] <= offs_m[:, None] + n_k - n_q, scores, -3e7)"},
            "a query that sees no key gets a mean of all values here: are its scores a finite number, and not -inf?",
        ),
        "a tile whose queries see no key stores nothing": ({"    l_safe = ": "    if kv_end <= 0:\n        return\n    l_safe = "}, "32 of 50 elements are never written (queries 0 to 31)"),
        "the accumulator is float16": ({"acc = acc * alpha[:, None]": "acc = (acc * alpha[:, None]).to(v.dtype).to(tl.float32)"}, "o is right to about 3 digits only"),
    },
}  # fmt: skip
