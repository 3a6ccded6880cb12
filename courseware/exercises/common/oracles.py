"""What an answer should return, where exercises of several lessons expect the same."""

from dataclasses import replace

import numpy as np

from course_lib import reference
from courseware.checks import ExpectedOutput, expected


def attention_output(name, q, k, v, causal=False, scale=None):
    """[ExpectedOutput] of one head, with an error budget for an answer that computes in float32. causal: see `weights`.

    Without keys, the output is 0.
    """

    def of(q, k, v):
        return weights(q, k, causal, scale) @ v

    # A score's own rounding, relative to its terms, is a relative error of its weight.
    q_size, k_size, v_size = (np.abs(x).astype(np.float64) for x in (q, k, v))
    sizes = np.where(_visible(len(q), len(k), causal), reference.scores(q_size, k_size, scale), 0)
    conditioning = 1 + sizes.max(axis=1, keepdims=True, initial=0)
    (part,) = expected(name, of, q, k, v, terms=conditioning * v_size.max(initial=0))
    return [replace(part, product=lambda: ("key", weights(np.float64(q), np.float64(k), causal, scale), np.float64(v)))]


def output_from_float16(name, q, k, v, terms, **how):
    """[ExpectedOutput] of one head. Weights may be rounded to float16, each once; a float16 accumulator may not be."""
    P = weights(q, k, **how)
    largest = P.max(axis=1, keepdims=True)
    rounded = (P / largest).astype(np.float16) * largest @ v
    return [ExpectedOutput(name, P @ v, rounded, terms, product=lambda: ("key", P, v))]


def weights(q, k, causal=False, scale=None):
    """P of one head; 0 in a row that sees no key. causal: whether, or which pairs are visible, [n_q, n_k] of bool."""
    S = reference.scores(q, k, scale)
    return reference.stable_softmax(np.where(_visible(*S.shape, causal), S, -np.inf))


def _visible(n_q, n_k, causal):
    if isinstance(causal, np.ndarray):
        return causal
    return np.tri(n_q, n_k, n_k - n_q if causal else n_k, dtype=bool)
