"""Places of a picture that say what they show when one points at them; in an explorer, a click may choose one.

They are buttons of HTML over the picture, so that they say it on a page without a kernel, too.
"""

import json
from html import escape
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
POINT_PIXELS = 10  # from a point to each edge of its button


def tooltip(axes, x, y, text, **chosen):
    """Let a place of the picture say a text; chosen: the values of an explorer's controls that a click there sets.

    x, y: a point of the data, or the two ends of a rectangle. The limits of the axes have to be final.
    """
    figure = axes.figure
    corners = np.column_stack([np.broadcast_to(x, 2), np.broadcast_to(y, 2)])
    ends = axes.transData.transform(corners) / figure.bbox.size
    room = POINT_PIXELS / figure.shown_width * figure.bbox.width / figure.bbox.size
    low, high = ends.min(axis=0), ends.max(axis=0)
    low, high = np.where(high > low, (low, high), (low - room, high + room))
    for beneath, above, *_ in figure.tooltips:
        if (low < above).all() and (beneath < high).all():  # two near points share the height between them
            upper, lower = (low, above) if low[1] > beneath[1] else (beneath, high)
            upper[1] = lower[1] = (upper[1] + lower[1]) / 2
    figure.tooltips.append((low, high, text, chosen))


def tooltips_html(figure):
    """The buttons of a figure, with their style."""
    buttons = []
    for (left, bottom), (right, top), text, chosen in figure.tooltips:
        place = f"left:{left:.2%};top:{1 - top:.2%};width:{right - left:.2%};height:{top - bottom:.2%}"
        place += f";--at:{(left + right) / 2:.0%}"
        data = f" data-chosen='{json.dumps(chosen)}'" if chosen else ""
        about = f'style="{place}" aria-label="{escape(text)}"{data}'
        # JupyterLab leaves alone the keys that are pressed on an element with this attribute.
        buttons.append(f'<button type="button" data-lm-suppress-shortcuts {about}></button>')
    return f"<style>{(HERE / 'tooltips.css').read_text()}</style>{''.join(buttons)}" if buttons else ""


def overlay(choose):
    """The buttons as a widget, to be laid over the picture. choose(values): called with what a click chooses."""
    import anywidget
    from traitlets import Unicode

    class Spots(anywidget.AnyWidget):
        _esm = (HERE / "tooltips.js").read_text()
        html = Unicode().tag(sync=True)

    tooltips = Spots(layout={"grid_area": "1 / 1"})
    tooltips.on_msg(lambda _, chosen, __: choose(chosen))
    return tooltips
