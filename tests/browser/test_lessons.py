"""What only a browser shows of a lesson: cards and guesses answer, formulas are drawn, the console stays quiet.

Explorers are tried in test_explorers.py; what other cells show, in tests/notebooks.
"""

import re

import nbformat
import pytest

from tests.browser import lab
from tools import authoring

pytestmark = pytest.mark.skipif(not lab.CHROMIUM, reason="no chromium or google-chrome on the path")

# Console messages that do not mean that a lesson is broken.
HARMLESS = re.compile(r"Failed to load resource: .* \(https://colab\.research\.google\.com/assets/colab-badge\.svg\)")

# Voila loads icons from a CDN, and all of JupyterLab's extensions, including those that only work in JupyterLab.
HARMLESS_IN_VOILA = re.compile(
    HARMLESS.pattern
    + r"|Failed to load resource: .* \(https://cdn\.jsdelivr\.net/npm/@fortawesome/.*\)"
    + r"|(?s:Error: .*shared module .*/voila/labextensions/(jupyterlab-jupytext|@jupyter-notebook|@jupyter/nbgrader)/)"
    + r"(?s:.*)",
    flags=re.IGNORECASE,
)


def console_errors(page, harmless=HARMLESS):
    """A list to which every error that the page reports from now on is added."""
    errors = []

    def listen(error):
        if not harmless.fullmatch(error):
            errors.append(error)

    def listen_to_console(message):
        if message.type == "error":
            listen(f"{message.text} ({message.location['url']})")

    page.on("console", listen_to_console)
    page.on("pageerror", lambda error: listen(f"{error.message} {error.stack}"))
    return errors


@pytest.fixture(scope="module")
def jupyterlab(browser, tmp_path_factory):
    """(page, address, folder, console errors) of one JupyterLab in one page for all tests."""
    scratch = tmp_path_factory.mktemp("lab")
    folder = scratch / "notebooks"
    folder.mkdir()
    page = browser.new_page()
    with lab.jupyterlab(folder, scratch) as address:
        yield page, address, folder, console_errors(page)
        page.close()


@pytest.fixture
def open_lesson(jupyterlab):
    """`open_lesson(name)` gives the page of a committed notebook: formulas drawn, explorers run.

    whole: run every cell instead; nbval has run them all before. At the end of the test, the page's console must have
    stayed quiet.
    """
    page, address, folder, errors = jupyterlab

    def open_and_run(name, whole=False):
        needed = lab.copy_not_executed(authoring.NOTEBOOKS / f"{name}.ipynb", folder, outputs=not whole)
        lab.open_notebook(page, address, f"{name}.ipynb")
        if whole:
            lab.run_all(page)
        else:
            lab.run_cells(page, needed)
        cells = nbformat.read(folder / f"{name}.ipynb", as_version=4).cells
        if any("$" in cell.source for cell in cells if cell.cell_type == "markdown"):
            assert_formulas_drawn(page)
        return page

    errors.clear()
    page.bring_to_front()  # a page behind another opens no menus
    yield open_and_run
    assert errors == []


def assert_formulas_drawn(page):
    page.locator("mjx-container").first.wait_for()
    # MathJax marks a syntax error by an element of its own, and writes an unknown command in red.
    wrong = page.locator("mjx-merror, [data-mjx-error], mjx-container [style*='color: red']")
    assert wrong.all_inner_texts() == []
    # A formula that was not recognised still shows its dollars. Code may hold dollars too.
    left = page.evaluate(
        """() => [...document.querySelectorAll(".jp-RenderedMarkdown")].map(cell => {
            const copy = cell.cloneNode(true)
            copy.querySelectorAll("code, pre, mjx-container").forEach(node => node.remove())
            return copy.textContent
        }).filter(text => text.includes("$"))"""
    )
    assert left == []


def test_start_here(open_lesson):
    page = open_lesson("00_start_here", whole=True)
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    check = cells.filter(has_text="not attempted yet (1 point").first
    check.get_by_role("button", name="Next hint").click()
    check.get_by_text("00.softmax_scale, hint 1 of 3").wait_for()

    asked = cells.filter(has_text="guess = predict(").first
    asked.locator("input[type=text]").fill("2")
    page.keyboard.press("Enter")
    asked.get_by_text("Your guess is kept.").wait_for()
    compared = cells.filter(has_text="guess.compare(").first
    compared.locator(".jp-InputPrompt").click()
    page.keyboard.press("Shift+Enter")
    compared.get_by_text("Your guess: 2. Result: 4, so the guess is too low by a factor of 2.").wait_for()


@pytest.mark.parametrize("name", ["05_online_softmax", "13_variants"])
def test_formulas_are_drawn_and_the_console_stays_quiet(open_lesson, name):
    page = open_lesson(name)
    assert page.locator("div.explorer").first.is_visible()


def test_block_size_explorer_as_a_page(browser, tmp_path):
    """As the README starts it, with Voila: without JupyterLab, and no code is visible."""
    with lab.voila(authoring.NOTEBOOKS / "block_size_explorer.ipynb", tmp_path) as address:
        page = browser.new_page()
        errors = console_errors(page, HARMLESS_IN_VOILA)
        page.goto(address)
        explorer = page.locator("div.explorer").first
        explorer.wait_for(timeout=60_000)
        explorer.get_by_label("B_r").press("ArrowRight")
        explorer.get_by_text("75.5 MB").first.wait_for()
        assert "block_sizes.explore()" not in page.locator("body").inner_text()
        assert errors == []
