import numpy as np


def cosine_of_unit_vectors(a, b):
    if not a.any() or not b.any():
        return 0
    return (a / np.linalg.norm(a)) @ (b / np.linalg.norm(b))


def scores_pair_by_pair(Q, K, scale=None):
    factor = len(Q[0]) ** -0.5 if scale is None else scale
    return [[sum(x * y for x, y in zip(q, k, strict=True)) * factor for k in K] for q in Q]


RIGHT_ANSWERS = {
    "dot": {"term by term": lambda a, b: sum(x * y for x, y in zip(a, b, strict=True)),
            "in float32": {"(a * b).sum()": "np.einsum('i,i', np.float32(a), np.float32(b))"}},
    "cosine_similarity": {"unit vectors first": cosine_of_unit_vectors,
                          "in float32": {"    lengths =": "    a, b = np.float32(a), np.float32(b)\n    lengths ="}},
    "scores": {"pair by pair, as a list of lists": scores_pair_by_pair,
               "in float32, by einsum": {"Q @ K.T": "np.einsum('id,jd->ij', np.float32(Q), np.float32(K))"}},
    "attention_flops": {
        "score by score": lambda n_q, n_k, d, d_v: sum(2 * d + 2 * d_v + 4 for _ in range(n_q) for _ in range(n_k)),
        "int64": {"4 * n_q": "np.int64(4) * n_q"}},
}  # fmt: skip
