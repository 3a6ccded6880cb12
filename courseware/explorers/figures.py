"""What all pictures of the course share: colours, sizes, alternative text, an opaque white face, titles and labels."""

import base64
import io
from html import escape

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image

from .tooltips import tooltips_html

# Okabe and Ito's palette: told apart with any common colour blindness, and in grey.
BLUE, ORANGE, GREEN, VERMILLION, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#AA4499"
SKY = "#56B4E9"
INK, GREY, PALE = "#222222", "#888888", "#DDDDDD"

# A tensor has the same colour in every picture of the course, and its gradient a darker shade of it.
TENSOR_COLOURS = {"Q": BLUE, "K": ORANGE, "V": GREEN, "S": VERMILLION, "P": SKY, "O": PURPLE}
TENSOR_COLOURS |= {f"d{name}": to_hex(0.62 * np.array(to_rgb(colour))) for name, colour in TENSOR_COLOURS.items()}
# Numbers of a row, not tensors of the mathematics: greys.
TENSOR_COLOURS |= {"m": "#333333", "l": "#666666", "lse": GREY, "delta": "#AAAAAA"}

WIDTH_INCHES = 9.6
# A notebook shows a picture at half of its pixels, so that it is sharp on a screen with two for one.
DPI, SHOWN_DPI = 200, 100


class Picture(Figure):
    """A figure that notebooks show on white, so that it reads alike in light and dark themes.

    alt: what it shows, with the numbers that it was drawn from, for a reader who does not see it. Without it a picture
    is not shown. It is not registered with pyplot: no global state, nothing to close.
    """

    def __init__(self, height_inches, width_inches=WIDTH_INCHES, *, alt=""):
        super().__init__(figsize=(width_inches, height_inches), dpi=DPI, facecolor="white")
        self.alt, self.tooltips = alt, []

    @property
    def shown_width(self):
        """Pixels of a notebook's page."""
        return round(SHOWN_DPI * self.get_figwidth())

    def _repr_html_(self):
        image, tooltips = image_html(png(self, colours=64), self.shown_width, self.alt), tooltips_html(self)
        width = f"width: {self.shown_width}px; max-width: 100%"
        return f'<div class="tooltips" style="{width}">{image}{tooltips}</div>' if tooltips else image


def image_html(data, width, alt):
    """PNG bytes as an <img>: HTML, because JupyterLab, nbconvert and myst-nb show no alternative text of a bare PNG."""
    if not alt:
        raise ValueError("a picture needs alternative text, which says what it shows: its alt")
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return f'<img alt="{escape(alt)}" width="{width}" style="max-width: 100%; border-radius: 6px" src="{source}">'


def png(figure, colours=None):
    """The figure as PNG bytes, DPI pixels to the inch. With 64 `colours` it takes a third of the bytes."""
    canvas = FigureCanvasAgg(figure)
    with rc_context({"text.hinting": "none"}):  # texts in two thirds of the time
        canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    if colours:
        image = image.quantize(colours, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    # A widget's picture is drawn for a moment only, so that speed counts for more than size.
    image.save(buffer, "png", compress_level=9 if colours else 1)
    return buffer.getvalue()


def panels(
    height, *ratios, width=WIDTH_INCHES, left=0.07, right=0.985, below=None, above=0.4, note=None, alt="", **subplots
):
    """A Picture with a row of axes, and the axes: one for each of the width `ratios`, or a single one.

    height, width, and below and above the axes: inches. left, right: where the axes end, as shares of the width. note:
    a line at the foot of the figure that says where its numbers come from. alt: as of a Picture. subplots: of
    Figure.subplots, and wspace.
    """
    figure, ratios = Picture(height, width, alt=alt), ratios or (1,)
    below = below or (0.8 if note else 0.52)
    place = {"bottom": below / height, "top": 1 - above / height, "wspace": subplots.pop("wspace", 0.25)}
    axes = figure.subplots(1, len(ratios), width_ratios=ratios, squeeze=False, **subplots)[0]
    figure.subplots_adjust(left=left, right=right, **place)
    if note:
        label(figure, 0.985, 0.02, note, size=8.5, ha="right", va="bottom")
    return figure, axes


def panel(height, *, title, x=None, y=None, **place):
    """A Picture with one panel, and its axes. place: as of `panels`."""
    figure, (axes,) = panels(height, **place)
    tidy(axes, title=title, x=x, y=y)
    return figure, axes


def tidy(axes, *, title=None, x=None, y=None):
    """Title and axis labels, no box around the plot, small ticks."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=9)
    if title:
        # matplotlib searches for a free height if none is given, which takes a tenth of a redraw.
        axes.set_title(title, loc="left", y=1.03, fontsize=10.5, color=INK)
    if x:
        axes.set_xlabel(x, fontsize=9.5, color=INK)
    if y:
        axes.set_ylabel(y, fontsize=9.5, color=INK)


def label(axes, x, y, text, *, color=INK, size=9, ha="center", va="center", **style):
    """A small text at (x, y) of the axes or the figure, centred there unless ha and va say otherwise."""
    return axes.text(x, y, text, color=color, fontsize=size, ha=ha, va=va, **style)


# For label, over lines that would cross the text.
ON_WHITE = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1.5}}


def legend(of, **place):
    """The legend of axes or of a figure, without a frame."""
    of.legend(frameon=False, fontsize=9, **place)
