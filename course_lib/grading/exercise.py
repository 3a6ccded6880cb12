"""What an exercise is made of. `course_lib/exercises/` fills these in; nothing here knows a lesson."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from course_lib.editing import with_edits

from . import prose


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

    @property
    def signature(self) -> tuple:
        """The wrong outputs and the kind of what is wrong with each: what shrinking an input must not change."""
        return tuple((finding.part, finding.kind) for finding in self.findings)


def single_finding(kind: str, text: str, returned: str = "", expected: str = "") -> Evidence:
    """Evidence of one finding that concerns no output in particular."""
    return Evidence((Finding("", kind, text),), returned, expected)


@dataclass(frozen=True)
class ExpectedOutput:
    """One output as it should be. expected: in float64. plain: as the reference computes it in float32."""

    name: str
    expected: np.ndarray
    plain: np.ndarray
    terms: np.ndarray | float  # size of the terms that were added up: rounding is relative to this
    index: str = "row"  # what the first axis counts
    tile: int | None = None  # how many of them make a block


class Slip:
    """A plausible mistake, stated once: a wrong answer for the suite, a diagnosis for the learner.

    name: a heading of the exercise's Markdown file. The first paragraph below it tells the learner what is wrong,
        the rest is the hint.
    forms: the mistake in code, each as edits of the right answer's source (old text -> new text) or as a function.
        Several forms of one slip need not be told apart.
    """

    def __init__(self, name: str, *forms: Mapping[str, str] | Callable):
        if not forms:
            raise ValueError(f"the slip {name!r} has no form")
        self.name, self.forms = name, forms

    def answers(self, answer: Callable) -> list[Callable]:
        """The wrong answers, one for each form."""
        return [form if callable(form) else edited(answer, form, self.name) for form in self.forms]


def edited(answer: Callable, edits: Mapping[str, str], name: str = "edited") -> Callable:
    """`with_edits`, of a kernel the plain function inside @triton.jit."""
    built = with_edits(answer, edits, name)
    return getattr(built, "fn", built)


@dataclass(frozen=True)
class Property:
    """Something that holds for every right answer.

    name: what holds, as the learner reads it.
    call: Python that reproduces the call, given the inputs as variables.
    test(answer, **inputs) returns None, or the Evidence against.
    cases: inputs that are tried first. draw: a Hypothesis strategy for `examples` more, and to shrink with.
    slips: the mistakes that this property must be the first to catch.
    """

    name: str
    call: str
    test: Callable[..., Evidence | None]
    cases: tuple[dict, ...] = ()
    draw: object = None
    slips: tuple[Slip, ...] = ()
    examples: int = 40


@dataclass(frozen=True, eq=False)
class Exercise:
    """file: `__file__` of the exercise's module, exercises/lesson_NN/name.py; its Markdown file lies beside it."""

    file: str
    answer: Callable
    points: int
    minutes: int
    difficulty: str  # "easy", "medium" or "hard"
    properties: tuple[Property, ...]
    imports: tuple[str, ...] = ()  # modules that an answer may import in class, besides those of `rules`

    @property
    def id(self) -> str:
        """ "05.merge_states" for exercises/lesson_05/merge_states.py."""
        path = Path(self.file)
        return f"{path.parent.name.removeprefix('lesson_')}.{path.stem}"

    @functools.cached_property
    def prose(self) -> prose.Prose:
        """Title, hints, reasoning, and what each slip is told."""
        return prose.read(Path(self.file).with_suffix(".md"))

    @property
    def slips(self) -> tuple[Slip, ...]:
        return tuple(slip for prop in self.properties for slip in prop.slips)


@dataclass(frozen=True)
class Result:
    """What `grade` found. properties: name -> whether it held; those after a failure were not tried.

    slip: name of the slip whose results the answer's are, or None.
    """

    passed: bool
    attempted: bool
    properties: dict[str, bool]
    message: str
    slip: str | None = None
