"""Lesson 02: right answers written differently."""

import numpy as np


def largest_by_steps(exponent_bits, mantissa_bits):
    """From 1 upwards, in steps of the gap."""
    largest = (2 - 2.0**-mantissa_bits / 2) * 2.0 ** (2 ** (exponent_bits - 1) - 1)  # what still rounds to a number
    x = 1.0
    while np.exp(2 * x) <= largest:
        x *= 2
    step = x
    while step > x * 2.0**-mantissa_bits:
        step /= 2
        if np.exp(x + step) <= largest and x + step < 2 ** (np.floor(np.log2(x)) + 1):
            x += step
    return x


def largest_by_bisection(exponent_bits, mantissa_bits):
    """The numbers from 1 on are in the order of (exponent, mantissa)."""

    def number(i):
        return (1 + (i % 2**mantissa_bits) / 2**mantissa_bits) * 2.0 ** (i // 2**mantissa_bits)

    highest = 2 ** (exponent_bits - 1)
    low, high = 0, 10 * 2**mantissa_bits
    while high - low > 1:
        middle = (low + high) // 2
        fits = np.exp(number(middle)) < number(highest * 2**mantissa_bits - 0.5)
        low, high = (middle, high) if fits else (low, middle)
    return np.float64(number(low))


RIGHT_ANSWERS = {
    "largest_exp_input": {"in halving steps": largest_by_steps, "bisecting the mantissas": largest_by_bisection},
    "naive_softmax": {
        "row by row": lambda x: np.apply_along_axis(lambda row: np.exp(row) / np.exp(row).sum(), -1, x),
        "powers of e": {"np.exp(x)": "x.dtype.type(np.e) ** x"},
        "summed by reduce": {
            "exp_x / exp_x.sum(axis=-1, keepdims=True)": "exp_x / np.add.reduce(exp_x, axis=-1)[..., None]"
        },
    },
    "breaking_input": {
        "eight of them": {"[logit, logit - 0.5, logit - 1, logit - 1.5]": "[logit - i / 2 for i in range(8)]"},
        "as far down as a weight may go, in the format's own dtype": {
            "return np.array([logit, logit - 0.5, logit - 1, logit - 1.5])": (
                "return np.array([logit - 3.5, logit, logit - 0.5, logit - 3],\n"
                '                    np.float16 if dtype == "float16" else np.float32)'
            )
        },
        "a list": {
            "np.array([logit, logit - 0.5, logit - 1, logit - 1.5])": "[logit - 1, logit - 0.5, logit, logit - 2]"
        },
    },
}
