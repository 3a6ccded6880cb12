"""Lesson 09's explorer, which shows the tiles that each of the backward's three passes visits; the lesson's figures.

`run` is the model: it runs the course's tiled backward on a memory machine and cuts the machine's log into visits.
`draw` shows one step, `draw_products` the matrix products of each pass. `explore` is the widget.
"""

from functools import lru_cache
from types import SimpleNamespace

import numpy as np

from course_lib.machine import Machine
from course_lib.reference.backward import tiled_backward_on_machine

from .drawing import names_below, pale, stacked
from .figures import INK, TENSOR_COLOURS, label, panels, tidy
from .loop_steps import BLOCKS, LENGTHS, bytes_moved, visit_starts
from .shell import Explorer, choice, slider, tick
from .tile_grid import draw_tile_grid, tile_grid
from .words import plain

D = 8
DTYPE, STATISTICS = np.float16, np.float32
MAX_NUMBERED = 36  # tiles of one grid; numbers take most of the time of a redraw
TENSORS = ("Q", "K", "V", "O", "dO", "lse", "delta", "dQ", "dK", "dV")
# The passes, and the matrix products for each of their tiles.
PRODUCTS = {"delta": 0, "dK and dV": 4, "dQ": 3}


@lru_cache(maxsize=32)
def run(n_q, n_k, *, block_q, block_k, causal=False):
    """The tiled backward on n_q queries and n_k keys of D float16 numbers, visit by visit. Returns a namespace.

    grids: the TileGrid of each of the passes; delta's has one column. n_visits: of all. places: for each visit, its
    pass, and its number within that, from 1. moved: for each step from 0 to n_visits, tensor -> (bytes read, bytes
    written) so far; accesses between two visits count as part of the first. flops: of matrix products so far, for each
    step.
    """
    grids = {
        "delta": tile_grid(n_q, 1, block_q, 1, False, "q_outer"),
        "dK and dV": tile_grid(n_q, n_k, block_q, block_k, causal, "kv_outer"),
        "dQ": tile_grid(n_q, n_k, block_q, block_k, causal, "q_outer"),
    }
    machine, handles = Machine(), {}
    for name in TENSORS:
        rows = n_k if name[-1] in "KV" else n_q
        array = np.zeros(rows, STATISTICS) if name in ("lse", "delta") else np.zeros((rows, D), DTYPE)
        handles[name] = machine.hbm(array, name)
    tiled_backward_on_machine(machine, **handles, block_q=block_q, block_k=block_k, causal=causal)
    events = machine.report().events

    places = [(name, visit) for name, grid in grids.items() for visit in range(1, grid.n_visits + 1)]
    moved = bytes_moved(events, [0, *_starts(events)[1:], len(events)], TENSORS)
    flops = [2 * D * PRODUCTS[name] * pairs for name, grid in grids.items() for pairs in grid.pairs]
    flops = [0, *np.cumsum(flops).tolist()]
    return SimpleNamespace(grids=grids, n_visits=len(places), places=places, moved=moved, flops=flops)


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
        # Query tiles that see no key come first in their pass; they are not visits of their own.
        starts += [begin, *visit_starts(events, begin, end, inner, outer)[1:]]
    return starts


def describe(model, step):
    """The step in words and numbers, as HTML."""
    skipped = len(model.grids["dQ"].skipped)
    total = sum(map(sum, model.moved[step].values()))
    so_far = f"Bytes moved so far: {total:,}; FLOPs of matrix products: {model.flops[step]:,}."
    visits = ", ".join(f"{grid.n_visits} for {name}" for name, grid in model.grids.items())
    visits += f"; {skipped} skipped in each of the last two" if skipped else ""
    if step == 0:
        return f"<b>Visit 0 of {model.n_visits}</b> ({visits}).<br>Nothing done yet.<br>{so_far}"
    name, visit = model.places[step - 1]
    queries, keys = model.grids[name].rows_of(visit)
    what = {
        "delta": f"delta of {queries}: O times dO, summed along each row",
        "dK and dV": f"{keys} stay, {queries} pass by: S, dP, and their parts of dV and dK, 4 products",
        "dQ": f"{queries} stay, {keys} pass by: S and dP again, and their part of dQ, 3 products",
    }[name]
    number = 1 + list(model.grids).index(name)
    return f"<b>Visit {step} of {model.n_visits}</b> ({visits}).<br>Pass {number}, {name}: {what}.<br>{so_far}"


def draw(model, step):
    """Four panels after `step` visits: the tiles of the three passes, and bytes moved by tensor."""
    alt = f"The tiles of three passes, those visited in blue, and bytes by tensor. {plain(describe(model, step))}"
    figure, (*grids, hbm) = panels(3.3, 0.3, 1.0, 1.0, 1.25, left=0.05, wspace=0.42, alt=alt)
    done = step
    for place, (axes, (name, grid)) in enumerate(zip(grids, model.grids.items(), strict=True), start=1):
        draw_tile_grid(axes, grid, max(done, 0), MAX_NUMBERED)
        tidy(axes, title=f"{place}: {name}")
        done -= grid.n_visits
    grids[0].set_xticks([])
    grids[0].set_xlabel("")
    _draw_moved(hbm, model.moved[step], model.moved[-1])
    return figure


def _draw_moved(axes, so_far, in_the_end):
    """A bar for each tensor: read, above it paler what was written, and dashed what both will come to."""
    places, faces = range(len(TENSORS)), [TENSOR_COLOURS[name] for name in TENSORS]
    read, written = zip(*so_far.values(), strict=True)
    ends = [sum(moved) for moved in in_the_end.values()]
    tidy(axes, title="bytes moved; dashed: in all", y="bytes")
    axes.bar(places, read, width=0.7, color=faces)
    axes.bar(places, written, bottom=read, width=0.7, color=[pale(face) for face in faces])
    axes.bar(places, ends, width=0.7, facecolor="none", edgecolor=INK, linestyle="--", linewidth=1)
    names_below(axes, ["\u03b4" if name == "delta" else name for name in TENSORS])
    axes.set_ylim(0, 1.18 * max(ends))
    label(axes, 0.98, 0.98, "pale: written", ha="right", va="top", transform=axes.transAxes)


def draw_products(programs):
    """A row of boxes for each program, a box for each matrix product, 2 n_q n_k d FLOPs. programs: name -> products."""
    products = "; ".join(f"{name}: {len(products)}, {', '.join(products)}" for name, products in programs.items())
    alt = f"Rows of boxes, one for each matrix product. {products}."
    figure, (axes,) = panels(0.9 + 0.42 * len(programs), left=0.27, below=0.1, alt=alt)

    def colour(product):
        tensor, *again = product.split()
        return pale(TENSOR_COLOURS[tensor]) if again else TENSOR_COLOURS[tensor]

    bars = {name: [(product, 1, colour(product)) for product in products] for name, products in programs.items()}
    stacked(axes, bars, [str(len(products)) for products in programs.values()], scale=False)
    tidy(axes, title="matrix products; pale: only because something was not kept")
    return figure


def explore():
    """The explorer as a widget: causal, lengths, block sizes, and the visit."""
    first = {"n_q": 12, "n_k": 12, "block_q": 4, "block_k": 3, "causal": True}
    return Explorer(
        run, describe, draw,
        {"causal": tick("causal", True)},
        {"n_q": choice("queries", LENGTHS, 12), "n_k": choice("keys", LENGTHS, 12)},
        {"block_q": choice("block_q", BLOCKS, 4), "block_k": choice("block_k", BLOCKS, 3)},
        {"visit": slider("visit", 0, run(**first).n_visits, 8)},
        step="visit", ends={"visit": lambda visit, **chosen: run(**chosen).n_visits}, play="visit",
    )  # fmt: skip
