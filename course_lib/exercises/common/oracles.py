"""What an answer should return, where exercises of several lessons expect the same."""

from functools import partial

import numpy as np

from course_lib import reference
from course_lib.grading import expected


def attention_output(name, q, k, v, causal=False, scale=None):
    """[ExpectedOutput] of one head, with an error budget for an answer that computes in float32."""
    of = partial(reference.attention, causal=causal, scale=scale)
    # A score's own rounding, relative to its terms, is a relative error of its weight.
    q_size, k_size, v_size = (np.abs(x).astype(np.float64) for x in (q, k, v))
    conditioning = 1 + (q_size @ k_size.T).max() * (q.shape[1] ** -0.5 if scale is None else scale)
    return expected(name, of, q, k, v, terms=conditioning * v_size.max())
