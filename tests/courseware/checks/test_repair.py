"""The few places in an answer where a change is enough, and what is said of them."""

import ast

import numpy as np
import pytest

from courseware import checks
from courseware.checks import checking, registry
from courseware.checks.calling import GuardedAnswer
from courseware.checks.mutation_operators import changed
from courseware.checks.repair import _is_odd, _more, repair
from courseware.editing import edited
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
MASK = """
def causal_mask(n_q, n_k):
    seen = [[key <= query + n_k - n_q for key in range(n_k)] for query in range(n_q)]
    return np.array(seen, dtype=bool)
"""
BRANCH = "    if len(a) == 1:\n        return 2.0\n    return 1.0"


@pytest.mark.parametrize(
    "exercise_id, right, old, new, line, said",
    [("01.cosine_similarity", COSINE, "gap / 2", "gap / 3", 7, "another number in place of 3 in gap @ gap / 3"),
     ("01.cosine_similarity", COSINE, "    return 1.0", BRANCH, 7, "without this"),
     ("01.cosine_similarity", COSINE, "lengths[0] - b", "lengths[0] - a", 6, "another variable in place of a"),
     ("01.cosine_similarity", COSINE, "1.0 - gap", "1.0 + gap", 7, "another operator in 1.0 + gap @ gap / 2"),
     ("01.cosine_similarity", COSINE, "norm(b)", "norm(b) + 1", 3, "without 1 in np.linalg.norm(b) + 1"),
     # The mistake is not in the last line, although all of our answer in its place would do.
     ("04.causal_mask", MASK, "<=", "<", 3, "with another operator in key < query + n_k - n_q the result")],
)  # fmt: skip
def test_the_line_and_the_kind_of_change_are_told(exercise_id, right, old, new, line, said):
    assert right.count(old) == 1
    wrong = right.replace(old, new)
    at, text = told(exercise_id, wrong)
    assert at == {line} and said in text
    assert text.startswith(f"line {line}:  {wrong.splitlines()[line - 1].strip()}\n")
    assert old in new or old not in text  # what would be right is not given away


def test_of_two_places_both_are_told_if_ours_has_something_else_there():
    """The right answer's own statements, in other names, with two mistakes, neither of which a change of one mends."""
    source = "def cosine_similarity(u, v):\n    size = np.sqrt(u @ v) * np.sqrt(v @ v)\n    if size == 0:\n"
    source += "        return 0.0\n    return u @ v * size\n"
    lines, text = told("01.cosine_similarity", source)
    assert lines == {2, 5} and "line 2:  size =" in text and "line 5:  return u @ v * size" in text


@pytest.mark.parametrize(
    "source",
    ["def causal_mask(n_q, n_k):\n    return np.tri(n_q, n_k, dtype=bool) & (n_k != 2)\n",
     MASK.replace("n_k - n_q", "n_q - n_k")],
    ids=["many numbers fit, each for one input only", "only all of our answer in place of the last line is enough"],
)  # fmt: skip
def test_what_is_not_enough_or_too_much_is_not_told(source):
    assert told("04.causal_mask", source) == (set(), "")


def test_of_two_places_the_one_that_is_sure_is_told():
    wrong = "def cosine_similarity(a, b):\n    s = np.sqrt(a @ a), np.sqrt(b @ a)\n    if 0 in s:\n        return 0.0\n"
    answer = function_of(f"{wrong}    return a @ b / s[0] / s[1]\n")
    message = checks.grade("01.cosine_similarity", answer).message
    assert "line 2:" in message and message.count("line ") == 1


def test_a_line_that_is_right_is_not_called_the_mistake():
    """Keys and queries are cut into the wrong axes. Our line for all three, in place of the values', would do."""
    right = registry.find("04.multi_head_attention").answer
    ours = "    Q, K, V = ((X @ W).reshape(n, n_heads, d).transpose(1, 0, 2) for W in (Wq, Wk, Wv))\n"
    sizes = {"Q": "d, n_heads", "K": "d, n_heads", "V": "n_heads, d"}
    theirs = [f"    {x} = (X @ W{x.lower()}).reshape(n, {of}).transpose(1, 0, 2)\n" for x, of in sizes.items()]
    message = checks.grade("04.multi_head_attention", edited(right, {ours: "".join(theirs)})).message
    assert "the answer raised ValueError" in message and "V = (X @ Wv)" not in message


def test_what_would_mend_a_result_and_is_hardly_the_mistake_is_not_told():
    for source, odd in (
        ("def f(K):\n    return K.T", "return (K + 1).T"),
        ("def f(n, b):\n    return [i for i in range(0, n, b)]", "return [i for i in range(0, b, n)]"),
        ("def f(n):\n    if n > 3:\n        n = 3\n    return n", "if True:"),
        ("def f(n, m, o):\n    return n, m, o", "return (m, m, o)"),
    ):
        made = [change for change in changed(ast.parse(source), _more) if odd in change.source]
        assert made and all(_is_odd(change, function_of(source)) for change in made)
