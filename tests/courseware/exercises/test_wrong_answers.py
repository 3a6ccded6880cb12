"""Wrong answers that are no misconceptions: refused, and told what is wrong with them.

wrong_answers/lesson_NN.py holds WRONG_ANSWERS: exercise -> {what is wrong: (edits of the answer's source, or a
function; words that its diagnosis has to hold)}.
"""

import importlib
from pathlib import Path

import pytest

from courseware import checks
from courseware.checks import registry
from courseware.editing import edited

LESSONS = sorted(file.stem for file in (Path(__file__).parent / "wrong_answers").glob("lesson_*.py"))
MODULES = {name: importlib.import_module(f"tests.courseware.exercises.wrong_answers.{name}") for name in LESSONS}
WRONG = [
    pytest.param(f"{lesson[-2:]}.{name}", form, words, id=f"{lesson[-2:]}.{name}-{said}")
    for lesson, module in MODULES.items()
    for name, wrong in module.WRONG_ANSWERS.items()
    for said, (form, words) in wrong.items()
]


@pytest.mark.parametrize("exercise_id, form, words", WRONG)
def test_a_wrong_answer_is_refused_and_told(exercise_id, form, words):
    exercise = registry.find(exercise_id)
    answer = form if callable(form) else edited(exercise.answer, form, "wrong")
    result = checks.grade(exercise_id, answer)
    assert result.attempted and not result.passed
    diagnosis, _, rest = result.message.partition("  fails the test:")
    assert " ".join(words.split()) in " ".join(diagnosis.split()), result.message
    assert "cannot be used" not in diagnosis
