"""What an exercise is made of. `course_lib/exercises/` fills these in; nothing here knows a lesson."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from course_lib.editing import with_edits


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with what an answer did."""

    part: str  # which output ("l"); empty when it is not about one of them
    kind: str  # "nan", "shape", "factor", "exception", ... or the words of a `Part.readings` key
    text: str  # what the learner reads


@dataclass(frozen=True)
class Evidence:
    """Why a property does not hold for one input."""

    findings: tuple[Finding, ...]
    returned: str = ""
    expected: str = ""

    @property
    def signature(self) -> str:
        """The wrong parts and the first kind, as in "l acc: nan" or ": exception"; hints are chosen by it."""
        parts = " ".join(finding.part for finding in self.findings if finding.part)
        return f"{parts}: {self.findings[0].kind}"


@dataclass(frozen=True)
class Part:
    """One output as it should be. expected: in float64. plain: as the reference computes it in float32."""

    name: str
    expected: np.ndarray
    plain: np.ndarray
    terms: np.ndarray | float  # size of the terms that were added up: rounding is relative to this
    readings: Callable[[], Mapping[str, np.ndarray]] = dict  # mistake -> value the part then has
    index: str = "row"  # what the first axis counts
    tile: int | None = None  # how many of them make a block


@dataclass(frozen=True)
class Property:
    """Something that holds for every right answer.

    name: what holds, as the learner reads it.
    call: Python that reproduces the call, given the inputs as variables.
    test(answer, **inputs) returns None, or the Evidence against.
    cases: inputs that are tried first. draw() gives a Hypothesis strategy for `examples` more, and to shrink with.
    hints: from Evidence.signature, its parts alone or its kind alone (": nan") to a key of Exercise.mistakes.
        The key "" is for whatever else comes.
    """

    name: str
    call: str
    test: Callable[..., Evidence | None]
    cases: tuple[dict, ...] = ()
    draw: Callable | None = None
    hints: Mapping[str, str] = field(default_factory=dict)
    examples: int = 40


@dataclass(frozen=True)
class Variant:
    """The answer written differently: `function`, or the answer's source with `edits` (old text -> new)."""

    name: str
    edits: Mapping[str, str] = field(default_factory=dict)
    function: Callable | None = None

    def build(self, answer: Callable) -> Callable:
        if self.function is not None:
            return self.function
        return with_edits(answer, self.edits, self.name)


@dataclass(frozen=True)
class WrongAnswer:
    """A variant that is wrong, the mistake whose hint must be shown and the property that must catch it."""

    name: str
    mistake: str
    edits: Mapping[str, str] = field(default_factory=dict)
    function: Callable | None = None
    property: str = ""

    def build(self, answer: Callable) -> Callable:
        return Variant(self.name, self.edits, self.function).build(answer)


def caught_by(prop: str, *wrong_answers: WrongAnswer) -> tuple[WrongAnswer, ...]:
    """The same wrong answers, with the name of the property that must be the first to fail on them."""
    return tuple(replace(wrong, property=prop) for wrong in wrong_answers)


@dataclass(frozen=True)
class Exercise:
    id: str
    title: str
    points: int
    minutes: int
    difficulty: str  # "easy", "medium" or "hard"
    answer: Callable
    hints: tuple[str, str, str]  # a question, a nudge, an outline
    reasoning: str  # shown with the answer by solution()
    properties: tuple[Property, ...]
    mistakes: Mapping[str, str]  # key -> hint for that mistake
    common_hints: Mapping[str, str] = field(default_factory=dict)  # as Property.hints, for every property
    wrong_answers: tuple[WrongAnswer, ...] = ()
    right_answers: tuple[Variant, ...] = ()
    imports: tuple[str, ...] = ()  # modules that an answer may import in class, besides those of `rules`

    def mistake_behind(self, prop: Property, evidence: Evidence) -> str | None:
        """Key of the mistake that the evidence points to, from the most to the least particular."""
        parts, kind = evidence.signature.split(":", 1)
        for key in (evidence.signature, parts, f":{kind}"):
            if key and key in prop.hints:
                return prop.hints[key]
        if f":{kind}" in self.common_hints:
            return self.common_hints[f":{kind}"]
        return prop.hints.get("")


def option(answer, correct, feedback):
    """One answer of a question in a lesson's QUIZ, as jupyterquiz takes it."""
    return {"answer": answer, "correct": correct, "feedback": feedback}


@dataclass(frozen=True)
class Result:
    """What `grade` found. properties: name -> whether it held; those after a failure were not tried."""

    passed: bool
    attempted: bool
    properties: dict[str, bool]
    message: str
    mistake: str | None = None
