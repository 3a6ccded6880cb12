"""Random inputs: Hypothesis strategies whose smallest values are the simplest to read."""

import numpy as np
from hypothesis import strategies as st

_WHOLE = [0.0, 1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -4.0]
# Numbers of size 4 at most, the simplest first.
NUMBERS = st.sampled_from(_WHOLE + [x / 8 for x in range(-31, 32) if x % 8])
# Scores of which many are masked.
MASKED_SCORES = st.sampled_from([-np.inf, 0.0, 1.0, -1.0, 2.0, -np.inf])
# Scores up to 2000 in size, whose exponentials overflow or vanish in every format.
LARGE_SCORES = st.integers(-8, 8).map(lambda i: i * 250.0)
COUNTS = st.integers(0, 3).map(float)
GAPS = st.integers(1, 4).map(float)


def arrays(draw, *shape, of=NUMBERS):
    """A float64 array of `shape` drawn element by element, so that each shrinks on its own."""
    return np.array([draw(of) for _ in range(int(np.prod(shape)))], dtype=np.float64).reshape(shape)


@st.composite
def drawn_case(draw, most, of=NUMBERS, **inputs):
    """A case with arrays of sizes that are drawn first. most: {size: the most of it, from 1 up, or a list of them}.

    inputs: of each name the shape of an array, as in q="n_q d", or another strategy.
    """
    of_sizes = {name: st.sampled_from(n) if isinstance(n, list) else st.integers(1, n) for name, n in most.items()}
    sizes = {name: draw(each) for name, each in of_sizes.items()}
    return {
        name: arrays(draw, *map(sizes.get, given.split()), of=of) if isinstance(given, str) else draw(given)
        for name, given in inputs.items()
    }


def state(draw, m, d_v, empty=False):
    """(m, l, acc) of a softmax whose running max is m, or of as many queries that have seen no key."""
    l, acc = 1.0 + arrays(draw, *m.shape, of=COUNTS), arrays(draw, *m.shape, d_v)
    return (m[()] - np.inf, l[()] * 0, acc * 0) if empty else (m[()], l[()], acc)


def in_float32(case):
    """A case with its floats in float32: what converts them to float32 then makes no copy."""
    return {name: np.asarray(x, np.float32)[()] if np.asarray(x).dtype == np.float64 else x for name, x in case.items()}


def in_both_dtypes(case):
    """A case of float64, and the same in float32."""
    return [case, in_float32(case)]


def as_floats(**values):
    """A case: lists as float64 arrays, numbers as NumPy numbers."""
    return {name: np.array(value, dtype=np.float64)[()] for name, value in values.items()}
