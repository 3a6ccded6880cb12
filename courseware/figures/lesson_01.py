"""Lesson 01's figure: how dot products spread."""

import numpy as np

from courseware.explorers.svg import BLUE, GREY, ORANGE

from .base import legend, log_axes, panels, tidy


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
