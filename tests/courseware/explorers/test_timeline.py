"""The timeline of the Hopper kernel's groups: what is drawn is the simulation, and the words are its numbers."""

import re

import pytest

from courseware.explorers import timeline as explorer
from courseware.simulators import sm_simulator

from .conftest import numbers, tips

CHOSEN = [
    {"rung": rung, "stages": stages, "consumers": consumers, "head_dim": head_dim}
    for rung in sm_simulator.RUNGS for stages, consumers, head_dim in ((1, 1, 128), (2, 2, 64), (4, 2, 128))
]  # fmt: skip


@pytest.mark.parametrize("s", CHOSEN, ids=str)
def test_a_run_without_findings_is_drawn_when_it_happens(s):
    model = explorer.evaluate(**s)
    page, run = explorer.draw(model), model.run
    assert not run.findings and 0 < model.steady_share <= 1 + 1e-9
    groups = [lane for lane in model.lanes if lane != "copies"]
    assert len(groups) == model.groups
    for lane in groups:
        products = [span.what for span in model.lanes[lane] if span.unit == "tensor"]
        assert sorted(products) == sorted(f"{which} {tile}" for tile in range(explorer.KEY_TILES) for which in "SO")
    expected = {"busy": run.busy("tensor"), "a bubble": run.bubbles("tensor")}
    for kind in ("copy to K", "copy to V", "S", "O", "store"):
        pattern = rf"{kind}[^(]*\({re.escape(explorer.KINDS[kind][0])}\)"
        spans = [span for span in run.spans if span.what.startswith(kind) and span.unit != "wait"]
        expected[pattern] = [(span.start, span.end) for span in spans]
    for pattern, cycles in expected.items():
        drawn = [tuple(numbers(tip)) for tip in tips(page, f"{pattern}: cycles ")]
        assert sorted(drawn) == [pytest.approx(span, abs=0.51) for span in sorted(cycles)], pattern
    assert f"{run.share('tensor'):.0%} of the time in the picture" in page.alt


def test_the_words_are_the_numbers():
    model = explorer.evaluate(rung="next scores first", stages=3, consumers=2, head_dim=64)
    text = explorer.draw(model).text
    assert f"{model.steady.cycles_per_key_tile:,.0f} cycles for 128 query rows" in text
    assert f"busy {model.steady_share:.0%}" in text and "it does not fit" not in text
    assert "it does not fit" in explorer.draw(explorer.evaluate(rung="next scores first", stages=4)).text
    assert "always has 1 group that computes" in explorer.draw(explorer.evaluate(rung="one group")).text
