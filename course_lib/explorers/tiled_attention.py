"""Lesson 06's stepping explorer: one visit after another, what lies in SRAM and what has moved, and its figures.

`run` is the model: the course's own tiled attention on a memory machine that is watched while it works. `draw`
shows one step of it; `draw_bytes`, `draw_growth` and `draw_budget` are the lesson's figures. `explore` is the widget.
"""

from dataclasses import dataclass

import numpy as np

from course_lib import traffic
from course_lib.machine import Machine
from course_lib.reference.tiled import tiled_attention_on_machine

from .figures import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, VERMILLION, Picture, tidy
from .tile_grid import ORDERS, TileGrid, draw_tile_grid, tile_grid
from .visits import explore_visits

D = 8
DTYPE = np.float16
WORK = "work"  # scores, statistics, accumulator, temporaries: what is loaded from no tensor
COLOURS = {
    "Q": BLUE, "K": ORANGE, "V": GREEN, "S": VERMILLION, "P": "#F0B090", "O": PURPLE, "l": GREY, "m": GREY, WORK: GREY,
}  # fmt: skip


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


def run(n_q, n_k, *, block_q, block_k, causal=False, order="q_outer"):
    """Tiled attention on a watched machine, visit by visit: a Run. Arguments as those of `tile_grid`."""
    grid = tile_grid(n_q, n_k, block_q, block_k, causal, order)
    rng, machine = np.random.default_rng(6), _Watched()
    shapes = {"Q": (n_q, D), "K": (n_k, D), "V": (n_k, D), "O": (n_q, D)}
    handles = [machine.hbm(rng.standard_normal(shape).astype(DTYPE), name) for name, shape in shapes.items()]
    kept = {name: machine.hbm(np.zeros(n_q, np.float32), name) for name in "lm"} if order == "kv_outer" else {}
    options = {"block_q": block_q, "block_k": block_k, "causal": causal, "order": order}
    tiled_attention_on_machine(machine, *handles, **options, **kept)
    machine.mark()

    events = machine.report().events
    # A visit begins with the inner loop's first load, or with the outer loop's loads just before it.
    inner, outer = ("K", ("Q",)) if order == "q_outer" else ("Q", ("K", "V"))
    starts = []
    for index, event in enumerate(events):
        if (event.kind, event.tensor) == ("load", inner):
            while index and events[index - 1].kind == "load" and events[index - 1].tensor in outer:
                index -= 1
            starts.append(index)
    ends = [*starts, len(events)]

    moved = {name: (0, 0) for name in ("Q", "K", "V", "O", *kept)}
    steps, held, done = [], [{}], 0
    for step, end in enumerate(ends):
        for event in events[done:end]:
            read, write = moved[event.tensor]
            is_load = event.kind == "load"
            moved = moved | {event.tensor: (read + event.n_bytes * is_load, write + event.n_bytes * (not is_load))}
        if step:
            fullest = max(
                machine.fullest[done + 1 : end + 1], key=lambda holders: sum(n_bytes for _, n_bytes in holders)
            )
            held.append(_by_tensor(fullest))
        steps.append(moved)
        done = end
    standard = traffic.standard_attention(n_q, n_k, D, dtype_bytes=DTYPE().itemsize)
    return Run(grid, tuple(steps), tuple(held), standard.total_bytes)


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
    bytes_moved = f"Bytes moved so far: {total:,} ({moved}); standard attention: {model.standard_bytes:,} in all."
    skipped = f", {len(grid.skipped)} skipped" if grid.skipped else ""
    if step == 0:
        return f"<b>Visit 0 of {grid.n_visits}</b>{skipped}.<br>{bytes_moved}"
    i, j = grid.visits[step - 1]
    (q_start, q_stop), (k_start, k_stop) = grid.query_rows(i), grid.key_rows(j)
    held = ", ".join(f"{name} {n_bytes:,}" for name, n_bytes in model.held[step].items())
    return (
        f"<b>Visit {step} of {grid.n_visits}</b>{skipped}: queries {q_start} to {q_stop - 1}, "
        f"keys {k_start} to {k_stop - 1}.<br>"
        f"SRAM at its fullest: {sum(model.held[step].values()):,} bytes ({held}).<br>{bytes_moved}"
    )


def draw(model, step):
    """Three panels after `step` visits: the grid, the SRAM at the visit's fullest moment, bytes moved by tensor."""
    figure = Picture(3.5)
    grid, sram, hbm = figure.panels(1.15, 0.8, 1.2)
    figure.subplots_adjust(left=0.05, right=0.985, bottom=0.15, top=0.88, wspace=0.3)
    draw_tile_grid(grid, model.grid, step)
    grid.set_title("tiles of the scores", loc="left", y=1.03, fontsize=10.5, color=INK)

    tidy(sram, title="in SRAM, at the fullest", y="bytes")
    most = max(sum(held.values()) for held in model.held)
    names = list(model.held[-1])
    sram.set_xlim(-0.6, len(names) - 0.4)
    sram.set_ylim(0, 1.1 * max(max(held.values(), default=0) for held in model.held))
    held = [model.held[step].get(name, 0) for name in names]
    sram.bars(range(len(names)), held, facecolors=[COLOURS[name] for name in names])
    sram.set_xticks(range(len(names)), names)
    total = sum(model.held[step].values())
    sram.text(0.02, 0.98, f"total {total:,}\nmost {most:,}", transform=sram.transAxes, va="top", fontsize=9, color=INK)

    tidy(hbm, title="bytes moved; dashed: in the end", y="bytes")
    draw_moved(hbm, model.moved[step], model.moved[-1], COLOURS)
    hbm.set_xticks(range(len(model.moved[-1])), model.moved[-1])
    hbm.set_ylim(0, 1.12 * max(map(sum, model.moved[-1].values())))
    hbm.text(0.02, 0.98, "pale: written", transform=hbm.transAxes, va="top", fontsize=9, color=INK)
    return figure


def draw_moved(axes, so_far, in_the_end, colours):
    """A bar for each tensor, in a Panel: read, above it paler what was written, and dashed what both will come to.

    so_far, in_the_end: tensor -> (bytes read, bytes written).
    """
    places, faces = range(len(so_far)), [colours[name] for name in so_far]
    read, written = zip(*so_far.values(), strict=True)
    axes.bars(places, read, facecolors=faces)
    axes.bars(places, written, bottom=read, facecolors=faces, alpha=0.45)
    ends = [sum(moved) for moved in in_the_end.values()]
    axes.bars(places, ends, facecolors="none", edgecolors=INK, linestyles="--", linewidths=1)
    axes.set_xlim(-0.6, len(places) - 0.4)


def draw_orders(n_q, n_k, block_q, block_k):
    """The visiting order of both loops, without and with causal. Returns a figure."""
    figure = Picture(3.0)
    figure.subplots_adjust(left=0.05, right=0.985, bottom=0.16, top=0.86, wspace=0.32)
    cases = [(causal, order) for causal in (False, True) for order in ORDERS]
    for axes, (causal, order) in zip(figure.subplots(1, 4), cases, strict=True):
        draw_tile_grid(axes, tile_grid(n_q, n_k, block_q, block_k, causal, order))
        axes.set_title(f"{order}{', causal' if causal else ''}", loc="left", y=1.03, fontsize=10.5, color=INK)
    return figure


def draw_bytes(counts):
    """Stacked bars of bytes by tensor. counts: what it is -> {tensor: (bytes read, bytes written)}."""
    figure = Picture(2.2 + 0.32 * len(counts))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.2, right=0.985, bottom=0.22, top=0.82)
    tidy(axes, title="bytes by tensor", x="megabytes ($10^6$ bytes); hatched: written")
    named = set()
    for y, by_tensor in enumerate(counts.values()):
        left = 0.0
        for name, (read, write) in by_tensor.items():
            for n_bytes, hatch in ((read, None), (write, "///")):
                label = None if name in named or not n_bytes else name
                named |= {name} if label else set()
                axes.barh(
                    y, n_bytes / 1e6, left=left, height=0.62, color=COLOURS[name], hatch=hatch, edgecolor="white",
                    linewidth=0.6, label=label,
                )  # fmt: skip
                left += n_bytes / 1e6
        axes.text(left, y, f" {left:.2f}", va="center", fontsize=9, color=INK)
    axes.set_yticks(range(len(counts)), counts)
    axes.invert_yaxis()
    axes.margins(x=0.09)
    axes.legend(frameon=False, fontsize=9, ncols=8, loc="lower right", bbox_to_anchor=(1.0, 0.98))
    return figure


def draw_growth(by_length, by_sram):
    """Two panels on logarithmic axes: elements moved against N, and against M.

    by_length, by_sram: (x values, {name: elements moved at each x}). Returns a figure.
    """
    figure = Picture(3.3)
    panels = figure.subplots(1, 2, width_ratios=(1, 1))
    figure.subplots_adjust(left=0.08, right=0.985, bottom=0.16, top=0.88, wspace=0.25)
    styles = ((VERMILLION, "s"), (BLUE, "o"), (INK, None))
    titles = ("elements moved against length", "elements moved against SRAM")
    labels = ("N, queries and keys", "M, elements of SRAM")
    for axes, (x, curves), title, label in zip(panels, (by_length, by_sram), titles, labels, strict=True):
        tidy(axes, title=title, x=label, y="elements")
        for (name, y), (colour, marker) in zip(curves.items(), styles, strict=False):
            line = "--" if marker is None else "-"
            axes.plot(x, y, color=colour, marker=marker, markersize=4, linestyle=line, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
    panels[0].legend(frameon=False, fontsize=9)
    return figure


def draw_budget(held, budget_bytes):
    """What lies in SRAM, stacked, for several cases against a budget. held: case -> {name: bytes}."""
    figure = Picture(1.6 + 0.4 * len(held))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.2, right=0.985, bottom=0.28, top=0.84)
    tidy(axes, title="bytes in SRAM", x="bytes")
    for y, parts in enumerate(held.values()):
        left = 0
        for name, n_bytes in parts.items():
            axes.barh(y, n_bytes, left=left, height=0.62, color=COLOURS.get(name, PALE), edgecolor="white")
            axes.text(left + n_bytes / 2, y, name, ha="center", va="center", fontsize=8.5, color=INK)
            left += n_bytes
        axes.text(left, y, f" {left:,}", va="center", fontsize=9, color=INK)
    axes.axvline(budget_bytes, color=VERMILLION, linewidth=1.5, label=f"budget: {budget_bytes:,}")
    axes.set_yticks(range(len(held)), held)
    axes.invert_yaxis()
    axes.margins(x=0.09)
    axes.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 0.98))
    return figure


def explore():
    """The explorer as an ipywidgets box: loop order, causal, lengths, block sizes, and the visit."""
    return explore_visits(run, describe, draw, causal=False, visit=1, orders=ORDERS)
