"""`python -m course_lib grade NOTEBOOK`: marks for the exercises of a notebook; the rest of it is not run.

Every exercise is graded in a process of its own with a time limit, so that an answer that never returns, or
that takes the process down, costs its own marks and no others.
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import sys
from pathlib import Path

import numpy as np

from course_lib.editing import run_source

from . import registry
from .checking import grade
from .cuda_calls import confine
from .kernel_calls import given_names, is_kernel
from .remote import CellFails, RemoteAnswer
from .rules import objection

LIMIT_S = 40.0
JUDGE_BYTES = 6 << 30  # of addresses: an answer may ask for a tile of any size


class NotGradable(Exception):
    """The file is no notebook, or holds no exercise."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course_lib grade",
        description="Grade the exercises of a notebook: its answer cells are run, in order, with `np` (and for "
        "kernels `triton` and `tl`) at hand. A helper that an answer calls must stand in an answer cell too. The exit "
        "status is 0 if the notebook could be graded, whatever the points, and 2 if not.",
    )
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--json", action="store_true", help="write the marks as JSON")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help="seconds per exercise (%(default)g)")
    arguments = parser.parse_args(argv)
    try:
        marks = grade_notebook(arguments.notebook, arguments.limit)
    except NotGradable as error:
        print(f"{arguments.notebook}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(marks, indent=1) if arguments.json else _as_text(marks))
    return 0


def grade_notebook(path: Path, limit_s: float = LIMIT_S) -> dict:
    """The marks of every exercise of the notebook's lessons; one whose cell is missing has no points."""
    cells = answer_cells(path)
    lessons = sorted({exercise_id.split(".")[0] for exercise_id in cells})
    rows, before = [], []
    for number in lessons:
        for exercise in registry.of_lesson(number):
            row = {"id": exercise.id, "points": 0, "possible": exercise.points, "passed": False, "attempted": False}
            if exercise.id not in cells:
                rows.append(row | {"message": f"{exercise.id}: its cell is not in the notebook"})
                continue
            outcome = in_own_process(exercise, cells[exercise.id], before, limit_s)
            rows.append(row | outcome | {"points": exercise.points if outcome["passed"] else 0})
    return {
        "notebook": str(path),
        "points": sum(row["points"] for row in rows),
        "possible": sum(row["possible"] for row in rows),
        "exercises": rows,
    }


def answer_cells(path: Path) -> dict[str, str]:
    """exercise id -> source of the code cell whose metadata names it; the last one if there are several."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        found = {
            cell["metadata"]["exercise"]: "".join(cell["source"])
            for cell in cells
            if cell["cell_type"] == "code" and "exercise" in cell["metadata"]
        }
    except OSError as error:
        raise NotGradable(error.strerror) from None
    except (ValueError, KeyError, TypeError):
        raise NotGradable("not a Jupyter notebook") from None
    if not found:
        raise NotGradable("no cell of it belongs to an exercise (cell metadata: exercise)")
    known = registry.exercises()
    if strange := [exercise_id for exercise_id in found if exercise_id not in known]:
        raise NotGradable(f"there is no exercise {', '.join(map(str, strange))}")
    return found


def in_own_process(exercise, source, before, limit_s, test=None, sandboxed=None):
    """Grade an answer, of which its cell and those before it are run, in a process that is killed after limit_s.

    before: (id, source) of answer cells. This one joins them if it runs; otherwise it would take later ones down too.
    test: source of a cell that decides instead of `grade`, by raising or not; `check` is strict in it.
    sandboxed: the answer runs in one more process, the player, in the sandbox or not; None: in that of its judge.
    """
    sources = [*before, (exercise.id, source)]
    context = _processes()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, sources, test, sandboxed), daemon=True)
    process.start()
    sender.close()
    outcome = {"passed": False, "attempted": True, "cell_runs": False}
    try:
        # First comes whether the cell ran, then the marks.
        while "message" not in outcome:
            if not receiver.poll(limit_s):
                outcome["message"] = f"{exercise.id}: the answer did not return within {limit_s:g} s"
                break
            outcome |= receiver.recv()
    except EOFError:
        process.join()
        outcome["message"] = f"{exercise.id}: the answer ended its process (exit status {process.exitcode})"
    finally:
        process.kill()
        process.join()
    if outcome.pop("cell_runs"):
        before.append(sources[-1])
    return outcome


def _processes():
    """How processes start: from one that has imported what this one has of the course, where that is possible."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([name for name in sys.modules if name.startswith("course_lib.")])
    return context


def _work(sender, sources, test, sandboxed):
    # What cells and answers write, at whatever level, must not mix with the marks.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    exercise = registry.find(sources[-1][0])
    name = exercise.answer.__name__
    try:
        if reason := objection(sources[-1][1], exercise.imports, is_kernel(exercise)):
            raise CellFails(f"not run, because it breaks a rule of the class. {reason}")
        if sandboxed is None:
            namespace = _defined(exercise, sources)
        else:
            if sandboxed and "run_cuda(" in getattr(exercise.properties, "call", ""):
                confine()
            _limit_memory()
            kernel = is_kernel(exercise)
            # Triton alone runs beside a kernel.
            cells = [cell for cell in sources if not kernel or is_kernel(registry.find(cell[0]))]
            answer = RemoteAnswer(cells, name, kernel, sandboxed)
            namespace = {"np": np, name: answer}
    except CellFails as error:
        sender.send({"message": f"{exercise.id}: {error}"})
        return
    sender.send({"cell_runs": True})
    if test is not None:
        sender.send(_outcome_of(test, namespace))
        return
    result = grade(exercise.id, namespace[name])
    sender.send({"passed": result.passed, "attempted": result.attempted, "message": result.message})


def _limit_memory():
    with contextlib.suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (JUDGE_BYTES, JUDGE_BYTES))


def _defined(exercise, sources):
    namespace = {"__name__": "__main__", "np": np}
    if "triton" in exercise.imports:
        namespace |= given_names()
    for cell_id, source in sources:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                run_source(source, f"<cell {cell_id}>", namespace)
        except BaseException as error:
            # An earlier answer's cell that fails is that answer's loss alone.
            if cell_id == exercise.id:
                raise CellFails(f"its cell does not run: {type(error).__name__}: {error}") from None
    if exercise.answer.__name__ not in namespace:
        raise CellFails(f"its cell defines no {exercise.answer.__name__}")
    return namespace


def _outcome_of(test, answers):
    os.environ["COURSE_LIB_STRICT"] = "1"
    namespace = dict(answers)
    exec("from course_lib import check", namespace)  # over whatever an answer calls so
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(test, namespace)
    except AssertionError as error:
        return {"passed": False, "message": str(error)}
    except BaseException as error:
        return {"passed": False, "message": f"{type(error).__name__}: {error}"}
    return {"passed": True, "message": printed.getvalue().rstrip()}


def _as_text(marks):
    def state(row):
        return "passed" if row["passed"] else "not passed" if row["attempted"] else "not attempted"

    lines = [f"{row['id']:<28} {row['points']:>2} of {row['possible']:>2}  {state(row)}" for row in marks["exercises"]]
    return "\n".join([*lines, f"{'total':<28} {marks['points']:>2} of {marks['possible']:>2}"])
