"""Rows of a table become inputs, and a test gets what it asks for."""

import numpy as np
import pytest
from hypothesis import find
from hypothesis import strategies as st

from courseware.checks import Checks, case_of, not_modified, raises_value_error
from courseware.checks.calling import GuardedAnswer
from tests.courseware.checks.cells import function_of


def scaled(x, scale=2.0):
    return x * scale


def test_a_row_is_the_arguments_or_the_inputs_themselves_or_drawn():
    checks = Checks(scaled, lambda returned, **_: None)
    checks("of all kinds", [([1, 2],), {"x": np.ones(1), "scale": 3.0}, st.tuples(st.just([4]), st.just(5.0))])
    (prop,) = checks
    assert prop.call == "scaled(x, scale)"
    first, second = prop.cases
    assert first["x"].dtype == np.float64 and first["x"].tolist() == [1, 2] and first["scale"] == 2.0
    assert second == {"x": np.ones(1), "scale": 3.0}
    drawn = find(prop.draw, lambda inputs: True)
    assert drawn["x"].tolist() == [4] and drawn["scale"] == 5.0


def test_a_row_that_does_not_fit_is_refused():
    case = case_of("x scale", scale=3.0)
    assert case(1.0) == case_of(scaled, scale=3.0)(1.0) == {"x": 1.0, "scale": 3.0}
    with pytest.raises(TypeError):
        case(1, scael=2)


def test_a_test_judges_what_the_call_returns_unless_it_makes_the_call():
    seen = []
    checks = Checks(scaled, lambda returned, x, scale: seen.append((returned, x, scale)))
    checks("judged", [(1.5,)])
    of_its_own = lambda answer, x, scale: seen.append(answer(x, 4.0))  # noqa: E731
    checks("of a call of its own", [(1.5,)], call="2 * scaled(x, 4.0)", calls=of_its_own)
    for prop in checks:
        assert prop.test(GuardedAnswer(scaled), **prop.cases[0]) is None
    assert seen == [(3.0, 1.5, 2.0), 6.0]
    assert [prop.call for prop in checks] == ["scaled(x, scale)", "2 * scaled(x, 4.0)"]


def test_an_exception_that_is_a_value_error_will_do():
    for kind, will_do in (("UnicodeError", True), ("LookupError", False)):
        answer = function_of(f"def answer(size):\n    raise {kind}('too small')\n")
        assert (raises_value_error(GuardedAnswer(answer), size=1) is None) == will_do


def test_an_argument_that_is_changed_is_told_with_the_line():
    halved = function_of("def halved(x):\n    view = np.asarray(x)\n    view /= 2\n    return view\n")
    (finding,) = not_modified(GuardedAnswer(halved), x=np.ones(2)).findings
    assert finding.text == "the call changed its argument x in place\n  line 3, in halved:  view /= 2"
