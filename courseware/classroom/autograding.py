"""What a course's nbgrader_config.py puts in the place of nbgrader's own: who reads, marks and shows a submission."""

import atexit
import contextlib
import csv
import functools
import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbconvert.exporters import Exporter, NotebookExporter
from nbformat.v4 import new_output
from nbgrader import utils
from nbgrader.api import MissingEntry
from nbgrader.plugins import ExportPlugin, LateSubmissionPlugin
from nbgrader.preprocessors import NbGraderPreprocessor, SaveAutoGrades
from traitlets import Bool, Dict, Enum, Float, Int, default

from courseware.checks import registry
from courseware.widgets import page
from courseware.worker.running import cut

from .assignments import check_cell
from .marking import BUSY, LIMIT_S, MESSAGE_LIMIT_CHARS, STOPPED, mark
from .submission import TIMESTAMP, answer_cell, handed_in


class Submitted(NotebookExporter):
    """Puts the course's notebook with the answers' text in the place of each submission, and nothing else."""

    def __init__(self, **given):
        super().__init__(**given)
        course = self.parent.coursedir
        staged = Path(tempfile.mkdtemp(prefix=".submitted-", dir=course.root))
        atexit.register(shutil.rmtree, staged, ignore_errors=True)
        pattern = course.format_path(course.submitted_directory, course.student_id, course.assignment_id)
        for folder in sorted(Path(course.root).glob(os.path.relpath(pattern, course.root))):
            submission, said = handed_in(folder, folder.name)
            if said != "a notebook":
                self.log.warning("%s: %s", folder.parent.name, said)
            if said != "missing":
                self._stage(folder, submission.cells if submission else {}, staged / folder.parent.name / folder.name)
        course.submitted_directory = staged.name
        self.parent.init_notebooks()

    def _stage(self, folder, cells, target):
        """Write the course's notebook with these answers' cells; one that is missing is left out."""
        target.mkdir(parents=True)
        home = self.parent.coursedir.format_path("source", ".", folder.name)
        notebook = nbformat.read(f"{home}/{folder.name}.ipynb", as_version=4)
        for cell in notebook.cells:
            if utils.is_solution(cell):
                cell.source = cells.get(cell.metadata.nbgrader.grade_id)
        notebook.cells = [cell for cell in notebook.cells if cell.source is not None]
        nbformat.write(notebook, target / f"{folder.name}.ipynb")
        timestamp = folder / TIMESTAMP
        if timestamp.is_file() and not timestamp.is_symlink():
            try:
                text = timestamp.read_bytes()[:100].decode().strip()
                utils.parse_utc(text)
                (target / TIMESTAMP).write_text(text)
            except (ValueError, OverflowError):
                self.log.warning("%s: %s holds no date", folder.parent.name, TIMESTAMP)


class MarkAnswers(NbGraderPreprocessor):
    """Fills each locked cell's output with what `marking` found: nbgrader gives no points where that is an error."""

    limit_s = Float(LIMIT_S, help="seconds of processor time for one answer").tag(config=True)
    jobs = Int(1, help="submissions that are marked at the same time").tag(config=True)
    sandbox = Bool(True, help="answers run under bubblewrap; False: with your rights").tag(config=True)
    begun, marked = {}, {}  # the first: (student, texts of a notebook) -> a Future of its marks
    pool = staticmethod(functools.cache(ThreadPoolExecutor))

    def preprocess(self, nb, resources):
        converter, about = self.parent.parent, resources["nbgrader"]
        own = self._begin(about["student"], nb)
        # Only this thread uses nbgrader's data base: the others mark what comes next, a few notebooks ahead.
        for folder, (notebook, *_) in sorted(converter.assignments.items()):
            student, lesson = Path(folder).parts[-2:]
            is_marked = os.path.exists(converter._format_dest(lesson, student)) and not converter.force
            if (student, lesson) > (about["student"], about["assignment"]) and not is_marked:
                if sum(not future.done() for future in self.begun.values()) >= 2 * self.jobs:
                    break
                self._begin(student, nbformat.read(notebook, as_version=4))
        marks = own.result()
        if not self.marked:
            atexit.register(_sum_up, self.marked)
        self.marked[about["assignment"], about["student"]] = marks
        about["unmarked"] = [check_cell(i) for i, found in marks.items() if found.get("busy")]
        found_of = {check_cell(i): found for i, found in marks.items()}
        for cell in nb.cells:
            if cell.cell_type == "code" and utils.is_grade(cell) and not utils.is_solution(cell):
                unknown = {"passed": False, "message": "no exercise of the course: mark this cell by hand"}
                cell.outputs = _outputs(found_of.get(cell.metadata.nbgrader.grade_id, unknown))
        return nb, resources

    def _begin(self, student, nb):
        cells = {c.metadata.nbgrader.grade_id: c.source for c in nb.cells if utils.is_solution(c) or utils.is_grade(c)}
        ids = registry.exercises()
        answers, tests = ({i: cells[name(i)] for i in ids if name(i) in cells} for name in (answer_cell, check_cell))
        key = json.dumps([student, answers, tests])
        if key not in self.begun:
            self.begun[key] = self.pool(self.jobs).submit(mark, answers, tests, self.limit_s, self.sandbox, student)
        return self.begun[key]


def _sum_up(marks):
    """Say, at the end, what an instructor has to know. marks: (lesson, student) -> those of a notebook."""
    print(f"Marked: {len(marks)}")
    for title, is_meant in (
        ("Without any point", lambda found: not any(f["passed"] or "points" in f or "busy" in f for f in found)),
        ("Stopped by a limit", lambda found: any(STOPPED.search(f["message"]) for f in found)),
    ):
        print(f"{title}: {', '.join(who for (_, who), found in marks.items() if is_meant(found.values())) or 'nobody'}")
    for (lesson, student), found in marks.items():
        if busy := [exercise_id for exercise_id, each in found.items() if each.get("busy")]:
            print(f"{student}: {', '.join(busy)} {BUSY}. Mark again when it is less so:")
            print(f"    nbgrader autograde {lesson} --student {student} --force")


def _outputs(found):
    message = found["message"] + "\n"
    if found["passed"] or found.get("points"):
        said = [new_output("stream", name="stdout", text=message)]
        points = {"text/plain": str(found.get("points"))}
        return said if found["passed"] else [*said, new_output("execute_result", points, execution_count=1)]
    return [new_output("error", ename="NotPassed", evalue=message, traceback=message.splitlines())]


class SaveMarks(SaveAutoGrades):
    """As nbgrader's own, but what could not be marked has no points yet, and formgrader shows it as to be marked."""

    def _add_score(self, cell, resources):
        super()._add_score(cell, resources)
        name = cell.metadata.nbgrader.grade_id
        if name in resources["nbgrader"].get("unmarked", ()):
            grade = self.gradebook.find_grade(name, self.notebook_id, self.assignment_id, self.student_id)
            grade.auto_score, grade.needs_manual_grade = None, True
            self.gradebook.db.commit()


class LatePolicy(LateSubmissionPlugin):
    """Points off for each day that has begun after the due date, an extension and the grace."""

    grace_hours = Float(0, help="hours for which nobody loses anything").tag(config=True)
    part_a_day = Float(0, help="of the points, lost for each day; 1: all of them").tag(config=True)
    extension_days = Dict(help='by student, or by "student/lesson"').tag(config=True)

    def late_submission_penalty(self, student_id, score, total_seconds_late):
        about = f"{student_id}/{getattr(self.parent, 'assignment_id', '')}"
        extension_days = self.extension_days.get(about, self.extension_days.get(student_id, 0))
        days = (total_seconds_late - 3600 * self.grace_hours) / 86400 - extension_days
        return round(min(score, score * self.part_a_day * -(-days // 1)), 2) if days > 0 else None


class Grades(ExportPlugin):
    """grades.csv, or a line a student for Moodle or Canvas. What is still to be marked has no score."""

    layout = Enum(["lines", "moodle", "canvas"], "lines").tag(config=True)

    def export(self, gradebook):
        lessons = [each for each in gradebook.assignments if not self.assignment or each.name in self.assignment]
        students = [each for each in gradebook.students if not self.student or each.id in self.student]
        scores = {(s.id, lesson.name): self._row(gradebook, s, lesson) for lesson in lessons for s in students}
        rows = list(scores.values())
        if self.layout != "lines":
            possible = {"Student": "Points Possible"} | {each.name: each.max_score for each in lessons}
            rows = [possible] if self.layout == "canvas" else []
            for s in students:
                who = {"Email address": s.email, "ID number": s.lms_user_id or s.id}
                if self.layout == "canvas":
                    who = {"Student": f"{s.last_name or ''}, {s.first_name or ''}", "ID": s.lms_user_id or s.id}
                rows.append(who | {each.name: scores[s.id, each.name]["score"] for each in lessons})
        with open(self.to or "grades.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[-1]) if rows else [])
            writer.writeheader()
            writer.writerows(rows)

    def _row(self, gradebook, student, lesson):
        row = {"assignment": lesson.name, "duedate": lesson.duedate, "timestamp": "", "student_id": student.id}
        row |= {name: getattr(student, name) for name in ("last_name", "first_name", "email")}
        row |= {"raw_score": 0.0, "late_submission_penalty": 0.0, "score": 0.0, "max_score": lesson.max_score}
        with contextlib.suppress(MissingEntry):
            found = gradebook.find_submission(lesson.name, student.id)
            row |= {"timestamp": found.timestamp, "late_submission_penalty": found.late_submission_penalty or 0.0}
            row |= {"raw_score": found.score, "score": max(0.0, found.score - row["late_submission_penalty"])}
            row |= dict.fromkeys(("raw_score", "score"), "") if found.needs_manual_grade else {}
        return row


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
    points = f"{title}: {'not marked yet' if BUSY in text else f'{about.score:g}'} of {about.points:g} points"
    return page.boxed(f"<p><b>{page.escape(points)}</b></p><pre>{page.escape(text)}</pre>", mood)
