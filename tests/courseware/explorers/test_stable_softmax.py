import re
from itertools import product

import numpy as np
import pytest

from course_lib.reference import logsumexp, naive_softmax, stable_softmax
from courseware.explorers import stable_softmax as explorer
from courseware.explorers.stable_softmax import AS_STORED, AT_LEAST_FLOAT32

from .conftest import tips

ROWS = explorer.rows()
# Spread and shift: as it is, beyond float32's exp both ways, and beyond float16's with terms that vanish.
MOVES = ((1, 0), (1, 90), (1, -130), (10, 0), (40, -1000))


def model_of(name, **settings):
    base, names = ROWS[name]
    return explorer.run(base, names=names, **settings)


def every_model(name):
    """(settings, model) of what the controls can choose for a row, for some spreads and shifts."""
    for method, dtype, arithmetic, (spread, shift) in product(
        explorer.METHODS, explorer.DTYPES, (AT_LEAST_FLOAT32, AS_STORED), MOVES
    ):
        settings = {"method": method, "dtype": dtype, "arithmetic": arithmetic, "spread": spread, "shift": shift}
        yield settings, model_of(name, **settings)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_every_number_agrees_with_the_library_and_stable_methods_with_the_exact_softmax(name):
    for settings, model in every_model(name):
        dtype, logits, by_name = model.logits.dtype, model.logits, {step.name: step.value for step in model.steps}
        stored = settings["arithmetic"] == AS_STORED
        work = dtype if stored else np.promote_types(dtype, np.float32)
        base, _ = ROWS[name]
        np.testing.assert_array_equal(logits, (settings["spread"] * base + settings["shift"]).astype(dtype))
        np.testing.assert_array_equal(model.exact, stable_softmax(logits.astype(np.float64)))
        np.testing.assert_array_equal(by_name["x"], logits)
        softmax, x, lse = by_name["softmax"], logits.astype(work), logsumexp(logits)
        assert dtype == settings["dtype"] == softmax.dtype
        assert all(step.value.dtype == work for step in model.steps[:-1])
        if model.method == "naive":
            np.testing.assert_array_equal(softmax, naive_softmax(x).astype(dtype))
        elif not stored:
            # lse is rounded to a step of its own size, so exp(x - lse) to a factor of that.
            size = np.abs(logits[np.isfinite(logits)]).max(initial=1).astype(np.float64)
            budget = 2 * np.finfo(dtype).eps + size * np.finfo(work).eps * (model.method == "log-sum-exp")
            np.testing.assert_allclose(softmax, model.exact, atol=budget)
            if model.method == "stable":
                np.testing.assert_array_equal(softmax, stable_softmax(logits))
            else:
                assert by_name["lse"] == lse
                by_lse = np.exp(x - lse) if np.isfinite(lse) else np.zeros(len(x))
                np.testing.assert_array_equal(softmax, by_lse.astype(dtype))


def test_naive_overflows_where_the_lesson_says_and_steps_end():
    assert np.isfinite(model_of("the sentence", method="naive", shift=84).steps[-1].value).all()
    assert np.isnan(model_of("the sentence", method="naive", shift=85).steps[-1].value).any()
    assert np.isnan(model_of("all of it masked", method="naive").steps[-1].value).all()
    for method, n_steps in zip(explorer.METHODS, (4, 6, 8), strict=True):
        settings, ends, _ = explorer.explore().page({"method": method, "taken": 8})
        assert ends["taken"] == settings["taken"] == n_steps


@pytest.mark.parametrize("dtype", explorer.DTYPES)
def test_limits_are_where_exp_leaves_its_range(dtype):
    low, high = explorer.limits(dtype)
    of = np.dtype(dtype).type
    step = 4 * abs(low) * np.finfo(dtype).eps
    with np.errstate(over="ignore", under="ignore"):
        assert np.isfinite(np.exp(of(high - step))) and np.exp(of(high + step)) == np.inf
        assert np.exp(of(low + step)) > 0 and np.exp(of(low - step)) == 0


@pytest.mark.parametrize("name", ROWS)
def test_a_page_shows_the_numbers_of_the_steps_taken_so_far(name):
    for settings, model in list(every_model(name))[::4]:
        for taken in range(1, 1 + len(model.steps)):
            page = explorer.page(name, taken=taken, **settings)
            assert f"Step {taken} of {len(model.steps)}" in page.text
            cells, seen = re.findall(r"<td>([^<]*)</td></tr>", page.text), model.steps[:taken]
            for cell, step in zip(cells, seen, strict=True):
                found = [float(x) for x in cell.strip("()").split(", ")]
                np.testing.assert_allclose(found, np.atleast_1d(step.value).astype(np.float64), rtol=5.001e-5, atol=0)
            assert ("Exact, in float64" in page.text) == (taken == len(model.steps))
            drawn = {step.place: step for step in seen if step.place != "line"}
            for step in drawn.values():
                found = [float(x) for x in tips(page, rf"{re.escape(step.name)} of \w+: ")]
                np.testing.assert_allclose(found, step.value.astype(np.float64), rtol=5.001e-5)
            assert len(tips(page, r"[\w -]+ of \w+: ")) == sum(len(step.value) for step in drawn.values())


def test_the_text_judges_the_result():
    assert "Not finite." in explorer.page("the sentence", method="naive", shift=90).text
    stored = {"dtype": "float16", "arithmetic": AS_STORED}
    model = model_of("12 random logits", **stored)
    error = np.abs(model.steps[-1].value.astype(np.float64) - model.exact).max()
    assert error > 0 and f"Largest error: {error:.1e}." in explorer.page("12 random logits", **stored).text
    # Four digits would hide the half of a number near a thousand.
    page = explorer.page("the sentence", method="log-sum-exp", shift=1000, **stored)
    assert "<td>1004.5</td>" in page.text and "lse = 1004.5" in page.html()
