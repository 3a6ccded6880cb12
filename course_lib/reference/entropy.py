"""How evenly a set of weights is spread."""

import numpy as np

from .dot import as_float_array, statistics_dtype


def entropy(p, axis=-1):
    """-sum(p log p) along `axis`, natural logarithm: 0 for one weight of 1, log(n) for n equal weights.

    p: float16, float32 or float64, any shape; weights of at least 0 that add up to 1 along `axis`. A weight of
    0 adds nothing. Returns p's shape without `axis`, in the statistics dtype (float32, or float64 for
    float64). Raises TypeError for another dtype. Shannon (1948), section 6, in nats.
    """
    p = as_float_array(p, "p")
    p = p.astype(statistics_dtype(p.dtype), copy=False)
    return (p * -np.log(np.where(p == 0, 1, p))).sum(axis=axis)
