"""Tiled attention visit by visit, for lesson 06's explorer and figures: what lies in SRAM, and what has moved.

`run` is the model: the course's own tiled attention on a memory machine that is watched while it works. `race_panels`
shows both loops, one as far as the same bytes take it.
"""

from bisect import bisect_right
from functools import lru_cache, partial
from types import SimpleNamespace

import numpy as np

from course_lib.machine import Machine
from course_lib.reference.tiled import tiled_attention_on_machine

from . import tile_grid as tiles
from .svg import TENSOR_COLOURS

LOOPS = {"q_outer": "queries outermost", "kv_outer": "keys outermost"}
TENSORS = {name: (name,) for name in "QKVO"} | {"l, m": ("l", "m")}
WORK = "work"  # scores, statistics, accumulator, temporaries: what is loaded from no tensor


@lru_cache(maxsize=64)
def run(n_q, n_k, *, block_q, block_k, causal=False, order="q_outer", d, dtype="float16"):
    """Tiled attention of rows of d numbers on a machine, visit by visit. Arguments as of `tile_grid`.

    Returns a namespace. grid: of `tile_grid`. moved: for step 0 to grid.n_visits, tensor -> (bytes read, bytes written)
    so far; what precedes a visit counts to it, what follows the last visit counts to that one. held: tensor or WORK ->
    bytes in SRAM at the peak.
    """
    grid, machine = tiles.tile_grid(n_q, n_k, block_q, block_k, causal, order), Machine()
    # Zeros: what the machine holds and moves does not depend on the numbers.
    rows = {"Q": n_q, "K": n_k, "V": n_k, "O": n_q}
    handles = [machine.hbm(np.zeros((n, d), dtype), name) for name, n in rows.items()]
    kept = {name: machine.hbm(np.zeros(n_q, np.float32), name) for name in "lm"} if order == "kv_outer" else {}
    options = {"block_q": block_q, "block_k": block_k, "causal": causal, "order": order}
    tiled_attention_on_machine(machine, *handles, **options, **kept)
    report, held = machine.report(), dict.fromkeys((*"QKVOlm", WORK), 0)
    events = report.events
    inner, outer, tensors = ("K", "Q", "QKVO") if order == "q_outer" else ("Q", "KV", "QKVOlm")
    ends = [*tiles.visit_starts(events, 0, len(events), inner, outer), len(events)]
    for name, n_bytes in report.peak_holders:
        held[name.split("[")[0] if "[" in name else WORK] += n_bytes
    return SimpleNamespace(grid=grid, moved=tiles.bytes_moved(events, ends, tensors), held=held)


def parts_of(held, unit_bytes=1):
    """The parts of a bar of what SRAM holds: (name, length, class)."""
    classes = {name: name if name in TENSOR_COLOURS else "grey" for name in held}
    return [(name, n_bytes / unit_bytes, classes[name]) for name, n_bytes in held.items() if n_bytes]


def visits_of_both(runs, order, visit):
    """order -> visits that its loop has made when that of `order` has made `visit`, and the other moved no more bytes.

    runs: order -> what `run` gives of the same tiles.
    """
    spent = tiles.total_bytes(runs[order].moved[visit])
    return {
        name: bisect_right([tiles.total_bytes(step) for step in run.moved], spent) - 1 for name, run in runs.items()
    }


def race_panels(runs, order, visit):
    """The grids of both loops, the bytes that they moved, and what is visited, in words."""
    done, grids, loops = visits_of_both(runs, order, visit), [], {}
    for name, run in runs.items():
        title = f"{LOOPS[name]}: {done[name]} of {run.grid.n_visits}"
        about = {"tips": partial(_tell, run), "choose": {"order": name}}
        grids.append(tiles.grid_panel(run.grid, done[name], title, height=196, **about))
        loops[LOOPS[name]] = run.moved[done[name]], run.moved[-1]
    upper, lower = (f"{tiles.total_bytes(step):,}" for step, _ in loops.values())
    title = f"Bytes: {upper} (upper: queries outermost), {lower}. Pale: written"
    said = f"{order}: {_tell(runs[order], *runs[order].grid.visits[visit - 1])}" if visit else "Nothing visited yet."
    return grids, tiles.moved_panel(title, 232, 160, TENSORS, loops), said


def _tell(run, i, j):
    """Which rows meet in a tile, with which visit, and what that moves."""
    rows, visit = " and ".join(tiles.rows_of(run.grid, i, j)), int(run.grid.visit_number[i, j])
    if not visit:
        return f"{rows}: never loaded."
    before, after, texts = run.moved[visit - 1], run.moved[visit], []
    for way, verb in enumerate(("reads", "writes")):
        moved = {name: after[name][way] - before[name][way] for name in after}
        parts = [f"{name} {n_bytes:,}" for name, n_bytes in moved.items() if n_bytes]
        texts += [f"{verb} {', '.join(parts)}"] if parts else []
    return f"{rows}: visit {visit}, {'; '.join(texts)} bytes."
