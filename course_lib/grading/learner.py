"""What a learner calls in a notebook: check, hint, solution, progress, quiz. None raises in self-study."""

import functools
import inspect
import os
import random

from course_lib.components import page, progress_file

from . import registry, report
from .checking import grade
from .overview import overview

_hints_given: dict[str, int] = {}


def _told(function):
    """Shows the message of an UnknownExercise instead of raising it."""

    @functools.wraps(function)
    def tell(*arguments, **named):
        try:
            function(*arguments, **named)
        except registry.UnknownExercise as error:
            message = str(error)
            report.show(message[0].upper() + message[1:])

    return tell


@_told
def check(exercise_id: str, answer, *, strict: bool | None = None) -> None:
    """Check an answer and show what was found.

    strict: raise AssertionError with the same text unless it passed, for a graded cell. None means: if the
    environment variable COURSE_LIB_STRICT is 1, so that the cell reads the same in class and in self-study.
    A strict check leaves no mark in the progress file.
    """
    if strict is None:
        strict = os.environ.get("COURSE_LIB_STRICT") == "1"
    try:
        result = grade(exercise_id, answer)
    except registry.UnknownExercise as error:
        if strict:
            raise AssertionError(str(error)) from None
        raise
    if strict and not result.passed:
        raise AssertionError(result.message)
    mood = "passed" if result.passed else "failed" if result.attempted else "quiet"
    if result.attempted and not strict:
        try:
            progress_file.record(exercise_id, result.passed)
        except OSError as error:
            report.show(f"progress could not be saved in {progress_file.location()}: {error.strerror}")
    report.show(result.message, mood)


@_told
def hint(exercise_id: str, level: int | None = None) -> None:
    """Show one more hint at each call: a question, a nudge, an outline. level: 1, 2 or 3 shows that one."""
    exercise = registry.find(exercise_id)
    if level is None:
        level = min(_hints_given.get(exercise_id, 0) + 1, len(exercise.prose.hints))
        _hints_given[exercise_id] = level
    if level not in range(1, len(exercise.prose.hints) + 1):
        report.show(f"{exercise_id} has hints of level 1 to {len(exercise.prose.hints)}; there is no level {level!r}")
        return
    report.show(report.hint_message(exercise, level))


@_told
def solution(exercise_id: str) -> None:
    """Show the answer and why it is so."""
    exercise = registry.find(exercise_id)
    report.show(report.solution_message(exercise, inspect.getsource(exercise.answer)))


def progress() -> None:
    """Show what is done, per lesson."""
    try:
        page.show(*overview(progress_file.load("exercises")))
    except OSError as error:
        report.show(f"progress could not be read from {progress_file.location()}: {error.strerror}")


@_told
def quiz(lesson: str) -> None:
    """Show a lesson's quiz with jupyterquiz, or as text without jupyterquiz or outside a notebook."""
    questions = registry.quiz(lesson)
    if not page.in_notebook():
        print(_quiz_text(questions))
        return
    try:
        from jupyterquiz import display_quiz
    except ImportError:
        report.show(_quiz_text(questions))
        return
    # display_quiz names its page element at random; the same quiz gets the same name.
    state = random.getstate()
    random.seed(f"quiz {lesson}")
    try:
        display_quiz(list(questions), shuffle_answers=False)
    finally:
        random.setstate(state)


def _quiz_text(questions):
    """The questions and options, then the feedback on every option."""
    letters = "abcdefgh"
    lines = []
    for number, question in enumerate(questions, 1):
        lines += [f"{number}. {question['question']}"]
        lines += [f"   {x}) {a['answer']}" for x, a in zip(letters, question["answers"], strict=False)]
    lines += ["", "Answers"]
    for number, question in enumerate(questions, 1):
        lines += [
            f"{number}{x}) {'Right.' if a['correct'] else 'Not so.'} {a['feedback']}"
            for x, a in zip(letters, question["answers"], strict=False)
        ]
    return "\n".join(lines)
