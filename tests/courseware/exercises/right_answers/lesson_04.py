import numpy as np

RIGHT_ANSWERS = {
    "causal_mask": {"np.tri": lambda n_q, n_k: np.tri(n_q, n_k, n_k - n_q, dtype=bool)},
    "attention": {
        "divided at the end, as a list of lists": {
            "return P / np.where(l == 0, 1, l) @ V": "return (P @ V / np.where(l == 0, 1, l)).tolist()"},
        "scaled queries, in float32": {"Q @ K.T / np.sqrt(d)": "np.float32(Q / np.sqrt(d)) @ np.float32(K).T"}},
    "multi_head_attention": {
        "in the inputs' dtype, divided at the end": {
            "/ np.sqrt(d)": "* d**-0.5",
            "P / P.sum(axis=-1, keepdims=True) @ V": "P @ V / P.sum(axis=-1, keepdims=True)"}},
    "standard_attention_bytes": {"int64": {"n * n * bytes": "np.int64(n) * n * bytes"}},
}  # fmt: skip
