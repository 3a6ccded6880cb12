"""Lesson 04: right answers written differently."""

import numpy as np

from courseware.exercises.lesson_04.attention import attention


def mask_pair_by_pair(n_q, n_k):
    """Counted from the end."""
    return np.array([[n_k - 1 - j >= n_q - 1 - i for j in range(n_k)] for i in range(n_q)])


def attention_query_by_query(Q, K, V, causal=False):
    out = np.zeros((len(Q), V.shape[1]))
    for i, q in enumerate(Q):
        seen = min(max(i + 1 + len(K) - len(Q), 0), len(K)) if causal else len(K)
        if seen:
            s = K[:seen] @ q / Q.shape[1] ** 0.5
            p = np.exp(s - s.max())
            out[i] = p @ V[:seen] / p.sum()
    return out


def heads_in_a_loop(X, Wq, Wk, Wv, Wo, n_heads, causal=False):
    d = X.shape[1] // n_heads
    columns = [slice(h * d, (h + 1) * d) for h in range(n_heads)]
    heads = [attention_query_by_query(*((X @ W)[:, c] for W in (Wq, Wk, Wv)), causal) for c in columns]
    return np.concatenate(heads, axis=1) @ Wo


def heads_summed(X, Wq, Wk, Wv, Wo, n_heads, causal=False):
    """Each head with its own rows of Wo."""
    total = 0
    for q, k, v, o in zip(*(np.split(W, n_heads, axis=1) for W in (Wq, Wk, Wv)), np.split(Wo, n_heads), strict=True):
        total = total + attention(X @ q, X @ k, X @ v, causal) @ o
    return total


def bytes_from_shapes(n, d, bytes_per_element):
    element = np.zeros((), f"V{bytes_per_element}")
    S, Q = (np.broadcast_to(element, shape).nbytes for shape in ((n, n), (n, d)))
    mask = np.broadcast_to(True, (n, n)).nbytes
    arrays = {"P V": (S, Q, Q), "Q K^T": (Q, Q, S), "scale": (S, S), "mask": (mask, S, S), "softmax": (S, S)}
    return {name: sum(moved) for name, moved in arrays.items()}


RIGHT_ANSWERS = {
    "causal_mask": {
        "np.tri": lambda n_q, n_k: np.tri(n_q, n_k, n_k - n_q, dtype=bool),
        "pair by pair, from the end": mask_pair_by_pair,
    },
    "attention": {
        "query by query": attention_query_by_query,
        "as a list of lists": lambda *arguments: attention_query_by_query(*arguments).tolist(),
        "scaled queries, in float32": {
            "S = Q @ K.T / np.sqrt(d)": "S = (Q / np.sqrt(d)).astype(np.float32) @ K.astype(np.float32).T"
        },
    },
    "multi_head_attention": {
        "head by head": heads_in_a_loop,
        "a sum over heads, each with its rows of Wo": heads_summed,
    },
    "standard_attention_bytes": {
        "counted from shapes": bytes_from_shapes,
        "int64": {"n * n * bytes": "np.int64(n) * n * bytes", "n * d * bytes": "np.int64(n) * d * bytes"},
    },
}
