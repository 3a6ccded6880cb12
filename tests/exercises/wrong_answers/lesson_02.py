"""Lesson 02: wrong answers, and what the check has to say of each."""

import numpy as np


def naive(x):
    exp_x = np.exp(x)
    return exp_x / exp_x.sum(axis=-1, keepdims=True)


def naive_with(f):
    return lambda x: f(x, np.exp(x))


GUARDED = {
    "a sum of 0 becomes 1": naive_with(lambda x, e: e / np.where(e.sum(-1, keepdims=True) == 0, e.dtype.type(1), e.sum(-1, keepdims=True))),
    "nan_to_num": naive_with(lambda x, e: np.nan_to_num(e / e.sum(-1, keepdims=True))),
    "clip at -17": lambda x: naive(np.clip(x, -17, None).astype(x.dtype)),
    "clip at 11": lambda x: naive(np.clip(x, None, 11).astype(x.dtype)),
    "an epsilon": naive_with(lambda x, e: e / (e.sum(-1, keepdims=True) + e.dtype.type(1e-7))),
    "the mean is subtracted": lambda x: naive(x - x.mean(-1, keepdims=True)),
    "the sum in float32": naive_with(lambda x, e: (e / e.sum(-1, keepdims=True, dtype=np.promote_types(x.dtype, np.float32))).astype(x.dtype)),
    "the exp in float32": lambda x: naive(x.astype(np.promote_types(x.dtype, np.float32))).astype(x.dtype),
    "max over all": lambda x: naive(x - x.max()),
    "the log is subtracted": lambda x: np.exp(x - np.log(np.exp(x.astype(np.float64)).sum(-1, keepdims=True))).astype(x.dtype),
}
LIMIT = "np.floor(limit / gap) * gap"

WRONG_ANSWERS = {
    "largest_exp_input": {
        "pasted literals": (lambda e, m: {(5, 10): 11.0859375, (8, 7): 88.5, (8, 23): 88.72283172607422}.get((e, m), 11.0), ""),
        "pasted, KeyError": (lambda e, m: {(5, 10): 11.0859375, (8, 7): 88.5, (8, 23): 88.72283172607422}[e, m], ""),
        "pasted, rounded": (lambda e, m: {(5, 10): 11.08, (8, 7): 88.5, (8, 23): 88.72}.get((e, m), 11.0), ""),
        "no mantissa": ({"(2 - 2.0**-mantissa_bits)": "2"}, ""),
        "the largest number": (lambda e, m: (2 - 2.0**-m) * 2.0 ** (2 ** (e - 1) - 1), ""),
        "ceil": ({LIMIT: "np.ceil(limit / gap) * gap"}, ""),
        "log10": ({"np.log(largest)": "np.log10(largest)"}, ""),
        "twice the gap": ({LIMIT: "np.floor(limit / (2 * gap)) * 2 * gap"}, ""),
        "one too small": ({LIMIT: "np.floor(limit / gap) * gap - gap"}, ""),
        "a string": ({"return float(": "return str("}, ""),
        "an array": ({"return float(": "return np.array([1.0]) * ("}, ""),
        "negative": ({"return float(": "return -float("}, ""),
        "1 for 2 in the mantissa": ({"(2 - 2.0**-mantissa_bits)": "1"}, ""),
        "infinite": (lambda e, m: float("inf"), ""),
        "the gap at 1": ({"2.0 ** (np.floor(np.log2(limit)) - mantissa_bits)": "2.0**-mantissa_bits"}, ""),
        "the gap from log, not log2": ({"np.log2(limit)": "np.log(limit)"}, ""),
        "in float16": ({"return float(": "return np.float16("}, ""),
        "bits exchanged": ({"    largest_exponent": "    exponent_bits, mantissa_bits = mantissa_bits, exponent_bits\n    largest_exponent"}, ""),
    },
    "naive_softmax": {name: (form, "") for name, form in GUARDED.items()}
    | {
        "axis=0": ({"axis=-1, keepdims=True": "axis=0"}, ""),
        "exp(-x)": ({"np.exp(x)": "np.exp(-x)"}, ""),
        "x / sum": ({"np.exp(x)": "x"}, ""),
        "no keepdims": ({"axis=-1, keepdims=True": "axis=-1"}, ""),
        "log": ({"np.exp(x)": "np.log(x)"}, ""),
        "expm1": ({"np.exp(x)": "np.expm1(x)"}, ""),
        "the mean for the sum": ({"exp_x.sum": "exp_x.mean"}, ""),
        "divided by the max": ({"exp_x.sum": "exp_x.max"}, ""),
        "the sum is multiplied": ({"exp_x / exp_x.sum": "exp_x * exp_x.sum"}, ""),
        "stable": ({"np.exp(x)": "np.exp(x - x.max(axis=-1, keepdims=True))"}, ""),
        "float32 always": ({"return exp_x": "exp_x = exp_x.astype(np.float32)\n    return exp_x"}, ""),
        "a list": ({"return exp_x /": "return [*(exp_x /", "keepdims=True)": "keepdims=True))]"}, ""),
        "raises on overflow": ({"    exp_x =": "    if (x > 11).any():\n        raise OverflowError\n    exp_x ="}, ""),
        "squares": ({"return exp_x / exp_x.sum(axis=-1, keepdims=True)": "p = exp_x / exp_x.sum(axis=-1, keepdims=True)\n    return p * p"}, ""),
        "log softmax": ({"return exp_x / exp_x.sum(axis=-1, keepdims=True)": "return np.log(exp_x / exp_x.sum(axis=-1, keepdims=True))"}, ""),
    },
    "breaking_input": {
        "100 and 100": (lambda dtype: np.array([100.0, 100.0]), ""),
        "88.73 in float16": (lambda dtype: np.array([88.73, 88.73]), ""),
        "200 equal logits": (lambda dtype: np.full(200, 100.0), ""),
        "one logit": (lambda dtype: np.array([100.0]), ""),
        "a matrix": (lambda dtype: np.full((2, 2), 100.0), ""),
        "a dict": (lambda dtype: {"float16": [12.0, 12.0]}, ""),
        "a row of zeros": (lambda dtype: np.zeros(100), ""),
        "a NaN": (lambda dtype: np.array([np.nan, 1.0]), ""),
        "0.1 off": (lambda dtype: np.array([12.1, 12.0]), ""),
        "the example": (lambda dtype: np.array([1.0, 2.0, 3.0, 4.0]), ""),
        "largest number": (lambda dtype: np.array([65504.0, 65504.0]), ""),
        "a scalar": (lambda dtype: 100.0, ""),
        "very low": (lambda dtype: np.array([-200.0, -200.0]), ""),
        "11 and 11": (lambda dtype: np.array([11.0, 11.0]), ""),
        "88.5 and 88.5": (lambda dtype: np.array([88.5, 88.5]), ""),
        "88.72 for all": (lambda dtype: np.array([88.5 if dtype != "float16" else 11.09375] * 2), ""),
        "88 and 88": (lambda dtype: np.array([{"float16": 11.0}.get(dtype, 88.0)] * 2), ""),
    },
}
