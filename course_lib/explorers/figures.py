"""What all pictures of the course share: colours, sizes, an opaque white face, how a figure becomes a PNG."""

import io

from matplotlib import rc_context
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart with any common colour blindness, and in grey.
BLUE, ORANGE, GREEN, VERMILLION, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#AA4499"
INK, GREY, PALE = "#222222", "#888888", "#DDDDDD"

WIDTH_INCHES = 9.6
DPI = 100


class Picture(Figure):
    """A figure that notebooks show as a PNG on white, so that it reads alike in light and dark themes.

    It is not registered with pyplot: no global state, nothing to close.
    """

    def __init__(self, height_inches, width_inches=WIDTH_INCHES):
        super().__init__(figsize=(width_inches, height_inches), dpi=DPI, facecolor="white")

    def _repr_png_(self):
        return png(self)


def png(figure):
    """The figure as PNG bytes, DPI pixels to the inch, on an opaque white face."""
    buffer = io.BytesIO()
    # Level 1 is several times faster than the default and costs a few kilobytes; text without hinting saves a sixth
    # of an explorer's redraw.
    with rc_context({"text.hinting": "none"}):
        figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", pil_kwargs={"compress_level": 1})
    return buffer.getvalue()


def tidy(axes, *, title=None, x=None, y=None):
    """Title and axis labels, no box around the plot, small ticks."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=9)
    if title:
        # A given height spares matplotlib its search for one, a tenth of a redraw.
        axes.set_title(title, loc="left", y=1.03, fontsize=10.5, color=INK)
    if x:
        axes.set_xlabel(x, fontsize=9.5, color=INK)
    if y:
        axes.set_ylabel(y, fontsize=9.5, color=INK)
