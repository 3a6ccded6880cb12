import numpy as np


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


RIGHT_ANSWERS = {
    "causal_mask": {"np.tri": lambda n_q, n_k: np.tri(n_q, n_k, n_k - n_q, dtype=bool)},
    "attention": {
        "as a list of lists": lambda *arguments: attention_query_by_query(*arguments).tolist(),
        "scaled queries, in float32": {"Q @ K.T / np.sqrt(d)": "np.float32(Q / np.sqrt(d)) @ np.float32(K).T"}},
    "multi_head_attention": {"head by head": heads_in_a_loop},
    "standard_attention_bytes": {"int64": {"n * n * bytes": "np.int64(n) * n * bytes"}},
}  # fmt: skip
