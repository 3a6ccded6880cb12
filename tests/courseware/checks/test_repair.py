"""The few places in an answer where a change is enough, and what is said of them."""

import ast

import numpy as np
import pytest

from courseware import checks
from courseware.checks import checking, registry
from courseware.checks.calling import GuardedAnswer
from courseware.checks.mutation_operators import changed
from courseware.checks.repair import _is_odd, _more, repair
from tests.courseware.checks.cells import function_of


def told(exercise_id, source):
    """What is told of an answer that is written in another way than ours."""
    exercise, answer = registry.find(exercise_id), GuardedAnswer(function_of(source))
    failures = ((prop, checking._first_failure(prop, answer, 0)) for prop in exercise.properties)
    prop, (inputs, _) = next((prop, failure) for prop, failure in failures if failure)
    with np.errstate(all="ignore"):
        return repair(exercise, prop, answer, inputs)


COSINE = """
def cosine_similarity(a, b):
    lengths = np.linalg.norm(a), np.linalg.norm(b)
    if 0 in lengths:
        return 0.0
    gap = a / lengths[0] - b / lengths[1]
    return 1.0 - gap @ gap / 2
"""
BLOCKS = """
def choose_block_sizes(sram_bytes, d, dtype_bytes=2, multiple_of=16):
    sizes = np.arange(multiple_of, sram_bytes // dtype_bytes // d + 1, multiple_of)
    q, k = sizes[:, None], sizes[None, :]
    fits = dtype_bytes * (q * d + 2 * k * d + q * k) <= sram_bytes
    if not fits.any():
        raise ValueError("nothing fits")
    scores = np.where(fits, q * k, 0)
    q, k = max(np.argwhere(scores == scores.max()).tolist())
    return int(sizes[q]), int(sizes[k])
"""
MASK = """
def causal_mask(n_q, n_k):
    seen = [[key <= query + n_k - n_q for key in range(n_k)] for query in range(n_q)]
    return np.array(seen, dtype=bool)
"""
BRANCH = "    if len(a) == 1:\n        return 2.0\n    return 1.0"


@pytest.mark.parametrize(
    "exercise_id, right, old, new, line, said",
    [
        ("01.cosine_similarity", COSINE, "gap / 2", "gap / 3", 7, "another number in place of 3 in gap @ gap / 3"),
        ("01.cosine_similarity", COSINE, "    return 1.0", BRANCH, 7, "without this"),
        ("01.cosine_similarity", COSINE, "lengths[0] - b", "lengths[0] - a", 6, "another variable in place of a"),
        ("01.cosine_similarity", COSINE, "1.0 - gap", "1.0 + gap", 7, "another operator in 1.0 + gap @ gap / 2"),
        ("01.cosine_similarity", COSINE, "norm(b)", "norm(b) + 1", 3, "without 1 in np.linalg.norm(b) + 1"),
        ("06.choose_block_sizes", BLOCKS, "sizes[:, None]", "sizes[None, :]", 4, "(None, :) in another order"),
        ("06.choose_block_sizes", BLOCKS, "bytes * (q", "bytes / (q", 5, "another operator in dtype_bytes / ("),
        # The mistake is not in the last line, although all of our answer in its place would do.
        ("04.causal_mask", MASK, "<=", "<", 3, "than key in key < query + n_k - n_q the result"),
    ],
)
def test_the_line_and_the_kind_of_change_are_told(exercise_id, right, old, new, line, said):
    assert right.count(old) == 1
    wrong = right.replace(old, new)
    at, text = told(exercise_id, wrong)
    assert at == {line} and said in text
    assert text.startswith(f"line {line}:  {wrong.splitlines()[line - 1].strip()}\n")


def test_of_two_places_both_are_told_if_ours_has_something_else_there():
    """The right answer's own statements, in other names, with two mistakes, neither of which a change of one mends."""
    source = """
def cosine_similarity(u, v):
    size = np.sqrt(u @ v) * np.sqrt(v @ v)
    if size == 0:
        return 0.0
    return u @ v * size
"""
    lines, text = told("01.cosine_similarity", source)
    assert lines == {3, 6} and "line 3:  size =" in text and "line 6:  return u @ v * size" in text


def test_of_two_places_that_are_written_in_another_way_nothing_is_told():
    assert told("04.causal_mask", MASK.replace("n_k - n_q", "n_q - n_k")) == (set(), "")


def test_what_would_be_right_is_not_given_away():
    _, text = told("01.cosine_similarity", COSINE.replace("gap / 2", "gap / 3"))
    assert " 2" not in text


def test_a_change_that_is_enough_for_one_input_only_is_not_told():
    """Where no pair is visible, n_q - 1 fits as well as many others."""
    source = "def causal_mask(n_q, n_k):\n    return np.tri(n_q, n_k, dtype=bool) & (n_k != 2)\n"
    assert told("04.causal_mask", source) == (set(), "")


def test_of_two_places_the_one_that_is_sure_is_told():
    wrong = "def cosine_similarity(a, b):\n    s = np.sqrt(a @ a), np.sqrt(b @ a)\n    if 0 in s:\n        return 0.0\n"
    answer = function_of(f"{wrong}    return a @ b / s[0] / s[1]\n")
    message = checks.grade("01.cosine_similarity", answer).message
    assert "line 2:" in message and message.count("line ") == 1


def test_a_line_that_is_right_is_not_called_the_mistake():
    """Keys and queries are cut into the wrong axes. Our line for all three, in place of the values', would do."""
    answer = function_of("""
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
""")
    message = checks.grade("04.multi_head_attention", answer).message
    assert "line 12, in multi_head_attention" in message and "line 7:" not in message


def test_every_change_knows_its_line():
    tree = ast.parse(COSINE.strip())
    right = ast.unparse(tree).splitlines()
    for change in changed(tree):
        lines = zip(right, change.source.splitlines(), strict=True)
        assert [n for n, (old, new) in enumerate(lines, 1) if old != new] in ([], [change.line])


@pytest.mark.parametrize(
    "source, odd",
    [
        ("def f(K):\n    return K.T", "return (K + 1).T"),
        ("def f(n, b):\n    return [i for i in range(0, n, b)]", "return [i for i in range(0, b, n)]"),
        ("def f(n):\n    if n > 3:\n        n = 3\n    return n", "if True:"),
        ("def f(n, m, o):\n    return n, m, o", "return (m, m, o)"),
    ],
)
def test_what_would_mend_a_result_and_is_hardly_the_mistake_is_not_told(source, odd):
    made = [change for change in changed(ast.parse(source), _more) if odd in change.source]
    assert made and all(_is_odd(change, function_of(source)) for change in made)
