"""The checks are checked: answers pass, every slip is refused by its own property and told by its own name."""

import collections
import contextlib
import doctest
import html
import importlib
import inspect
import itertools
import os
import re
import zlib
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from courseware import checks
from courseware.checks import checking, registry
from courseware.checks.calling import GuardedAnswer, attempt
from courseware.checks.cuda_calls import lacks_compiler
from courseware.checks.kernel_calls import runs_here
from courseware.checks.misconceptions import forms, on_case, same
from courseware.checks.prose import StaleSlip
from courseware.checks.report import failed_message
from courseware.editing import edited
from tests.courseware.exercises.right_answers import right_answers

EXERCISES = [registry.find(exercise_id) for exercise_id in registry.exercises()]


def is_tried(exercise, slip, form):
    """Every slip; of the further forms of slips a part, for there are thousands: an eighth of kernels', which take a
    second each, a third of the others', or all if asked for.
    """
    is_slow = "triton" in exercise.imports or "run_cuda(" in getattr(exercise.properties, "call", "")
    drawn = zlib.crc32(f"{exercise.id} {slip.name} {form}".encode()) % (8 if is_slow else 3) == 0
    return form == 0 or drawn or "COURSEWARE_ALL_FORMS" in os.environ


def checkable(exercise):
    return [pytest.mark.skipif(lacks_compiler(exercise), reason="there is no C++ compiler")]


SLIPS = [
    pytest.param(exercise, prop, slip, form, id=f"{exercise.id}-{slip.name}-{form}", marks=checkable(exercise))
    for exercise in EXERCISES
    for prop in exercise.properties
    for slip in exercise.slips
    if slip.prop == prop.name
    for form in range(len(slip.diffs))
    if is_tried(exercise, slip, form)
]
each_exercise = pytest.mark.parametrize(
    "exercise", [pytest.param(exercise, id=exercise.id, marks=checkable(exercise)) for exercise in EXERCISES]
)


FAILED_ON = {}  # the inputs on which `graded_slip` found each wanting


@cache
def graded_slip(exercise, slip, form):
    """Graded as the very answer by which slips are recognised, so that each runs once on each case."""
    answer = forms(exercise)[slip, form]

    def told(exercise, held, prop, inputs, *others):
        FAILED_ON[exercise, slip, form] = inputs
        return failed_message(exercise, held, prop, inputs, *others)

    with (
        mock.patch.object(checking, "GuardedAnswer", lambda _: answer),
        mock.patch.object(checking, "failed_message", told),
    ):
        return checks.grade(exercise.id, answer.answer)


@each_exercise
def test_the_answer_passes_alone_and_its_docstring_is_right(exercise):
    alone = edited(exercise.answer, {})  # with np, and for kernels triton and tl, as a learner's cell has them
    result = checks.grade(exercise.id, alone, seed=20261121)
    assert result.passed and all(result.properties.values()), result.message
    assert list(result.properties) == [prop.name for prop in exercise.properties]

    module = importlib.import_module(exercise.answer.__module__)
    names = {**vars(module), "np": np, "launched": checks.launched, "run_cuda": checks.run_cuda}
    test = doctest.DocTestFinder().find(exercise.answer, module=module, globs=names)[0]
    assert test.examples and doctest.DocTestRunner().run(test).failed == 0


def test_no_slip_is_stale():
    stale = []
    for exercise in EXERCISES:
        for slip in exercise.slips:
            for form in range(len(slip.diffs)):
                try:
                    slip.answer(exercise.answer, form)
                except StaleSlip as error:
                    stale.append(f"{exercise.id}: {error}")
    assert not stale, "\n".join(stale)


@pytest.mark.parametrize("exercise, prop, slip, form", SLIPS)
def test_a_slip_is_refused_by_its_own_property_in_its_own_words(exercise, prop, slip, form):
    result = graded_slip(exercise, slip, form)
    assert result.attempted and not result.passed
    assert [name for name, holds in result.properties.items() if not holds] == [prop.name], result.message
    assert result.slip == slip.name, result.message
    said = " ".join(result.message.split())
    assert slip.diagnosis in said and slip.hint in said
    # The grader's own trouble with an answer must not pass for the answer's.
    assert "cannot be used" not in result.message


def of_each_property(slips):
    """Two slips of each property, or all if asked for: what is printed comes from the property."""
    taken = collections.Counter()
    for slip in slips:
        exercise, prop, *_ = slip.values
        taken[exercise.id, prop.name] += 1
        if taken[exercise.id, prop.name] < 3 or "COURSEWARE_ALL_FORMS" in os.environ:
            yield slip


@pytest.mark.parametrize("exercise, prop, slip, form", list(of_each_property(SLIPS)))
def test_the_printed_input_reproduces_the_failure(exercise, prop, slip, form):
    """What a failure prints is Python that makes the same call and leaves no name behind; on its inputs the same thing
    is wrong."""
    result = graded_slip(exercise, slip, form)
    inputs = FAILED_ON[exercise, slip, form]
    answer, name = slip.answer(exercise.answer, form), exercise.answer.__name__
    patience_s = 2.0 if runs_here(exercise) else 30.0  # a launch that another process interprets
    evidence = attempt(prop, GuardedAnswer(answer, patience_s), inputs)
    assert evidence is not None
    assert evidence.findings[0].text.splitlines()[0] in result.message

    shown = re.search("The smallest input found:.*?<pre>(.*?)</pre>", result.page, re.DOTALL)
    printed = html.unescape(shown[1])
    calls = []

    def spied(*arguments):
        calls.append([a for a in arguments if isinstance(a, np.ndarray | tuple | list | int | float | str)])
        return answer(*arguments)

    if "triton" in exercise.imports or not runs_here(exercise):  # a kernel, which nothing can stand in for
        spied = answer
    namespace = {"np": np, name: spied}
    with np.errstate(all="ignore"), contextlib.suppress(*[Exception] * evidence.findings[0].kind.endswith("exception")):
        exec(compile(printed, "<printed>", "exec"), namespace)
    assert set(namespace) - {"__builtins__"} <= {"np", name, "failing_call"}
    printed_call = calls[:1]
    calls.clear()
    attempt(prop, GuardedAnswer(spied, patience_s), inputs)
    assert not printed_call or same(printed_call, calls[:1])


@each_exercise
def test_slips_are_told_apart(exercise, record_property):
    """By some input for each pair: so a diagnosis can be right. The summary at the end of a run counts the pairs.

    Grading has observed every slip on the cases already; `on_case` remembers.
    """
    if not runs_here(exercise):
        pytest.skip("slips are observed in another process, which is asked by the tests of each slip")
    slow_last = sorted(exercise.properties, key=lambda prop: prop.slow)
    cases = [(prop, place) for prop in slow_last for place in range(len(prop.cases))]

    def alike(one, other):
        return all(same(on_case(prop, one, place)[0], on_case(prop, other, place)[0]) for prop, place in cases)

    answers = collections.defaultdict(list)
    for (slip, _), answer in forms(exercise).items():
        answers[slip.name].append(answer)
    pairs = list(itertools.combinations(answers, 2))
    confused = [pair for pair in pairs if any(itertools.starmap(alike, itertools.product(*map(answers.get, pair))))]
    record_property("pairs of slips told apart", (exercise.id, len(pairs) - len(confused), len(pairs)))
    assert not confused


@each_exercise
def test_right_answers_written_differently_pass(exercise):
    forms = right_answers(exercise)
    assert len(forms) >= 2, f"{exercise.id} has one right answer written differently; it needs at least two"
    for name, answer in forms.items():
        result = checks.grade(exercise.id, answer)
        assert result.passed, f"{name}\n{result.message}"


def test_lesson_toml_lists_every_exercise_of_its_folder():
    files = registry.PACKAGES.glob("*/lesson_*/*.md")
    names = {f"{file.parent.name[-2:]}.{file.stem}" for file in files if file.stem != "quiz"}
    listed = registry.exercises()
    assert len(set(listed)) == len(listed), "an exercise is listed twice in a lesson.toml"
    assert names <= set(listed), f"not listed in their lesson.toml: {', '.join(sorted(names - set(listed)))}"
    assert names >= set(listed), f"listed, but without a Markdown file: {', '.join(sorted(set(listed) - names))}"


@each_exercise
def test_an_exercise_is_whole(exercise):
    module, found = Path(exercise.file), len(exercise.slips)
    assert found >= 5, f"{module.stem}.md has {found} slips; an exercise needs at least five"
    for path in (module, module.with_suffix(".md")):
        left = [number for number, line in enumerate(path.read_text().splitlines(), 1) if "FILL_IN" in line]
        assert not left, f"{path.name}: fill in what is marked FILL_IN, in lines {', '.join(map(str, left))}"
    names = [slip.name for slip in exercise.slips]
    properties = [prop.name for prop in exercise.properties]
    for kind in (names, properties):
        assert len(set(kind)) == len(kind)
    catching = list(dict.fromkeys(slip.prop for slip in exercise.slips))
    assert catching == [name for name in properties if name in catching], "a heading names no property, or is misplaced"
    unshown = [prop for prop in exercise.properties if prop.name not in catching and not prop.slow]
    for prop in unshown:  # never the first to fail: then it must catch some slip that another property catches first
        assert not runs_here(exercise) or any(
            attempt(prop, answer, case) is not None for answer in forms(exercise).values() for case in prop.cases
        ), prop.name


def stub_of(exercise, body, documented):
    docstring = '    """What to do."""\n' if documented else ""
    signature = inspect.signature(exercise.answer)
    unannotated = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    signature, namespace = signature.replace(parameters=unannotated), {}
    exec(f"import numpy as np\ndef {exercise.answer.__name__}{signature}:\n{docstring}    {body}\n", namespace)
    return namespace[exercise.answer.__name__]


@pytest.mark.parametrize("body", ["raise NotImplementedError", "raise NotImplementedError()", "pass", "..."])
@pytest.mark.parametrize("documented", [True, False])
def test_a_stub_is_not_attempted(body, documented):
    for exercise in EXERCISES:
        result = checks.grade(exercise.id, stub_of(exercise, body, documented))
        assert (result.passed, result.attempted, result.properties) == (False, False, {})
        assert "not attempted yet" in result.message and "\n" not in result.message


@pytest.mark.parametrize(
    "body",
    [
        "return 42",
        "return [np.ones(2), np.ones((2, 3)), 1.0]",
        "return {'m': [1, [2]]}",
        "raise ValueError",
        "x = NotImplementedError; raise x",
    ],
)
def test_anything_else_is_an_attempt(body):
    for exercise in EXERCISES:
        result = checks.grade(exercise.id, stub_of(exercise, body, True))
        assert (result.passed, result.attempted) == (False, True), exercise.id


@pytest.mark.parametrize("number", registry.lessons())
def test_a_quiz_has_one_right_option_and_feedback_on_each(number):
    places = set()
    for question in registry.quiz(number):
        right = [i for i, option in enumerate(question["answers"]) if option["correct"]]
        assert len(right) == 1
        places.add(right[0])
        assert len({option["answer"] for option in question["answers"]}) == len(question["answers"]) >= 3
    assert len(places) > 1  # the right one is not always in the same place
