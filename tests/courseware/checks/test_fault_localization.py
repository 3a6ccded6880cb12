"""The place in an answer where another value would make its result right."""

import numpy as np
import pytest

from courseware.checks import registry
from courseware.checks.calling import GuardedAnswer
from courseware.checks.expression_trace import ExpressionTrace
from courseware.checks.fault_localization import locate_by_value_replacement
from courseware.checks.misconceptions import on_case
from courseware.editing import run_source


def told(exercise_id, answer):
    exercise = registry.find(exercise_id)
    prop = exercise.properties[0]
    return locate_by_value_replacement(exercise, prop, GuardedAnswer(answer), prop.cases[0], "values")


def told_of_each_case(exercise_id, answer):
    exercise, answer = registry.find(exercise_id), GuardedAnswer(answer)
    failed = [(p, p.cases[i]) for p in exercise.properties for i in range(len(p.cases)) if on_case(p, answer, i)[1]]
    return [locate_by_value_replacement(exercise, prop, answer, case, "values") for prop, case in failed]


def stable_softmax_by(line, result="p / l"):
    namespace = {"np": np}
    source = f"def stable_softmax(x, axis=-1):\n    m = x.max(axis=axis, keepdims=True)\n{line}\n    return {result}\n"
    run_source(source, f"<{line} {result}>", namespace)
    return namespace["stable_softmax"]


SUM = "    l = p.sum(axis=axis, keepdims=True)"


@pytest.mark.parametrize(
    "lines, said",
    [
        # Wrong though made of right values.
        (f"    p = np.exp(m - x)\n{SUM}", "line 3:  p = np.exp(m - x)\nm - x is [3., 2., 1., 0.]; with [1., 2., 3."),
        (f"    p = np.exp(x - m)\n{SUM.replace('sum', 'mean')}", "is [0.38825]; with [1.553002] in its place"),
        # A step is missing.
        (f"    p = x - m\n{SUM}", "x - m is [-3., -2., -1., 0.]; with [0.049787, 0.135335, 0.367879, 1. ]"),
        # Two unlike places at once: a pair of values fits by chance too often.
        (f"    p = np.exp2(x - m)\n{SUM} + 1", ""),
        ("    q = np.exp(x - m)\n    p = q / q.sum(axis, keepdims=True)\n    l = 3", "keepdims=True) is right already"),
        # Nothing is told of what no value of the right answer mends.
        ("    p = np.sin(x)\n    l = 1", ""),
    ],
)
def test_the_place_and_the_value_that_would_be_right_are_told(lines, said):
    found = told("03.stable_softmax", stable_softmax_by(lines))
    assert said in found and bool(said) == bool(found)


EXP = "    p = np.exp(x - m)"


@pytest.mark.parametrize(
    "answer, said",
    [
        # Where a NaN comes from.
        (stable_softmax_by("    p = np.sqrt(-1 - x * x)\n    l = 1"), "nan], made of numbers that are not nan"),
        # All parts of the last line are right.
        (
            stable_softmax_by(f"{EXP}\n{SUM}", "p - l"),
            "return p - l\np and l: right; what is made of them in this line is not",
        ),
        # Two values that differ in their dtype only.
        (stable_softmax_by(f"{EXP}.astype('f')\n{SUM}"), " in float32; with "),
    ],
)
def test_other_facts_of_a_line_are_told(answer, said):
    assert any(said in each for each in told_of_each_case("03.stable_softmax", answer))


def test_a_bound_that_became_negative_is_told():
    def causal_mask(n_q, n_k):
        mask = np.zeros((n_q, n_k), dtype=bool)
        for i in range(n_q):
            mask[i, : i + n_k - n_q + 1] = True
        return mask

    said = "i + n_k - n_q + 1 is -2 here: a slice counts negative numbers from the end"
    assert any(said in each for each in told_of_each_case("04.causal_mask", causal_mask))


def test_a_pass_of_a_loop_is_named():
    def online_normalizer(stream):
        m, l = -np.inf, 0.0
        for s in stream:
            m_new = max(m, s)
            if m_new == -np.inf:
                continue
            l = l * np.exp(m - m_new) + (1.0 if s > m else np.exp(m - s))
            m = m_new
        return m, l

    found = told_of_each_case("05.online_normalizer", online_normalizer)
    assert any("np.exp(m - s) is 2.71828; with 0.367879" in each for each in found)


@pytest.mark.parametrize("answer", [lambda x, axis=-1: x, np.exp, "no function"])
def test_of_an_answer_whose_source_is_no_function_nothing_is_told(answer):
    assert told("03.stable_softmax", answer) == ""


def test_a_run_ends_when_it_has_too_much_to_record():
    def stable_softmax(x, axis=-1):
        for _ in range(10**6):
            x = x + 0
        return x

    prop = registry.find("03.stable_softmax").properties[0]
    recording = ExpressionTrace(stable_softmax)
    recording.run(prop, prop.cases[0], "values")
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


def heads_by(columns, kept="p @ v"):
    source = f"""
def multi_head_attention(X, Wq, Wk, Wv, Wo, n_heads, causal=False):
    n, d_model = X.shape
    d = d_model // n_heads
    heads = []
    for h in range(n_heads):
        own = slice(h * d, (h + 1) * d)
        q, k, v = (X @ Wq)[:, own], (X @ Wk)[:, {columns}], (X @ Wv)[:, own]
        s = q @ k.T / np.sqrt(d)
        s = np.where(np.tri(n) > 0, s, -np.inf) if causal else s
        p = np.exp(s - s.max(axis=1, keepdims=True))
        p = p / p.sum(axis=1, keepdims=True)
        heads.append({kept})
    return np.concatenate(heads, axis=1) @ Wo
"""
    namespace = {"np": np}
    run_source(source, f"<{columns} {kept}>", namespace)
    return namespace["multi_head_attention"]


@pytest.mark.parametrize(
    "answer, said",
    [
        (
            heads_by("h : h + d"),
            "row 0 of (X @ Wk)[:, h:h + d] the second time is [0.25, 0. ]; with [0. , 1.25] and so on in its",
        ),
        (heads_by("own", "p @ v / (h + 1)"), "row 0 of p @ v / (h + 1) the second time is"),
    ],
)
def test_a_list_filled_in_a_loop_is_looked_into(answer, said):
    exercise = registry.find("04.multi_head_attention")
    (prop,) = (prop for prop in exercise.properties if prop.name.startswith("two heads"))
    assert said in locate_by_value_replacement(exercise, prop, GuardedAnswer(answer), prop.cases[0], "values")


def dot_by(step, end="return total"):
    source = f"def dot(a, b):\n    total = 0.0\n    for i in range(len(a)):\n{step}\n    {end}\n"
    namespace = {}
    run_source(source, f"<{step} {end}>", namespace)
    return namespace["dot"]


ADDED = "        total = total + a[i] * b[i]"
RIGHT = "{} the result would be right"


@pytest.mark.parametrize(
    "answer, said",
    [
        (dot_by("        total += a[i] * b[-i]"), "b[-i] the second time (and others) is"),
        (dot_by(f"{ADDED}\n        return total"), RIGHT.format("without this return, or with another condition,")),
        (dot_by(f"{ADDED}\n        return total", "pass"), RIGHT.format("with this return after the loop, not in it,")),
        (dot_by(f"{ADDED}\n        break"), RIGHT.format("without this break, or with another condition,")),
        # Nothing is said of an exit that no other mends.
        (dot_by(f"{ADDED} + 1\n        if i < 0:\n            return total"), ""),
    ],
)
def test_in_a_loop_the_pass_or_the_early_exit_is_told(answer, said):
    found = told_of_each_case("01.dot", answer)
    assert any(said in each for each in found) and (said or not any("in a loop" in each for each in found))


def test_what_belongs_in_the_place_of_an_early_exit_is_told():
    def causal_mask(n_q, n_k):
        mask = np.zeros((n_q, n_k), dtype=bool)
        for i in range(n_q):
            for j in range(n_k):
                if j > i + n_k - n_q:
                    return mask
                mask[i, j] = True
        return mask

    assert RIGHT.format("with continue in place of return") in told("04.causal_mask", causal_mask)


def attention_that_hides_scores_of_0(Q, K, V, causal=False):
    scores = Q @ K.T / np.sqrt(Q.shape[1])
    if causal:
        scores = np.tril(scores, len(K) - len(Q))
        scores[scores == 0] = -np.inf
    top = scores.max(axis=1, keepdims=True)
    p = np.exp(scores - np.where(np.isinf(top), 0, top))
    l = p.sum(axis=1, keepdims=True)
    return np.divide(p, l, out=np.zeros_like(p), where=l > 0) @ V


def attention_with_the_queries_of_head_0(X, Wq, Wk, Wv, Wo, n_heads, causal=False):
    n, d = len(X), X.shape[1] // n_heads
    heads = []
    for h in range(n_heads):
        c = slice(h * d, h * d + d)
        q, k, v = (X @ Wq)[:, :d], (X @ Wk)[:, c], (X @ Wv)[:, c]
        s = np.where(np.tri(n, dtype=bool) | (not causal), q @ k.T / np.sqrt(d), -np.inf)
        p = np.exp(s - s.max(axis=1, keepdims=True))
        heads.append(p / p.sum(axis=1, keepdims=True) @ v)
    return np.concatenate(heads, axis=1) @ Wo


def attention_in_steps_of_one(q, K, V, block):
    m, l, acc = -np.inf, 0.0, np.zeros(V.shape[1])
    for t in range(-(-len(K) // block)):
        k, v = K[t : t + block], V[t : t + block]
        s = k @ q / np.sqrt(len(q))
        m_new = max(m, s.max())
        p = np.exp(s - m_new)
        l, acc, m = l * np.exp(m - m_new) + p.sum(), acc * np.exp(m - m_new) + p @ v, m_new
    return acc / l


@pytest.mark.parametrize(
    "exercise_id, answer, said, unsaid",
    [
        # Row 0 differs, too, but its result is right.
        (
            "04.attention",
            attention_that_hides_scores_of_0,
            "row 1 of scores is [ -inf, 0.7071",
            "row 0 of scores is [0. ,",
        ),
        # In pass 1 they are the right columns.
        ("04.multi_head_attention", attention_with_the_queries_of_head_0, "the second time is ", "the first time is "),
        # The numbers of a range, not its start, stop and step.
        ("05.online_attention", attention_in_steps_of_one, " is [0, 1]; with [0, 2] in its place", "[0, 2, 1]"),
    ],
)
def test_what_is_shown_is_what_matters(exercise_id, answer, said, unsaid):
    found = told_of_each_case(exercise_id, answer)
    assert any(said in each for each in found) and not any(unsaid in each for each in found)


def test_one_condition_for_all_rows_is_told():
    def merge_states(a, b):
        m = np.maximum(a[0], b[0])
        if np.isneginf(a[0]).any() and not np.isneginf(b[0]).any():
            return b
        f, g = np.exp(a[0] - np.where(np.isneginf(m), 0, m)), np.exp(b[0] - np.where(np.isneginf(m), 0, m))
        return m, f * a[1] + g * b[1], f[..., None] * a[2] + g[..., None] * b[2]

    assert any("asked once for all rows" in each for each in told_of_each_case("05.merge_states", merge_states))


def test_no_infinity_is_asked_of_finite_numbers():
    def merge_states(a, b):
        m = (a[0] + b[0]) / 2
        m = np.where(np.isfinite(m), m, np.maximum(a[0], b[0]))
        z = np.where(np.isneginf(m), 0, m)
        f, g = np.exp(a[0] - z), np.exp(b[0] - z)
        return m, f * a[1] + g * b[1], f[..., None] * a[2] + g[..., None] * b[2]

    found = told_of_each_case("05.merge_states", merge_states)
    assert any(" with " in each for each in found) and not any("with inf in its place" in each for each in found)


def test_two_places_that_do_the_same_are_told_together():
    def multi_head_attention(X, Wq, Wk, Wv, Wo, n_heads, causal=False):
        n, d_model = X.shape
        d = d_model // n_heads
        Q = (X @ Wq).reshape(n, d, n_heads).transpose(1, 0, 2)
        K = (X @ Wk).reshape(n, d, n_heads).transpose(1, 0, 2)
        V = (X @ Wv).reshape(n, n_heads, d).transpose(1, 0, 2)
        S = Q @ K.transpose(0, 2, 1) / np.sqrt(d)
        S = np.where(np.tri(n, dtype=bool), S, -np.inf) if causal else S
        P = np.exp(S - S.max(-1, keepdims=True))
        P = P / P.sum(-1, keepdims=True)
        return (P @ V).transpose(1, 0, 2).reshape(n, d_model) @ Wo

    assert "has shape (3, 2, 1)" in told("04.multi_head_attention", multi_head_attention)


def test_what_is_stored_is_no_place_to_mend():
    """Any wrong result would be right if another one was stored."""
    recording = ExpressionTrace(registry.find("06.tiled_attention").answer)
    stored = [place.text for place in recording.places if place.is_result]
    assert stored == ["out.astype(O.dtype)"]
