"""Lesson 11's explorer and pictures: the model's parts against its formula, and what the page says."""

from itertools import product

import pytest

from courseware.bench import ladder_model, records
from courseware.bench.triton_ladder import RUNGS
from courseware.explorers import worklog

from .conftest import shapes, tips

EVERY = [(rung.name, n, causal) for rung, n, causal in product(RUNGS, (1024, 4096), (False, True))]


@pytest.mark.parametrize(
    "verdict, pairs",
    [
        ("as predicted", [(1.3, 1.3), (1.3, 1.25), (1.0, 1.01)]),
        ("less than predicted", [(1.3, 1.2), (1.3, 1.04), (0.5, 0.3), (1.0, 0.9)]),
        ("more than predicted", [(1.3, 1.4), (1.0, 1.1)]),
        ("no change, predicted otherwise", [(1.3, 1.01)]),
        ("the other way", [(1.3, 0.9), (0.9, 1.1)]),
    ],
)
def test_a_verdict_compares_the_measured_gain_with_the_predicted_one(verdict, pairs):
    assert [worklog.verdict(*pair) for pair in pairs] == len(pairs) * [verdict]


def test_the_parts_are_what_the_formula_adds_up():
    for name, n, causal in EVERY:
        model = worklog.evaluate(name, n, causal)
        pairs = ladder_model.ROWS * n / 64**2 / (2 if causal else 1)
        gpu = ladder_model.GPU
        clocks = ladder_model.predict_rung(model.counts, gpu) * gpu["clock_hz"] * gpu["sms"]
        assert sum(model.parts.values()) == pytest.approx(clocks / pairs), (name, n, causal)
        assert min(model.parts.values()) >= 0
        # 989 TFLOP/s is the most; products alone take 512 clocks of it for 64 x 64 scores.
        assert model.formula_tflops < 989


def test_the_page_shows_a_rung_below_the_one_that_it_builds_on_with_marks_where_the_clock_is():
    page = worklog.page("prefetch", 4096, True, "H100")
    models = [worklog.evaluate(name, causal=True) for name in ("fused scale", "prefetch")]
    parts = {f"{m.rung.name}: {part}": clocks for m in models for part, clocks in m.parts.items()}
    bars = {one["data-tip"]: float(one["width"]) for one in shapes(page) if one["class"].startswith("bar")}
    scale = sum(bars.values()) / sum(parts.values())
    assert bars == pytest.approx({name: scale * clocks for name, clocks in parts.items()}, abs=0.1)
    marks = [(m.measured_clocks, sum(m.parts.values())) for m in models]
    said = [f"{clocks:,.0f} clocks measured, {predicted:,.0f} predicted" for clocks, predicted in marks]
    assert tips(page, "(?:fused scale|prefetch): (?=.* clocks)") == said
    assert records.provenance("ladder-h100") in page.text and "causal" in page.html()
    assert "measured against none" in worklog.page("plain", 1024, False, "H100").text
    assert "not measured here" in worklog.page("vote alone", 4096, False, "H100").html()
    assert "measured 0.84" in worklog.page("vote alone", 4096, False, "H200").text
