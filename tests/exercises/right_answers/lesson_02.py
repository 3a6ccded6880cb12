"""Lesson 02: right answers written differently."""

import numpy as np


def largest_by_steps(dtype):
    largest, x, step = {
        "float16": (65504.0, 11.0, 2.0**-7),
        "bfloat16": (255 * 2.0**120, 88.0, 2.0**-1),
        "float32": (float(np.finfo(np.float32).max), 88.72, 2.0**-17),
    }[dtype]
    x = np.floor(x / step) * step
    while np.exp(x + step) <= largest:
        x += step
    return x


def largest_by_bits(dtype):
    """Positive floats are in the order of their bits; a bfloat16 is the upper half of a float32."""
    of_bits = {
        "float16": lambda bits: np.uint16(bits).view(np.float16),
        "bfloat16": lambda bits: np.uint32(bits << 16).view(np.float32),
        "float32": lambda bits: np.uint32(bits).view(np.float32),
    }[dtype]
    infinity = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000}[dtype]
    largest = np.float64(of_bits(infinity - 1))
    low, high = 0, infinity
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if np.exp(np.float64(of_bits(middle))) <= largest else (low, middle)
    return of_bits(low)


RIGHT_ANSWERS = {
    "largest_exp_input": {"counting up in steps of the gap": largest_by_steps, "bisecting the bits": largest_by_bits},
    "naive_softmax": {
        "row by row": lambda x: np.apply_along_axis(lambda row: np.exp(row) / np.exp(row).sum(), -1, x),
        "times one over the sum": {
            "exp_x / exp_x.sum(axis=-1, keepdims=True)": "exp_x * (1 / np.add.reduce(exp_x, axis=-1)[..., None])"
        },
    },
    "breaking_input": {
        "so low that every exp vanishes": {"return np.array([logit, logit])": "return np.full(3, -128.0)"},
        "three that differ, in the format's own dtype": {
            "return np.array([logit, logit])": (
                "return np.array([logit, logit + 1, logit - 1],\n"
                '                    np.float16 if dtype == "float16" else np.float32)'
            )
        },
    },
}
