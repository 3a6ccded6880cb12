"""The explorers that one takes hold of, as pages without a kernel: dragged, played and pointed at.

The same JavaScript runs in JupyterLab, where the model answers; tests/browser/test_lessons.py tries it there.
"""

import re
from functools import cache

import lab
import pytest

from tools import site_explorers

pytestmark = pytest.mark.skipif(not lab.CHROMIUM, reason="no chromium or google-chrome on the path")


html_of = cache(lambda name: site_explorers.static_html(site_explorers.explorer(name)))


@pytest.fixture(scope="module")
def browser():
    with lab.chromium() as context:
        yield context


@pytest.fixture
def opened(browser):
    """`opened(name)`: the page of an explorer. At the end nothing has failed in it."""
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(error.message))

    def opened(name, width=1000):
        page.set_viewport_size({"width": width, "height": 900})
        page.set_content(f"<!doctype html><body>{html_of(name)}")
        return page

    yield opened
    page.close()
    assert errors == []


def test_tips_are_dragged(opened):
    page = opened("pair")
    tip = page.get_by_label("tip of a")
    before = tip.bounding_box()
    tip.hover()
    page.mouse.down()
    page.mouse.move(before["x"] + 50, before["y"] + 11, steps=3)
    page.mouse.up()
    assert tip.get_attribute("aria-valuetext") == "(2, 2)" and page.get_by_text("6.000").count()
    page.keyboard.press("ArrowDown")
    assert tip.get_attribute("aria-valuetext") == "(2, 1)" and page.get_by_text("0.0\u00b0").count()
    assert tip.bounding_box()["x"] > before["x"]


def test_a_score_is_raised_and_the_stream_played(opened):
    page = opened("stream")
    said, weights = page.locator(".svg-explorer p"), page.locator(".weights rect")
    assert said.inner_text() == "Block 3 of 4: sat."

    def drawn(node):
        return float(re.search(r"scaleY\((.*?)\)", node.get_attribute("style"))[1])

    assert drawn(weights.nth(0)) == -0.135
    score = page.get_by_label("score of the")
    score.focus()
    for _ in range(3):
        page.keyboard.press("ArrowUp")
    assert score.get_attribute("aria-valuetext") == "4.000" and drawn(weights.nth(0)) == -1
    page.keyboard.press("ArrowRight")  # which other places cannot be chosen here
    assert said.inner_text() == "Block 3 of 4: sat."
    page.get_by_role("button").click()
    page.get_by_text("Block 4 of 4: down.").wait_for()
    assert page.get_by_role("button").inner_text().endswith("play"), "it stops at the end"
    # It plays on, and on a busy machine may have left the first block before anybody looks.
    page.evaluate(
        "window.said = []; new MutationObserver(() => said.push(document.body.innerText))"
        ".observe(document.body, {subtree: true, childList: true, characterData: true})"
    )
    page.get_by_role("button").click()
    page.wait_for_function("said.some(text => text.includes('Block 1 of 4: the.'))")


def touch(page, shape, *moves):
    """A finger on the middle of a shape, moved so many pixels down by each of the moves, and lifted."""
    box, session = shape.bounding_box(), page.context.new_cdp_session(page)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    steps = [("touchStart", y), *(("touchMove", y := y + down) for down in moves), ("touchEnd", None)]
    session.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    for kind, at in steps:
        points = [] if at is None else [{"x": x, "y": at}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})


@pytest.mark.parametrize(
    "name, label, y, before, after",
    [("pair", "tip of a", 124, "(1, 2)", "(1, -1)"), ("stream", "score of the", -84, "1.000", "4.000")],
)
def test_a_finger_drags_and_the_page_stays(opened, name, label, y, before, after):
    page = opened(name)
    page.evaluate("document.body.style.margin = '600px 0 2000px'")
    page.evaluate("scrollTo(0, 500)")
    shape = page.get_by_label(label)
    assert shape.get_attribute("aria-valuetext") == before
    touch(page, shape, y / 3, y / 3, y / 3)
    page.wait_for_timeout(200)
    assert shape.get_attribute("aria-valuetext") == after
    assert page.evaluate("scrollY") == 500


@pytest.mark.parametrize("name", ["visits", "block_sizes"])
def test_a_tap_on_a_tile_names_it(opened, name):
    page = opened(name)
    page.get_by_label("visits", exact=True).fill("0")
    touch(page, page.locator(".tile").nth(1))
    page.wait_for_timeout(200)
    assert "visit 2, reads" in page.locator(".svg-explorer p").first.inner_text()


@pytest.mark.parametrize("name", ["visits", "block_sizes"])
def test_tiles_are_played_and_pointed_at(opened, name):
    page = opened(name)
    said = page.locator(".svg-explorer p").first
    page.get_by_label("visits", exact=True).fill("0")
    assert said.inner_text().startswith("Nothing visited yet") and page.locator(".tile.visited").count() == 0
    page.get_by_role("button").click()
    page.locator(".tile.visited").nth(1).wait_for()
    page.get_by_role("button").click()
    here = said.inner_text()
    page.locator(".tile").nth(1).hover()
    assert re.search(r"visit 2, reads K [\d,]+, V [\d,]+ bytes", said.inner_text())
    page.locator("summary, .controls").first.hover()
    assert said.inner_text() == here
    page.get_by_label("causal").check()
    assert page.locator(".tile.skipped").count() and page.locator(".stair").first.get_attribute("d")


def test_a_larger_tile_moves_fewer_bytes(opened):
    page = opened("block_sizes")
    assert "143 MB" in page.locator(".headline").inner_text()
    page.get_by_label("B_r").press("ArrowRight")
    assert "75.5 MB" in page.locator(".headline").inner_text()
    page.get_by_label("GPU").select_option("T4")
    assert "64 KiB" in page.locator(".headline").inner_text()
    page.get_by_label("B_r").press("End")
    assert "128" in page.locator("output").first.inner_text()


@pytest.mark.parametrize("name", ["stream", "visits", "block_sizes"])
def test_panels_that_belong_together_stay_in_a_row_on_a_narrow_page(opened, name):
    left, right = (figure.bounding_box() for figure in opened(name, width=480).locator("figure").all()[:2])
    assert left["y"] == right["y"] and left["x"] + left["width"] < right["x"]


@pytest.mark.parametrize("name", site_explorers.EXPLORERS)
def test_a_narrow_page_needs_no_scrolling_sideways_and_no_lens(opened, name):
    page = opened(name, width=380)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    sizes = page.evaluate(
        """[...document.querySelectorAll(".svg-explorer *")].map(node => {
            const [size, svg] = [parseFloat(getComputedStyle(node).fontSize), node.ownerSVGElement]
            return svg ? size * svg.clientWidth / svg.viewBox.baseVal.width : size
        })"""
    )
    assert min(sizes) > 11.9
