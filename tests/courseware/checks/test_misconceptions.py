"""A misconception is named when an answer's results are its results on every case; otherwise nothing is guessed."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from courseware import checks
from courseware.checks import misconceptions, registry
from courseware.checks.calling import GuardedAnswer
from courseware.checks.misconceptions import misconception_behind, same
from courseware.checks.prose import StaleMisconception
from courseware.editing import edited

EXERCISE = registry.find("05.merge_states")
MISCONCEPTIONS = {misconception.name: misconception for misconception in EXERCISE.misconceptions}


def in_float32(answer):
    def converted(a, b):
        return answer(*(tuple(np.asarray(x, np.float32) for x in state) for state in (a, b)))

    return converted


@pytest.mark.parametrize("name", ["l is not rescaled", "each state gets the other's factor", "b is never rescaled"])
def test_the_same_mistake_written_differently_is_named(name):
    (answer,) = MISCONCEPTIONS[name].answers(EXERCISE.answer)
    result = checks.grade(EXERCISE.id, in_float32(answer))
    assert result.misconception == name
    assert MISCONCEPTIONS[name].diagnosis in " ".join(result.message.split())


def test_two_mistakes_at_once_are_not_taken_for_one():
    weights = "np.exp(m_a - shift), np.exp(m_b - shift)"
    both = edited(EXERCISE.answer, {"w_a * l_a + w_b * l_b": "l_a + l_b", weights: weights.replace("exp", "exp2")})
    result = checks.grade(EXERCISE.id, both)
    assert not result.passed and result.misconception is None
    for misconception in EXERCISE.misconceptions:
        assert misconception.diagnosis not in " ".join(result.message.split())


def test_an_answer_that_differs_from_a_misconception_on_one_later_case_is_not_given_its_name():
    (answer,) = MISCONCEPTIONS["l is not rescaled"].answers(EXERCISE.answer)

    def only_for_single_queries(a, b):
        return answer(a, b) if np.ndim(a[0]) == 0 else EXERCISE.answer(a, b)

    result = checks.grade(EXERCISE.id, only_for_single_queries)
    assert not result.passed and result.misconception is None


def test_misconceptions_that_another_property_catches_first_are_not_even_run(monkeypatch):
    """With an exercise in CUDA C++, each would have to be compiled."""
    ran, observed = set(), misconceptions.observed
    noted = lambda prop, variant, inputs: ran.add(variant) or observed(prop, variant, inputs)  # noqa: E731
    monkeypatch.setattr(misconceptions, "observed", noted)
    misconceptions.on_case.cache_clear()
    misconception = MISCONCEPTIONS["l is not rescaled"]
    result = checks.grade(EXERCISE.id, in_float32(*misconception.answers(EXERCISE.answer)))
    assert result.misconception == misconception.name
    run = {its.prop for (its, _), variant in misconceptions.variants(EXERCISE).items() if variant in ran}
    assert run == {misconception.prop} and len({its.prop for its in EXERCISE.misconceptions}) > 1


@pytest.mark.parametrize("names, named", [(("one",), "one"), (("one", "another"), None)])
def test_of_two_misconceptions_that_no_case_tells_apart_neither_is_named(names, named):
    class Twins:
        answer, properties = EXERCISE.answer, EXERCISE.properties
        misconceptions = tuple(replace(MISCONCEPTIONS["l is not rescaled"], name=name) for name in names)

    answer = GuardedAnswer(MISCONCEPTIONS["l is not rescaled"].answers(EXERCISE.answer)[0])
    prop = EXERCISE.properties[0]
    misconception = misconception_behind(Twins, answer, prop, prop.cases[0])
    assert (misconception and misconception.name) == named


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


STALE = {
    "-gone\n+there\n": r"'gone\\n' occurs 0 times in merge_states, not once",
    "-    m_b, l_b, acc_b = b\n+    m_b, l_b, acc_b = (b\n": r"'\(' was never closed",
    "-    m_b, l_b, acc_b = b\n+    m_b, l_b, acc_b = other\n": "nothing defines other",
    "gone\n": "begins with none of",
}


@pytest.mark.parametrize("diff", STALE)
def test_of_a_stale_misconception_it_is_said_what_does_not_fit(diff):
    stale = replace(MISCONCEPTIONS["l is not rescaled"], name="stale", diffs=(diff,))
    with pytest.raises(StaleMisconception, match=f"the misconception 'stale' is stale: .*{STALE[diff]}"):
        stale.answers(EXERCISE.answer)


@pytest.mark.parametrize("diff", STALE)
def test_a_check_is_as_if_a_stale_misconception_were_not_listed(diff, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COURSEWARE_PROGRESS", str(tmp_path / "progress.json"))
    stale, whole = MISCONCEPTIONS["l is not rescaled"], MISCONCEPTIONS["acc is not rescaled"]
    answers = {misconception: misconception.answers(EXERCISE.answer)[0] for misconception in (stale, whole)}
    listed = (
        replace(stale, diffs=(diff,)),
        *(misconception for misconception in EXERCISE.misconceptions if misconception is not stale),
    )
    monkeypatch.setitem(vars(EXERCISE), "prose", replace(EXERCISE.prose, misconceptions=listed))
    # What is made of the misconceptions is kept, and not for the other tests.
    monkeypatch.setattr(misconceptions, "variants", misconceptions.variants.__wrapped__)

    def said(show, *arguments):
        show(*arguments)
        return " ".join(capsys.readouterr().out.split())

    message = said(checks.check, EXERCISE.id, answers[whole])
    assert whole.diagnosis in message and whole.hint in message
    message = said(checks.check, EXERCISE.id, answers[stale])
    assert stale.diagnosis not in message and "diagnosis l is" in message
    unknown_name = edited(EXERCISE.answer, {"acc_b = b": "acc_b = other"})
    assert stale.diagnosis not in said(checks.check, EXERCISE.id, unknown_name)
    assert EXERCISE.prose.hints[0] in said(checks.hint, EXERCISE.id, 1)
    assert EXERCISE.prose.title in said(checks.solution, EXERCISE.id)


def test_a_variable_of_a_kernel_that_was_renamed_breaks_no_check(monkeypatch):
    exercise = registry.find("08.flash_forward")
    wrong = edited(exercise.answer, {"tl.sum(p, axis=1)": "2 * tl.sum(p, axis=1)"})
    source_of = inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda of: source_of(of).replace("m_ref", "m_safe"))
    misconceptions.variants.cache_clear()
    result = checks.grade(exercise.id, wrong)
    left = misconceptions.variants(exercise)
    misconceptions.variants.cache_clear()
    assert 0 < len(left) < sum(len(misconception.diffs) for misconception in exercise.misconceptions)
    assert result.attempted and "o is too small by the same factor 0.5 at every row" in result.message


def test_a_table_is_the_same_as_a_list_of_rows_or_as_an_array():
    rows = [[1.0, 1e-17], [2.0, 0.0]]
    assert same(rows, np.array(rows)) and same(np.array([[1.0, 0.0], [2.0, 0.0]]), rows)
    assert not same(rows, np.array([[1.0, 0.0], [2.0, 1.0]]))
    assert not same([[1.0], [2.0, 3.0]], np.ones(2))
