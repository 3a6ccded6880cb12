"""Lesson 12's figures and table: which warp copies what, the rungs of the ladder, two kernels line beside line."""

import inspect

import numpy as np

from course_lib.kernels import plain_forward
from course_lib.kernels.cuda import launches
from courseware.explorers.svg import GREY, VERMILLION
from courseware.simulators.cuda_emulator import request

from .base import bare, cells, label, legend, log_axes, panel, panels, tidy

TOUCHED = "#9DCBEA"


def draw_copies(rows, columns, warps):
    """Two ways in which the warps of a block copy a tile, 32 elements of a row at a time. Returns a figure."""
    pieces = np.arange(rows * columns // request.LANES).reshape(rows, -1)
    row, chunk = np.indices(pieces.shape)
    ways = {
        "a warp takes a row": (row % warps, row // warps * pieces.shape[1] + chunk),
        "consecutive threads, consecutive elements": (pieces % warps, pieces // warps),
    }
    first = [f"{title}: row 0 by warps {', '.join(map(str, warp[0]))}" for title, (warp, _) in ways.items()]
    alt = f"Who copies what of a tile of {rows} x {columns}. {'; '.join(first)}."
    figure, every = panels(0.95 + 0.19 * rows, 1, 1, wspace=0.14, alt=alt)
    for axes, (title, (warp, step)) in zip(every, ways.items(), strict=True):
        tidy(axes, title=title, x="column", y="row")
        cells(axes, step, (TOUCHED, "#F5D58A"), x=range(0, columns + 1, request.LANES))
        for i, j in np.ndindex(pieces.shape):
            label(axes, request.LANES * (j + 0.5), i + 0.5, f"warp {warp[i, j]}, step {step[i, j]}", size=8)
        axes.set(ylim=(rows, 0), yticks=np.arange(0, rows, 4) + 0.5, yticklabels=range(0, rows, 4))
        axes.set_xticks(range(0, columns + 1, request.LANES))
        bare(axes)
    return figure


def draw_ladder(rungs, peak_tflops, note):
    """For each rung, what its counts allow, and what was measured. Returns a figure.

    rungs: name -> TFLOP/s (if nothing overlaps, if everything does, measured).
    """
    said = [f"{name}: {low:.1f} to {high:.1f}, measured {found:.1f}" for name, (low, high, found) in rungs.items()]
    alt = f"TFLOP/s of each rung by its counts, and measured. {'; '.join(said)}."
    figure, axes = panel(1.5 + 0.3 * len(rungs), title="", left=0.17, above=0.5, note=note, alt=alt, x="TFLOP/s")
    low, high, measured = np.array(list(rungs.values())).T
    y = np.arange(len(rungs))
    axes.hlines(y, low, high, color=TOUCHED, linewidth=9, label="by the counts")
    axes.plot(measured, y, "o", color=VERMILLION, label="measured")
    for place, found in enumerate(measured):
        label(axes, found, place - 0.36, f"{found:.1f}", size=8)
    axes.axvline(peak_tflops, color=GREY, linestyle=":", label="peak of fp32")
    log_axes(axes, (1, 2, 4, 8, 16, 32, 64), y_base=None)
    axes.set(xlim=(0.7, 90), ylim=(len(rungs) - 0.4, -0.8))
    axes.set_yticks(y, list(rungs))
    legend(figure, ncols=3, loc="upper left", bbox_to_anchor=(0.16, 1.0))
    return figure


# What lesson 08's Triton program leaves to its compiler: a fragment of its line, and of the plain CUDA kernel's.
DECIDED = {
    "which warp takes which row": ("offs_m = ", "long long row ="),
    "which lane loads what, and so the sectors": ("q = tl.load(", "q_row[c] = row < M"),
    "what goes through shared memory, and the banks": ("k = tl.load(", "k_row[c] = k;"),
    "where the block waits": (None, "the tile is complete"),
    "how products are divided among threads": ("scores = tl.dot(", "scores[j] += q.x"),
    "how lanes learn a row's maximum": ("m_new = tl.maximum(", "m_new = fmaxf(m_new, scores[j])"),
    "which registers hold acc": ("acc += tl.dot(", "acc[i] += p * v_tile"),
}


def line_beside_line():
    """[(line of lesson 08's kernel or None, line of plain_attention.cu, what Triton decides)], for a table."""
    sources = inspect.getsource(plain_forward), launches.source("plain_attention.cu")
    return [(*map(_line, sources, fragments), what) for what, fragments in DECIDED.items()]


def _line(source, fragment):
    """The one line with this fragment, without its comment, as code."""
    if fragment is None:
        return None
    (found,) = (line for line in source.splitlines() if fragment in line)
    return f"`{found.split('  // ')[0].strip()}`"
