"""Scores with linear biases: a change of scores that depends on the distance between query and key."""

import numpy as np

from courseware.checks import Checks, Exercise, compare, exactly, not_modified
from courseware.exercises.common.generators import drawn_case, in_both_dtypes


def alibi_scores(scores, slopes):
    """The scores of every head, less its slope times the distance between query and key.

    scores: [heads, n_q, n_k]; slopes: [heads]; both float32 or both float64. Query i stands at position i + n_k - n_q
        (bottom-right: the last query at the last key), and its distance to key j is how far j lies from there, in
        either direction. The result may have either dtype. Nothing is modified.

    >>> alibi_scores(np.zeros((1, 2, 3)), np.array([0.5])).tolist()
    [[[-0.5, 0.0, -0.5], [-1.0, -0.5, 0.0]]]
    """
    _, n_q, n_k = scores.shape
    positions = np.arange(n_q)[:, None] + n_k - n_q
    distances = abs(positions - np.arange(n_k))
    return scores - slopes[:, None, None] * distances


def agrees_pair_by_pair(returned, scores, slopes):
    _, n_q, n_k = scores.shape
    exact = np.zeros_like(scores)
    for h, i, j in np.ndindex(scores.shape):
        distance = max(i + n_k - n_q - j, j - (i + n_k - n_q))
        exact[h, i, j] = scores[h, i, j] - distance * slopes[h]
    terms = abs(scores).max() + abs(slopes).max() * (n_q + n_k)
    return compare(returned, exactly("the result", exact, terms, "head"))


def case(heads, n_q, n_k, *slopes):
    """Scores that are all different."""
    return np.arange(heads * n_q * n_k).reshape(heads, n_q, n_k) % 7 / 2.0, np.array(slopes)


check = Checks(alibi_scores, agrees_pair_by_pair)

check("one query: each key loses the slope times its distance", [case(1, 1, 3, 0.5), case(2, 1, 4, 1.0, 1.0)])
check("as many queries as keys: distances on both sides of a query", [case(1, 3, 3, 0.5), case(2, 3, 3, 0.25, 0.25)])
check("unequal lengths: the last query stands at the last key", [case(1, 2, 5, 0.5), case(2, 5, 2, 0.5, 0.5)])
check("each head has a slope of its own", [case(3, 3, 3, 1.0, 0.5, 0.0), case(2, 2, 3, 0.5, 1.0)])
check("the inputs are not modified", in_both_dtypes(check.case(*case(1, 2, 2, 0.5))), calls=not_modified)
check(
    "any inputs",
    [
        case(3, 2, 4, 1.0, 0.5, 0.25),
        drawn_case({"heads": 4, "n_q": 4, "n_k": 4}, scores="heads n_q n_k", slopes="heads"),
    ],
)

EXERCISE = Exercise(__file__, alibi_scores, check, points=2, minutes=8, difficulty="easy")
