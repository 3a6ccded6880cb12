"""Marks the answers of one notebook in class: `python -m course_lib.grading.marking` reads and writes JSON.

Nothing of the notebook's kernel takes part: each answer is run from its source in a new process with a time limit,
together with the answers before it, and then its locked cell is run there, hidden tests included. So what any cell
has patched, hooked or displayed does not matter, and an answer that never returns costs its own marks.
"""

import json
import sys

from . import registry
from .cli import LIMIT_S, in_own_process
from .rules import objection


def answer_cell(exercise_id: str) -> str:
    """nbgrader's id of the cell that holds the answer; it allows letters, digits, "-" and "_"."""
    return exercise_id.replace(".", "_")


def check_cell(exercise_id: str) -> str:
    """nbgrader's id of the locked cell that carries the points."""
    return answer_cell(exercise_id) + "_check"


def mark(cells: dict[str, str], limit_s: float = LIMIT_S) -> dict[str, dict]:
    """nbgrader's cell id -> source  to  id of each check cell -> {"passed": ..., "message": ...}."""
    marks, before = {}, []
    for exercise_id in registry.exercises():
        if check_cell(exercise_id) not in cells:
            continue
        exercise, source = registry.find(exercise_id), cells.get(answer_cell(exercise_id))
        passed = False
        if source is None:
            message = f"{exercise_id}: its answer cell is not in the notebook"
        elif reason := objection(source, exercise.imports):
            message = f"{exercise_id}: not run, for a rule of the class is broken. {reason}"
        else:
            outcome = in_own_process(exercise, source, before, limit_s, cells[check_cell(exercise_id)])
            passed, message = outcome["passed"], outcome["message"]
        marks[check_cell(exercise_id)] = {"passed": passed, "message": message}
    return marks


if __name__ == "__main__":
    request = json.load(sys.stdin)
    json.dump(mark(request["cells"], request["limit_s"]), sys.stdout)
