"""Redrawing is fast enough to follow a control that is dragged, and the fast drawing looks as matplotlib's does.

Times are the least CPU time of several redraws, because the machine may be busy.
"""

import io
import time

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from course_lib.explorers import (
    attention_memory,
    backward_passes,
    block_sizes,
    dot_products,
    figures,
    float_formats,
    forward_kernel,
    online_softmax,
    programs,
    roofline,
    stable_softmax,
    tiled_attention,
)

LIMIT_MS = 150
# Each explorer, settings under which its picture is full, and the control that is moved: between two values.
EXPLORERS = {
    "dot products": (dot_products.explore_pair, {}, "turn a (degrees)", (40, 45)),
    "crowd": (dot_products.explore_crowd, {}, "d", (64, 128)),
    "float formats": (float_formats.explore, {}, "shift all", (0, 90)),
    "stable softmax": (stable_softmax.explore, {"logits": "12 random logits"}, "times", (9, 10)),
    "attention memory": (attention_memory.explore, {}, "N", (1024, 2048)),
    "online softmax": (online_softmax.explore, {"stream": "12 random keys"}, "blocks fed", (7, 8)),
    "tiled attention": (tiled_attention.explore, {"queries": 24, "keys": 24, "block_k": 4}, "visit", (20, 21)),
    "block sizes": (block_sizes.explore, {"causal": True}, "visits", (40, 41)),
    "many tiles": (block_sizes.explore, {"N": 131072, "B_r": 16, "B_c": 16}, "visits", (999, 1000)),
    "programs": (programs.explore, {"grid": "2-D", "rows": 12, "columns": 24, "BLOCK_N": 1}, "program_id(0)", (1, 2)),
    "forward": (forward_kernel.explore, {"BLOCK_M": 8, "BLOCK_N": 8}, "tile", (0, 1)),
    "roofline": (roofline.explore, {}, "B_r", (64, 128)),
    "backward": (backward_passes.explore, {"queries": 24, "keys": 24, "causal": False}, "visit", (20, 21)),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPLORERS)
def test_a_redraw_takes_less_than_150_ms(name, shell_of, record_property):
    explore, settings, moved, values = EXPLORERS[name]
    shell, times_ms = shell_of(explore()), []
    for description, value in settings.items():
        shell[description].value = value
    for value in values:  # what is drawn for the first time may take longer
        shell[moved].value = value
    for value in 3 * values:
        before, start = shell["Image"].value, time.process_time()
        shell[moved].value = value
        times_ms.append(1e3 * (time.process_time() - start))
        assert shell["Image"].value != before
    record_property("redraw_ms", round(min(times_ms)))
    assert min(times_ms) < LIMIT_MS


def pixels_of(encoded):
    return np.array(Image.open(io.BytesIO(encoded))).astype(int)


def test_a_png_holds_the_pixels_that_were_drawn():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 4), dtype=np.uint8)
    np.testing.assert_array_equal(pixels_of(figures._encoded(pixels)), pixels)


@pytest.mark.parametrize("text", ["plain", "two\nlines, f(x) = 1", "$x^2$", "\u03b4"])
def test_a_kept_text_looks_as_matplotlib_draws_it(text):
    """Except that its place is rounded to a whole pixel."""

    def ink(pixels):
        """How much of each colour, and its bounds."""
        ink = 255 - np.array(pixels)[..., :3].astype(int)
        rows, columns = np.nonzero(ink.max(axis=-1) > 100)
        return ink.sum(axis=(0, 1)), np.array([rows.min(), rows.max(), columns.min(), columns.max()])

    for rotation in (0, 90, 30):
        figure = figures.Picture(1.5, 2.5)
        drawn = figure.text(0.4, 0.4, text, rotation=rotation, color=figures.BLUE)
        canvas = FigureCanvasAgg(figure)
        with rc_context({"text.hinting": "none"}):
            canvas.draw()
        colours, bounds = ink(canvas.buffer_rgba())
        drawn.set_text("something else")
        figures.png(figure)  # what else is kept must not matter
        drawn.set_text(text)
        for _ in range(2):
            kept_colours, kept_bounds = ink(pixels_of(figures.png(figure)))
            np.testing.assert_allclose(kept_colours, colours, rtol=0.02, err_msg=f"{rotation} degrees")
            np.testing.assert_allclose(kept_bounds, bounds, atol=1, err_msg=f"{rotation} degrees")


def test_texts_of_two_colours_sizes_and_places_are_told_apart():
    def picture(**style):
        figure = figures.Picture(1, 2)
        figure.text(style.pop("x", 0.5), style.pop("y", 0.5), "same", **style)
        return figures.png(figure)

    styles = ({}, {"color": "red"}, {"fontsize": 12}, {"weight": "bold"}, {"rotation": 90}, {"x": 0.6}, {"y": 0.6})
    assert len({picture(**style) for style in styles}) == len(styles)
    assert picture() == picture()


def panel_with(draw):
    """A picture's only panel, its pixels, and where it is in them: (left, right, top, bottom)."""
    figure = figures.Picture(2, 3)
    (axes,) = figure.panels(1)
    figure.subplots_adjust(left=0.4)
    draw(axes)
    pixels = pixels_of(figures.png(figure))
    (left, low), (right, high) = axes.bbox.get_points()
    return axes, pixels, [round(x) for x in (left, right, len(pixels) - high, len(pixels) - low)]


def test_a_panel_marks_its_ticks_where_they_are():
    def draw(axes):
        axes.set_xlim(0, 10)
        axes.set_ylim(4, 0)
        axes.set_xticks([2, 5, 9], ["a", "b", "c"])
        axes.set_yticks([1])

    axes, pixels, (left, right, top, bottom) = panel_with(draw)
    dark = pixels[..., :3].min(axis=-1) < 200
    below = np.flatnonzero(dark[bottom + 3, left - 2 : right + 2]) - 2
    np.testing.assert_allclose(below, [(right - left) * share for share in (0.2, 0.5, 0.9)], atol=1)
    beside = np.flatnonzero(dark[top - 2 : bottom + 2, left - 4]) - 2
    np.testing.assert_allclose(beside, [(bottom - top) * 0.25], atol=1)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "c"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1"]
    assert dark[bottom + 8 : bottom + 20, left + round(0.5 * (right - left))].any(), "the label b"


def test_a_panel_grows_to_its_ticks_and_hides_those_outside():
    def draw(axes):
        axes.set_xticks([-1, 0, 3])
        axes.set_yticks([0, 1, 2, 3])
        axes.set_ylim(0.5, 2)

    axes, *_ = panel_with(draw)
    assert axes.get_xlim() == (-1, 3)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2"]


def test_bars_and_boxes_are_drawn_at_their_coordinates(heights):
    axes, *_ = panel_with(lambda axes: None)
    bars = axes.bars([0, 2], [3, -1], bottom=1, width=0.5)
    assert heights(bars) == [3, -1]
    assert [tuple(path.get_extents().intervalx) for path in bars.get_paths()] == [(-0.25, 0.25), (1.75, 2.25)]
    (path,) = axes.boxes([1], 2, 3, 4).get_paths()
    assert path.get_extents().bounds == (1, 2, 3, 4)
    assert len(axes.boxes([], 0, 1, 1).get_paths()) == 0


def test_a_label_stays_clear_of_the_widest_tick_label():
    def left_of_the_label(ticks):
        def draw(axes):
            axes.set_yticks([0, 1], ticks)
            figures.tidy(axes, y="l")

        axes, pixels, _ = panel_with(draw)
        return np.flatnonzero((pixels[..., :3] < 200).any(axis=(0, 2)))[0]

    assert left_of_the_label(["1", "2"]) > left_of_the_label(["1", "2,000"]) + 15


def test_an_axis_without_a_line_shows_its_labels_only():
    def draw(axes):
        axes.set_xticks([0, 1], ["", ""])
        axes.set_yticks([])
        axes.xaxis.has_line = axes.yaxis.has_line = False

    _, pixels, _ = panel_with(draw)
    assert (pixels == 255).all()
