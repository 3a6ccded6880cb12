"""Finds the lessons and their exercises: every folder course_lib/exercises/lesson_NN, loaded when first asked for."""

import difflib
import importlib
import pkgutil
from functools import cache
from pathlib import Path

from . import prose
from .exercise import Exercise


class UnknownExercise(LookupError):
    """The message says which ids there are."""


@cache
def lessons() -> tuple[str, ...]:
    """The numbers of the lessons that have exercises, as in ("00", "05")."""
    from course_lib import exercises

    names = sorted(module.name for module in pkgutil.iter_modules(exercises.__path__) if module.ispkg)
    return tuple(name.removeprefix("lesson_") for name in names if name.startswith("lesson_"))


@cache
def lesson(number: str):
    """The package of a lesson: TITLE and EXERCISES, the exercises' names in order. UnknownExercise if there is none."""
    if number not in lessons():
        raise UnknownExercise(f"there is no lesson {number!r} with exercises; there are {', '.join(lessons())}")
    return importlib.import_module(f"course_lib.exercises.lesson_{number}")


def ids_of(number: str) -> tuple[str, ...]:
    """The ids of a lesson's exercises, in its order."""
    return tuple(f"{number}.{name}" for name in lesson(number).EXERCISES)


def exercises() -> tuple[str, ...]:
    """The ids of all exercises, in lesson order."""
    return tuple(exercise_id for number in lessons() for exercise_id in ids_of(number))


@cache
def find(exercise_id: str) -> Exercise:
    """The exercise of this id, or UnknownExercise with the ids that come near."""
    ids = exercises()
    if exercise_id not in ids:
        near = difflib.get_close_matches(str(exercise_id), ids, n=3, cutoff=0.5) or ids
        raise UnknownExercise(f"there is no exercise {exercise_id!r}; did you mean {' or '.join(near)}?")
    number, name = exercise_id.split(".")
    return importlib.import_module(f"course_lib.exercises.lesson_{number}.{name}").EXERCISE


def of_lesson(number: str) -> tuple[Exercise, ...]:
    """The exercises of a lesson, in its order."""
    return tuple(map(find, ids_of(number)))


def quiz(number: str) -> list[dict]:
    """The questions of a lesson's quiz."""
    return prose.read_quiz(Path(lesson(number).__file__).with_name("quiz.md"))
