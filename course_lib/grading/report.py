"""The text that a learner sees. The same evidence makes the same text, on every machine."""

import functools
import textwrap
from pathlib import Path

import numpy as np

from course_lib.components import page

from . import prose
from .exercise import Evidence, Exercise, Property, Slip

WIDTH = 96


def code_of(value) -> str:
    """Python that makes this value, given `import numpy as np`."""
    if isinstance(value, np.ndarray):
        dtype = "" if value.dtype == np.float64 or not value.size else f", dtype=np.{value.dtype}"
        if not value.size:
            return f"np.zeros({value.shape}, dtype=np.{value.dtype})"
        return f"np.array({code_of(value.tolist())}{dtype})"
    if isinstance(value, np.floating):
        return f"np.{value.dtype}({code_of(float(value))})"
    if isinstance(value, float):
        return repr(value) if np.isfinite(value) else {"inf": "np.inf", "-inf": "-np.inf", "nan": "np.nan"}[str(value)]
    if isinstance(value, list):
        return f"[{', '.join(map(code_of, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(code_of, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def code_of_call(call: str, inputs: dict) -> str:
    """The inputs as assignments, then the call."""
    names = [name for name in ("Rows", "launched") if f"{name}(" in call]
    imports = [f"from course_lib.grading import {', '.join(names)}"] if names else []
    return "\n".join([*imports, *(f"{name} = {code_of(value)}" for name, value in inputs.items()), call])


def not_attempted_message(exercise: Exercise) -> str:
    return (
        f"{exercise.id}: not attempted yet ({_points(exercise)}, about {exercise.minutes} minutes, "
        f"{exercise.difficulty})"
    )


def passed_message(exercise: Exercise, held: dict, printed: str = "") -> str:
    lines = [f"{exercise.id}: passed, {exercise.points} of {_points(exercise)}"]
    lines += [f"  holds: {name}" for name in held]
    return "\n".join(lines + _printed(printed))


def failed_message(
    exercise: Exercise,
    held: dict,
    prop: Property,
    inputs: dict,
    evidence: Evidence,
    slip: Slip | None,
    printed: str = "",
) -> str:
    """The diagnosis first, then the property, the input that shows it, and the hint for this mistake."""
    lines = [f"{exercise.id}: not passed yet"]
    found = "\n".join(finding.text for finding in evidence.findings)
    if slip is not None:
        told = exercise.prose.slips[slip.name]
        lines += _labelled("diagnosis ", "\n".join([*textwrap.wrap(told.diagnosis, WIDTH - 10), found]))
        hint = told.hint or _general_hint(evidence)
    else:
        lines += _labelled("diagnosis ", found)
        hint = _general_hint(evidence)
    lines += [f"  does not hold: {prop.name}", "", "The smallest input found that shows it:"]
    lines += [textwrap.indent(code_of_call(prop.call, inputs), "    "), ""]
    if evidence.returned:
        lines += _labelled("returned  ", evidence.returned)
    if evidence.expected:
        lines += _labelled("expected  ", evidence.expected)
    if any(held.values()):
        lines += textwrap.wrap("; ".join(name for name, holds in held.items() if holds), WIDTH,
                               initial_indent="  holds: ", subsequent_indent="         ")  # fmt: skip
    if hint:
        lines += ["", *_wrapped(f"Hint: {hint}")]
    return "\n".join(lines + _printed(printed))


def _general_hint(evidence):
    return next((general_hints()[f.kind] for f in evidence.findings if f.kind in general_hints()), "")


@functools.cache
def general_hints() -> dict:
    """Kind of finding -> what can be said about it in any exercise."""
    return prose.read_sections(Path(__file__).with_name("general_hints.md"))


def hint_message(exercise: Exercise, level: int) -> str:
    hints = exercise.prose.hints
    return "\n".join(_wrapped(f"{exercise.id}, hint {level} of {len(hints)}: {hints[level - 1]}"))


def solution_message(exercise: Exercise, source: str) -> str:
    title, reasoning = exercise.prose.title, exercise.prose.reasoning
    return "\n".join([f"{exercise.id}: {title}", "", source.rstrip(), "", *_wrapped(reasoning)])


def _points(exercise):
    return f"{exercise.points} point{'s' if exercise.points > 1 else ''}"


def _labelled(label, text):
    """The label, then the text with its later lines under its first."""
    first, *rest = text.split("\n")
    return [label + first, *(" " * len(label) + line for line in rest)]


def _wrapped(text):
    """Paragraphs filled to WIDTH; lines that are indented stay as they are."""
    lines = []
    for line in text.split("\n"):
        lines += [line] if line.startswith("  ") or not line else textwrap.wrap(line, WIDTH)
    return lines


def _printed(printed):
    return ["", "Your answer printed:", textwrap.indent(printed, "    ")] if printed else []


def show(text: str, mood: str = "quiet") -> None:
    """Display text with a coloured edge."""
    page.show(text, page.boxed(f"<pre>{page.escape(text)}</pre>", mood))
