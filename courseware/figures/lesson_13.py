"""Lesson 13's figure: the tiles of several masks."""

from courseware.explorers.mask_painter import KINDS, legend, tiles_panel
from courseware.explorers.svg import Page


def draw_masks(named, n_q, n_k, block_q, block_k):
    """The tiles of several masks, name -> mask, side by side: a Page."""
    every = {name: mask.tiles(n_q, n_k, block_q, block_k) for name, mask in named.items()}
    counts = [
        f"{name}: {', '.join(f'{int((tiles.kinds == kind).sum())} {KINDS[kind]}' for kind in range(3))}"
        for name, tiles in every.items()
    ]
    panels = [tiles_panel(tiles, name, 120, 4) for name, tiles in every.items()]
    return Page(f"Masks in tiles of {block_q} x {block_k}. {'. '.join(counts)}.", panels, (legend(),))
