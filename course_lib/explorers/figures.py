"""What all pictures of the course share: colours, sizes, an opaque white face, and how a figure becomes a PNG quickly.

An explorer draws a new picture for each move of a control, and matplotlib's time for it goes where nobody looks: glyphs
that were drawn a moment ago, ticks and bars of many artists each, filters of the PNG. So texts are kept as they were
drawn, a `Panel` draws its ticks itself and its bars at once, and the PNG has no filters.
"""

import struct
import zlib
from functools import lru_cache
from math import ceil, cos, radians, sin

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, FixedLocator
from matplotlib.transforms import IdentityTransform

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

    def panels(self, *width_ratios):
        """A row of Panels, one for each ratio."""
        panel = {"axes_class": Panel}
        return self.subplots(1, len(width_ratios), width_ratios=width_ratios, squeeze=False, subplot_kw=panel)[0]

    def _repr_png_(self):
        return png(self)


class _PlainAxis:
    """An axis that draws its line, its ticks and their labels itself, on a linear scale, at the left or below.

    set_ticks, locators, formatters and labels are matplotlib's; tick_params has no effect. has_line: whether the line
    and the marks on it are drawn.
    """

    majorTicks = minorTicks = ()  # matplotlib's, of which none is ever made
    has_line = True

    def set_ticks(self, ticks, labels=None):
        """As matplotlib's: the view grows until it holds all ticks."""
        if len(ticks):
            self.set_view_interval(min(ticks), max(ticks))
        self.set_major_locator(FixedLocator(ticks))
        if labels is not None:
            self.set_major_formatter(FixedFormatter([str(label) for label in labels]))

    def get_ticklabels(self):
        """The labels in view, from low to high: Texts, as matplotlib's would be."""
        return [Text(text=label) for _, label in self._shown()]

    def _shown(self):
        """(place along the axis in pixels, label) of the ticks in view."""
        start, end = self.axes.bbox.get_points()[:, self.along]
        low, high = self.get_view_interval()
        places = self.get_majorticklocs()
        labels = self.major.formatter.format_ticks(places)
        shares = (np.asarray(places, float) - low) / (high - low)
        return [
            (start + share * (end - start), label)
            for share, label in zip(shares, labels, strict=True)
            if -1e-9 <= share <= 1 + 1e-9
        ]

    def draw(self, renderer):
        if not self.get_visible():
            return
        point = renderer.points_to_pixels(1)
        (start, end), (edge, _) = (self.axes.bbox.get_points()[:, along] for along in (self.along, 1 - self.along))
        shown = self._shown()
        if self.has_line:
            self._draw_line(renderer, start, end, edge, [place for place, _ in shown], point)
        outermost = edge - 7 * point
        text = Text(fontsize=9, color=INK, **self.alignment)
        text.set_figure(self.get_figure())
        # The longest last, for that is the one that the axis' label must not touch.
        for place, label in sorted(shown, key=lambda tick: len(tick[1])):
            text.set_text(label)
            text.set_position((place, edge - 7 * point)[:: 1 - 2 * self.along])
            text.draw(renderer)
        if not self.label.get_text():
            return
        if shown:
            outermost = text.get_window_extent(renderer).p0[1 - self.along]
        self.label.set_transform(IdentityTransform())
        self.label.set_position(((start + end) / 2, outermost - self.labelpad * point)[:: 1 - 2 * self.along])
        self.label.draw(renderer)

    def _draw_line(self, renderer, start, end, edge, places, point):
        """The line and a mark for each tick, as one path."""
        along = [start, end, *np.repeat(places, 2)]
        across = [edge, edge] + [edge, edge - 3.5 * point] * len(places)
        vertices = np.transpose([along, across][:: 1 - 2 * self.along])
        path = Path(vertices, [Path.MOVETO, Path.LINETO] * (len(vertices) // 2))
        gc = renderer.new_gc()
        gc.set_foreground(GREY)
        gc.set_linewidth(1)  # a whole pixel, and on one: crisp
        gc.set_snap(True)
        renderer.draw_path(gc, path, IdentityTransform())
        gc.restore()


class _PlainXAxis(_PlainAxis, XAxis):
    along, alignment = 0, {"ha": "center", "va": "top"}


class _PlainYAxis(_PlainAxis, YAxis):
    along, alignment = 1, {"ha": "right", "va": "center_baseline"}


class Labels(Artist):
    """Short texts, each in the middle of its place in the plot, as one artist. x, y: [n]; labels: [n] of str."""

    zorder = Text.zorder

    def __init__(self, x, y, labels, **style):
        super().__init__()
        self.places, self.labels = np.column_stack([x, y]), labels
        self.text = Text(ha="center", va="center", color=INK, **style)

    def draw(self, renderer):
        self.text.set_figure(self.get_figure())
        for place, label in zip(self.axes.transData.transform(self.places), self.labels, strict=True):
            self.text.set_text(label)
            self.text.set_position(place)
            self.text.draw(renderer)


class Panel(Axes):
    """Axes for explorers, several times faster than matplotlib's own: an x axis below, a y axis at the left, no spines.

    Both axes are linear; where a logarithmic one is wanted, draw logarithms and name the ticks.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for axis in (self.xaxis, self.yaxis):
            axis.set_major_formatter("{x:g}")

    def bars(self, x, heights, *, bottom=0, width=0.7, **style):
        """A bar on each x, as `boxes` draws them."""
        return self.boxes(np.asarray(x) - width / 2, bottom, width, heights, **style)

    def boxes(self, left, bottom, width, height, **style):
        """Rectangles as one artist: a patch for each would cost a redraw half a millisecond.

        Each of the four is a number or [n]. style: a PolyCollection's. The view stays as it is.
        """
        left, bottom, width, height = np.broadcast_arrays(left, bottom, width, height)
        right, top = left + width, bottom + height
        corners = np.stack([left, bottom, right, bottom, right, top, left, top], axis=-1).reshape(-1, 4, 2)
        return self.add_collection(PolyCollection(corners, **style), autolim=False)

    # The two that matplotlib has projections override.
    def _gen_axes_spines(self):
        return {}

    def _init_axis(self):
        self.xaxis, self.yaxis = _PlainXAxis(self, clear=False), _PlainYAxis(self, clear=False)


class _Renderer(RendererAgg):
    """Draws each text once and keeps it: most texts of an explorer are those of its last picture."""

    def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
        colour = tuple(gc.get_rgb()[:3])
        picture, left, below = _drawn_text(s, prop.copy(), angle, ismath, colour, self.dpi)
        self.draw_image(gc, round(x) - left, round(self.height - y) - below, picture)


@lru_cache(maxsize=1024)
def _drawn_text(s, prop, angle, ismath, colour, dpi):
    """A text by itself: its pixels, RGBA with the lowest row first, and how far its origin is from left and bottom."""
    width, height, descent = _renderer(1, 1, dpi).get_text_width_height_descent(s, prop, ismath)
    turn = np.array([[cos(radians(angle)), -sin(radians(angle))], [sin(radians(angle)), cos(radians(angle))]])
    corners = turn @ [[0, width, 0, width], [-descent, -descent, height - descent, height - descent]]
    left, below = (ceil(-corner) + 2 for corner in corners.min(axis=1))
    right, above = (ceil(corner) + 2 for corner in corners.max(axis=1))
    alone = RendererAgg(left + right, below + above, dpi)
    gc = alone.new_gc()
    gc.set_foreground((*colour, 1), isRGBA=True)
    alone.draw_text(gc, left, above, s, prop, angle, ismath)
    return np.asarray(alone.buffer_rgba())[::-1].copy(), left, below


@lru_cache(maxsize=16)
def _renderer(width, height, dpi):
    """One for each size, because matplotlib keeps the sizes of texts with a renderer."""
    return _Renderer(width, height, dpi)


class _Canvas(FigureCanvasAgg):
    def get_renderer(self):
        width, height = self.get_width_height(physical=True)
        self.renderer = _renderer(width, height, self.figure.dpi)
        return self.renderer


def png(figure):
    """The figure as PNG bytes, DPI pixels to the inch, on an opaque white face."""
    canvas = _Canvas(figure)
    with rc_context({"text.hinting": "none"}):  # a third faster, for a text that is new
        canvas.draw()
    return _encoded(np.asarray(canvas.buffer_rgba()))


def _encoded(pixels):
    """Pixels [height, width, 4] of uint8 as a PNG without filters.

    Libraries try five filters on each row: most of their time, and for pictures like ours hardly a byte.
    """
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 4 * width), np.uint8)  # a row begins with the number of its filter
    rows[:, 1:] = pixels.reshape(height, -1)
    eight_bits, rgba = 8, 6
    header = struct.pack(">IIBBBBB", width, height, eight_bits, rgba, 0, 0, 0)
    encoded = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows, level=1)), (b"IEND", b"")):
        checked = kind + data
        encoded += struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))
    return encoded


def tidy(axes, *, title=None, x=None, y=None):
    """Title and axis labels, no box around the plot, small ticks."""
    if not isinstance(axes, Panel):
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
