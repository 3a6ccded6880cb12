"""The one place in an answer where a small change is enough."""

import ast

import numpy as np
import pytest
from courseware.checks.mutation_repair import _is_odd, _more, repairing_mutation

from courseware import checks
from courseware.checks import checking, registry
from courseware.checks.calling import GuardedAnswer
from courseware.checks.mutation_operators import changed
from courseware.editing import edited, run_source


def told(exercise_id, source):
    """What is told of an answer that is written in another way than ours."""
    exercise, namespace = registry.find(exercise_id), {"np": np}
    run_source(source, f"<{exercise_id} {abs(hash(source))}>", namespace)
    answer = GuardedAnswer(namespace[exercise.answer.__name__])
    failures = ((prop, checking._first_failure(prop, answer, 0)) for prop in exercise.properties)
    prop, (inputs, _) = next((prop, failure) for prop, failure in failures if failure)
    return repairing_mutation(exercise, prop, answer, inputs)


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


@pytest.mark.parametrize(
    "exercise_id, right, old, new, line, said",
    [
        ("01.cosine_similarity", COSINE, "gap / 2", "gap / 3", 7, "with another number in place of 3 in gap @ gap / 3"),
        (
            "01.cosine_similarity",
            COSINE,
            "    return 1.0",
            "    if len(a) == 1:\n        return 2.0\n    return 1.0",
            7,
            "without this branch",
        ),
        ("01.cosine_similarity", COSINE, "lengths[0] - b", "lengths[0] - a", 6, "with another variable in place of a"),
        ("01.cosine_similarity", COSINE, "1.0 - gap", "1.0 + gap", 7, "with another operator in 1.0 + gap @ gap / 2"),
        (
            "01.cosine_similarity",
            COSINE,
            "np.linalg.norm(b)",
            "np.linalg.norm(b) + 1",
            3,
            "without 1 in np.linalg.norm(b) + 1",
        ),
        ("06.choose_block_sizes", BLOCKS, "sizes[:, None]", "sizes[None, :]", 4, "with (None, :) in another order"),
        ("06.choose_block_sizes", BLOCKS, "bytes * (q", "bytes / (q", 5, "with another operator in dtype_bytes / ("),
        ("04.causal_mask", MASK, "n_k - n_q", "n_q - n_k", 3, ""),
        ("04.causal_mask", MASK, "<=", "<", 3, "than key in key < query + n_k - n_q the result"),
    ],
)
def test_the_line_and_the_kind_of_change_are_told(exercise_id, right, old, new, line, said):
    assert right.count(old) == 1
    wrong = right.replace(old, new)
    if not said:  # two places: no change of one is enough
        assert told(exercise_id, wrong) == (0, "")
        return
    at, text = told(exercise_id, wrong)
    assert at == line and said in text and text.startswith(f"line {line}:  {wrong.splitlines()[line - 1].strip()}\n")


def test_what_would_be_right_is_not_given_away():
    _, text = told("01.cosine_similarity", COSINE.replace("gap / 2", "gap / 3"))
    assert " 2" not in text


def test_a_change_that_is_enough_for_one_input_only_is_not_told():
    """Where no pair is visible, n_q - 1 fits as well as many others."""
    source = "def causal_mask(n_q, n_k):\n    return np.tri(n_q, n_k, dtype=bool) & (n_k != 2)\n"
    assert told("04.causal_mask", source) == (0, "")


def test_of_two_places_the_one_that_is_sure_is_told():
    wrong = "def cosine_similarity(a, b):\n    s = np.sqrt(a @ a), np.sqrt(b @ a)\n    if 0 in s:\n        return 0.0\n"
    run_source(f"{wrong}    return a @ b / s[0] / s[1]\n", "<b @ a>", namespace := {"np": np})
    message = checks.grade("01.cosine_similarity", namespace["cosine_similarity"]).message
    assert "line 2:" in message and message.count("line ") == 1


def test_every_change_knows_its_line():
    tree = ast.parse(COSINE.strip())
    right = ast.unparse(tree).splitlines()
    for change in changed(tree):
        lines = zip(right, change.source.splitlines(), strict=True)
        assert [n for n, (old, new) in enumerate(lines, 1) if old != new] in ([], [change.line])


def test_a_kernel_is_looked_into():
    answer = edited(registry.find("07.row_softmax").answer, {"tl.sum(p": "tl.sum(p * p"}, "wrong")
    message = " ".join(checks.grade("07.row_softmax", answer).message.split())
    assert "p * p is [" in message and "in its place this result would be right" in message


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
    run_source(source, f"<{abs(hash(source))}>", namespace := {})
    made = [change for change in changed(ast.parse(source), _more) if odd in change.source]
    assert made and all(_is_odd(change, namespace["f"]) for change in made)
