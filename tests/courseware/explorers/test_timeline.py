"""The timeline of the Hopper kernel's groups: what is drawn is the simulation, and the words are its numbers."""

import pytest
from matplotlib.colors import to_rgba

from courseware.explorers import timeline as explorer
from courseware.explorers.figures import INK, PALE
from courseware.explorers.timeline import Settings
from courseware.simulators import sm_simulator

CHOSEN = [
    Settings(rung, stages, consumers, head_dim)
    for rung in sm_simulator.RUNGS for stages, consumers, head_dim in ((1, 1, 128), (2, 2, 64), (4, 2, 128))
]  # fmt: skip


@pytest.mark.parametrize("s", CHOSEN, ids=str)
def test_the_model_is_a_run_without_findings(s):
    model = explorer.evaluate(s)
    assert not model.run.findings
    groups = [lane for lane in model.lanes if lane != "copies"]
    assert len(groups) == s.groups
    for lane in groups:
        products = [span.what for span in model.lanes[lane] if span.unit == "tensor"]
        assert sorted(products) == sorted(f"{which} {tile}" for tile in range(explorer.KEY_TILES) for which in "SO")
    assert 0 < model.steady_share <= 1 + 1e-9


def bars(figure, colour):
    """[(start, end)] of the bars in a colour."""
    axes, found = figure.axes[0], []
    for collection in axes.collections:
        if collection.get_facecolor()[0].tolist() == pytest.approx(list(to_rgba(colour))):
            found += [(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in collection.get_paths()]
    return sorted(found)


@pytest.mark.parametrize("s", CHOSEN, ids=str)
def test_every_product_copy_and_bubble_is_drawn_when_it_happens(s):
    model = explorer.evaluate(s)
    figure, run = explorer.draw(model), model.run
    for kind, (_, colour, _) in explorer.KINDS.items():
        if kind in ("copy to K", "copy to V", "S", "O", "store"):
            drawn = [span for span in run.spans if span.what.startswith(kind) and span.unit != "wait"]
            spans = sorted((span.start, span.end) for span in drawn)
            assert bars(figure, colour) == [pytest.approx(span) for span in spans], kind
    assert bars(figure, INK) == [pytest.approx(piece) for piece in run.busy("tensor")]
    assert bars(figure, PALE) == [pytest.approx(piece) for piece in run.bubbles("tensor")]
    assert f"{run.share('tensor'):.0%} of the time in the picture" in figure.alt


def test_the_words_are_the_numbers():
    model = explorer.evaluate(Settings("next scores first", 3, 2, 64))
    text = explorer.describe(model)
    assert f"{model.steady.cycles_per_key_tile:,.0f} cycles for 128 query rows" in text
    assert f"busy {model.steady_share:.0%}" in text and "it does not fit" not in text
    assert "it does not fit" in explorer.describe(explorer.evaluate(Settings("next scores first", 4)))
    assert "always has 1 group that computes" in explorer.describe(explorer.evaluate(Settings("one group")))


def test_the_explorer_follows_its_controls(shell_of):
    def shown(**chosen):
        model = explorer.evaluate(Settings(**chosen))
        return explorer.describe(model), explorer.draw(model)

    moves = [
        ("rung", "next scores first", {"rung": "next scores first"}), ("stages", 1, {"stages": 1}),
        ("consumers", 1, {"consumers": 1}), ("d", 64, {"head_dim": 64}), ("keys of a tile", 64, {"block_k": 64}),
    ]  # fmt: skip
    shell_of(explorer.explore()).assert_follows(shown, {}, moves)
