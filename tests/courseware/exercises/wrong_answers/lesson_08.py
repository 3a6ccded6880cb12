"""Lesson 08: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

WRONG_ANSWERS = {
    "kv_loop_bounds": {
        "kv_end rounded up": ({"    return first_sees // block_n * block_n, kv_end": "    return first_sees // block_n * block_n, -(-kv_end // block_n) * block_n"}, "kv_end is 6, more than 5"),
        "the last query is beyond the tile": ({"last_row = min(start_m + block_m, n_q)": "last_row = min(start_m + block_m + 1, n_q)"}, "kv_end is 3, more than 2"),
    },
    "lse_epilogue": {
        "log2(e) for ln 2": ({"0.6931471805599453": "1.4426950408889634"}, "lse is too large by the same factor 2.081 at every row"),
        "ln 2 for m alone": ({"(m_i + tl.log2(l_safe)) * 0.6931471805599453": "m_i * 0.6931471805599453 + tl.log2(l_safe)"}, "lse is wrong at every row"),
    },
    "flash_forward": {
        "K without other": ({"k = tl.load(k_ptrs, mask=mask_n[:, None] & mask_d[None, :], other=0.0)": "k = tl.load(k_ptrs, mask=mask_n[:, None] & mask_d[None, :])"}, "o is NaN at every row"),
        "p in the unshifted base": ({"p = tl.exp2(scores - m_ref[:, None])": "p = tl.exp(scores - m_ref[:, None])"}, "o is wrong at every row"),
    },
}  # fmt: skip
