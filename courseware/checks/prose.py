"""Reads what exercises and quizzes say from Markdown: a heading names a piece, the text below it is the piece.

An exercise's file has its title as `#`, then `## Hint 1` to `## Hint 3`, `## Reasoning` and `## Misconceptions`; below
the last, a `###` for each property that catches misconceptions, and a `####` for each of these: an indented paragraph
for each variant of the mistake, a paragraph that says what is wrong, and further ones for the hint. The heading of one
that explains an idea begins with "Idea: ". A variant is a list of edits of the right answer's syntax tree, one a line,
`old => new`; lines that are indented deeper go on with the new text. A quiz has a `##` for each question and a list of
options, `- [x]` before the right one, each with its feedback indented below.
"""

import builtins
import dis
import itertools
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from courseware.editing import with_nodes_replaced


class BadProse(ValueError):
    """The message names the file, and what is missing or does not belong."""


class StaleMisconception(ValueError):
    """The message names the misconception, and what of it no longer fits the right answer."""


@dataclass(frozen=True)
class Misconception:
    """A plausible mistake, stated once: a wrong answer for the suite, a diagnosis for the learner.

    prop: name of the property that must be the first to catch it. variants: the mistake in code, each as edits for
    `with_nodes_replaced` of the right answer; several variants of one misconception need not be told apart.
    """

    name: str
    prop: str
    variants: tuple[tuple[tuple[str, str], ...], ...]
    diagnosis: str
    hint: str  # empty if the diagnosis says enough
    is_idea: bool = False  # whether it explains an idea of a lesson, and stays even if a message names its line

    def answer(self, answer: Callable, variant: int) -> Callable:
        """The wrong answer that one of the variants makes of the right one. Raises StaleMisconception."""
        try:
            wrong = with_nodes_replaced(answer, self.variants[variant], self.name)
            wrong = getattr(wrong, "fn", wrong)
            unknown = _globals_of(wrong.__code__) - wrong.__globals__.keys() - vars(builtins).keys()
        except Exception as error:  # running the source may raise anything
            why = str(error).removeprefix(f"{self.name}: ")
            raise StaleMisconception(f"the misconception {self.name!r} is stale: {why}") from error
        # A variable that has another name now: this would fail with a NameError, which is not what it describes.
        if unknown:
            names = ", ".join(sorted(unknown))
            raise StaleMisconception(f"the misconception {self.name!r} is stale: nothing defines {names}")
        return wrong


def _globals_of(code):
    """The global names that a function's code reads, and those of the functions inside."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    return names.union(*(_globals_of(const) for const in code.co_consts if hasattr(const, "co_consts")))


@dataclass(frozen=True)
class Prose:
    title: str
    hints: tuple[str, str, str]  # a question, a nudge, an outline
    reasoning: str
    misconceptions: tuple[Misconception, ...]


def read(path: Path) -> Prose:
    """The prose of an exercise. Raises BadProse."""
    text = path.read_text(encoding="utf-8")
    match = re.match(r"# (.+)\n", text)
    if not match:
        raise BadProse(f"{path.name} does not begin with a title")
    pieces = _pieces(path, text[match.end() :], "##")
    wanted = ["Hint 1", "Hint 2", "Hint 3", "Reasoning", "Misconceptions"]
    if list(pieces) != wanted:
        raise BadProse(f"{path.name} has the headings {', '.join(pieces)}; it needs {', '.join(wanted)}")
    misconceptions = tuple(
        _misconception(path, name, prop, body)
        for prop, caught in _pieces(path, pieces["Misconceptions"], "###").items()
        for name, body in _pieces(path, caught, "####").items()
    )
    hints = tuple("\n\n".join(_paragraphs(pieces[name])) for name in wanted[:3])
    return Prose(match[1].strip(), hints, "\n\n".join(_paragraphs(pieces["Reasoning"])), misconceptions)


def _misconception(path, name, prop, body):
    paragraphs = _paragraphs(body)
    code = list(itertools.takewhile(lambda paragraph: paragraph.startswith("    "), paragraphs))
    said = paragraphs[len(code) :]
    if not code or not said:
        raise BadProse(f"{path.name}: the misconception {name!r} needs an edit and what is wrong")
    variants = tuple(tuple(_edits(path, name, textwrap.dedent(variant))) for variant in code)
    title = name.removeprefix("Idea: ")
    return Misconception(title, prop, variants, said[0], "\n\n".join(said[1:]), is_idea=title != name)


def _edits(path, name, text):
    """(old, new) of each edit of a variant."""
    for edit in re.split(r"\n(?! )", text):
        old, arrow, new = re.split(r"( =>(?= |\n|$))", edit, maxsplit=1) if " =>" in edit else (edit, "", "")
        if not arrow:
            raise BadProse(f"{path.name}: the misconception {name!r} has {old!r}, which is no edit `old => new`")
        yield old.strip(), textwrap.dedent(new.removeprefix("\n")).strip()


def read_sections(path: Path) -> dict[str, str]:
    """{heading: text} of a file of `##` sections. Raises BadProse."""
    return {name: "\n\n".join(_paragraphs(body)) for name, body in _pieces(path, path.read_text("utf-8"), "##").items()}


def read_quiz(path: Path) -> list[dict]:
    """The questions: {"question", "answers": [{"answer", "correct", "feedback"}]}. Raises BadProse."""
    questions = []
    for question, body in _pieces(path, path.read_text(encoding="utf-8"), "##").items():
        before, *options = re.split(r"^- \[([ x])\] ", body, flags=re.MULTILINE)
        if before.strip() or not options:
            raise BadProse(f"{path.name}: {question!r} needs options, each after '- [x]' or '- [ ]', and nothing else")
        answers = []
        for mark, option in zip(options[::2], options[1::2], strict=True):
            answer, _, feedback = option.partition("\n")
            said = " ".join(_paragraphs(feedback))
            if not said:
                raise BadProse(f"{path.name}: the option {answer!r} has no feedback below it")
            answers.append({"answer": answer.strip(), "correct": mark == "x", "feedback": said})
        questions.append({"question": question, "answers": answers})
    return questions


def _pieces(path, text, level):
    """{heading: text below it} for the headings of one level. Whatever stands before the first is refused."""
    before, *found = re.split(rf"^{level} (.+)\n", text, flags=re.MULTILINE)
    if before.strip():
        raise BadProse(f"{path.name}: {before.strip().splitlines()[0]!r} stands before the first {level!r} heading")
    names = [name.strip() for name in found[::2]]
    if len(set(names)) < len(names):
        raise BadProse(f"{path.name} has a heading twice: {', '.join(n for n in names if names.count(n) > 1)}")
    pieces = dict(zip(names, found[1::2], strict=True))
    empty = [name for name, body in pieces.items() if not body.strip() and name != "Misconceptions"]
    if empty:
        raise BadProse(f"{path.name} has no text below {', '.join(empty)}")
    return pieces


def _paragraphs(text):
    """Paragraphs on one line each; one that is indented, code, keeps its lines."""
    paragraphs = re.split(r"\n\s*\n", text.strip("\n"))
    return [p.rstrip() if p.startswith("    ") else " ".join(p.split()) for p in paragraphs if p.strip()]
