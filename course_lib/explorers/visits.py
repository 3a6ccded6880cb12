"""The widget of a picture that grows visit by visit: lengths, block sizes, and a slider of visits."""

from .figures import png

LENGTHS = (4, 8, 12, 16, 20, 24)
BLOCKS = (2, 3, 4, 6, 8)


def explore_visits(run, describe, draw, *, causal, visit, orders=()):
    """An ipywidgets box: loop order if there are `orders`, causal, lengths, block sizes, and the visit.

    run(n_q, n_k, block_q=, block_k=, causal=, and order= if there are any) gives the model, which has n_visits;
    describe(model, visit) gives HTML, draw(model, visit) a Picture. causal, visit: what is chosen at first.
    """
    import ipywidgets as widgets

    wide = {"description_width": "80px"}

    def choice(options, value, description):
        return widgets.SelectionSlider(options=options, value=value, description=description, style=wide)

    chosen = {}
    if orders:
        button = {"button_width": "90px"}
        chosen["order"] = widgets.ToggleButtons(options=orders, description="loops", style=wide | button)
    chosen["causal"] = widgets.Checkbox(causal, description="causal", indent=False)
    first_row = list(chosen.values())
    chosen["n_q"], chosen["n_k"] = choice(LENGTHS, 12, "queries"), choice(LENGTHS, 12, "keys")
    chosen["block_q"], chosen["block_k"] = choice(BLOCKS, 4, "block_q"), choice(BLOCKS, 3, "block_k")
    place = widgets.HBox()
    text, image = widgets.HTML(), widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
    model = None

    def show(_change=None):
        (slider,) = place.children
        text.value = describe(model, slider.value)
        image.value = png(draw(model, slider.value))

    def visit_up_to(end, value):
        """A new slider: the End key of one that is drawn goes to the end that it had then."""
        layout = widgets.Layout(width="600px")
        slider = widgets.IntSlider(min(value, end), 0, end, description="visit", style=wide, layout=layout)
        slider.observe(show, names="value")
        for old in place.children:
            old.close()
        place.children = (slider,)

    def rerun(_change=None):
        nonlocal model
        model = run(**{name: control.value for name, control in chosen.items()})
        end, now = model.n_visits, [slider.value for slider in place.children]
        if not now or place.children[0].max != end:
            visit_up_to(end, *(now or [visit]))
        show()

    for control in chosen.values():
        control.observe(rerun, names="value")
    rerun()
    rows = [first_row, [chosen["n_q"], chosen["n_k"]], [chosen["block_q"], chosen["block_k"]]]
    return widgets.VBox([*map(widgets.HBox, rows), place, text, image])
