"""SVG explorers on pages without a kernel, with states that the model writes beforehand.

The site shows them so, tests/browser/static_images.py photographs them, and the tests try them.
"""

import json
from hashlib import sha256
from html import escape
from importlib import import_module
from itertools import count

from courseware.explorers.svg_explorer import script, style

# The module and the function that makes each explorer.
EXPLORERS = {"pair": ("dot_products", "explore_pair"), "stream": ("online_softmax", "explore"),
             "visits": ("tiled_attention", "explore"), "block_sizes": ("block_sizes", "explore")}  # fmt: skip
_serial = count()


def explorer(name):
    """The explorer of this name, one of EXPLORERS."""
    module, function = EXPLORERS[name]
    return getattr(import_module(f"courseware.explorers.{module}"), function)()


def digest(explorer):
    """Changes with what is drawn at first, by which the static image is known to be out of date."""
    drawn = json.dumps([script(explorer.module), style(), explorer.state(explorer.start)])
    return sha256(drawn.encode()).hexdigest()


def static_data(explorer):
    """Every state of the grid, as JSON can hold it: each different value once, and for each state a row of indices.

    names: of the settings and of the rest of a state, as the rows have them. Controls keep the options that occur.
    """
    values, rows = {}, []
    for settings in explorer.grid:
        state = explorer.state(settings)
        state.pop("settings")
        texts = [json.dumps(value, separators=(",", ":")) for value in (*settings.values(), *state.values())]
        rows.append([values.setdefault(text, len(values)) for text in texts])
    found = {name: {json.dumps(settings[name]) for settings in explorer.grid} for name in settings}
    controls = []
    for control in explorer.controls:
        options = [pair for pair in control["options"] if json.dumps(pair[1]) in found[control["name"]]]
        if len(options) > 1:
            controls.append(control | {"options": options})
    names = {"settings": list(settings), "state": list(state)}
    return {"names": names, "values": list(map(json.loads, values)), "rows": rows, "controls": controls,
            "start": explorer.start}  # fmt: skip


def static_html(explorer):
    """A piece of a page that needs no kernel: the states of `static_data`, and the script that draws them."""
    data = json.dumps(static_data(explorer), separators=(",", ":")).replace("</", "<\\/")
    place = f"svg-{explorer.name}-{next(_serial)}"
    return (
        f'<div id="{place}" role="group" aria-label="{escape(explorer.alt)}"></div>\n<style>{style()}</style>\n'
        f'<script type="module">\n{script(explorer.module)}\n'
        f'render({{ model: written({data}), el: document.getElementById("{place}") }})\n</script>\n'
    )
