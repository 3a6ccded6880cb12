"""Lesson 05: wrong answers, and what the check has to say of each."""

import numpy as np


def merge_weighted_by_l(a, b):
    (m_a, l_a, acc_a), (m_b, l_b, acc_b) = a, b
    m = np.maximum(m_a, m_b)
    shift = np.where(m == -np.inf, 0.0, m)
    w_a, w_b = np.exp(m_a - shift) * l_a, np.exp(m_b - shift) * l_b
    return m, w_a + w_b, w_a[..., None] * acc_a + w_b[..., None] * acc_b


def normalizer_from_the_first(stream):
    stream = iter(stream)
    m, l = next(stream), 1.0
    for s in stream:
        m_new = max(m, s)
        l = l * np.exp(m - m_new) + np.exp(s - m_new)
        m = m_new
    return m, l


def update_masked_at_1e4(m, l, acc, scores, values):
    m_new = np.maximum(m, scores.max(-1))
    shift = np.where(np.isneginf(m_new), 0, m_new)
    s = np.where(np.isneginf(scores), -1e4, scores).astype(scores.dtype)
    alpha, p = np.exp(m - shift), np.exp(s - shift[..., None])
    return m_new, alpha * l + p.sum(-1), alpha[..., None] * acc + p @ values


def update_one_masked_row_stops_all(m, l, acc, scores, values):
    if not np.isneginf(m).any() and np.isneginf(scores).all(axis=-1).any():
        return m, l, acc
    m_new = np.maximum(m, scores.max(-1))
    shift = np.where(np.isneginf(m_new), 0, m_new)
    alpha, p = np.exp(m - shift), np.exp(scores - shift[..., None])
    return m_new, alpha * l + p.sum(-1), alpha[..., None] * acc + p @ values


def merge_one_empty_row_decides(a, b):
    m = np.maximum(a[0], b[0])
    if np.isneginf(a[0]).any() and not np.isneginf(b[0]).any():
        return b
    shift = np.where(np.isneginf(m), 0, m)
    f, g = np.exp(a[0] - shift), np.exp(b[0] - shift)
    return m, f * a[1] + g * b[1], f[..., None] * a[2] + g[..., None] * b[2]


SCORES = "scores = K[start : start + block] @ q / np.sqrt(d)"

WRONG_ANSWERS = {
    "online_normalizer": {
        "from the first score": (normalizer_from_the_first, "l is 1 too large"),
        "start at -1e6": (
            {"-np.inf, 0.0\n    for": "-1e6, 0.0\n    for", "if m_new == -np.inf:": "if m_new == -1e6:"},
            "",
        ),
    },
    "online_softmax_update": {
        "one masked row stops all": (update_one_masked_row_stops_all, "at row 1 of 2"),
        "masked keys at -1e4": (update_masked_at_1e4, ""),
    },
    "merge_states": {
        "one empty row decides": (merge_one_empty_row_decides, ""),
        "weighted by l": (merge_weighted_by_l, "Each acc is multiplied by its l, as if it were a normalised"),
    },
    "online_attention": {
        "an acc of length d": (
            {"np.zeros(V.shape[1])": "np.zeros(d)"},
            "the answer raised ValueError: operands could not be",
        ),
        "no block at a time": (
            {SCORES: SCORES.replace("start : start + block", "start : start + 1")},
            "the answer raised ValueError: matmul: Input operand 1 has a",
        ),
    },
}
