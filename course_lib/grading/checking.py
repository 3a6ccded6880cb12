"""Tries an exercise's properties on an answer, and shrinks the first failure to the smallest input."""

import itertools
import json
import linecache
import random
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from . import registry
from .calling import AnswerError, GuardedAnswer, copied, is_untouched
from .diagnosis import compare
from .exercise import Evidence, Exercise, Finding, Part, Property, Result
from .kernel_calls import given_names, graded_elsewhere, plain, runs_here
from .report import code_of_call, failed_message, not_attempted_message, passed_message

TRIES = 400  # random inputs and smaller ones together: counted, so that the same answer is told the same
TRYING_LIMIT_S = 10.0  # of processor time, for an answer so slow that even these take too long


def grade(exercise_id: str, answer: Callable, *, seed: int | None = None) -> Result:
    """Check an answer and return the Result. seed: of the random inputs; None is 0.

    Nothing that the answer does is raised. Raises UnknownExercise for an id that is none.
    """
    exercise = registry.find(exercise_id)
    name = exercise.answer.__name__
    if not callable(answer):
        message = (
            f"{exercise.id}: pass the function itself, check({exercise.id!r}, {name}). "
            f"What came is {_described(answer)}."
        )
        return Result(False, True, {}, message)
    answer = plain(answer)
    if is_untouched(answer):
        return Result(False, False, {}, not_attempted_message(exercise))

    if not runs_here(exercise):
        return graded_elsewhere(exercise, answer, seed, "course_lib.grading.checking:serve")
    guarded = GuardedAnswer(answer)
    held, printed = {}, ""
    for prop in exercise.properties:
        failure = _first_failure(exercise, prop, guarded, 0 if seed is None else seed)
        printed = printed or guarded.printed
        held[prop.name] = failure is None
        if failure is not None:
            inputs, evidence = failure
            _try(prop, guarded, inputs)  # once more, for what the answer prints on exactly this input
            mistake = exercise.mistake_behind(prop, evidence)
            message = failed_message(exercise, held, prop, inputs, evidence, mistake, guarded.printed)
            return Result(False, True, held, message, mistake)
    return Result(True, True, held, passed_message(exercise, held, printed))


def serve(folder: str) -> None:
    """In the process that interprets: grade the request in the folder, as `graded_elsewhere` wrote it."""
    request = json.loads((Path(folder) / "request").read_text())
    namespace = {"__name__": "__main__", "np": np} | given_names()
    *helpers, answer = request["pieces"]
    # The blank lines give the answer the line numbers of its own cell.
    sources = {"<helpers>": "\n".join(helpers), "<answer>": "\n" * (request["line"] - 1) + answer}
    for filename, source in sources.items():
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        exec(compile(source, filename, "exec"), namespace)
    name = registry.find(request["id"]).answer.__name__
    result = grade(request["id"], namespace[name], seed=request["seed"])
    (Path(folder) / "result").write_text(json.dumps(asdict(result)))


def _described(value):
    return "None" if value is None else f"of type {type(value).__name__}: was the function called already?"


def _try(prop: Property, answer: GuardedAnswer, inputs: dict) -> Evidence | None:
    try:
        with np.errstate(all="ignore"):  # what a wrong answer returns, and what a slip would return, overflows
            return prop.test(answer, **copied(inputs))
    except AnswerError as error:
        return Evidence((error.finding,))
    except Exception as error:  # an object that even comparing fails on
        return Evidence((Finding("", "type", f"what the answer returned cannot be used: {error!r}"),))


def _first_failure(exercise: Exercise, prop: Property, answer: GuardedAnswer, seed: int):
    """(inputs, Evidence) of a small input for which the property fails, or None."""
    for inputs in prop.cases:
        evidence = _try(prop, answer, inputs)
        if evidence is not None:
            break
    else:
        return _search(prop, lambda drawn: _try(prop, answer, drawn), seed)
    if _is_timeout(evidence):
        return inputs, evidence
    mistake = exercise.mistake_behind(prop, evidence)

    def same_mistake(drawn):
        found = _try(prop, answer, drawn)
        return found if found is not None and exercise.mistake_behind(prop, found) == mistake else None

    smaller = _search(prop, same_mistake, seed)
    if smaller is not None and len(code_of_call(prop.call, smaller[0])) < len(code_of_call(prop.call, inputs)):
        return smaller
    return inputs, evidence


def _is_timeout(evidence):
    """If so, smaller inputs are not looked for: each try would take the whole limit."""
    return evidence.findings[0].kind == "timeout"


def _search(prop: Property, finds: Callable[[dict], Evidence | None], seed: int):
    """(inputs, Evidence) of the smallest input drawn for which finds(inputs) is Evidence, or None.

    Hypothesis draws and shrinks. The Evidence is kept from then: an answer need not do the same thing twice.
    """
    if prop.draw is None:
        return None
    from hypothesis import HealthCheck, Phase, errors, find, settings

    deadline_s = time.thread_time() + TRYING_LIMIT_S
    tries, found = itertools.count(), {}

    def condition(inputs):
        if next(tries) >= TRIES or time.thread_time() > deadline_s or any(_is_timeout(e) for _, e in found.values()):
            return False
        evidence = finds(inputs)
        if evidence is not None:
            found[code_of_call(prop.call, inputs)] = inputs, evidence
        return evidence is not None

    quiet = settings(
        max_examples=prop.examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    try:
        smallest = find(prop.draw(), condition, settings=quiet, random=random.Random(seed))
        return found[code_of_call(prop.call, smallest)]
    except errors.NoSuchExample:
        return None
    except errors.Flaky:  # the tries ran out while shrinking, or the answer is not the same function twice
        return found[min(reversed(found), key=len)]


def agrees(oracle: Callable[..., list[Part]]) -> Callable[..., Evidence | None]:
    """A test for Property: the answer returns what oracle(**inputs) states, within the error budget."""

    def test(answer, **inputs):
        return compare(answer(*inputs.values()), oracle(**inputs))

    return test


def not_modified(call, cases):
    """Property: the arguments are the same after the call as before."""

    def test(answer, **inputs):
        answer(*inputs.values())
        if not answer.modified:
            return None
        changed = " and ".join(list(inputs)[i] for i in answer.modified)
        return Evidence((Finding("", "modified", f"the call changed its argument {changed} in place"),))

    return Property("the inputs are not modified", call, test, cases, hints={": modified": "modified"})


def numbers():
    """Strategy: numbers of size 4 at most, the simplest first."""
    from hypothesis import strategies as st

    whole = [0.0, 1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -4.0]
    return st.sampled_from(whole + [x / 8 for x in range(-31, 32) if x % 8])


def arrays(draw, *shape, of=None):
    """An array of `shape` drawn element by element, so that each shrinks on its own."""
    of = of if of is not None else numbers()
    return np.array([draw(of) for _ in range(int(np.prod(shape)))], dtype=np.float64).reshape(shape)
