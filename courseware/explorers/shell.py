"""The widget that every explorer is: rows of controls, the picture of what they choose, and its numbers in words.

Where there is no kernel, in a notebook on GitHub or in print, the same cell shows the first picture and its numbers.
"""

import ipywidgets as widgets

from .figures import png
from .tooltips import overlay, tooltips_html

STYLE = {"description_width": "110px"}
# Sliders share a row where the page has room for both, and keep a track that can be aimed at where it has not.
TRACK = {"flex": "1 1 400px", "min_width": "340px", "max_width": "560px"}


def slider(name, low, high, value, step=1):
    """A slider over numbers: whole ones if `step` is whole."""
    kind = widgets.IntSlider if isinstance(step, int) else widgets.FloatSlider
    return kind(value, min=low, max=high, step=step, description=name, style=STYLE, layout=TRACK)


def choice(name, options, value):
    """A slider over a few values: of options, texts or (text, value)."""
    return widgets.SelectionSlider(options=options, value=value, description=name, style=STYLE, layout=TRACK)


def menu(name, options, value):
    """A menu of options: texts, numbers, or the keys of a dictionary."""
    return widgets.Dropdown(options=list(options), value=value, description=name, style=STYLE)


def buttons(name, options, value):
    """A row of buttons, one of which is pressed: options as of a menu."""
    style = STYLE | {"button_width": "auto"}
    beside = {"display": "flex", "width": "auto"}  # their name, as that of the other controls
    return widgets.ToggleButtons(options=list(options), value=value, description=name, style=style, layout=beside)


def tick(name, value):
    return widgets.Checkbox(value, description=name, indent=False, layout={"width": "110px"})


class Explorer(widgets.VBox):
    """Rows of controls, and below them what model_of(**their values) gives, drawn and described.

    rows: {name: control} for each row. describe(model) gives HTML, draw(model) a Picture. step: a slider whose value is
    not the model's but the moment that is shown: describe(model, step), draw(model, step). ends: name of a slider ->
    function of all values that gives the slider's end; one that stands at its end at first stays there as the end
    moves. play: a slider, over numbers or over a few values, that a button moves on by itself.
    """

    def __init__(self, model_of, describe, draw, *rows, step=None, ends=None, play=None):
        self._shown = model_of, describe, draw, step
        self.controls = {name: control for row in rows for name, control in row.items()}
        self._ends, self._play = ends or {}, play
        self._kept_at_end = {name for name in self._ends if self.controls[name].value == self.controls[name].max}
        self.image = widgets.Image(format="png", layout={"grid_area": "1 / 1", "width": "100%", "margin": "0"})
        self.tooltips = overlay(self.choose)
        self.picture = widgets.GridBox([self.image, self.tooltips])
        self.text = widgets.HTML()
        wrapped = {"flex_flow": "row wrap"}  # onto a next line where the page is narrow
        self._rows = [widgets.HBox(list(row.values()), layout=wrapped) for row in rows]
        super().__init__([*self._rows, self.picture, self.text])
        if play:
            self._button, self._link = widgets.Play(interval=300, show_repeat=False), None
            row = next(row for row in self._rows if self.controls[play] in row.children)
            row.children = [*row.children, self._button]
            self._play_with(self.controls[play])
        for control in self.controls.values():
            control.observe(self.redraw, names="value")
        self.redraw()

    @property
    def values(self):
        return {name: control.value for name, control in self.controls.items()}

    def redraw(self, _change=None):
        """Show what the controls choose now."""
        self._move_ends()
        model_of, describe, draw, step = self._shown
        settings = self.values
        moment = [settings.pop(step)] if step else []
        model = model_of(**settings)
        self.text.value = describe(model, *moment)
        self.figure = draw(model, *moment)
        self.image.value, self.tooltips.html = png(self.figure), tooltips_html(self.figure)
        # As wide as it is drawn, or as there is room for; a click on it makes --least large (see overlay).
        width = f"{self.figure.shown_width}px"
        self.picture.layout.grid_template_columns = f"minmax(min(var(--least, 0px), {width}), {width})"

    def choose(self, values):
        """Set controls, by name."""
        for name, value in values.items():
            self.controls[name].value = value

    def _repr_mimebundle_(self, **_kwargs):
        static_image = f"<figure>{self.figure._repr_html_()}<figcaption>{self.text.value}</figcaption></figure>"
        return super()._repr_mimebundle_() | {"text/plain": self.figure.alt, "text/html": static_image}

    def _move_ends(self):
        """New sliders where an end has moved: the End key of one that is drawn goes to the end that it had then."""
        for name, end_of in self._ends.items():
            old, end = self.controls[name], end_of(**self.values)
            if old.max != end:
                at_the_end = name in self._kept_at_end and old.value == old.max
                new = slider(old.description, old.min, end, end if at_the_end else min(old.value, end))
                new.observe(self.redraw, names="value")
                self._replace(name, new)

    def _replace(self, name, new):
        old, self.controls[name] = self.controls[name], new
        for row in self._rows:
            row.children = [new if control is old else control for control in row.children]
        old.close()
        if name == self._play:
            self._play_with(new)

    def _play_with(self, slider):
        """Link the button to the slider, so that it takes about 60 pictures to the end, however many the steps."""
        if self._link:
            self._link.unlink()
        over_values = isinstance(slider, widgets.SelectionSlider)
        place, low, high = ("index", 0, len(slider.options) - 1) if over_values else ("value", slider.min, slider.max)
        button = self._button
        button.min, button.max, button.step, button.value = low, high, -(-(high - low) // 60), getattr(slider, place)
        self._link = widgets.link((slider, place), (button, "value"))
