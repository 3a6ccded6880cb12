"""What one program of the forward kernel loops over, tile by tile and mask by mask.

Tiles are small here, for the eye: a kernel's have 16 rows or more.
"""

import numpy as np

from course_lib import masks

from .explorer import Explorer, slider, tick
from .svg import Page, Panel

# What is at a place of a tile, and what becomes of its score.
VISIBLE, HIDDEN, NO_KEY, NO_QUERY = range(4)
# The names of these, and of the kinds of tiles, with the classes that they are drawn in; no two share one.
LOOKS = {
    "visible": "P", "hidden: causal": "grey",
    "no such key: needs -inf too": "bad", "no such query: never stored": "empty",
}  # fmt: skip
KINDS = {"no mask": "Q", "masked": "now", "not visited": "hatched"}


class Program:
    """The key tiles that program `pid` of a launch loops over, derived from the mask.

    tiles: of the mask. places: [block_m, key tiles * block_n] of VISIBLE, HIDDEN, NO_KEY or NO_QUERY. kinds: for each
    key tile, a key of KINDS. full_end, kv_end: the kernel's loop bounds, as `kv_loop_bounds` returns them.
    """

    def __init__(self, n_q, n_k, *, block_m, block_n, causal, pid):
        mask = masks.causal() if causal else masks.full()
        self.tiles = tiles = mask.tiles(n_q, n_k, block_m, block_n)
        start, stop = tiles.query_rows[pid]
        self.places = np.full((block_m, tiles.shape[1] * block_n), NO_QUERY)
        self.places[: stop - start] = NO_KEY
        self.places[: stop - start, :n_k] = np.where(mask.dense(n_q, n_k)[start:stop], VISIBLE, HIDDEN)
        names = {masks.FULL: "no mask", masks.PARTIAL: "masked", masks.HIDDEN: "not visited"}
        self.kinds = [names[kind] for kind in tiles.kinds[pid]]
        if n_k % block_n and self.kinds[-1] == "no mask":
            self.kinds[-1] = "masked"  # the tile's last columns have no key
        self.full_end = self.kinds.count("no mask") * block_n
        self.kv_end = int(mask.key_range(stop - 1, n_q, n_k)[1])  # the last query sees the most keys

    def keys(self, j):
        """Keys and kind of key tile j, in words."""
        start, stop = self.tiles.key_rows[j]
        return f"keys {start} to {stop - 1}: {self.kinds[j]}"


def page(n_q, n_k, block_m, block_n, causal, pid, step):
    """All scores with the program's key tiles by kind, and the lanes of the tile at `step`, counted from 0."""
    model = Program(n_q, n_k, block_m=block_m, block_n=block_n, causal=causal, pid=pid)
    top, first, n_tiles = pid * block_m, step * block_n, len(model.kinds)
    high = max(n_q, top + block_m)
    grid = Panel(
        "the scores; dotted: full_end, dashed: kv_end", 420, 330, (0, n_tiles * block_n), (high, 0),
        x_ticks=range(0, n_tiles * block_n + 1, block_n), y_ticks=range(0, high + 1, block_m), x_label="key",
        y_label="query", grid="", margins=(44, 12, 30, 38),
    )  # fmt: skip
    grid.legend(KINDS)
    for other, queries in enumerate(model.tiles.query_rows):
        if other != pid:
            tip = f"Program {other}: queries {queries[0]} to {queries[1] - 1}"
            grid.rect((0, n_k), queries, "cell ground", tip=tip, choose={"pid": other})
            continue
        for j, kind in enumerate(model.kinds):
            tip = f"Tile {j}, {model.keys(j)}"
            grid.rect(model.tiles.key_rows[j], queries, f"cell {KINDS[kind]}", tip=tip, choose={"step": j})
    grid.rect((0, n_k), (0, n_q), "outline grey")
    grid.rect((first, first + block_n), (top, top + block_m), "outline ink")
    grid.upright(model.full_end, "dotted ink")
    grid.upright(model.kv_end, "dashed ink")

    tile = Panel(
        f"tile {step}: {model.kinds[step]}", 400, 330, (first, first + block_n), (top + block_m, top), grid="",
        x_ticks=[(key + 0.5, str(key)) for key in range(first, first + block_n)], x_label="offs_n",
        y_ticks=[(query + 0.5, str(query)) for query in range(top, top + block_m)], margins=(44, 40, 48, 38),
    )  # fmt: skip
    looks, lanes = list(LOOKS.items()), model.places[:, first : first + block_n]
    tile.legend(dict(looks[:2]), left=4)
    tile.legend(dict(looks[2:]), left=4, top=30)
    for (i, j), place in np.ndenumerate(lanes):
        is_visited, (query, key) = model.kinds[step] != "not visited", (top + i, first + j)
        name, css = looks[place] if is_visited else ("not visited", KINDS["not visited"])
        tile.rect((key, key + 1), (query, query + 1), f"cell {css}", tip=f"query {query}, key {key}: {name}")

    kinds = ", ".join(f"{model.kinds.count(kind)} {kind}" for kind in KINDS)
    counts = ", ".join(f"{int((lanes == place).sum())} {name.split(':')[0]}" for place, name in enumerate(LOOKS))
    start, stop = model.tiles.query_rows[pid]
    return Page(
        "The key tiles of one program among all scores, and the lanes of one of them.", (grid, tile),
        text=f"<b>Program {pid}</b>: queries {start} to {stop - 1}. Key tiles: {kinds}. "
        f"full_end = {model.full_end}, kv_end = {model.kv_end}.<br><b>Tile {step}</b> of tiles 0 to {n_tiles - 1}, "
        f"{model.keys(step)}. Lanes: {counts}.",
    )  # fmt: skip


def explore():
    """The explorer: lengths, block sizes, causal, the program and its tile."""
    lengths, blocks = (4, 7, 8, 10, 13, 16, 20), (2, 3, 4, 6, 8)
    controls = {
        "n_q": slider("queries", lengths, 10), "n_k": slider("keys", lengths, 13),
        "block_m": slider("BLOCK_M", blocks, 4), "block_n": slider("BLOCK_N", blocks, 4),
        "causal": tick("causal", start=True), "pid": slider("program", range(10), 1),
        "step": slider("tile", range(10), 2, play=True),
    }  # fmt: skip
    ends = {
        "pid": lambda n_q, block_m, **_: -(-n_q // block_m) - 1,
        "step": lambda n_k, block_n, **_: -(-n_k // block_n) - 1,
    }
    # A page without a kernel has every tile of these launches.
    written = {
        "n_q": (10, 20), "n_k": (4, 10, 13), "block_m": (4, 8), "causal": (False, True), "pid": range(10),
        "step": range(10),
    }  # fmt: skip
    return Explorer(page, controls, ends=ends, written=written)
