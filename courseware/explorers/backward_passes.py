"""Lesson 09's explorer: the tiles that each of the backward's three passes visits, and the bytes that they move.

`run` is the model: it runs the course's tiled backward on a memory machine and cuts the machine's log into visits.
`draw` shows one step.
"""

from functools import lru_cache, partial
from types import SimpleNamespace

import numpy as np

from course_lib.machine import Machine
from course_lib.reference.backward import tiled_backward_on_machine

from . import tile_grid as tiles
from .explorer import Explorer, slider, tick
from .svg import Page

D = 8
TENSORS = ("Q", "K", "V", "O", "dO", "lse", "delta", "dQ", "dK", "dV")
# The passes: matrix products for each of their tiles, and what they do with these queries and keys.
PRODUCTS = {"delta": 0, "dK and dV": 4, "dQ": 3}
WORDS = {
    "delta": "delta of {0}: O times dO, summed along each row",
    "dK and dV": "{1} stay, {0} pass by: S, dP, and their parts of dV and dK, 4 products",
    "dQ": "{0} stay, {1} pass by: S and dP again, and their part of dQ, 3 products",
}


@lru_cache(maxsize=32)
def run(n_q, n_k, *, block_q, block_k, causal=False):
    """The tiled backward on n_q queries and n_k keys of D float16 numbers, visit by visit. Returns a namespace.

    grids: the `tile_grid` of each of the passes; delta's has one column. n_visits: of all. places: for each visit, its
    pass, and its number within that, from 1. moved: for each step from 0 to n_visits, tensor -> (bytes read, bytes
    written) so far; accesses between two visits count as part of the first. flops: of matrix products so far, for each
    step.
    """
    grids = {
        "delta": tiles.tile_grid(n_q, 1, block_q, 1, False, "q_outer"),
        "dK and dV": tiles.tile_grid(n_q, n_k, block_q, block_k, causal, "kv_outer"),
        "dQ": tiles.tile_grid(n_q, n_k, block_q, block_k, causal, "q_outer"),
    }
    machine, handles = Machine(), {}
    for name in TENSORS:
        rows = n_k if name[-1] in "KV" else n_q
        array = np.zeros(rows, np.float32) if name in ("lse", "delta") else np.zeros((rows, D), np.float16)
        handles[name] = machine.hbm(array, name)
    tiled_backward_on_machine(machine, **handles, block_q=block_q, block_k=block_k, causal=causal)
    events = machine.report().events

    places = [(name, visit) for name, grid in grids.items() for visit in range(1, grid.n_visits + 1)]
    stored = {event.tensor: index for index, event in enumerate(events, start=1) if event.kind == "store"}
    starts = [
        *(index for index in range(stored["delta"]) if events[index].tensor == "O"),
        *tiles.visit_starts(events, stored["delta"], stored["dV"], "Q", "KV"),
        # Query tiles that see no key come first in their pass; they are not visits of their own.
        *tiles.visit_starts(events, stored["dV"], len(events), "K", ("Q", "dO", "lse", "delta")),
    ]
    moved = tiles.bytes_moved(events, [0, *starts[1:], len(events)], TENSORS)
    flops = [2 * D * PRODUCTS[name] * pairs for name, grid in grids.items() for pairs in grid.pairs]
    flops = [0, *np.cumsum(flops).tolist()]
    return SimpleNamespace(grids=grids, n_visits=len(places), places=places, moved=moved, flops=flops)


def draw(model, step):
    """The tiles of the three passes after `step` visits, bytes moved by tensor, and the step in words: a Page."""
    grids = []
    for place, (name, grid) in enumerate(model.grids.items(), start=1):
        before = model.places.index((name, 1))
        done = min(max(step - before, 0), grid.n_visits)
        about = {"width": 90 if name == "delta" else 214, "tips": partial(_tell, name, grid), "choose": {}}
        grids.append(tiles.grid_panel(grid, done, f"{place}: {name}", before=before, **about))
    rows = {"\u03b4" if name == "delta" else name: (name,) for name in TENSORS}
    loops = {"three passes": (model.moved[step], model.moved[-1])}
    moved = tiles.moved_panel("Bytes moved; pale: written; dashed: in all", 330, 220, rows, loops)
    visits = ", ".join(f"{grid.n_visits} for {name}" for name, grid in model.grids.items())
    skipped, now = len(model.grids["dQ"].skipped), "Nothing done yet"
    if step:
        name, visit = model.places[step - 1]
        rows = tiles.rows_of(model.grids[name], *model.grids[name].visits[visit - 1])
        now = f"Pass {1 + list(model.grids).index(name)}, {name}: {WORDS[name].format(*rows)}"
    return Page(
        "The tiles of three passes, those visited in blue, and bytes by tensor.", (*grids, moved),
        text=f"<b>Visit {step} of {model.n_visits}</b> ({visits}"
        f"{f'; {skipped} skipped in each of the last two' if skipped else ''}).<br>{now}.<br>Bytes moved so far: "
        f"{tiles.total_bytes(model.moved[step]):,}; FLOPs of matrix products: {model.flops[step]:,}.",
    )  # fmt: skip


def _tell(name, grid, i, j):
    """What a pass does in a tile."""
    rows = tiles.rows_of(grid, i, j)
    return WORDS[name].format(*rows) if grid.visit_number[i, j] else f"{' and '.join(rows)}: skipped"


def explore():
    """The explorer of the three passes."""
    lengths, blocks, visits = (4, 8, 12, 16, 20, 24), (2, 3, 4, 6, 8), range(2 * 12 * 12 + 13)
    controls = {
        "causal": tick("causal", start=True), "n_q": slider("queries", lengths, 12),
        "n_k": slider("keys", lengths, 12), "block_q": slider("block_q", blocks, 4),
        "block_k": slider("block_k", blocks, 3), "visit": slider("visits", visits, 8, play=True),
    }  # fmt: skip
    written = {"causal": (False, True), "block_q": (3, 4, 6), "block_k": (3, 4, 6), "visit": visits}
    ends = {"visit": lambda visit, **sizes: run(**sizes).n_visits}
    return Explorer(lambda visit, **sizes: draw(run(**sizes), visit), controls, ends=ends, written=written)
