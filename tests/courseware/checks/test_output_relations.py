"""Facts about wrong answers that are no known misconception."""

import numpy as np
import pytest

from courseware import checks
from courseware.checks import registry
from courseware.checks.calling import GuardedAnswer
from courseware.checks.fault_localization import locate_by_value_replacement


def scores(Q, K, scale=None):
    return Q @ K.T * (Q.shape[1] ** -0.5 if scale is None else scale)


@pytest.mark.parametrize(
    "wrong, fact",
    [
        (lambda *given: scores(*given) ** 2, "on every input tried, S is the right result to the power 2"),
        (lambda *given: np.round(scores(*given)), "the right result rounded to 0 decimals"),
        (lambda *given: 3 * scores(*given), "the right result times 3"),
        (
            lambda Q, K, scale=None: scores(Q[:1] + 0 * Q, K, scale),
            "changing row 0 of Q changes rows 0 to 1 of what comes back; it should change row 0",
        ),
        (lambda *given: -scores(*given), "S is the right result with the opposite sign"),
        (lambda *given: abs(scores(*given)), "S is the right result without its sign"),
        (lambda *given: np.trunc(scores(*given)), "S is the right result cut to whole numbers"),
        (lambda *given: np.exp(scores(*given)), "S is the exponential of the right result"),
        (lambda *given: 1 - scores(*given), "S is 1 minus the right result"),
        (lambda Q, K, scale=None: scores(Q, K[::-1], scale), "on every input tried, S is the right result for K[::-1]"),
    ],
)
def test_a_fact_is_told(wrong, fact):
    assert fact in checks.grade("01.scores", wrong).message


def attention_flops(n_q, n_k, d, d_v):
    return 2 * n_q * n_k * (d + d_v) + 4 * n_q * n_k


@pytest.mark.parametrize(
    "wrong, fact",
    [
        (lambda *of: attention_flops(*of) + 5 * of[0] * of[2], "the count is the right result plus 5 * n_q * d"),
        (lambda n, k, *of: attention_flops(n, k, *of) - 2 * n * k + n, "the right result plus n_q minus 2 * n_q * n_k"),
        (lambda *of: attention_flops(*of) / 7, "the count is the right result times 0.1429"),
        (lambda *of: np.log(attention_flops(*of)), "the count is the logarithm of the right result"),
        (lambda *of: 8, "on every input tried, the count is 8"),
    ],
)
def test_a_wrong_count_is_told_as_a_sum_of_products(wrong, fact):
    assert fact in " ".join(checks.grade("01.attention_flops", wrong).message.split())


def test_other_arguments_for_which_the_result_would_be_right_are_told():
    def heads(X, Wq, Wk, Wv, Wo, n_heads, causal=False):
        return registry.find("04.multi_head_attention").answer(X, Wq, Wv, Wk, Wo, n_heads, causal)

    said = checks.grade("04.multi_head_attention", heads).message
    assert "the output is the right result for Wk and Wv exchanged" in " ".join(said.split())


def test_what_holds_of_one_input_only_is_not_told():
    message = checks.grade("01.scores", lambda *given: np.sin(scores(*given))).message
    assert "every input" not in message and "changing" not in message


def test_an_offset_that_fits_some_inputs_is_told_only_if_all_else_is_right():
    """The first of two bounds is off by one wherever it is wrong, because both are made of the wrong query."""

    def bounds(*of):
        begin, full_begin, full_end, end = registry.find("13.sliding_window_bounds").answer(*of)
        return begin, max(full_begin - 1, begin), full_end, end + (full_begin > begin)

    assert "wherever it is wrong" not in checks.grade("13.sliding_window_bounds", bounds).message


def test_the_line_that_computes_in_float16_is_told():
    def softmax(x):
        x = np.asarray(x)
        top = np.max(x, axis=-1, keepdims=True)
        gap = x - top
        weights = np.exp(gap.astype(np.float32))
        return (weights / weights.sum(axis=-1, keepdims=True)).astype(x.dtype)

    exercise = registry.find("03.stable_softmax")
    prop = next(prop for prop in exercise.properties if prop.name.startswith("float16"))
    said = locate_by_value_replacement(exercise, prop, GuardedAnswer(softmax), prop.cases[0], "precision")
    assert said.endswith("gap = x - top\nthis line is computed in float16; in float32 this result would be right")


def test_what_has_the_wrong_shape_first_is_told():
    def masked(n_q, n_k):
        seen = np.zeros((n_q, n_k), bool)
        return seen[:, None] & np.ones(n_k, bool)

    said = " ".join(checks.grade("04.causal_mask", masked).message.split())
    assert "seen has shape (2, 2); so seen[:, None] has shape (2, 1, 2)" in said


def test_nothing_is_looked_for_in_an_answer_that_returns_something_else_each_time():
    calls = []

    def masked(n_q, n_k):
        calls.append(n_q)
        return np.arange(n_k) < np.arange(n_q)[:, None] + len(calls) % 2

    said = " ".join(checks.grade("04.causal_mask", masked).message.split())
    assert "called once more with the same input, the answer returns something else" in said and "line " not in said
