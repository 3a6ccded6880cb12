"""What a course's nbgrader_config.py puts in the place of nbgrader's own: who reads, marks and shows a submission."""

import os

import nbformat
from nbconvert.exporters import Exporter, NotebookExporter
from nbformat.v4 import new_notebook, new_output
from nbgrader import utils
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool, Float, default

from courseware.checks import registry
from courseware.widgets import page
from courseware.worker.running import cut

from .assignments import GRADE_ID, answer_cell, check_cell
from .cli import sources
from .marking import LIMIT_S, MESSAGE_LIMIT_CHARS, mark


class Submitted(NotebookExporter):
    """Reads what was handed in. A file that is no notebook is one without answers."""

    def from_file(self, file_stream, resources=None, **kw):
        try:
            if os.path.islink(file_stream.name):
                raise ValueError("it is a link, perhaps to what is not the student's")
            notebook = nbformat.read(file_stream, as_version=4)
        except Exception as error:
            self.log.error("%s is no notebook, and earns nothing: %.200s", file_stream.name, error)
            notebook = new_notebook()
        return self.from_notebook_node(notebook, resources, **kw)


class AnswersAlone(NbGraderPreprocessor):
    """Takes from a submission the text of its answers, and everything else from the course's own notebook."""

    def preprocess(self, nb, resources):
        about, folders, given = resources["nbgrader"], self.parent.parent.coursedir, sources(nb, *GRADE_ID)
        home = folders.format_path(folders.source_directory, ".", about["assignment"])
        whole = nbformat.read(f"{home}/{about['notebook']}.ipynb", as_version=4)
        kept = []
        for cell in whole.cells:
            if utils.is_solution(cell):
                cell.source = given.get(cell.metadata.nbgrader.grade_id)
            if cell.source is not None:
                kept.append(cell)
        whole.cells = kept
        return whole, resources


class MarkAnswers(NbGraderPreprocessor):
    """Fills each locked cell's output with what `marking` found: nbgrader gives no points where that is an error."""

    limit_s = Float(LIMIT_S, help="seconds by the clock for one answer").tag(config=True)
    sandbox = Bool(True, help="answers run under bubblewrap; False: with your rights").tag(config=True)

    def preprocess(self, nb, resources):
        cells, ids = sources(nb, *GRADE_ID), registry.exercises()
        answers = {i: cells[answer_cell(i)] for i in ids if answer_cell(i) in cells}
        tests = {i: cells[check_cell(i)] for i in ids if check_cell(i) in cells}
        marks = {check_cell(i): found for i, found in mark(answers, tests, self.limit_s, self.sandbox).items()}
        for cell in nb.cells:
            if cell.cell_type == "code" and utils.is_grade(cell) and not utils.is_solution(cell):
                unknown = {"passed": False, "message": "no exercise of the course: mark this cell by hand"}
                found = marks.get(cell.metadata.nbgrader.grade_id, unknown)
                cell.outputs = [_output(found["passed"], found["message"])]
        return nb, resources


def _output(passed, message):
    if passed:
        return new_output("stream", name="stdout", text=message + "\n")
    return new_output("error", ename="NotPassed", evalue=message, traceback=message.splitlines())


class FeedbackPage(Exporter):
    """A page with the marks, the answers as text, and what was found of each: nothing else, and no script."""

    @default("file_extension")
    def _extension(self):
        return ".html"

    def from_notebook_node(self, nb, resources=None, **kw):
        nb, resources = super().from_notebook_node(nb, resources, **kw)
        about = resources["nbgrader"]
        title = page.escape(f"{about['notebook']}: {about['score']:g} of {about['max_score']:g} points")
        late = f"<p>{about['late_penalty']:g} points less, because it came late.</p>" if about["late_penalty"] else ""
        parts = [_part(cell) for cell in nb.cells if utils.is_solution(cell) or utils.is_grade(cell)]
        head = f"<!DOCTYPE html><html lang=en><meta charset=utf-8><title>{title}</title>{PAGE_STYLE}"
        return f"{head}<h1>{title}</h1>{late}{''.join(parts)}</html>\n", resources


PAGE_STYLE = (
    "<meta name=viewport content='width=device-width'><style>body{max-width:60em;margin:2em auto;padding:0 1em;"
    "font-family:sans-serif}h2{margin-top:2em}pre{overflow-x:auto}</style>"
)


def _part(cell):
    """An answer, or what was found of it, with the points that it earned."""
    about = cell.metadata.nbgrader
    titles = {name(i): i for i in registry.exercises() for name in (answer_cell, check_cell)}
    title = titles.get(about.grade_id, about.grade_id)
    text = cut(cell.source, MESSAGE_LIMIT_CHARS) if utils.is_solution(cell) else ""
    text += "".join(output.get("evalue") or output.get("text", "") for output in cell.get("outputs", ()))
    if comment := about.get("comment"):
        text += f"\n\nComment: {comment}"
    if not utils.is_grade(cell):
        return f"<h2>{page.escape(title)}</h2><pre>{page.escape(text)}</pre>"
    mood = "passed" if about.score == about.points else "failed"
    points = f"{title}: {about.score:g} of {about.points:g} points"
    return page.boxed(f"<p><b>{page.escape(points)}</b></p><pre>{page.escape(text)}</pre>", mood)
