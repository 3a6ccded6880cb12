"""What a learner calls in a notebook: check, hint, solution, restore, progress, quiz. None raises in self-study."""

import functools
import os

from courseware.widgets import page, progress_file
from courseware.widgets.cells import cell_magic, explain_unknown_names, missing_source, source_of, syntax_error
from courseware.widgets.quiz import show_quiz
from courseware.worker.rules import objection

from . import registry, report
from .checking import grade
from .kernel_calls import is_kernel, plain

PATIENCE_S = 3.0
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
    environment variable COURSEWARE_STRICT is 1, so that the cell reads the same in class and in self-study.
    A strict check leaves no mark in the progress file.
    """
    if strict is None:
        strict = os.environ.get("COURSEWARE_STRICT") == "1"
    try:
        with page.said_after(PATIENCE_S, f"{exercise_id}: still looking"):
            result = grade(exercise_id, answer)
    except registry.UnknownExercise as error:
        if strict:
            raise AssertionError(str(error)) from None
        raise
    exercise, source = registry.find(exercise_id), source_of(plain(answer)) if result.attempted else None
    if not strict and (error := syntax_error(exercise.answer.__name__)):
        report.show(f"{exercise_id}: {error}", "failed")
        return
    broken = objection(source or "", exercise.imports, is_kernel(exercise))
    broken = broken and f"{exercise_id}: in class, this answer would not be run. {broken}"
    if strict:
        if broken or not result.passed:
            raise AssertionError(broken or result.message)
        report.show(result.message, "passed")
        return
    magic = cell_magic(exercise.answer.__name__)
    source = None if magic else source
    try:
        if result.attempted:
            progress_file.record(exercise_id, result.passed, source)
        elif not magic and progress_file.load("exercises").get(exercise_id) == "passed":
            report.show(_passed_before(exercise_id))
            return
    except OSError as error:
        report.show(f"progress could not be saved in {progress_file.location()}: {error.strerror}")
    buttons = None if result.passed else lambda: _with_buttons(exercise, result)
    page.show(result.message, result.page or report.boxed(result.message), buttons)
    if (result.passed and source is None) or (magic and not result.attempted):
        report.show(f"{exercise_id}: {missing_source(exercise.answer.__name__)}")
    if broken and result.passed:
        report.show(f"For self-study, that is all. {broken}")


def _passed_before(exercise_id):
    text = f"{exercise_id}: passed before, but the cell above holds no answer now."
    if exercise_id not in progress_file.load("answers"):
        return f"{text} It was not kept."
    call = f'from courseware import restore\n    restore("{exercise_id}")'
    return f"{text} To get yours back, run this in its place:\n\n    {call}"


def _with_buttons(exercise, result):
    """The card, with buttons for what `hint` and `solution` say."""
    import ipywidgets as widgets

    hints, answer = widgets.HTML(), widgets.HTML()
    hint_button, solution_button = widgets.Button(description="Next hint"), widgets.Button(description="Solution")

    def tell(said, text):
        said.value = report.boxed(text)

    hint_button.on_click(lambda _: tell(hints, report.hint_message(exercise, *_one_more(exercise))))
    solution_button.on_click(lambda _: tell(answer, report.solution_message(exercise)))
    card = widgets.HTML(result.page or report.boxed(result.message))
    return widgets.VBox([card, widgets.HBox([hint_button, solution_button]), hints, answer])


def _one_more(exercise):
    """The levels of the hints that were given, and of the next."""
    level = min(_hints_given.get(exercise.id, 0) + 1, len(exercise.prose.hints))
    _hints_given[exercise.id] = level
    return range(1, level + 1)


@_told
def hint(exercise_id: str, level: int | None = None) -> None:
    """Show one more hint at each call: a question, a nudge, an outline. level: 1, 2 or 3 shows that one."""
    exercise = registry.find(exercise_id)
    levels = _one_more(exercise) if level is None else [level]
    if levels[-1] not in range(1, len(exercise.prose.hints) + 1):
        report.show(f"{exercise_id} has hints of level 1 to {len(exercise.prose.hints)}; there is no level {level!r}")
        return
    report.show(report.hint_message(exercise, *levels))


@_told
def solution(exercise_id: str) -> None:
    """Show the answer and why it is so."""
    report.show(report.solution_message(registry.find(exercise_id)))


@_told
def restore(exercise_id: str) -> None:
    """Put the answer that passed last into the cell that calls this, and show it."""
    registry.find(exercise_id)
    source = progress_file.load("answers").get(exercise_id)
    if not isinstance(source, str):
        report.show(f"no answer of {exercise_id} that passed is kept in {progress_file.location()}")
        return
    if page.in_notebook():
        from IPython import get_ipython

        get_ipython().set_next_input(source.rstrip(), replace=True)
    report.show(f"Your answer to {exercise_id} that passed, now in this cell. Run it once more:\n\n{source.rstrip()}")


def progress() -> None:
    """Show what is done, per lesson."""
    try:
        page.show(*report.overview(progress_file.load("exercises")))
        if progress_file.COLAB.is_dir():  # where not every place outlives the session
            report.show(f"This is kept in {progress_file.location().absolute()}.")
    except OSError as error:
        report.show(f"progress could not be read from {progress_file.location()}: {error.strerror}")


@_told
def quiz(lesson: str) -> None:
    """Show a lesson's quiz."""
    show_quiz(registry.quiz(lesson))


explain_unknown_names(lambda: report.show(report.general_hints()["unknown name"]))
