"""Lesson 14: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

WRONG_ANSWERS = {
    "merge_splits": {
        "an epsilon in the divisor": (
            {"l_all = (alpha * l).sum(axis=-1)": "l_all = (alpha * l).sum(axis=-1) + 1e-9"},
            "digits only, where float64 has 15",
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
    },
}  # fmt: skip
