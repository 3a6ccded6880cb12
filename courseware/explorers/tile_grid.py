"""The grid of score tiles, which lessons 06 and 09 go through visit by visit, and how they draw it and what it moves.

`tile_grid` is the model: which tiles FlashAttention visits, in which order, and which it skips; `run` has the course's
own tiled attention make these visits on a memory machine that is watched. The tests compare the visits with the loads
that the machine logs, which `visit_starts` and `bytes_moved` cut into visits. `race_panels` shows both loops, one as
far as the same bytes take it.
"""

from bisect import bisect_right
from functools import lru_cache, partial
from types import SimpleNamespace

import numpy as np

from course_lib import masks, traffic
from course_lib.machine import Machine
from course_lib.reference.tiled import tiled_attention_on_machine

from .svg import TENSOR_COLOURS, Panel

ORDERS = ("q_outer", "kv_outer")
LOOPS = {"q_outer": "queries outermost", "kv_outer": "keys outermost"}
TENSORS = {name: (name,) for name in "QKVO"} | {"l, m": ("l", "m")}
WORK = "work"  # scores, statistics, accumulator, temporaries: what is loaded from no tensor


def tile_grid(n_q, n_k, block_q, block_k, causal, order):
    """Which tiles of the scores are visited, in which order, as a namespace. Tile (i, j): query tile i, key tile j.

    Sizes are counts of at least 1. order: "q_outer" (FA2 Alg. 1) or "kv_outer" (FA1 Alg. 1). The namespace has tiles: a
    masks.Tiles; visit_number: [query tiles, key tiles] int, 1 for the tile that is visited first, 0 for a skipped one;
    n_visits; visits: (i, j) of the visited tiles, in order; skipped: those that are never visited, row by row; and
    pairs: how many scores each visit computes.
    Raises ValueError or TypeError as traffic.flash_attention does.
    """
    # The same checks, and the same messages, as for the bytes that are shown beside the grid.
    traffic.flash_attention(n_q, n_k, 1, block_q=block_q, block_k=block_k, causal=causal, order=order)
    mask = masks.causal() if causal else masks.full()
    tiles = mask.tiles(n_q, n_k, block_q, block_k)
    visited = tiles.kinds != masks.HIDDEN
    visits = np.argwhere(visited) if order == "q_outer" else np.argwhere(visited.T)[:, ::-1]
    number, at = np.zeros(visited.shape, int), tuple(visits.T)
    number[at] = np.arange(1, len(visits) + 1)
    pairs = np.outer(*(np.ptp(rows, axis=1) for rows in (tiles.query_rows, tiles.key_rows)))[at].tolist()
    visits, skipped = (tuple(map(tuple, tiles.tolist())) for tiles in (visits, np.argwhere(~visited)))
    return SimpleNamespace(
        tiles=tiles, visit_number=number, n_visits=len(visits), visits=visits, skipped=skipped, pairs=pairs
    )


def rows_of(grid, i, j):
    """What meets in a tile, in words: ("queries 4 to 7", "keys 0 to 2")."""
    spans = ("queries", grid.tiles.query_rows[i]), ("keys", grid.tiles.key_rows[j])
    return tuple(f"{name} {start} to {stop - 1}" for name, (start, stop) in spans)


def visit_starts(events, begin, end, inner, outer):
    """Where visits begin in a machine's log, from `begin` to `end`.

    The first begins with the log, and so counts what precedes it; every other one at the inner loop's load, or at the
    outer loop's loads just before that.
    """
    starts = []
    for index in range(begin, end):
        if (events[index].kind, events[index].tensor) == ("load", inner):
            while index > begin and events[index - 1].kind == "load" and events[index - 1].tensor in outer:
                index -= 1
            starts.append(index)
    return [begin, *starts[1:]]


def bytes_moved(events, ends, names):
    """tensor -> (bytes read, bytes written) of the log's first `end` events, for each of the ends: a list."""
    moved = np.zeros((len(events) + 1, len(names), 2), int)
    for number, event in enumerate(events, start=1):
        moved[number, names.index(event.tensor), int(event.kind == "store")] = event.n_bytes
    return [dict(zip(names, map(tuple, step), strict=True)) for step in moved.cumsum(axis=0)[ends].tolist()]


def total_bytes(moved):
    """All bytes of one of `bytes_moved`'s steps."""
    return sum(map(sum, moved.values()))


def grid_panel(grid, done, title, width=214, *, height=220, tips=None, choose=None, before=0):
    """The grid after `done` visits: queries downwards, keys to the right.

    Blue tiles have been visited, the orange one is being visited, white ones come later, grey ones are skipped. Numbers
    of visits stand in tiles that have room for them; where they have none, a line shows the way. A red line separates
    visible from hidden scores. tips: function of (i, j), what is said of a tile; None: its rows. choose: what a click
    on a tile chooses beside its visit; None: nothing at all. before: how many visits are before the grid's first.
    """
    tiles, number = grid.tiles, grid.visit_number
    x, y = ([0, *(stop for _, stop in rows)] for rows in (tiles.key_rows, tiles.query_rows))
    is_narrow = number.shape[1] == 1 and tiles.n_k == 1
    panel = Panel(
        title, width, height, x=(0, tiles.n_k), y=(tiles.n_q, 0), grid="", margins=(42, 18, 8, 34),
        x_ticks=() if is_narrow else (0, tiles.n_k), y_ticks=(0, tiles.n_q), x_label="" if is_narrow else "key",
        y_label="query",
    )  # fmt: skip

    def kind(visit):
        if not visit or visit > done:
            return "empty" if visit else "skipped"
        return "now" if visit == done < grid.n_visits else "P pale"

    def chosen(i, j):
        return choose | {"visit": before + int(number[i, j])} if choose is not None and number[i, j] else None

    tips = tips or (lambda i, j: " and ".join(rows_of(grid, i, j)))
    panel.cells([[kind(visit) for visit in row] for row in number.tolist()], x=x, y=y, tips=tips, chosen=chosen)
    if tiles.mask == masks.causal():
        queries = np.arange(tiles.n_q) if tiles.n_q <= 64 else np.array([0, tiles.n_q - 1])  # where a stair is visible
        _, stops = tiles.mask.key_range(queries, tiles.n_q, tiles.n_k)
        panel.line([(stop, i + down) for i, stop in zip(queries, stops, strict=True) for down in (0, 1)], "bad")
    middles = [((x[j] + x[j + 1]) / 2, (y[i] + y[i + 1]) / 2) for i, j in grid.visits]
    if panel.x(x[1]) - panel.x(0) > 19 and panel.y(y[1]) - panel.y(0) > 13:
        for visit, (tile, middle) in enumerate(zip(grid.visits, middles, strict=True), start=1):
            # Neither the red line nor the orange ground makes a number hard to read.
            is_hard = tiles.kinds[tile] == masks.PARTIAL or kind(visit) == "now"
            panel.text(*middle, str(visit), "middle halo" if is_hard else "middle")
    else:
        panel.line(middles[:done], "thin ink")
    return panel


def moved_panel(title, width, height, rows, loops):
    """Bars of bytes by tensor: what was read so far, paler what was written, dashed what both come to in the end.

    rows: name -> the tensors that count in it. loops: name -> (step so far, last step), as `bytes_moved` gives them,
    each with a bar in a row.
    """

    def moved(step, tensors):
        return [sum(step.get(tensor, (0, 0))[way] for tensor in tensors) for way in (0, 1)]

    most = max(sum(moved(end, tensors)) for tensors in rows.values() for _, end in loops.values())
    panel = Panel(
        title, width, height, x=(0, most), y=(len(rows) - 0.5, -0.5), x_ticks=((0, "0"), (most, f"{most:,}")),
        margins=(44, 30, 4, 20),
    )  # fmt: skip
    high = 0.8 / len(loops)
    for place, (name, tensors) in enumerate(rows.items()):
        panel.text(0, place, name, "end", right=-6)
        for i, (loop, (step, end)) in enumerate(loops.items()):
            (read, written), in_all = moved(step, tensors), sum(moved(end, tensors))
            y = place - 0.4 + high * i, place - 0.48 + high * (i + 1)
            panel.rect((0, read), y, f"bar {tensors[0]}")
            panel.rect((read, read + written), y, f"bar {tensors[0]} pale")
            tip = f"{name}, {loop}: {read:,} bytes read and {written:,} written, of {in_all:,} in all"
            panel.rect((0, in_all), y, "outline dashed grey", tip=tip, pointer_events="all")
    return panel


def bars_panel(title, width, bars, *, left=112, right=96, **about):
    """A panel of `stacked` bars. left, right: pixels for their names, and for the notes behind bar and limit."""
    lengths = [sum(length for _, length, _ in parts) for parts, *_ in bars.values()]
    most = max(*lengths, *(limit for _, _, *limits in bars.values() for limit in limits))
    y = len(bars) - 0.5, -0.5
    panel = Panel(title, width, 22 * len(bars) + 4, x=(0, most), y=y, margins=(left, right, 2, 2))
    panel.stacked(bars, **about)
    return panel


@lru_cache(maxsize=64)
def run(n_q, n_k, *, block_q, block_k, causal=False, order="q_outer", d, dtype="float16"):
    """Tiled attention of rows of d numbers on a machine, visit by visit. Arguments as of `tile_grid`.

    Returns a namespace. grid: of `tile_grid`. moved: for step 0 to grid.n_visits, tensor -> (bytes read, bytes written)
    so far; what precedes a visit counts to it, what follows the last visit counts to that one. held: tensor or WORK ->
    bytes in SRAM at the peak.
    """
    grid, machine = tile_grid(n_q, n_k, block_q, block_k, causal, order), Machine()
    # Zeros: what the machine holds and moves does not depend on the numbers.
    rows = {"Q": n_q, "K": n_k, "V": n_k, "O": n_q}
    handles = [machine.hbm(np.zeros((n, d), dtype), name) for name, n in rows.items()]
    kept = {name: machine.hbm(np.zeros(n_q, np.float32), name) for name in "lm"} if order == "kv_outer" else {}
    options = {"block_q": block_q, "block_k": block_k, "causal": causal, "order": order}
    tiled_attention_on_machine(machine, *handles, **options, **kept)
    report, held = machine.report(), dict.fromkeys((*"QKVOlm", WORK), 0)
    events = report.events
    inner, outer, tensors = ("K", "Q", "QKVO") if order == "q_outer" else ("Q", "KV", "QKVOlm")
    ends = [*visit_starts(events, 0, len(events), inner, outer), len(events)]
    for name, n_bytes in report.peak_holders:
        held[name.split("[")[0] if "[" in name else WORK] += n_bytes
    return SimpleNamespace(grid=grid, moved=bytes_moved(events, ends, tensors), held=held)


def parts_of(held, unit_bytes=1):
    """The parts of a bar of what SRAM holds: (name, length, class)."""
    classes = {name: name if name in TENSOR_COLOURS else "grey" for name in held}
    return [(name, n_bytes / unit_bytes, classes[name]) for name, n_bytes in held.items() if n_bytes]


def visits_of_both(runs, order, visit):
    """order -> visits that its loop has made when that of `order` has made `visit`, and the other moved no more bytes.

    runs: order -> what `run` gives of the same tiles.
    """
    spent = total_bytes(runs[order].moved[visit])
    return {name: bisect_right([total_bytes(step) for step in run.moved], spent) - 1 for name, run in runs.items()}


def race_panels(runs, order, visit):
    """The grids of both loops, the bytes that they moved, and what is visited, in words."""
    done, grids, loops = visits_of_both(runs, order, visit), [], {}
    for name, run in runs.items():
        title = f"{LOOPS[name]}: {done[name]} of {run.grid.n_visits}"
        about = {"tips": partial(_tell, run), "choose": {"order": name}}
        grids.append(grid_panel(run.grid, done[name], title, height=196, **about))
        loops[LOOPS[name]] = run.moved[done[name]], run.moved[-1]
    upper, lower = (f"{total_bytes(step):,}" for step, _ in loops.values())
    title = f"Bytes: {upper} (upper: queries outermost), {lower}. Pale: written"
    said = f"{order}: {_tell(runs[order], *runs[order].grid.visits[visit - 1])}" if visit else "Nothing visited yet."
    return grids, moved_panel(title, 232, 160, TENSORS, loops), said


def _tell(run, i, j):
    """Which rows meet in a tile, with which visit, and what that moves."""
    rows, visit = " and ".join(rows_of(run.grid, i, j)), int(run.grid.visit_number[i, j])
    if not visit:
        return f"{rows}: never loaded."
    before, after, texts = run.moved[visit - 1], run.moved[visit], []
    for way, verb in enumerate(("reads", "writes")):
        moved = {name: after[name][way] - before[name][way] for name in after}
        parts = [f"{name} {n_bytes:,}" for name, n_bytes in moved.items() if n_bytes]
        texts += [f"{verb} {', '.join(parts)}"] if parts else []
    return f"{rows}: visit {visit}, {'; '.join(texts)} bytes."
