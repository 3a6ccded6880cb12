LSE = "(m_i + tl.log2(l_safe)) * 0.6931471805599453"


RIGHT_ANSWERS = {
    "kv_loop_bounds": {"as a list": {"return first_sees // block_n * block_n, kv_end":
                                     "return [first_sees // block_n * block_n, kv_end]"}},
    "lse_epilogue": {"the natural logarithm": {LSE: "m_i * 0.6931471805599453 + tl.log(l_safe)"}},
    "flash_forward": {
        "natural exponentials and logarithm": {"(scale * 1.4426950408889634)": "scale",
                                               "alpha = tl.exp2(": "alpha = tl.exp(",
                                               "p = tl.exp2(": "p = tl.exp(",
                                               LSE: "m_i + tl.log(l_safe)"},
        "keys beyond the tile's last are not loaded": {"mask_n = offs_n < n_k": "mask_n = offs_n < kv_end"}},
    "find_failing_input": {"two heads of everything": {"standard_normal((1, n, d))": "standard_normal((2, n, d))"}},
    "launch_by_hand": {
        "a grid that the block sizes make, new_empty": {
            "kernel[grid]": 'kernel[lambda meta: (triton.cdiv(n_q, meta["BLOCK_M"]), heads, 1)]',
            "torch.empty((heads, n_q, d), dtype=q.dtype, device=q.device)": "q.new_empty(heads, n_q, d)",
        },
        "copies by clone, strides unpacked": {
            "x.contiguous()": "x.clone(memory_format=torch.contiguous_format)",
            "q.stride(0), q.stride(1), k.stride(0), k.stride(1)": "*q.stride()[:2], *k.stride()[:2]",
        },
    },
}  # fmt: skip
