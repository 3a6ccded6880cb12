"""What an answer should return, where exercises of several lessons expect the same."""

from functools import partial

import numpy as np

from course_lib import reference
from course_lib.grading.diagnosis import exact_and_plain
from course_lib.grading.exercise import ExpectedOutput


def attention_output(name, q, k, v, causal=False, scale=None):
    """[ExpectedOutput] of one head, with an error budget for an answer that computes in float32."""
    exact, plain = exact_and_plain(partial(reference.attention, causal=causal, scale=scale), q, k, v)
    # A score's own rounding, relative to its terms, is a relative error of its weight.
    q, k, v = (np.abs(x).astype(np.float64) for x in (q, k, v))
    conditioning = 1 + (q @ k.T).max() * (q.shape[1] ** -0.5 if scale is None else scale)
    return [ExpectedOutput(name, exact, plain, conditioning * v.max())]
