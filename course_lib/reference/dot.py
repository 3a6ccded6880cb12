"""Similarity as a sum of products, and the matrix of every pair of them."""

import math
from numbers import Real

import numpy as np

FLOAT_DTYPES = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))


def as_float_array(x, name):
    """`x` as an array (itself if it is one); TypeError if not float16, float32 or float64."""
    x = np.asarray(x)
    if x.dtype not in FLOAT_DTYPES:
        raise TypeError(f"{name} has dtype {x.dtype}; accepted: float16, float32, float64")
    return x


def statistics_dtype(dtype):
    """The dtype in which sums over `dtype` are kept: float32 for float16 and float32, float64 for float64."""
    return np.promote_types(dtype, np.float32)


def resolve_scale(scale, head_dim):
    """The factor on the scores as a Python float: 1/sqrt(head_dim) for None, otherwise any finite number."""
    if scale is None:
        return 1.0 / math.sqrt(head_dim)
    if isinstance(scale, bool) or not isinstance(scale, Real):
        raise TypeError(f"scale is {scale!r}; accepted: a finite number, or None for 1/sqrt(head_dim)")
    if not math.isfinite(scale):
        raise ValueError(f"scale is {scale}; accepted: a finite number, or None for 1/sqrt(head_dim)")
    return float(scale)


def dot(a, b):
    """The sum of a[i] * b[i].

    a, b: [d], float16, float32 or float64, one dtype. Returns a scalar of the statistics dtype: float32, or
    float64 for float64. Raises TypeError for another dtype, ValueError for another shape.
    """
    a, b = as_float_array(a, "a"), as_float_array(b, "b")
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"a has shape {a.shape}, b {b.shape}; accepted: two vectors of one length, [d] and [d]")
    if a.dtype != b.dtype:
        raise TypeError(f"a is {a.dtype} and b is {b.dtype}; accepted: one dtype for both")
    return np.matmul(a, b, dtype=statistics_dtype(a.dtype))


def cosine_similarity(a, b):
    """The cosine of the angle between two vectors: a . b / (|a| |b|), within [-1, 1].

    a, b: [d], as for `dot`, and the same errors. Returns a scalar of the statistics dtype. A vector of zeros
    has no direction: the result is then 0, by convention. No epsilon enters the divisor.
    """
    product = dot(a, b)
    lengths = np.sqrt(dot(a, a)) * np.sqrt(dot(b, b))
    if lengths == 0:
        return product * 0
    return np.clip(product / lengths, -1, 1)  # rounding may leave the interval, where arccos is nan


def scores(Q, K, scale=None):
    """S = Q K^T * scale: the dot product of every query with every key.

    Q: [n_q, d], K: [n_k, d], float16, float32 or float64, one dtype. scale: finite; None means 1/sqrt(d).
    Returns S: [n_q, n_k] in the statistics dtype (float32, or float64 for float64).
    Raises TypeError for another dtype, ValueError for another shape or a scale that is not finite.
    """
    Q, K = as_float_array(Q, "Q"), as_float_array(K, "K")
    if Q.ndim != 2 or K.ndim != 2 or Q.shape[1] != K.shape[1] or Q.shape[1] == 0:
        raise ValueError(f"Q has shape {Q.shape}, K {K.shape}; accepted: [n_q, d] and [n_k, d], d at least 1")
    if Q.dtype != K.dtype:
        raise TypeError(f"Q is {Q.dtype} and K is {K.dtype}; accepted: one dtype for both")
    return np.matmul(Q, K.T, dtype=statistics_dtype(Q.dtype)) * resolve_scale(scale, Q.shape[1])
