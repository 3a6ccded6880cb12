"""Names the misconception behind a wrong answer: the one with the same results on every input that tells them apart.

The inputs are the one that failed and the cases of all properties, but for those of other properties on which the
answer breaks. A misconception is named only if no other fits as well: a diagnosis never guesses.
"""

import contextlib
import functools
import time

import numpy as np

from .calling import GuardedAnswer, attempt
from .diagnosis import as_array
from .exercise import Exercise, Property
from .prose import Misconception, StaleMisconception

# Two results are the same if they agree to this part of themselves, or of the largest of their array: an answer may
# compute in float32, or store in float16, where the misconception's own variant does not.
RELATIVE, OF_LARGEST = 2e-3, 1e-5
# What shows a second mistake, which may hide the first: other properties' cases then tell nothing.
BROKEN = {"nan", "inf", "exception"}


def misconception_behind(
    exercise: Exercise, answer: GuardedAnswer, prop: Property, inputs: dict, deadline_s: float = np.inf
) -> Misconception | None:
    """None if none fits, or more than one, or if the thread's time has come to the deadline before that is known."""
    # One that another property catches first fails before this one, as the answer does not, or it holds this one.
    candidates = [(each, variant) for (each, _), variant in variants(exercise).items() if each.prop == prop.name]
    if not any(inputs is case for case in prop.cases):
        seen, _ = observed(prop, answer, inputs)
        candidates = [each for each in candidates if same(seen, observed(prop, each[1], inputs)[0])]
    exactly = candidates
    # The failing property first: its cases tell most of its misconceptions apart.
    others = [other for other in exercise.properties if other is not prop and not other.slow]
    for tried in [prop, *others]:
        for place in range(len(tried.cases)):
            if not candidates or time.thread_time() > deadline_s:
                return None
            seen, evidence = on_case(tried, answer, place)
            fits = [each for each in candidates if same(seen, on_case(tried, each[1], place)[0])]
            exactly = [each for each in exactly if each in fits]
            if tried is prop or evidence is None or evidence.findings[0].kind not in BROKEN:
                candidates = fits
    misconceptions = {misconception.name: misconception for misconception, _ in exactly or candidates}
    return next(iter(misconceptions.values())) if len(misconceptions) == 1 else None


@functools.cache
def variants(exercise: Exercise) -> dict[tuple, GuardedAnswer]:
    """{(misconception, number of its variant): the guarded answer}. Stale ones are left out, and a test names them."""
    made = {}
    for misconception in exercise.misconceptions:
        for variant in range(len(misconception.variants)):
            with contextlib.suppress(StaleMisconception):
                made[misconception, variant] = GuardedAnswer(misconception.answer(exercise.answer, variant))
    return made


@functools.lru_cache(maxsize=8192)
def on_case(prop: Property, answer: GuardedAnswer, place: int) -> tuple:
    """`observed` on the property's case at this place, where each answer and each misconception is run once."""
    return observed(prop, answer, prop.cases[place])


def observed(prop: Property, answer: GuardedAnswer, inputs: dict) -> tuple:
    """(what can be seen of an answer on one input, the Evidence against it or None).

    What can be seen is what its calls returned or changed, and what kind of thing the property found.
    """
    answer.seen.clear()
    evidence = attempt(prop, answer, inputs)
    return (tuple(answer.seen), evidence.signature if evidence is not None else None), evidence


def same(one, other) -> bool:
    """Whether two observations, or parts of them, are alike."""
    if {type(one), type(other)} == {np.ndarray, list}:  # a table of numbers, either way
        one, other = as_array(one), as_array(other)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if _is_numeric(one) and _is_numeric(other):
        return _same_numbers(np.asarray(one), np.asarray(other))
    return type(one) is type(other) and (one is other or repr(one) == repr(other))


def _is_numeric(value):
    return isinstance(value, (int, float, np.ndarray, np.generic)) and np.asarray(value).dtype.kind in "biuf"


def _same_numbers(one, other):
    if one.shape != other.shape:
        return False
    one, other = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(one)
    # Where one variant overflows to inf, another of the same mistake may give NaN.
    if not np.array_equal(finite, np.isfinite(other)):
        return False
    one, other = one[finite], other[finite]
    allowed = np.maximum(RELATIVE * np.abs(other), OF_LARGEST * np.abs(other).max(initial=0.0))
    return bool(np.all(np.abs(one - other) <= allowed))
