"""Lesson 02: wrong answers, and what the check has to say of each."""

import numpy as np


def naive(x):
    exp_x = np.exp(x)
    return exp_x / exp_x.sum(axis=-1, keepdims=True)


def naive_with(f):
    return lambda x: f(x, np.exp(x))


def along_the_first_axis(x):
    out = np.empty_like(x)
    for i in range(x.shape[0]):
        row = np.exp(x[i])
        out[i] = row / row.sum()
    return out


GUARDED = {
    "a sum of 0 becomes 1": naive_with(
        lambda x, e: e / np.where(e.sum(-1, keepdims=True) == 0, e.dtype.type(1), e.sum(-1, keepdims=True))
    ),
    "nan_to_num": naive_with(lambda x, e: np.nan_to_num(e / e.sum(-1, keepdims=True))),
    "clip at -17": lambda x: naive(np.clip(x, -17, None).astype(x.dtype)),
    "clip at 11": lambda x: naive(np.clip(x, None, 11).astype(x.dtype)),
    "an epsilon": naive_with(lambda x, e: e / (e.sum(-1, keepdims=True) + e.dtype.type(1e-7))),
    "the mean is subtracted": lambda x: naive(x - x.mean(-1, keepdims=True)),
    "the sum in float32": naive_with(
        lambda x, e: (e / e.sum(-1, keepdims=True, dtype=np.promote_types(x.dtype, np.float32))).astype(x.dtype)
    ),
    "the exp in float32": lambda x: naive(x.astype(np.promote_types(x.dtype, np.float32))).astype(x.dtype),
    "max over all": lambda x: naive(x - x.max()),
    "the log is subtracted": lambda x: np.exp(x - np.log(np.exp(x.astype(np.float64)).sum(-1, keepdims=True))).astype(
        x.dtype
    ),
}
LIMIT = "np.floor(limit / gap) * gap"


def one_after_another(exponent_bits, mantissa_bits):
    first_to_overflow = (2 - 2.0 ** -(mantissa_bits + 1)) * 2.0 ** (2 ** (exponent_bits - 1) - 1)
    x = following = 1.0
    while np.exp(following) < first_to_overflow:
        x = following
        following = x + 2.0 ** (np.floor(np.log2(x)) - mantissa_bits)
    return x


WRONG_ANSWERS = {
    "largest_exp_input": {
        "pasted, KeyError": (
            lambda e, m: {(5, 10): 11.0859375, (8, 7): 88.5, (8, 23): 88.72283172607422}[e, m],
            "the answer raised KeyError: (5, 3)",
        ),
        "pasted, rounded": (
            lambda e, m: {(5, 10): 11.08, (8, 7): 88.5, (8, 23): 88.72}.get((e, m), 11.0),
            "float16 does not hold 11.08: its neighbours there are",
        ),
        "no mantissa": (
            {"(2 - 2.0 ** -(mantissa_bits + 1))": "2"},
            "The limit is taken where exp reaches 2^(largest exponent + 1)",
        ),
        "the largest number": (
            lambda e, m: (2 - 2.0**-m) * 2.0 ** (2 ** (e - 1) - 1),
            "The largest number of the format is returned.",
        ),
        "ceil": ({LIMIT: "np.ceil(limit / gap) * gap"}, "The result is one number too far: in every format, it is"),
        "log10": ({"np.log((2": "np.log10((2"}, "The limit is computed with log10, but exp is a power of e."),
        "one number after another": (
            one_after_another,
            "This format has 8,388,608 numbers from 1 up to 2, and as many from 2 up to 4",
        ),
        "twice the gap": (
            {LIMIT: "np.floor(limit / (2 * gap)) * 2 * gap"},
            "The result is one number of the format too small.",
        ),
        "one too small": (
            {LIMIT: "np.floor(limit / gap) * gap - gap"},
            "The result is one number of the format too small.",
        ),
        "a string": ({"return float(": "return str("}, "the answer returned 11.0859375, not a number"),
        "an array": ({"return float(": "return np.array([1.0]) * ("}, "the answer returned [11.085938], not a number"),
        "infinite": (lambda e, m: float("inf"), "inf came back, which is not a finite number"),
        "the gap at 1": (
            {"2.0 ** (np.floor(np.log2(limit)) - mantissa_bits)": "2.0**-mantissa_bits"},
            "float16 does not hold 11.08984375: its neighbours there are",
        ),
        "the gap from log, not log2": (
            {"np.log2(limit)": "np.log(limit)"},
            "float16 does not hold 11.08984375: its neighbours there are",
        ),
        "in float16": ({"return float(": "return np.float16("}, "exp(x) is about 3.497e+38, and float32 ends at"),
        "bits exchanged": (
            {
                "    largest_exponent": "    exponent_bits, mantissa_bits = mantissa_bits, exponent_bits\n    largest_exponent"
            },
            "the answer raised OverflowError: (34, 'Numerical result out",
        ),
    },
    "naive_softmax": {name: (form, "") for name, form in GUARDED.items()}
    | {
        "for each x[i]": (along_the_first_axis, "One sum is taken over all of each x[i]."),
        "times the sum's reciprocal": (
            {"exp_x / exp_x.sum(axis=-1, keepdims=True)": "exp_x * np.reciprocal(exp_x.sum(axis=-1, keepdims=True))"},
            "The exponentials are multiplied by 1 / sum",
        ),
        "axis=0": ({"axis=-1, keepdims=True": "axis=0"}, "The sums are taken down the columns, so that a column adds"),
        "exp(-x)": ({"np.exp(x)": "np.exp(-x)"}, "exp is taken of -x, so the smallest logit gets the largest"),
        "x / sum": ({"np.exp(x)": "x"}, "The weights are not made of exp(x)."),
        "no keepdims": (
            {"axis=-1, keepdims=True": "axis=-1"},
            "Column j is divided by the sum of row j.",
        ),
        "log": ({"np.exp(x)": "np.log(x)"}, "The weights are not made of exp(x)."),
        "expm1": ({"np.exp(x)": "np.expm1(x)"}, "The weights are not made of exp(x)."),
        "the mean for the sum": (
            {"exp_x.sum": "exp_x.mean"},
            "The exponentials are divided by something other than their",
        ),
        "divided by the max": (
            {"exp_x.sum": "exp_x.max"},
            "The exponentials are divided by something other than their",
        ),
        "the sum is multiplied": (
            {"exp_x / exp_x.sum": "exp_x * exp_x.sum"},
            "The exponentials are multiplied by their sum, not divided.",
        ),
        "stable": (
            {"np.exp(x)": "np.exp(x - x.max(axis=-1, keepdims=True))"},
            "Something is subtracted from the logits before exp, such as",
        ),
        "float32 always": (
            {"return exp_x": "exp_x = exp_x.astype(np.float32)\n    return exp_x"},
            "float16 went in, float32 came back",
        ),
        "a list": (
            {"return exp_x /": "return [*(exp_x /", "keepdims=True)": "keepdims=True))]"},
            "float16 went in, list came back",
        ),
        "raises on overflow": (
            {"    exp_x =": "    if (x > 11).any():\n        raise OverflowError\n    exp_x ="},
            "the answer raised OverflowError",
        ),
    },
    "breaking_input": {
        "from 100 down": (
            lambda dtype: 100.0 - np.arange(4) / 2,
            "exp itself overflows, so the weights are inf / inf = NaN. A",
        ),
        "88.73 in float16": (
            lambda dtype: 88.73 - np.arange(4) / 2,
            "float16 does not hold 88.73; it would become 88.75",
        ),
        "two logits": (lambda dtype: np.array([11.0, 10.5]), "not an array of four floats or more"),
        "four equal logits": (lambda dtype: np.full(4, 11.0), "the logit 11.0 is there 4 times; no two may be equal"),
        "sixteen in steps of 0.5": (
            lambda dtype: 11.0 - np.arange(16) / 2,
            "the true softmax has a weight of 0.000218, below 0.01: the logit 3.5 lies 7.5 below the largest",
        ),
        "64 in steps of 1/32": (
            lambda dtype: 11.0 - np.arange(64) / 32 if dtype == "float16" else [88.5, 88, 87.5, 87],
            "the logit 9.03125 lies 1.97 below the largest, and there are 64 logits to share a total of 1",
        ),
        "128 in steps of 1/128": (
            lambda dtype: 11.0 - np.arange(128) / 128 if dtype == "float16" else [88.5, 88, 87.5, 87],
            "128 weights add up to 1, so they cannot all be 0.01",
        ),
        "steps too small for float16": (
            lambda dtype: (11.0 - np.arange(4) / 1000).astype(np.float16),
            "(There the numbers of float16 are 0.0078125 apart: closer logits can become equal.)",
        ),
        "a NaN": (lambda dtype: np.array([np.nan, 1.0, 2.0, 3.0]), "x holds nan, which is no finite logit"),
        "0.1 off": (
            lambda dtype: np.array([12.1, 12.0, 11.0, 10.0]),
            "float16 does not hold 12.1; it would become 12.1015625",
        ),
        "the example": (
            lambda dtype: np.array([1.0, 2.0, 3.0, 4.0]),
            "in float16 the sum of exp(x) is 84.75, and the naive",
        ),
        "float16 is never recognised": (
            lambda dtype: np.array([10.25, 10.5, 10.75, 11.0] if dtype == np.float16 else [87.0, 87.5, 88.0, 88.5]),
            "In float32 they would be 0: does your code tell the string 'float16' apart?",
        ),
        "largest number": (
            lambda dtype: 65504.0 - 32.0 * np.arange(4),
            "bfloat16 does not hold 65504.0; it would become 65536",
        ),
        "very low": (
            lambda dtype: -200.0 - np.arange(4),
            "in float16 every exp vanishes, and the weights are [nan,",
        ),
        "88.5 for all": (
            lambda dtype: 88.5 - np.arange(4) / 2,
            "In float16 exp of this logit overflows by itself: each",
        ),
        "87.5 at most": (
            lambda dtype: {"float16": 11.0}.get(dtype, 87.5) - np.arange(4) / 2,
            "In bfloat16 and float32 the sum of these terms is still",
        ),
    },
}
