"""The score of every query with every key."""

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from course_lib.reference.dot import resolve_scale
from courseware.checks import Checks, Exercise, agrees, expected, keeps_dtype, not_modified
from courseware.exercises.common.generators import GAPS, NUMBERS, drawn_case, in_both_dtypes


def scores(Q, K, scale=None):
    """The score of every query with every key: their dot product times scale.

    Q: [n_q, d], one query a row. K: [n_k, d], one key a row. n_q, n_k and d are at least 1. Both are float32,
        or both are float64. scale: an int or a float, 0 included; None means 1 / sqrt(d).
    Returns [n_q, n_k], float32 or float64, whichever you compute in: row i, column j holds the score of query i
        with key j.
    The inputs are not modified.

    >>> Q, K = np.array([[1.0, 2.0]]), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> print(scores(Q, K, scale=1.0), scores(Q, K).round(4))
    [[1. 2. 3. 4.]] [[0.7071 1.4142 2.1213 2.8284]]
    """
    if scale is None:
        scale = 1 / np.sqrt(Q.shape[1])
    return Q @ K.T * scale


def score_matrix(Q, K, scale):
    terms = np.abs(Q) @ np.abs(K).T * abs(resolve_scale(scale, Q.shape[1]))
    return expected("S", lambda Q, K: reference.scores(Q, K, scale), Q, K, terms=terms, index="query")


def matrices(*scales, of=NUMBERS):
    return drawn_case({"n_q": 3, "n_k": 3, "d": 3}, of=of, Q="n_q d", K="n_k d", scale=st.sampled_from(scales))


check = Checks(scores, agrees(score_matrix))
# No format of 16 bits holds these to more than three digits.
FRACTIONS = [[0.1, 0.7], [-0.3, 0.9]], [[1.1, 0.3], [0.7, -0.2], [0.9, 0.4]]

check(
    "row i, column j is the dot product of query i and key j",
    [([[1, 2], [3, 0]], [[1, 0], [0, 1], [2, 1]], 1.0), (*FRACTIONS, 1.0), matrices(1.0, of=GAPS)],
)
check(
    "without a scale, 1 / sqrt(d)",
    [
        ([[1, 1, 1, 1], [2, 0, 1, -1]], [[1, 2, 3, 4], [0, 0, 1, 0], [2, 1, 0, 1]]),
        ([[1, 0, 2], [0, 1, 1]], [[3, 1, 0]]),
        matrices(None),
    ],
)
check(
    "a scale that is given is used as it is, 0 too",
    [
        *(([[1, 2], [0, 3]], [[2, 1], [1, 0]], scale) for scale in (0.5, -3.0, 2.0, 0.0, 2, 0)),
        (*FRACTIONS, 0.3),
        matrices(0.5, 0.0, 2.0, -1.0, 3, -1),
    ],
)
check(
    "the scores are float32 or float64, with a scale and without",
    [case | {"scale": scale} for scale in (None, 0.3, 2) for case in in_both_dtypes(check.case(*FRACTIONS))],
    test=keeps_dtype("S", of=("float32", "float64")),
)
check("the inputs are not modified", in_both_dtypes(check.case([[1, 2]], [[1, 0], [2, 1]])), calls=not_modified)

EXERCISE = Exercise(__file__, scores, check, points=2, minutes=10, difficulty="easy")
