"""The explorers' drawings, as SVG: panels with axes, and what stands in them in the coordinates of the data.

A `Page` is rows of panels and of pieces of HTML. In a browser explorer.js swaps one page for the next; elsewhere each
panel is a static image. Shapes have colours by the names of classes in explorer.css, so that a dark theme changes them.
"""

import base64
import json
import textwrap
from functools import cache
from html import escape
from itertools import groupby
from math import ceil, log10
from pathlib import Path

from .words import plain

HERE = Path(__file__).parent
LETTER, LINE = 6.4, 18  # pixels: a letter of the usual size is so wide on average, and a line of a title so high
# Okabe and Ito's palette: told apart with any common colour blindness, and in grey.
BLUE, ORANGE, GREEN, VERMILLION, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#AA4499"
SKY, GREY = "#56B4E9", "#888888"

# Pictures are drawn on white. Where JupyterLab is dark, light and dark change places, and colours stay what they are.
NIGHT = "[data-jp-theme-light=false] img.drawn{filter:invert(0.88) hue-rotate(180deg)}"

# A tensor has the same colour in every picture of the course, and its gradient a darker shade of it.
TENSOR_COLOURS = {"Q": BLUE, "K": ORANGE, "V": GREEN, "S": VERMILLION, "P": SKY, "O": PURPLE}
TENSOR_COLOURS |= {
    f"d{name}": "#" + "".join(f"{round(0.62 * int(colour[i : i + 2], 16)):02x}" for i in (1, 3, 5))
    for name, colour in TENSOR_COLOURS.items()
}
# Numbers of a row, not tensors of the mathematics: greys.
TENSOR_COLOURS |= {"m": "#333333", "l": "#666666", "lse": GREY, "delta": "#AAAAAA"}
COLOURS = TENSOR_COLOURS | {"good": GREEN, "bad": VERMILLION, "now": ORANGE, "grey": GREY}


@cache
def style():
    """The style sheet, with a variable for each colour: CSS."""
    colours = "".join(f"--{name}:{colour};" for name, colour in COLOURS.items())
    classes = "".join(f".explorer .{name}{{color:var(--{name})}}" for name in COLOURS)
    return f".explorer{{{colours}}}{classes}{NIGHT}\n{(HERE / 'explorer.css').read_text()}"


class Panel:
    """A titled drawing of its own size, with axes.

    width, height: pixels, with the margins (left, right, top, bottom) that hold ticks and labels. x, y: the ends of an
    axis, the lower or left one first, which need not be the smaller one. log: the axes, of "xy", that are logarithmic.
    x_ticks, y_ticks: numbers, or (number, text); grid: the axes whose ticks have lines across the panel.
    """

    def __init__(
        self, title, width, height, x, y, *, x_ticks=(), y_ticks=(), x_label="", y_label="", log="", grid="xy",
        margins=(48, 16, 10, 36),
    ):  # fmt: skip
        self.title, self.width, self.height, self._log = title, width, height, log
        left, right, top, bottom = margins
        self.left, self.right, self.top, self.bottom = left, width - right, top, height - bottom
        self.ends = {"x": x, "y": y}
        self._elements = []
        for value, text in map(_tick, x_ticks):
            if "x" in grid:
                self.element("path", "grid", d=f"M{self.x(value):.1f} {self.top}V{self.bottom}")
            self.element("text", "soft middle", text, x=self.x(value), y=self.bottom + 15)
        for value, text in map(_tick, y_ticks):
            if "y" in grid:
                self.element("path", "grid", d=f"M{self.left} {self.y(value):.1f}H{self.right}")
            self.element("text", "soft end", text, x=self.left - 5, y=self.y(value) + 4)
        if x_label:
            self.element("text", "soft end", x_label, x=self.right, y=self.height - 5)
        if y_label:
            turned = f"rotate(-90 10 {self.top + 4})"
            self.element("text", "soft end", y_label, x=10, y=self.top + 4, transform=turned)

    def x(self, value):
        """Where a value stands, in pixels from the left edge."""
        return self._place("x", value, self.left, self.right)

    def y(self, value):
        """Where a value stands, in pixels from the upper edge."""
        return self._place("y", value, self.bottom, self.top)

    def _place(self, axis, value, start, stop):
        low, high = self.ends[axis]
        if axis in self._log:
            low, high, value = log10(low), log10(high), log10(value)
        return start + (value - low) / (high - low) * (stop - start)

    def element(self, tag, css="", text="", *, tip=None, choose=None, **attributes):
        """An SVG element at a place in pixels.

        tip: what it says when one points at it. choose: {setting: value} that a click on it chooses.
        """
        named = {"class": css} | {name.replace("_", "-"): value for name, value in attributes.items()}
        named |= {"data-tip": tip, "data-choose": json.dumps(choose, separators=(",", ":")) if choose else ""}
        written = "".join(f' {name}="{_written(value)}"' for name, value in named.items() if value not in ("", None))
        self._elements.append(f"<{tag}{written}>{escape(text)}</{tag}>")

    def rect(self, x, y, css, **about):
        """A rectangle from x[0] to x[1] and y[0] to y[1]."""
        (left, right), (top, bottom) = sorted(map(self.x, x)), sorted(map(self.y, y))
        self._box(left, top, right - left, bottom - top, css, **about)

    def _box(self, left, top, width, height, css, **about):
        """A rectangle in pixels. The class hatched, for what is not there, has lines of its own: x + y = 6, 12, ..."""
        self.element("rect", css, x=left, y=top, width=width, height=height, **about)
        if "hatched" in css:
            lines = []
            for both in range(ceil((left + top) / 6) * 6, ceil(left + top + width + height), 6):
                start, stop = max(left, both - top - height), min(left + width, both - top)
                lines.append(f"M{start:.1f} {both - start:.1f}L{stop:.1f} {both - stop:.1f}")
            self.element("path", "hatch", d="".join(lines))

    def bar(self, x, height, css, *, width=0.7, **about):
        """A rectangle that stands on 0, with x in its middle."""
        self.rect((x - width / 2, x + width / 2), (0, height), css, **about)

    def line(self, points, css, **about):
        """A line through (x, y) of the points."""
        path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        self.element("path", f"line {css}", d=path and f"M{path}", **about)

    def level(self, y, css, **about):
        """A horizontal line across the panel."""
        self.element("path", f"line {css}", d=f"M{self.left} {self.y(y):.1f}H{self.right}", **about)

    def upright(self, x, css, **about):
        """A vertical line across the panel."""
        self.element("path", f"line {css}", d=f"M{self.x(x):.1f} {self.top}V{self.bottom}", **about)

    def dot(self, x, y, css, radius=5, **about):
        self.element("circle", css, cx=self.x(x), cy=self.y(y), r=radius, **about)

    def text(self, x, y, text, css="middle", *, right=0, down=4, **about):
        """A text at a place of the data, moved by some pixels. css: "middle" or "end" say what stands at the place."""
        self.element("text", css, text, x=self.x(x) + right, y=self.y(y) + down, **about)

    def cells(self, kinds, *, x=None, y=None, tips=None, chosen=None):
        """A grid of cells. kinds: their classes, a list of rows. x, y: edges of columns and rows (None: 0, 1, ...).

        tips, chosen: functions of a row's and a column's number that give an element's tip and choose.
        Neighbours of one kind in a row are one rectangle where nothing is said of each.
        """
        x, y = x or range(len(kinds[0]) + 1), y or range(len(kinds) + 1)
        for i, row in enumerate(kinds):
            for _, (j, *more) in groupby(range(len(row)), key=None if tips else row.__getitem__):
                about = {"tip": tips and tips(i, j), "choose": chosen and chosen(i, j)}
                if row[j]:
                    self.rect((x[j], x[j + 1 + len(more)]), (y[i], y[i + 1]), f"cell {row[j]}", **about)

    def stacked(self, bars, *, unit=""):
        """Horizontal bars from the top down, of parts end to end, each with its name before and a note behind it.

        bars: name -> (parts, note), or (parts, note, limit) with a line at the limit, a part being (label, length,
        class). A label is written where its part has room. unit: of lengths, where tips say them. The panel's y runs
        from len(bars) - 0.5 to -0.5.
        """
        for place, (name, (parts, note, *limits)) in enumerate(bars.items()):
            self.element("text", "end", name, x=self.left - 6, y=self.y(place) + 4)
            start = 0
            for label, length, css in parts:
                stop = start + length
                tip = f"{name}: {label}{f' {length:,.4g} {unit}' if unit else ''}" if label else None
                self.rect((start, stop), (place - 0.33, place + 0.33), f"bar {css}", tip=tip)
                if label and self.x(stop) - self.x(start) > 8 + LETTER * len(label):
                    on = "" if "pale" in css or "skipped" in css else f"on-colour {css}"
                    self.text((start + stop) / 2, place, label, f"middle {on}".strip())
                start = stop
            for limit in limits:
                self.line([(limit, place - 0.45), (limit, place + 0.45)], "ink")
            self.text(max(start, *limits, 0), place, note, "bad" if limits and start > limits[0] else "", right=5)

    def handle(self, x, y, css, name, said, *, right, up, radius):
        """A circle that is taken hold of with mouse, finger or arrow keys. name, said: what it is, and its value.

        right, up: what a move along an axis sets: [setting, index in it, low, high, step, step of a key].
        """
        self.element(
            "circle", f"handle {css}", cx=self.x(x), cy=self.y(y), r=radius, tabindex=0, role="slider", aria_label=name,
            aria_valuetext=said, aria_valuenow=float(x), data_moves=json.dumps({"x": right, "y": up}),
        )  # fmt: skip

    def legend(self, meanings, left=None, top=12):
        """What the classes of shapes mean, text -> class, in a line at a place in pixels."""
        left = self.left if left is None else left
        for text, css in meanings.items():
            self._box(left, top - 10, 11, 11, f"bar {css}")
            self.element("text", "", text, x=left + 16, y=top)
            left += 32 + LETTER * len(text)

    def html(self):
        """The panel where it moves."""
        axes = {"x": [*self.ends["x"], self.left, self.right], "y": [*self.ends["y"], self.bottom, self.top]}
        title = f"<figcaption>{escape(self.title)}</figcaption>" if self.title else ""
        drawing = self._svg(0, "".join(self._elements), f" data-axes='{json.dumps(axes)}'")
        return f'<figure style="width:{self.width}px">{title}{drawing}</figure>'

    def image(self, alt=""):
        """The panel where nothing moves, with its title: an <img> with its own white ground."""
        lines = textwrap.wrap(self.title, int(self.width / LETTER))
        above = LINE * len(lines)
        title = "".join(f'<text x="4" y="{LINE * (i + 1) - 5 - above}">{escape(x)}</text>' for i, x in enumerate(lines))
        ground = f'<rect class="page" y="{-above}" width="{self.width}" height="{self.height + above}"/>'
        content = f"<style>{escape(style(), quote=False)}</style>{ground}{title}{''.join(self._elements)}"
        svg = self._svg(above, content, ' xmlns="http://www.w3.org/2000/svg" class="explorer"')
        source = base64.b64encode(svg.encode()).decode()
        return f'<img alt="{escape(alt or self.title)}" class="drawn" src="data:image/svg+xml;base64,{source}">'

    def _svg(self, above, content, about):
        size = f'width="{self.width}" height="{self.height + above}"'
        return f'<svg{about} viewBox="0 {-above} {self.width} {self.height + above}" {size}>{content}</svg>'


def cards(*numbers):
    """Numbers that stand out, each with what it is of: (number, name), or (number, name, class). HTML."""
    each = "".join(
        f'<div class="{" ".join(css)}"><b>{escape(number)}</b> <span>{escape(name)}</span></div>'
        for number, name, *css in numbers
    )
    return f'<div class="cards">{each}</div>'


class Page:
    """Rows of panels and pieces of HTML, a list of them being one column; below, what the picture says in numbers.

    what: the picture in a few words; with the numbers, its alternative text. text: HTML that stands below.
    """

    def __init__(self, what, *rows, text=""):
        self._rows, self.text = rows, text
        self.alt = plain(f"{what} {text}")

    def __repr__(self):
        return self.alt  # where HTML is not understood

    def html(self):
        """The page where it moves."""
        return self._html(Panel.html)

    def _html(self, of_panel):
        def piece(one):
            if isinstance(one, list):
                return f'<div class="column">{"".join(map(piece, one))}</div>'
            return of_panel(one) if isinstance(one, Panel) else one

        rows = "".join(f'<div class="row">{"".join(map(piece, row))}</div>' for row in self._rows)
        return f'{rows}<div class="said" aria-live="polite">{self.text}</div>'

    def _repr_html_(self):
        alts = iter([self.alt])  # the first image speaks for all, and the others for themselves
        images = self._html(lambda panel: panel.image(next(alts, "")))
        return f'<style>{style()}</style><div class="explorer">{images}</div>'


def _tick(tick):
    return tick if isinstance(tick, tuple) else (tick, f"{tick:,g}")


def _written(value):
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else escape(str(value))
