"""Right answers written differently: a check that refuses one of these is wrong.

lesson_NN.py holds RIGHT_ANSWERS: exercise -> {what is different: edits of the answer's source, or a function}.
"""

import importlib

from courseware.editing import edited


def right_answers(exercise) -> dict:
    """{what is different: the answer}."""
    number, name = exercise.id.split(".")
    forms = importlib.import_module(f"{__name__}.lesson_{number}").RIGHT_ANSWERS[name]
    return {said: form if callable(form) else edited(exercise.answer, form, said) for said, form in forms.items()}
