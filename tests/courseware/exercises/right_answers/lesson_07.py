EXP = "tl.exp(x - tl.max(x, axis=0))"
K_POINTERS = "offs_n[:, None] * stride_kn + offs_d[None, :] * stride_kd"
DOT = 'tl.dot(q, tl.trans(k), input_precision="ieee") * scale'

RIGHT_ANSWERS = {
    "vector_add": {
        "y first, pointers moved": {
            "    x = tl.load(x_ptr + offs, mask=mask)\n": "    x_ptr += offs\n    x = tl.load(x_ptr, mask=offs < n)\n",
            "x + y, mask": "y + x, mask"},
        "with other": {"tl.load(x_ptr + offs, mask=mask)": "tl.load(x_ptr + offs, mask=mask, other=0.0)"}},
    "row_softmax": {"exponentials of the rest set to 0": {
                        ', other=float("-inf"))': ", other=0.0)",
                        EXP: "tl.where(mask, tl.exp(x - tl.max(tl.where(mask, x, -1e30), axis=0)), 0.0)"},
                    "in base 2": {EXP: "tl.exp2((x - tl.max(x, axis=0)) * 1.4426950408889634)"}},
    "scores_tile": {
        "scaled queries, K loaded transposed": {
            K_POINTERS: "offs_n[None, :] * stride_kn + offs_d[:, None] * stride_kd",
            "mask=mask_n[:, None] & mask_d[None, :]": "mask=mask_n[None, :] & mask_d[:, None]",
            DOT: 'tl.dot(q * scale, k, input_precision="ieee")',
        },
        "the transposed product, transposed": {DOT: 'tl.trans(tl.dot(k, tl.trans(q), input_precision="ieee")) * scale'},
    },
    "online_row_stats": {
        "Python's max, which Triton knows": {"tl.maximum(m_i, tl.max(x, axis=0))": "max(m_i, tl.max(x, axis=0))"},
        "a state for each lane, merged at the end": {
            'm_i = float("-inf")\n': 'm_i = tl.full([BLOCK], float("-inf"), tl.float32)\n',
            "l_i = 0.0\n": "l_i = tl.zeros([BLOCK], tl.float32)\n",
            "tl.maximum(m_i, tl.max(x, axis=0))": "tl.maximum(m_i, x)",
            "tl.sum(tl.exp(x - m_ref), axis=0)": "tl.exp(x - m_ref)",
            "    tl.store(m_ptr + row, m_i)\n": "    m_all = tl.max(m_i, axis=0)\n"
            "    m_ref = tl.where(m_all == float('-inf'), 0.0, m_all)\n"
            "    l_i = tl.sum(l_i * tl.exp(m_i - m_ref), axis=0)\n"
            "    tl.store(m_ptr + row, m_all)\n"}},
}  # fmt: skip
