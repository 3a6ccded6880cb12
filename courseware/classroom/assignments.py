"""`python -m courseware classroom DIR`: a ready nbgrader course of all lessons that have exercises.

Works in a clone only: the notebooks are not part of the installed package.
"""

import argparse
import ast
import inspect
import json
import re
import secrets
import shutil
import sys
from collections import defaultdict
from pathlib import Path

from courseware.checks import registry

from .submission import STUB, answer_cell, handed_in

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
RULES = Path(__file__).with_name("class_rules.md").read_text(encoding="utf-8").rstrip()

# What each course gets as its nbgrader_config.py; {STUB} stands in it for the stub.
CONFIG = Path(__file__).with_name("nbgrader_config.py.txt")


class NotACourse(Exception):
    """The folder is taken, or a notebook is not as a lesson has to be."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m courseware classroom",
        description="Write an nbgrader course of all lessons: DIR/nbgrader_config.py and DIR/source/. "
        "docs/instructors.md says how to hand out, collect and grade. The exit status is 2 if DIR is not empty.",
    )
    parser.add_argument("dir", nargs="?", type=Path, help="a folder that does not exist yet, or an empty one")
    parser.add_argument("--submissions", metavar="LESSON", help="only say what each student handed in for a lesson")
    parser.add_argument("--table", action="store_true", help="only print docs/instructors.md's table; needs no DIR")
    arguments = parser.parse_args(argv)
    if arguments.table:
        print(table())
        return 0
    if arguments.dir is None:
        parser.error("DIR is missing")
    if arguments.submissions:
        for student, found in submissions(arguments.dir, arguments.submissions):
            print(f"{student:<24} {found}")
        return 0
    try:
        write_course(arguments.dir)
    except NotACourse as error:
        print(error, file=sys.stderr)
        return 2
    names = [lesson["name"] for lesson in lessons()]
    print(f"{arguments.dir}: {', '.join(names)}\nNext, there: nbgrader generate_assignment {names[0]}")
    return 0


def lessons() -> list[dict]:
    """Name, points, minutes and exercises of each lesson that has a notebook and exercises."""
    found = []
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        number = path.stem.split("_")[0]
        if number in registry.lessons():
            of_lesson = registry.of_lesson(number)
            exercises = [{"id": e.id, "points": e.points, "minutes": e.minutes} for e in of_lesson]
            totals = {key: sum(exercise[key] for exercise in exercises) for key in ("points", "minutes")}
            found.append({"name": path.stem, **totals, "exercises": exercises})
    return found


def table() -> str:
    """The points and minutes of each lesson and exercise, as docs/instructors.md shows them."""
    lines = ["| lesson | points | minutes for the exercises | points by exercise |", "|---|---|---|---|"]
    for lesson in lessons():
        each = ", ".join(f"`{exercise['id'].split('.')[1]}` {exercise['points']}" for exercise in lesson["exercises"])
        lines.append(f"| {lesson['name']} | {lesson['points']} | {lesson['minutes']} | {each} |")
    points, minutes = (sum(lesson[key] for lesson in lessons()) for key in ("points", "minutes"))
    return "\n".join([*lines, f"| all | {points} | {minutes} | |"])


def write_course(folder: Path, seed: int | None = None) -> None:
    """Write the course into `folder`. Raises NotACourse if something is there: it may hold students' work.

    seed: of the inputs that hidden tests draw. None makes one that nobody outside the folder can foresee.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NotACourse(f"{folder} is not empty; nothing was written. Name a new folder, or move the old one away")
    seed = secrets.randbits(64) if seed is None else seed
    names = {lesson["name"] for lesson in lessons()}
    for name in sorted(names):
        notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
        linked_files = _convert(notebook, seed, names)
        target_dir = folder / "source" / name
        target_dir.mkdir(parents=True)
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        (target_dir / f"{name}.ipynb").write_text(text, encoding="utf-8")
        for target in linked_files:
            (target_dir / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(NOTEBOOKS / target, target_dir / target)
    config = CONFIG.read_text(encoding="utf-8").replace("{STUB}", STUB)
    (folder / "nbgrader_config.py").write_text(config, encoding="utf-8")


def submissions(course: Path, lesson: str) -> list[tuple[str, str]]:
    """What each student, in submitted/ or in the roster, handed in for a lesson: "a notebook", or what is wrong."""
    students = {path.name for path in (course / "submitted").glob("*") if path.is_dir()}
    if (course / "gradebook.db").exists():
        from nbgrader.api import Gradebook

        with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
            students |= {student.id for student in gradebook.students}
    found = {each: handed_in(course / "submitted" / each / lesson, lesson) for each in sorted(students)}
    alike = defaultdict(list)
    for student, (submission, _) in found.items():
        for name, source in submission.answers.items() if submission else ():
            alike[name, source].append(student)
    said = {student: said for student, (_, said) in found.items()}
    for (name, _), equal in alike.items():
        for student in equal if len(equal) > 1 else ():
            said[student] += f"; {name} as {', '.join(other for other in equal if other != student)}"
    return list(said.items())


def check_cell(exercise_id: str) -> str:
    """nbgrader's id of the locked cell that carries the points."""
    return answer_cell(exercise_id) + "_check"


def _convert(notebook: dict, seed: int, names: set[str]) -> set[str]:
    """Make a lesson, in place, the source of an assignment. Returns the files that its text links to."""
    linked_files = set()

    def relocated(link):
        target = link[1].split("#")[0]
        if target.removesuffix(".ipynb") in names:
            return f"](../{target.removesuffix('.ipynb')}/{link[1]})"
        if (NOTEBOOKS / target).is_file():
            linked_files.add(target)
        return link[0]

    rules = {"cell_type": "markdown", "id": "class-rules", "metadata": {}, "source": RULES.splitlines(keepends=True)}
    exercise = None
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            # The badge opens the lesson as it is for self-study, and an answer written there could not be collected.
            source = re.sub(r"^\[!\[Open in Colab\]\([^)]*\)\]\([^)]*\) ", "", source, flags=re.MULTILINE)
            source = re.sub(r"\]\(([^():\s]+)\)", relocated, source)
        else:
            cell.update(outputs=[], execution_count=None)
        if exercise_id := cell["metadata"].get("exercise"):
            exercise = registry.find(exercise_id)
            source = _with_answer(source, exercise)
            _describe(cell, answer_cell(exercise_id), solution=True)
        elif "check" in cell["metadata"].get("tags", []):
            source = _with_hidden_test(source, exercise, seed)
            _describe(cell, check_cell(exercise.id), points=exercise.points)
        cell["source"] = source.splitlines(keepends=True)
    notebook["cells"].insert(1, rules)
    return linked_files


def _describe(cell, grade_id, solution=False, points=None):
    described = {"schema_version": 3, "grade_id": grade_id, "solution": solution, "task": False}
    described |= {"grade": points is not None, "locked": not solution}
    cell["metadata"]["nbgrader"] = described if points is None else described | {"points": points}


def _with_answer(stub, exercise):
    """The stub's cell with the answer's body between nbgrader's marks, so that a release restores the stub."""
    head, indent, after = stub.rstrip().rpartition(f"    {STUB}")
    if not indent or after:
        raise NotACourse(f"{exercise.id}: the stub's cell does not end with {STUB}")
    answer = inspect.getsource(exercise.answer)
    function = ast.parse(answer).body[0]
    # From the line after the docstring, so that comments come along.
    body = answer.splitlines()[function.body[0].end_lineno :]
    return head + "\n".join(["    ### BEGIN SOLUTION", *body, "    ### END SOLUTION"])


def _with_hidden_test(check, exercise, seed):
    # `nbgrader validate` counts a cell that raises.
    strict = check.rstrip().removesuffix(")") + ", strict=True)"
    return f"""{strict}
### BEGIN HIDDEN TESTS
from courseware.checks import grade
from courseware.classroom.marking import drawn_anew

result = grade("{exercise.id}", {exercise.answer.__name__}, seed=drawn_anew({seed}))
assert result.passed, result.message
### END HIDDEN TESTS"""
