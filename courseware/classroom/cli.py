"""`python -m courseware grade NOTEBOOK`: marks for the exercises of a notebook; the rest of it is not run."""

import argparse
import json
import sys
from pathlib import Path

from courseware.checks import registry
from courseware.worker import sandbox

from .marking import BUSY, LIMIT_S, mark
from .submission import NotANotebook, answer_cell, read


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m courseware grade",
        description="Grade the exercises of a notebook: its answer cells are run, in order, with `np` (and for "
        "kernels `triton` and `tl`) at hand, under bubblewrap where it is installed. A helper that an answer calls "
        "must stand in an answer cell too. The exit status is 0 if the notebook could be graded, whatever the points, "
        "and 2 if not.",
    )
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--json", action="store_true", help="write the marks as JSON")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help="of processor time, per exercise")
    arguments = parser.parse_args(argv)
    try:
        marks = grade_notebook(arguments.notebook, arguments.limit)
    except NotANotebook as error:
        print(f"{arguments.notebook}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(marks, indent=1) if arguments.json else _as_text(marks))
    return 0


def grade_notebook(path: Path, limit_s: float = LIMIT_S) -> dict:
    """The marks of every exercise of the notebook's lessons; one whose cell is missing has no points."""
    cells = answer_cells(path)
    numbers = sorted({exercise_id.split(".")[0] for exercise_id in cells})
    exercises = {exercise.id: exercise for number in numbers for exercise in registry.of_lesson(number)}
    marks = mark(cells, dict.fromkeys(exercises), limit_s, sandbox.works())
    rows = []
    for exercise_id, outcome in marks.items():
        possible = exercises[exercise_id].points
        points = possible if outcome["passed"] else outcome.get("points", 0)
        rows.append({"id": exercise_id, "points": points, "possible": possible, **outcome})
    totals = {key: sum(row[key] for row in rows) for key in ("points", "possible")}
    return {"notebook": str(path), **totals, "exercises": rows}


def answer_cells(path: Path) -> dict[str, str]:
    """exercise id -> source of the cell whose metadata names it. Says what is unusual about the notebook."""
    submission = read(path)
    for remark in submission.remarks:
        print(f"{path}: {remark}", file=sys.stderr)
    ids = {answer_cell(exercise_id): exercise_id for exercise_id in registry.exercises()}
    found = {ids[name]: source for name, source in submission.cells.items() if name in ids}
    if not found:
        raise NotANotebook("no cell of it belongs to an exercise (cell metadata: exercise)")
    return found


def _as_text(marks):
    def state(row):
        if row.get("busy"):
            return BUSY
        return "passed" if row["passed"] else "not passed" if row["attempted"] else "not attempted"

    lines = [f"{row['id']:<28} {row['points']:>2} of {row['possible']:>2}  {state(row)}" for row in marks["exercises"]]
    return "\n".join([*lines, f"{'total':<28} {marks['points']:>2} of {marks['possible']:>2}"])
