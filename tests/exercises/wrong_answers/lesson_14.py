"""Lesson 14: wrong answers that are no slips, and what the check has to say of each."""

WRONG_ANSWERS = {
    "merge_splits": {
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
        "NaN in one head": (
            {"    return o": "    o[:, 1:2] *= np.where(np.arange(o.shape[1]) == 1, np.nan, 1)[1:2, None, None]\n    return o"},
            "o[0, 1] is NaN",
        ),
    },
    "append_to_pages": {
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
