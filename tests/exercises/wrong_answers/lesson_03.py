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
        "shifted by the mean": (shifted_by("s.mean(axis=axis, keepdims=True)"), ""),
        "shifted by the midrange": (shifted_by("(s.max(axis=axis, keepdims=True) + s.min(axis=axis, keepdims=True)) / 2"), ""),
        "shifted by the median": (shifted_by("np.median(s, axis=axis, keepdims=True)"), ""),
        "shifted by the first": (shifted_by("np.take(s, [0], axis=axis)"), ""),
        "shifted by the last": (shifted_by("np.take(s, [-1], axis=axis)"), ""),
        "shifted by the minimum": (shifted_by("s.min(axis=axis, keepdims=True)"), ""),
        "shifted by the finite mean": (shifted_by("np.where(np.isfinite(s), s, 0).mean(axis=axis, keepdims=True)"), ""),
        "divided by the max": ({"s - s.max(": "s / s.max("}, ""),
        "clipped": (soft_for(lambda x, axis: np.exp(np.clip(x.astype(np.promote_types(x.dtype, np.float32)), -80, 80))), ""),
        "terms in float16": (terms_in_float16, ""),
        "float64 by way of float32": ({UP: "s = x.astype(np.float32)"}, ""),
        "the sum over everything": ({"p.sum(axis=axis, keepdims=True)": "p.sum()"}, ""),
        "an epsilon": ({"p.sum(axis=axis, keepdims=True)": "(p.sum(axis=axis, keepdims=True) + 1e-6)"}, ""),
        "log softmax": ({"return (p / p.sum(axis=axis, keepdims=True))": "return np.log(p / p.sum(axis=axis, keepdims=True))"}, ""),
        "no keepdims in the sum": ({"p.sum(axis=axis, keepdims=True)": "p.sum(axis=axis)"}, ""),
        "axis 0 always": (soft_for(lambda x, axis: np.exp(x - x.max(axis=0, keepdims=True))), ""),
        "base 2": ({"np.exp(s": "np.exp2(s"}, ""),
        "float64 comes back": ({".astype(x.dtype)": ""}, ""),
        "-inf becomes -1e9": ({UP: UP + "\n    s = np.maximum(s, -1e9)"}, ""),
        "nan_to_num": ({UP: UP + "\n    s = np.nan_to_num(s)"}, ""),
        "1 / (1 + exp(-x))": (lambda x, axis=-1: (1 / (1 + np.exp(-x))).astype(x.dtype), ""),
        "the max of the first slice": (shifted_by("s.max(axis=axis, keepdims=True).ravel()[0]"), ""),
        "the max as an int": (shifted_by("s.max(axis=axis, keepdims=True).astype(int)"), ""),
    },
    "logsumexp": {
        "a global maximum": ({"s.max(axis=axis, keepdims=True)": "s.max() * np.ones_like(s.max(axis=axis, keepdims=True))"}, ""),
        "shifted by the mean": ({"m = s.max(axis=axis, keepdims=True)": "m = s.mean(axis=axis, keepdims=True)"}, ""),
        "shifted by the minimum": ({"m = s.max(axis=axis, keepdims=True)": "m = s.min(axis=axis, keepdims=True)"}, ""),
        "shifted by the first": ({"m = s.max(axis=axis, keepdims=True)": "m = np.take(s, [0], axis=axis)"}, ""),
        "the max alone": ({"return shift.squeeze(axis) + np.log(l)": "return m.squeeze(axis)"}, ""),
        "log2": ({"np.log(l)": "np.log2(l)"}, ""),
        "log10": ({"np.log(l)": "np.log10(l)"}, ""),
        "log1p": ({"np.log(l)": "np.log1p(l)"}, ""),
        "the max is subtracted again": ({"shift.squeeze(axis) + np.log(l)": "np.log(l) - shift.squeeze(axis)"}, ""),
        "mean for sum": ({".sum(axis=axis)": ".mean(axis=axis)"}, ""),
        "max times sum": ({"shift.squeeze(axis) + np.log(l)": "shift.squeeze(axis) * np.log(l)"}, ""),
        "squeeze of every axis": ({"shift.squeeze(axis)": "shift.squeeze()"}, ""),
        "no logarithm": ({"shift.squeeze(axis) + np.log(l)": "np.exp(shift.squeeze(axis)) * l"}, ""),
        "through the softmax": (lse_with(lambda s, axis: -np.log((np.exp(s - s.max(axis, keepdims=True)) / np.exp(s - s.max(axis, keepdims=True)).sum(axis, keepdims=True))).max(axis)), ""),
        "-inf gives 0": ({"return shift.squeeze(axis) + np.log(l)": "return np.where(l == 0, 0, shift.squeeze(axis) + np.log(np.where(l == 0, 1, l)))"}, ""),
        "float16 comes back": ({"return shift.squeeze(axis) + np.log(l)": "return (shift.squeeze(axis) + np.log(l)).astype(x.dtype)"}, ""),
        "float64 always": ({"np.promote_types(x.dtype, np.float32)": "np.float64"}, ""),
        "the naive formula": (lambda x, axis=-1: np.log(np.exp(x.astype(np.promote_types(x.dtype, np.float32))).sum(axis=axis)), ""),
        "clipped": (lambda x, axis=-1: np.log(np.exp(np.clip(x.astype(np.promote_types(x.dtype, np.float32)), -80, 80)).sum(axis=axis)), ""),
        "everything is summed": ({".sum(axis=axis)": ".sum()"}, ""),
        "-1e9 for -inf": ({"np.where(m == -np.inf, 0, m)": "np.where(m == -np.inf, -1e9, m)"}, ""),
    },
    "masked_softmax": {
        "a global maximum": ({"s.max(axis=-1, keepdims=True)": "s.max()"}, ""),
        "-1e4": ({HIDE: HIDE.replace("-np.inf", "-1e4"), "p = np.exp(s - ": "p = mask * np.exp(s - "}, ""),
        "-1e4, unmasked": ({HIDE: HIDE.replace("-np.inf", "-1e4")}, ""),
        "-1e9, rows of nothing zeroed": ({HIDE: HIDE.replace("-np.inf", "-1e9"), f"(p / {LAST})": "(p / l * np.broadcast_to(mask, x.shape).any(-1, keepdims=True))"}, ""),
        "finfo.min, rows of nothing zeroed": ({HIDE: HIDE.replace("-np.inf", "np.finfo(np.float32).min"), f"(p / {LAST})": "(p / l * np.broadcast_to(mask, x.shape).any(-1, keepdims=True))"}, ""),
        "all of it in float16": ({HIDE: "s = np.where(mask, x, x.dtype.type(-np.inf))"}, ""),
        "float64 by way of float32": ({HIDE: "s = np.where(mask, x, -np.inf).astype(np.float32)"}, ""),
        "no maximum": ({"np.exp(s - np.where(m == -np.inf, 0, m))": "np.exp(s)"}, ""),
        "no maximum, mask inverted": ({"np.exp(s - np.where(m == -np.inf, 0, m))": "np.exp(s)", "np.where(mask, x, -np.inf)": "np.where(mask, -np.inf, x)"}, ""),
        "the mask is multiplied": ({HIDE: "s = (x * mask).astype(np.promote_types(x.dtype, np.float32))"}, ""),
        "hidden rows uniform": ({LAST: "np.where(l == 0, 1, l)", "return (p": "p, l = np.where(l == 0, 1, p), np.where(l == 0, x.shape[-1], l)\n    return (p"}, ""),
        "an epsilon": ({LAST: "(l + 1e-6)"}, ""),
        "epsilon 1e-30": ({LAST: "(l + 1e-30)"}, ""),
        "nan_to_num at the end": ({"p = np.exp(s - np.where(m == -np.inf, 0, m))": "p = np.exp(s - m)", f"(p / {LAST})": "np.nan_to_num(p / l)"}, ""),
        "nan_to_num of x": ({HIDE: HIDE.replace("mask, x,", "mask, np.nan_to_num(x),")}, ""),
        "the visible ones only": (lambda x, mask: np.exp(x[mask] - x[mask].max()) / np.exp(x[mask] - x[mask].max()).sum(), ""),
        "axis 0": ({"s.max(axis=-1, keepdims=True)": "s.max(axis=0, keepdims=True)", "p.sum(axis=-1, keepdims=True)": "p.sum(axis=0, keepdims=True)"}, ""),
        "float32 comes back": ({".astype(x.dtype)": ""}, ""),
        "the sum includes hidden ones": ({"l = p.sum(axis=-1, keepdims=True)": "l = np.exp(x - np.where(m == -np.inf, 0, m)).sum(axis=-1, keepdims=True)"}, ""),
        "max of |s|": ({"s.max(axis=-1, keepdims=True)": "abs(s).max(axis=-1, keepdims=True)"}, ""),
        "+inf hides": ({HIDE: HIDE.replace("-np.inf", "np.inf")}, ""),
        "the row's minimum hides": ({HIDE: HIDE.replace("-np.inf", "x.min(axis=-1, keepdims=True)")}, ""),
    },
}
