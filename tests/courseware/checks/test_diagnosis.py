"""Where and how an output differs, in words."""

import numpy as np
import pytest

from courseware.checks.calling import GuardedAnswer
from courseware.checks.diagnosis import FLOOR, compare
from courseware.checks.exercise import ExpectedOutput

KEYS = np.array([0.1, 0.2, 0.3, 0.15, 0.25])


def part(expected, **fields):
    expected = np.asarray(expected, dtype=np.float64)
    return ExpectedOutput("out", expected, expected, fields.pop("terms", np.abs(expected)), **fields)


def told(returned, *parts):
    evidence = compare(returned, list(parts))
    return None if evidence is None else [(f.kind, f.text) for f in evidence.findings]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_what_was_never_written_is_told_from_what_became_nan(dtype):
    returned = GuardedAnswer(lambda x: np.concatenate([2 * np.empty(1, dtype), np.sqrt(x)]))(-np.ones(1, dtype))
    assert told(returned[1:], part([1.0])) == [("nan", "out is NaN")]
    ((kind, text),) = told(returned, part([1.0, 1.0]))
    assert kind == "np.empty" and text.startswith("out is NaN at row 0 of 2, from elements of np.empty")


@pytest.mark.parametrize(
    "returned, kind, text",
    [(None, "none", "the answer returned None"),
     ([1.0, 2.0, 3.0], "type", "a list of 3"),
     ("text", "type", "out is a str, not an array of shape (2,)"),
     (np.array([[1.0, 2.0]]), "shape", "out has shape (1, 2), not (2,)"),
     (np.array([1.0, 2j]), "dtype", "out has dtype complex128"),
     (np.array([np.nan, 2.0]), "nan", "out is NaN at row 0 of 2"),
     (np.array([1.0, np.inf]), "inf", "out is infinite at row 1 of 2"),
     (np.array([2.0, 4.0]), "factor", "out is too large by the same factor 2 at every row"),
     (np.array([1.0, 1.0]), "factor", "out is too small by the factor 0.5 at row 1 of 2"),
     (np.array([0.0, 0.0]), "factor", "out is 0 at every row"),
     (np.array([1.0, 7.0]) + 3, "values", "out is wrong at every row"),
     (np.array([1.001, 2.0]), "digits", "out is right to about 3 digits only"),
     (np.array([1.001, 1.999]), "precision", "right to about 3 digits only")],
)  # fmt: skip
def test_what_is_wrong_is_said(returned, kind, text):
    ((found, said),) = told(returned, part([1.0, 2.0]))
    assert found == kind and text in said


@pytest.mark.parametrize("rounding, kind", [(0.0, "factor"), (1e-7, "factor"), (-1e-7, "factor"), (9e-7, "digits")])
def test_a_factor_of_each_row_s_own_does_not_depend_on_how_a_small_element_is_rounded(rounding, kind):
    right = np.array([[1.0, 0.5, 1e-3], [2.0, 1.0, 1.0]])
    returned = right * [[0.9994], [0.999]] + rounding * np.array([[0, 0, 1], [0, 0, 0]])
    ((found, said),) = told(returned, part(right, terms=1.0))
    assert found == kind == ("factor" if "of each row's own: 0.9994 in row 0, 0.999 in row 1" in said else "digits")


def test_right_is_right_within_a_few_float32_roundings_of_the_terms():
    for right in (np.array([1.0, 2.0]), [1.0, 2.0], (1, 2), np.array([1.0, 2.0], dtype=np.float32)):
        assert told(right, part([1.0, 2.0])) is None
    assert told(np.float32(-np.inf), part(-np.inf)) is None and told(0.5, part(0.5)) is None
    exact = part(1.0, terms=1.0)
    assert told(1.0 + 0.9 * FLOOR, exact) is None and told(1.0 + 1.1 * FLOOR, exact) is not None
    # A small difference of large terms may be as wrong as the terms are rounded.
    assert told(1e-3 + 5 * FLOOR, part(1e-3, terms=10.0)) is None
    plain = ExpectedOutput("out", np.float64(1.0), np.float64(1.01), 1.0)
    assert told(1.02, plain) is None and told(1.021, plain) is not None


def test_parts_in_each_others_place():
    m, l = ExpectedOutput("m", np.float64(3.0), 3.0, 0.0), ExpectedOutput("l", np.float64(1.0), 1.0, 1.0)
    assert told((1.0, 3.0), m, l) == [("swapped", "m and l are swapped")]
    assert told((5.0, 1.0), m, l) == [("offset", "m is 2 too large")]
    assert told((3.0,), m, l)[0][0] == told(3.0, m, l)[0][0] == "type"
    assert told((None, 1.0), m, l) == [("type", "m is None, not a number or an array")]


@pytest.mark.parametrize(
    "factors, lines",
    [([1, 1, 0.5, 0.5, 0.5], ["block 0 (keys 0 to 1): right", "blocks 1 to 2 (keys 2 to 4): too small by the same"]),
     ([1, 1, 1, 1, 0], ["blocks 0 to 1 (keys 0 to 3): right", "block 2 (key 4): 0"])],
)  # fmt: skip
def test_of_blocks_of_keys_it_is_said_which_are_wrong(factors, lines):
    ((_, text),) = told(KEYS * factors, part(KEYS, index="key", tile=2))
    assert [said.removesuffix(" factor 0.5") for said in text.splitlines()[1:]] == lines


def test_rows_are_named():
    wrong = np.array([[1.0, 1.0], [1.0, 5.0], [1.0, 1.0], [1.0, 5.0]])
    said = "out is too large by the same factor 5 at rows 1, 3 of 4, column 1 of 2"
    assert told(wrong, part(np.ones((4, 2)))) == [("factor", said)]
