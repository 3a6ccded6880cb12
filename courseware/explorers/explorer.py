"""What every explorer is: controls, the page that a model gives for what they choose, and pages without a kernel.

A model, in Python, computes the numbers; a function draws them as a `svg.Page`; explorer.js, the only JavaScript, shows
controls and pages, plays, drags, points and chooses. In Jupyter and in Colab, anywidget carries settings and pages
between them. A page of the site has the pages of some settings written beforehand (`static_html`). Where nothing
moves, on GitHub and in print, a notebook shows the first page as an image.
"""

import base64
import gzip
import itertools
import json
import re
from functools import cached_property, partial
from html import escape

from .svg import HERE, style

SCRIPT = (HERE / "explorer.js").read_text()
AT_END = 10**9  # what explorer.js sends for a slider at its end, so that it stays there as the end moves


def _control(kind, label, options=(False, True), start=None, *, play=False):
    """A control that chooses one of the options, values or a dict of text -> value, at first `start` or the first one.

    play: of a slider, with a button that moves it on; or milliseconds a step.
    """
    if not isinstance(options, dict):
        options = {value if isinstance(value, str) else f"{value:,g}": value for value in options}
    options = list(options.items())
    start = options[0][1] if start is None else start
    return start, {"kind": kind, "label": label, "options": options, "play": play}


# Of buttons in a row, one is pressed; a box is ticked or not.
slider, menu, buttons, tick = (partial(_control, kind) for kind in ("slider", "menu", "buttons", "tick"))


class Explorer:
    """An explorer, as the value of a cell.

    page_of(**settings) gives the Page. controls: setting -> what `slider`, `menu`, `buttons` or `tick` gave. start:
    settings at first that no control says: of those without one, which are set by what is dragged or clicked. ends:
    setting -> function of all settings that gives its slider's last value. settle: function of all settings that
    changes those that do not go together. written: setting -> values that a page without a kernel has, in all
    combinations; the others stay as they are at first. Or a list of such. By default all that the controls offer.
    """

    def __init__(self, page_of, controls, *, start=None, ends=None, settle=None, written=None):
        self._page_of, self._ends, self._settle = page_of, ends or {}, settle
        self.start = {name: first for name, (first, _) in controls.items()} | (start or {})
        self.controls = [{"name": name} | control for name, (_, control) in controls.items()]
        offered = {control["name"]: [value for _, value in control["options"]] for control in self.controls}
        self._written = [written or offered] if isinstance(written, dict | None) else written

    @cached_property
    def written(self):
        """The settings of which a page without a kernel has the pages, as they can be: each once."""
        found = {}
        for values in self._written:
            for chosen in itertools.product(*values.values()):
                settings, _ = self._settled(dict(zip(values, chosen, strict=True)))
                found[json.dumps(settings)] = settings
        return list(found.values())

    def page(self, settings=None):
        """(settings as they can be, ends of sliders, Page) of settings, at first by default."""
        settings, ends = self._settled(settings or {})
        return settings, ends, self._page_of(**settings)

    def _settled(self, settings):
        settings = self.start | settings
        if self._settle:
            settings |= self._settle(**settings)
        ends = {}
        for name, end_of in self._ends.items():
            ends[name] = end_of(**settings)
            settings[name] = min(settings[name], ends[name])
        return settings, ends

    def state(self, settings=None):
        """What explorer.js shows: JSON."""
        settings, ends, page = self.page(settings)
        return {"settings": settings, "ends": ends, "html": page.html()}

    def _repr_mimebundle_(self, **_kwargs):
        *_, page = self.page()
        bundle = {"text/plain": page.alt, "text/html": page._repr_html_()}
        try:
            return self.widget()._repr_mimebundle_()[0] | bundle
        except ImportError:  # no anywidget: the image stays static
            return bundle

    def widget(self):
        """A new widget. Raises ImportError where anywidget is not installed."""
        import anywidget
        from traitlets import Dict, List

        class Widget(anywidget.AnyWidget):
            _esm, _css = SCRIPT, style()
            controls = List(self.controls).tag(sync=True)
            settings = Dict(self.start).tag(sync=True)
            state = Dict(self.state()).tag(sync=True)

        widget = Widget()

        def answer(change):
            # When it was asked makes an answer another one even where nothing else changes: explorer.js waits for it.
            settings = dict(change.new)
            widget.state = {"at": settings.pop("at"), **self.state(settings)}

        widget.observe(answer, names="settings")
        return widget

    def static_data(self):
        """What a page without a kernel holds, as JSON: the states of `written`, and the controls that they leave.

        A state's HTML is a list of places in pieces, which has each different piece once.
        """
        pieces, controls, states = {}, [], [self.state(settings) for settings in self.written]
        for state in states:
            state["html"] = [pieces.setdefault(piece, len(pieces)) for piece in re.split("(?=<[^/])", state["html"])]
        for control in self.controls:
            there = [state["settings"][control["name"]] for state in states]
            options = [pair for pair in control["options"] if pair[1] in there]
            if len(options) > 1:
                controls.append(control | {"options": options})
        return {"pieces": list(pieces), "states": states, "controls": controls, "start": self.state()["settings"]}

    def static_html(self, place):
        """A piece of a page that needs no kernel: `static_data`, compressed, and the script that shows it.

        place: its id in the page, and what the address says before the settings that a reader has chosen.
        """
        data = gzip.compress(json.dumps(self.static_data()).encode(), mtime=0)
        return (
            f'<div id="{place}" role="group" aria-label="{escape(self.page()[2].alt)}"></div>\n<style>{style()}</style>'
            f'\n<script type="module">\n{SCRIPT}\nconst data = await unpacked("{base64.b64encode(data).decode()}")\n'
            f'render({{ model: written(data, "{place}"), el: document.getElementById("{place}") }})\n</script>\n'
        )
