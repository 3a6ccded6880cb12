"""Facts about wrong answers that are no known slip."""

import numpy as np
import pytest

from course_lib import grading


def scores(Q, K, scale=None):
    return Q @ K.T * (Q.shape[1] ** -0.5 if scale is None else scale)


@pytest.mark.parametrize(
    "wrong, fact",
    [
        (lambda *given: scores(*given) ** 2, "what comes back is the square of the right result"),
        (lambda *given: np.round(scores(*given)), "the right result rounded to 0 decimal places"),
        (lambda *given: 3 * scores(*given), "the right result times 3, where it is not right"),
        (
            lambda Q, K, scale=None: scores(Q[:1] + 0 * Q, K, scale),
            "changing Q[0] changes rows 0 to 1 of what comes back; it should change row 0",
        ),
        (lambda Q, K, scale=None: scores(Q, K), "changing scale changes nothing; it should change rows 0 to 1"),
    ],
)
def test_a_fact_is_told(wrong, fact):
    assert fact in grading.grade("01.scores", wrong).message


def test_what_holds_of_one_input_only_is_not_told():
    message = grading.grade("01.scores", lambda *given: np.sin(scores(*given))).message
    assert "every input" not in message and "changing" not in message
