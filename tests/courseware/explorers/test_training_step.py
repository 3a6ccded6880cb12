"""Lesson 17's explorer: at the measured shapes it shows what was measured, and scales it as FLOPs and tensors grow."""

import pytest

from courseware.bench import records
from courseware.explorers import training_step as explorer

from .conftest import numbers, tips

(MODEL,) = records.rows(explorer.RECORD, kind="model")
MEASURED = [row for row in records.rows(explorer.RECORD, kind="step") if row["method"] != "values" and "ms" in row]


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row['method']}-{row['n']}")
def test_a_measured_step_is_as_measured(row):
    model = explorer.evaluate(n=row["n"], method=row["method"], width=MODEL["width"], layers=MODEL["n_layers"])
    assert sum(model.ms) == pytest.approx(row["ms"], rel=1e-9)
    assert sum(model.n_bytes) == pytest.approx(row["peak_bytes"], rel=0.01)


def test_depth_multiplies_and_width_weighs_matrices():
    base, deep, wide = explorer.evaluate(), explorer.evaluate(layers=16), explorer.evaluate(width=2048)
    assert deep.ms == pytest.approx([2 * ms for ms in base.ms], rel=1e-9)
    assert [a / b for a, b in zip(wide.ms, base.ms, strict=True)] == pytest.approx([4, 2, 2], rel=1e-9)


def test_matrices_of_scores_are_longer_and_larger_with_the_context():
    eager = {n: explorer.evaluate(n=n, method="eager").n_bytes[2] for n in (8192, 16_384)}
    assert eager[16_384] == pytest.approx(2 * eager[8192], rel=0.01) and sum(eager.values()) > explorer.H200_BYTES


def test_bars_are_the_parts():
    model = explorer.evaluate(n=2048)
    page = explorer.draw(model)
    for part, ms in zip(explorer.TIME, model.ms, strict=True):
        assert numbers(tips(page, f"2k, {part}: ")[0])[-1] == pytest.approx(ms, rel=1e-3)
    assert f"2k {sum(model.ms):,.0f} ms" in page.alt
