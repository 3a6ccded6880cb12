"""What a picture, and an explorer, is to a page: sharp, described, and there without a kernel."""

import base64
import io
import re

import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from courseware.explorers import float_formats, roofline
from courseware.explorers.figures import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILLION, Picture, png


def test_a_picture_is_shown_at_half_its_pixels_with_its_alternative_text():
    html = Picture(1, 3, alt='"a" < b')._repr_html_()
    assert 'alt="&quot;a&quot; &lt; b" width="300"' in html
    data = base64.b64decode(re.search(r'base64,(.*?)"', html).group(1))
    assert Image.open(io.BytesIO(data)).size == (600, 200)


def test_a_picture_without_alternative_text_is_refused():
    with pytest.raises(ValueError, match="alternative text"):
        Picture(1)._repr_html_()


def test_an_explorer_brings_its_picture_and_its_numbers_for_a_page_without_a_kernel():
    explorer = float_formats.explore()
    bundle = explorer._repr_mimebundle_()
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.model_id
    assert explorer.figure._repr_html_() in bundle["text/html"]
    assert f"<figcaption>{explorer.text.value}</figcaption>" in bundle["text/html"]
    explorer.controls["shift"].value = -90
    assert "every exp is 0" in explorer._repr_mimebundle_()["text/html"]


def test_fewer_colours_leave_those_of_the_palette_as_they_are():
    data = png(roofline.draw(roofline.evaluate()), colours=64)
    shown = {colour for _, colour in Image.open(io.BytesIO(data)).convert("RGB").getcolors()}
    palette = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, INK)
    assert {tuple(round(255 * part) for part in to_rgb(colour)) for colour in palette} <= shown
