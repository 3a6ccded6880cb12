"""A painted mask: what is drawn and said is what its tiles are, and a click flips one pair."""

import re

import numpy as np
import pytest

from course_lib import masks
from courseware.explorers import mask_painter as explorer
from courseware.explorers.mask_painter import STARTS, N, painted


def flips(*pairs):
    return f"{sum(1 << (i * N + j) for i, j in pairs):x}"


PAINTED = [
    painted("causal", "", 4, 4),
    painted("window", "", 3, 2),
    painted("nothing", flips((0, 0), (11, 11), (5, 2)), 4, 6),
    painted("full", flips((7, 3)), 12, 1),
]


@pytest.mark.parametrize("of", PAINTED, ids=str)
def test_colours_are_the_tiles_kinds(of):
    tiles, numbers = of.tiles, explorer.colour_numbers(of.tiles)
    visible = tiles.mask.dense(N, N)
    for i, j in np.ndindex(N, N):
        kind = tiles.kinds[i // of.block_q, j // of.block_k]
        expected = {masks.HIDDEN: 0, masks.PARTIAL: 2 if visible[i, j] else 1, masks.FULL: 3}[kind]
        assert numbers[i, j] == expected
    axes = explorer.draw(of).axes[0]
    np.testing.assert_array_equal(axes.collections[0].get_array(), numbers)
    said = explorer.describe(of)
    assert f"{tiles.visited.tiles} of {tiles.kinds.size} tiles" in said
    rows = [list(map(int, re.findall(r"<td>(\d+)</td>", row))) for row in said.split("<tr>")[2:]]
    counts, shown, computed = rows
    assert counts == [*((tiles.kinds == kind).sum() for kind in range(3)), tiles.kinds.size]
    assert shown[-1] == visible.sum() == sum(shown[:3]) and computed[-1] == (numbers > 0).sum() == sum(computed[:3])


def test_a_click_flips_one_pair_and_another_mask_begins_afresh():
    shell = explorer.explore()
    before = painted(**shell.values).tiles.mask.dense(N, N)
    *_, chosen = shell.figure.tooltips[3 * N + 5]
    shell.choose(chosen)
    changed = painted(**shell.values).tiles.mask.dense(N, N) != before
    assert np.argwhere(changed).tolist() == [[3, 5]] and "query 3, key 5: visible" in shell.tooltips.html
    *_, chosen = shell.figure.tooltips[3 * N + 5]
    shell.choose(chosen)
    np.testing.assert_array_equal(painted(**shell.values).tiles.mask.dense(N, N), before)
    shell.choose(shell.figure.tooltips[0][3])
    shell.controls["start"].value = "window"
    assert shell.values["flipped"] == ""
    np.testing.assert_array_equal(painted(**shell.values).tiles.mask.dense(N, N), STARTS["window"].dense(N, N))


def test_what_the_lesson_says_of_the_explorer():
    one_hidden = painted("full", flips((7, 3)), 4, 4).tiles
    assert one_hidden.visited.tiles == 9 and (one_hidden.kinds == masks.PARTIAL).sum() == 1
    nine = painted("nothing", flips(*((i, j) for i in (0, 4, 8) for j in (3, 7, 11))), 4, 4).tiles
    assert nine.visited.tiles == 9 and nine.mask.dense(N, N).mean() == 1 / 16
    wasted = {
        (q, k): painted("window", "", q, k).tiles.visited.pairs - STARTS["window"].dense(N, N).sum()
        for q in (1, 2, 3, 4, 6, 12)
        for k in (1, 2, 3, 4, 6, 12)
    }
    assert [sizes for sizes, pairs in wasted.items() if pairs == 0] == [(1, 1)]


def test_masks_side_by_side():
    figure = explorer.draw_masks({"causal": masks.causal(), "window": masks.sliding_window(1, 0)}, 8, 10, 4, 5)
    assert [axes.get_title("left") for axes in figure.axes] == ["causal", "window"]
    assert "causal: 0 hidden, 3 partial, 1 full" in figure.alt
    for axes, mask in zip(figure.axes, (masks.causal(), masks.sliding_window(1, 0)), strict=True):
        expected = explorer.colour_numbers(mask.tiles(8, 10, 4, 5))
        np.testing.assert_array_equal(axes.collections[0].get_array(), expected)
