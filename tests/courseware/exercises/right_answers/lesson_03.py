"""Lesson 03: right answers written differently."""

import numpy as np


def softmax_slice_by_slice(x, axis=-1):
    def one(row):
        largest = max(float(entry) for entry in row)
        terms = [np.exp(float(entry) - largest) for entry in row]
        total = sum(terms)
        return np.array([term / total for term in terms])

    return np.apply_along_axis(one, axis, x).astype(x.dtype)


def softmax_by_lse(x, axis=-1):
    s = np.moveaxis(x.astype(np.float64), axis, 0)
    return np.moveaxis(np.exp(s - np.logaddexp.reduce(s, axis=0)), 0, axis).astype(x.dtype)


def lse_entry_by_entry(x, axis=-1):
    s = np.moveaxis(x.astype(np.float64), axis, 0)
    total = np.full(s.shape[1:], -np.inf)
    for entry in s:
        total = np.logaddexp(total, entry)
    return total.astype(np.promote_types(x.dtype, np.float32))


def lse_in_one_running_sum(x, axis=-1):
    rows = np.moveaxis(x.astype(np.promote_types(x.dtype, np.float32)), axis, 0)
    m = rows.max(axis=0)
    shift = np.where(np.isfinite(m), m, 0).astype(m.dtype)
    total = np.zeros_like(m)
    for row in rows:
        total = total + np.exp(row - shift)
    return shift + np.log(total)


def lse_by_log1p(x, axis=-1):
    s = np.sort(x.astype(np.promote_types(x.dtype, np.float32)), axis=axis)
    largest = np.take(s, -1, axis=axis)
    rest = np.take(s, range(s.shape[axis] - 1), axis=axis)
    m = np.expand_dims(np.where(np.isfinite(largest), largest, 0), axis)
    return largest + np.log1p(np.exp(rest - m).sum(axis=axis))


def masked_row_by_row(x, mask):
    out = np.zeros_like(x)
    for index in np.ndindex(x.shape[:-1]):
        visible = np.flatnonzero(np.broadcast_to(mask, x.shape)[index])
        if len(visible):
            s = x[index][visible].astype(np.float64)
            terms = np.exp(s - s.max())
            out[index][visible] = terms / terms.sum()
    return out


def softmax_by_two_subtractions(x, axis=-1):
    s = x.astype(np.promote_types(x.dtype, np.float32))
    s = s - s.max(axis=axis, keepdims=True)
    return np.exp(s - np.log(np.exp(s).sum(axis=axis, keepdims=True))).astype(x.dtype)


RIGHT_ANSWERS = {
    "stable_softmax": {
        "slice by slice": softmax_slice_by_slice,
        "by log-sum-exp, in float64": softmax_by_lse,
        "the logarithm of the sum is subtracted after the maximum": softmax_by_two_subtractions,
        "another shift within a few units, in long double": {
            "s = x.astype(np.promote_types(x.dtype, np.float32))": "s = x.astype(np.longdouble)",
            "np.exp(s - s.max(axis=axis, keepdims=True))": "np.exp(s - s.max(axis=axis, keepdims=True) - 1)",
        },
    },
    "logsumexp": {
        "logaddexp, entry by entry": lse_entry_by_entry,
        "logaddexp in float32": lambda x, axis=-1: np.logaddexp.reduce(
            x.astype(np.promote_types(x.dtype, np.float32)), axis=axis
        ),
        "one running sum in float32": lse_in_one_running_sum,
        "log1p beside the largest": lse_by_log1p,
        "a large negative shift for rows of -inf": {"np.where(m == -np.inf, 0, m)": "np.where(m == -np.inf, -1e9, m)"},
    },
    "masked_softmax": {
        "row by row, visible entries alone": masked_row_by_row,
        "an epsilon too small to count": {"np.where(l == 0, 1, l)": "(l + 1e-30)"},
        "hides the terms, not the scores": {
            "    p = np.exp(s - np.where(m == -np.inf, 0, m))  # never -inf - -inf\n": (
                "    shift = np.where(np.isfinite(m), m, 0)\n"
                "    p = np.where(s > -np.inf, np.exp(np.minimum(s - shift, 0)), 0)\n"
            )
        },
    },
}
