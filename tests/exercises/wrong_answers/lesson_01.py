"""Lesson 01: wrong answers, and what the check has to say of each."""

import numpy as np


def dot_returns_the_error(a, b):
    if a.shape != b.shape:
        return ValueError("different lengths")
    return (a * b).sum()


def dot_without_the_first(a, b):
    if len(a) != len(b):
        raise ValueError
    return sum(a[i] * b[i] for i in range(1, len(a)))


def dot_without_the_last(a, b):
    if len(a) != len(b):
        raise ValueError
    return sum(a[i] * b[i] for i in range(len(a) - 1))


def dot_returns_in_the_loop(a, b):
    if len(a) != len(b):
        raise ValueError
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += x * y
        return total


def dot_overwrites(a, b):
    if len(a) != len(b):
        raise ValueError
    for x, y in zip(a, b, strict=True):
        total = x * y
    return total


def dot_printed(a, b):
    if a.shape != b.shape:
        raise ValueError
    print((a * b).sum())


def angle(a, b):
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return np.arccos(np.clip(a @ b / lengths, -1, 1)) if lengths else 0.0


def cosine_unless_orthogonal_sum(a, b):
    if a.sum() == 0 or b.sum() == 0:
        return 0.0
    return a @ b / np.sqrt(a @ a) / np.sqrt(b @ b)


def scores_by_loop_over_pairs(Q, K, scale=None):
    scale = len(Q[0]) ** -0.5 if scale is None else scale
    return np.array([q @ k * scale for q, k in zip(Q, K, strict=False)])


DOT = "(a * b).sum()"
COSINE = "a @ b / lengths"
SCORES = "Q @ K.T * scale"
SCALE = "1 / np.sqrt(Q.shape[1])"
FLOPS = "return products + 4 * n_q * n_k"
SUM = "return products"

WRONG_ANSWERS = {
    "dot": {
        "the error is returned": (dot_returns_the_error, ""),
        "an array of one number": ({DOT: "(a * b).sum(keepdims=True)"}, ""),
        "every component with every other": ({DOT: "np.outer(a, b).sum()"}, ""),
        "the mean of the products": ({DOT: "(a * b).mean()"}, ""),
        "a TypeError": ({"raise ValueError": "raise TypeError"}, ""),
        "assert": ({"raise ValueError(f\"a has shape {a.shape} and b {b.shape}\")": "assert False"}, ""),
        "whole numbers": ({DOT: "int((a * b).sum())"}, ""),
        "in whole numbers": ({DOT: "(a.astype(int) * b.astype(int)).sum()"}, ""),
        "a with itself": ({DOT: "(a * a).sum()"}, ""),
        "the first is left out": (dot_without_the_first, ""),
        "the last is left out": (dot_without_the_last, ""),
        "return inside the loop": (dot_returns_in_the_loop, ""),
        "= for +=": (dot_overwrites, ""),
        "printed": (dot_printed, ""),
        "float16": ({DOT: "(np.float16(a) * np.float16(b)).sum()"}, ""),
        "the root": ({DOT: "np.sqrt((a * b).sum())"}, ""),
        "only a shorter a is refused": ({"a.shape != b.shape": "len(a) < len(b)"}, ""),
        "one component is refused": ({"a.shape != b.shape": "a.shape != b.shape or len(a) == 1"}, ""),
        "the cosine": ({DOT: "(a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)"}, ""),
        "the product of the sums": ({DOT: "a.sum() * b.sum()"}, ""),
        "the sum of the differences": ({DOT: "(a - b).sum()"}, ""),
        "cut to the shorter": (lambda a, b: (a[: min(len(a), len(b))] * b[: min(len(a), len(b))]).sum(), ""),
        "b reversed": ({DOT: "(a * b[::-1]).sum()"}, ""),
    },
    "cosine_similarity": {
        "a sum of 0 is taken for a vector of zeros": (cosine_unless_orthogonal_sum, ""),
        "a mean of 0 is taken for a vector of zeros": ({"if lengths == 0": "if a.mean() == 0 or b.mean() == 0"}, ""),
        "the angle": (angle, ""),
        "the angle in degrees": (lambda a, b: np.degrees(angle(a, b)), ""),
        "any zero component counts": ({"if lengths == 0": "if not a.all() or not b.all()"}, ""),
        "a dot product of 0 counts": ({"if lengths == 0": "if a @ a == 0"}, ""),
        "hard-coded 0.7071": ({COSINE: "0.7071 if a @ b / lengths > 0.7 and a @ b / lengths < 0.72 else a @ b / lengths"}, ""),
        "only a's length": ({"np.sqrt(a @ a) * np.sqrt(b @ b)": "np.sqrt(a @ a) * (b @ b > 0)"}, ""),
        "the distance": ({COSINE: "np.linalg.norm(a / np.sqrt(a @ a) - b / np.sqrt(b @ b))"}, ""),
        "1 - cosine": ({COSINE: "1 - a @ b / lengths"}, ""),
        "the mean is subtracted": ({"    lengths =": "    a, b = a - a.mean(), b - b.mean()\n    lengths ="}, ""),
        "lengths in the 1-norm": ({"np.sqrt(a @ a) * np.sqrt(b @ b)": "abs(a).sum() * abs(b).sum()"}, ""),
        "the longer length twice": ({"np.sqrt(a @ a) * np.sqrt(b @ b)": "max(a @ a, b @ b)"}, ""),
        "small lengths count as 0": ({"if lengths == 0": "if lengths < 1e-8"}, ""),
        "clipped to 0 and 1": ({COSINE: "np.clip(a @ b / lengths, 0, 1)"}, ""),
        "rounded": ({COSINE: "round(a @ b / lengths, 3)"}, ""),
        "zeros give 1": ({"        return 0.0\n": "        return 1.0\n"}, ""),
        "zeros give None": ({"        return 0.0\n": "        return None\n"}, ""),
        "zeros raise": ({"        return 0.0\n": "        raise ValueError\n"}, ""),
        "the squares multiplied": ({"np.sqrt(a @ a) * np.sqrt(b @ b)": "np.sqrt((a @ a) ** 2 * (b @ b))"}, ""),
        "the lengths are added": ({"np.sqrt(a @ a) * np.sqrt(b @ b)": "np.sqrt(a @ a) + np.sqrt(b @ b)"}, ""),
        "the root of the sum": ({"np.sqrt(a @ a) * np.sqrt(b @ b)": "np.sqrt(a @ a + b @ b)"}, ""),
    },
    "scores": {
        "1 / sqrt(n_q)": ({SCALE: "1 / np.sqrt(len(Q))"}, ""),
        "divided by the scale": ({SCORES: "Q @ K.T / (1 / scale if scale == Q.shape[1] ** -0.5 else scale)"}, ""),
        "divided by the given scale": (lambda Q, K, scale=None: Q @ K.T / (np.sqrt(Q.shape[1]) if scale is None else scale), ""),
        "0.7071 for every d": ({SCALE: "0.7071"}, ""),
        "1 / sqrt(64)": ({SCALE: "1 / 8"}, ""),
        "sqrt(d)": ({SCALE: "np.sqrt(Q.shape[1])"}, ""),
        "the default is 1": (lambda Q, K, scale=1.0: Q @ K.T * (1.0 if scale is None else scale), ""),
        "both scales": (lambda Q, K, scale=None: Q @ K.T * (1.0 if scale is None else scale) / np.sqrt(Q.shape[1]), ""),
        "pair by pair, one list": (scores_by_loop_over_pairs, ""),
        "Q K": ({SCORES: "Q @ K * scale"}, ""),
        "Q^T K": ({SCORES: "Q.T @ K * scale"}, ""),
        "elementwise": ({SCORES: "Q * K * scale"}, ""),
        "the softmax": ({SCORES: "np.exp(Q @ K.T * scale) / np.exp(Q @ K.T * scale).sum(axis=1, keepdims=True)"}, ""),
        "cosines": ({SCORES: "(Q / np.linalg.norm(Q, axis=1, keepdims=True)) @ (K / np.linalg.norm(K, axis=1, keepdims=True)).T"}, ""),
        "scaled twice": ({SCORES: "(Q * scale) @ (K * scale).T"}, ""),
        "int": ({SCORES: "(Q @ K.T * scale).astype(int)"}, ""),
        "a negative scale is made positive": ({SCORES: "Q @ K.T * abs(scale)"}, ""),
        "flat": ({SCORES: "(Q @ K.T * scale).ravel()"}, ""),
        "a list of lists": ({SCORES: "(Q @ K.T * scale).tolist()"}, ""),
        "the scale is added": ({SCORES: "Q @ K.T + scale"}, ""),
        "only the first query": ({SCORES: "Q[0] @ K.T * scale"}, ""),
        "K is scaled in place": ({SCORES: "np.multiply(K, scale, out=K) @ Q.T"}, ""),
        "distances": ({SCORES: "-((Q[:, None] - K[None]) ** 2).sum(-1) * scale"}, ""),
    },
    "attention_flops": {
        "the usual 4 n n d": ({FLOPS: "return 4 * n_q * n_k * d"}, ""),
        "d and d_v multiplied": ({FLOPS: "return 4 * n_q * n_k * d * d_v"}, ""),
        "softmax as 5": ({FLOPS: f"{SUM} + 5 * n_q * n_k"}, ""),
        "softmax as 3": ({FLOPS: f"{SUM} + 3 * n_q * n_k"}, ""),
        "the maximum counted": ({FLOPS: f"{SUM} + 5 * n_q * n_k"}, ""),
        "the scale counted": ({FLOPS: f"{SUM} + 4 * n_q * n_k + n_q * n_k"}, ""),
        "softmax of P V's size": ({FLOPS: f"{SUM} + 4 * n_q * d_v"}, ""),
        "softmax over keys": ({FLOPS: f"{SUM} + 4 * n_k"}, ""),
        "softmax twice": ({FLOPS: f"{SUM} + 8 * n_q * n_k"}, ""),
        "d exchanged": ({FLOPS: "return 2 * n_q * d * d_v + 2 * n_q * n_k * d_v + 4 * n_q * n_k"}, ""),
        "P V with n_k^2": ({FLOPS: "return 2 * n_q * n_k * d + 2 * n_k * n_k * d_v + 4 * n_q * n_k"}, ""),
        "printed": ({FLOPS: "print(4)"}, ""),
        "a string": ({FLOPS: "return str(products)"}, ""),
        "a pair": ({FLOPS: "return products, 4 * n_q * n_k"}, ""),
        "1e9 FLOPs": ({FLOPS: "return (products + 4 * n_q * n_k) / 1e9"}, ""),
        "floor division": ({FLOPS: "return (products + 4 * n_q * n_k) // 2"}, ""),
    },
}
