"""Lesson 03's figure and counts: the error against the shift, and bytes of a softmax of several passes."""

import numpy as np

from course_lib.machine import Machine
from course_lib.reference import stable_softmax
from courseware.explorers.svg import BLUE, GREEN, VERMILLION

from .base import curves, legend, panel


def softmax_shifted_by(x, c):
    """exp(x - c) / sum(exp(x - c)), every step in x's dtype. x: [n]; c: a number. Returns [n], x's dtype."""
    with np.errstate(over="ignore", invalid="ignore"):
        terms = np.exp(x - x.dtype.type(c))
        return terms / terms.sum(dtype=x.dtype)


def shift_errors(x, shifts):
    """Largest absolute error of softmax_shifted_by(x, c) for each c, against float64; NaN if not finite."""
    exact = stable_softmax(x.astype(np.float64))
    return np.array([np.abs(softmax_shifted_by(x, c).astype(np.float64) - exact).max() for c in shifts])


def draw_shifts(rows, shifts):
    """The error of the softmax against the constant subtracted, one line for each row of logits.

    rows: name -> x [n]; shifts: [k]. A line ends where the result is not finite. The triangle is the row's maximum.
    """
    title = "any shift gives the same softmax, until exp runs out of range"
    found = {name: shift_errors(x, shifts) for name, x in rows.items()}
    ranges = [
        f"{name}, finite from {shifts[finite].min():g} to {shifts[finite].max():g}"
        for name, errors in found.items()
        for finite in [np.isfinite(errors)]
    ]
    alt = f"The largest error of a weight against the constant subtracted: {'; '.join(ranges)}."
    figure, axes = panel(
        3.2, left=0.085, alt=alt, title=title, x="constant c subtracted", y="largest error of a weight"
    )
    axes.set_yscale("log")
    styles = (BLUE, "-"), (VERMILLION, "--"), (GREEN, "-.")
    curves(axes, shifts, found, styles, linewidth=1.8)
    for x, (colour, _) in zip(rows.values(), styles, strict=False):
        axes.plot(float(x.max()), shift_errors(x, [x.max()])[0], marker="v", markersize=9, color=colour)
    legend(axes, loc="center right")
    return figure


def count_passes(algorithm, x, tile, sram_bytes):
    """Run a softmax of one row on the memory machine, tile by tile, and count.

    algorithm(machine, X, P, tiles) stores the softmax of X in P, both [n] in HBM; tiles are the (start, stop)
    pairs of its tiles of at most `tile` entries. x: [n]. Returns (softmax [n], the machine's Report).
    """
    machine, p = Machine(sram_bytes), np.empty_like(x)
    X, P = machine.hbm(x, "x"), machine.hbm(p, "softmax")
    tiles = [(start, min(start + tile, len(x))) for start in range(0, len(x), tile)]
    algorithm(machine, X, P, tiles)
    return p, machine.report()
