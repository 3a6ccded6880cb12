"""The grid of score tiles: which of them FlashAttention visits, in which order, and which it skips.

`tile_grid` is the model; `draw_tile_grid` draws it into axes that a picture or a widget has made. The tests compare
the visits with the loads that the memory machine logs.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.patheffects import withStroke

from course_lib import masks, traffic

from .drawing import cells
from .figures import GREY, INK, ORANGE, VERMILLION, label, tidy

ORDERS = ("q_outer", "kv_outer")
VISITED, SKIPPED = "#9DCBEA", "#D5D5D5"
FACES = (SKIPPED, "white", VISITED, ORANGE)  # skipped, to be visited, visited, being visited
# Larger grids are drawn without these: numbers would be too small to read, and lines would cover the tiles.
MAX_NUMBERED_TILES, MAX_PATH_TILES, MAX_LINES = 81, 1024, 64


@dataclass(frozen=True)
class TileGrid:
    """The tiles of the scores, and the order in which they are visited. Tile (i, j): query tile i, key tile j.

    visit_number: [query tiles, key tiles] int, 1 for the tile that is visited first, 0 for a skipped one.
    """

    tiles: masks.Tiles
    order: str
    visit_number: np.ndarray

    @property
    def n_visits(self):
        return int((self.visit_number > 0).sum())

    @cached_property
    def visits(self):
        """(i, j) of the visited tiles, in order."""
        visited = np.argwhere(self.visit_number > 0)
        in_order = visited[np.argsort(self.visit_number[tuple(visited.T)])]
        return tuple((int(i), int(j)) for i, j in in_order)

    @cached_property
    def skipped(self):
        """(i, j) of the tiles that are never visited, row by row."""
        return tuple((int(i), int(j)) for i, j in np.argwhere(self.visit_number == 0))

    def rows_of(self, visit):
        """What meets in a visit, counted from 1, in words: ("queries 4 to 7", "keys 0 to 2")."""
        i, j = self.visits[visit - 1]
        spans = ("queries", self.tiles.query_rows[i]), ("keys", self.tiles.key_rows[j])
        return tuple(f"{name} {start} to {stop - 1}" for name, (start, stop) in spans)

    @property
    def pairs(self):
        """How many scores each visit computes."""
        queries, keys = (np.ptp(rows, axis=1) for rows in (self.tiles.query_rows, self.tiles.key_rows))
        return [int(queries[i] * keys[j]) for i, j in self.visits]


def tile_grid(n_q, n_k, block_q, block_k, causal, order):
    """Which tiles are visited, in which order: a TileGrid.

    Sizes are counts of at least 1. order: "q_outer" (FA2 Alg. 1) or "kv_outer" (FA1 Alg. 1).
    Raises ValueError or TypeError as traffic.flash_attention does.
    """
    # The same checks, and the same messages, as for the bytes that are shown beside the grid.
    traffic.flash_attention(n_q, n_k, 1, block_q=block_q, block_k=block_k, causal=causal, order=order)
    mask = masks.causal() if causal else masks.full()
    tiles = mask.tiles(n_q, n_k, block_q, block_k)
    visited = tiles.kinds != masks.HIDDEN
    if order == "q_outer":
        number = np.cumsum(visited).reshape(visited.shape)
    else:
        number = np.cumsum(visited.T).reshape(visited.T.shape).T
    return TileGrid(tiles, order, np.where(visited, number, 0))


def draw_tile_grid(axes, model, step=None, max_numbered=MAX_NUMBERED_TILES):
    """Draw the grid after `step` visits (None: all of them) into `axes`: queries downwards, keys to the right.

    Blue tiles have been visited, the orange one is being visited, white ones come later, grey ones are skipped. Small
    grids show the visit numbers, larger ones the path. A red line separates visible from hidden scores. step is clipped
    to the visits there are. max_numbered: the largest number of tiles that get a number each, since numbers take most
    of the time of a redraw.
    """
    tiles, number = model.tiles, model.visit_number
    step = model.n_visits if step is None else int(np.clip(step, 0, model.n_visits))
    # Places in FACES; none is being visited after the last visit.
    done = np.where(number == 0, 0, np.where(number > step, 1, 2))
    if 0 < step < model.n_visits:
        done[number == step] = 3
    x = np.array([0, *(stop for _, stop in tiles.key_rows)])
    y = np.array([0, *(stop for _, stop in tiles.query_rows)])
    lines = {"edgecolors": GREY, "linewidth": 0.6} if max(number.shape) <= MAX_LINES else {"edgecolors": "none"}
    cells(axes, done, FACES, x=x, y=y, **lines)
    centre_x, centre_y = (x[:-1] + x[1:]) / 2, (y[:-1] + y[1:]) / 2
    if number.size <= max_numbered:
        for i, j in model.visits:
            # The stair passes behind numbers, not through them.
            crossed = tiles.kinds[i, j] == masks.PARTIAL
            halo = [withStroke(linewidth=4, foreground=FACES[done[i, j]])] if crossed else []
            label(axes, centre_x[j], centre_y[i], str(number[i, j]), size=8.5, path_effects=halo)
    elif number.size <= MAX_PATH_TILES and step:
        i, j = np.array(model.visits[:step]).T
        axes.plot(centre_x[j], centre_y[i], color=INK, linewidth=0.6)
    if tiles.mask == masks.causal():
        # Each query's end of what it sees, as a stair where there is room for one.
        _, stop = tiles.mask.key_range(np.arange(tiles.n_q), tiles.n_q, tiles.n_k)
        style = {"color": VERMILLION, "linewidth": 1.4, "drawstyle": "steps-pre" if tiles.n_q <= 64 else "default"}
        axes.plot(np.append(stop, tiles.n_k), np.arange(tiles.n_q + 1), **style)
    tidy(axes, x="key", y="query")
    axes.set_xlim(0, tiles.n_k)
    axes.set_ylim(tiles.n_q, 0)
    axes.locator_params(nbins=3, integer=True)
