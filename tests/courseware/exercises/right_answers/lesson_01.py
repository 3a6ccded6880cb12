"""Lesson 01: right answers written differently."""

import numpy as np


def dot_by_loop(a, b):
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += x * y
    return total


def dot_by_halves(a, b):
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} components")
    if len(a) == 1:
        return float(a[0]) * float(b[0])
    half = len(a) // 2
    return dot_by_halves(a[:half], b[:half]) + dot_by_halves(a[half:], b[half:])


def cosine_of_unit_vectors(a, b):
    if not a.any() or not b.any():
        return 0
    return (a / np.linalg.norm(a)) @ (b / np.linalg.norm(b))


def cosine_by_distance(a, b):
    length_a, length_b = np.linalg.norm(a), np.linalg.norm(b)
    if length_a == 0 or length_b == 0:
        return 0.0
    return 1 - ((a / length_a - b / length_b) ** 2).sum() / 2


def scores_pair_by_pair(Q, K, scale=None):
    factor = len(Q[0]) ** -0.5 if scale is None else scale
    return np.array([[sum(x * y for x, y in zip(q, k, strict=True)) * factor for k in K] for q in Q])


RIGHT_ANSWERS = {
    "dot": {
        "a loop": dot_by_loop,
        "the operator @": lambda a, b: a @ b,
        "in long double": {"(a * b).sum()": "(np.longdouble(a) * np.longdouble(b)).sum()"},
        "recursively": dot_by_halves,
        "in float32": {"(a * b).sum()": "np.einsum('i,i', np.float32(a), np.float32(b))"},
    },
    "cosine_similarity": {
        "unit vectors first": cosine_of_unit_vectors,
        "in float32": {"    lengths =": "    a, b = np.float32(a), np.float32(b)\n    lengths ="},
        "by the distance of the unit vectors": cosine_by_distance,
        "one root of both squares": {"np.sqrt(a @ a) * np.sqrt(b @ b)": "np.sqrt((a @ a) * (b @ b))"},
    },
    "scores": {
        "pair by pair": scores_pair_by_pair,
        "as a list of lists": lambda Q, K, scale=None: scores_pair_by_pair(Q, K, scale).tolist(),
        "in float32, by einsum": {"Q @ K.T": "np.einsum('id,jd->ij', np.float32(Q), np.float32(K))"},
        "a copy of Q is scaled first": {"Q @ K.T * scale": "(Q * scale) @ K.T"},
    },
    "attention_flops": {
        "score by score": lambda n_q, n_k, d, d_v: sum(2 * d + 2 * d_v + 4 for _ in range(n_q) for _ in range(n_k)),
        "int64": {"4 * n_q": "np.int64(4) * n_q"},
    },
}
