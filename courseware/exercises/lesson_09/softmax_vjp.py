"""The gradient through a row-wise softmax, from its result alone: FlashAttention-2 (Dao, 2023), section 2.3.2."""

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from courseware.checks import Checks, Exercise, agrees, expected, not_modified, show
from courseware.exercises.common.explanations import explain
from courseware.exercises.common.generators import arrays, in_both_dtypes


def softmax_vjp(P, dP):
    """The gradient through a row-wise softmax.

    P: [n_q, n_k], each row a softmax, or 0 throughout: a row that sees nothing.
    dP: [n_q, n_k], the gradient of the loss with respect to P.
    Returns dS: [n_q, n_k], the loss's gradient with respect to the scores of which P is the softmax. Nothing is
        modified.

    >>> softmax_vjp(np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]])).tolist()
    [[0.25, -0.25]]
    """
    row_sums = (P * dP).sum(axis=1, keepdims=True)
    return P * (dP - row_sums)


def gradient_of_scores(P, dP):
    return expected("dS", reference.softmax_vjp, P, dP, terms=np.abs(dP).max())


def subtracted(dS, P, dP):
    sums = (P * dP).sum(axis=1)
    off = np.abs(dS - P * (dP - sums[:, None])).max(axis=1)
    row = int(np.argmax(np.nan_to_num(off, nan=np.inf)))
    if not P[row].all():
        return ""
    x = show((dP - dS / P)[row])
    return f"written as P * (dP - x), row {row} of your dS has x = {x}, where the sum of P * dP is {show(sums[row])}"


# Rows of n_k probabilities that print short and sum to 1 exactly.
PROBABILITIES = {1: [[1.0]], 2: [[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]], 3: [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]}


@st.composite
def probabilities(draw):
    n_q, n_k = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    P = [draw(st.sampled_from(PROBABILITIES[n_k])) for _ in range(n_q)]
    return P, arrays(draw, n_q, n_k)


TWO_ROWS = ([[0.5, 0.5], [0.25, 0.75]], [[1, 0], [2, 4]])
check = Checks(softmax_vjp, explain(agrees(gradient_of_scores), subtracted))

check(
    "subtracted is the mean of dP with weights P: of a dP that is the same for every key, 0 is left",
    [([[0.25, 0.75]], [[2, 2]]), ([[0.5, 0.25, 0.25]], [[3, 3, 3]])],
)
check("one row: p * (dp - p . dp)", [([[0.25, 0.75]], [[1, 3]]), ([[0.5, 0.5]], [[1, 0]]), ([[1]], [[2]])])
check("several rows: each has a sum of its own", [TWO_ROWS, probabilities()])
check("a row of P that is 0 throughout gets 0, never NaN", [([[0, 0], [0.5, 0.5]], [[1, 2], [2, 1]])])
check("the inputs are not modified", in_both_dtypes(check.case(*TWO_ROWS)), calls=not_modified)

EXERCISE = Exercise(__file__, softmax_vjp, check, points=2, minutes=8, difficulty="easy")
