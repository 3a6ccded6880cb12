"""The text that a learner sees. The same evidence makes the same text, on every machine."""

import html
import textwrap

import numpy as np

from .exercise import Evidence, Exercise, Property

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
    mistake: str | None,
    printed: str = "",
) -> str:
    lines = [f"{exercise.id}: not passed yet"]
    lines += [f"  holds: {name}" for name, holds in held.items() if holds]
    lines += [f"  does not hold: {prop.name}", "", "The smallest input found that shows it:"]
    lines += [textwrap.indent(code_of_call(prop.call, inputs), "    "), ""]
    if evidence.returned:
        lines += _labelled("returned  ", evidence.returned)
    if evidence.expected:
        lines += _labelled("expected  ", evidence.expected)
    lines += _labelled("diagnosis ", "\n".join(finding.text for finding in evidence.findings))
    if mistake is not None:
        lines += ["", *_wrapped("Hint: " + exercise.mistakes[mistake])]
    return "\n".join(lines + _printed(printed))


def hint_message(exercise: Exercise, level: int) -> str:
    return "\n".join(_wrapped(f"{exercise.id}, hint {level} of {len(exercise.hints)}: {exercise.hints[level - 1]}"))


def solution_message(exercise: Exercise, source: str) -> str:
    return "\n".join([f"{exercise.id}: {exercise.title}", "", source.rstrip(), "", *_wrapped(exercise.reasoning)])


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


COLOURS = {"passed": "#1b9e77", "failed": "#d95f02", "quiet": "#888888"}  # legible on light and dark alike


def show(text: str, mood: str = "quiet") -> None:
    """Display text in a notebook, with a coloured edge where HTML is understood; print it elsewhere."""
    try:
        from IPython import get_ipython
    except ImportError:
        get_ipython = None
    if get_ipython is None or get_ipython() is None:
        print(text)
        return
    from IPython.display import display

    page = (
        f'<pre style="border-left: 4px solid {COLOURS[mood]}; padding-left: 0.8em; white-space: pre-wrap">'
        f"{html.escape(text)}</pre>"
    )
    display({"text/plain": text, "text/html": page}, raw=True)
