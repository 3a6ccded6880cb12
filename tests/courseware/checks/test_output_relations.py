"""Facts about wrong answers that are no known misconception."""

import numpy as np
import pytest

from courseware import checks
from courseware.checks import registry
from courseware.editing import edited


def message_of(exercise_id, answer):
    return " ".join(checks.grade(exercise_id, answer).message.split())


@pytest.mark.parametrize(
    "exercise_id, wrong, fact",
    [("01.scores", lambda right, *of: -right(*of), "S is the right result with the opposite sign"),
     ("01.scores", lambda right, *of: np.exp(right(*of)), "S is the exponential of the right result"),
     ("01.scores", lambda right, Q, K, scale: right(Q, K), "S is the right result for scale=None"),
     ("01.scores", lambda right, Q, K, *of: right(K, K, *of), "S is the right result for K in place of Q"),
     ("01.attention_flops", lambda right, *of: np.log(right(*of)), "the count is the logarithm of the right result"),
     ("04.attention", lambda right, *of: right(*of[:3], not of[3]), "the output is the right result for not causal"),
     ("04.multi_head_attention", lambda right, X, q, k, v, *of: right(X, q, v, k, *of), "for Wk and Wv exchanged"),
     ("04.multi_head_attention", lambda right, *of: right(*of).T, "the output is the right result, transposed")],
)  # fmt: skip
def test_a_fact_is_told(exercise_id, wrong, fact):
    right = registry.find(exercise_id).answer
    message = message_of(exercise_id, lambda *given: wrong(right, *given))
    assert fact in message[message.index("on every input tried, ") :]


def test_what_holds_of_one_input_only_is_not_told():
    right = registry.find("01.scores").answer
    assert "every input" not in message_of("01.scores", lambda *given: np.sin(right(*given)))


def test_an_offset_that_fits_some_inputs_is_told_only_if_all_else_is_right():
    """The first of two bounds is off by one wherever it is wrong, because both are made of the wrong query."""

    def bounds(*of):
        begin, full_begin, full_end, end = registry.find("13.sliding_window_bounds").answer(*of)
        return begin, max(full_begin - 1, begin), full_end, end + (full_begin > begin)

    assert "wherever it is wrong" not in message_of("13.sliding_window_bounds", bounds)


def test_a_factor_that_a_few_small_numbers_have_by_chance_is_not_told():
    wrong = edited(registry.find("12.thread_map").answer, {"step * n_threads + thread": "thread"})
    assert "times 0.5" not in message_of("12.thread_map", wrong)


def test_nothing_is_looked_for_in_an_answer_that_returns_something_else_each_time():
    calls = []

    def masked(n_q, n_k):
        calls.append(n_q)
        return np.arange(n_k) < np.arange(n_q)[:, None] + len(calls) % 2

    said = message_of("04.causal_mask", masked)
    assert "called once more with the same input, the answer returns something else" in said and "line " not in said
