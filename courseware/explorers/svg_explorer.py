"""The shell of the explorers that one takes hold of: a model in Python, drawn as SVG by a small JavaScript module.

NAME.js draws what the model says, and svg_explorer.js has what the modules share. In Jupyter, anywidget carries
settings and states between them. A page without a kernel holds states that the model wrote beforehand
(tools/site_explorers.py). Where nothing moves, on GitHub and in print, NAME.png is shown, which
tests/browser/static_images.py photographs from that page.
"""

from functools import cache
from pathlib import Path

from .figures import GREEN, ORANGE, TENSOR_COLOURS, image_html

HERE = Path(__file__).parent
STATIC_WIDTH = 960
COLOURS = TENSOR_COLOURS | {"good": GREEN, "now": ORANGE}


def choices(kind, name, label, options):
    """A control: kind is "slider", "menu", "buttons" or "tick"; options are values, or text -> value."""
    pairs = list(options.items()) if isinstance(options, dict) else [(f"{value:,}", value) for value in options]
    return {"kind": kind, "name": name, "label": label, "options": pairs}


def axis(low, high, ticks):
    """An axis of a panel, from low to high, with numbers at the ticks."""
    return {"ends": [low, high], "ticks": [(x, f"{x:g}") for x in ticks]}


class SvgExplorer:
    """An explorer, as the value of a cell.

    state_of(**settings) gives what is drawn: a dictionary that JSON can hold. start: the settings at first. grid: a
    list of the settings at which a page without a kernel can stand. alt: what the static image shows, in words.
    module: whose JavaScript draws it, if not that of its own name.
    """

    def __init__(self, name, state_of, start, *, controls=(), grid=(), alt, module=None):
        self.name, self.start, self.controls, self.alt = name, start, list(controls), alt
        self.module = module or name
        self._state_of, self.grid = state_of, grid

    def state(self, settings):
        return {"settings": settings} | self._state_of(**settings)

    def _repr_mimebundle_(self, **_kwargs):
        static_image = image_html((HERE / f"{self.name}.png").read_bytes(), STATIC_WIDTH, self.alt)
        bundle = {"text/plain": self.alt, "text/html": static_image}
        try:
            bundle = self.widget()._repr_mimebundle_()[0] | bundle
        except ImportError:  # no anywidget: the image stays static
            pass
        return bundle

    def widget(self):
        """A new widget. Raises ImportError where anywidget is not installed."""
        import anywidget
        from traitlets import Dict, List

        class Widget(anywidget.AnyWidget):
            _esm, _css = script(self.module), style()
            controls = List(self.controls).tag(sync=True)
            settings = Dict(self.start).tag(sync=True)
            state = Dict(self.state(self.start)).tag(sync=True)

        widget = Widget()
        widget.observe(lambda change: setattr(widget, "state", self.state(change.new)), names="settings")
        return widget


@cache
def script(name):
    """The module of an explorer, with what all share: JavaScript."""
    return (HERE / f"{name}.js").read_text() + (HERE / "svg_explorer.js").read_text()


@cache
def style():
    """The style sheet, with a variable for the colour of each tensor: CSS."""
    colours = "".join(f"--{name}:{colour};" for name, colour in COLOURS.items())
    return f".svg-explorer{{{colours}}}\n" + (HERE / "svg_explorer.css").read_text()
