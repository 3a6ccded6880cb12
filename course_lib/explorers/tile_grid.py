"""The grid of score tiles: which of them FlashAttention visits, in which order, and which it skips.

`tile_grid` is the model, `draw_tile_grid` draws it into axes that a picture or a widget has made. The rule is
that of `course_lib.traffic`; tests hold it against the loads that the memory machine logs.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap

from course_lib import traffic

from .figures import GREY, INK, ORANGE, VERMILLION, Labels, tidy

ORDERS = ("q_outer", "kv_outer")
VISITED, SKIPPED = "#9DCBEA", "#D5D5D5"
# More than these are not drawn: numbers become unreadable, lines a grey veil.
MAX_NUMBERED_TILES, MAX_PATH_TILES, MAX_LINES = 81, 1024, 64


@dataclass(frozen=True)
class TileGrid:
    """Tiles of the n_q x n_k scores: tile (i, j) is query tile i against key tile j, both counted from 0.

    visit_number: [query tiles, key tiles] int, 1 for the tile that is visited first, 0 for a skipped one.
    partly_hidden: [query tiles, key tiles] bool, visited tiles in which causal hides some scores, not all.
    """

    n_q: int
    n_k: int
    block_q: int
    block_k: int
    causal: bool
    order: str
    visit_number: np.ndarray
    partly_hidden: np.ndarray

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

    def query_rows(self, i):
        """(start, stop) of query tile i, cut at n_q."""
        return i * self.block_q, min((i + 1) * self.block_q, self.n_q)

    def key_rows(self, j):
        """(start, stop) of key tile j, cut at n_k."""
        return j * self.block_k, min((j + 1) * self.block_k, self.n_k)


def tile_grid(n_q, n_k, block_q, block_k, causal, order):
    """Which tiles are visited, in which order: a TileGrid.

    Sizes are counts of at least 1. causal: query i sees keys 0 to i + n_k - n_q. order: "q_outer" (FA2 Alg. 1)
    or "kv_outer" (FA1 Alg. 1). A tile is skipped if its last query does not see its first key.
    Raises ValueError or TypeError as traffic.flash_attention does.
    """
    # The same checks, and the same messages, as the bytes that will stand beside the picture.
    traffic.flash_attention(n_q, n_k, 1, block_q=block_q, block_k=block_k, causal=causal, order=order)
    q_starts, k_starts = np.arange(0, n_q, block_q), np.arange(0, n_k, block_k)
    q_stops, k_stops = np.minimum(q_starts + block_q, n_q), np.minimum(k_starts + block_k, n_k)
    visited = np.ones((len(q_starts), len(k_starts)), bool)
    partly_hidden = np.zeros_like(visited)
    if causal:
        offset = n_k - n_q
        visited = q_stops[:, None] - 1 + offset >= k_starts
        partly_hidden = visited & (q_starts[:, None] + offset < k_stops - 1)
    if order == "q_outer":
        number = np.cumsum(visited).reshape(visited.shape)
    else:
        number = np.cumsum(visited.T).reshape(visited.T.shape).T
    return TileGrid(n_q, n_k, block_q, block_k, causal, order, np.where(visited, number, 0), partly_hidden)


def draw_tile_grid(axes, model, step=None, max_numbered=MAX_NUMBERED_TILES):
    """Draw the grid after `step` visits (None: all of them) into `axes`: queries downwards, keys to the right.

    Blue tiles have been visited, the orange one is being visited, white ones wait, grey ones are skipped. Small
    grids carry the visit numbers, larger ones the path; a red line bounds what causal hides. step is clamped.
    max_numbered: up to how many tiles; numbers are what a redraw takes longest for.
    """
    step = model.n_visits if step is None else int(np.clip(step, 0, model.n_visits))
    number = model.visit_number
    # 0 skipped, 1 waiting, 2 visited before, 3 being visited; with all visits done none is being visited.
    done = np.where(number == 0, 0, np.where(number > step, 1, 2))
    if 0 < step < model.n_visits:
        done[number == step] = 3
    tiles_q, tiles_k = number.shape
    x = np.minimum(np.arange(tiles_k + 1) * model.block_k, model.n_k)
    y = np.minimum(np.arange(tiles_q + 1) * model.block_q, model.n_q)
    axes.pcolorfast(x, y, done, cmap=ListedColormap([SKIPPED, "white", VISITED, ORANGE]), vmin=0, vmax=3)
    if max(tiles_q, tiles_k) <= MAX_LINES:
        lines = [((at, 0), (at, model.n_q)) for at in x] + [((0, at), (model.n_k, at)) for at in y]
        axes.add_collection(LineCollection(lines, colors=GREY, linewidths=0.6), autolim=False)
    centre_x, centre_y = (x[:-1] + x[1:]) / 2, (y[:-1] + y[1:]) / 2
    if number.size <= max_numbered:
        i, j = np.nonzero(number)
        axes.add_artist(Labels(centre_x[j], centre_y[i], [str(visit) for visit in number[i, j]], fontsize=8.5))
    elif number.size <= MAX_PATH_TILES and step:
        i, j = np.array(model.visits[:step]).T
        axes.plot(centre_x[j], centre_y[i], color=INK, linewidth=0.6)
    if model.causal:
        _draw_causal_bound(axes, model)
    tidy(axes, x="key", y="query")
    axes.set_xlim(0, model.n_k)
    axes.set_ylim(model.n_q, 0)
    axes.locator_params(nbins=3, integer=True)


def _draw_causal_bound(axes, model):
    """The line left of which every score is visible: query i sees keys up to i + n_k - n_q."""
    query = np.arange(model.n_q + 1)
    seen = np.clip(query + 1 + model.n_k - model.n_q, 0, model.n_k)
    if model.n_q <= MAX_LINES:
        axes.plot(np.repeat(seen[:-1], 2), np.repeat(query, 2)[1:-1], color=VERMILLION, linewidth=1.4)
    else:
        axes.plot(seen, query, color=VERMILLION, linewidth=1.4)
