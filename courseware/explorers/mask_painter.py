"""Lesson 13's explorer: paint a mask, and see which tiles a kernel skips, which it masks and which it takes whole.

What a mask makes of its tiles is what `masks.Tiles` says.
"""

import numpy as np

from course_lib import masks

from .explorer import Explorer, menu, slider
from .svg import Page, Panel
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
# What becomes of a pair, with the class that it is drawn in.
FATES = {
    "in a tile that is skipped": "skipped", "hidden, but computed": "now pale", "visible, in a partial tile": "now",
    "in a full tile": "Q",
}  # fmt: skip


def painted(start, flipped):
    """The mask STARTS[start] with some pairs flipped: i * N + j in `flipped` stands for query i and key j."""
    visible = STARTS[start].dense(N, N)
    visible.flat[list(flipped)] ^= True
    return masks.block_sparse(visible, 1)


def fates(tiles):
    """[n_q, n_k]: what becomes of every pair, as the place of one of FATES."""
    visible = tiles.mask.dense(tiles.n_q, tiles.n_k)
    kinds = np.repeat(np.repeat(tiles.kinds, tiles.block_q, axis=0), tiles.block_k, axis=1)[: tiles.n_q, : tiles.n_k]
    return np.where(kinds == masks.PARTIAL, 1 + visible, np.where(kinds == masks.FULL, 3, 0))


def tiles_panel(tiles, title, size, step, **about):
    """Pairs in the colours of what becomes of them, and the edges of tiles: queries downwards, keys to the right.

    size: pixels of the longer side. step: between ticks. about: what `Panel.cells` says of each pair; without it, pairs
    have no edges.
    """
    n_q, n_k = tiles.n_q, tiles.n_k
    pixels = size / max(n_q, n_k)
    panel = Panel(
        title, round(n_k * pixels) + 42, round(n_q * pixels) + 46, (0, n_k), (n_q, 0),
        x_ticks=[(j + 0.5, str(j)) for j in range(0, n_k, step)], x_label="key",
        y_ticks=[(i + 0.5, str(i)) for i in range(0, n_q, step)], y_label="query", grid="", margins=(34, 8, 8, 38),
    )  # fmt: skip
    classes = [css if about else f"{css} flat" for css in FATES.values()]
    panel.cells([[classes[fate] for fate in row] for row in fates(tiles)], **about)
    for start, _ in tiles.query_rows[1:]:
        panel.level(start, "thin ink")
    for start, _ in tiles.key_rows[1:]:
        panel.upright(start, "thin ink")
    return panel


def legend():
    """What the colours mean."""
    panel = Panel("A pair of a query and a key is", 400, 36, (0, 1), (0, 1))
    for i, (fate, css) in enumerate(FATES.items()):
        panel.legend({fate: css}, left=4 + 200 * (i % 2), top=12 + 16 * (i // 2))
    return panel


def page(mask, block_q, block_k):
    """A painted mask, each pair of which is flipped by a click, and the tiles of each kind. mask: `painted`'s."""
    start, flipped = mask
    tiles = painted(start, flipped).tiles(N, N, block_q, block_k)
    every, visible, visited = fates(tiles), tiles.mask.dense(N, N), tiles.visited
    panel = tiles_panel(
        tiles, "Click on a pair to flip it", 312, 1,
        tips=lambda i, j: f"query {i}, key {j}: {list(FATES)[every[i, j]]}",
        chosen=lambda i, j: {"mask": [start, sorted({*flipped} ^ {i * N + j})]},
    )  # fmt: skip

    kind_of = np.array([masks.HIDDEN, masks.PARTIAL, masks.PARTIAL, masks.FULL])[every]  # the kind of a pair's tile
    counted = {
        "tiles": tiles.kinds, "pairs that are visible": kind_of[visible], "pairs that are computed": kind_of[every > 0]
    }  # fmt: skip
    rows = [
        (name, *(str(np.count_nonzero(of == kind)) for kind in range(len(KINDS))), str(of.size))
        for name, of in counted.items()
    ]
    return Page(
        f"A mask of {N} queries and keys in tiles of {block_q} x {block_k}.", (panel,), (legend(),),
        text=f"<b>{visited.tiles} of {tiles.kinds.size} tiles</b> are visited, with {visited.keys} of "
        f"{len(tiles.query_rows) * N} rows of K, and as many of V. If every tile takes equally long, a kernel needs "
        f"<b>{visited.tiles / tiles.kinds.size:.0%}</b> of its time without a mask. {table(rows, ('', *KINDS, 'all'))}",
    )  # fmt: skip


def explore():
    """The explorer: a mask to begin with, the sizes of tiles, and pairs that a click flips.

    The menu holds masks of which nothing is flipped, so that choosing one again takes all flips back.
    """
    controls = {"mask": menu("begin with", {name: [name, []] for name in STARTS})}
    controls |= {name: slider(name, (1, 2, 3, 4, 6, 12), 4) for name in ("block_q", "block_k")}
    return Explorer(page, controls)
