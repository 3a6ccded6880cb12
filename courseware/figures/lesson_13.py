"""Lesson 13's figures: the tiles of several masks, and what two queries of a tile say of the others."""

import numpy as np

from courseware.explorers.mask_painter import FATES, KINDS, fates, legend, tiles_panel
from courseware.explorers.svg import Page, Panel


def draw_masks(named, n_q, n_k, block_q, block_k):
    """The tiles of several masks, name -> mask, side by side: a Page."""
    every = {name: mask.tiles(n_q, n_k, block_q, block_k) for name, mask in named.items()}
    counts = [
        f"{name}: {', '.join(f'{int((tiles.kinds == kind).sum())} {KINDS[kind]}' for kind in range(3))}"
        for name, tiles in every.items()
    ]
    panels = [tiles_panel(tiles, name, 120, 4) for name, tiles in every.items()]
    return Page(f"Masks in tiles of {block_q} x {block_k}. {'. '.join(counts)}.", panels, (legend(),))


def draw_band(band, n, block, tile):
    """A query tile of a band of n queries and n keys, with what its first and last query, some and all of them see."""
    tiles = band.tiles(n, n, block, block)
    top, bottom = tiles.query_rows[tile]
    (first, last), (first_stop, last_stop) = band.key_range(np.array([top, bottom - 1]), n, n)
    ranges = {
        f"query {top} sees": (top, first, first_stop), f"query {bottom - 1} sees": (bottom - 1, last, last_stop),
        "some query sees": (bottom + 0.3, first, last_stop), "every query sees": (bottom + 1.5, last, first_stop),
    }  # fmt: skip
    panel = Panel(
        f"A tile of queries {top} to {bottom - 1}", 700, 190, (0, n), (bottom + 2.6, top), grid="", x_label="key",
        x_ticks=[(j + 0.5, str(j)) for j in range(0, n, block)], margins=(110, 8, 4, 36),
        y_ticks=[(row + 0.5, text) for text, (row, *_) in ranges.items()],
    )  # fmt: skip
    css = list(FATES.values())
    panel.cells([[css[fate] for fate in row] for row in fates(tiles)[top:bottom]], y=range(top, bottom + 1))
    for start, _ in tiles.key_rows:
        panel.line([(start, top), (start, bottom)], "thin ink")
    for row, start, stop in ranges.values():
        panel.rect((start, stop), (row, row + 1), "outline ink")
    said = "; ".join(f"{text} keys {start} to {stop - 1}" for text, (_, start, stop) in ranges.items())
    return Page(f"{panel.title}: {said}.", (panel,), (legend(),))
