"""Right answers written differently: a check that refuses one of these is wrong.

lesson_NN.py holds RIGHT_ANSWERS: exercise -> {what is different: edits of the answer's source, or a function}.
"""

import importlib

from courseware.editing import edited


def right_answers(exercise) -> dict:
    """{what is different: the answer}."""
    number, name = exercise.id.split(".")
    of_lesson = importlib.import_module(f"{__name__}.lesson_{number}").RIGHT_ANSWERS
    assert name in of_lesson, f"RIGHT_ANSWERS in {__name__}.lesson_{number} lacks {name!r}: add one"
    variants = of_lesson[name].items()
    return {
        said: variant if callable(variant) else edited(exercise.answer, variant, said) for said, variant in variants
    }
