"""How the checks themselves are checked: every answer, right or wrong, gets what is due to it."""

import ast
import doctest
import importlib
import inspect
import textwrap
import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from course_lib import grading
from course_lib.grading import checking, registry
from course_lib.grading.calling import GuardedAnswer
from course_lib.grading.checking import _first_failure, _try
from course_lib.grading.exercise import Variant
from course_lib.grading.kernel_calls import runs_here

EXERCISES = [registry.find(exercise_id) for exercise_id in grading.exercises()]
WRONG = [(exercise, wrong) for exercise in EXERCISES for wrong in exercise.wrong_answers]
RIGHT = [(exercise, right) for exercise in EXERCISES for right in exercise.right_answers]
# Properties that no wrong answer fails first.
UNSHOWN = [
    (exercise, prop)
    for exercise in EXERCISES
    for prop in exercise.properties
    if prop.name not in [wrong.property for wrong in exercise.wrong_answers]
]


def each(names, rows):
    """Parametrized over rows of (exercise, something with a name)."""
    ids = [f"{exercise.id}: {other.name}" for exercise, other in rows]
    return pytest.mark.parametrize(names, rows, ids=ids)


each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """What is told must not depend on how busy the machine is: the count of tries ends a search here, no clock."""
    monkeypatch.setattr(checking, "TRYING_LIMIT_S", 300.0)


def build(exercise, variant):
    """The variant's function, which where kernels are compiled goes to another process as source."""
    if variant.function is not None and not runs_here(exercise):
        pytest.skip("a closure has no source of its own")
    return variant.build(exercise.answer)


@cache
def graded_wrong(exercise_id, name):
    exercise = registry.find(exercise_id)
    (wrong,) = (wrong for wrong in exercise.wrong_answers if wrong.name == name)
    return grading.grade(exercise_id, build(exercise, wrong))


@each_exercise
def test_the_answer_passes_in_time_and_on_another_seed(exercise):
    assert grading.grade(exercise.id, exercise.answer, seed=1).passed  # first: it imports Hypothesis
    start = time.process_time()
    result = grading.grade(exercise.id, exercise.answer)
    assert time.process_time() - start < (10 if "triton" in exercise.imports else 3)
    assert result.passed and result.attempted, result.message
    assert list(result.properties.values()) == [True] * len(exercise.properties)


@each_exercise
@pytest.mark.parametrize("body", ["raise NotImplementedError", "raise NotImplementedError()", "...", "pass"])
@pytest.mark.parametrize("documented", [True, False])
def test_an_untouched_stub_is_not_attempted(exercise, body, documented):
    name = exercise.answer.__name__
    docstring = '    """What to do."""\n' if documented else ""
    namespace = {}
    exec(f"def {name}{inspect.signature(exercise.answer)}:\n{docstring}    {body}\n", namespace)
    result = grading.grade(exercise.id, namespace[name])
    assert (result.passed, result.attempted, result.properties) == (False, False, {})
    assert "not attempted yet" in result.message and "\n" not in result.message


@each_exercise
@pytest.mark.parametrize(
    "body, documented",
    [
        ("return 42", True),
        ("return 0.0", False),
        ("raise ValueError", True),
        ("x = NotImplementedError; raise x", False),
    ],
)
def test_anything_else_is_an_attempt(exercise, body, documented):
    name = exercise.answer.__name__
    docstring = '    """What to do."""\n' if documented else ""
    namespace = {}
    exec(f"def {name}{inspect.signature(exercise.answer)}:\n{docstring}    {body}\n", namespace)
    result = grading.grade(exercise.id, namespace[name])
    assert (result.passed, result.attempted) == (False, True)


def is_as_expected(result, wrong):
    if result.passed or not result.attempted:
        return False
    failed = [name for name, holds in result.properties.items() if not holds]
    return failed == [wrong.property] and result.mistake == wrong.mistake


@each("exercise, wrong", WRONG)
def test_a_wrong_answer_fails_on_its_own_property_with_its_own_hint(exercise, wrong):
    result = graded_wrong(exercise.id, wrong.name)
    assert is_as_expected(result, wrong), result.message
    hint = " ".join(exercise.mistakes[wrong.mistake].split())
    assert hint in " ".join(result.message.split())
    # The grader's own trouble with an answer must not pass for the answer's.
    assert "cannot be used" not in result.message


@each_exercise
@pytest.mark.parametrize("place", [0, -1])
def test_a_wrong_answer_is_told_the_same_twice(exercise, place):
    wrong = exercise.wrong_answers[place]
    again = grading.grade(exercise.id, build(exercise, wrong))
    assert again.message == graded_wrong(exercise.id, wrong.name).message


@each("exercise, right", RIGHT)
def test_a_right_answer_written_differently_passes(exercise, right):
    result = grading.grade(exercise.id, build(exercise, right))
    assert result.passed, result.message


@each("exercise, prop", UNSHOWN)
def test_a_property_that_is_never_the_first_to_fail_catches_a_wrong_answer_too(exercise, prop):
    """So a property that holds for everything is noticed; that the others catch one is shown above."""

    def catches(wrong):
        return _first_failure(exercise, prop, GuardedAnswer(wrong.build(exercise.answer)), seed=0) is not None

    assert any(map(catches, exercise.wrong_answers))


@each_exercise
def test_a_check_that_passes_everything_is_noticed(exercise, monkeypatch):
    if not runs_here(exercise):
        pytest.skip("this check happens in another process, which cannot be blinded from here")
    sees_nothing = {"test": lambda answer, **inputs: None, "draw": None}
    blind = tuple(replace(prop, **sees_nothing) for prop in exercise.properties)
    monkeypatch.setattr(registry, "find", lambda exercise_id: replace(exercise, properties=blind))
    for wrong in exercise.wrong_answers:
        assert not is_as_expected(grading.grade(exercise.id, wrong.build(exercise.answer)), wrong)


@each_exercise
def test_there_are_enough_of_each(exercise):
    assert len(exercise.wrong_answers) >= 5
    assert len(exercise.right_answers) >= 2
    assert len(exercise.hints) == 3
    names = [prop.name for prop in exercise.properties]
    assert len(set(names)) == len(names)
    assert {wrong.property for wrong in exercise.wrong_answers} <= set(names)


@each_exercise
def test_every_hint_is_there_and_every_mistake_can_be_shown(exercise):
    shown = {key for prop in exercise.properties for key in prop.hints.values()}
    assert shown | set(exercise.common_hints.values()) == set(exercise.mistakes)


@each_exercise
def test_the_example_of_the_docstring_is_right(exercise):
    module = importlib.import_module(exercise.answer.__module__)
    test = doctest.DocTestFinder().find(exercise.answer, globs={**vars(module), "np": np})[0]
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


@each_exercise
def test_the_answer_needs_only_what_its_cell_is_given(exercise):
    alone = Variant("the answer alone").build(exercise.answer)  # np, and for kernels triton and tl
    assert grading.grade(exercise.id, alone, seed=20261121).passed


@each("exercise, wrong", WRONG)
def test_the_printed_input_reproduces_the_failure(exercise, wrong):
    """What a failure prints is Python that makes the same call: run it, and the same thing is wrong."""
    message = graded_wrong(exercise.id, wrong.name).message
    printed = message.split("found that shows it:\n")[1].split("\n\n")[0]
    tree = ast.parse(textwrap.dedent(printed))
    call = tree.body.pop()
    answer = wrong.build(exercise.answer)
    namespace = {"np": np, exercise.answer.__name__: answer}
    (prop,) = (prop for prop in exercise.properties if prop.name == wrong.property)
    names = list(prop.cases[0])
    exec(compile(tree, "<printed>", "exec"), namespace)
    patience_s = 2.0 if runs_here(exercise) else 30.0  # a launch that another process interprets
    evidence = _try(prop, GuardedAnswer(answer, patience_s), {name: namespace[name] for name in names})
    assert evidence is not None
    assert evidence.findings[0].text.splitlines()[0] in message
    if evidence.findings[0].kind != "exception":
        with np.errstate(all="ignore"):
            eval(compile(ast.Expression(call.value), "<printed>", "eval"), namespace)


@pytest.mark.parametrize("number", registry.lessons())
def test_a_quiz_has_one_right_option_and_feedback_on_each(number):
    questions = registry.lesson(number).QUIZ
    places = set()
    for question in questions:
        assert question["type"] == "multiple_choice"
        right = [i for i, option in enumerate(question["answers"]) if option["correct"]]
        assert len(right) == 1
        places.add(right[0])
        assert all(option["feedback"] and option["answer"] for option in question["answers"])
        assert len({option["answer"] for option in question["answers"]}) == len(question["answers"]) >= 3
    assert len(places) > 1  # the right one is not always in the same place
