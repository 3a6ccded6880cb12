"""Writes all that a new exercise needs, as stubs: python -m tools.new_exercise LESSON NAME

What it writes is a small exercise that works, the mean of a vector, with FILL_IN wherever something of yours belongs.
It changes nothing that is there, but adds a name to the lesson's list, an entry to its right answers and three cells to
its notebook's text. A test lists what is still to be filled in.
"""

import argparse
import keyword
import re
import sys
from pathlib import Path

from courseware.checks import registry

ROOT = Path(__file__).resolve().parents[1]
MODULE = '''"""FILL_IN: what the exercise is about, in a line."""

import numpy as np
from hypothesis import strategies as st

from courseware.checks import Checks, Exercise, agrees, expected, raises_value_error


def NAME(x):
    """FILL_IN: what comes back, in one sentence.

    x: float64 [n], n at least 1.
    Returns a float. Raises ValueError if x is empty.

    >>> NAME(np.array([1.0, 3.0, 8.0]))
    4.0
    """
    if len(x) == 0:
        raise ValueError("x is empty")
    return float(x.sum() / len(x))


# What is right, stated independently of the answer. The error budget is relative to the result; where that may be 0,
# give the size of what is added up as `terms` (see checks.diagnosis.expected).
def mean(x):
    return expected("the mean", np.mean, x)


def vector(n, shift=0.0, seed=0):
    return {"x": np.random.default_rng(seed).standard_normal(n) + shift}


check = Checks(NAME, agrees(mean), vector)

# A property is what holds for every right answer, as the learner reads it, and inputs that show where it does not:
# tuples of what `vector` takes, and a Hypothesis strategy to draw more. The first that fails is reported, so the
# simplest stands first.
check("a mean of a few numbers", [(4,), (1,), st.tuples(st.integers(1, 9))])
check("a mean of numbers that all lie on one side", [(5, 10.0), (7, -3.0)])
check("an empty x raises ValueError", [(0,)], calls=raises_value_error)

EXERCISE = Exercise(__file__, NAME, check, points=1, minutes=5, difficulty="easy")
'''

PROSE = """# FILL_IN: the title

## Hint 1

FILL_IN: a question.

## Hint 2

FILL_IN: a nudge.

## Hint 3

FILL_IN: an outline. Whoever follows it to the letter passes.

## Reasoning

FILL_IN: why the answer is as it is.

## Misconceptions

### a mean of a few numbers

#### FILL_IN: the sum is not divided

    x.sum() / len(x) => x.sum()

The sum is not divided by the number of numbers.

FILL_IN, or nothing: a hint for this mistake.
"""

RIGHT_ANSWERS = """    "NAME": {
        "FILL_IN: what is different": {"x.sum() / len(x)": "np.mean(x)"},
    },
"""

CELLS = """### Exercise ID

**5 minutes, easy.** FILL_IN: the task, in a sentence or two.

```{code-cell}
:exercise: ID
:tags: [exercise]

STUB
```

```{code-cell}
:tags: [check]

from courseware import check

check("ID", NAME)
```

"""

AFTERWARDS = """\
Written: {written}
Fill in what is marked FILL_IN, and write wrong answers: what is said of each has to be true of it, and name its line or
the idea. Those of which it is not are misconceptions, ten at most. Then, in this order:
    the docstring, in the stub, too               notebooks/source/{notebook}.md: a test compares the two
    the minutes of the lesson                     in the header there, "About ... minutes", and in the README's table
    python -m tools.authoring build {notebook}
    python -m courseware classroom --table        put it into docs/instructors.md
    python -m tools.ablation {id:<21}        which misconceptions are not needed, since their line is found
    python -m tools.mutants {id:<22}        which small changes of the answer its check accepts: close the hole, or
                                                  list what is no mistake in equivalent_mutants.toml, beside the
                                                  tests; the counts go into courseware/data/mutants.json
    python -m pytest -q tests/courseware/exercises tests/notebooks -k "{name} or {number}"
(each python is .venv/bin/python)
"""


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
    exercise_id, module = f"{number}.{name}", MODULE.replace("NAME", name)
    stub = re.search(r'^def .*?\n    """.*?"""\n', module, re.MULTILINE | re.DOTALL)[0]
    cells = CELLS.replace("STUB", f"{stub}    raise NotImplementedError")
    cells = cells.replace("NAME", name).replace("ID", exercise_id)
    answers = root / f"tests/courseware/exercises/right_answers/lesson_{number}.py"
    changes = {
        folder / f"{name}.py": module,
        folder / f"{name}.md": PROSE.replace("MISCONCEPTIONS", "Misconceptions"),
        folder / "lesson.toml": _with(folder / "lesson.toml", r"(?<=\S)(?=\]\s*\Z)", f', "{name}"'),
        answers: _with(answers, r"(?<=^RIGHT_ANSWERS = \{\n)", RIGHT_ANSWERS.replace("NAME", name)),
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
    print(AFTERWARDS.format(written=paths, notebook=notebook, **names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
