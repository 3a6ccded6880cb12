"""A misconception is named when an answer's results are its results on every case; otherwise nothing is guessed."""

import re
from dataclasses import replace

import numpy as np
import pytest

from courseware import checks
from courseware.checks import checking, misconceptions, registry
from courseware.checks.calling import GuardedAnswer
from courseware.checks.misconceptions import misconception_behind, same
from courseware.checks.prose import StaleMisconception
from courseware.editing import edited

EXERCISE = registry.find("05.merge_states")
MISCONCEPTIONS = {misconception.name: misconception for misconception in EXERCISE.misconceptions}
NOT_RESCALED = MISCONCEPTIONS["l is not rescaled"]


def merge_states(a, b, is_l_rescaled=True, is_b_rescaled=True):
    """Our answer in other words, for a mistake that is written differently from ours."""
    top = np.where(a[0] > b[0], a[0], b[0])
    f, g = (np.exp(state[0] - np.maximum(top, -1e38)) for state in (a, b))
    g = g if is_b_rescaled else np.where(np.isneginf(b[0]), 0 * g, 0 * g + 1)
    sums = f * a[1] + g * b[1] if is_l_rescaled else a[1] + b[1]
    return top, sums, f[..., None] * a[2] + g[..., None] * b[2]


def merge_without_rescaling_l(a, b):
    return merge_states(a, b, is_l_rescaled=False)


WEIGHTS = "np.exp(m_a - shift), np.exp(m_b - shift)"


@pytest.mark.parametrize(
    "answer",
    [edited(EXERCISE.answer, {"w_a * l_a + w_b * l_b": "l_a + l_b", WEIGHTS: WEIGHTS.replace("exp", "exp2")}),
     lambda a, b: merge_states(a, b, is_l_rescaled=np.ndim(a[0]) > 0)],
    ids=["two mistakes at once", "one that is not made on every case"],
)  # fmt: skip
def test_what_is_not_the_same_on_every_case_is_not_named(answer):
    result = checks.grade(EXERCISE.id, answer)
    assert not result.passed and result.misconception is None
    message = " ".join(result.message.split())
    assert not any(its.diagnosis in message for its in EXERCISE.misconceptions)


def test_misconceptions_that_another_property_catches_first_are_not_even_run(monkeypatch):
    """With an exercise in CUDA C++, each would have to be compiled. The same mistake is written differently here."""
    assert checks.grade(EXERCISE.id, merge_states).passed
    ran, observed = set(), misconceptions.observed
    noted = lambda prop, variant, inputs: ran.add(variant) or observed(prop, variant, inputs)  # noqa: E731
    monkeypatch.setattr(misconceptions, "observed", noted)
    misconceptions.on_case.cache_clear()
    assert checks.grade(EXERCISE.id, merge_without_rescaling_l).misconception == NOT_RESCALED.name
    run = {its.prop for (its, _), variant in misconceptions.variants(EXERCISE).items() if variant in ran}
    assert run == {NOT_RESCALED.prop} and len({its.prop for its in EXERCISE.misconceptions}) > 1


def test_after_the_time_for_it_no_reason_is_looked_for(monkeypatch):
    """What is known by then is told."""
    asked = []

    def slowly(prop, answer, place):
        asked.append(place)
        sum(range(10**6))
        return misconceptions.observed(prop, answer, prop.cases[place])

    monkeypatch.setattr(misconceptions, "on_case", slowly)
    monkeypatch.setattr(checking, "LOOKING_LIMIT_S", 0.01)
    result = checks.grade(EXERCISE.id, merge_without_rescaling_l)
    assert result.misconception is None and "diagnosis l is" in result.message and "line " not in result.message
    assert set(asked) == {0}  # the first case, of the answer and of what it might be


@pytest.mark.parametrize("names, named", [(("one",), "one"), (("one", "another"), None)])
def test_of_two_misconceptions_that_no_case_tells_apart_neither_is_named(names, named):
    class Twins:
        answer, properties = EXERCISE.answer, EXERCISE.properties
        misconceptions = tuple(replace(NOT_RESCALED, name=name) for name in names)

    answer = GuardedAnswer(NOT_RESCALED.answer(EXERCISE.answer, 0))
    prop = EXERCISE.properties[0]
    misconception = misconception_behind(Twins, answer, prop, prop.cases[0])
    assert (misconception and misconception.name) == named


@pytest.mark.parametrize(
    "one, other, alike",
    [(np.array([1.0, 2.0]), np.float32([1.0, 2.001]), True),
     (np.array([1.0, 2.0]), np.array([1.0, 2.1]), False),
     (np.array([1.0, 2.0]), np.array([[1.0, 2.0]]), False),
     (np.array([np.inf, 1.0]), np.array([np.nan, 1.0]), True),
     (np.array([np.inf, 1.0]), np.array([1.0, np.inf]), False),
     ({"o": np.ones(2)}, {"p": np.ones(2)}, False),
     (None, 0.0, False),
     # A table as rows, or as an array.
     ([[1.0, 1e-17], [2.0, 0.0]], np.array([[1.0, 0.0], [2.0, 0.0]]), True),
     ([[1.0], [2.0, 3.0]], np.ones(2), False)],
)  # fmt: skip
def test_what_counts_as_the_same(one, other, alike):
    assert same(one, other) == alike == same(other, one)


@pytest.mark.parametrize(
    "edit, said",
    [(("gone", "there"), "'gone' occurs 0 times in merge_states, not once"),
     (("m_b", "m_a"), "'m_b' occurs 2 times in merge_states, not once"),
     (("np.maximum(m_a, m_b)", "(m_b"), "'(' was never closed"),
     (("m_b, l_b, acc_b = b", "m_b, l_b, acc_b = other"), "nothing defines other")],
)  # fmt: skip
def test_a_check_is_as_if_a_stale_misconception_were_not_listed(edit, said, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COURSEWARE_PROGRESS", str(tmp_path / "progress.json"))
    stale, whole = replace(NOT_RESCALED, name="stale", variants=((edit,),)), MISCONCEPTIONS["b is never rescaled"]
    with pytest.raises(StaleMisconception, match=re.escape(f"the misconception 'stale' is stale: {said}")):
        stale.answer(EXERCISE.answer, 0)
    monkeypatch.setitem(vars(EXERCISE), "prose", replace(EXERCISE.prose, misconceptions=(stale, whole)))
    # What is made of the misconceptions is kept, and not for the other tests.
    monkeypatch.setattr(misconceptions, "variants", misconceptions.variants.__wrapped__)

    def message_of(answer):
        checks.check(EXERCISE.id, answer)
        return " ".join(capsys.readouterr().out.split())

    assert whole.diagnosis in message_of(lambda a, b: merge_states(a, b, is_b_rescaled=False))
    message = message_of(merge_without_rescaling_l)
    assert stale.diagnosis not in message and "diagnosis l is" in message
