"""The place in an answer where another value would make its result right."""

import numpy as np
import pytest

from courseware import checks
from courseware.checks import registry
from courseware.checks.calling import GuardedAnswer
from courseware.checks.expression_trace import ExpressionTrace
from courseware.checks.fault_localization import locate_by_value_replacement
from courseware.checks.misconceptions import on_case
from courseware.editing import edited
from tests.courseware.checks.cells import function_of


def told_of_each_case(exercise_id, answer):
    exercise, answer = registry.find(exercise_id), GuardedAnswer(answer)
    failed = [(p, p.cases[i]) for p in exercise.properties for i in range(len(p.cases)) if on_case(p, answer, i)[1]]
    return [locate_by_value_replacement(exercise, prop, answer, case) for prop, case in failed]


def stable_softmax_by(lines):
    return function_of(
        f"def stable_softmax(x, axis=-1):\n    m = x.max(axis=axis, keepdims=True)\n{lines}\n    return p / l\n"
    )


EXP, SUM = "    p = np.exp(x - m)", "    l = p.sum(axis=axis, keepdims=True)"


@pytest.mark.parametrize(
    "lines, line, said",
    [
        # Wrong though made of right values.
        (f"    p = np.exp(m - x)\n{SUM}", 3, "\nm - x is [3., 2., 1., 0.]; with [-3., -2., -1., 0.] in its place"),
        (f"{EXP}\n{SUM.replace('sum', 'mean')}", 4, "is [0.38825]; with [1.553002] in its place"),
        # A step is missing.
        (f"    p = x - m\n{SUM}", 3, "x - m is [-3., -2., -1., 0.]; with [0.049787, 0.135335, 0.367879, 1. ]"),
        # What comes after a right result spoils it.
        (f"{EXP} / np.exp(x - m).sum(axis, keepdims=True)\n    l = 3", 3, "keepdims=True) is right already"),
        # Where a NaN comes from.
        ("    p = np.sqrt(-1 - x * x)\n    l = 1", 3, "nan], made of numbers that are not nan"),
        # Two unlike places at once: a pair of values fits by chance too often.
        (f"    p = np.exp2(x - m)\n{SUM} + 1", 0, ""),
    ],
)
def test_the_place_and_the_value_that_would_be_right_are_told(lines, line, said):
    first = told_of_each_case("03.stable_softmax", stable_softmax_by(lines))[0]
    assert first.startswith(f"line {line}:  ") and said in first if said else first == ""


def test_two_values_that_differ_in_their_dtype_only_are_told_apart():
    answer = stable_softmax_by(f"{EXP}.astype('f')\n{SUM}")
    assert any(" in float32; with " in each for each in told_of_each_case("03.stable_softmax", answer))


def test_a_kernel_is_looked_into():
    answer = edited(registry.find("07.row_softmax").answer, {"tl.sum(p": "tl.sum(p * p"}, "wrong")
    message = " ".join(checks.grade("07.row_softmax", answer).message.split())
    assert "p * p is [" in message and "in its place this result would be right" in message


MASK = """
def causal_mask(n_q, n_k):
    mask = np.zeros((n_q, n_k), dtype=bool)
    for i in range(n_q):
        mask[i, : i + n_k - n_q + 1] = True
    return mask
"""
ONLINE = """
def online_attention(q, K, V, block):
    m, l, acc = -np.inf, 0.0, np.zeros(V.shape[1])
    for t in range(-(-len(K) // block)):
        k, v = K[t : t + block], V[t : t + block]
        s = k @ q / np.sqrt(len(q))
        m_new = max(m, s.max())
        p = np.exp(s - m_new)
        l, acc, m = l * np.exp(m - m_new) + p.sum(), acc * np.exp(m - m_new) + p @ v, m_new
    return acc / l
"""
DOT = """
def dot(a, b):
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[-i]
    return total
"""
MERGE = """
def merge_states(a, b):
    m = np.maximum(a[0], b[0])
    if np.isneginf(a[0]).any() and not np.isneginf(b[0]).any():
        return b
    f, g = np.exp(a[0] - np.where(np.isneginf(m), 0, m)), np.exp(b[0] - np.where(np.isneginf(m), 0, m))
    return m, f * a[1] + g * b[1], f[..., None] * a[2] + g[..., None] * b[2]
"""
MULTI_HEAD = "04.multi_head_attention"
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
    [
        ("04.causal_mask", MASK, 5, "i + n_k - n_q + 1 is -2 here: a slice counts negative numbers from the end"),
        # The pass of a loop.
        ("01.dot", DOT, 5, "b[-i] the second time (and others) is"),
        # The numbers of a range, not its start, stop and step.
        ("05.online_attention", ONLINE, 4, " is [0, 1]; with [0, 2] in its place"),
        ("05.merge_states", MERGE, 4, "asked once for all rows"),
        # A list that is filled in a loop. In the first pass the columns are the right ones.
        (MULTI_HEAD, HEADS.replace("Wk)[:, c]", "Wk)[:, h : h + d]"), 7, "h:h + d] the second time"),
        (MULTI_HEAD, HEADS.replace("@ v)", "@ v / (h + 1))"), 10, "@ v / (h + 1) the second time is"),
        (MULTI_HEAD, HEADS.replace("Wq)[:, c]", "Wq)[:, :d]"), 7, "(X @ Wq)[:, :d] the second time is"),
    ],
)
def test_the_first_failure_is_told_in_terms_of_its_line(exercise_id, source, line, said):
    first = told_of_each_case(exercise_id, function_of(source))[0]
    assert first.startswith(f"line {line}:  ") and said in first


def test_no_infinity_is_asked_of_finite_numbers():
    mean = "(a[0] + b[0]) / 2\n    m = np.where(np.isfinite(m), m, np.maximum(a[0], b[0]))"
    answer = function_of(MERGE.replace("np.maximum(a[0], b[0])", mean))
    assert not any("with inf in its place" in each for each in told_of_each_case("05.merge_states", answer))


@pytest.mark.parametrize("answer", [lambda x, axis=-1: x, np.exp, "no function"])
def test_of_an_answer_whose_source_is_no_function_nothing_is_told(answer):
    assert told_of_each_case("03.stable_softmax", answer)[0] == ""


def test_a_run_ends_when_it_has_too_much_to_record():
    def stable_softmax(x, axis=-1):
        for _ in range(10**6):
            x = x + 0
        return x

    prop = registry.find("03.stable_softmax").properties[0]
    recording = ExpressionTrace(stable_softmax)
    recording.run(prop, prop.cases[0])
    assert len(recording.values) < 20 and sum(map(len, recording.values.values())) < 10_000


def test_the_right_answer_given_its_own_values_is_right():
    exercise = registry.find("04.attention")
    recording = ExpressionTrace(exercise.answer)
    prop = exercise.properties[0]
    assert recording.run(prop, prop.cases[0])[1] is None
    for place, values in dict(recording.values).items():
        assert recording.run(prop, prop.cases[0], {place: values})[1] is None
        if recording.places[place].is_result:
            assert recording.run(prop, prop.cases[0], {place: [1 + each for each in values]})[1] is not None


def test_what_is_stored_is_no_place_to_mend():
    """Any wrong result would be right if another one was stored."""
    recording = ExpressionTrace(registry.find("06.tiled_attention").answer)
    assert [place.text for place in recording.places if place.is_result] == ["out.astype(O.dtype)"]
