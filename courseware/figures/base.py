"""What figures share: sizes, alternative text, an opaque white face, titles, labels, axes, and kinds of drawing.

Colours are those of `explorers.svg`.
"""

import base64
import io
from html import escape

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from PIL import Image

from courseware.explorers.svg import GREY, NIGHT
from courseware.explorers.words import number, vector

INK, PALE = "#222222", "#DDDDDD"

WIDTH_INCHES = 9.6
# A notebook shows a picture at half of its pixels, so that it is sharp on a screen with two for one.
DPI, SHOWN_DPI = 200, 100


class Picture(Figure):
    """A figure, drawn on white, that notebooks show in light and dark themes.

    alt: what it shows, with the numbers that it was drawn from, for a reader who does not see it. Without it a picture
    is not shown. It is not registered with pyplot: no global state, nothing to close.
    """

    def __init__(self, height_inches, width_inches=WIDTH_INCHES, *, alt=""):
        super().__init__(figsize=(width_inches, height_inches), dpi=DPI, facecolor="white")
        self.alt = alt

    def _repr_html_(self):
        """An <img>: JupyterLab, nbconvert and myst-nb show no alternative text of a bare PNG."""
        if not self.alt:
            raise ValueError("a picture needs alternative text, which says what it shows: its alt")
        source, width = base64.b64encode(png(self)).decode(), round(SHOWN_DPI * self.get_figwidth())
        about = f'alt="{escape(self.alt)}" width="{width}" style="max-width: 100%; border-radius: 6px"'
        return f'<style>{NIGHT}</style><img class="drawn" {about} src="data:image/png;base64,{source}">'


def png(figure):
    """The figure as PNG bytes, DPI pixels to the inch. In 64 colours it takes a third of the bytes."""
    canvas = FigureCanvasAgg(figure)
    with rc_context({"text.hinting": "none"}):  # texts in two thirds of the time
        canvas.draw()
    image, buffer = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB"), io.BytesIO()
    image.quantize(64, dither=Image.Dither.NONE).save(buffer, "png", compress_level=9)
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


def log_axes(axes, ticks, names=None, *, y_base=10):
    """Logarithmic axes, with these ticks on x and no others; y_base None: y stays linear."""
    axes.set_xscale("log", base=2)
    if y_base:
        axes.set_yscale("log", base=y_base)
    axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks] if names is None else names)
    axes.minorticks_off()


def curves(axes, x, named, styles, **style):
    """A curve for each name -> [n] of `named`, with its own of the styles: (colour, matplotlib's format)."""
    for (name, y), (colour, form) in zip(named.items(), styles, strict=False):
        axes.plot(x, y, form, color=colour, label=name, **{"markersize": 4} | style)


def bare(axes):
    """No box, and no marks at the ticks."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, colors=INK, labelsize=9.5)


def cells(axes, values, colours, *, x=None, y=None, **edges):
    """A grid of cells, each in the colour that its whole number is the index of. x, y: edges (None: 0, 1, 2, ...)."""
    values = np.asarray(values)
    x, y = (np.arange(n + 1) if at is None else at for at, n in ((x, values.shape[1]), (y, values.shape[0])))
    edges = {"edgecolors": "white", "linewidth": 1} | edges
    axes.pcolormesh(x, y, values, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(colours) - 0.5, **edges)


def shaded(axes, matrix, rows, columns, *, write=number, signed=False, size=9.5):
    """A matrix as numbers, each on a ground that darkens with it, under the names of the columns.

    write: number -> text. signed: negative numbers have a colour of their own.
    """
    finite = np.where(np.isfinite(matrix), matrix, 0)
    most = 1.6 * max(np.abs(finite).max(), 1e-9)  # so that the darkest ground is still pale enough for ink
    least = -most if signed else min(finite.min(), 0)
    axes.imshow(finite, cmap="PuOr" if signed else "Blues", vmin=least, vmax=most, aspect="auto")
    for (i, j), value in np.ndenumerate(matrix):
        label(axes, j, i, write(value), size=size)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.tick_top()
    bare(axes)


def draw_matrices(matrices, rows, columns, *, signed=False):
    """Matrices as numbers, side by side. rows, columns: names; other columns are numbered.

    matrices: title -> [n, k]. signed: as of `shaded`.
    """
    writes = ["{:.0f}".format if np.array_equal(m, np.round(m)) else number for m in matrices.values()]
    numbers = [
        f"{title}: {'; '.join(f'{name} {vector(line, write)}' for name, line in zip(rows, matrix, strict=True))}"
        for (title, matrix), write in zip(matrices.items(), writes, strict=True)
    ]
    widths, alone = [matrix.shape[1] for matrix in matrices.values()], len(matrices) == 1
    place = {"width": 4.8, "left": 0.13} if alone else {"left": 0.06, "wspace": 0.25}
    figure, every = panels(
        2.9, *widths, below=0.12, above=0.68, alt=f"Numbers, row by row. {'. '.join(numbers)}.", **place
    )
    for axes, (title, matrix), write in zip(every, matrices.items(), writes, strict=True):
        named = columns if matrix.shape[1] == len(columns) else [f"{title[0]}{j}" for j in range(matrix.shape[1])]
        shaded(axes, matrix, rows, named, write=write, signed=signed, size=10)
        axes.set_title(title, loc="left", y=1.14, fontsize=10.5, color=INK)
    return figure
