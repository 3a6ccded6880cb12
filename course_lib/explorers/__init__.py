"""One module per widget: a pure model, a matplotlib drawing of it, and a thin ipywidgets shell around the two.

The model computes nothing of its own: its numbers come from `reference`, `machine`, `traffic` or a recorded
file. The drawing takes the model and returns a figure, so every picture an explorer shows can also stand still
in a notebook.
"""
