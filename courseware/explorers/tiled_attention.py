"""Lesson 06's stepping explorer: one visit after another, what lies in SRAM and what has moved, and its figures.

`run` is the model: the course's own tiled attention on a memory machine that is watched while it works.
block_sizes.js draws both loops as `race_state` says; `draw_bytes`, `draw_elements` and `draw_budget` are the lesson's
figures. `explore` is the widget.
"""

from functools import lru_cache
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np

from course_lib import masks
from course_lib.machine import Machine
from course_lib.reference.tiled import tiled_attention_on_machine

from .drawing import curves, log_axes, pale, stacked
from .figures import BLUE, INK, PALE, TENSOR_COLOURS, VERMILLION, legend, panel, panels, tidy
from .loop_steps import BLOCKS, LENGTHS, bytes_moved, visit_starts
from .svg_explorer import SvgExplorer, axis, choices
from .tile_grid import ORDERS, draw_tile_grid, tile_grid

D = 8
LOOPS = {"q_outer": "queries outermost", "kv_outer": "keys outermost"}
# Rows of the bars: name, tensors, colour. Colours of parts of bars, by tensor.
TENSORS = [(name, name, name) for name in "QKVO"] + [("l, m", "lm", "grey")]
KINDS = {name: name for name in "QKVSPO"} | dict.fromkeys("lm", "grey")
DTYPE = np.float16
WORK = "work"  # scores, statistics, accumulator, temporaries: what is loaded from no tensor


class _Watched(Machine):
    """A machine that keeps what its SRAM held when fullest, between each load or store and the one before.

    fullest: one tuple of (name, bytes) for each; `mark` closes the last.
    """

    def __init__(self):
        super().__init__()
        self.fullest = []
        self._fullest, self._fullest_bytes = (), 0

    def mark(self):
        self.fullest.append(self._fullest)
        self._fullest, self._fullest_bytes = tuple(self._held.values()), self._used_bytes

    def _take(self, storage_id, n_bytes, name):
        super()._take(storage_id, n_bytes, name)
        if self._used_bytes > self._fullest_bytes:
            self._fullest, self._fullest_bytes = tuple(self._held.values()), self._used_bytes

    def load(self, handle, rows):
        self.mark()
        return super().load(handle, rows)

    def store(self, handle, rows, tile):
        self.mark()
        super().store(handle, rows, tile)


def run_on(machine, n_q, n_k, d, dtype, *, order, **options):
    """The course's tiled attention on a machine, with zeros; what it holds and moves does not depend on the numbers."""
    shapes = {"Q": (n_q, d), "K": (n_k, d), "V": (n_k, d), "O": (n_q, d)}
    handles = [machine.hbm(np.zeros(shape, dtype), name) for name, shape in shapes.items()]
    kept = {name: machine.hbm(np.zeros(n_q, np.float32), name) for name in "lm"} if order == "kv_outer" else {}
    tiled_attention_on_machine(machine, *handles, order=order, **options, **kept)
    return machine.report()


@lru_cache(maxsize=32)
def run(n_q, n_k, *, block_q, block_k, causal=False, order="q_outer", d=D):
    """Tiled attention of rows of d float16 numbers on a watched machine, visit by visit. Arguments as of `tile_grid`.

    Returns a namespace. grid: the TileGrid. moved: for step 0 to grid.n_visits, tensor -> (bytes read, bytes written)
    so far; what precedes a visit counts to it, what follows the last visit counts to that one. held: tensor or WORK ->
    bytes in SRAM at the visit's peak; empty for step 0. row_bytes: of a row of Q, K, V or O.
    """
    grid = tile_grid(n_q, n_k, block_q, block_k, causal, order)
    machine, options = _Watched(), {"block_q": block_q, "block_k": block_k, "causal": causal}
    events = run_on(machine, n_q, n_k, d, DTYPE, order=order, **options).events
    machine.mark()
    inner, outer, tensors = ("K", "Q", "QKVO") if order == "q_outer" else ("Q", "KV", "QKVOlm")
    ends = [*visit_starts(events, 0, len(events), inner, outer), len(events)]
    moments = [machine.fullest[start + 1 : end + 1] for start, end in pairwise(ends)]
    held = [_by_tensor(max(moment, key=lambda holders: sum(n_bytes for _, n_bytes in holders))) for moment in moments]
    moved = bytes_moved(events, ends, tensors)
    return SimpleNamespace(grid=grid, moved=moved, held=({}, *held), row_bytes=d * DTYPE().itemsize)


def _by_tensor(holders):
    """(name, bytes) of what lies in SRAM, summed by the tensor it was loaded from, or under WORK."""
    held = dict.fromkeys(("Q", "K", "V", "O", "l", "m", WORK), 0)
    for name, n_bytes in holders:
        tensor = name.split("[")[0]
        held[tensor if tensor in held and "[" in name else WORK] += n_bytes
    return {name: n_bytes for name, n_bytes in held.items() if n_bytes}


def race_state(runs, order, *, row_bytes=None):
    """What block_sizes.js draws of both loops.

    runs: order -> what `run` gives of the same tiles. order: the one whose visits are counted; the other is shown as
    far as the same bytes take it. row_bytes: of a row of Q, K, V or O, if not the runs' own.
    """
    factor = (row_bytes or D * DTYPE().itemsize) // runs[order].row_bytes
    grid, totals, moved, costs, loops = runs[order].grid, {}, [], {}, []
    for name, run in runs.items():
        steps = [{tensor: tuple(n * factor if tensor in "QKVO" else n for n in both) for tensor, both in step.items()}
                 for step in run.moved]  # fmt: skip
        totals[name] = [sum(map(sum, step.values())) for step in steps]
        moved.append([_series(steps, tensors) for _, tensors, _ in TENSORS])
        about = [costs.setdefault(_cost(*pair), len(costs)) for pair in pairwise(steps)]
        visits, number = run.grid.visits, run.grid.visit_number.tolist()
        loops.append({"name": name, "title": LOOPS[name], "visits": visits, "number": number, "about": about})
    other = next(name for name in runs if name != order)
    reached = np.searchsorted(totals[other], totals[order], side="right") - 1
    q, k = ([0, *(stop for _, stop in rows)] for rows in (grid.tiles.query_rows, grid.tiles.key_rows))
    most = max(read[-1] + written[-1] for by in moved for read, written in by)
    return {
        "chosen": list(runs).index(order), "other": np.maximum(reached, 0).tolist(),
        "loops": loops, "costs": list(costs),
        "edges": {"q": q, "k": k}, "stair": _stair(grid.tiles), "moved": moved, "totals": list(totals.values()),
        "tensors": [(name, kind) for name, _, kind in TENSORS],
        "axes": {
            "q": axis(q[-1], 0, (0, q[-1])), "k": axis(0, k[-1], (0, k[-1])),
            "bytes": {"ends": [0, most], "ticks": [(0, "0"), (most, f"{most:,}")]},
        },
    }  # fmt: skip


def _series(steps, tensors):
    """Bytes read, and bytes written, of these tensors after each of the steps."""
    return [[sum(step.get(tensor, (0, 0))[i] for tensor in tensors) for step in steps] for i in (0, 1)]


def _cost(before, after):
    """What a visit moves, in words."""
    texts = []
    for i, verb in enumerate(("reads", "writes")):
        parts = [f"{name} {after[name][i] - before[name][i]:,}" for name in after if after[name][i] > before[name][i]]
        texts += [f"{verb} {', '.join(parts)}"] if parts else []
    return "; ".join(texts) + " bytes"


def _stair(tiles):
    """Each query's end of what it sees, as corners [key, query] of a line; None without a mask."""
    if tiles.mask != masks.causal():
        return None
    every = np.arange(tiles.n_q) if tiles.n_q <= 64 else np.array([0, tiles.n_q - 1])
    _, stop = tiles.mask.key_range(every, tiles.n_q, tiles.n_k)
    return [[int(x), int(y)] for query, x in zip(every, stop, strict=True) for x, y in ((x, query), (x, query + 1))]


def visits_state(order, **sizes):
    """What block_sizes.js draws of `run` for both orders. order: the one whose visits are counted."""
    runs = {name: run(order=name, **sizes) for name in ORDERS}
    held = runs[order].held
    most = max(sum(parts.values()) for parts in held)
    return race_state(runs, order) | {
        "opens": 5, "note": f"{len(runs[order].grid.skipped)} tiles are skipped.",
        "sram": {"title": "SRAM, the visit's peak; line: the peak of all", "end": most, "mark": most},
        "held": [
            {"parts": [(name, n_bytes, KINDS.get(name, "programs")) for name, n_bytes in parts.items()],
             "note": f"{sum(parts.values()):,} bytes"} for parts in held
        ],
    }  # fmt: skip


def draw_orders(n_q, n_k, block_q, block_k):
    """The visiting order of both loops, without and with causal."""
    grids = {
        f"{order}{', causal' if causal else ''}": tile_grid(n_q, n_k, block_q, block_k, causal, order)
        for causal in (False, True)
        for order in ORDERS
    }
    orders = [f"{name}: {grid.visit_number.tolist()}" for name, grid in grids.items()]
    alt = f"The order in which each loop visits the tiles, row by row, 0 for a skipped one. {'; '.join(orders)}."
    figure, every = panels(3.0, 1, 1, 1, 1, left=0.05, wspace=0.32, alt=alt)
    for axes, (name, grid) in zip(every, grids.items(), strict=True):
        draw_tile_grid(axes, grid)
        tidy(axes, title=name)
    return figure


def draw_bytes(counts):
    """Bars of bytes by tensor, paler what is written. counts: what it is -> {tensor: (bytes read, bytes written)}."""
    height, x = 1.3 + 0.4 * len(counts), "megabytes ($10^6$ bytes)"
    totals = {name: sum(map(sum, by_tensor.values())) / 1e6 for name, by_tensor in counts.items()}
    alt = f"Bars of megabytes by tensor. {', '.join(f'{name}: {total:.2f}' for name, total in totals.items())}."
    figure, axes = panel(height, left=0.12, title="bytes by tensor; pale: written", x=x, alt=alt)
    bars = {
        name: [
            (tensor, n_bytes / 1e6, colour)
            for tensor, (read, written) in by_tensor.items()
            for n_bytes, colour in ((read, TENSOR_COLOURS[tensor]), (written, pale(TENSOR_COLOURS[tensor])))
            if n_bytes
        ]
        for name, by_tensor in counts.items()
    }
    stacked(axes, bars, [f"{total:.2f}" for total in totals.values()])
    return figure


def draw_elements(by_length, by_sram):
    """Two panels on logarithmic axes: elements moved against N, and against M.

    by_length, by_sram: (x values, {name: elements moved at each x}).
    """
    ends = [
        f"from {what} = {x[0]:,} to {x[-1]:,}: "
        + ", ".join(f"{name} {moved[0]:.2g} to {moved[-1]:.2g}" for name, moved in named.items())
        for what, (x, named) in (("N", by_length), ("M", by_sram))
    ]
    alt = f"Elements moved, {'; '.join(ends)}."
    figure, (left, right) = panels(3.3, 1, 1, alt=alt)
    tidy(left, title="elements moved against length", x="N, queries and keys", y="elements")
    tidy(right, title="elements moved against SRAM", x="M, elements of SRAM", y="elements")
    for axes, (x, named) in ((left, by_length), (right, by_sram)):
        curves(axes, x, named, ((VERMILLION, "s-"), (BLUE, "o-"), (INK, "--")))
        log_axes(axes, x)
    legend(left)
    return figure


def draw_budget(held, budget_bytes):
    """What lies in SRAM, stacked, for several cases against a budget. held: case -> {name: bytes}."""
    title = f"bytes in SRAM; line: the budget of {budget_bytes:,}"
    totals = {case: f"{sum(parts.values()):,}" for case, parts in held.items()}
    cases = "; ".join(f"{case}: {total}" for case, total in totals.items())
    alt = f"Bars of bytes in SRAM by tensor, against a budget of {budget_bytes:,}. {cases}."
    figure, axes = panel(1.5 + 0.4 * len(held), left=0.15, title=title, x="bytes", alt=alt)
    bars = {
        case: [(name, n_bytes, TENSOR_COLOURS.get(name, PALE)) for name, n_bytes in parts.items()]
        for case, parts in held.items()
    }
    stacked(axes, bars, totals.values())
    axes.axvline(budget_bytes, color=VERMILLION, linewidth=1.5)
    return figure


def explore():
    """The explorer of both loops on small tiles: lengths, block sizes, causal, and the visits one by one."""
    start = {"order": "q_outer", "causal": False, "n_q": 12, "n_k": 12, "block_q": 4, "block_k": 3}
    controls = [
        choices("buttons", "order", "count visits of", {name: name for name in ORDERS}),
        choices("tick", "causal", "causal", (False, True)),
        choices("slider", "n_q", "queries", LENGTHS), choices("slider", "n_k", "keys", LENGTHS),
        choices("slider", "block_q", "block_q", BLOCKS), choices("slider", "block_k", "block_k", BLOCKS),
    ]  # fmt: skip
    grid = [
        start | {"order": order, "causal": causal, "block_q": block_q, "block_k": block_k}
        for order, causal, block_q, block_k in product(ORDERS, (False, True), (3, 4, 6), (3, 4, 6))
    ]
    alt = (
        "Two grids of 3 x 4 tiles of scores with the order of their visits, for queries outermost and for keys "
        "outermost, and bars of the bytes read and written so far by tensor. With the bytes of the first five visits, "
        "keys outermost have made one."
    )
    return SvgExplorer("visits", visits_state, start, controls=controls, grid=grid, alt=alt, module="block_sizes")
