"""Finds the lessons and their exercises: every folder lesson_NN in a package beside this one.

They are loaded when first asked for. So lessons import this package, and it names none of them.
"""

import difflib
import importlib
import tomllib
from functools import cache
from pathlib import Path

from . import prose
from .exercise import Exercise

PACKAGES = Path(__file__).parents[1]


class UnknownExercise(LookupError):
    """The message says which ids there are."""


@cache
def lessons() -> dict[str, dict]:
    """Number of each lesson that has exercises -> its lesson.toml: {"title": ..., "exercises": names in order}."""
    texts = {number: (folder / "lesson.toml").read_text(encoding="utf-8") for number, folder in _folders().items()}
    return {number: tomllib.loads(text) for number, text in texts.items()}


@cache
def _folders() -> dict[str, Path]:
    files = sorted(PACKAGES.glob("*/lesson_*/lesson.toml"))
    return {file.parent.name.removeprefix("lesson_"): file.parent for file in files}


def lesson(number: str) -> dict:
    """The entry of a lesson in `lessons`. UnknownExercise if there is none."""
    if number not in lessons():
        raise UnknownExercise(f"there is no lesson {number!r} with exercises; there are {', '.join(lessons())}")
    return lessons()[number]


def exercises() -> tuple[str, ...]:
    """The ids of all exercises, in lesson order."""
    return tuple(f"{number}.{name}" for number in lessons() for name in lesson(number)["exercises"])


@cache
def find(exercise_id: str) -> Exercise:
    """The exercise of this id, or UnknownExercise with the ids that come near."""
    ids = exercises()
    if exercise_id not in ids:
        near = difflib.get_close_matches(str(exercise_id), ids, n=3, cutoff=0.5) or ids
        raise UnknownExercise(f"there is no exercise {exercise_id!r}; did you mean {' or '.join(near)}?")
    number, name = exercise_id.split(".")
    folder = _folders()[number].relative_to(PACKAGES.parent)
    return importlib.import_module(".".join([*folder.parts, name])).EXERCISE


def of_lesson(number: str) -> tuple[Exercise, ...]:
    """The exercises of a lesson, in its order."""
    return tuple(find(f"{number}.{name}") for name in lesson(number)["exercises"])


def quiz(number: str) -> list[dict]:
    """The questions of a lesson's quiz."""
    lesson(number)
    return prose.read_quiz(_folders()[number] / "quiz.md")
