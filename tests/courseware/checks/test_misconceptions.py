"""A slip is named when an answer's results are the slip's on every case, and otherwise nothing is guessed."""

from dataclasses import replace

import numpy as np
import pytest

from courseware import checks
from courseware.checks import misconceptions, registry
from courseware.checks.calling import GuardedAnswer
from courseware.checks.misconceptions import same, slip_behind
from courseware.editing import edited

EXERCISE = registry.find("05.merge_states")
SLIPS = {slip.name: slip for slip in EXERCISE.slips}


def in_float32(answer):
    def converted(a, b):
        return answer(*(tuple(np.asarray(x, np.float32) for x in state) for state in (a, b)))

    return converted


@pytest.mark.parametrize("name", ["l is not rescaled", "each state gets the other's factor", "b is never rescaled"])
def test_the_same_mistake_written_differently_is_named(name):
    (answer,) = SLIPS[name].answers(EXERCISE.answer)
    result = checks.grade(EXERCISE.id, in_float32(answer))
    assert result.slip == name
    assert SLIPS[name].diagnosis in " ".join(result.message.split())


def test_two_mistakes_at_once_are_not_taken_for_one():
    weights = "np.exp(m_a - shift), np.exp(m_b - shift)"
    both = edited(EXERCISE.answer, {"w_a * l_a + w_b * l_b": "l_a + l_b", weights: weights.replace("exp", "exp2")})
    result = checks.grade(EXERCISE.id, both)
    assert not result.passed and result.slip is None
    for slip in EXERCISE.slips:
        assert slip.diagnosis not in " ".join(result.message.split())


def test_an_answer_that_differs_from_a_slip_on_one_later_case_is_not_given_its_name():
    (answer,) = SLIPS["l is not rescaled"].answers(EXERCISE.answer)

    def only_for_single_queries(a, b):
        return answer(a, b) if np.ndim(a[0]) == 0 else EXERCISE.answer(a, b)

    result = checks.grade(EXERCISE.id, only_for_single_queries)
    assert not result.passed and result.slip is None


def test_a_slip_that_has_the_same_result_once_by_chance_is_not_named():
    def online_normalizer(stream):
        m, l, before = -np.inf, 0.0, -np.inf
        for s in stream:
            if s > before:
                m, l = s, l * np.exp(m - s) + 1
            elif s > -np.inf:
                l += np.exp(s - m)
            before = s
        return m, l

    result = checks.grade("05.online_normalizer", online_normalizer)
    assert not result.passed and "known mistake" not in result.message


def test_slips_that_another_property_catches_first_are_not_even_run(monkeypatch):
    """With an exercise in CUDA C++, each would have to be compiled."""
    ran, observed = set(), misconceptions.observed
    noted = lambda prop, form, inputs: ran.add(form) or observed(prop, form, inputs)  # noqa: E731
    monkeypatch.setattr(misconceptions, "observed", noted)
    misconceptions.on_case.cache_clear()
    slip = SLIPS["l is not rescaled"]
    assert checks.grade(EXERCISE.id, in_float32(*slip.answers(EXERCISE.answer))).slip == slip.name
    run = {its.prop for its, form in misconceptions.forms(EXERCISE) if form in ran}
    assert run == {slip.prop} and len({its.prop for its in EXERCISE.slips}) > 1


@pytest.mark.parametrize("names, named", [(("one",), "one"), (("one", "another"), None)])
def test_of_two_slips_that_no_case_tells_apart_neither_is_named(names, named):
    class Twins:
        answer, properties = EXERCISE.answer, EXERCISE.properties
        slips = tuple(replace(SLIPS["l is not rescaled"], name=name) for name in names)

    answer = GuardedAnswer(SLIPS["l is not rescaled"].answers(EXERCISE.answer)[0])
    prop = EXERCISE.properties[0]
    slip = slip_behind(Twins, answer, prop, prop.cases[0])
    assert (slip and slip.name) == named


@pytest.mark.parametrize(
    "one, other, alike",
    [
        (np.array([1.0, 2.0]), np.float32([1.0, 2.001]), True),
        (np.array([1.0, 2.0]), np.array([1.0, 2.1]), False),
        (np.array([1.0, 2.0]), np.array([[1.0, 2.0]]), False),
        (np.array([np.inf, 1.0]), np.array([np.nan, 1.0]), True),
        (np.array([np.inf, 1.0]), np.array([1.0, np.inf]), False),
        ((1, "text"), (1, "text"), True),
        ((1, "text"), (1, "other"), False),
        ({"o": np.ones(2)}, {"o": np.ones(2)}, True),
        ({"o": np.ones(2)}, {"p": np.ones(2)}, False),
        (None, 0.0, False),
    ],
)
def test_what_counts_as_the_same(one, other, alike):
    assert same(one, other) == alike == same(other, one)


def test_a_diff_that_no_longer_fits_its_answer_is_an_error():
    stale = replace(EXERCISE.slips[0], name="stale", diffs=("-gone\n+there\n",))
    with pytest.raises(ValueError, match=r"stale: 'gone\\n' occurs 0 times in merge_states, not once"):
        stale.answers(EXERCISE.answer)


def test_a_table_is_the_same_as_a_list_of_rows_or_as_an_array():
    rows = [[1.0, 1e-17], [2.0, 0.0]]
    assert same(rows, np.array(rows)) and same(np.array([[1.0, 0.0], [2.0, 0.0]]), rows)
    assert not same(rows, np.array([[1.0, 0.0], [2.0, 1.0]]))
    assert not same([[1.0], [2.0, 3.0]], np.ones(2))
