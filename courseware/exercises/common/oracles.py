"""What an answer should return, where exercises of several lessons expect the same."""

from dataclasses import replace
from functools import partial

import numpy as np

from course_lib import reference
from course_lib.reference.attention import causal_mask
from courseware.checks import expected


def attention_output(name, q, k, v, causal=False, scale=None):
    """[ExpectedOutput] of one head, with an error budget for an answer that computes in float32."""
    of = partial(reference.attention, causal=causal, scale=scale)
    # A score's own rounding, relative to its terms, is a relative error of its weight.
    q_size, k_size, v_size = (np.abs(x).astype(np.float64) for x in (q, k, v))
    conditioning = 1 + (q_size @ k_size.T).max() * (q.shape[1] ** -0.5 if scale is None else scale)
    (part,) = expected(name, of, q, k, v, terms=conditioning * v_size.max())
    return [replace(part, product=lambda: ("key", weights(q, k, causal, scale), np.float64(v)))]


def weights(q, k, causal=False, scale=None):
    """P of one head, in float64; 0 in a row that sees no key."""
    S = reference.scores(np.float64(q), np.float64(k), q.shape[1] ** -0.5 if scale is None else scale)
    return reference.stable_softmax(np.where(causal_mask(*S.shape), S, -np.inf) if causal else S)
