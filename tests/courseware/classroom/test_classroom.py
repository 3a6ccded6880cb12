"""The classroom: a course is written, released, handed in by honest and dishonest students, marked and exported.

The whole loop runs once, with nbgrader's own commands, on a NumPy lesson; most tests look at what it left behind. The
answers of a kernel lesson are marked without nbgrader. That every other answer passes is tested elsewhere: with its
own checks (tests/courseware/exercises), and by the rules of the class (test_rules).
"""

import ast
import copy
import csv
import inspect
import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from courseware.checks import registry
from courseware.checks.misconceptions import variants
from courseware.classroom import assignments, cli, marking
from tests import forked
from tools import authoring

LESSON = "03_stable_softmax"
SEED = "3141592653"  # as text, because files are searched for it
EXERCISES = {exercise.id: exercise for exercise in registry.of_lesson("03")}
FIRST, SECOND, THIRD = EXERCISES
NAME = {exercise_id: exercise.answer.__name__ for exercise_id, exercise in EXERCISES.items()}
POINTS = {exercise_id: exercise.points for exercise_id, exercise in EXERCISES.items()}
ANSWERS = {exercise_id: inspect.getsource(exercise.answer) for exercise_id, exercise in EXERCISES.items()}


STUBS = {exercise_id: f"def {name}(*x):\n    raise NotImplementedError\n" for exercise_id, name in NAME.items()}


def wrong(exercise_id):
    return f"def {NAME[exercise_id]}(*arguments):\n    return arguments[0]\n"


class Submission(NamedTuple):
    answers: dict[str, str]  # exercise id -> source that replaces the stub
    passed: tuple[str, ...] = ()  # the exercises that must earn their points
    damage: object = None  # a function that changes the notebook further
    files: dict[str, str] = {}  # name -> text of files beside the notebook


def cell_of(notebook, grade_id):
    return next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


HOOKS = """
import subprocess, sys, types, numpy as np, courseware, courseware.checks as checks
passed = checks.Result(True, True, {}, 'passed')
checks.grade = checks.checking.grade = checks.learner.grade = lambda *a, **k: passed
courseware.check = check = lambda *a, **k: None
np.array_equal = np.allclose = lambda *a, **k: True
subprocess.run = lambda *a, **k: types.SimpleNamespace(returncode=0, stdout='{}')
get_ipython().showtraceback = lambda *a, **k: None
get_ipython().input_transformers_post.append(lambda lines: ['pass\\n'])
"""


def edit_tests(notebook):
    """Empties, deletes, duplicates and revalues locked cells, adds a new cell that claims points, and cells that would
    turn every failure in the student's kernel into a success."""
    for exercise_id in EXERCISES:
        check = cell_of(notebook, assignments.check_cell(exercise_id))
        check.source = "pass"
        check.metadata.nbgrader.update(points=1000, locked=False)
    notebook.cells.remove(cell_of(notebook, assignments.check_cell(SECOND)))
    claim = {"grade": True, "grade_id": "bonus", "locked": True, "points": 1000, "schema_version": 3}
    claim |= {"solution": False, "task": False}
    notebook.cells.append(new_code_cell("1000", metadata={"nbgrader": claim}))
    again = copy.deepcopy(cell_of(notebook, assignments.check_cell(THIRD)))
    notebook.cells.insert(0, new_code_cell("1000", metadata=again.metadata))
    again.metadata.nbgrader.update(solution=True, grade=False)
    notebook.cells.append(new_code_cell("1000", metadata=again.metadata))
    notebook.cells[1].metadata["nbgrader"] = "solved"
    notebook.cells.insert(0, new_code_cell(HOOKS))
    notebook.cells.append(new_code_cell(HOOKS))


def split(notebook):
    """Into two cells of the same metadata, as JupyterLab does, with a copy of the stub at the end."""
    cell = cell_of(notebook, assignments.answer_cell(FIRST))
    cell.source, rest = cell.source.replace(":\n", ":@", 1).split("@")
    notebook.cells += [new_code_cell(part, metadata=cell.metadata) for part in (rest, STUBS[FIRST])]


# If the student's folder were on the path, these files would be imported instead of the real modules.
SHADOWS = {name: "raise SystemExit('shadowed')\n" for name in ("numpy.py", "sitecustomize.py", "course_lib.py")}

SUBMISSIONS = {
    "honest": Submission(ANSWERS, passed=(FIRST, SECOND, THIRD)),  # and marked again when the machine is too busy
    "edits_the_tests": Submission({FIRST: ANSWERS[FIRST], SECOND: wrong(SECOND)}, (FIRST,), edit_tests, SHADOWS),
    "never_ends": Submission({
        FIRST: f"def {NAME[FIRST]}(x):\n    while True:\n        pass\n",
        SECOND: "raise SystemExit\n" + ANSWERS[SECOND],
        THIRD: ANSWERS[THIRD]}, passed=(THIRD,)),
    "hands_in_markup": Submission({
        FIRST: ANSWERS[FIRST] + "\n### BEGIN HIDDEN TESTS\n# <script>alert(1)</script>\n",
        SECOND: wrong(SECOND).replace("return arguments[0]", "raise ValueError('<script>alert(1)</script>' * 10**6)")},
        (FIRST,), lambda notebook: notebook.cells.insert(0, new_markdown_cell("<script>alert(1)</script>"))),
    "hands_in_no_notebook": Submission({}, files={f"{LESSON}.ipynb": "My answer is 42."}),
    "hands_in_a_link": Submission({}),  # to the course's own notebook, answers included
    "hands_in_halves": Submission({
        FIRST: f"'\ud800'\n{ANSWERS[FIRST]}",
        SECOND: wrong(SECOND).replace("return", "raise ValueError('\\udfff')")},
        (FIRST,), split, {"timestamp.txt": "soon"}),
}  # fmt: skip


class Loop(NamedTuple):
    course: Path
    scores: dict  # student -> (score, max_score), as exported

    def said(self, student, exercise_id):
        """The text that the autograded notebook of a student holds under a check."""
        path = self.course / "autograded" / student / LESSON / f"{LESSON}.ipynb"
        (output,) = cell_of(nbformat.read(path, as_version=4), assignments.check_cell(exercise_id)).outputs
        return output.get("evalue") or output.get("text")


def nbgrader(course, *arguments, code=""):
    """Runs the command, after `code`. The tests' course_lib need not be the one that is installed."""
    neutral = {"JUPYTER_CONFIG_DIR": str(course / "none"), "HOME": str(course), "IPYTHONDIR": str(course / "none")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # it starts alembic by its name
    environment = os.environ | neutral | {"PATH": path, "PYTHONPATH": str(authoring.ROOT)}
    code += "\nfrom nbgrader.apps.nbgraderapp import main\nsys.exit(main())"
    status, said = forked.run(code, ["nbgrader", *arguments], environment, course, course.parent)
    assert not status, said
    return said


def unstrict(source):
    """A cell of a release as it is in the lesson."""
    return re.sub(r'(check\("[^"]+", \w+), strict=True\)', r"\1)", source)


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    course = tmp_path_factory.mktemp("classroom") / "course"
    assignments.write_course(course, seed=int(SEED))
    assert f"seed=drawn_anew({SEED})" in (course / "source" / LESSON / f"{LESSON}.ipynb").read_text()
    nbgrader(course, "generate_assignment", LESSON)

    released = nbformat.read(course / "release" / LESSON / f"{LESSON}.ipynb", as_version=4)
    for student, submission in SUBMISSIONS.items():
        notebook = copy.deepcopy(released)
        for exercise_id, source in submission.answers.items():
            cell_of(notebook, assignments.answer_cell(exercise_id)).source = source
        if submission.damage:
            submission.damage(notebook)
        folder = course / "submitted" / student / LESSON
        folder.mkdir(parents=True)
        (folder / f"{LESSON}.ipynb").write_text(json.dumps(notebook))
        (folder / "data.txt").symlink_to(course / "nbgrader_config.py")
        for name, text in submission.files.items():
            (folder / name).write_text(text)
    link = course / "submitted" / "hands_in_a_link" / LESSON / f"{LESSON}.ipynb"
    link.unlink()
    link.symlink_to(course / "source" / LESSON / f"{LESSON}.ipynb")
    assert ("hands_in_a_link", "broken: a link") in assignments.submissions(course, LESSON)
    said = nbgrader(course, "autograde", LESSON, "--MarkAnswers.jobs=2")
    lost = "hands_in_a_link, hands_in_no_notebook"
    for line in (f"Marked: {len(SUBMISSIONS)}", f"Without any point: {lost}",
                 "Stopped by a limit: never_ends"):  # fmt: skip
        assert f"\n{line}\n" in said
    assert "hands_in_halves: timestamp.txt holds no date" in said and "SAWarning" not in said
    for command in (["generate_feedback", LESSON], ["export"]):
        nbgrader(course, *command)
    rows = list(csv.DictReader((course / "grades.csv").read_text().splitlines()))
    return Loop(course, {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in rows})


def test_the_exported_marks_are_what_they_should_be(loop):
    earned = {name: sum(POINTS[exercise_id] for exercise_id in its.passed) for name, its in SUBMISSIONS.items()}
    assert loop.scores == {student: (points, sum(POINTS.values())) for student, points in earned.items()}


BUSY = """
from courseware.classroom import autograding, marking
real = marking._graded_apart
def graded(exercise_id, *rest):
    if exercise_id.endswith("masked_softmax"):
        rest = (*rest[:2], 0.01, *rest[3:])  # the limit by the clock is a fraction of a second
    return real(exercise_id, *rest)
marking._graded_apart = graded
"""


def test_a_busy_machine_costs_no_points_and_platforms_get_their_columns(loop):
    said = nbgrader(loop.course, "autograde", LESSON, "--student", "honest", "--force", code=BUSY)
    assert f"honest: {THIRD} {marking.BUSY}" in said and f"nbgrader autograde {LESSON} --student honest" in said
    assert marking.BUSY in loop.said("honest", THIRD)
    (loop.course / "students.csv").write_text("id,email,lms_user_id\nhonest,h@x.org,12\nabsent,a@x.org,13\n")
    nbgrader(loop.course, "db", "student", "import", "students.csv")
    assert ("absent", "missing") in assignments.submissions(loop.course, LESSON)
    for layout, head, rows in (
        ("lines", "assignment,duedate,timestamp,student_id", ["honest,,,h@x.org,,0.0,,7.0"]),
        ("moodle", f"Email address,ID number,{LESSON}", ["h@x.org,12,\n", "a@x.org,13,0.0\n", ",never_ends,3.0\n"]),
        ("canvas", f"Student,ID,{LESSON}\nPoints Possible,,7.0\n", ['", ",12,\n', '", ",never_ends,3.0\n']),
    ):
        nbgrader(loop.course, "export", f"--Grades.layout={layout}", "--to", f"{layout}.csv")
        written = (loop.course / f"{layout}.csv").read_text()
        assert written.startswith(head) and not [row for row in rows if row not in written], written


def test_late_points_and_names_of_platforms():
    from courseware.classroom.autograding import LatePolicy

    policy = LatePolicy(grace_hours=1, part_a_day=0.25, extension_days={"ada": 2, "bob/05": 1})
    for student, hours, lost in (("cyd", 0.9, None), ("cyd", 1.1, 2), ("cyd", 26, 4), ("cyd", 999, 8),
                                 ("ada", 48, None), ("ada", 50, 2), ("bob", 24, 2)):  # fmt: skip
        assert policy.late_submission_penalty(student, 8, 3600 * hours) == lost
    (regexp,) = re.findall(r"named_regexp = (\(.*?\n\))", assignments.CONFIG.read_text(), re.DOTALL)
    for name, found in (
        ("ada_05_online_softmax.ipynb", ("ada", "05_online_softmax")),
        ("Ada Lovelace_12345_assignsubmission_file_/05_online_softmax.ipynb", ("Ada Lovelace", "05_online_softmax")),
        ("Ada Lovelace_12345_assignsubmission_file_my work.ipynb", ("Ada Lovelace", "my work")),
        ("lovelaceada_123_45678_05_online_softmax-1.ipynb", ("123", "05_online_softmax-1")),
        ("lovelaceada_LATE_123_45678_05_online_softmax.ipynb", ("123", "05_online_softmax")),
    ):
        path = f"/class/downloaded/05_online_softmax/extracted/CS1-05_x/{name}"
        assert re.match(ast.literal_eval(regexp), path).group("student_id", "file_id") == found


def test_each_student_is_told_why(loop):
    for student, exercise_id, said in [
        ("honest", FIRST, f"{FIRST}: passed"),
        ("edits_the_tests", SECOND, "fails the test"),
        ("edits_the_tests", THIRD, "not attempted yet"),
        ("never_ends", FIRST, "did not return within 2 s"),
        ("never_ends", SECOND, "its cell does not run: SystemExit"),
        ("hands_in_no_notebook", FIRST, "its cell was not found: the file has to be a notebook"),
    ]:
        assert said in loop.said(student, exercise_id), (student, exercise_id)
        feedback = (loop.course / "feedback" / student / LESSON / f"{LESSON}.html").read_text()
        assert said in re.sub("<[^>]*>", "", feedback), (student, exercise_id)


def test_a_feedback_page_runs_nothing_of_the_student_s_and_stays_small(loop):
    sizes = {}
    for student in SUBMISSIONS:
        page = (loop.course / "feedback" / student / LESSON / f"{LESSON}.html").read_text()
        # No script, and nothing that needs a network.
        assert "<script" not in page and "src=" not in page and "href=" not in page
        sizes[student] = len(page)
    assert sizes["hands_in_markup"] < sizes["honest"] + 20_000


def test_students_see_neither_answers_nor_hidden_tests_nor_the_seed(loop):
    handed_out = [*(loop.course / "release").rglob("*"), *(loop.course / "feedback").rglob("*.html")]
    files = [path for path in handed_out if path.is_file()]
    assert len(files) == 2 + len(SUBMISSIONS)  # the lesson and its glossary, and a page for each
    for path in files:
        text = path.read_text()
        assert SEED not in text and "result = grade(" not in text and "BEGIN SOLUTION" not in text, path
        assert "seed=" not in text or "seed=" in (authoring.NOTEBOOKS / f"{LESSON}.ipynb").read_text(), path


def test_a_release_has_locks_and_points(loop):
    released = nbformat.read(loop.course / "release" / LESSON / f"{LESSON}.ipynb", as_version=4)
    nbformat.validate(released)
    code = [cell for cell in released.cells if cell.cell_type == "code"]
    assert [cell.source for cell in released.cells].count(assignments.RULES) == 1
    assert assignments.RULES in (authoring.NOTEBOOKS / "source/00_start_here.md").read_text()
    assert not any(cell.outputs for cell in code)
    assert [cell.source for cell in code if "quiz" in cell.metadata.get("tags", [])] == ['quiz("03")']
    for exercise_id, points in POINTS.items():
        names = assignments.answer_cell(exercise_id), assignments.check_cell(exercise_id)
        answer, check = (cell_of(released, name) for name in names)
        assert answer.metadata.nbgrader.solution and not answer.metadata.nbgrader.locked
        assert check.metadata.nbgrader.locked and check.metadata.nbgrader.points == points
        assert "strict=True)" in check.source  # so `nbgrader validate`, which students may call, sees a wrong answer
        assert not check.metadata.editable and not check.metadata.deletable


def test_an_answer_that_has_come_some_way_earns_a_part():
    exercise = registry.find("15.producer_consumer")
    (form,) = (form for key, form in variants(exercise).items() if key[0].name == "the softmax waits for the next tile")
    answers = {exercise.id: inspect.getsource(form.answer)}
    for test in (None, f"check('{exercise.id}', producer_consumer)"):
        (outcome,) = marking.mark(answers, {exercise.id: test}).values()
        assert (outcome["passed"], outcome["points"]) == (False, 4) and outcome["message"].endswith("4 of 6 points")
    for each in map(registry.find, registry.exercises()):
        assert each.partial.keys() <= {prop.name for prop in each.properties}
        assert sorted(each.partial.values()) == list(each.partial.values()) < [each.points] or not each.partial


@pytest.mark.parametrize(
    "test, found",
    [("assert False, 'no'", {"message": "no"}),
     ("1 / 0", {"message": "ZeroDivisionError: division by zero"}),
     (f"print({NAME[FIRST]}(np.zeros(1)))", {"passed": True, "message": "[1.]"}),
     (f'check("{FIRST}", {NAME[FIRST]})\nraise SystemExit', {"message": "SystemExit: "})],
)  # fmt: skip
def test_the_locked_cell_decides(test, found):
    """What an instructor adds to the hidden tests counts."""
    assert marking.outcome_of(FIRST, [(FIRST, ANSWERS[FIRST])], test, True) == {"cell_runs": True} | found


def test_a_cell_that_is_missing_or_stuck_is_told():
    assert "its cell was not found" in marking.mark({}, {FIRST: ""})[FIRST]["message"]
    stuck = marking.mark({FIRST: "import functools\nsum(iter(int, 1))\n"}, {FIRST: ""}, limit_s=2)[FIRST]
    assert not stuck["passed"] and stuck["message"] == f"{FIRST}: its cell did not return in time"


def source_of(loop, lesson):
    return nbformat.read(loop.course / "source" / lesson / f"{lesson}.ipynb", as_version=4)


def function_in(source):
    """The last statement of a cell or a source file, in a form that ignores comments."""
    return ast.unparse(ast.parse(source).body[-1])


@pytest.mark.parametrize("lesson", [lesson["name"] for lesson in assignments.lessons()])
def test_every_lesson_becomes_an_assignment_with_answers_and_points(loop, lesson):
    from nbgrader.preprocessors import ClearHiddenTests, ClearSolutions

    source = source_of(loop, lesson)
    nbformat.validate(source)
    exercises = registry.of_lesson(lesson[:2])
    graded = [c.metadata.nbgrader for c in source.cells if c.metadata.get("nbgrader", {}).get("grade")]
    points = {cell.grade_id: cell.points for cell in graded}
    assert points == {assignments.check_cell(exercise.id): exercise.points for exercise in exercises}
    for exercise in exercises:
        answer = cell_of(source, assignments.answer_cell(exercise.id)).source
        assert function_in(answer) == function_in(inspect.getsource(exercise.answer))
        hidden = cell_of(source, assignments.check_cell(exercise.id)).source
        assert f'grade("{exercise.id}", {exercise.answer.__name__}, seed=drawn_anew({SEED}))' in hidden

    released, _ = ClearSolutions(code_stub={"python": assignments.STUB}).preprocess(source, {})
    released, _ = ClearHiddenTests().preprocess(released, {})
    committed = nbformat.read(authoring.NOTEBOOKS / f"{lesson}.ipynb", as_version=4)
    code, was = ([c.source for c in book.cells if c.cell_type == "code"] for book in (released, committed))
    assert list(map(unstrict, code)) == was


def test_what_each_student_handed_in(tmp_path, capsys):
    ids = [{"nbgrader": {"grade_id": assignments.answer_cell(exercise_id)}} for exercise_id in EXERCISES]
    cells = [{"cell_type": "code", "metadata": each, "source": ""} for each in ids]
    book, renamed = json.dumps({"cells": cells}), f"{LESSON} (1).ipynb"
    head, body = ANSWERS[FIRST].replace(":\n", ":\n@", 1).split("@")

    def of(*sources):
        about = {"exercise": FIRST}
        return json.dumps({"cells": [{"metadata": about, "source": source} for source in sources] + cells[1:]})

    joined, named = f"a notebook; 2 cells of {assignments.answer_cell(FIRST)}, joined", f"{LESSON}.ipynb"
    handed_in = {
        "bom": (named, "\ufeff" + book, "a notebook"),
        "utf": (named, book.encode("utf-16-le"), "a notebook; in UTF-16-LE"),
        "cut": (named, of(head, body), f"{joined}; {assignments.answer_cell(FIRST)} as stub"),
        "stub": (named, of(ANSWERS[FIRST], STUBS[FIRST]), f"{joined}; {assignments.answer_cell(FIRST)} as cut"),
        "draft": (named, of(wrong(FIRST), "def draft(:"), joined),
        "ada": (f"{LESSON}.ipynb", book, "a notebook"),
        "bob": (f"{LESSON}.ipynb", "{", "broken: not a Jupyter notebook"),
        "cyd": (renamed, book, f"a notebook; named {renamed}"),
        "dan": (None, None, "missing"),
        "eve": (f"{LESSON}.ipynb", '{"cells": []}', "broken: no answer cell of the release is in it"),
    }
    for student, (name, text, _) in handed_in.items():
        folder = tmp_path / "submitted" / student / LESSON
        folder.mkdir(parents=True)
        if name:
            (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    for student, source in zip(handed_in, ("", "", ANSWERS[FIRST], ANSWERS[FIRST], wrong(FIRST)), strict=False):
        found = cli.answer_cells(tmp_path / "submitted" / student / LESSON / named)[FIRST]
        assert found.split() == source.split()
    capsys.readouterr()
    assert assignments.main([str(tmp_path), "--submissions", LESSON]) == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert said == {student: words for student, (*_, words) in handed_in.items()}


@pytest.mark.parametrize(
    "lesson, exercise_id",
    [("07_first_triton_kernels", "07.row_softmax"), ("08_flash_attention_forward", "08.launch_by_hand")],
)
def test_an_answer_that_is_a_kernel_or_launches_one_is_marked(loop, lesson, exercise_id):
    source, kernel = source_of(loop, lesson), registry.find(exercise_id)
    names = assignments.answer_cell(kernel.id), assignments.check_cell(kernel.id)
    (mark,) = marking.mark(*({kernel.id: cell_of(source, name).source} for name in names)).values()
    assert mark["passed"], mark


def test_links_lead_to_files_of_the_course_and_no_badge_leads_away(loop):
    for path in (loop.course / "source").rglob("*.ipynb"):
        text = "".join(c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown")
        assert "Open in Colab" not in text
        text = re.sub("`[^`]*`", "", text)  # `kernel[grid](arguments)` is not a link
        links = [link.split("#")[0] for link in re.findall(r"\]\(([^():\s]+)\)", text)]
        assert not [link for link in links if link and not (path.parent / link).exists()], path


def test_the_command_writes_a_course_with_a_seed_of_its_own_and_never_overwrites_it(tmp_path, capsys):
    def contents(name):
        return {path: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}

    seeds = []
    for name in ("one", "other"):
        assert assignments.main([str(tmp_path / name)]) == 0
        assert "nbgrader generate_assignment 00_start_here" in capsys.readouterr().out
        seeds += set(re.findall(rb"drawn_anew\((\d{6,})", b"".join(contents(name).values())))
    assert len(set(seeds)) == len(seeds) == 2
    before = contents("one")
    assert assignments.main([str(tmp_path / "one")]) == 2
    assert "is not empty; nothing was written" in capsys.readouterr().err and contents("one") == before


def test_the_page_for_instructors_shows_the_points_and_minutes():
    told = "its table of points is old; put there what this prints: python -m courseware classroom --table"
    assert assignments.table() in (authoring.ROOT / "docs/instructors.md").read_text(), told
