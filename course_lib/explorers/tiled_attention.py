"""Lesson 06's stepping explorer: one visit after another, what lies in SRAM and what has moved, and its figures.

`run` is the model: the course's own tiled attention on a memory machine that is watched while it works. `draw`
shows one step of it; `draw_bytes`, `draw_growth` and `draw_budget` are the lesson's figures. `explore` is the widget.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from course_lib import traffic
from course_lib.machine import Machine
from course_lib.reference.tiled import tiled_attention_on_machine

from .drawing import curves, log_axes, names_below, pale, stacked
from .figures import BLUE, INK, PALE, TENSOR_COLOURS, VERMILLION, corner, legend, panel, panels, tidy
from .tile_grid import ORDERS, TileGrid, draw_tile_grid, tile_grid
from .visits import bytes_moved, draw_moved, explore_visits, visit_starts
from .words import plain

D = 8
DTYPE = np.float16
WORK = "work"  # scores, statistics, accumulator, temporaries: what is loaded from no tensor


@dataclass(frozen=True)
class Run:
    """Tiled attention on n_q queries and n_k keys of D float16 numbers, and its state after each visit.

    moved: for step 0 to grid.n_visits, tensor -> (bytes read, bytes written) so far; what precedes a visit counts
        to it, what follows the last visit counts to that one. held: tensor or WORK -> bytes in SRAM at the fullest
        moment of the visit; empty for step 0. standard_bytes: what standard attention moves in all.
    """

    grid: TileGrid
    moved: tuple[dict[str, tuple[int, int]], ...]
    held: tuple[dict[str, int], ...]
    standard_bytes: int

    @property
    def n_visits(self):
        return self.grid.n_visits


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
def run(n_q, n_k, *, block_q, block_k, causal=False, order="q_outer"):
    """Tiled attention on a watched machine, visit by visit: a Run. Arguments as those of `tile_grid`."""
    grid = tile_grid(n_q, n_k, block_q, block_k, causal, order)
    machine, options = _Watched(), {"block_q": block_q, "block_k": block_k, "causal": causal}
    events = run_on(machine, n_q, n_k, D, DTYPE, order=order, **options).events
    machine.mark()
    inner, outer, tensors = ("K", "Q", "QKVO") if order == "q_outer" else ("Q", "KV", "QKVOlm")
    ends = [*visit_starts(events, 0, len(events), inner, outer), len(events)]
    moments = [machine.fullest[start + 1 : end + 1] for start, end in pairwise(ends)]
    held = [_by_tensor(max(moment, key=lambda holders: sum(n_bytes for _, n_bytes in holders))) for moment in moments]
    standard = traffic.standard_attention(n_q, n_k, D, dtype_bytes=DTYPE().itemsize)
    return Run(grid, bytes_moved(events, ends, tensors), ({}, *held), standard.total_bytes)


def _by_tensor(holders):
    """(name, bytes) of what lies in SRAM, summed by the tensor it was loaded from, or under WORK."""
    held = dict.fromkeys(("Q", "K", "V", "O", "l", "m", WORK), 0)
    for name, n_bytes in holders:
        tensor = name.split("[")[0]
        held[tensor if tensor in held and "[" in name else WORK] += n_bytes
    return {name: n_bytes for name, n_bytes in held.items() if n_bytes}


def describe(model, step):
    """The step in words and numbers, as HTML."""
    grid = model.grid
    moved = ", ".join(f"{name} {read + write:,}" for name, (read, write) in model.moved[step].items())
    total = sum(map(sum, model.moved[step].values()))
    so_far = f"Bytes moved so far: {total:,} ({moved}); standard attention: {model.standard_bytes:,} in all."
    skipped = f", {len(grid.skipped)} skipped" if grid.skipped else ""
    if step == 0:
        return f"<b>Visit 0 of {grid.n_visits}</b>{skipped}.<br>{so_far}"
    queries, keys = grid.rows_of(step)
    held = ", ".join(f"{name} {n_bytes:,}" for name, n_bytes in model.held[step].items())
    return (
        f"<b>Visit {step} of {grid.n_visits}</b>{skipped}: {queries}, {keys}.<br>"
        f"SRAM at its fullest: {sum(model.held[step].values()):,} bytes ({held}).<br>{so_far}"
    )


def draw(model, step):
    """Three panels after `step` visits: the grid, the SRAM at the visit's fullest moment, bytes moved by tensor."""
    alt = f"The tiles of the scores, those visited in blue; SRAM and bytes by tensor. {plain(describe(model, step))}"
    figure, (grid, sram, hbm) = panels(3.5, 1.15, 0.8, 1.2, left=0.05, wspace=0.3, alt=alt)
    draw_tile_grid(grid, model.grid, step)
    tidy(grid, title="tiles of the scores")

    tidy(sram, title="in SRAM, at the fullest", y="bytes")
    names = list(model.held[-1])
    held = [model.held[step].get(name, 0) for name in names]
    sram.bar(range(len(names)), held, color=[TENSOR_COLOURS.get(name, PALE) for name in names])
    names_below(sram, names)
    sram.set_ylim(0, 1.25 * max(max(held.values(), default=0) for held in model.held))
    corner(sram, f"total {sum(model.held[step].values()):,}")
    corner(sram, f"most {max(sum(held.values()) for held in model.held):,}", line=1)
    draw_moved(hbm, model.moved[step], model.moved[-1])
    return figure


def draw_orders(n_q, n_k, block_q, block_k):
    """The visiting order of both loops, without and with causal. Returns a figure."""
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


def draw_growth(by_length, by_sram):
    """Two panels on logarithmic axes: elements moved against N, and against M.

    by_length, by_sram: (x values, {name: elements moved at each x}). Returns a figure.
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
    """The explorer as a widget: loop order, causal, lengths, block sizes, and the visit."""
    return explore_visits(run, describe, draw, causal=False, visit=1, orders=ORDERS)
