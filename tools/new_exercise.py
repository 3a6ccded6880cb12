"""Writes all that a new exercise needs, as stubs: python -m tools.new_exercise LESSON NAME

What it writes stands in new_exercise.toml: a small exercise that works, the mean of a vector, with FILL_IN wherever
something of yours belongs. It changes nothing that is there, but adds a name to the lesson's list, an entry to its
right answers and three cells to its notebook's text. A test lists what is still to be filled in.
"""

import argparse
import keyword
import re
import sys
import tomllib
from pathlib import Path

from courseware.checks import registry

ROOT = Path(__file__).resolve().parents[1]
TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


class Refused(Exception):
    """The message says what is in the way. Nothing was written."""


def write(number: str, name: str, root: Path = ROOT) -> list[Path]:
    """Write the stubs of an exercise and return the files that are new or changed. Raises Refused."""
    folder = root / f"courseware/exercises/lesson_{number}"
    if not (folder / "lesson.toml").exists():
        raise Refused(f"there is no lesson {number!r} with exercises; there are {', '.join(registry.lessons())}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise Refused(f"{name!r} cannot name an exercise: it is a function's name, in lower case, such as merge_states")
    if (folder / f"{name}.py").exists():
        raise Refused(f"there is an exercise {number}.{name} already: {(folder / name).relative_to(root)}.py")
    (text,) = (root / "notebooks/source").glob(f"{number}_*.md")
    exercise_id, module = f"{number}.{name}", TEXTS["module"].replace("NAME", name)
    stub = re.search(r'^def .*?\n    """.*?"""\n', module, re.MULTILINE | re.DOTALL)[0]
    cells = TEXTS["cells"].replace("STUB", f"{stub}    raise NotImplementedError")
    cells = cells.replace("NAME", name).replace("ID", exercise_id)
    answers = root / f"tests/courseware/exercises/right_answers/lesson_{number}.py"
    changes = {
        folder / f"{name}.py": module,
        folder / f"{name}.md": TEXTS["prose"],
        folder / "lesson.toml": _with(folder / "lesson.toml", r"(?<=\S)(?=\]\s*\Z)", f', "{name}"'),
        answers: _with(answers, r"(?<=^RIGHT_ANSWERS = \{\n)", TEXTS["right_answers"].replace("NAME", name)),
        text: _with(text, r"(?=^## What was established)", cells),
    }
    for path, content in changes.items():
        path.write_text(content, encoding="utf-8")
    return list(changes)


def _with(path, place, addition):
    """The file's text with something inserted at the one place that a pattern finds."""
    before, *after = re.split(place, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if len(after) != 1:
        raise Refused(f"{path} has {len(after)} places for the new exercise, where one is expected: {place}")
    return before + addition + after[0]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tools.new_exercise", description=__doc__.splitlines()[0])
    parser.add_argument("lesson", help="its number, such as 05")
    parser.add_argument("name", help="of the function that a learner writes, such as merge_states")
    arguments = parser.parse_args(argv)
    try:
        written = write(arguments.lesson, arguments.name)
    except Refused as error:
        print(f"Nothing was written: {error}.", file=sys.stderr)
        return 2
    names = {"number": arguments.lesson, "name": arguments.name, "id": f"{arguments.lesson}.{arguments.name}"}
    notebook = next(path.stem for path in written if path.parent.name == "source")
    paths = ", ".join(str(path.relative_to(ROOT)) for path in written)
    print(TEXTS["afterwards"].format(written=paths, notebook=notebook, **names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
