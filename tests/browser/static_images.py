"""The static images of the explorers that move in a browser: python -m tests.browser.static_images

Photographs each as a page without a kernel shows it at first, with two pixels to one, and writes courseware/explorers/
NAME.png. Each holds the digest of what was drawn; a test says when one is out of date. Needs chromium on the path.
"""

import io
import sys

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from courseware.explorers import svg_explorer
from tests.browser import lab
from tools import site_explorers


def main() -> None:
    if not lab.CHROMIUM:
        sys.exit("no chromium, chromium-browser or google-chrome on the path")
    with lab.chromium(scale=2) as browser:
        page = browser.new_page()
        page.set_viewport_size({"width": svg_explorer.STATIC_WIDTH + 16, "height": 1200})
        for name in site_explorers.EXPLORERS:
            explorer = site_explorers.explorer(name)
            page.set_content(f"<!doctype html><body>{site_explorers.static_html(explorer)}")
            image = Image.open(io.BytesIO(page.locator(".svg-explorer").screenshot()))
            digest = PngInfo()
            digest.add_text("digest", site_explorers.digest(explorer))
            # The usual method makes one colour of two where one of them is rare.
            method = {"method": Image.Quantize.MAXCOVERAGE, "kmeans": 1, "dither": Image.Dither.NONE}
            colours = image.convert("RGB").quantize(64, **method)
            colours.save(svg_explorer.HERE / f"{name}.png", optimize=True, pnginfo=digest)


if __name__ == "__main__":
    main()
