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


def cosine_unless_short(a, b):
    length_a, length_b = np.linalg.norm(a), np.linalg.norm(b)
    if length_a < np.finfo(float).eps or length_b < np.finfo(float).eps:
        return 0.0
    return (a / length_a) @ (b / length_b)


def scores_as_if_square(Q, K, scale=None):
    n, d = Q.shape
    S = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            S[i, j] = Q[i] @ K[j] * (d**-0.5 if scale is None else scale)
    return S


def flops_without_the_subtraction(n_q, n_k, d, d_v):
    per_score = 2 * d + 2 * d_v
    per_score += 1  # exp
    per_score += 1  # add to the row's sum
    per_score += 1  # divide
    return n_q * n_k * per_score


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
        "the error is returned": (dot_returns_the_error, "the ValueError is returned; it has to be raised"),
        "an array of one number": ({DOT: "(a * b).sum(keepdims=True)"}, "the dot product has shape (1,), not ()"),
        "every component with every other": (
            {DOT: "np.outer(a, b).sum()"},
            "Every component of a is multiplied with every component of",
        ),
        "the mean of the products": ({DOT: "(a * b).mean()"}, "The mean of the products is returned, not their sum."),
        "a TypeError": ({"raise ValueError": "raise TypeError"}, "An error is raised, but it is no ValueError."),
        "assert": (
            {'raise ValueError(f"a has shape {a.shape} and b {b.shape}")': "assert False"},
            "the answer raised AssertionError",
        ),
        "whole numbers": ({DOT: "int((a * b).sum())"}, "Numbers are cut to whole ones on the way, or rounded to them."),
        "in whole numbers": (
            {DOT: "(a.astype(int) * b.astype(int)).sum()"},
            "Numbers are cut to whole ones on the way, or rounded to them.",
        ),
        "a with itself": ({DOT: "(a * a).sum()"}, "b is not used: a is multiplied with itself."),
        "the first is left out": (dot_without_the_first, "The product of the first components is left out."),
        "the last is left out": (dot_without_the_last, "The product of the last components is left out."),
        "return inside the loop": (dot_returns_in_the_loop, "Only the product of the first components is returned."),
        "= for +=": (dot_overwrites, "Only the product of the last components is returned."),
        "printed": (dot_printed, "the answer returned None, not a number: is there a return"),
        "float16": (
            {DOT: "(np.float16(a) * np.float16(b)).sum()"},
            "Something on the way is rounded to float16",
        ),
        "only a longer b is refused": (
            {"a.shape != b.shape": "len(a) < len(b)"},
            "Only a longer b is refused. A longer a is not.",
        ),
        "one component is refused": (
            {"a.shape != b.shape": "a.shape != b.shape or len(a) == 1"},
            "the answer raised ValueError: a has shape (1,) and b (1,)",
        ),
        "the cosine": (
            {DOT: "(a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)"},
            "The product is divided by the lengths of the vectors. That",
        ),
        "the product of the sums": (
            {DOT: "a.sum() * b.sum()"},
            "Every component of a is multiplied with every component of",
        ),
        "the sum of the differences": ({DOT: "(a - b).sum()"}, "The components are subtracted, not multiplied."),
        "cut to the shorter": (
            lambda a, b: (a[: min(len(a), len(b))] * b[: min(len(a), len(b))]).sum(),
            "Vectors with unequal numbers of components are accepted",
        ),
        "b reversed": ({DOT: "(a * b[::-1]).sum()"}, "The components of b are taken in reverse order."),
    },
    "cosine_similarity": {
        "a sum of 0 is taken for a vector of zeros": (
            cosine_unless_orthogonal_sum,
            "A vector whose components add up to 0 is taken for a vector",
        ),
        "a mean of 0 is taken for a vector of zeros": (
            {"if lengths == 0": "if a.mean() == 0 or b.mean() == 0"},
            "A vector whose components add up to 0 is taken for a vector",
        ),
        "the angle": (angle, "The angle is returned, not its cosine."),
        "the angle in degrees": (lambda a, b: np.degrees(angle(a, b)), "The angle is returned, not its cosine."),
        "any zero component counts": (
            {"if lengths == 0": "if not a.all() or not b.all()"},
            "A vector with a single component of 0 is taken for a vector",
        ),
        "a dot product of 0 counts": (
            {"if lengths == 0": "if a @ a == 0"},
            "Only one of the two vectors is tested for zeros.",
        ),
        "hard-coded 0.7071": (
            {COSINE: "0.7071 if a @ b / lengths > 0.7 and a @ b / lengths < 0.72 else a @ b / lengths"},
            "the cosine is right to about 5 digits only",
        ),
        "only a's length": (
            {"np.sqrt(a @ a) * np.sqrt(b @ b)": "np.sqrt(a @ a) * (b @ b > 0)"},
            "Only one of the two lengths is divided by.",
        ),
        "the distance": (
            {COSINE: "np.linalg.norm(a / np.sqrt(a @ a) - b / np.sqrt(b @ b))"},
            "A distance is returned: 0 for vectors of the same",
        ),
        "1 - cosine": ({COSINE: "1 - a @ b / lengths"}, "A distance is returned: 0 for vectors of the same"),
        "the mean is subtracted": (
            {"    lengths =": "    a, b = a - a.mean(), b - b.mean()\n    lengths ="},
            "The mean is subtracted from each vector first. That makes a",
        ),
        "lengths in the 1-norm": (
            {"np.sqrt(a @ a) * np.sqrt(b @ b)": "abs(a).sum() * abs(b).sum()"},
            "The lengths are sums of components, or of their absolute",
        ),
        "the longer length twice": (
            {"np.sqrt(a @ a) * np.sqrt(b @ b)": "max(a @ a, b @ b)"},
            "The divisor is not the product of the two lengths.",
        ),
        "each length below float64's eps counts as 0": (
            cosine_unless_short,
            "Short vectors are taken for vectors of zeros.",
        ),
        "both have to be zeros": (
            {"if lengths == 0": "if a @ a == 0 and b @ b == 0"},
            "0 is returned only if both vectors are zeros.",
        ),
        "rounded": ({COSINE: "round(a @ b / lengths, 3)"}, "The result is rounded to a few decimals."),
        "zeros give 1": (
            {"        return 0.0\n": "        return 1.0\n"},
            "For a vector of zeros the answer does not return 0.",
        ),
        "zeros give None": (
            {"        return 0.0\n": "        return None\n"},
            "For a vector of zeros the answer does not return 0.",
        ),
        "zeros raise": (
            {"        return 0.0\n": "        raise ValueError\n"},
            "For a vector of zeros the answer does not return 0.",
        ),
        "the squares multiplied": (
            {"np.sqrt(a @ a) * np.sqrt(b @ b)": "np.sqrt((a @ a) ** 2 * (b @ b))"},
            "The dot product is divided by one length and by the square of",
        ),
        "the lengths are added": (
            {"np.sqrt(a @ a) * np.sqrt(b @ b)": "np.sqrt(a @ a) + np.sqrt(b @ b)"},
            "The divisor is not the product of the two lengths.",
        ),
        "the root of the sum": (
            {"np.sqrt(a @ a) * np.sqrt(b @ b)": "np.sqrt(a @ a + b @ b)"},
            "The divisor is not the product of the two lengths.",
        ),
    },
    "scores": {
        "float16 where a scale is given": (
            lambda Q, K, scale=None: (
                Q @ K.T / np.sqrt(Q.shape[1]) if scale is None else np.float16(Q) @ np.float16(K).T * scale
            ),
            "which keeps about three decimal digits",
        ),
        "float16 for float32": (
            {SCORES: "(Q @ K.T * scale).astype(np.float16 if Q.dtype == np.float32 else Q.dtype)"},
            "S came back as float16",
        ),
        "n_q x n_q": (scores_as_if_square, "There are as many columns as queries."),
        "another scale has no effect": ({SCORES: "Q @ K.T / np.sqrt(Q.shape[1])"}, "another scale was given"),
        "1 / sqrt(n_q)": ({SCALE: "1 / np.sqrt(len(Q))"}, "The dot products are divided by sqrt(n_q), not by sqrt(d)."),
        "divided by the scale": (
            {SCORES: "Q @ K.T / (1 / scale if scale == Q.shape[1] ** -0.5 else scale)"},
            "S is too large by the same factor 3 at every query",
        ),
        "divided by the given scale": (
            lambda Q, K, scale=None: Q @ K.T / (np.sqrt(Q.shape[1]) if scale is None else scale),
            "The scores are divided by the scale that was given.",
        ),
        "0.7071 for every d": ({SCALE: "0.7071"}, "The default scale is the same number for every d."),
        "1 / sqrt(64)": ({SCALE: "1 / 8"}, "The default scale is the same number for every d."),
        "sqrt(d)": ({SCALE: "np.sqrt(Q.shape[1])"}, "The dot products are multiplied by sqrt(d), not divided."),
        "the default is 1": (
            lambda Q, K, scale=1.0: Q @ K.T * (1.0 if scale is None else scale),
            "With scale=None, the dot products are not scaled at all.",
        ),
        "pair by pair, one list": (
            scores_by_loop_over_pairs,
            "Each query is paired with the key of the same number only.",
        ),
        "Q K": ({SCORES: "Q @ K * scale"}, "the answer raised ValueError: matmul: Input operand 1 has a"),
        "Q^T K": ({SCORES: "Q.T @ K * scale"}, "the answer raised ValueError: matmul: Input operand 1 has a"),
        "elementwise": ({SCORES: "Q * K * scale"}, "the answer raised ValueError: operands could not be"),
        "the softmax": (
            {SCORES: "np.exp(Q @ K.T * scale) / np.exp(Q @ K.T * scale).sum(axis=1, keepdims=True)"},
            "The scores went through a softmax. Here they are wanted as",
        ),
        "scaled twice": (
            {SCORES: "(Q * scale) @ (K * scale).T"},
            "The scores are scaled twice, for instance because both",
        ),
        "a negative scale is made positive": ({SCORES: "Q @ K.T * abs(scale)"}, "The sign of the scale is lost."),
        "flat": ({SCORES: "(Q @ K.T * scale).ravel()"}, "S has shape (6,), not (2, 3)"),
        "the scale is added": ({SCORES: "Q @ K.T + scale"}, "The scale is added to the scores, not multiplied."),
        "only the first query": ({SCORES: "Q[0] @ K.T * scale"}, "S has shape (3,), not (2, 3)"),
        "distances": ({SCORES: "-((Q[:, None] - K[None]) ** 2).sum(-1) * scale"}, "S is wrong at every query"),
    },
    "attention_flops": {
        "three operations for each score": (
            flops_without_the_subtraction,
            "One operation is missing for each of the n_q",
        ),
        "d and d_v multiplied": ({FLOPS: "return 4 * n_q * n_k * d * d_v"}, "the count is 4 too small"),
        "softmax of P V's size": ({FLOPS: f"{SUM} + 4 * n_q * d_v"}, "the count is 12 too large"),
        "softmax over keys": ({FLOPS: f"{SUM} + 4 * n_k"}, "the count is 12 too small"),
        "d exchanged": (
            {FLOPS: "return 2 * n_q * d * d_v + 2 * n_q * n_k * d_v + 4 * n_q * n_k"},
            "the count is 6 too large",
        ),
        "P V with n_k^2": (
            {FLOPS: "return 2 * n_q * n_k * d + 2 * n_k * n_k * d_v + 4 * n_q * n_k"},
            "the count is 42 too large",
        ),
        "printed": ({FLOPS: "print(4)"}, "the answer returned None, not a number: is there a return"),
        "a string": ({FLOPS: "return str(products)"}, "the count is a str, not a number"),
        "a pair": ({FLOPS: "return products, 4 * n_q * n_k"}, "the count is a tuple, not a number"),
    },
}
