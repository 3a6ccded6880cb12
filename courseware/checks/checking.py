"""Tries an exercise's properties on an answer, and shrinks the first failure to the smallest input."""

import hashlib
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from courseware.editing import run_source
from courseware.widgets.cells import missing_source, source_of
from courseware.worker.running import is_untouched

from . import registry
from .calling import GuardedAnswer, attempt, draw_with, is_remote
from .cuda_calls import lacks_compiler
from .exercise import Evidence, Property, Result
from .kernel_calls import given_names, graded_elsewhere, is_kernel, plain, runs_here
from .misconceptions import misconception_behind, on_case
from .output_relations import further_findings
from .properties import drawn, found_by
from .report import code_of_call, failed_message, not_attempted_message, passed_message

PACKAGES = ("course_lib", "courseware")
TRIES = 200  # random inputs and smaller ones together: counted, so that the same answer is told the same
SMALL_CHARS = 800  # of the code of a call: no smaller input is looked for
TRYING_LIMIT_S = 10.0  # of processor time, for an answer so slow that even these take too long
LOOKING_LIMIT_S = 5.0  # of processor time, after which no further reason for a failure is looked for


def grade(exercise_id: str, answer: Callable, *, seed: int | None = None) -> Result:
    """Check an answer and return the Result. seed: of all that is drawn; None is 0.

    Nothing that the answer does is raised. Raises UnknownExercise for an id that is none.
    """
    exercise, answer = registry.find(exercise_id), plain(answer)
    if not callable(answer):
        call = f"check({exercise.id!r}, {exercise.answer.__name__})"
        came = "None." if answer is None else f"of type {type(answer).__name__}: was the function called already?"
        return Result(False, True, {}, f"{exercise.id}: pass the function itself, {call}. What came is {came}")
    if is_untouched(answer):
        return Result(False, False, {}, *not_attempted_message(exercise))
    if is_kernel(exercise) and not is_remote(answer) and source_of(answer) is None:
        return Result(False, True, {}, f"{exercise.id}: {missing_source(exercise.answer.__name__)}")
    if lacks_compiler(exercise):
        message = (
            f"{exercise.id}: not checked, for this exercise needs Linux and a C++ compiler. The lesson's badge opens "
            "it in Colab, which has both; python -m courseware doctor says what is missing on this machine."
        )
        return Result(False, True, {}, message)
    if not runs_here(exercise):
        return graded_elsewhere(exercise, answer, seed, "courseware.checks.checking:serve")
    # Nobody finds the class's seed from the one that a failing call shows.
    secret = hashlib.sha256(f"{exercise.id} {seed}".encode()).digest()[:4]
    if draw_with(0 if seed is None else int.from_bytes(secret)):
        on_case.cache_clear()
    guarded = GuardedAnswer(answer)
    held, printed = {}, ""
    # What a compiler refuses is no kernel, and is not run where a mark depends on it.
    for prop in sorted(exercise.properties, key=lambda prop: is_remote(answer) and not prop.slow):
        failure = _first_failure(prop, guarded, 0 if seed is None else seed)
        printed = printed or guarded.printed
        held[prop.name] = failure is None
        if failure is not None:
            inputs, evidence = failure
            misconception, deadline_s = None, time.thread_time() + LOOKING_LIMIT_S
            if not evidence.timed_out:
                misconception = misconception_behind(exercise, guarded, prop, inputs, deadline_s)
                if misconception is None and time.thread_time() < deadline_s:
                    facts = further_findings(exercise, prop, guarded, inputs, evidence)
                    evidence = replace(evidence, findings=evidence.findings + facts)
                attempt(prop, guarded, inputs)  # once more, for what the answer prints on exactly this input
            message = failed_message(exercise, held, prop, inputs, evidence, misconception, guarded.printed)
            return Result(False, True, held, *message, misconception.name if misconception else None)
    return Result(True, True, held, *passed_message(exercise, held, borrowed(answer), printed))


def borrowed(answer: Callable) -> list[str]:
    """Names that the answer uses for functions of another cell, or for code of the course."""
    codes, names = [answer.__code__] if hasattr(answer, "__code__") else [], set()
    for code in codes:  # grows by the functions inside
        names.update(code.co_names)
        codes += [const for const in code.co_consts if hasattr(const, "co_names")]

    def is_borrowed(value):
        cell = getattr(getattr(value, "__code__", None), "co_filename", codes[0].co_filename)
        origin = getattr(value, "__module__", None) or getattr(value, "__name__", "")
        return origin.split(".")[0] in PACKAGES or (cell != codes[0].co_filename and not Path(cell).exists())

    return sorted(name for name in names if name in PACKAGES or is_borrowed(answer.__globals__.get(name)))


def serve(folder: str) -> None:
    """In the process that interprets: grade the request in the folder, as `graded_elsewhere` wrote it."""
    request = json.loads((Path(folder) / "request").read_text())
    namespace = {"__name__": "__main__", "np": np} | given_names()
    *helpers, answer = request["pieces"]
    # The blank lines give the answer the line numbers of its own cell.
    sources = {"<helpers>": "\n".join(helpers), "<answer>": "\n" * (request["line"] - 1) + answer}
    for filename, source in sources.items():
        run_source(source, filename, namespace)
    name = registry.find(request["id"]).answer.__name__
    result = grade(request["id"], namespace[name], seed=request["seed"])
    (Path(folder) / "result").write_text(json.dumps(asdict(result)))


def _first_failure(prop: Property, answer: GuardedAnswer, seed: int):
    """(inputs, Evidence) of a small input for which the property fails, or None."""
    evidences = (on_case(prop, answer, place)[1] for place in range(len(prop.cases)))
    failing = next(((inputs, e) for inputs, e in zip(prop.cases, evidences, strict=True) if e is not None), None)
    if failing is None:
        return _search(prop, lambda drawn: attempt(prop, answer, drawn), seed)
    inputs, evidence = failing
    # A small case tells more than a smaller one: its sizes differ, and it has more than one row.
    if evidence.timed_out or len(code_of_call(prop.call, inputs)) <= SMALL_CHARS:
        return inputs, evidence

    def fails_alike(drawn):
        found = attempt(prop, answer, drawn)
        return found if found is not None and found.signature == evidence.signature else None

    smaller = _search(prop, fails_alike, seed)
    if smaller is not None and len(code_of_call(prop.call, smaller[0])) < len(code_of_call(prop.call, inputs)):
        return smaller
    return inputs, evidence


def _search(prop: Property, finds: Callable[[dict], Evidence | None], seed: int):
    """(inputs, Evidence) of the smallest input drawn for which finds(inputs) is Evidence, or None.

    Hypothesis draws and shrinks. The Evidence is kept from then: an answer need not do the same thing twice.
    """
    if prop.draw is None:
        return None
    from hypothesis import errors

    deadline_s = time.thread_time() + TRYING_LIMIT_S
    tries, found = itertools.count(), {}

    def condition(inputs):
        if next(tries) >= TRIES or time.thread_time() > deadline_s or any(e.timed_out for _, e in found.values()):
            return False
        evidence = finds(inputs)
        if evidence is not None:
            found[code_of_call(prop.call, inputs)] = inputs, evidence
        return evidence is not None

    if not any(map(condition, drawn(prop, seed))):
        return None
    tries = itertools.count()
    try:
        return found[code_of_call(prop.call, found_by(prop, condition, seed))]
    except (errors.NoSuchExample, errors.Flaky):
        # The tries ran out while shrinking, or the answer is not the same function twice.
        return found[min(reversed(found), key=len)]
