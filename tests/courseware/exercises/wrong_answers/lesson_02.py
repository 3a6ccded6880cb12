"""Lesson 02: wrong answers, and what the check has to say of each."""

import numpy as np


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
        "one number after another": (
            one_after_another,
            "This format has 8,388,608 numbers from 1 up to 2, and as many from 2 up to 4",
        ),
    },
    "naive_softmax": {
        "axis=0": ({"axis=-1, keepdims=True": "axis=0"}, "The sums are taken down the columns, so that a column adds"),
        "divided by the max": (
            {"exp_x.sum": "exp_x.max"},
            "The exponentials are divided by something other than their",
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
    },
}
