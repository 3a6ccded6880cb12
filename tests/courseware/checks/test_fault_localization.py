"""The place in an answer where another value would make its result right."""

import numpy as np
import pytest

from courseware.checks import registry
from courseware.checks.calling import GuardedAnswer
from courseware.checks.expression_trace import ExpressionTrace
from courseware.checks.fault_localization import locate_by_value_replacement
from courseware.checks.misconceptions import on_case
from courseware.editing import edited
from tests.courseware.checks.cells import function_of


def told_of_each_case(exercise_id, answer):
    """Of each case that fails, in their order."""
    exercise, answer = registry.find(exercise_id), GuardedAnswer(answer)
    for prop in exercise.properties:
        for place, case in enumerate(prop.cases):
            if on_case(prop, answer, place)[1]:
                yield locate_by_value_replacement(exercise, prop, answer, case)


def told_of_first_case(exercise_id, answer):
    return next(told_of_each_case(exercise_id, answer))


def stable_softmax_by(lines):
    begins = "def stable_softmax(x, axis=-1):\n    m = x.max(axis=axis, keepdims=True)\n"
    return function_of(f"{begins}{lines}\n    return p / l\n")


EXP, SUM = "    p = np.exp(x - m)", "    l = p.sum(axis=axis, keepdims=True)"


@pytest.mark.parametrize(
    "lines, line, said",
    [(f"    p = np.exp(m - x)\n{SUM}", 3, "\nm - x is [3., 2., 1., 0.]; with [-3., -2., -1., 0.] in its place"),
     (f"{EXP}\n{SUM.replace('sum', 'mean')}", 4, "is [0.38825]; with [1.553002] in its place"),
     # A step is missing.
     (f"    p = x - m\n{SUM}", 3, "x - m is [-3., -2., -1., 0.]; with [0.049787, 0.135335, 0.367879, 1. ]"),
     # What comes after a right result spoils it.
     (f"{EXP} / np.exp(x - m).sum(axis, keepdims=True)\n    l = 3", 3, "keepdims=True) is right already"),
     # Where a NaN comes from.
     ("    p = np.sqrt(-1 - x * x)\n    l = 1", 3, "nan], made of numbers that are not nan"),
     # Two unlike places at once: a pair of values fits by chance too often.
     (f"    p = np.exp2(x - m)\n{SUM} + 1", 0, "")],
)  # fmt: skip
def test_the_place_and_the_value_that_would_be_right_are_told(lines, line, said):
    first = told_of_first_case("03.stable_softmax", stable_softmax_by(lines))
    assert first.startswith(f"line {line}:  ") and said in first if said else first == ""


def test_two_values_that_differ_in_their_dtype_only_are_told_apart():
    answer = stable_softmax_by(f"{EXP}.astype('f')\n{SUM}")
    assert any(" in float32; with " in each for each in told_of_each_case("03.stable_softmax", answer))


MASK = """
def causal_mask(n_q, n_k):
    mask = np.zeros((n_q, n_k), dtype=bool)
    for i in range(n_q):
        mask[i, : i + n_k - n_q + 1] = True
    return mask
"""
HEADS = """
def multi_head_attention(X, Wq, Wk, Wv, Wo, n_heads, causal=False):
    n, d = len(X), X.shape[1] // n_heads
    heads = []
    for h in range(n_heads):
        c = slice(h * d, (h + 1) * d)
        q, k, v = (X @ Wq)[:, c], (X @ Wk)[:, c], (X @ Wv)[:, c]
        s = np.where(np.tri(n, dtype=bool) | (not causal), q @ k.T / np.sqrt(d), -np.inf)
        p = np.exp(s - s.max(axis=1, keepdims=True))
        heads.append(p / p.sum(axis=1, keepdims=True) @ v)
    return np.concatenate(heads, axis=1) @ Wo
"""


@pytest.mark.parametrize(
    "exercise_id, source, line, said",
    [("04.causal_mask", MASK, 5, "i + n_k - n_q + 1 is -2 here: a slice counts negative numbers from the end"),
     # A list that is filled in a loop. In the first pass the columns are the right ones.
     ("04.multi_head_attention", HEADS.replace("Wk)[:, c]", "Wk)[:, h : h + d]"), 7, "h:h + d] the second time"),
     ("04.multi_head_attention", HEADS.replace("@ v)", "@ v / (h + 1))"), 10, "@ v / (h + 1) the second time is")],
)  # fmt: skip
def test_the_first_failure_is_told_in_terms_of_its_line(exercise_id, source, line, said):
    first = told_of_first_case(exercise_id, function_of(source))
    assert first.startswith(f"line {line}:  ") and said in first


def test_of_a_range_its_numbers_are_told_and_not_its_start_stop_and_step():
    answer = edited(registry.find("05.online_attention").answer, {"range(0, n, block)": "range(-(-n // block))"})
    assert " is [0, 1]; with [0, 2] in its place" in told_of_first_case("05.online_attention", answer)


def test_no_infinity_is_asked_of_finite_numbers():
    exercise, ours = registry.find("05.merge_states"), "np.maximum(m_a, m_b)"
    mean = f"(m_a + m_b) / 2\n    m = np.where(np.isfinite(m), m, {ours})"
    answer = GuardedAnswer(edited(exercise.answer, {ours: mean}))
    apart = next(prop for prop in exercise.properties if "1000 apart" in prop.name)
    assert "with inf in its place" not in locate_by_value_replacement(exercise, apart, answer, apart.cases[0])


@pytest.mark.parametrize("answer", [lambda x, axis=-1: x, np.exp, "no function"])
def test_of_an_answer_whose_source_is_no_function_nothing_is_told(answer):
    assert told_of_first_case("03.stable_softmax", answer) == ""


def test_a_run_ends_when_it_has_too_much_to_record():
    def stable_softmax(x, axis=-1):
        for _ in range(10**5):
            x = x + 0
        return x

    prop = registry.find("03.stable_softmax").properties[0]
    recording = ExpressionTrace(stable_softmax)
    recording.run(prop, prop.cases[0])
    assert len(recording.values) < 20 and sum(map(len, recording.values.values())) < 10_000


def test_the_right_answer_given_its_own_values_is_right():
    exercise = registry.find("04.attention")
    recording, prop = ExpressionTrace(exercise.answer), exercise.properties[0]
    assert recording.run(prop, prop.cases[0])[1] is None
    for place, values in dict(recording.values).items():
        assert recording.run(prop, prop.cases[0], {place: values})[1] is None
        if recording.places[place].is_result:
            assert recording.run(prop, prop.cases[0], {place: [1 + each for each in values]})[1] is not None


def test_what_is_stored_is_no_place_to_mend():
    """Any wrong result would be right if another one was stored."""
    recording = ExpressionTrace(registry.find("06.tiled_attention").answer)
    assert [place.text for place in recording.places if place.is_result] == ["out.astype(O.dtype)"]
