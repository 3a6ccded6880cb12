"""What one program of the forward kernel loops over, tile by tile and mask by mask; and recorded speeds.

Tiles are small here, for the eye: a kernel's have 16 rows or more.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D

from course_lib import masks
from course_lib.measure import records

from .figures import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, VERMILLION, Picture, png, tidy

# What is at a place of a tile, and what becomes of its score.
VISIBLE, HIDDEN, NO_KEY, NO_QUERY = range(4)
NAMES = ("visible", "hidden: causal", "no such key: needs -inf too", "no such query: never stored")
COLOURS = (BLUE, ORANGE, VERMILLION, PALE)
KINDS = {"no mask": BLUE, "masked": ORANGE, "not visited": PALE}


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
    first, last = model.pid * model.block_m, min((model.pid + 1) * model.block_m, model.n_q) - 1
    kinds = ", ".join(f"{model.kinds.count(kind)} {kind}" for kind in KINDS)
    text = (
        f"<b>Program {model.pid}</b>: queries {first} to {last}. Key tiles: {kinds}. "
        f"full_end = {model.full_end}, kv_end = {model.kv_end}.<br>"
    )
    start, kind = step * model.block_n, model.kinds[step]
    tile = model.tile(step)
    counts = ", ".join(f"{int((tile == what).sum())} {name.split(':')[0]}" for what, name in enumerate(NAMES))
    keys = f"keys {start} to {min(start + model.block_n, model.n_k) - 1}"
    return f"{text}<b>Tile {step}</b> of tiles 0 to {len(model.kinds) - 1}, {keys}: {kind}. Places: {counts}."


def draw(model, step):
    """Two panels: all scores with the program's key tiles by kind, and the places of the tile at `step`."""
    figure = Picture(3.4)
    grid, tile = figure.panels(1.5, 1)
    figure.subplots_adjust(left=0.06, right=0.8, bottom=0.15, top=0.88, wspace=0.2)
    top, block_n = model.pid * model.block_m, model.block_n
    left = block_n * np.arange(len(model.kinds))
    width, height = np.minimum(block_n, model.n_k - left), min(model.block_m, model.n_q - top)
    faces = [KINDS[kind] for kind in model.kinds]
    grid.boxes(left, top, width, height, facecolors=faces, edgecolors="white", linewidths=1)
    start = step * block_n
    grid.boxes([start], top, block_n, model.block_m, facecolors="none", edgecolors=INK, linewidths=2, zorder=3)
    grid.boxes([0], 0, model.n_k, model.n_q, facecolors="none", edgecolors=GREY, linewidths=1)
    grid.axvline(model.full_end, color=INK, linestyle=":", linewidth=1.2)
    grid.axvline(model.kv_end, color=INK, linestyle="--", linewidth=1.2)
    tidy(grid, title="the scores; dotted: full_end, dashed: kv_end", x="key", y="query")
    grid.locator_params(integer=True)
    grid.set_xlim(-0.5, len(model.kinds) * block_n + 0.5)
    grid.set_ylim(max(model.n_q, top + model.block_m) + 0.5, -0.5)

    columns, rows = np.arange(start, start + block_n + 1) - 0.5, np.arange(top, top + model.block_m + 1) - 0.5
    cells = ListedColormap(COLOURS)
    tile.pcolormesh(columns, rows, model.tile(step), cmap=cells, vmin=-0.5, vmax=3.5, edgecolors="white", linewidth=1)
    tile.invert_yaxis()
    tile.set_xticks(columns[:-1] + 0.5)
    tile.set_yticks(rows[:-1] + 0.5)
    tidy(tile, title=f"tile {step}: {model.kinds[step]}", x="offs_n")
    _draw_key(figure, "tiles", KINDS, 0.86)
    _draw_key(figure, "places", dict(zip(NAMES, COLOURS, strict=True)), 0.56)
    return figure


def _draw_key(figure, title, colours, top):
    """What the colours mean, at the right of the picture. colours: name -> colour."""
    figure.text(0.82, top, title, fontsize=9, color=INK)
    rows = {"va": "center_baseline", "fontsize": 8.5, "color": INK}
    y = top - 0.065
    for name, colour in colours.items():
        first, *rest = name.split(": ")
        figure.add_artist(Line2D([0.82, 0.845], [y, y], color=colour, linewidth=6, solid_capstyle="butt"))
        figure.text(0.855, y, f"{first}:" if rest else first, **rows)
        for line in rest:
            y -= 0.05
            figure.text(0.855, y, line, **rows)
        y -= 0.062


def draw_nan(o, block_q):
    """Where an output [n, d] is NaN; lines between tiles of block_q queries."""
    figure = Picture(2.6, 5.4)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.12, right=0.97, bottom=0.2, top=0.86)
    axes.imshow(np.isnan(o).T, cmap=ListedColormap([BLUE, VERMILLION]), vmin=0, vmax=1, aspect="auto")
    for edge in range(block_q, len(o), block_q):
        axes.axvline(edge - 0.5, color="white", linewidth=1.5)
    tidy(axes, title=f"o: {int(np.isnan(o).sum())} of {o.size} are NaN (red)", x="query", y="column")
    return figure


def _numbers(values):
    return " or ".join(f"{value:,}" for value in sorted(values))


CONTESTANTS = {
    "ours": ("this course", BLUE),
    "sdpa_flash": ("PyTorch, FlashAttention-2", ORANGE),
    "sdpa_cudnn": ("PyTorch, cuDNN", GREEN),
    "flex": ("PyTorch, FlexAttention", PURPLE),
}


def draw_speed(record="attention-h100"):
    """TFLOP/s of a record's forward rows: a panel for each head dimension and mask, bars by length."""
    rows = records.rows(record, **{"pass": "forward"})
    panels = sorted({(row["head_dim"], row["causal"]) for row in rows})
    figure = Picture(3.2)
    figure.subplots_adjust(left=0.06, right=0.985, bottom=0.25, top=0.8, wspace=0.15)
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (d, causal) in zip(all_axes, panels, strict=True):
        shown = sorted((r for r in rows if (r["head_dim"], r["causal"]) == (d, causal)), key=lambda r: r["n"])
        for place, (key, (label, colour)) in enumerate(CONTESTANTS.items()):
            heights = [row["tflops"].get(key, 0) for row in shown]
            offset = 0.21 * (place - (len(CONTESTANTS) - 1) / 2)
            axes.bar(np.arange(len(shown)) + offset, heights, width=0.19, color=colour, label=label)
        axes.set_xticks(range(len(shown)), [f"{row['n']:,}" for row in shown])
        tidy(axes, title=f"d = {d}, {'causal' if causal else 'full'}", x="N")
    all_axes[0].set_ylabel("TFLOP/s", fontsize=9.5, color=INK)
    place = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.1), "ncols": len(CONTESTANTS)}
    all_axes[0].legend(frameon=False, fontsize=8.5, **place)
    tokens, hidden = ({row[a] * row[b] for row in rows} for a, b in (("batch", "n"), ("heads", "head_dim")))
    shapes = f"batch x N = {_numbers(tokens)}, heads x d = {_numbers(hidden)}, {rows[0]['dtype']}"
    figure.text(0.985, 0.02, f"{shapes}; {records.provenance(record)}", ha="right", fontsize=8.5, color=INK)
    return figure


LENGTHS = (4, 7, 8, 10, 13, 16, 20)
BLOCKS = (2, 3, 4, 6, 8)


def explore():
    """The explorer as an ipywidgets box: lengths, block sizes, causal, the program and its tile."""
    import ipywidgets as widgets

    wide = {"description_width": "80px"}

    def choice(options, value, description):
        return widgets.SelectionSlider(options=options, value=value, description=description, style=wide)

    n_q, n_k = choice(LENGTHS, 10, "queries"), choice(LENGTHS, 13, "keys")
    block_m, block_n = choice(BLOCKS, 4, "BLOCK_M"), choice(BLOCKS, 4, "BLOCK_N")
    causal = widgets.Checkbox(True, description="causal", indent=False)
    pid = widgets.IntSlider(1, 0, 2, description="program", style=wide)
    step = widgets.IntSlider(2, 0, 3, description="tile", style=wide)
    text, image = widgets.HTML(), widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
    busy = False

    def show(_change=None):
        nonlocal busy
        if busy:
            return
        busy = True  # lowering a maximum may move a value, which would call again
        pid.max = -(-n_q.value // block_m.value) - 1
        step.max = -(-n_k.value // block_n.value) - 1
        busy = False
        sizes = {"block_m": block_m.value, "block_n": block_n.value}
        model = program(n_q.value, n_k.value, **sizes, causal=causal.value, pid=pid.value)
        text.value = describe(model, step.value)
        image.value = png(draw(model, step.value))

    for control in (n_q, n_k, block_m, block_n, causal, pid, step):
        control.observe(show, names="value")
    show()
    rows = [[n_q, n_k], [block_m, block_n], [causal], [pid, step]]
    return widgets.VBox([*map(widgets.HBox, rows), text, image])
