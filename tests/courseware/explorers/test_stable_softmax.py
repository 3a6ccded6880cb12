import itertools
import re

import numpy as np
import pytest

from course_lib import traffic
from course_lib.reference import logsumexp, naive_softmax, stable_softmax
from courseware.explorers import stable_softmax as explorer
from courseware.explorers.figures import png

ROWS = explorer.rows()
ARITHMETIC = (explorer.AT_LEAST_FLOAT32, explorer.AS_STORED)
# Spread and shift: as it is, beyond float32's exp both ways, and beyond float16's with terms that vanish.
MOVES = ((1, 0), (1, 90), (1, -130), (10, 0), (40, -1000))


def model_of(name, **settings):
    base, names = ROWS[name]
    return explorer.run(base, names=names, **settings)


def every_model(name, taken=None):
    """What the controls can choose for a row, with so many steps taken, for some spreads and shifts."""
    choices = itertools.product(explorer.METHODS, explorer.DTYPES, ARITHMETIC, MOVES)
    for method, dtype, arithmetic, (spread, shift) in choices:
        yield (
            model_of(name, method=method, dtype=dtype, arithmetic=arithmetic, spread=spread, shift=shift, taken=taken),
            arithmetic,
        )


def values(model):
    """name -> value; where a name comes twice, the last."""
    return {step.name: step.value for step in model.steps}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_every_number_agrees_with_the_library(name):
    for model, arithmetic in every_model(name):
        dtype = model.logits.dtype
        work = dtype if arithmetic == explorer.AS_STORED else np.promote_types(dtype, np.float32)
        steps = values(model)
        np.testing.assert_array_equal(model.exact, stable_softmax(model.logits.astype(np.float64)))
        np.testing.assert_array_equal(steps["x"], model.logits)
        assert steps["softmax"].dtype == dtype
        assert all(step.value.dtype == work for step in model.steps[:-1])
        x = model.logits.astype(work)
        if model.method == "naive":
            np.testing.assert_array_equal(steps["softmax"], naive_softmax(x).astype(dtype))
        elif arithmetic == explorer.AT_LEAST_FLOAT32:
            lse = logsumexp(model.logits)
            if model.method == "stable":
                np.testing.assert_array_equal(steps["softmax"], stable_softmax(model.logits))
            else:
                assert steps["lse"] == lse
                by_lse = np.exp(x - lse) if np.isfinite(lse) else np.zeros(len(x))
                np.testing.assert_array_equal(steps["softmax"], by_lse.astype(dtype))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("method", ["stable", "log-sum-exp"])
def test_stable_methods_are_near_the_exact_softmax_in_every_dtype(name, method):
    for model, arithmetic in every_model(name):
        if model.method == method and arithmetic == explorer.AT_LEAST_FLOAT32:
            # lse is rounded to a step of its own size, so exp(x - lse) to a factor of that.
            size = np.abs(model.logits[np.isfinite(model.logits)]).max(initial=1).astype(np.float64)
            lse_step = size * np.finfo(np.promote_types(model.logits.dtype, np.float32)).eps
            budget = 2 * np.finfo(model.logits.dtype).eps + (lse_step if method == "log-sum-exp" else 0)
            np.testing.assert_allclose(model.steps[-1].value, model.exact, atol=budget)


def test_naive_overflows_where_the_lesson_says():
    assert np.isfinite(model_of("the sentence", method="naive", shift=84).steps[-1].value).all()
    assert np.isnan(model_of("the sentence", method="naive", shift=85).steps[-1].value).any()
    assert np.isnan(model_of("all of it masked", method="naive").steps[-1].value).all()


@pytest.mark.parametrize("taken, expected", [(-1, 1), (0, 1), (3, 3), (99, 6), (None, 6)])
def test_steps_taken_are_clamped(taken, expected):
    assert model_of("the sentence", method="stable", taken=taken).taken == expected


@pytest.mark.parametrize("dtype", explorer.DTYPES)
def test_limits_are_where_exp_leaves_its_range(dtype):
    low, high = explorer.limits(dtype)
    of = np.dtype(dtype).type
    step = 4 * abs(low) * np.finfo(dtype).eps
    with np.errstate(over="ignore", under="ignore"):
        assert np.isfinite(np.exp(of(high - step))) and np.exp(of(high + step)) == np.inf
        assert np.exp(of(low + step)) > 0 and np.exp(of(low - step)) == 0


@pytest.mark.parametrize("name", ROWS)
def test_every_number_in_the_text_comes_from_the_model(name):
    for taken in range(1, 1 + len(model_of(name, method="log-sum-exp").steps)):
        for model, _ in every_model(name, taken):
            text = explorer.describe(model)
            assert model.taken == min(taken, len(model.steps))
            assert f"Step {model.taken} of {len(model.steps)}" in text
            cells = re.findall(r"<td>([^<]*)</td></tr>", text)
            assert len(cells) == model.taken
            for cell, step in zip(cells, model.seen, strict=True):
                numbers = [float(x) for x in cell.strip("()").split(", ")]
                np.testing.assert_allclose(numbers, np.atleast_1d(step.value).astype(np.float64), rtol=5.001e-4, atol=0)
            assert ("Exact, in float64" in text) == (model.taken == len(model.steps))


def test_a_number_near_a_thousand_keeps_its_half():
    model = model_of("the sentence", method="log-sum-exp", shift=1000, dtype="float16", arithmetic=explorer.AS_STORED)
    assert values(model)["lse"] == 1004.5 and "<td>1004.5</td>" in explorer.describe(model)
    assert "lse = 1004.5" in explorer.draw(model).axes[1].get_title(loc="left")


def test_text_judges_the_result():
    assert "Not finite." in explorer.describe(model_of("the sentence", method="naive", shift=90))
    model = model_of("12 random logits", dtype="float16", arithmetic=explorer.AS_STORED)
    error = np.abs(model.steps[-1].value.astype(np.float64) - model.exact).max()
    assert error > 0 and f"Largest error: {error:.1e}." in explorer.describe(model)


@pytest.mark.parametrize("method", explorer.METHODS)
@pytest.mark.parametrize("name", ROWS)
def test_drawing_shows_the_model(name, method, heights):
    model = model_of(name, method=method, spread=10)
    steps = values(model)
    exponents, terms, softmax = explorer.draw(model).axes
    last = steps[{"naive": "x", "stable": "x - m", "log-sum-exp": "x - lse"}[method]]
    for axes, value, place in ((exponents, last, 0), (terms, steps["terms"], 0), (softmax, steps["softmax"], 1)):
        drawn = heights(axes.containers[place])
        np.testing.assert_allclose(drawn, np.where(np.isfinite(value), value, 0), rtol=1e-6)
        words = [text for text in axes.texts if text.get_text().strip() in ("NaN", "inf", "-inf", "0")]
        assert len(words) == (~np.isfinite(value) | (value == 0)).sum()
    np.testing.assert_array_equal(heights(softmax.containers[0]), model.exact)


@pytest.mark.parametrize("method, names", zip(explorer.METHODS, itertools.pairwise(ROWS), strict=True))
def test_every_step_changes_the_picture(method, names):
    for name in names:
        steps = range(1, 1 + len(model_of(name, method=method).steps))
        pictures = [png(explorer.draw(model_of(name, method=method, taken=taken))) for taken in steps]
        assert all(a != b for a, b in itertools.pairwise(pictures)), name


def test_shift_errors_end_where_exp_does_and_are_small_at_the_maximum():
    x = np.array([1, 2, 3, 4], np.float16)
    errors = explorer.shift_errors(x, [-8, 4, 10, 18, 22])
    assert np.isnan(errors[[0, 4]]).all()
    assert (errors[1:3] < 1e-3).all() and errors[3] > 1e-3
    exact = stable_softmax(x.astype(np.float64))
    assert errors[2] == np.abs(explorer.softmax_shifted_by(x, 10).astype(np.float64) - exact).max()
    (line, at_max) = explorer.draw_shifts({"x": x}, np.array([-8, 4, 10])).axes[0].lines
    np.testing.assert_array_equal(line.get_ydata(), errors[:3])
    np.testing.assert_array_equal(at_max.get_xydata(), [[4, errors[1]]])


def test_passes_are_counted_on_the_machine():
    def copy_twice(machine, X, P, tiles):
        for tile in tiles:
            machine.load(X, tile)
        for tile in tiles:
            machine.store(P, tile, machine.load(X, tile))

    x = np.arange(10, dtype=np.float32)
    copied, report = explorer.count_passes(copy_twice, x, 4, sram_bytes=32)
    np.testing.assert_array_equal(copied, x)
    assert report.by_tensor == {"x": traffic.TensorBytes(80, 0), "softmax": traffic.TensorBytes(0, 40)}


def test_the_explorer_follows_every_control(shell_of):
    def shown(**settings):
        model = model_of(**settings)
        return explorer.describe(model), explorer.draw(model)

    shell = shell_of(explorer.explore())
    start = {"name": "the sentence", "method": "stable", "taken": 6, "shift": 90}
    moves = [
        ("method", "naive", {"method": "naive", "taken": 4}),
        ("logits", "12 random logits", {"name": "12 random logits"}),
        ("stored in", "float16", {"dtype": "float16"}),
        ("times", 10, {"spread": 10}),
        ("computed in", explorer.AS_STORED, {"arithmetic": explorer.AS_STORED}),
        ("plus", -100, {"shift": -100}),
        ("method", "log-sum-exp", {"method": "log-sum-exp", "taken": 8}),
        ("step", 2, {"taken": 2}),
    ]
    shell.assert_follows(shown, start, moves)


def test_the_step_stays_within_the_steps_of_the_method(shell_of):
    shell = shell_of(explorer.explore())
    shell["method"].value = "log-sum-exp"
    shell["step"].value = 8
    shell["method"].value = "naive"
    assert (shell["step"].max, shell["step"].value) == (4, 4)
    assert shell["HTML"].value == explorer.describe(model_of("the sentence", method="naive", shift=90))
