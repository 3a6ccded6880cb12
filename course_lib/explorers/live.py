"""The shell of the explorers that one takes hold of: a model in Python, drawn as SVG by a small JavaScript module.

NAME.js draws what the model says, and live.js has what the modules share. In Jupyter, anywidget carries settings and
states between them. A page without a kernel holds states that the model wrote beforehand. Where nothing moves, on
GitHub and in print, NAME.png is shown, which tests/browser/stills.py photographs from that page.
"""

import json
from functools import cache
from hashlib import sha256
from html import escape
from importlib import import_module
from itertools import count
from pathlib import Path

from .figures import GREEN, ORANGE, TENSOR_COLOURS, image_html

HERE = Path(__file__).parent
STILL_WIDTH = 960
COLOURS = TENSOR_COLOURS | {"good": GREEN, "now": ORANGE}
# The module and the function that makes each explorer.
EXPLORERS = {"pair": ("dot_products", "explore_pair"), "stream": ("online_softmax", "explore"),
             "visits": ("tiled_attention", "explore"), "block_sizes": ("block_sizes", "explore")}  # fmt: skip
_serial = count()


def choices(kind, name, label, options):
    """A control: kind is "slider", "menu", "buttons" or "tick"; options are values, or text -> value."""
    pairs = list(options.items()) if isinstance(options, dict) else [(f"{value:,}", value) for value in options]
    return {"kind": kind, "name": name, "label": label, "options": pairs}


def axis(low, high, ticks):
    """An axis of a panel, from low to high, with numbers at the ticks."""
    return {"ends": [low, high], "ticks": [(x, f"{x:g}") for x in ticks]}


class Live:
    """An explorer, as the value of a cell.

    state_of(**settings) gives what is drawn: a dictionary that JSON can hold. start: the settings at first. grid: a
    list of the settings at which a page without a kernel can stand. alt: what the still picture shows, in words.
    module: whose JavaScript draws it, if not that of its own name.
    """

    def __init__(self, name, state_of, start, *, controls=(), grid=(), alt, module=None):
        self.name, self.start, self.controls, self.alt = name, start, list(controls), alt
        self.module = module or name
        self._state_of, self._grid = state_of, grid

    def state(self, settings):
        return {"settings": settings} | self._state_of(**settings)

    def _repr_mimebundle_(self, **_kwargs):
        still = image_html((HERE / f"{self.name}.png").read_bytes(), STILL_WIDTH, self.alt)
        bundle = {"text/plain": self.alt, "text/html": still}
        try:
            bundle = self.widget()._repr_mimebundle_()[0] | bundle
        except ImportError:  # no anywidget: the picture stands still
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

    def digest(self):
        """Changes with what is drawn at first, by which the still picture is known to be out of date."""
        drawn = json.dumps([script(self.module), style(), self.state(self.start)])
        return sha256(drawn.encode()).hexdigest()

    def static_data(self):
        """Every state of the grid, as JSON can hold it: each different value once, and for each state a row of indices.

        names: of the settings and of the rest of a state, as the rows have them. Controls keep the options that occur.
        """
        values, rows = {}, []
        for settings in self._grid:
            state = self._state_of(**settings)
            state.pop("settings", None)
            texts = [json.dumps(value, separators=(",", ":")) for value in (*settings.values(), *state.values())]
            rows.append([values.setdefault(text, len(values)) for text in texts])
        found = {name: {json.dumps(settings[name]) for settings in self._grid} for name in settings}
        controls = []
        for control in self.controls:
            options = [pair for pair in control["options"] if json.dumps(pair[1]) in found[control["name"]]]
            if len(options) > 1:
                controls.append(control | {"options": options})
        names = {"settings": list(settings), "state": list(state)}
        return {"names": names, "values": list(map(json.loads, values)), "rows": rows, "controls": controls,
                "start": self.start}  # fmt: skip

    def static_html(self):
        """A piece of a page that needs no kernel: the states of `static_data`, and the script that draws them."""
        data = json.dumps(self.static_data(), separators=(",", ":")).replace("</", "<\\/")
        place = f"live-{self.name}-{next(_serial)}"
        return (
            f'<div id="{place}" role="group" aria-label="{escape(self.alt)}"></div>\n<style>{style()}</style>\n'
            f'<script type="module">\n{script(self.module)}\n'
            f'render({{ model: written({data}), el: document.getElementById("{place}") }})\n</script>\n'
        )


def explorer(name):
    """The explorer of this name, one of EXPLORERS."""
    module, function = EXPLORERS[name]
    return getattr(import_module(f"{__package__}.{module}"), function)()


@cache
def script(name):
    """The module of an explorer, with what all share: JavaScript."""
    return (HERE / f"{name}.js").read_text() + (HERE / "live.js").read_text()


@cache
def style():
    """The style sheet, with a variable for the colour of each tensor: CSS."""
    colours = "".join(f"--{name}:{colour};" for name, colour in COLOURS.items())
    return f".live{{{colours}}}\n" + (HERE / "live.css").read_text()
