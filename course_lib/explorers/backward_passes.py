"""Lesson 09's explorer, which shows the tiles that each of the backward's three passes visits; the lesson's figures.

`run` is the model: it runs the course's tiled backward on a memory machine and cuts the machine's log into visits.
`draw` shows one step; `draw_gradient` and `draw_products` are the lesson's figures. `explore` is the widget.
"""

from dataclasses import dataclass

import numpy as np

from course_lib.machine import Machine
from course_lib.reference.backward import tiled_backward_on_machine

from .figures import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, VERMILLION, Picture, tidy
from .tile_grid import TileGrid, draw_tile_grid, tile_grid
from .tiled_attention import draw_moved
from .visits import explore_visits

D = 8
DTYPE, STATISTICS = np.float16, np.float32
MAX_NUMBERED = 36  # tiles of one grid; numbers take most of the time of a redraw
TENSORS = ("Q", "K", "V", "O", "dO", "lse", "delta", "dQ", "dK", "dV")
COLOURS = {
    "Q": BLUE, "K": ORANGE, "V": GREEN, "O": PURPLE, "dO": VERMILLION, "lse": GREY, "delta": GREY,
    "dQ": BLUE, "dK": ORANGE, "dV": GREEN,
}  # fmt: skip


@dataclass(frozen=True)
class Pass:
    """One of the three passes: its tiles, the order of visiting them, and the matrix products for each tile."""

    name: str
    grid: TileGrid
    products: int


@dataclass(frozen=True)
class Run:
    """The tiled backward on n_q queries and n_k keys of D float16 numbers, and what has been done after each visit.

    passes: delta (whose grid has one column), dK and dV, dQ. moved: for each step from 0 to n_visits, tensor -> (bytes
    read, bytes written) so far; accesses between two visits count as part of the first. flops: of matrix products so
    far, for each step.
    """

    passes: tuple[Pass, Pass, Pass]
    moved: tuple[dict[str, tuple[int, int]], ...]
    flops: tuple[int, ...]

    @property
    def n_visits(self):
        return sum(one.grid.n_visits for one in self.passes)

    def place(self, step):
        """(index of the pass, number of the visit within it) for a step; steps and visits are numbered from 1."""
        for index, one in enumerate(self.passes):
            if step <= one.grid.n_visits:
                return index, step
            step -= one.grid.n_visits
        raise ValueError(f"there are {self.n_visits} visits")


def run(n_q, n_k, *, block_q, block_k, causal=False):
    """The backward's three passes, visit by visit: a Run. Sizes are counts of at least 1; lengths may differ."""
    passes = (
        Pass("delta", tile_grid(n_q, 1, block_q, 1, False, "q_outer"), 0),
        Pass("dK and dV", tile_grid(n_q, n_k, block_q, block_k, causal, "kv_outer"), 4),
        Pass("dQ", tile_grid(n_q, n_k, block_q, block_k, causal, "q_outer"), 3),
    )
    rng, machine = np.random.default_rng(9), Machine()
    handles = {}
    for name in TENSORS:
        rows = n_k if name[-1] in "KV" else n_q
        array = np.zeros(rows, STATISTICS) if name in ("lse", "delta") else rng.standard_normal((rows, D)).astype(DTYPE)
        handles[name] = machine.hbm(array, name)
    tiled_backward_on_machine(machine, **handles, block_q=block_q, block_k=block_k, causal=causal)
    events = machine.report().events

    moved, flops = {name: (0, 0) for name in TENSORS}, 0
    steps, all_flops = [moved], [0]
    starts = _starts(events)
    for step, (start, end) in enumerate(zip(starts, [*starts[1:], len(events)], strict=True), start=1):
        for event in events[start:end]:
            read, write = moved[event.tensor]
            is_load = event.kind == "load"
            moved = moved | {event.tensor: (read + event.n_bytes * is_load, write + event.n_bytes * (not is_load))}
        steps.append(moved)
        index, visit = Run(passes, (), ()).place(step)
        flops += 2 * D * passes[index].products * _pairs(passes[index].grid, visit)
        all_flops.append(flops)
    return Run(passes, tuple(steps), tuple(all_flops))


def _starts(events):
    """Where in the log each visit begins: at the inner loop's first load, or at the outer loop's loads before it."""
    stores = [index for index, event in enumerate(events) if event.kind == "store"]
    dkdv_begins = 1 + max(index for index in stores if events[index].tensor == "delta")
    dq_begins = 1 + max(index for index in stores if events[index].tensor == "dV")
    starts = [index for index in range(dkdv_begins) if events[index].tensor == "O"]
    for begin, end, inner, outer in (
        (dkdv_begins, dq_begins, "Q", ("K", "V")),
        (dq_begins, len(events), "K", ("Q", "dO", "lse", "delta")),
    ):
        first = len(starts)
        for index in range(begin, end):
            if events[index].kind == "load" and events[index].tensor == inner:
                while index > begin and events[index - 1].kind == "load" and events[index - 1].tensor in outer:
                    index -= 1
                starts.append(index)
        starts[first] = begin  # query tiles that see no key come first; they are not visits of their own
    return starts


def _pairs(grid, visit):
    i, j = grid.visits[visit - 1]
    (q_start, q_stop), (k_start, k_stop) = grid.query_rows(i), grid.key_rows(j)
    return (q_stop - q_start) * (k_stop - k_start)


def describe(model, step):
    """The step in words and numbers, as HTML."""
    delta, dkdv, dq = (one.grid.n_visits for one in model.passes)
    skipped = len(model.passes[1].grid.skipped)
    total = sum(map(sum, model.moved[step].values()))
    so_far = f"Bytes moved so far: {total:,}; FLOPs of matrix products: {model.flops[step]:,}."
    visits = f"{delta} for delta, {dkdv} for dK and dV, {dq} for dQ"
    visits += f"; {skipped} skipped in each of the last two" if skipped else ""
    if step == 0:
        return f"<b>Visit 0 of {model.n_visits}</b> ({visits}).<br>Nothing done yet.<br>{so_far}"
    index, visit = model.place(step)
    one = model.passes[index]
    i, j = one.grid.visits[visit - 1]
    (q_start, q_stop), (k_start, k_stop) = one.grid.query_rows(i), one.grid.key_rows(j)
    queries, keys = f"queries {q_start} to {q_stop - 1}", f"keys {k_start} to {k_stop - 1}"
    what = (
        f"delta of {queries}: O times dO, summed along each row",
        f"{keys} stay, {queries} pass by: S, dP, and their parts of dV and dK, 4 products",
        f"{queries} stay, {keys} pass by: S and dP again, and their part of dQ, 3 products",
    )[index]
    return f"<b>Visit {step} of {model.n_visits}</b> ({visits}).<br>Pass {index + 1}, {one.name}: {what}.<br>{so_far}"


def draw(model, step):
    """Four panels after `step` visits: the tiles of the three passes, and bytes moved by tensor."""
    figure = Picture(3.3)
    *grids, hbm = figure.panels(0.3, 1.0, 1.0, 1.25)
    figure.subplots_adjust(left=0.05, right=0.985, bottom=0.15, top=0.88, wspace=0.42)
    done = step
    for number, (axes, one) in enumerate(zip(grids, model.passes, strict=True), start=1):
        draw_tile_grid(axes, one.grid, max(done, 0), MAX_NUMBERED)
        axes.set_title(f"{number}: {one.name}", loc="left", y=1.03, fontsize=10.5, color=INK)
        done -= one.grid.n_visits
    grids[0].set_xticks([])
    grids[0].set_xlabel("")

    tidy(hbm, title="bytes moved; dashed: in the end", y="bytes")
    draw_moved(hbm, model.moved[step], model.moved[-1], COLOURS)
    hbm.set_xticks(range(len(TENSORS)), ["Q", "K", "V", "O", "dO", "lse", "\u03b4", "dQ", "dK", "dV"])
    hbm.set_ylim(0, 1.18 * max(map(sum, model.moved[-1].values())))
    hbm.text(0.98, 0.98, "pale: written", transform=hbm.transAxes, va="top", ha="right", fontsize=9, color=INK)
    return figure


def draw_gradient(matrices, tokens):
    """Square matrices side by side with their numbers. matrices: name -> [n, n]; rows are queries, columns keys."""
    figure = Picture(2.9)
    panels = figure.subplots(1, len(matrices))
    figure.subplots_adjust(left=0.06, right=0.985, bottom=0.1, top=0.84, wspace=0.3)
    for axes, (name, matrix) in zip(panels, matrices.items(), strict=True):
        most = np.abs(matrix).max()
        axes.imshow(matrix, cmap="PuOr", vmin=-1.6 * most, vmax=1.6 * most)
        for (i, j), number in np.ndenumerate(matrix):
            axes.text(j, i, f"{round(number, 2) + 0.0:.2f}", ha="center", va="center", fontsize=9, color=INK)
        axes.set_title(name, loc="left", fontsize=10.5, color=INK)
        axes.set_xticks(range(len(tokens)), tokens, fontsize=9)
        axes.set_yticks(range(len(tokens)), tokens, fontsize=9)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, colors=INK)
    return figure


PRODUCT_COLOURS = {
    "S": GREY, "O": PURPLE, "S again": "#F0B090", "dP": VERMILLION, "dV": GREEN, "dK": ORANGE, "dQ": BLUE,
    "dP again": "#F0B090",
}  # fmt: skip


def draw_products(programs):
    """A row of boxes for each program, a box for each matrix product, 2 n_q n_k d FLOPs. programs: name -> products."""
    figure = Picture(0.9 + 0.42 * len(programs))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.27, right=0.985, bottom=0.06, top=0.86)
    tidy(axes, title="matrix products; pale: only because something was not kept")
    for y, products in enumerate(programs.values()):
        for x, name in enumerate(products):
            axes.barh(y, 0.94, left=x, height=0.66, color=PRODUCT_COLOURS[name], edgecolor="white")
            dark = name in ("O", "dP", "dV", "dQ", "S")
            axes.text(x + 0.47, y, name, ha="center", va="center", fontsize=9, color="white" if dark else INK)
        axes.text(len(products) + 0.05, y, str(len(products)), va="center", fontsize=10, color=INK)
    axes.set_yticks(range(len(programs)), programs, fontsize=9.5)
    axes.invert_yaxis()
    axes.set_xlim(0, 1 + max(map(len, programs.values())))
    axes.set_xticks([])
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    return figure


def explore():
    """The explorer as an ipywidgets box: causal, lengths, block sizes, and the visit."""
    return explore_visits(run, describe, draw, causal=True, visit=4)
