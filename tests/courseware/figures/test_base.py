"""What a picture is to a page: sharp and described."""

import base64
import io
import re

import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from courseware.explorers.svg import BLUE, GREEN, ORANGE, PURPLE, TENSOR_COLOURS, VERMILLION
from courseware.figures.base import INK, Picture, panel, png


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
    still = png(figure, colours=64)
    shown = {colour for _, colour in Image.open(io.BytesIO(still)).convert("RGB").getcolors()}
    assert {tuple(round(255 * part) for part in to_rgb(colour)) for colour in palette} <= shown
    assert len(still) < 0.6 * len(png(figure)) and len(set(TENSOR_COLOURS.values())) == len(TENSOR_COLOURS)
