"""The text that a learner sees. The same evidence makes the same text, on every machine."""

import ast
import functools
import inspect
import itertools
import re
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from courseware.widgets import page

from . import prose, registry
from .calling import as_drawn
from .exercise import Evidence, Exercise, Property

WIDTH = 96
MARKS = {"passed": "passed", "attempted": "tried, not passed yet", None: "not attempted yet"}
LINES = 12  # of what is said of a wrong answer, as text


def code_of(value) -> str:
    """Python that makes this value, given `import numpy as np`."""
    if isinstance(value, np.ndarray):
        dtype = "" if value.dtype in (np.float64, bool) else f", dtype=np.{value.dtype}"
        if not value.size or (value.size > 4 and value.dtype.kind == "f" and not value.any()):
            return f"np.zeros({value.shape}{dtype})"
        digits = re.sub(r"\.0(?=[,\]])", ".", code_of(value.tolist()))
        return f"np.array({digits}{dtype})"
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
    """Python that makes the call on these inputs and leaves no name behind that a notebook may use itself.

    The call with the inputs in their places if that takes few lines, otherwise a function and its call.
    """
    lines = call.rstrip().split("\n")
    begin = ast.parse(call).body[-1].lineno - 1  # the last statement may take several lines
    statements, last = lines[:begin], "\n".join(lines[begin:])
    codes = {name: code_of(value) for name, value in inputs.items()}
    used = [name for name in ("Rows", "launched", "run_cuda") if f"{name}(" in call]
    if not statements and not used and (tree := ast.parse(call, mode="eval").body) and isinstance(tree, ast.Call):
        known = {f"len({name})": str(len(value)) for name, value in inputs.items() if hasattr(value, "__len__")} | codes
        name = re.compile(rf"\b({'|'.join(map(re.escape, known))})(?!\w|\s*=)")
        filled = [name.sub(lambda found: known[found[1]], ast.unparse(argument)) for argument in tree.args]
        lines = [f"{ast.unparse(tree.func)}("]
        for place, code in enumerate(filled):
            code += ", " if place < len(filled) - 1 else ")"
            if len(lines[-1]) + len(code.rstrip()) <= WIDTH - 4 or place == 0:
                lines[-1] += code
            else:
                lines += [f"    {code}"]
        if len(lines) <= 6:
            return "\n".join(line.rstrip() for line in lines)
    imports = [f"from courseware.checks import {', '.join(used)}"] if used else []
    groups = []  # of names that a line has room for, numbers first
    for name in sorted(codes, key=lambda name: not isinstance(inputs[name], int)):
        alike = groups and isinstance(inputs[groups[-1][0]], int) == isinstance(inputs[name], int)
        if alike and sum(len(each) + len(codes[each]) + 4 for each in [*groups[-1], name]) <= WIDTH - 4:
            groups[-1].append(name)
        else:
            groups.append([name])
    lines = [f"{', '.join(names)} = {', '.join(map(codes.get, names))}" for names in groups]
    made = re.search(r"^(.*) = Machine\(", call, re.MULTILINE)
    ends = [last, f"return {made[1]}"] if made else [f"return {last}"]
    body = "\n".join([*imports, *lines, *statements, *ends])
    return f"def failing_call():\n{textwrap.indent(body, '    ')}\n\nfailing_call()"


class Message(NamedTuple):
    """What is shown of an answer: the same words as text and as HTML."""

    text: str
    page: str


def not_attempted_message(exercise: Exercise) -> Message:
    what = f"{_points(exercise)}, about {exercise.minutes} minutes, {exercise.difficulty}"
    title = f"{exercise.id}: not attempted yet"
    return Message(f"{title} ({what})", _card("quiet", title, f" ({what})"))


def passed_message(exercise: Exercise, held: dict, borrowed: list[str], printed: str = "") -> Message:
    """borrowed: names of what the answer uses from outside its cell."""
    title = f"{exercise.id}: passed, {exercise.points} of {_points(exercise)}"
    note = f"It uses {' and '.join(borrowed)}, from outside its own cell: in class it would fail." if borrowed else ""
    text = "\n".join([title, *(f"  holds: {name}" for name in held), *filter(None, _wrapped(note)), *_printed(printed)])
    return Message(text, _card("passed", title, "", _holding(held), _paragraph(note), _printed_page(printed)))


def failed_message(
    exercise: Exercise,
    held: dict,
    prop: Property,
    inputs: dict,
    evidence: Evidence,
    misconception: prose.Misconception | None,
    printed: str = "",
) -> Message:
    """The diagnosis first, then the property, the input that shows it, and the hint for this mistake.

    The text has LINES lines at most, for which its call and its values may be cut. The page has them whole.
    """
    diagnosis, hint = (misconception.diagnosis, misconception.hint) if misconception else ("", "")
    hint = hint or _general_hint(evidence.findings)
    title, code = f"{exercise.id}: not passed yet", code_of_call(as_drawn(prop.call), inputs)
    texts = [(_wrapped(each.text, WIDTH - 10) if each.kind == "fact" else [each.text]) for each in evidence.findings]
    found = ["\n".join(lines) for lines in texts]
    shown = {"returned  ": evidence.returned, "expected  ": evidence.expected}
    values = [_labelled(label, value) for label, value in shown.items() if value]
    words = "\n".join([*textwrap.wrap(diagnosis, WIDTH - 10), *found])
    lines = [title, *_labelled("diagnosis ", words), f"  fails the test: {prop.name}. The smallest input found:"]
    hinted = _wrapped(f"Hint: {hint}") if hint else []
    room = LINES - len(lines) - len(hinted)
    most = max(1, (room - 1) // 3)
    call = _cut(_inputs_of(code), max(most, room - sum(min(len(each), most) for each in values)))
    lines += [f"    {line}" for line in call]
    lines += [line for each in values for line in _cut(each, max(1, (room - len(call)) // len(values)))] + hinted

    content = [
        _paragraph("\n".join(filter(None, [diagnosis, *found]))),
        _paragraph(prop.name, "Fails the test:"),
        _paragraph("The smallest input found:"),
        _pre(code) if code.count("\n") < 5 else _folded(page.escape(call[0]), _pre(code)),
        _pre("\n".join(itertools.chain(*values))),
        _paragraph(hint, "Hint:"),
        _holding([name for name, holds in held.items() if holds]),
        _printed_page(printed),
    ]
    return Message("\n".join(lines + _printed(printed)), _card("failed", title, "", *content))


def _inputs_of(code):
    """The lines of a call, or of the function that makes it, but for those that only prepare it."""
    lines = textwrap.dedent(code.removeprefix("def failing_call():\n").removesuffix("\n\nfailing_call()")).split("\n")
    lines = itertools.takewhile(lambda line: not line.startswith("return "), lines)  # the call may take several lines
    return [line for line in lines if not line.startswith("from ")]


def _cut(lines, most):
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1]} ..."]


def _card(css_class, title, *content):
    return page.boxed(f"<p><b>{page.escape(title)}</b>{''.join(content)}", css_class)


def _paragraph(text, label=""):
    if not text:
        return ""
    head, lines = f"<b>{label}</b> " if label else "", page.escape(text).replace("\n", "<br>")
    return f"<p>{head}{lines}</p>"


def _pre(text):
    return f"<pre>{page.escape(text)}</pre>" if text else ""


def _folded(summary, content):
    return f"<details><summary>{summary}</summary>{content}</details>"


def _holding(names):
    return f"<p>Holds:</p><ul>{''.join(f'<li>{page.escape(name)}</li>' for name in names)}</ul>" if names else ""


def _printed_page(printed):
    return _paragraph("Your answer printed:") + _pre(printed) if printed else ""


def _general_hint(findings):
    """For what an exception says, if it is one that is known, or for the kind of a finding."""
    if any(finding.kind == "fact" and finding.text.startswith("line ") for finding in findings):
        findings = [finding for finding in findings if finding.kind != "precision"]  # the line says it
    for finding in findings:
        of_text = finding.kind in ("exception", "compile error", "compiler")
        words = [words for words in general_hints() if of_text and " " in words and words in finding.text]
        if finding.kind == "exception" and re.search(r":\s+raise\b", finding.text):
            words = ["own raise"]
        if found := general_hints().get(words[0] if words else finding.kind):
            return found
    return ""


@functools.cache
def general_hints() -> dict:
    """Kind of finding, or words of an exception -> what can be said about it in any exercise."""
    return prose.read_sections(Path(__file__).with_name("general_hints.md"))


def hint_message(exercise: Exercise, *levels: int) -> str:
    hints = exercise.prose.hints
    said = (f"{exercise.id}, hint {level} of {len(hints)}: {hints[level - 1]}" for level in levels)
    return "\n".join(_wrapped("\n\n".join(said)))


def solution_message(exercise: Exercise) -> str:
    title, reasoning, source = exercise.prose.title, exercise.prose.reasoning, inspect.getsource(exercise.answer)
    return "\n".join([f"{exercise.id}: {title}", "", source.rstrip(), "", *_wrapped(reasoning)])


def overview(states: dict[str, str]) -> tuple[str, str]:
    """As text and as HTML, in which the exercises of each lesson are folded. states: exercise id -> state."""
    lines, folds, passed, points, possible = [], [], 0, 0, 0
    width = max(len(f"{number} {lesson['title']}") for number, lesson in registry.lessons().items())
    for number, lesson in registry.lessons().items():
        exercises = registry.of_lesson(number)
        done = [exercise for exercise in exercises if states.get(exercise.id) == "passed"]
        passed += len(done)
        points += sum(exercise.points for exercise in done)
        possible += sum(exercise.points for exercise in exercises)
        title = f"{number} {lesson['title']}"
        full, empty = "█" * len(done), "░" * (len(exercises) - len(done))
        count = f"{len(done)} of {len(exercises)}"
        lines += [f"{title:<{width}} {count}  {full}{empty}"]
        lines += [f"     {e.id:<28} {MARKS[states.get(e.id)]}" for e in exercises]
        items = "".join(f"<li><code>{e.id}</code> {MARKS[states.get(e.id)]}</li>" for e in exercises)
        columns = "".join(
            f"<span class='course-name' style='min-width:{em}em'>{page.escape(text)}</span>"
            for text, em in ((title, 22), (count, 5))
        )
        head = f"{columns}<span class='course-done'>{full}</span>{empty}"
        folds.append(_folded(head, f"<ul>{items}</ul>"))
    total = f"{passed} of {len(registry.exercises())} exercises, {points} of {possible} points"
    return "\n".join([*lines, total]), page.boxed(f"{''.join(folds)}<p><b>{total}</b></p>")


def _points(exercise):
    return f"{exercise.points} point{'s' if exercise.points > 1 else ''}"


def _labelled(label, text):
    """The label, then the text with its later lines under its first."""
    first, *rest = text.split("\n")
    return [label + first, *(" " * len(label) + line for line in rest)]


def _wrapped(text, width=WIDTH):
    """Paragraphs filled to a width; lines that are indented stay as they are, and lines of code are cut."""
    lines = []
    for line in text.split("\n"):
        most = 1 if re.match(r"line \d+:  ", line) else None
        lines += [line] if line.startswith("  ") or not line else textwrap.wrap(line, width, max_lines=most)
    return lines


def _printed(printed):
    return ["", "Your answer printed:", textwrap.indent(printed, "    ")] if printed else []


def show(text: str, css_class: str = "quiet") -> None:
    """Display text with a coloured edge."""
    page.show(text, boxed(text, css_class))


def boxed(text: str, css_class: str = "quiet") -> str:
    return page.boxed(_pre(text), css_class)
