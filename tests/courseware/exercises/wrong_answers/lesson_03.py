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


def lse_of_float16(sum_of_terms):
    """A log-sum-exp along the last axis, in float16 up to the sum."""

    def answer(x, axis=-1):
        x, out = np.moveaxis(x, axis, -1), np.promote_types(x.dtype, np.float32)
        m = x.max(axis=-1, keepdims=True)
        m = np.where(m == -np.inf, x.dtype.type(0), m)
        with np.errstate(divide="ignore"):
            return m[..., 0].astype(out) + np.log(sum_of_terms(x, m, out))

    return answer


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
        "terms in float16": (terms_in_float16, "The differences from the maximum, or their exponentials,"),
        "float64 by way of float32": (
            {UP: "s = x.astype(np.float32)"},
            "For float64 logits, a step on the way or the result is in",
        ),
        "the sum over everything": (
            {"p.sum(axis=axis, keepdims=True)": "p.sum()"},
            "One sum, of the whole array, divides every row.",
        ),
        "an epsilon": (
            {"p.sum(axis=axis, keepdims=True)": "(p.sum(axis=axis, keepdims=True) + 1e-6)"},
            "Something is wrong with the sum alone: a tiny number is added",
        ),
        "no keepdims in the sum": (
            {"p.sum(axis=axis, keepdims=True)": "p.sum(axis=axis)"},
            "the answer raised ValueError: operands could not be",
        ),
        "axis 0 always": (
            soft_for(lambda x, axis: np.exp(x - x.max(axis=0, keepdims=True))),
            "p = make(x, axis)",
        ),
        "base 2": ({"np.exp(s": "np.exp2(s"}, "The weights are powers of 2, where powers of e belong."),
        "float64 comes back": ({".astype(x.dtype)": ""}, "The result has the dtype of the steps on the way, or one"),
        "maxima by [..., None]": (
            soft_for(lambda x, axis: np.exp(x - x.max(axis=axis)[..., None])),
            "p = make(x, axis)",
        ),
        "an epsilon of 5e-5": (
            {"p.sum(axis=axis, keepdims=True)": "(p.sum(axis=axis, keepdims=True) + 5e-5)"},
            "Every weight is a little too small, by the same part of",
        ),
        "all in float16": (
            lambda x, axis=-1: (
                np.exp(x - x.max(axis, keepdims=True)) / np.exp(x - x.max(axis, keepdims=True)).sum(axis, keepdims=True)
            ),
            "Steps on the way are in float16, which keeps about three",
        ),
        "-inf becomes -1e9": (
            {UP: UP + "\n    s = np.maximum(s, -1e9)"},
            "A finite number stands in for -inf. Beside a logit that is",
        ),
        "1 / (1 + exp(-x))": (
            lambda x, axis=-1: (1 / (1 + np.exp(-x))).astype(x.dtype),
            "changing x[0] changes entry 0 of what comes back; it should",
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
            "What comes back is the maximum by itself.",
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
            "For a slice of nothing but -inf, another number than",
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
        "terms in float16": (
            lse_of_float16(lambda x, m, out: np.exp(x - m).sum(axis=-1, dtype=out)),
            "The differences from the maximum, or their exponentials,",
        ),
        "differences in float16": (
            lse_of_float16(lambda x, m, out: np.exp((x - m).astype(out)).sum(axis=-1)),
            "The differences from the maximum, or their exponentials,",
        ),
        "one row of -inf switches the maximum off": (
            {"np.where(m == -np.inf, 0, m)": "(np.zeros_like(m) if (m == -np.inf).any() else m)"},
            "If one slice is -inf throughout, 0 is subtracted from every",
        ),
        "everything is summed": (
            {".sum(axis=axis)": ".sum()"},
            "The sum runs over the whole array, whatever `axis` says.",
        ),
        "0 for -inf in the maximum": (
            lse_with(
                lambda s, axis: (
                    np.where(np.isfinite(s), s, 0).max(axis)
                    + np.log(np.exp(s - np.where(np.isfinite(s), s, 0).max(axis, keepdims=True)).sum(axis))
                )
            ),
            "In the maximum, an entry of -inf counts as 0.",
        ),
    },
    "masked_softmax": {
        "a global maximum": (
            {"s.max(axis=-1, keepdims=True)": "s.max()"},
            "One maximum, of all rows, is subtracted from every row. A",
        ),
        "-1e4": (
            {HIDE: HIDE.replace("-np.inf", "-1e4"), "p = np.exp(s - ": "p = mask * np.exp(s - "},
            "A finite number such as -1e9 stands where -inf belongs,",
        ),
        "-1e4, unmasked": (
            {HIDE: HIDE.replace("-np.inf", "-1e4")},
            "A row in which nothing is visible gets weights: a finite",
        ),
        "-1e9, rows of nothing zeroed": (
            {
                HIDE: HIDE.replace("-np.inf", "-1e9"),
                f"(p / {LAST})": "(p / l * np.broadcast_to(mask, x.shape).any(-1, keepdims=True))",
            },
            "A finite number such as -1e9 stands where -inf belongs,",
        ),
        "all of it in float16": (
            {HIDE: "s = np.where(mask, x, x.dtype.type(-np.inf))"},
            "Steps on the way are in float16, which keeps about three",
        ),
        "float64 by way of float32": (
            {HIDE: "s = np.where(mask, x, -np.inf).astype(np.float32)"},
            "For float64 logits, a step on the way or the result is in",
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
        "an epsilon": ({LAST: "(l + 1e-6)"}, "Something is wrong with the sum alone: a tiny number is added"),
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
        "float32 comes back": ({".astype(x.dtype)": ""}, "The result has the dtype of the steps on the way, or one"),
        "the sum includes hidden ones": (
            {
                "l = p.sum(axis=-1, keepdims=True)": "l = np.exp(x - np.where(m == -np.inf, 0, m)).sum(axis=-1, keepdims=True)"
            },
            "The sum contains the hidden terms, so the visible weights",
        ),
        "max of |s|": (
            {"s.max(axis=-1, keepdims=True)": "abs(s).max(axis=-1, keepdims=True)"},
            "The largest absolute value is subtracted instead of the",
        ),
        "hidden terms times 0": (
            {"p = np.exp(s -": "p = mask * np.exp(x -"},
            "Hidden terms are computed, too, and then multiplied by 0.",
        ),
        "the lowest number hides": (
            {HIDE: HIDE.replace("-np.inf", "np.finfo(x.dtype).min"), f"(p / {LAST})": "(p / l * (l > 0) * mask.any())"},
            "A row in which nothing is visible gets weights: a finite",
        ),
        "no term is 0": (
            {"l = p.sum(": "p = np.maximum(p, 1e-30) * mask\n    l = p.sum("},
            "softmax is 1e-30 instead of 0 at entries 0, 2, 3",
        ),
        "one hidden row switches the maximum off": (
            {"np.where(m == -np.inf, 0, m)": "(0 if (m == -np.inf).any() else m)"},
            "If nothing is visible in one row, 0 is subtracted from every",
        ),
        "+inf hides": ({HIDE: HIDE.replace("-np.inf", "np.inf")}, "softmax is NaN at every entry"),
        "hidden terms go after the sum": (
            {
                HIDE: UP,
                "p = np.exp(s - np.where(m == -np.inf, 0, m))": "p = np.exp(s - m)",
                f"(p / {LAST})": "(p * mask / l)",
            },
            "but the sum that divides the row still contains their terms.",
        ),
        "hidden terms go before the sum, beside -1e9": (
            {HIDE: HIDE.replace("-np.inf", "-1e9"), "p = np.exp(s - ": "p = mask * np.exp(s - "},
            "A finite number such as -1e9 stands where -inf belongs,",
        ),
        "0/0": ({f"(p / {LAST})": "(p / l)"}, "and 0/0, if its sum is empty."),
        "the row's minimum hides": (
            {HIDE: HIDE.replace("-np.inf", "x.min(axis=-1, keepdims=True)")},
            "Hidden entries are given the smallest score of the row or the",
        ),
    },
}
