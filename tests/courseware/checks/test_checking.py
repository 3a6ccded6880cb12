"""Failing inputs are found, shrunk, and the same on every run."""

import itertools
import math

import numpy as np
import pytest

from courseware import checks
from courseware.checks import calling, checking, registry
from tests.courseware.checks.cells import function_of

ANSWER = registry.find("05.online_normalizer").answer


def wrong_for(unlucky):
    """The right answer, except for streams of which `unlucky` is true."""

    def answer(stream):
        stream = list(stream)
        m, l = ANSWER(stream)
        return (m, l + 1) if unlucky(stream) else (m, l)

    return answer


@pytest.mark.parametrize(
    "unlucky, smallest",
    [(lambda s: len(s) > 2, "online_normalizer([1.0, 2.0, 3.0, 4.0])"),
     (lambda s: len(s) in (3, 5) and sum(s) > 2.5, "online_normalizer([2.0, 2.0, 2.0, 2.0, 2.0])"),
     (lambda s: sum(x == -np.inf for x in s) > 1, "online_normalizer([-np.inf, -np.inf])")],
)  # fmt: skip
def test_the_printed_input_is_a_small_case_or_the_smallest_that_was_drawn(unlucky, smallest):
    lines = checks.grade("05.online_normalizer", wrong_for(unlucky)).message.splitlines()
    assert "    " + smallest in lines


def test_shrinking_does_not_change_the_mistake():
    """A small input on which something else goes wrong is not shown for a failing case."""

    def wrong(stream):
        m, l = ANSWER(stream)
        if stream == [-3.0, -1.0]:
            return m, 2.0  # as if the old sum were not rescaled
        return (m, np.nan) if len(stream) == 2 and stream[0] == 0 < stream[1] else (m, l)

    result = checks.grade("05.online_normalizer", wrong)
    assert "    online_normalizer([-3.0, -1.0])" in result.message.splitlines()
    assert "l is NaN" not in result.message


def test_a_slow_answer_is_not_tried_for_ever(monkeypatch):
    calls = []
    monkeypatch.setattr(checking, "TRIES", 50)
    checks.grade("05.online_normalizer", wrong_for(lambda s: calls.append(s) or len(s) > 2))
    # The cases and the random inputs of four properties, and no more than 50 tries in the last one.
    assert len(calls) < 400


@pytest.mark.parametrize("wrong_at", [lambda n: n % 3 == 0, lambda n: n == 60], ids=["every third", "once"])
def test_an_answer_that_is_not_the_same_twice_is_told_something(wrong_at):
    calls = itertools.count(1)
    result = checks.grade("05.online_normalizer", wrong_for(lambda _: wrong_at(next(calls))))
    assert not result.passed and "fails the test" in result.message


def test_another_seed_draws_other_inputs():
    def drawn(seed):
        seen = []
        checks.grade("05.online_normalizer", wrong_for(lambda s: seen.append(tuple(s)) and False), seed=seed)
        return seen

    assert drawn(1) == drawn(1) != drawn(2)


def test_the_class_s_seed_draws_inputs_of_every_exercise():
    def is_drawn(exercise_id):
        return any(p.draw is not None or calling.FIXED in p.call for p in registry.find(exercise_id).properties)

    # Their inputs are few, and all of them are asked for.
    asked_in_full = {"02.breaking_input", "08.find_failing_input"}
    assert {exercise_id for exercise_id in registry.exercises() if not is_drawn(exercise_id)} == asked_in_full


def test_a_seed_changes_what_a_fixed_generator_draws():
    seen = []
    judge = calling.judging("rng = np.random.default_rng(0)\nanswer(rng.random())", lambda returned, **_: None)
    for seed in (0, 1, 1):
        calling.draw_with(seed)
        judge(lambda number: seen.append(number))
        assert calling.as_drawn("np.random.default_rng(0)") == f"np.random.default_rng({seed})"
    calling.draw_with(0)
    assert seen[0] == np.random.default_rng(0).random() != seen[1] == seen[2]


def test_it_is_said_what_an_answer_borrows():
    root = function_of("def root(x):\n    return np.sqrt(x)\n")
    mine = function_of("def mine(d):\n    return 1 / root(d)\n")
    mine.__globals__["root"] = root
    assert checking.borrowed(mine) == ["root"] and checking.borrowed(root) == []
    result = checks.grade("00.softmax_scale", mine)
    assert result.passed and "It uses root, from outside its own cell" in result.message


def test_the_hint_is_for_what_the_exception_says():
    for answer, hint in (
        (lambda stream: np.array([]).max(), "An array on this line is empty."),
        (lambda stream: (0.0, math.exp(1000)), "The exponent on this line is large"),
        (function_of("def f(*_):\n    raise ValueError"), "Your own `raise` was reached."),
    ):
        assert hint in checks.grade("05.online_normalizer", answer).message
