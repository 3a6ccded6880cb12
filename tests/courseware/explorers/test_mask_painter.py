"""A painted mask: what is drawn and said is what its tiles are, and a click flips one pair."""

import re

import numpy as np
import pytest

from course_lib import masks
from courseware.explorers import mask_painter as explorer
from courseware.explorers.mask_painter import FATES, STARTS, N, painted

from .conftest import cells_of

PAINTED = [
    (["causal", []], 4, 4),
    (["window", []], 3, 2),
    (["nothing", [0, 143, 5 * N + 2]], 4, 6),
    (["full", [7 * N + 3]], 12, 1),
]


@pytest.mark.parametrize("of", PAINTED, ids=str)
def test_colours_and_numbers_are_the_tiles_kinds(of):
    mask, block_q, block_k = of
    tiles, page = painted(*mask).tiles(N, N, block_q, block_k), explorer.page(*of)
    visible = tiles.mask.dense(N, N)
    classes, computed_pairs = list(FATES.values()), 0
    for (i, j), (css, tip, _) in zip(np.ndindex(N, N), cells_of(page), strict=True):
        kind = tiles.kinds[i // block_q, j // block_k]
        fate = {masks.HIDDEN: 0, masks.PARTIAL: 2 if visible[i, j] else 1, masks.FULL: 3}[kind]
        assert css == classes[fate] and tip == f"query {i}, key {j}: {list(FATES)[fate]}"
        computed_pairs += fate > 0
    assert f"{tiles.visited.tiles} of {tiles.kinds.size} tiles" in page.text
    rows = [list(map(int, re.findall(r"<td>(\d+)</td>", row))) for row in page.text.split("<tr>")[2:]]
    counts, shown, computed = rows
    assert counts == [*((tiles.kinds == kind).sum() for kind in range(3)), tiles.kinds.size]
    assert shown[-1] == visible.sum() == sum(shown[:3]) and computed[-1] == computed_pairs == sum(computed[:3])


def test_a_click_flips_one_pair_and_the_menu_begins_afresh():
    shown = explorer.explore()
    before = STARTS["causal"].dense(N, N)
    settings = shown.start
    for clicked, flipped in (((3, 5), [(3, 5)]), ((0, 0), [(0, 0), (3, 5)]), ((3, 5), [(0, 0)])):
        *_, chosen = cells_of(shown.page(settings)[2])[clicked[0] * N + clicked[1]]
        settings = settings | chosen
        assert np.argwhere(painted(*settings["mask"]).dense(N, N) != before).tolist() == list(map(list, flipped))
    ((_, options),) = [(c["name"], dict(c["options"])) for c in shown.controls if c["name"] == "mask"]
    assert settings["mask"] not in options.values(), "so that the menu can be moved back to where it was"
    for name, mask in options.items():
        np.testing.assert_array_equal(painted(*mask).dense(N, N), STARTS[name].dense(N, N))
