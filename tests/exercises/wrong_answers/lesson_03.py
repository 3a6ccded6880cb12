"""Lesson 03: wrong answers, and what the check has to say of each."""

import numpy as np

UP = "s = x.astype(np.promote_types(x.dtype, np.float32))"
MAX = "s.max(axis=axis, keepdims=True)"


def shifted_by(shift):
    return {MAX: shift}


def soft_for(make):
    """A softmax of what make(x, axis) makes."""

    def answer(x, axis=-1):
        p = make(x, axis)
        return (p / p.sum(axis=axis, keepdims=True)).astype(x.dtype)

    return answer


def terms_in_float16(x, axis=-1):
    p = np.exp(x - x.max(axis=axis, keepdims=True))
    l = p.sum(axis=axis, keepdims=True, dtype=np.promote_types(x.dtype, np.float32))
    return (p / l).astype(x.dtype)


def lse_with(make):
    return lambda x, axis=-1: make(x.astype(np.promote_types(x.dtype, np.float32)), axis)


HIDE = "s = np.where(mask, x, -np.inf).astype(np.promote_types(x.dtype, np.float32))"
LAST = "np.where(l == 0, 1, l)"

WRONG_ANSWERS = {
    "stable_softmax": {
        "shifted by the mean": (
            shifted_by("s.mean(axis=axis, keepdims=True)"),
            "What is subtracted is not the largest entry (but a mean, a",
        ),
        "shifted by the midrange": (
            shifted_by("(s.max(axis=axis, keepdims=True) + s.min(axis=axis, keepdims=True)) / 2"),
            "What is subtracted is not the largest entry (but a mean, a",
        ),
        "shifted by the median": (
            shifted_by("np.median(s, axis=axis, keepdims=True)"),
            "What is subtracted is not the largest entry (but a mean, a",
        ),
        "shifted by the first": (
            shifted_by("np.take(s, [0], axis=axis)"),
            "What is subtracted is not the largest entry (but a mean, a",
        ),
        "shifted by the last": (
            shifted_by("np.take(s, [-1], axis=axis)"),
            "What is subtracted is not the largest entry (but a mean, a",
        ),
        "shifted by the minimum": (
            shifted_by("s.min(axis=axis, keepdims=True)"),
            "What is subtracted is not the largest entry (but a mean, a",
        ),
        "shifted by the finite mean": (
            shifted_by("np.where(np.isfinite(s), s, 0).mean(axis=axis, keepdims=True)"),
            "What is subtracted is not the largest entry (but a mean, a",
        ),
        "divided by the max": (
            {"s - s.max(": "s / s.max("},
            "The logits are divided by the maximum, not measured from it.",
        ),
        "clipped": (
            soft_for(lambda x, axis: np.exp(np.clip(x.astype(np.promote_types(x.dtype, np.float32)), -80, 80))),
            "Large logits are cut off, so those beyond the cut count as",
        ),
        "terms in float16": (terms_in_float16, "The differences and the exponentials are rounded to"),
        "float64 by way of float32": (
            {UP: "s = x.astype(np.float32)"},
            "Digits are lost on the way: something is kept in float32,",
        ),
        "the sum over everything": (
            {"p.sum(axis=axis, keepdims=True)": "p.sum()"},
            "One sum, of the whole array, divides every row.",
        ),
        "an epsilon": (
            {"p.sum(axis=axis, keepdims=True)": "(p.sum(axis=axis, keepdims=True) + 1e-6)"},
            "Digits are lost on the way: something is kept in float32,",
        ),
        "no keepdims in the sum": (
            {"p.sum(axis=axis, keepdims=True)": "p.sum(axis=axis)"},
            "the answer raised ValueError: operands could not be",
        ),
        "axis 0 always": (
            soft_for(lambda x, axis: np.exp(x - x.max(axis=0, keepdims=True))),
            "row 0 of make(x, axis) is [0.135335, 1. , 1. ]; with [0.135335, 0.367879, 1. ]",
        ),
        "base 2": ({"np.exp(s": "np.exp2(s"}, "The weights are powers of 2, where powers of e belong."),
        "float64 comes back": ({".astype(x.dtype)": ""}, "the result has dtype float32 for x of dtype float16"),
        "-inf becomes -1e9": (
            {UP: UP + "\n    s = np.maximum(s, -1e9)"},
            "A finite number stands in for -inf. Beside a logit that is",
        ),
        "1 / (1 + exp(-x))": (
            lambda x, axis=-1: (1 / (1 + np.exp(-x))).astype(x.dtype),
            "changing x[0] changes row 0 of what comes back; it should",
        ),
        "the max of the first slice": (
            shifted_by("s.max(axis=axis, keepdims=True).ravel()[0]"),
            "softmax is NaN at row 1 of 2",
        ),
    },
    "logsumexp": {
        "the maximum is added before the logarithm": (
            {"shift.squeeze(axis) + np.log(l)": "np.log(shift.squeeze(axis) + l)"},
            "shift.squeeze(axis) and l: right; what is made of them in this line is not",
        ),
        "a global maximum": (
            {"s.max(axis=axis, keepdims=True)": "s.max() * np.ones_like(s.max(axis=axis, keepdims=True))"},
            "One maximum, of the whole array, is subtracted from every",
        ),
        "shifted by the mean": (
            {"m = s.max(axis=axis, keepdims=True)": "m = s.mean(axis=axis, keepdims=True)"},
            "What is subtracted is not the largest entry, so an entry",
        ),
        "shifted by the minimum": (
            {"m = s.max(axis=axis, keepdims=True)": "m = s.min(axis=axis, keepdims=True)"},
            "What is subtracted is not the largest entry, so an entry",
        ),
        "shifted by the first": (
            {"m = s.max(axis=axis, keepdims=True)": "m = np.take(s, [0], axis=axis)"},
            "What is subtracted is not the largest entry, so an entry",
        ),
        "the max alone": (
            {"return shift.squeeze(axis) + np.log(l)": "return m.squeeze(axis)"},
            "The maximum is returned by itself.",
        ),
        "log2": ({"np.log(l)": "np.log2(l)"}, "The logarithm is not the natural one of l: log2, log10 or"),
        "log10": ({"np.log(l)": "np.log10(l)"}, "The logarithm is not the natural one of l: log2, log10 or"),
        "log1p": ({"np.log(l)": "np.log1p(l)"}, "The logarithm is not the natural one of l: log2, log10 or"),
        "the max is subtracted again": (
            {"shift.squeeze(axis) + np.log(l)": "np.log(l) - shift.squeeze(axis)"},
            "The maximum that was subtracted inside is not added back,",
        ),
        "mean for sum": (
            {".sum(axis=axis)": ".mean(axis=axis)"},
            "The mean of the exponentials is taken, not their sum.",
        ),
        "max times sum": (
            {"shift.squeeze(axis) + np.log(l)": "shift.squeeze(axis) * np.log(l)"},
            "The maximum that was subtracted inside is not added back,",
        ),
        "squeeze of every axis": (
            {"shift.squeeze(axis)": "shift.squeeze()"},
            "squeeze() without an axis drops every axis of length 1, not",
        ),
        "no logarithm": (
            {"shift.squeeze(axis) + np.log(l)": "np.exp(shift.squeeze(axis)) * l"},
            "No logarithm is taken of the sum.",
        ),
        "through the softmax": (
            lse_with(
                lambda s, axis: (
                    -np.log(
                        np.exp(s - s.max(axis, keepdims=True))
                        / np.exp(s - s.max(axis, keepdims=True)).sum(axis, keepdims=True)
                    ).max(axis)
                )
            ),
            "logsumexp is 4 too small",
        ),
        "-inf gives 0": (
            {
                "return shift.squeeze(axis) + np.log(l)": "return np.where(l == 0, 0, shift.squeeze(axis) + np.log(np.where(l == 0, 1, l)))"
            },
            "Where every entry is -inf, another number than -inf is",
        ),
        "float16 comes back": (
            {"return shift.squeeze(axis) + np.log(l)": "return (shift.squeeze(axis) + np.log(l)).astype(x.dtype)"},
            "The result is rounded to float16. It is promised in float32.",
        ),
        "float64 always": (
            {"np.promote_types(x.dtype, np.float32)": "np.float64"},
            "The result is float64, whatever the dtype of x is.",
        ),
        "the naive formula": (
            lambda x, axis=-1: np.log(np.exp(x.astype(np.promote_types(x.dtype, np.float32))).sum(axis=axis)),
            "logsumexp is infinite",
        ),
        "clipped": (
            lambda x, axis=-1: np.log(
                np.exp(np.clip(x.astype(np.promote_types(x.dtype, np.float32)), -80, 80)).sum(axis=axis)
            ),
            "Large logits are cut off, so those beyond the cut count as",
        ),
        "everything is summed": (
            {".sum(axis=axis)": ".sum()"},
            "The sum runs over the whole array, whatever `axis` says.",
        ),
    },
    "masked_softmax": {
        "a global maximum": (
            {"s.max(axis=-1, keepdims=True)": "s.max()"},
            "One maximum, of all rows, is subtracted from every row. A",
        ),
        "-1e4": (
            {HIDE: HIDE.replace("-np.inf", "-1e4"), "p = np.exp(s - ": "p = mask * np.exp(s - "},
            "A finite number such as -1e4 or -1e9 hides the entries. A",
        ),
        "-1e4, unmasked": (
            {HIDE: HIDE.replace("-np.inf", "-1e4")},
            "A finite number such as -1e4 or -1e9 hides the entries. A",
        ),
        "-1e9, rows of nothing zeroed": (
            {
                HIDE: HIDE.replace("-np.inf", "-1e9"),
                f"(p / {LAST})": "(p / l * np.broadcast_to(mask, x.shape).any(-1, keepdims=True))",
            },
            "A finite number such as -1e4 or -1e9 hides the entries. A",
        ),
        "all of it in float16": (
            {HIDE: "s = np.where(mask, x, x.dtype.type(-np.inf))"},
            "Everything is computed in x's own dtype. float16 keeps",
        ),
        "float64 by way of float32": (
            {HIDE: "s = np.where(mask, x, -np.inf).astype(np.float32)"},
            "Digits are lost on the way: something is kept in float32,",
        ),
        "no maximum": (
            {"np.exp(s - np.where(m == -np.inf, 0, m))": "np.exp(s)"},
            "exp is taken of the logits themselves, without subtracting",
        ),
        "hidden rows uniform": (
            {
                LAST: "np.where(l == 0, 1, l)",
                "return (p": "p, l = np.where(l == 0, 1, p), np.where(l == 0, x.shape[-1], l)\n    return (p",
            },
            "softmax is wrong",
        ),
        "an epsilon": ({LAST: "(l + 1e-6)"}, "Digits are lost on the way: something is kept in float32,"),
        "the visible ones only": (
            lambda x, mask: np.exp(x[mask] - x[mask].max()) / np.exp(x[mask] - x[mask].max()).sum(),
            "softmax has shape (6,), not (2, 3)",
        ),
        "axis 0": (
            {
                "s.max(axis=-1, keepdims=True)": "s.max(axis=0, keepdims=True)",
                "p.sum(axis=-1, keepdims=True)": "p.sum(axis=0, keepdims=True)",
            },
            "The softmax runs down the columns, so that a column adds up",
        ),
        "float32 comes back": ({".astype(x.dtype)": ""}, "the result has dtype float32 for x of dtype float16"),
        "the sum includes hidden ones": (
            {
                "l = p.sum(axis=-1, keepdims=True)": "l = np.exp(x - np.where(m == -np.inf, 0, m)).sum(axis=-1, keepdims=True)"
            },
            "The sum contains the hidden terms, so the visible weights",
        ),
        "max of |s|": (
            {"s.max(axis=-1, keepdims=True)": "abs(s).max(axis=-1, keepdims=True)"},
            "abs(s) is [ 1., 2., 3., inf]; with [ 1., 2., 3., -inf] in its place the result would",
        ),
        "+inf hides": ({HIDE: HIDE.replace("-np.inf", "np.inf")}, "softmax is NaN at every entry"),
        "the row's minimum hides": (
            {HIDE: HIDE.replace("-np.inf", "x.min(axis=-1, keepdims=True)")},
            "x.min(axis=-1, keepdims=True) is [1.]; with [-inf] in its place the result would be",
        ),
    },
}
