"""Lessons in a real browser: explorers answer the keyboard, formulas are drawn, the console stays quiet."""

import re

import lab
import pytest

from course_lib import authoring

pytestmark = pytest.mark.skipif(not lab.CHROMIUM, reason="no chromium or google-chrome on the path")

# What the console may say without anything being wrong with a lesson. The last two are jupyterquiz's: it asks
# a CDN for a MathJax of its own, and looks for that one's version before it is there.
HARMLESS = re.compile(
    r"Failed to load resource: .* \(https://colab\.research\.google\.com/assets/colab-badge\.svg\)"
    r"|Failed to load resource: .* \(https://cdn\.jsdelivr\.net/npm/mathjax@3/es5/tex-svg\.js\)"
    r"|Cannot read properties of undefined \(reading '0'\) .*\n +at eval \(eval at evalInContext .*"
)


@pytest.fixture
def open_lesson(tmp_path):
    """`open_lesson(name)` gives the page, with the lesson run, and a list of the console's errors."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    with lab.jupyterlab(folder, tmp_path) as address, lab.chromium_page() as page:
        errors = []

        def listen(error):
            if not HARMLESS.fullmatch(error):
                errors.append(error)

        def listen_to_console(message):
            if message.type == "error":
                listen(f"{message.text} ({message.location['url']})")

        page.on("console", listen_to_console)
        page.on("pageerror", lambda error: listen(f"{error.message} {error.stack}"))

        def open_and_run(name):
            lab.copy_not_executed(authoring.NOTEBOOKS / f"{name}.ipynb", folder)
            lab.open_and_run_all(page, address, f"{name}.ipynb")
            return page, errors

        yield open_and_run


def assert_formulas_drawn(page):
    page.locator("mjx-container").first.wait_for()
    # An error of syntax has an element of its own; a command that MathJax does not know is written in red.
    wrong = page.locator("mjx-merror, [data-mjx-error], mjx-container [style*='color: red']")
    assert wrong.all_inner_texts() == []
    # What was left as it was typed; code may hold dollars.
    left = page.evaluate(
        """() => [...document.querySelectorAll(".jp-RenderedMarkdown")].map(cell => {
            const copy = cell.cloneNode(true)
            copy.querySelectorAll("code, pre, mjx-container").forEach(node => node.remove())
            return copy.textContent
        }).filter(text => text.includes("$"))"""
    )
    assert left == []


def test_start_here(open_lesson):
    page, errors = open_lesson("00_start_here")
    check = page.locator(".jp-OutputArea", has_text="00.softmax_scale").first
    assert "not attempted yet" in check.inner_text()
    assert errors == []


def test_online_softmax(open_lesson):
    page, errors = open_lesson("05_online_softmax")
    assert_formulas_drawn(page)

    explorer = page.locator(".jp-OutputArea .widget-vbox").first
    text, image = explorer.locator(".widget-html-content").last, explorer.locator("img")

    def shown():
        return text.inner_text(), image.get_attribute("src")

    def press(control, *keys):
        """Presses `keys` in the control, and text and figure both change. Returns the new text."""
        before = shown()
        control.focus()
        for key in keys:
            page.keyboard.press(key)
        page.wait_for_function(
            """([text, image, [oldText, oldSource]]) => text.innerText != oldText
                && image.getAttribute("src") != oldSource && image.complete && image.naturalWidth > 0""",
            arg=[text.element_handle(), image.element_handle(), before],
        )
        assert control.evaluate("node => node == document.activeElement"), "the focus stays with the control"
        return text.inner_text()

    stream, order = explorer.locator("select").all()
    block, fed = explorer.locator(".noUi-handle").all()
    at_the_end, every_step = explorer.locator(".widget-toggle-button").all()

    assert "Block 1 of 4" in text.inner_text()
    assert "Block 1 of 12" in press(stream, "Space", "ArrowDown", "Enter")
    press(order, "Space", "ArrowDown", "Enter")
    assert "Block 12 of 12" in press(fed, "End")
    press(fed, "Home")
    assert "Block 2 of 12" in press(fed, "ArrowRight", "ArrowRight")
    assert "Block 2 of 6" in press(block, "ArrowRight")
    assert "Divisions by l to get it: 2" in press(every_step, "Enter")
    assert "Divisions by l to get it: 1" in press(at_the_end, "Enter")
    assert "Block 1 of 6" in press(fed, "ArrowLeft")

    assert page.locator(".Quiz").count() > 0
    # The quiz has put a MathJax of its own into the page by now: formulas are still drawn.
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Render All Markdown Cells", exact=True).click()
    assert_formulas_drawn(page)
    assert errors == []
