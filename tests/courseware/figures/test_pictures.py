"""What a picture is to a page: sharp and described. And those of no one lesson: the map, the overview, the README's."""

import base64
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from courseware.bench import records
from courseware.explorers import hero
from courseware.explorers.svg import BLUE, GREEN, ORANGE, PURPLE, TENSOR_COLOURS, VERMILLION
from courseware.figures import lesson_00 as overview
from courseware.figures import lesson_map
from courseware.figures.base import INK, Picture, panel, png
from tools import readme_picture
from tools.authoring import NOTEBOOKS


def test_a_picture_is_shown_at_half_its_pixels_with_its_alternative_text():
    html = Picture(1, 3, alt='"a" < b')._repr_html_()
    assert 'alt="&quot;a&quot; &lt; b" width="300"' in html
    assert Image.open(io.BytesIO(base64.b64decode(re.search(r'base64,(.*?)"', html)[1]))).size == (600, 200)
    with pytest.raises(ValueError, match="alternative text"):
        Picture(1)._repr_html_()


def test_fewer_colours_leave_those_of_the_palette_as_they_are():
    figure, axes = panel(2, title="six lines", alt="six lines")
    palette = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, INK)
    for y, colour in enumerate(palette):
        axes.axhline(y, color=colour, linewidth=3)
    shown = {colour for _, colour in Image.open(io.BytesIO(png(figure))).convert("RGB").getcolors()}
    assert {tuple(round(255 * part) for part in to_rgb(colour)) for colour in palette} <= shown
    assert len(set(TENSOR_COLOURS.values())) == len(TENSOR_COLOURS)


def test_the_map_has_the_lessons_that_are_there_and_each_needs_only_earlier_ones():
    lessons = [lesson for lessons in lesson_map.PARTS.values() for lesson in lessons]
    there = {path.name[:2] for path in (NOTEBOOKS / "source").glob("[0-9][0-9]_*.md")}
    assert {lesson.number for lesson in lessons} == there
    assert [lesson.number for lesson in lessons] == [f"{i:02}" for i in range(len(lessons))]
    assert all(needed < lesson.number for lesson in lessons for needed in lesson.needs)
    assert len(lesson_map.lesson_map().axes[0].patches) == len(lessons)


def test_curves_are_the_closed_forms():
    standard, flash = overview.draw().axes[-1].lines[:2]
    n = standard.get_xdata().astype(int)
    np.testing.assert_allclose(standard.get_ydata() * 2**30, 2 * 32 * n.astype(float) ** 2 * 2)
    np.testing.assert_allclose(flash.get_ydata() * 2**30, 32 * n * 4)


def test_the_readme_shows_the_record_and_what_is_drawn_today():
    figure, shape = readme_picture.speed(), {"n": 16_384, "head_dim": 128, "causal": False}
    rows = [records.rows("attention-h100", **shape, **{"pass": of})[0] for of in ("forward", "backward")]
    recorded = [row["tflops"][method] for row in rows for method in readme_picture.METHODS]
    (speed,) = figure.axes
    assert [bar.get_width() for bar in speed.patches] == recorded
    assert {f"{tflops:.0f}" for tflops in recorded} <= {text.get_text().split()[0] for text in speed.texts}
    # Nearly, for machines round differently.
    shown = Image.open(readme_picture.SPEED).convert("L")
    drawn = Image.open(io.BytesIO(png(figure))).convert("L")
    apart = np.abs(np.asarray(shown, dtype=int) - np.asarray(drawn, dtype=int))
    assert np.count_nonzero(apart > 96) < 20, "run `python -m tools.readme_picture`"
    moving = readme_picture.moving()
    assert readme_picture.MOVING.read_text() == moving, "run `python -m tools.readme_picture`"
    assert len(ElementTree.fromstring(moving).findall("{*}g")) == len(hero.moments("kernel")) and len(moving) < 1e6
    assert "prefers-reduced-motion:reduce" in moving and moving.count('class="f still"') == 1
