"""The factor that attention multiplies its scores by."""

import numpy as np
from hypothesis import strategies as st

from courseware.checks import Checks, Exercise, agrees, expected


def softmax_scale(head_dim):
    """The factor that attention multiplies its scores by.

    head_dim: how many numbers a query or key vector has, an integer of at least 1.
    Returns 1 / sqrt(head_dim), a float.

    >>> print(f"{softmax_scale(2):.4f}")
    0.7071
    """
    return head_dim**-0.5


def scale(head_dim):
    return expected("the scale", lambda head_dim: 1 / np.sqrt(head_dim), head_dim)


check = Checks(softmax_scale, agrees(scale))

check("head_dim = 1 gives 1", [(1,)])
check("any head_dim gives 1 / sqrt(head_dim)", [(2,), (64,), st.tuples(st.integers(1, 256))])

EXERCISE = Exercise(__file__, softmax_scale, check, points=1, minutes=2, difficulty="easy")
