"""Lesson 01's figures: how dot products spread, and where computations stand under a roof."""

import numpy as np

from courseware.explorers.roofline import roof_tflops
from courseware.explorers.svg import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILLION

from .base import ON_WHITE, label, legend, log_axes, panel, panels, tidy


def draw_spreads(dimensions, spreads, cosines):
    """How dot products and cosines of random vectors spread, measured (dots) and as derived (lines).

    dimensions: [n]; spreads, cosines: [n], standard deviations.
    """
    first, last = dimensions[0], dimensions[-1]
    alt = (
        f"From d = {first} to {last} the spread of dot products grows from {spreads[0]:.2f} to {spreads[-1]:.2f} "
        f"along sqrt(d); that of cosines falls from {cosines[0]:.2f} to {cosines[-1]:.3f}, along 1/sqrt(d)."
    )
    figure, (left, right) = panels(3.0, 1, 1, alt=alt)
    for axes, what, measured, derived, formula, colour in (
        (left, "dot products", spreads, np.sqrt(dimensions), r"$\sqrt{d}$", BLUE),
        (right, "cosines", cosines, 1 / np.sqrt(dimensions), r"$1/\sqrt{d}$", ORANGE),
    ):
        tidy(axes, title=f"spread of the {what}", x="d", y="standard deviation")
        axes.plot(dimensions, derived, color=GREY, label=formula)
        axes.plot(dimensions, measured, "o", color=colour, label="measured")
        log_axes(axes, dimensions, y_base=2)
        legend(axes)
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
