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
    """A query tile of a band of n queries and n keys, with the ranges of its first and last query: a Page."""
    tiles = band.tiles(n, n, block, block)
    top, bottom = tiles.query_rows[tile]
    starts, stops = band.key_range(np.array([top, bottom - 1]), n, n)
    ends = {top: (starts[0], stops[0]), bottom - 1: (starts[1], stops[1])}
    panel = Panel(
        f"A tile of queries {top} to {bottom - 1}", 700, 190, (0, n), (bottom + 2.6, top), grid="", x_label="key",
        x_ticks=[(j + 0.5, str(j)) for j in range(0, n, block)],
        y_ticks=[(i + 0.5, f"query {i}") for i in ends], margins=(66, 8, 4, 36),
    )  # fmt: skip
    css = list(FATES.values())
    panel.cells([[css[fate] for fate in row] for row in fates(tiles)[top:bottom]], y=range(top, bottom + 1))
    for start, _ in tiles.key_rows:
        panel.line([(start, top), (start, bottom)], "thin ink")
    for query, sees in ends.items():
        panel.rect(sees, (query, query + 1), "outline ink")
    together = {"some query sees": (starts[0], stops[1]), "every query sees": (starts[1], stops[0])}
    for place, (text, keys) in enumerate(together.items()):
        panel.rect(keys, (bottom + 0.4 + place, bottom + 1.1 + place), "bar grey")
        panel.text(sum(keys) / 2, bottom + 0.75 + place, text, "middle on-colour")
    said = [f"query {query} sees" for query in ends] + list(together)
    keys = [f"keys {start} to {stop - 1}" for start, stop in (*ends.values(), *together.values())]
    alt = "; ".join(map(" ".join, zip(said, keys, strict=True)))
    return Page(f"{panel.title}: {alt}.", (panel,), (legend(),))
