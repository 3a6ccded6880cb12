"""Lesson 14: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

WRONG_ANSWERS = {
    "merge_splits": {
        "an epsilon in the divisor": (
            {"l_all = (alpha * l).sum(axis=-1)": "l_all = (alpha * l).sum(axis=-1) + 1e-9"},
            "digits only, where float64 has 15",
        ),
        "a condition for one row": (
            {"shift = np.where(m_all == -np.inf, 0.0, m_all)": "shift = 0.0 if m_all == -np.inf else m_all"},
            "The truth value of an array with more than one element is ambiguous",
        ),
    },
    "decode_bytes": {
        "acc of one split": (
            {"(2 * -(-d // 32) + d) * 4": "2 * -(-d // 32) * 4 + rows * d * 4"},
            "of 1776: q 288, k and v 768, m and l 144, acc 576",
        ),
    },
    "paged_attention": {
        "an epsilon in the divisor": (
            {"p.sum(axis=1, keepdims=True)": "(p.sum(axis=1, keepdims=True) + 1e-7)"},
            "the weight of the only key is exactly 1",
        ),
        "the last head of keys for the rest": (
            {"kv_head = head // (heads // kv_heads)": "kv_head = min(head, kv_heads - 1)"},
            "it is what query head 1 gets from kv head 1, not 0",
        ),
        "NaN in one head": (
            {"    return o": "    o[:, 1:2] *= np.where(np.arange(o.shape[1]) == 1, np.nan, 1)[1:2, None, None]\n    return o"},
            "o[0, 1] is NaN",
        ),
    },
    "decode_kernel": {
        "an epsilon in l": (
            {"l_i * alpha + tl.sum(p, axis=1)": "l_i * alpha + tl.sum(p, axis=1) + 1e-6"},
            "l is not exactly the number of keys",
        ),
    },
    "append_to_pages": {
        "a row behind the page": (
            {"token % page_size) for": "token % page_size + (token > length) * page_size) for"},
            "there is no row 7: the rows of a page are 0 to 4 here",
        ),
        "free is sorted": (
            {"    return pages, free": "    free.sort()\n    return pages, free"},
            "free has the right entries in another order",
        ),
        "a copy for each token": (
            {"    return pages": "    copies += [(pages[-1], page) for page in free[:n_tokens]]\n    return pages"},
            "a page is copied, although the sequence writes into none that others have",
        ),
    },
}  # fmt: skip
