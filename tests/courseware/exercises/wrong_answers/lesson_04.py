"""Lesson 04: wrong answers, and what the check has to say of each."""

import numpy as np


def attention_no_maximum_beside_an_empty_row(Q, K, V, causal=False):
    s = Q @ K.T / np.sqrt(Q.shape[1])
    if causal:
        s = np.where(np.tri(*s.shape, len(K) - len(Q), dtype=bool), s, -np.inf)
    m = s.max(axis=1, keepdims=True)
    if np.isinf(m).any():
        m = np.zeros_like(m)
    e = np.exp(s - m)
    z = e.sum(axis=1, keepdims=True)
    return np.divide(e, z, out=np.zeros_like(e), where=z > 0) @ V


def attention_empty_rows_by_a_negative_stop(Q, K, V, causal=False):
    n_q, n_k = len(Q), len(K)
    S = Q @ K.T / np.sqrt(Q.shape[1])
    if causal:
        S = np.where(np.tri(n_q, n_k, n_k - n_q, dtype=bool), S, -np.inf)
        S[: n_q - n_k] = 0
    P = np.exp(S - S.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    if causal:
        P[: n_q - n_k] = 0
    return P @ V


BACK = "O.transpose(1, 0, 2).reshape(n, d_model) @ Wo"

WRONG_ANSWERS = {
    "causal_mask": {
        "square": (lambda n_q, n_k: np.tri(n_q, dtype=bool), "The mask is square, whatever the two lengths are."),
        "np.tri": (
            lambda n_q, n_k: np.tri(n_q, n_k, dtype=bool),
            "Query i sees the keys 0 to i, whatever the two lengths are.",
        ),
    },
    "attention": {
        "empty rows by a negative stop": (
            attention_empty_rows_by_a_negative_stop,
            "a slice counts negative numbers from the end",
        ),
        "one empty row switches the maximum off": (attention_no_maximum_beside_an_empty_row, ""),
    },
    "multi_head_attention": {
        "out not transposed": (
            {BACK: "O.reshape(n, d_model) @ Wo"},
            "The heads' outputs lie one after the other, each with all its",
        ),
    },
    "standard_attention_bytes": {
        "d squared": (
            {"matrix = n * d * bytes_per_element": "matrix = d * d * bytes_per_element"},
            "Q K^T is 48 too small",
        ),
        "kilobytes": (
            {"square = n * n * bytes_per_element": "square = n * n * bytes_per_element // 1000"},
            "Q K^T is 128 too small",
        ),
    },
}
