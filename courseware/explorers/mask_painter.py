"""Lesson 13's explorer: paint a mask, and see which tiles a kernel skips, which it masks and which it takes whole.

`draw_masks` is the same picture for given masks. What a mask makes of its tiles is what `masks.Tiles` says.
"""

from dataclasses import dataclass

import numpy as np
from ipywidgets import Text

from course_lib import masks

from .drawing import cells, pale
from .figures import BLUE, INK, ORANGE, Picture, label, panels, tidy
from .shell import Explorer, choice, menu
from .tooltips import tooltip
from .words import table

N = 12  # queries, and keys, of the mask that is painted
LAYOUT = np.array([[True, False, False, True], [False, True, False, False]] * 2) | np.eye(4, dtype=bool)
STARTS = {
    "causal": masks.causal(),
    "window": masks.sliding_window(3, 0),
    "prefix-LM": masks.prefix_lm(4),
    "documents": masks.documents([0] * 5 + [1] * 4 + [2] * 3),
    "blocks": masks.block_sparse(LAYOUT, 3),
    "full": masks.full(),
    "nothing": masks.block_sparse(np.zeros((1, 1), bool), N),
}
KINDS = ("hidden", "partial", "full")
HIDDEN, MASKED = "#DDDDDD", pale(ORANGE)  # pairs that are never computed, and pairs that are computed for nothing
COLOURS = (HIDDEN, MASKED, ORANGE, BLUE)
MEANING = ("in a tile that is skipped", "hidden, but computed", "visible, in a partial tile", "in a full tile")


@dataclass(frozen=True)
class Painted:
    """The mask `start` with some pairs flipped: bit i * N + j of `flipped` stands for query i and key j."""

    start: str
    flipped: int
    block_q: int
    block_k: int

    @property
    def tiles(self):
        flips = np.array([[self.flipped >> (i * N + j) & 1 for j in range(N)] for i in range(N)], dtype=bool)
        mask = masks.block_sparse(STARTS[self.start].dense(N, N) ^ flips, 1)
        return mask.tiles(N, N, self.block_q, self.block_k)


def painted(start, flipped, block_q, block_k):
    """The model of the explorer's controls. flipped: hexadecimal, empty for none."""
    return Painted(start, int(flipped or "0", 16), block_q, block_k)


def colour_numbers(tiles):
    """[n_q, n_k]: the place in COLOURS of every pair."""
    visible = tiles.mask.dense(tiles.n_q, tiles.n_k)
    kinds = np.repeat(np.repeat(tiles.kinds, tiles.block_q, axis=0), tiles.block_k, axis=1)[: tiles.n_q, : tiles.n_k]
    return np.where(kinds == masks.PARTIAL, 1 + visible, np.where(kinds == masks.FULL, 3, 0))


def draw_tiles(axes, tiles, *, pair_lines):
    """Pairs in the colours of what becomes of them, and the edges of tiles: queries downwards, keys to the right."""
    lines = {} if pair_lines else {"edgecolors": "none"}
    cells(axes, colour_numbers(tiles), COLOURS, **lines)
    for edges, line in ((tiles.query_rows, axes.axhline), (tiles.key_rows, axes.axvline)):
        for start, _ in edges[1:]:
            line(start, color=INK, linewidth=0.8)
    axes.set(xlim=(0, tiles.n_k), ylim=(tiles.n_q, 0), aspect="equal")
    axes.locator_params(nbins=4, integer=True)


def in_words(tiles):
    """How many tiles are of each kind, for alternative text."""
    return ", ".join(f"{int((tiles.kinds == kind).sum())} {name}" for kind, name in enumerate(KINDS))


def _legend(figure, y):
    for i, (colour, meaning) in enumerate(zip(COLOURS, MEANING, strict=True)):
        label(figure, 0.03 + 0.25 * i, y, "\u25a0", color=colour, size=14, ha="left")
        label(figure, 0.055 + 0.25 * i, y, meaning, ha="left")


def draw_masks(named, n_q, n_k, block_q, block_k):
    """The tiles of several masks, name -> mask, side by side. Returns a figure."""
    every = {name: mask.tiles(n_q, n_k, block_q, block_k) for name, mask in named.items()}
    alt = (
        f"Masks in tiles of {block_q} x {block_k}. {'. '.join(f'{name}: {in_words(t)}' for name, t in every.items())}."
    )
    figure, row = panels(2.7, *[1] * len(every), alt=alt, left=0.055, wspace=0.3, below=0.75, above=0.3)
    for axes, (name, tiles) in zip(row, every.items(), strict=True):
        draw_tiles(axes, tiles, pair_lines=False)
        tidy(axes, title=name, x="key", y="query" if axes is row[0] else None)
    _legend(figure, 0.05)
    return figure


def describe(of):
    """The tiles of each kind, and what a kernel computes and reads, as HTML."""
    tiles, visible = of.tiles, of.tiles.mask.dense(N, N)
    visited, every = tiles.visited, tiles.kinds.size
    counts = [str(int((tiles.kinds == kind).sum())) for kind in range(len(KINDS))]
    rows = [
        ("tiles", *counts, str(every)),
        ("pairs that are visible", "0", *(str(int((visible & (colour_numbers(tiles) == c)).sum())) for c in (2, 3)),
         str(int(visible.sum()))),
        ("pairs that are computed", "0", *(str(int(np.isin(colour_numbers(tiles), c).sum())) for c in ((1, 2), 3)),
         str(visited.pairs)),
    ]  # fmt: skip
    n_tiles = len(tiles.query_rows)
    return (
        f"<b>{visited.tiles} of {every} tiles</b> are visited, with {visited.keys} of {n_tiles * N} rows of K, and as "
        f"many of V. If every tile takes equally long, a kernel needs <b>{visited.tiles / every:.0%}</b> of its time "
        f"without a mask. {table(rows, ('', *KINDS, 'all'))}"
    )


def draw(of):
    """The painted mask, each pair of which can be flipped by a click. Returns a figure."""
    tiles, numbers = of.tiles, colour_numbers(of.tiles)
    alt = f"A mask of {N} queries and keys in tiles of {of.block_q} x {of.block_k}: {in_words(tiles)}."
    figure = Picture(4.6, 8.4, alt=alt)
    axes = figure.add_axes((0.06, 0.17, 0.9, 0.79))
    draw_tiles(axes, tiles, pair_lines=True)
    tidy(axes, x="key", y="query")
    _legend(figure, 0.03)
    axes.apply_aspect()
    for i, j in np.ndindex(N, N):
        text = f"query {i}, key {j}: {MEANING[numbers[i, j]]}"
        tooltip(axes, (j, j + 1), (i, i + 1), text, flipped=f"{of.flipped ^ 1 << (i * N + j):x}")
    return figure


def explore():
    """The explorer as a widget: a mask to begin with, the sizes of tiles, and pairs that a click flips."""
    start, flipped = menu("begin with", STARTS, "causal"), Text(layout={"display": "none"})
    start.observe(lambda _: flipped.set_trait("value", ""), names="value")
    sizes = {f"block_{of}": choice(f"block_{of}", (1, 2, 3, 4, 6, 12), 4) for of in "qk"}
    return Explorer(painted, describe, draw, {"start": start, "flipped": flipped}, sizes)
