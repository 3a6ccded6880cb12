"""What an exercise is made of. `courseware/exercises/` fills these in; nothing here knows a lesson."""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from . import prose
from .prose import Misconception


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with what an answer did."""

    part: str  # which output ("l"); empty when it is not about one of them
    kind: str  # "nan", "shape", "factor", "exception", ...
    text: str  # what the learner reads


@dataclass(frozen=True)
class Evidence:
    """Why a property does not hold for one input."""

    findings: tuple[Finding, ...]
    returned: str = ""
    expected: str = ""

    def with_account(self, text: str) -> "Evidence":
        """With one more thing to say of how the result comes about, if there is any."""
        return replace(self, findings=(*self.findings, Finding("", "account", text))) if text else self

    @property
    def timed_out(self) -> bool:
        """If so, no other inputs are tried: each try would take the whole limit."""
        return self.findings[0].kind == "timeout"

    @property
    def signature(self) -> tuple:
        """The wrong outputs and the kind of what is wrong with each: what shrinking an input must not change.

        Of an exception it is also what it says, but for the numbers in it, unless the answer raises it itself.
        """
        return tuple((finding.part, finding.kind, _said(finding)) for finding in self.findings)


def _said(finding):
    is_own = finding.kind != "exception" or re.search(r":\s+raise\b", finding.text)
    return "" if is_own else re.sub(r"-?(\d[\d.,]*|inf\b)", "", finding.text.split("\n")[0])


def single_finding(kind: str, text: str, returned: str = "", expected: str = "", part: str = "") -> Evidence:
    """Evidence of one Finding."""
    return Evidence((Finding(part, kind, text),), returned, expected)


@dataclass(frozen=True)
class ExpectedOutput:
    """One output as it should be. expected: in float64. plain: as the reference computes it in float32.

    product(): (of, weights, values), where the output is weights @ values, a sum over what `of` names, such as "key".
    """

    name: str
    expected: np.ndarray
    plain: np.ndarray
    terms: np.ndarray | float  # size of the terms that were added up: rounding is relative to this
    index: str = "row"  # what the first axis counts
    tile: int | None = None  # how many of them make a block
    product: Callable | None = None


@dataclass(eq=False)
class Property:
    """Something that holds for every right answer.

    name: what holds, as the learner reads it.
    call: Python that reproduces the call, given the inputs as variables.
    test(answer, **inputs) returns None, or the Evidence against.
    cases: inputs that are tried first. draw: a Hypothesis strategy for `examples` more, and to shrink with.
    slow: a case takes seconds, so that only the misconceptions that this property catches are tried on it.
    credit: in class, points for an answer for which it and all before it hold.
    """

    name: str
    call: str
    test: Callable[..., Evidence | None]
    cases: tuple[dict, ...] = ()
    draw: object = None
    examples: int = 40
    slow: bool = False
    credit: int = 0


@dataclass(frozen=True, eq=False)
class Exercise:
    """file: `__file__` of the exercise's module, exercises/lesson_NN/name.py; its Markdown file lies beside it."""

    file: str
    answer: Callable
    properties: Sequence[Property]
    points: int
    minutes: int
    difficulty: str  # "easy", "medium" or "hard"
    imports: tuple[str, ...] = ()  # modules that an answer may import in class, besides those of `rules`

    @property
    def id(self) -> str:
        """ "05.merge_states" for exercises/lesson_05/merge_states.py."""
        path = Path(self.file)
        return f"{path.parent.name.removeprefix('lesson_')}.{path.stem}"

    @property
    def partial(self) -> dict[str, int]:
        """Partial credit in class: name of a property -> its credit."""
        return {prop.name: prop.credit for prop in self.properties if prop.credit}

    @functools.cached_property
    def prose(self) -> prose.Prose:
        """Title, hints, reasoning and misconceptions."""
        return prose.read(Path(self.file).with_suffix(".md"))

    @property
    def misconceptions(self) -> tuple[Misconception, ...]:
        return self.prose.misconceptions


@dataclass(frozen=True)
class Result:
    """What `grade` found. properties: name -> whether it held; those after a failure were not tried.

    page: the message as HTML. misconception: name of the misconception whose results the answer's are, or None.
    """

    passed: bool
    attempted: bool
    properties: dict[str, bool]
    message: str
    page: str = ""
    misconception: str | None = None

    def _repr_mimebundle_(self, **_):
        """As `check` shows it."""
        return {"text/plain": self.message} | ({"text/html": self.page} if self.page else {})
