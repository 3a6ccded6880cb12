"""The cosine of the angle between two vectors."""

import numpy as np

from course_lib import reference
from courseware.checks import Checks, Exercise, agrees, expected, not_modified
from courseware.exercises.lesson_01.dot import VECTORS


def cosine_similarity(a, b):
    """The cosine of the angle between two vectors: their dot product over the product of their lengths.

    a, b: [d], float64, d at least 1 and the same for both. Returns a number from -1 (opposite) through 0
        (at a right angle) to 1 (the same direction); rounding may carry it a little past either end. A vector of
        zeros has no direction: return 0.0 then. The length |a| of any other vector is from 1e-18 to 1e19, so
        float64 holds the squares of the lengths and the product of those squares. The inputs are not modified.

    >>> print(f"{cosine_similarity(np.array([1.0, 2.0]), np.array([2.0, 1.0])):.4f}")
    0.8000
    """
    lengths = np.sqrt(a @ a) * np.sqrt(b @ b)
    if lengths == 0:
        return 0.0
    return a @ b / lengths


def cosine(a, b):
    return expected("the cosine", reference.cosine_similarity, a, b, terms=1.0)


ANY = VECTORS.filter(lambda pair: pair["a"].any() and pair["b"].any())
check = Checks(cosine_similarity, agrees(cosine))

check(
    "along, across and against one another: 1, 0, -1, whatever the lengths",
    [([1, 2], [3, 6]), ([3, 0], [2, 0]), ([1, 0], [0, 2]), ([1, 1], [-2, -2]), ([1, -2], [-1, 2])],
)
check("any two vectors, in any number of dimensions", [([2, 0, 1], [3, 1, -4]), ([1, -1], [3, 1]), ([3], [-2]), ANY])
check(
    "however short or long the vectors are, the cosine is the same",
    # Of the second pair one length is far shorter, which the other makes up for. The product of the squares of two long
    # lengths, or of two short ones, is a number of float64, and none of float32.
    [([1e-6, 0], [1e-6, 1e-6]), ([1e-18, 0], [1e18, 1e18]), ([5e18, 0], [5e18, 5e18]), ([2e-18, 0], [2e-18, 2e-18])],
)
check("a vector of zeros gives 0, not NaN", [([0, 0], [1, 2]), ([1, 2], [0, 0]), ([0, 0], [0, 0])])
check("the inputs are not modified", [([3, 4], [4, 3])], calls=not_modified)

EXERCISE = Exercise(__file__, cosine_similarity, check, points=2, minutes=10, difficulty="easy")
