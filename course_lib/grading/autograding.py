"""What a course's nbgrader_config.py adds to nbgrader: no trust in a submitted cell's metadata, and its own marking."""

import json
import re
import subprocess
import sys

from nbformat import from_dict
from nbformat.v4 import new_code_cell, new_output
from nbgrader import utils
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool, Float

from course_lib.player.running import cut

from .cli import LIMIT_S

SOURCE_LIMIT_CHARS = 10_000


class RestoreMetadata(NbGraderPreprocessor):
    """Puts back what a release said of each cell, and each graded cell that is missing.

    nbgrader itself takes a submission's word for what is graded, and gives a whole submission up where a cell
    claims to be what the release had not, or where one is there twice. Of two, the last counts.
    """

    def preprocess(self, nb, resources):
        about = resources["nbgrader"]
        with Gradebook(about["db_url"]) as gradebook:
            released = gradebook.find_notebook(about["notebook"], about["assignment"])
            points = {cell.name: cell.max_score for cell in released.grade_cells}
            solutions, tasks = ({cell.name for cell in kind} for kind in (released.solution_cells, released.task_cells))
            missing, graded = {}, {}
            for cell in released.source_cells:
                name = cell.name
                roles = {"grade": name in points, "solution": name in solutions, "task": name in tasks}
                missing[name] = {"schema_version": 3, "grade_id": name, "cell_type": cell.cell_type, **roles}
                missing[name]["locked"] = cell.locked
                if name in points:
                    missing[name]["points"] = points[name]
                    if cell.cell_type == "code":
                        graded[name] = cell.source
        for cell in reversed(nb.cells):
            claimed = cell.metadata.pop("nbgrader", None)
            name = claimed.get("grade_id") if isinstance(claimed, dict) else None
            if isinstance(name, str) and name in missing:
                cell.metadata["nbgrader"] = from_dict(missing.pop(name))
        for name in graded.keys() & missing:
            nb.cells.append(new_code_cell(graded[name], metadata={"nbgrader": from_dict(missing[name])}))
        return nb, resources


class NotMarked(RuntimeError):
    """The answers were not marked, and the message says why."""


class MarkAnswers(NbGraderPreprocessor):
    """Fills each locked cell's output with what `marking` found: nbgrader gives no points where that is an error."""

    limit_s = Float(LIMIT_S, help="seconds for running an answer, and again for checking it").tag(config=True)
    sandbox = Bool(True, help="answers run under bubblewrap; False: with your rights").tag(config=True)

    def preprocess(self, nb, resources):
        code = [cell for cell in nb.cells if cell.cell_type == "code"]
        cells = {cell.metadata.get("nbgrader", {}).get("grade_id"): cell.source for cell in code}
        cells.pop(None, None)
        # A process of its own also because those that it starts import its main module: nbgrader's takes seconds.
        run = subprocess.run(
            [sys.executable, "-m", "course_lib.grading.marking"],
            input=json.dumps({"cells": cells, "limit_s": self.limit_s, "sandboxed": self.sandbox}),
            capture_output=True,
            text=True,
        )
        if run.returncode:
            raise NotMarked(run.stderr[-2000:])
        marks = json.loads(run.stdout)
        for cell in filter(utils.is_grade, code):
            unknown = {"passed": False, "message": "no exercise of the course: mark this cell by hand"}
            found = marks.get(cell.metadata.nbgrader.grade_id, unknown)
            cell.outputs = [_output(**found)]
        return nb, resources


class AnswersOnly(NbGraderPreprocessor):
    """Leaves of a feedback page what is about the marks: the answers, as text, and what was found of each.

    A student's Markdown, HTML and outputs are none of it. What nbgrader would take for hidden tests in an answer is
    made harmless: it gives that student's page up otherwise.
    """

    def preprocess(self, nb, resources):
        own = [cell for cell in nb.cells if cell.cell_type == "code" and "nbgrader" in cell.metadata]
        nb.cells = [cell for cell in own if utils.is_solution(cell) or utils.is_grade(cell)]
        for cell in nb.cells:
            cell.execution_count = None
            if not utils.is_grade(cell):
                cell.outputs = []
                cell.source = re.sub("(BEGIN|END) HIDDEN TESTS", r"\1 TESTS", cut(cell.source, SOURCE_LIMIT_CHARS))
        return nb, resources


def _output(passed, message):
    if passed:
        return new_output("stream", name="stdout", text=message + "\n")
    return new_output("error", ename="NotPassed", evalue=message, traceback=message.splitlines())
