"""Lesson 04's figures: who sees whom, and where computations stand under a roof."""

import numpy as np

from courseware.explorers.roofline import roof_tflops
from courseware.explorers.svg import BLUE, GREEN, GREY, PURPLE, VERMILLION

from .base import INK, ON_WHITE, bare, cells, label, legend, log_axes, panel, panels, tidy


def draw_masks(masks):
    """Which query (row) sees which key (column). masks: title -> [n_q, n_k] of bool."""
    seen = "; ".join(f"{title}: {', '.join(map(str, mask.sum(1)))}" for title, mask in masks.items())
    alt = f"Grids of queries by keys, filled where a query sees a key. Keys that each query sees, of {seen}."
    figure, every = panels(2.6, *[1] * len(masks), left=0.05, below=0.13, above=0.68, wspace=0.3, alt=alt)
    for axes, (title, mask) in zip(every, masks.items(), strict=True):
        cells(axes, mask, ("white", BLUE), edgecolors=GREY, linewidth=0.8)
        axes.invert_yaxis()
        axes.set_aspect("equal")
        axes.set_title(title, loc="left", pad=10, fontsize=10.5, color=INK)
        axes.set_xticks(np.arange(mask.shape[1]) + 0.5, range(mask.shape[1]))
        axes.set_yticks(np.arange(mask.shape[0]) + 0.5, range(mask.shape[0]))
        axes.xaxis.tick_top()
        bare(axes)
    tidy(every[0], x="key", y="query")
    every[0].xaxis.set_label_position("top")
    return figure


def draw_roofline(gpus, points):
    """What a GPU can reach at each arithmetic intensity, and where some computations stand.

    gpus: name -> GPU of `course_lib.hardware`. points: name -> FLOPs per byte, a dotted line up to the highest roof.
    """
    ridges = ", ".join(f"{name} at {gpu.ridge_flops_per_byte:.0f}" for name, gpu in gpus.items())
    places = ", ".join(f"{name} at {at:.4g}" for name, at in points.items())
    alt = f"Rooflines with their ridges in FLOPs per byte: {ridges}. Lines up to the highest roof: {places}."
    title = "rooflines: the most that memory and arithmetic allow (fp16, vendors' peaks)"
    x = "arithmetic intensity, FLOPs per byte of HBM traffic"
    figure, axes = panel(3.8, alt=alt, title=title, x=x, y="TFLOP/s")
    intensity = 2.0 ** np.arange(-3, 13.25, 0.25)
    for (name, gpu), (colour, line) in zip(gpus.items(), ((BLUE, "-"), (GREEN, "--"), (PURPLE, "-.")), strict=False):
        reach = [roof_tflops(gpu, x) for x in intensity]
        ridge = f"{name}: ridge at {gpu.ridge_flops_per_byte:.0f}"
        axes.plot(intensity, reach, color=colour, linestyle=line, linewidth=1.8, label=ridge)
    log_axes(axes, 4.0 ** np.arange(-1, 7), ("1/4", "1", "4", "16", "64", "256", "1024", "4096"))
    axes.set_ylim(0.02, 4000)
    highest = max(gpus.values(), key=lambda gpu: gpu.fp16_tensor_tflops)
    for i, (name, at) in enumerate(points.items()):
        axes.vlines(at, 0, roof_tflops(highest, at), color=VERMILLION, linewidth=1.2, linestyle=":")
        side, place = ("left", at * 1.08) if at < 16 else ("right", at / 1.08)
        label(axes, place, 0.03 * 2.6**i, f"{name}: {at:.4g}", ha=side, va="baseline", **ON_WHITE)
    legend(axes, loc="upper left")
    return figure
