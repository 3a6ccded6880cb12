"""Lesson 00, start here: one exercise small enough to show how the checks work."""

import numpy as np

from course_lib.grading.checking import agrees
from course_lib.grading.exercise import Exercise, Part, Property, Variant, WrongAnswer, caught_by, option

LESSON = "00"
TITLE = "Start here"


def softmax_scale(head_dim):
    """The factor that attention multiplies its scores by before the softmax.

    head_dim: length of a query or key vector, an integer of at least 1.
    Returns 1 / sqrt(head_dim), a float.

    >>> print(f"{softmax_scale(2):.4f}")
    0.7071
    """
    return head_dim**-0.5


NOT_INVERTED = "sqrt(head_dim) is returned, not its inverse"
NO_ROOT = "the root is missing"
INTEGER = "the division is an integer one"


def scale_parts(head_dim):
    exact, plain = 1 / np.sqrt(np.float64(head_dim)), 1 / np.sqrt(np.float32(head_dim))
    readings = {NOT_INVERTED: np.sqrt(head_dim), NO_ROOT: 1 / head_dim, INTEGER: 0.0}
    return [Part("the scale", exact, plain, exact, lambda: readings)]


def draw_head_dim():
    from hypothesis import strategies as st

    return st.fixed_dictionaries({"head_dim": st.integers(1, 256)})


SCALE = Exercise(
    id="00.softmax_scale",
    title="The scale of the scores",
    points=1,
    minutes=2,
    difficulty="easy",
    answer=softmax_scale,
    hints=(
        "Is the scale larger or smaller than 1 for head_dim = 64?",
        "64 gives 0.125, and 4 gives 0.5. What do the two have in common?",
        "Take the square root of head_dim and return 1 divided by it.",
    ),
    reasoning="A dot product of head_dim products of numbers of size 1 has a spread of sqrt(head_dim). "
    "Dividing by that keeps the scores at size 1 whatever head_dim is. Lesson 01 measures it.",
    properties=(
        Property(
            "head_dim = 1 gives 1",
            "softmax_scale(head_dim)",
            agrees(scale_parts),
            ({"head_dim": 1},),
            hints={"": "formula"},
        ),
        Property(
            "any head_dim gives 1 / sqrt(head_dim)",
            "softmax_scale(head_dim)",
            agrees(scale_parts),
            ({"head_dim": 2}, {"head_dim": 64}),
            draw_head_dim,
            {
                f"the scale: {NOT_INVERTED}": "inverse",
                f"the scale: {NO_ROOT}": "root",
                f"the scale: {INTEGER}": "integer",
                "the scale: precision": "digits",
                "": "formula",
            },
        ),
    ),
    mistakes={
        "inverse": "The scores grow with head_dim, so the factor must shrink. What is 1 divided by your result?",
        "root": "It is the square root of head_dim that stands below, not head_dim.",
        "integer": "// rounds down to a whole number. Which operator divides floats?",
        "digits": "Round for printing, not in the result.",
        "formula": "Compare with the formula for head_dim = 4, which gives 0.5.",
    },
    common_hints={": none": "formula", ": exception": "formula", ": type": "formula"},
    wrong_answers=(
        *caught_by(
            "head_dim = 1 gives 1",
            WrongAnswer("one off", "formula", {"head_dim**-0.5": "(head_dim + 1) ** -0.5"}),
        ),
        *caught_by(
            "any head_dim gives 1 / sqrt(head_dim)",
            WrongAnswer("not inverted", "inverse", {"head_dim**-0.5": "head_dim**0.5"}),
            WrongAnswer("no root", "root", {"head_dim**-0.5": "1 / head_dim"}),
            WrongAnswer("integer division", "integer", {"head_dim**-0.5": "1 // head_dim**0.5"}),
            WrongAnswer("rounded", "digits", {"head_dim**-0.5": "round(head_dim**-0.5, 4)"}),
            WrongAnswer("fixed for head_dim = 64", "formula", {"head_dim**-0.5": "0.125 if head_dim > 1 else 1.0"}),
        ),
    ),
    right_answers=(
        Variant(
            "through math.sqrt",
            {"return head_dim**-0.5": ("import math\n    return 1 / math.sqrt(head_dim)")},
        ),
        Variant("in float32", {"head_dim**-0.5": "np.float32(1) / np.sqrt(np.float32(head_dim))"}),
    ),
)

EXERCISES = (SCALE,)


QUIZ = [
    {
        "question": "You run a check on a stub that you have not touched. What does it show?",
        "type": "multiple_choice",
        "answers": [
            option("An error", False, "A fresh notebook runs from top to bottom without one."),
            option(
                "A quiet line: not attempted yet",
                True,
                "Nothing is held against you until you write something.",
            ),
            option("The solution", False, "solution(id) shows that, when you ask for it."),
        ],
    },
    {
        "question": "A check fails. Which input does it show you?",
        "type": "multiple_choice",
        "answers": [
            option(
                "The smallest that it could find",
                True,
                "It shrinks the input until every part of it matters. Paste it into a cell and follow your "
                "code by hand.",
            ),
            option("The first random one that failed", False, "That one is shrunk first."),
            option("None, so that tests stay secret", False, "In self-study you see everything."),
        ],
    },
]
