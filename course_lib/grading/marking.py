"""Marks the answers of one notebook in class: `python -m course_lib.grading.marking` reads and writes JSON.

Nothing of the notebook's kernel takes part. For each answer there are two new processes: the judge runs the locked
cell, hidden tests included, and the player, in a sandbox, runs the answer from its source, with the answers before it.
So what any cell has patched, hooked or displayed does not matter, and an answer that never returns costs its own marks.
"""

import json
import sys

from course_lib.player.running import cut

from . import registry, sandbox
from .cli import LIMIT_S, in_own_process

MESSAGE_LIMIT_CHARS = 8000


def answer_cell(exercise_id: str) -> str:
    """nbgrader's id of the cell that holds the answer; it allows letters, digits, "-" and "_"."""
    return exercise_id.replace(".", "_")


def check_cell(exercise_id: str) -> str:
    """nbgrader's id of the locked cell that carries the points."""
    return answer_cell(exercise_id) + "_check"


def mark(cells: dict[str, str], limit_s: float = LIMIT_S, sandboxed: bool = True) -> dict[str, dict]:
    """nbgrader's cell id -> source  to  id of each check cell -> {"passed": ..., "message": ...}.

    Raises NoSandbox if there is none where there should be.
    """
    if sandboxed:
        sandbox.bubblewrap()
    marks, before = {}, []
    for exercise_id in registry.exercises():
        if check_cell(exercise_id) not in cells:
            continue
        exercise, source = registry.find(exercise_id), cells.get(answer_cell(exercise_id))
        if source is None:
            passed, message = False, f"{exercise_id}: its answer cell is not in the notebook"
        else:
            outcome = in_own_process(exercise, source, before, limit_s, cells[check_cell(exercise_id)], sandboxed)
            passed, message = outcome["passed"], cut(outcome["message"], MESSAGE_LIMIT_CHARS)
        marks[check_cell(exercise_id)] = {"passed": passed, "message": message}
    return marks


if __name__ == "__main__":
    try:
        marks = mark(**json.load(sys.stdin))
    except sandbox.NoSandbox as error:
        sys.exit(str(error))
    json.dump(marks, sys.stdout)
