"""Marks answers, each in two processes of its own: `mark` starts the grader, which is this file, and it the worker.

The grader runs the checks, hidden tests included, and the worker runs the answer from its source, with the answers
before it. So what other cells have patched, hooked or displayed does not matter, and an answer that never returns, or
takes a process down, costs its own marks and no others.
"""

import contextlib
import hashlib
import io
import itertools
import json
import math
import os
import re
import resource
import signal
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
from courseware.worker.running import CLOCK_LIMITS, MachineBusy, cut

from .remote_answer import CellFails, RemoteAnswer

LIMIT_S = 40.0  # of processor time, for an exercise: as much for the grader, the worker and a compiler
NOT_FOUND = "its cell was not found: the file has to be a notebook that has kept the lesson's cells"
BUSY = "not marked: the machine was too busy"
STOPPED = re.compile(r"did not return|not marked within|took too long|more memory")  # in the message of a mark
GRADER_BYTES = 6 << 30  # of addresses: an answer may ask for a tile of any size
MESSAGE_LIMIT_CHARS = 8000


def mark(answers: dict, tests: dict, limit_s=LIMIT_S, sandboxed=True, student="") -> dict[str, dict]:
    """{exercise id: {"passed", "attempted", "message"}} of the exercises in `tests`.

    answers: exercise id -> source of the answer's cell. tests: exercise id -> source of a cell that decides by raising
    or not, in which `check` is strict; None: what is drawn with seed 0 decides. limit_s: of processor time, per
    exercise. An answer that a limit by the clock ends twice has "busy" besides, and nothing is known of it. One that
    earns a part of its points has "points". student: for each, and for each submission, hidden inputs are drawn anew.
    Raises RuntimeError where no answer can be marked, as for want of a sandbox.
    """
    if sandboxed:
        sandbox.bubblewrap()
    marks, before, submission = {}, [], json.dumps([student, answers])
    for exercise_id in filter(tests.__contains__, registry.exercises()):
        outcome = {"passed": False, "attempted": exercise_id in answers}
        if exercise_id in answers:
            cells = [*before, (exercise_id, answers[exercise_id])]
            outcome |= _graded_apart(exercise_id, cells, tests[exercise_id], limit_s, sandboxed, submission)
            if outcome.pop("cell_runs", False) or outcome.get("busy"):
                before = cells
        else:
            outcome["message"] = NOT_FOUND
        if not outcome["message"].startswith(exercise_id):
            outcome["message"] = f"{exercise_id}: {outcome['message']}"
        marks[exercise_id] = outcome | {"message": cut(outcome["message"], MESSAGE_LIMIT_CHARS)}
    return marks


def drawn_anew(seed: int) -> int:
    """The seed of this submission's hidden inputs: feedback shows some, and they are not to be those of the next."""
    return int.from_bytes(hashlib.sha256(f"{seed} {os.environ.get('COURSEWARE_SUBMISSION')}".encode()).digest()[:8])


def _graded_apart(exercise_id, cells, test, limit_s, sandboxed, submission):
    request = {"limit_s": limit_s, "exercise_id": exercise_id, "cells": cells, "test": test, "sandboxed": sandboxed}
    # On a machine with a GPU, too, kernels are interpreted.
    environment = runtime.environment(interpreting=True) | {"COURSEWARE_STRICT": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["COURSEWARE_SUBMISSION"] = hashlib.sha256(submission.encode()).hexdigest()
    command = [sys.executable, "-m", "courseware.classroom.marking"]
    pipes = {"input": json.dumps(request), "capture_output": True, "text": True}
    for _ in range(2):
        with contextlib.suppress(subprocess.TimeoutExpired):
            grader = subprocess.run(command, env=environment, timeout=CLOCK_LIMITS * limit_s, **pipes)
            if grader.returncode not in (os.EX_TEMPFAIL, -signal.SIGKILL):  # killed from outside, as for want of memory
                break
    else:
        return {"message": BUSY, "busy": True}
    if grader.returncode == 0:
        return json.loads(grader.stdout.splitlines()[-1])
    if grader.returncode == -signal.SIGXCPU:
        return {"message": f"the answer was not marked within {limit_s:g} s of processor time"}
    why = grader.stderr[-2000:].strip()
    if grader.returncode > 0 and "MemoryError" not in why:
        raise RuntimeError(f"no answer can be marked here: {why}")
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
        answer = RemoteAnswer(cells, name, kernel, sandboxed, "torch" in exercise.imports)
    except CellFails as error:
        return {"message": str(error)}
    if test is None:
        result = grade(exercise_id, answer)
        outcome = {"passed": result.passed, "attempted": result.attempted, "message": result.message}
    else:
        outcome = _tested(test, {name: answer})
    if exercise.partial and not outcome.get("passed"):
        held = grade(exercise_id, answer, seed=drawn_anew(test)).properties  # the locked cell holds the course's seed
        names = itertools.takewhile(held.get, (prop.name for prop in exercise.properties))
        if points := max((exercise.partial.get(name, 0) for name in names), default=0):
            outcome |= {"points": points, "message": f"{outcome['message']}\n{points} of {exercise.points} points"}
    return {"cell_runs": True} | outcome


def _tested(test, answers):
    printed, namespace = io.StringIO(), {"np": np} | answers
    exec("from courseware import check", namespace)
    try:
        with contextlib.redirect_stdout(printed):
            exec(test, namespace)
    except AssertionError as error:
        return {"message": str(error)}
    except MachineBusy:
        raise
    except BaseException as error:
        return {"message": f"{type(error).__name__}: {error}"}
    return {"passed": True, "message": printed.getvalue().rstrip()}


def main():
    request = json.load(sys.stdin)
    most_s = math.ceil(request.pop("limit_s"))
    resource.setrlimit(resource.RLIMIT_AS, (GRADER_BYTES, GRADER_BYTES))
    # Whatever this process starts inherits it. Of a sandbox's first process, the kernel heeds the second number alone.
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s + 1))
    try:
        print("\n" + json.dumps(outcome_of(**request)))
    except MachineBusy:
        sys.exit(os.EX_TEMPFAIL)


if __name__ == "__main__":
    main()
