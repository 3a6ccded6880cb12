"""Marks answers, each in two processes of its own: `mark` starts the grader, which is this file, and it the worker.

The grader runs the checks, hidden tests included, and the worker runs the answer from its source, with the answers
before it. So what other cells have patched, hooked or displayed does not matter, and an answer that never returns, or
takes a process down, costs its own marks and no others.
"""

import contextlib
import io
import json
import subprocess
import sys

import numpy as np

from course_lib import runtime
from courseware.checks import registry
from courseware.checks.checking import grade
from courseware.checks.cuda_calls import confine
from courseware.checks.kernel_calls import is_kernel
from courseware.worker import sandbox
from courseware.worker.rules import objection
from courseware.worker.running import cut

from .remote_answer import CellFails, RemoteAnswer

LIMIT_S = 40.0
GRADER_BYTES = 6 << 30  # of addresses: an answer may ask for a tile of any size
MESSAGE_LIMIT_CHARS = 8000


class NotMarked(RuntimeError):
    """No answer can be marked here, and the message says why."""


def mark(answers: dict, tests: dict, limit_s: float = LIMIT_S, sandboxed: bool = True) -> dict[str, dict]:
    """{exercise id: {"passed", "attempted", "message"}} of the exercises in `tests`.

    answers: exercise id -> source of the answer's cell. tests: exercise id -> source of a cell that decides by raising
    or not, in which `check` is strict; None: what is drawn with seed 0 decides. limit_s: by the clock, per exercise.
    Raises NoSandbox if there is none where there should be, or NotMarked.
    """
    if sandboxed:
        sandbox.bubblewrap()
    marks, before = {}, []
    for exercise_id in filter(tests.__contains__, registry.exercises()):
        outcome = {"passed": False, "attempted": exercise_id in answers}
        if exercise_id in answers:
            cells = [*before, (exercise_id, answers[exercise_id])]
            outcome |= _graded_apart(exercise_id, cells, tests[exercise_id], limit_s, sandboxed)
            if outcome.pop("cell_runs", False):
                before = cells
        else:
            outcome["message"] = (
                "its cell was not found: the file has to be a notebook that has kept the lesson's cells"
            )
        if not outcome["message"].startswith(exercise_id):
            outcome["message"] = f"{exercise_id}: {outcome['message']}"
        marks[exercise_id] = outcome | {"message": cut(outcome["message"], MESSAGE_LIMIT_CHARS)}
    return marks


def _graded_apart(exercise_id, cells, test, limit_s, sandboxed):
    request = {"exercise_id": exercise_id, "cells": cells, "test": test, "sandboxed": sandboxed}
    # On a machine with a GPU, too, kernels are interpreted.
    environment = runtime.environment(interpreting=True) | {"COURSEWARE_STRICT": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "courseware.classroom.marking"]
    pipes = {"input": json.dumps(request), "capture_output": True, "text": True}
    try:
        grader = subprocess.run(command, env=environment, timeout=limit_s, **pipes)
    except subprocess.TimeoutExpired:
        return {"message": f"the answer did not return within {limit_s:g} s"}
    if grader.returncode == 0:
        return json.loads(grader.stdout.splitlines()[-1])
    why = grader.stderr[-2000:].strip()
    if grader.returncode > 0 and "MemoryError" not in why:
        raise NotMarked(why)
    return {"message": f"checking the answer took more memory than there is (exit status {grader.returncode})"}


def outcome_of(exercise_id, cells, test, sandboxed):
    """What the grader finds. cells: (id, source) of answer cells, of which the last is graded."""
    exercise = registry.find(exercise_id)
    kernel, name = is_kernel(exercise), exercise.answer.__name__
    if reason := objection(cells[-1][1], exercise.imports, kernel):
        return {"message": f"not run, because it breaks a rule of the class. {reason}"}
    if sandboxed and "run_cuda(" in getattr(exercise.properties, "call", ""):
        confine()
    # Triton alone runs beside a kernel.
    cells = [cell for cell in cells if not kernel or is_kernel(registry.find(cell[0]))]
    try:
        answer = RemoteAnswer(cells, name, kernel, sandboxed)
    except CellFails as error:
        return {"message": str(error)}
    return {"cell_runs": True} | (_graded(exercise_id, answer) if test is None else _tested(test, {name: answer}))


def _graded(exercise_id, answer):
    result = grade(exercise_id, answer)
    return {"passed": result.passed, "attempted": result.attempted, "message": result.message}


def _tested(test, answers):
    printed, namespace = io.StringIO(), {"np": np} | answers
    exec("from courseware import check", namespace)
    try:
        with contextlib.redirect_stdout(printed):
            exec(test, namespace)
    except AssertionError as error:
        return {"message": str(error)}
    except BaseException as error:
        return {"message": f"{type(error).__name__}: {error}"}
    return {"passed": True, "message": printed.getvalue().rstrip()}


def main():
    with contextlib.suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (GRADER_BYTES, GRADER_BYTES))
    print("\n" + json.dumps(outcome_of(**json.load(sys.stdin))))


if __name__ == "__main__":
    main()
