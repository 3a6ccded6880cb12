"""Finds the lessons' exercises: every course_lib/exercises/lesson_NN.py, loaded when first asked for."""

import difflib
import importlib
import pkgutil
from functools import cache

from .exercise import Exercise


class UnknownExercise(LookupError):
    """The message says which ids there are."""


@cache
def lessons() -> tuple[str, ...]:
    """The numbers of the lessons that have exercises, as in ("00", "05")."""
    from course_lib import exercises

    names = sorted(module.name for module in pkgutil.iter_modules(exercises.__path__))
    return tuple(name.removeprefix("lesson_") for name in names if name.startswith("lesson_"))


@cache
def lesson(number: str):
    """The module of a lesson: LESSON, TITLE, EXERCISES, QUIZ. UnknownExercise if there is none."""
    if number not in lessons():
        raise UnknownExercise(f"there is no lesson {number!r} with exercises; there are {', '.join(lessons())}")
    return importlib.import_module(f"course_lib.exercises.lesson_{number}")


def exercises() -> tuple[str, ...]:
    """The ids of all exercises, in lesson order."""
    return tuple(exercise.id for number in lessons() for exercise in lesson(number).EXERCISES)


def find(exercise_id: str) -> Exercise:
    """The exercise of this id, or UnknownExercise with the ids that come near."""
    for number in lessons():
        if str(exercise_id).startswith(number + "."):
            for exercise in lesson(number).EXERCISES:
                if exercise.id == exercise_id:
                    return exercise
    ids = exercises()
    near = difflib.get_close_matches(str(exercise_id), ids, n=3, cutoff=0.5) or ids
    raise UnknownExercise(f"there is no exercise {exercise_id!r}; did you mean {' or '.join(near)}?")
