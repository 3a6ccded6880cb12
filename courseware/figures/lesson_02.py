"""Lesson 02's figures: what formats hold, and how many rows of scores the naive softmax breaks."""

import numpy as np

from course_lib.reference import scores
from course_lib.reference.formats import FORMATS, naive_softmax_steps
from courseware.explorers.svg import BLUE, GREEN, ORANGE

from .base import label, legend, panel

COLOURS = dict(zip(FORMATS, (BLUE, ORANGE, GREEN), strict=True))


def draw_digits():
    """How many significant bits a number of each format has, at every size that the format holds."""
    formats = "; ".join(f"{name} up to {one.largest:.5g}" for name, one in FORMATS.items())
    alt = f"Significant bits against the size of a number, falling off near the smallest ones. {formats}."
    figure, axes = panel(3.4, alt=alt, title="what each format can hold", x="size of the number", y="significant bits")
    axes.set_xscale("log", base=2)
    for name, number_format in FORMATS.items():
        exponents = np.arange(round(np.log2(number_format.smallest)), number_format.largest_exponent + 1)
        x = np.ldexp(1.0, exponents)
        digits = np.log2(x / number_format.gap(x)) + 1
        axes.plot(x, digits, color=COLOURS[name], linewidth=2)
        axes.vlines(number_format.largest, 0, digits[-1], color=COLOURS[name], linewidth=2)
        place = 1 if number_format.largest_exponent < 100 else 2.0**70
        words = f"{name}: up to {number_format.largest:.5g}"
        label(axes, place, digits[-1] + 0.5, words, color=COLOURS[name], size=9.5, va="bottom")
    axes.set(ylim=(0, 27), yticks=(1, 8, 11, 24))
    axes.set_xticks([2.0**e for e in (-149, -126, -100, -75, -50, -24, 0, 15, 50, 75, 100, 127)])
    return figure


def broken_rows(sizes, *, n=256, d=64, scale=1.0, seed=0):
    """In how many rows of a score matrix the naive softmax is not right, format by format.

    Queries and keys [n, d] are normal with standard deviation `size`, for each of sizes: [k]; their scores
    are scale * Q K^T. Returns name of a format -> (NaN, zero): [k] each, the fraction of rows with a NaN, and
    of those without one whose weights are all 0.
    """
    rng = np.random.default_rng(seed)
    Q, K = rng.normal(size=(n, d)), rng.normal(size=(n, d))
    found = {name: ([], []) for name in FORMATS}
    for size in sizes:
        S = scores(size * Q, size * K, scale)
        for name, number_format in FORMATS.items():
            _, _, weights = naive_softmax_steps(S, number_format)
            nan = np.isnan(weights).any(axis=1)
            found[name][0].append(nan.mean())
            found[name][1].append((~nan & (weights == 0).all(axis=1)).mean())
    return {name: tuple(np.array(kind) for kind in kinds) for name, kinds in found.items()}


def draw_broken_rows(sizes, found, title):
    """What `broken_rows` found: rows with a NaN as lines, rows of zeros as dotted lines."""
    halves = [
        f"{name} from {sizes[nan >= 0.5][0]:g} on" if nan.max() >= 0.5 else f"{name} nowhere"
        for name, (nan, _) in found.items()
    ]
    alt = f"{title}: half of the rows or more are NaN in {', '.join(halves)}, by the size of the entries."
    figure, axes = panel(
        3.0, alt=alt, title=title, x="standard deviation of the entries of Q and K", y="fraction of rows"
    )
    # bfloat16 and float32 all but coincide: the one thick, the other thin on top of it.
    for (name, (nan, zero)), width in zip(found.items(), (2, 5, 1.5), strict=True):
        axes.plot(sizes, nan, color=COLOURS[name], linewidth=width, label=f"{name}: NaN")
        if zero.max() > 0.02:
            axes.plot(sizes, zero, ":", color=COLOURS[name], linewidth=width, label=f"{name}: all 0")
    axes.set_ylim(-0.04, 1.08)
    legend(axes, loc="center right")
    return figure
