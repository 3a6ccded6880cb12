"""What a student handed in: the one reader of notebooks, for `--submissions`, `grade` and `autograde` alike."""

import ast
import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from courseware.checks import registry

STUB = "raise NotImplementedError"
MAX_BYTES = 20 << 20  # what is longer is cut off there, and no notebook
TIMESTAMP = "timestamp.txt"  # nbgrader's file, beside the notebook


class NotANotebook(Exception):
    """The file cannot be read as a notebook, and the message says why."""


@dataclass(frozen=True)
class Submission:
    """cells: nbgrader's id of an answer's cell -> source. remarks: what is unusual about the notebook, in words."""

    cells: dict[str, str]
    remarks: tuple[str, ...]

    @property
    def answers(self) -> dict[str, str]:
        """Of the functions that are more than a stub, their statements: what two students may have in common."""
        bodies = {name: _last_body(source) for name, source in self.cells.items()}
        return {name: "\n".join(body) for name, body in bodies.items() if body and body[-1] != STUB}


def answer_cell(exercise_id: str) -> str:
    """nbgrader's id of the cell that holds the answer; it allows letters, digits, "-" and "_"."""
    return exercise_id.replace(".", "_")


def read(path: Path) -> Submission:
    """The answers in a notebook. Raises NotANotebook."""
    if path.is_symlink():
        raise NotANotebook("a link")  # perhaps to what is not the student's
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES)
    except OSError as error:
        raise NotANotebook(error.strerror) from None
    encoding = json.detect_encoding(content)
    try:
        notebook = json.loads(content.decode(encoding, "replace"))
    except (ValueError, RecursionError):
        raise NotANotebook("not a Jupyter notebook") from None
    found, parts = notebook.get("cells") if isinstance(notebook, dict) else None, {}
    for cell in found if isinstance(found, list) else ():
        with contextlib.suppress(LookupError, TypeError, AttributeError):
            source = "".join(cell["source"]).encode("utf-8", "replace").decode()  # JSON can hold halves of a character
            about = cell["metadata"]
            name = about.get("nbgrader", {}).get("grade_id") or answer_cell(about["exercise"])
            parts.setdefault(name, []).append(source)
    remarks = [] if encoding.startswith("utf-8") else [f"in {encoding.upper()}"]
    several = {name: len(each) for name, each in parts.items() if len(each) > 1 and not str(name).endswith("_check")}
    remarks += [f"{count} cells of {name}, joined" for name, count in several.items()]
    return Submission({name: _joined(each) for name, each in parts.items()}, tuple(remarks))


def _joined(parts):
    """The source of an answer whose cell was split or copied: JupyterLab gives both parts the metadata."""
    parts = list(dict.fromkeys(parts))
    parts = [part for part in parts if _last_body(part)[-1:] != [STUB]] or parts[:1]
    whole = "\n".join(parts)
    # A copy that is no Python, such as a draft, must not spoil the answer.
    return whole if _last_body(whole) else next(filter(_last_body, reversed(parts)), whole)


def _last_body(source):
    """The statements of the last function that a source defines; none if it is no Python."""
    try:
        functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [ast.unparse(statement) for statement in functions[-1].body] if functions else []


def handed_in(folder: Path, lesson: str) -> tuple[Submission | None, str]:
    """What a student's folder for a lesson holds, and how to describe it. None: there is nothing to mark.

    A notebook with another name is taken for the lesson's if it is the only one with answers of the lesson.
    """
    if folder.is_symlink() or folder.parent.is_symlink():
        return None, "broken: a link"
    right = {answer_cell(exercise.id) for exercise in registry.of_lesson(lesson.split("_")[0])}
    files = sorted(path for path in folder.glob("*") if path.name != TIMESTAMP)
    files = [path for path in files if path.is_symlink() or path.is_file()]
    named, found = folder / f"{lesson}.ipynb", {}
    for path in [named] if named in files else files:
        try:
            submission = read(path)
            if not submission.cells.keys() & right:
                raise NotANotebook("no answer cell of the release is in it")
            found[path.name] = submission
        except NotANotebook as error:
            why = str(error)
    others = ", ".join(path.name for path in files if path != named)
    if len(found) != 1:
        renamed = f"renamed: no {named.name}, but {others}" if others else "missing"
        return None, f"broken: {why}" if named in files else renamed
    ((name, submission),) = found.items()
    remarks = [*submission.remarks, *(f"without a cell for {cell}" for cell in sorted(right - submission.cells.keys()))]
    remarks += [f"named {name}"] if name != named.name else [f"beside {others}"] if others else []
    return submission, "; ".join(["a notebook", *remarks])
