"""What one program of the forward kernel loops over, tile by tile and mask by mask; and recorded speeds.

Tiles are small here, for the eye: a kernel's have 16 rows or more.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.patches import Patch

from course_lib import masks
from courseware.bench import records

from .drawing import cells
from .figures import BLUE, GREY, INK, ORANGE, SKY, VERMILLION, legend, panels, tidy
from .measured import PEERS
from .shell import Explorer, choice, slider, tick
from .tooltips import tooltip
from .words import plain

# What is at a place of a tile, and what becomes of its score.
VISIBLE, HIDDEN, NO_KEY, NO_QUERY = range(4)
NAMES = ("visible", "hidden: causal", "no such key: needs -inf too", "no such query: never stored")
# Each has a look of its own: a colour, or hatching for what is not there. No two share one, tile or place.
LOOKS = dict(zip(NAMES, ({"color": SKY}, {"color": GREY}, {"color": VERMILLION}, {"hatch": "...."}), strict=True))
KINDS = {"no mask": {"color": BLUE}, "masked": {"color": ORANGE}, "not visited": {"hatch": "////"}}
HATCHED = {"facecolor": "white", "edgecolor": GREY, "linewidth": 0.6}


@dataclass(frozen=True)
class Program:
    """The key tiles of one program.

    places: [block_m, key tiles * block_n] of VISIBLE, HIDDEN, NO_KEY or NO_QUERY. kinds: for each key tile, a key of
    KINDS. full_end, kv_end: the kernel's loop bounds, as `kv_loop_bounds` returns them.
    """

    n_q: int
    n_k: int
    block_m: int
    block_n: int
    pid: int
    places: np.ndarray
    kinds: tuple[str, ...]
    full_end: int
    kv_end: int

    def tile(self, j):
        """The places of key tile j."""
        return self.places[:, j * self.block_n : (j + 1) * self.block_n]

    def queries(self, pid):
        """(start, stop) of the queries of any program of the launch."""
        return pid * self.block_m, min((pid + 1) * self.block_m, self.n_q)

    def keys(self, j):
        """Keys and kind of key tile j, in words."""
        return f"keys {j * self.block_n} to {min((j + 1) * self.block_n, self.n_k) - 1}: {self.kinds[j]}"


def program(n_q, n_k, *, block_m, block_n, causal, pid):
    """The loop of program `pid`, derived from the mask: a Program."""
    mask = masks.causal() if causal else masks.full()
    tiles = mask.tiles(n_q, n_k, block_m, block_n)
    start, stop = tiles.query_rows[pid]
    places = np.full((block_m, tiles.shape[1] * block_n), NO_QUERY)
    places[: stop - start] = NO_KEY
    places[: stop - start, :n_k] = np.where(mask.dense(n_q, n_k)[start:stop], VISIBLE, HIDDEN)
    names = {masks.FULL: "no mask", masks.PARTIAL: "masked", masks.HIDDEN: "not visited"}
    kinds = [names[kind] for kind in tiles.kinds[pid]]
    if n_k % block_n and kinds[-1] == "no mask":
        kinds[-1] = "masked"  # the tile's last columns have no key
    full_end = kinds.count("no mask") * block_n
    _, kv_end = mask.key_range(stop - 1, n_q, n_k)  # the last query sees the most keys
    return Program(n_q, n_k, block_m, block_n, pid, places, tuple(kinds), full_end, int(kv_end))


def describe(model, step):
    """Key tile `step`, counted from 0 as programs are, in words and numbers, as HTML."""
    start, stop = model.queries(model.pid)
    kinds = ", ".join(f"{model.kinds.count(kind)} {kind}" for kind in KINDS)
    text = (
        f"<b>Program {model.pid}</b>: queries {start} to {stop - 1}. Key tiles: {kinds}. "
        f"full_end = {model.full_end}, kv_end = {model.kv_end}.<br>"
    )
    tile = model.tile(step)
    counts = ", ".join(f"{int((tile == what).sum())} {name.split(':')[0]}" for what, name in enumerate(NAMES))
    return f"{text}<b>Tile {step}</b> of tiles 0 to {len(model.kinds) - 1}, {model.keys(step)}. Lanes: {counts}."


def draw(model, step):
    """Two panels: all scores with the program's key tiles by kind, and the lanes of the tile at `step`."""
    alt = f"The key tiles of one program among all scores, and the lanes of one of them. {plain(describe(model, step))}"
    figure, (grid, tile) = panels(3.4, 1.5, 1, left=0.06, right=0.8, wspace=0.2, alt=alt)
    top, block_n, n_tiles = model.pid * model.block_m, model.block_n, len(model.kinds)
    columns = np.minimum(block_n * np.arange(n_tiles + 1), model.n_k)
    kinds = np.array([[list(KINDS).index(kind) for kind in model.kinds]])
    _looks(grid, kinds, KINDS, columns, model.queries(model.pid))
    start = step * block_n
    grid.bar(start, model.block_m, block_n, top, align="edge", facecolor="none", edgecolor=INK, linewidth=2, zorder=3)
    grid.bar(0, model.n_q, model.n_k, align="edge", facecolor="none", edgecolor=GREY)
    grid.axvline(model.full_end, color=INK, linestyle=":", linewidth=1.2)
    grid.axvline(model.kv_end, color=INK, linestyle="--", linewidth=1.2)
    tidy(grid, title="the scores; dotted: full_end, dashed: kv_end", x="key", y="query")
    grid.locator_params(integer=True)
    grid.set(xlim=(-0.5, n_tiles * block_n + 0.5), ylim=(max(model.n_q, top + model.block_m) + 0.5, -0.5))
    for pid in range(-(-model.n_q // model.block_m)):
        queries = model.queries(pid)
        if pid != model.pid:
            tooltip(grid, (0, model.n_k), queries, f"Program {pid}: queries {queries[0]} to {queries[1] - 1}", pid=pid)
            continue
        for j in range(n_tiles):
            tooltip(grid, columns[j : j + 2], queries, f"Tile {j}, {model.keys(j)}", step=j)

    columns, rows = np.arange(start, start + block_n + 1) - 0.5, np.arange(top, top + model.block_m + 1) - 0.5
    places, looks = model.tile(step), LOOKS
    if model.kinds[step] == "not visited":
        places, looks = np.full(places.shape, list(KINDS).index("not visited")), KINDS
    _looks(tile, places, looks, columns, rows)
    tile.invert_yaxis()
    tile.set(xticks=columns[:-1] + 0.5, yticks=rows[:-1] + 0.5)
    tidy(tile, title=f"tile {step}: {model.kinds[step]}", x="offs_n")
    for title, looks, y in (("tiles", KINDS, 0.93), ("lanes", LOOKS, 0.62)):
        patches = [Patch(**_face(look), label=name.replace(": ", ":\n")) for name, look in looks.items()]
        place = {"loc": "upper left", "bbox_to_anchor": (0.805, y), "alignment": "left"}
        legend(figure, handles=patches, title=title, title_fontsize=9, handlelength=1.2, **place)
    return figure


def _looks(axes, values, looks, x, y):
    """A grid of cells: each value is the index of its look, and hatched ones lie side by side. x, y: edges."""
    cells(axes, values, [look.get("color", "white") for look in looks.values()], x=x, y=y)
    for value, look in enumerate(looks.values()):
        row, column = np.nonzero(values == value)
        if "hatch" in look and len(row):
            left, right, top, bottom = x[column.min()], x[column.max() + 1], y[row.min()], y[row.max() + 1]
            axes.bar(left, bottom - top, right - left, top, align="edge", **_face(look))


def _face(look):
    return HATCHED | look if "hatch" in look else look


def _numbers(values):
    return " or ".join(f"{value:,}" for value in sorted(values))


def draw_speed():
    """Recorded TFLOP/s of the forward: a panel for each head dimension and mask, bars by length."""
    record = "attention-h100"
    rows = records.rows(record, **{"pass": "forward"})
    shapes = sorted({(row["head_dim"], row["causal"]) for row in rows})
    tokens, hidden = ({row[a] * row[b] for row in rows} for a, b in (("batch", "n"), ("heads", "head_dim")))
    sizes = f"batch x N = {_numbers(tokens)}, heads x d = {_numbers(hidden)}, {rows[0]['dtype']}"
    rates = [
        f"d = {row['head_dim']}, {'causal' if row['causal'] else 'full'}, N = {row['n']:,}: "
        f"{row['tflops']['ours']:.0f} and {row['tflops']['sdpa_flash']:.0f}"
        for row in rows
    ]
    place = {"left": 0.06, "above": 0.8, "wspace": 0.15, "note": f"{sizes}; {records.provenance(record)}"}
    place["alt"] = f"Bars of TFLOP/s, forward, of which this course and FlashAttention-2: {'; '.join(rates)}."
    figure, every = panels(3.2, *[1] * len(shapes), sharey=True, **place)
    for axes, (d, causal) in zip(every, shapes, strict=True):
        shown = sorted((r for r in rows if (r["head_dim"], r["causal"]) == (d, causal)), key=lambda r: r["n"])
        for place, (key, (name, colour, _)) in enumerate(PEERS.items()):
            heights = [row["tflops"].get(key, 0) for row in shown]
            offset = 0.21 * (place - (len(PEERS) - 1) / 2)
            axes.bar(np.arange(len(shown)) + offset, heights, width=0.19, color=colour, label=name)
        axes.set_xticks(range(len(shown)), [f"{row['n']:,}" for row in shown])
        tidy(axes, title=f"d = {d}, {'causal' if causal else 'full'}", x="N", y="TFLOP/s" if axes is every[0] else None)
    legend(every[0], loc="lower left", bbox_to_anchor=(-0.02, 1.17), ncols=len(PEERS))
    return figure


LENGTHS = (4, 7, 8, 10, 13, 16, 20)
BLOCKS = (2, 3, 4, 6, 8)


def explore():
    """The explorer as a widget: lengths, block sizes, causal, the program and its tile."""
    return Explorer(
        program, describe, draw,
        {"n_q": choice("queries", LENGTHS, 10), "n_k": choice("keys", LENGTHS, 13)},
        {"block_m": choice("BLOCK_M", BLOCKS, 4), "block_n": choice("BLOCK_N", BLOCKS, 4)},
        {"causal": tick("causal", True)},
        {"pid": slider("program", 0, 2, 1), "step": slider("tile", 0, 3, 2)},
        step="step", play="step",
        ends={
            "pid": lambda n_q, block_m, **_: -(-n_q // block_m) - 1,
            "step": lambda n_k, block_n, **_: -(-n_k // block_n) - 1,
        },
    )  # fmt: skip
