"""The checks are checked: answers pass, every misconception is refused by its own property and told by its own name."""

import contextlib
import doctest
import html
import importlib
import inspect
import os
import random
import re
import subprocess
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
from courseware.checks.misconceptions import same, variants
from courseware.checks.report import failed_message
from courseware.editing import edited
from tests.courseware.exercises.right_answers import right_answers
from tests.thorough import ALL
from tools import mutants

ROOT = Path(__file__).resolve().parents[3]
# Of all that is drawn. What is only refused by chance shows with another one: `make test-all` takes a new one each day.
SEED = int(os.environ.get("COURSEWARE_SEED", 0))
EXERCISES = [registry.find(exercise_id) for exercise_id in registry.exercises()]

MAX_MISCONCEPTIONS = 10  # of an exercise
MAX_PRINTED = 2  # inputs of an exercise that are run as they are printed, unless all are asked for


def case(exercise, *others, named=""):
    skip = pytest.mark.skipif(lacks_compiler(exercise), reason="there is no C++ compiler")
    return pytest.param(exercise, *others, id=exercise.id + named, marks=skip)


MISCONCEPTIONS = [  # but for stale ones: of these, test_an_exercise_is_whole says which
    case(exercise, prop, misconception, variant, named=f"-{misconception.name}-{variant}")
    for exercise in EXERCISES
    for prop in exercise.properties
    for misconception in exercise.misconceptions
    if misconception.prop == prop.name
    for variant in range(len(misconception.variants) if ALL else 1)
    if (misconception, variant) in variants(exercise)
]
each_exercise = pytest.mark.parametrize("exercise", list(map(case, EXERCISES)))

FAILED_ON = {}  # the inputs on which `graded_misconception` found each wanting


@cache
def graded_misconception(exercise, misconception, variant):
    """Graded as the very answer by which misconceptions are recognised, so that each runs once on each case."""
    answer = variants(exercise)[misconception, variant]

    def told(exercise, held, prop, inputs, *others):
        FAILED_ON[exercise, misconception, variant] = inputs
        return failed_message(exercise, held, prop, inputs, *others)

    with mock.patch.multiple(checking, GuardedAnswer=lambda _: answer, failed_message=told):
        return checks.grade(exercise.id, answer.answer, seed=SEED or None)


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


@pytest.mark.parametrize("exercise, prop, misconception, variant", MISCONCEPTIONS)
def test_a_misconception_is_refused_by_its_own_property_in_its_own_words(exercise, prop, misconception, variant):
    result = graded_misconception(exercise, misconception, variant)
    assert result.attempted and not result.passed
    assert [name for name, holds in result.properties.items() if not holds] == [prop.name], result.message
    assert result.misconception == misconception.name, result.message
    said = " ".join(result.message.split())
    assert misconception.diagnosis in said and misconception.hint in said
    # The grader's own trouble with an answer must not pass for the answer's.
    assert "cannot be used" not in result.message


def of_each_exercise(misconceptions):
    """A few misconceptions of each exercise, of other properties where it has them."""
    for exercise in EXERCISES:
        its = [each for each in misconceptions if each.values[0] is exercise]
        first = list({each.values[1].name: each for each in reversed(its)}.values())[::-1]
        yield from its if ALL else (first + its[1:])[:MAX_PRINTED]


@pytest.mark.parametrize("exercise, prop, misconception, variant", list(of_each_exercise(MISCONCEPTIONS)))
def test_the_printed_input_reproduces_the_failure(exercise, prop, misconception, variant):
    """What a failure prints is Python that makes the same call and leaves no name behind; on its inputs the same thing
    is wrong."""
    result = graded_misconception(exercise, misconception, variant)
    inputs = FAILED_ON[exercise, misconception, variant]
    answer, name = misconception.answer(exercise.answer, variant), exercise.answer.__name__
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

    # Nothing can stand in for a kernel.
    is_spied = "triton" not in exercise.imports and runs_here(exercise)
    namespace = {"np": np, name: spied if is_spied else answer}
    with np.errstate(all="ignore"), contextlib.suppress(*[Exception] * evidence.findings[0].kind.endswith("exception")):
        exec(compile(printed, "<printed>", "exec"), namespace)
    assert set(namespace) - {"__builtins__"} <= {"np", name, "failing_call"}
    if is_spied:
        printed_call = calls[:1]
        calls.clear()
        attempt(prop, GuardedAnswer(spied, patience_s), inputs)
        assert same(printed_call, calls[:1])


@each_exercise
def test_right_answers_written_differently_pass(exercise):
    for name, answer in right_answers(exercise).items():
        result = checks.grade(exercise.id, answer, seed=SEED or None)
        assert result.passed, f"{name}\n{result.message}"


@pytest.mark.parametrize("exercise", [case(each) for each in EXERCISES if "run_cuda(" in each.properties.call])
def test_nvidia_s_compiler_takes_an_answer_in_cuda_with_its_variables_in_registers(exercise, tmp_path):
    cuda_core = pytest.importorskip("cuda.core", reason="cuda-core, of the extra `cuda`, is not installed")
    cuobjdump = Path(pytest.importorskip("triton").__file__).parent / "backends/nvidia/bin/cuobjdump"
    for answer in (exercise.answer, *right_answers(exercise).values()):
        program = cuda_core.Program(answer(), "c++", cuda_core.ProgramOptions(arch="sm_80"))
        (tmp_path / "cubin").write_bytes(bytes(program.compile("cubin").code))
        command = [cuobjdump, "-res-usage", tmp_path / "cubin"]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        ((registers, stack, local),) = re.findall(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", listing)
        assert (int(stack), int(local)) == (0, 0) and int(registers) <= 128


def test_lesson_toml_lists_every_exercise_of_its_folder():
    files = registry.PACKAGES.glob("*/lesson_*/*.md")
    names = [f"{file.parent.name[-2:]}.{file.stem}" for file in files if file.stem != "quiz"]
    assert sorted(names) == sorted(registry.exercises()), "the Markdown files, and what lesson.toml lists"


@each_exercise
def test_an_exercise_is_whole(exercise):
    module, found, number = Path(exercise.file), len(exercise.misconceptions), exercise.id[:2]
    (notebook,) = ROOT.glob(f"notebooks/source/{number}_*.md")
    right = ROOT / f"tests/courseware/exercises/right_answers/lesson_{number}.py"
    too_many = f"{module.stem}.md has {found} misconceptions; an exercise has at most {MAX_MISCONCEPTIONS}"
    lacking = [too_many] * (found > MAX_MISCONCEPTIONS)
    for path in (module, module.with_suffix(".md"), notebook, right):
        left = [str(line) for line, text in enumerate(path.read_text().splitlines(), 1) if "FILL_IN" in text]
        lacking += [f"{path.name}: fill in what is marked FILL_IN, in lines {', '.join(left)}"] * bool(left)
    assert not lacking, "\n".join(lacking)
    for misconception in exercise.misconceptions:
        for variant in range(len(misconception.variants)):
            misconception.answer(exercise.answer, variant)  # raises StaleMisconception, which says why
    names = [misconception.name for misconception in exercise.misconceptions]
    properties = [prop.name for prop in exercise.properties]
    assert len(set(names)) == len(names) and len(set(properties)) == len(properties), "two have one name"
    catching = list(dict.fromkeys(misconception.prop for misconception in exercise.misconceptions))
    for name in catching:
        assert name in properties, f"the heading {name!r} of {module.stem}.md names no property of {module.name}"
    in_order = [name for name in properties if name in catching]
    assert catching == in_order, f"the headings of {module.stem}.md should follow the properties: {in_order}"
    unshown = [prop for prop in exercise.properties if prop.name not in catching and not prop.slow]
    if not runs_here(exercise) or lacks_compiler(exercise):
        return
    for prop in unshown:
        tried = ((wrong, case) for wrong in wrong_answers(exercise) for case in prop.cases)
        assert any(attempt(prop, wrong, case) is not None for wrong, case in tried), (
            f"neither a misconception nor a mutant fails {prop.name!r}: write a misconception, or drop the property"
        )


@cache
def mutants_of(exercise):
    """Guarded mutants of the answer, in an order of their own."""
    made = mutants.mutants(exercise.answer)
    return [mutants.guarded(exercise, mutant.source) for mutant in random.Random(exercise.id).sample(made, len(made))]


def wrong_answers(exercise):
    def overwrites(*arguments):
        returned = exercise.answer(*arguments)
        for each in arguments:
            if isinstance(each, np.ndarray):
                each[...] = 1 - each
        return returned

    yield from variants(exercise).values()
    yield GuardedAnswer(overwrites)
    yield from mutants_of(exercise)


def stub_of(exercise, body, documented):
    docstring = '    """What to do."""\n' if documented else ""
    signature = inspect.signature(exercise.answer)
    unannotated = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    signature, namespace = signature.replace(parameters=unannotated), {}
    exec(f"import numpy as np\ndef {exercise.answer.__name__}{signature}:\n{docstring}    {body}\n", namespace)
    return namespace[exercise.answer.__name__]


@pytest.mark.parametrize(
    "body, documented",
    [("raise NotImplementedError", True), ("raise NotImplementedError()", False), ("pass", True), ("...", False)],
)
def test_a_stub_is_not_attempted(body, documented):
    for exercise in EXERCISES:
        result = checks.grade(exercise.id, stub_of(exercise, body, documented))
        assert (result.passed, result.attempted, result.properties) == (False, False, {})
        assert "not attempted yet" in result.message and "\n" not in result.message


ATTEMPTS = "return 42", "return [np.ones(2), np.ones((2, 3)), 1.0]", "return {'m': [1, [2]]}", "raise ValueError"


@each_exercise
def test_anything_else_is_an_attempt(exercise):
    for body in (*ATTEMPTS, "x = NotImplementedError; raise x"):
        result = checks.grade(exercise.id, stub_of(exercise, body, True))
        assert (result.passed, result.attempted) == (False, True), body


@pytest.mark.parametrize("number", registry.lessons())
def test_a_quiz_has_one_right_option_and_feedback_on_each(number):
    places = set()
    for question in registry.quiz(number):
        right = [i for i, option in enumerate(question["answers"]) if option["correct"]]
        assert len(right) == 1
        places.add(right[0])
        assert len({option["answer"] for option in question["answers"]}) == len(question["answers"]) >= 3
    assert len(places) > 1  # the right one is not always in the same place
