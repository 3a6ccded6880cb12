"""Lesson 07: wrong answers that are no slips, and what the check has to say of each."""

LOAD = "mask=offs_n < n_cols"
LOOP = "    for start in range(0, n_cols, BLOCK):\n"
UPDATE = "l_i * tl.exp(m_i - m_ref)"

WRONG_ANSWERS = {
    "vector_add": {
        "the last block is always dropped": ({"mask = offs < n": "mask = offs < (n - 1) // BLOCK * BLOCK"}, "never written"),
        "y alone": ({"x + y": "y"}, "out is wrong"),
        "half of each block": ({"mask = offs < n": "mask = (offs < n) & (offs % 2 == 0)"}, "never written"),
        "Python's and": ({"mask = offs < n": "mask = offs < n and offs >= 0"}, "raised"),
        "in place": ({"tl.store(out_ptr + offs, x + y, mask=mask)": "tl.store(x_ptr + offs, x + y, mask=mask)"}, "never written"),
        "blocks run backwards": ({"tl.program_id(0) * BLOCK": "n - (tl.program_id(0) + 1) * BLOCK"}, "outside"),
    },
    "row_softmax": {
        "the max of absolute values": ({"tl.max(x, axis=0)": "tl.max(tl.abs(x), axis=0)"}, ""),
        "the mean for the max": ({"tl.max(x, axis=0)": "tl.sum(tl.where(mask, x, 0.0), axis=0) / n_cols"}, ""),
        "divided by n_cols": ({"p / tl.sum(p, axis=0)": "p / n_cols"}, ""),
        "log-softmax": ({"p / tl.sum(p, axis=0)": "tl.log(p / tl.sum(p, axis=0))"}, ""),
        "the store's columns are neighbours": ({"offs_n * stride_on": "offs_n"}, ""),
        "an epsilon": ({"tl.sum(p, axis=0)": "(tl.sum(p, axis=0) + 1e-3)"}, ""),
        "x's strides for out": ({"row * stride_om": "row * stride_xm"}, ""),
        "the reverse row": ({"offs_n * stride_on": "(n_cols - 1 - offs_n) * stride_on"}, ""),
    },
    "scores_tile": {
        "scale squared": ({'input_precision="ieee") * scale': 'input_precision="ieee") * scale * scale'}, "factor 0.5"),
        "divided by scale": ({'input_precision="ieee") * scale': 'input_precision="ieee") / scale'}, "factor 4"),
        "1 / sqrt(d) for scale": ({'input_precision="ieee") * scale': 'input_precision="ieee") * HEAD_DIM ** -0.5'}, "factor 1.414"),
        "stored transposed": (
            {"offs_m[:, None] * stride_sm + offs_n[None, :] * stride_sn": "offs_m[:, None] * stride_sn + offs_n[None, :] * stride_sm"},
            "",
        ),
        "k is not transposed": ({"tl.dot(q, tl.trans(k), ": "tl.dot(q, k, "}, "raised"),
        "the grid's axes exchanged": (
            {"tl.program_id(0) * BLOCK_M": "tl.program_id(1) * BLOCK_M", "tl.program_id(1) * BLOCK_N": "tl.program_id(0) * BLOCK_N"},
            "",
        ),
        "Python's and": ({"mask=mask_m[:, None] & mask_n[None, :])": "mask=mask_m[:, None] and mask_n[None, :])"}, ""),
        "no mask for d": ({"mask=mask_m[:, None] & mask_d[None, :], other=0.0)": "mask=mask_m[:, None], other=0.0)"}, ""),
        "tf32x3": ({'"ieee"': '"tf32"'}, "TF32"),
        "q's strides for k": ({"offs_n[:, None] * stride_kn": "offs_n[:, None] * stride_qm"}, ""),
        "the first tile alone": ({"tl.program_id(1) * BLOCK_N + tl": "tl"}, ""),
    },
    "online_row_stats": {
        "alpha upside down": ({UPDATE: "l_i * tl.exp(m_ref - m_i)"}, ""),
        "the last block is always dropped": ({LOOP: "    for start in range(0, n_cols - BLOCK, BLOCK):\n"}, ""),
        "Python's max": ({"tl.maximum(m_i, tl.max(x, axis=0))": "max(m_i, tl.max(x, axis=0))"}, ""),
        "alpha squared": ({UPDATE: "l_i * tl.exp(m_i - m_ref) * tl.exp(m_i - m_ref)"}, ""),
        "a new max starts the sum again": ({UPDATE: "tl.where(m_new > m_i, 0.0, l_i)"}, ""),
        "the max is updated too early": ({"        m_ref =": "        m_i = m_new\n        m_ref ="}, ""),
        "base 2": ({"tl.sum(tl.exp(x - m_ref), axis=0)": "tl.sum(tl.exp2(x - m_ref), axis=0)"}, ""),
        "the first block alone": ({LOOP: "    for start in range(0, BLOCK, BLOCK):\n"}, ""),
        "l counts": ({"tl.sum(tl.exp(x - m_ref), axis=0)": "tl.sum((x > float('-inf')).to(tl.float32), axis=0)"}, ""),
        "m and l exchanged": ({"tl.store(m_ptr + row, m_i)": "tl.store(m_ptr + row, l_i)", "tl.store(l_ptr + row, l_i)": "tl.store(l_ptr + row, m_i)"}, "swapped"),
    },
}  # fmt: skip
