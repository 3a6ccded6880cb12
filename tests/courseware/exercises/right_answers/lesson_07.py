EXP = "tl.exp(x - tl.max(x, axis=0))"
K_POINTERS = "offs_n[:, None] * stride_kn + offs_d[None, :] * stride_kd"
DOT = 'tl.dot(q, tl.trans(k), input_precision="ieee") * scale'

RIGHT_ANSWERS = {
    "vector_add": {
        "y first, pointers moved": {
            "    x = tl.load(x_ptr + offs, mask=mask)\n": "    x_ptr += offs\n    x = tl.load(x_ptr, mask=offs < n)\n",
            "x + y, mask": "y + x, mask"}},
    "row_softmax": {"exponentials of the rest set to 0": {
                        ', other=float("-inf"))': ", other=0.0)",
                        EXP: "tl.where(mask, tl.exp(x - tl.max(tl.where(mask, x, -1e30), axis=0)), 0.0)"},
                    "in base 2": {EXP: "tl.exp2((x - tl.max(x, axis=0)) * 1.4426950408889634)"}},
    "scores_tile": {
        "scaled queries, K loaded transposed": {
            K_POINTERS: "offs_n[None, :] * stride_kn + offs_d[:, None] * stride_kd",
            "mask=mask_n[:, None] & mask_d[None, :]": "mask=mask_n[None, :] & mask_d[:, None]",
            DOT: 'tl.dot(q * scale, k, input_precision="ieee")'}},
    "online_row_stats": {
        "in base 2, Python's max, which Triton knows": {
            "tl.maximum(m_i, tl.max(x, axis=0))": "max(m_i, tl.max(x, axis=0))",
            "tl.exp(x - m_ref)": "tl.exp2((x - m_ref) * 1.4426950408889634)"}},
}  # fmt: skip
