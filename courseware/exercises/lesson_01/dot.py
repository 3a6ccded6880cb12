"""The dot product of two vectors."""

import numpy as np

from course_lib import reference
from courseware.checks import Checks, Exercise, agrees, expected, not_modified, raises_value_error
from courseware.exercises.common.generators import drawn_case


def dot(a, b):
    """The dot product of two vectors: the sum of a[i] * b[i].

    a, b: [d], floats, d at least 1. Returns a number.
    Raises ValueError if one has more components than the other. The inputs are not modified.

    >>> print(dot(np.array([1.0, 2.0]), np.array([2.0, 1.0])))
    4.0
    """
    if a.shape != b.shape:  # NumPy would stretch a vector of one component
        raise ValueError(f"a has shape {a.shape} and b {b.shape}")
    return (a * b).sum()


def product(a, b):
    return expected("the dot product", reference.dot, a, b, terms=np.abs(a) @ np.abs(b))


VECTORS = drawn_case({"d": 5}, a="d", b="d")
check = Checks(dot, agrees(product))

check("two components each: a[0] b[0] + a[1] b[1]", [([1, 2], [3, 1]), ([2, 0], [1, 4])])
check("products of unlike signs cancel", [([1, -2], [3, 1]), ([0.5, -0.25], [0.5, 0.5])])
check(
    "any number of components, from one up",
    [([1, 2, 3], [1, 1, 2]), ([3], [2]), ([0.1, 0.7, -0.3, 0.9], [0.3, 0.9, 1.1, 0.7]), VECTORS],
)
REFUSED = "vectors with unequal numbers of components are refused with a ValueError"
check(REFUSED, [([1, 2], [3]), ([3], [1, 2]), ([1, 2], [3, 4, 5])], calls=raises_value_error)
check("the inputs are not modified", [([1, 2], [3, 1])], calls=not_modified)

EXERCISE = Exercise(__file__, dot, check, points=1, minutes=5, difficulty="easy")
