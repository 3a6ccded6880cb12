"""Explorers in a browser: dragged, played, pointed at and clicked; as pages without a kernel, and in JupyterLab.

And what only JupyterLab shows of a lesson: cards and guesses answer, formulas are drawn, the console stays quiet.
"""

import re
import shutil
from functools import cache

import nbformat
import pytest

from courseware.explorers.explorer import AT_END, SCRIPT
from tests.browser import lab
from tests.courseware.explorers.conftest import every_explorer
from tools import authoring

pytestmark = pytest.mark.skipif(not lab.CHROMIUM, reason="no chromium or google-chrome on the path")

EXPLORERS = every_explorer()
html_of = cache(lambda name: EXPLORERS[name]().static_html("here"))
STREAM, PAIR = "online_softmax.explore", "dot_products.explore_pair"

# Console messages that do not mean that a lesson is broken. The others come if another takes its place at once.
HARMLESS = re.compile(
    r"Failed to load resource: .* \(https://colab\.research\.google\.com/assets/colab-badge\.svg\)"
    r"|Could not restore the debugger state: .*"
    r"|Error: Canceled future for create_subshell_request message before replies were done *"
)

# Voila loads icons from a CDN, and all of JupyterLab's extensions, including those that only work in JupyterLab.
HARMLESS_IN_VOILA = re.compile(
    HARMLESS.pattern
    + r"|Failed to load resource: .* \(https://cdn\.jsdelivr\.net/npm/@fortawesome/.*\)"
    + r"|(?s:Error: .*shared module .*/voila/labextensions/(jupyterlab-jupytext|@jupyter-notebook|@jupyter/nbgrader)/)"
    + r"(?s:.*)",
    flags=re.IGNORECASE,
)


@pytest.fixture
def opened(browser):
    """`opened(name)`: the page of an explorer without a kernel. At the end nothing has failed in it."""
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(error.message))

    def opened(name, width=1000):
        page.set_viewport_size({"width": width, "height": 900})
        page.set_content(f"<!doctype html><body>{html_of(name)}")
        page.locator("div.explorer").wait_for()  # its script unpacks the pages first
        return page

    yield opened
    page.close()
    assert errors == []


def drag(page, shape, right, down):
    before = shape.bounding_box()
    shape.hover()
    page.mouse.down()
    page.mouse.move(before["x"] + before["width"] / 2 + right, before["y"] + before["height"] / 2 + down, steps=3)
    page.mouse.up()


def test_tips_are_dragged_and_keep_the_focus(opened):
    page = opened(PAIR)
    tip = page.get_by_label("tip of a")
    drag(page, tip, 40, 0)
    assert tip.get_attribute("aria-valuetext") == "(2, 2)" and page.get_by_text("6.000").count()
    page.keyboard.press("ArrowDown")
    assert tip.get_attribute("aria-valuetext") == "(2, 1)" and page.get_by_text("0.0\u00b0").count()
    assert tip.evaluate("node => node == document.activeElement")


def test_a_score_is_raised_and_the_stream_played(opened):
    page = opened(STREAM)
    said, button = page.locator(".said"), page.get_by_role("button", name="play")
    assert said.inner_text() == "Block 3 of 4: sat." and not page.get_by_text("4.000").count()
    score = page.get_by_label("score of the")
    for _ in range(3):
        score.press("ArrowUp")
    assert score.get_attribute("aria-valuetext") == "4.000" and page.get_by_text("4.000").count()
    score.press("ArrowRight")
    assert "of 4:" in said.inner_text(), "it stays with its stream"
    page.get_by_label("order").select_option("as given")
    button.click()
    page.get_by_text("Block 4 of 4: down.").wait_for()
    page.wait_for_function("document.querySelector('.explorer button').textContent.includes('play')")
    # It plays on from the start, and on a busy machine may have left the first block before anybody looks.
    page.evaluate(
        "window.said = []; new MutationObserver(() => said.push(document.body.innerText))"
        ".observe(document.body, {subtree: true, childList: true, characterData: true})"
    )
    button.click()
    page.wait_for_function("said.some(text => text.includes('Block 1 of 4: the.'))")


def test_a_link_leads_to_what_was_chosen(opened, tmp_path):
    """And one that nobody can read, to the beginning."""
    page, address = opened(PAIR), (tmp_path / "page.html").as_uri()
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8><body>{html_of(PAIR)}")

    def tip_at(link):
        page.goto("about:blank")
        page.goto(address + link)
        return page.get_by_label("tip of a").get_attribute("aria-valuetext")

    start = tip_at("")
    page.get_by_label("tip of a").focus()
    page.keyboard.press("ArrowDown")
    moved = page.get_by_label("tip of a").get_attribute("aria-valuetext")
    page.wait_for_url("**/page.html#here?*")
    link = page.url.removeprefix(address)
    assert moved != start and tip_at(link) == moved
    assert {tip_at(link) for link in ("#here?a=%7B", "#here?nothing=3", "#elsewhere?a=%5B0%2C0%5D", "#here")} == {start}


def test_a_page_without_a_kernel_says_what_it_lacks(opened):
    page = opened("mask_painter.explore")
    note = page.locator(".computing")
    page.locator("[data-choose]").first.click()
    note.filter(has_text="only some settings").wait_for()
    page.get_by_label("block_q").press("ArrowRight")
    page.wait_for_timeout(700)
    assert note.is_hidden()


def test_a_picture_is_not_cut_off_where_it_nearly_fits(opened):
    page = opened("timeline.explore", width=750)
    assert page.locator("figure").evaluate_all("all => all.every(one => one.scrollWidth <= one.clientWidth)")


def test_who_asks_for_less_motion_gets_none(opened):
    page = opened(STREAM)
    page.emulate_media(reduced_motion="reduce")
    bar = page.locator("rect.bar").first
    assert bar.evaluate("node => getComputedStyle(node).transitionDuration") == "0s"
    page.emulate_media(reduced_motion="no-preference")
    assert "0.3s" in bar.evaluate("node => getComputedStyle(node).transitionDuration")


def test_a_finger_drags_and_the_page_stays(opened):
    page = opened(PAIR)
    page.evaluate("document.body.style.margin = '600px 0 2000px'; scrollTo(0, 500)")
    shape = page.get_by_label("tip of a")
    box, session = shape.bounding_box(), page.context.new_cdp_session(page)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    session.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    for kind, down in (("touchStart", 0), ("touchMove", 40), ("touchMove", 80), ("touchEnd", None)):
        points = [] if down is None else [{"x": x, "y": y + down}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    page.wait_for_timeout(200)
    assert shape.get_attribute("aria-valuetext") == "(1, -1)" and page.evaluate("scrollY") == 500


def test_a_slow_model_is_announced_and_asked_for_the_last_choice_only(opened):
    page = opened(PAIR)
    page.set_content(
        f"""<div id="place"></div><script type="module">{SCRIPT}
        const listeners = [], options = [["0", 0], ["1", 1], ["2", 2], ["3", 3]]
        const now = {{ state: {{ settings: {{ n: 0, m: 5 }}, ends: {{ m: 5 }}, html: "<p>0</p>" }} }}
        now.controls = [{{ kind: "slider", name: "n", label: "n", options, play: false }}]
        Object.assign(window, {{ asked: [], now }})
        window.answer = () => {{
          now.state = {{ settings: {{ ...now.settings, m: 5 }}, ends: {{ m: 5 }}, html: `<p>${{now.settings.n}}</p>` }}
          listeners.forEach((listener) => listener())
        }}
        const model = {{
          get: (name) => now[name], set: (name, value) => (now[name] = value), on: (_, one) => listeners.push(one),
          save_changes: () => window.asked.push(now.settings.n),
        }}
        render({{ model, el: document.getElementById("place") }})</script>"""
    )
    note, slider = page.locator(".computing"), page.get_by_label("n")
    for _ in range(3):
        slider.press("ArrowRight")
    assert page.evaluate("now.settings.m") == AT_END, "what stands at its end stays there"
    assert page.evaluate("asked") == [1] and page.locator(".pages").inner_text() == "0"
    note.wait_for()  # after a fifth of a second
    page.evaluate("answer()")
    assert page.locator(".pages").inner_text() == "1" and note.is_hidden() and page.evaluate("asked") == [1, 3]
    page.evaluate("answer()")
    assert page.locator(".pages").inner_text() == "3" and slider.input_value() == "3"
    slider.press("ArrowLeft")
    slider.press("ArrowRight")  # back, before the answer
    page.evaluate("answer()")
    assert page.evaluate("asked") == [1, 3, 2, 3], "what is asked for last is what is there in the end"


@pytest.mark.parametrize("name", EXPLORERS)
def test_every_control_and_every_place_answers_without_a_kernel(opened, name):
    page = opened(name, width=380)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380, "it scrolls sideways"
    sizes = page.evaluate(
        "[...document.querySelectorAll('.explorer *')].filter(node => node.textContent)"
        ".map(node => parseFloat(getComputedStyle(node).fontSize))"
    )
    assert min(sizes) > 10.9, "it needs a lens"
    pages = page.locator(".pages")
    controls = page.locator(".controls :is(input:not([type=radio]:checked), select)")
    for i in range(controls.count()):
        opened(name)  # what one control chooses may leave another nothing to change
        control = controls.nth(i)
        control.wait_for()
        before = pages.inner_html()
        if control.evaluate("node => node.tagName") == "SELECT":
            chosen = 1 + (control.evaluate("node => node.selectedIndex") == 1)
            control.select_option(index=chosen)
            assert control.evaluate("node => node.selectedIndex") == chosen
        elif control.get_attribute("type") in ("checkbox", "radio"):
            control.set_checked(not control.is_checked())
        else:
            at_end = control.evaluate("node => node.value == node.max")
            control.press("ArrowLeft" if at_end else "ArrowRight")
        page.wait_for_timeout(20)
        assert pages.inner_html() != before, control.get_attribute("name")
    places = page.locator("[data-tip]")
    if places.count():
        assert page.locator(".tip").is_hidden()
        page.locator("[data-tip][tabindex='0']").first.focus()
        tip = page.locator(".tip")
        assert tip.inner_text() == page.evaluate("document.activeElement.dataset.tip")
        page.keyboard.press("Escape")
        assert tip.is_hidden()


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


@pytest.fixture(scope="module")
def notebook(jupyterlab):
    """The page, whose notebook shows every explorer, each run."""
    page, address, folder, errors = jupyterlab
    calls = [name.partition(".")[::2] for name in EXPLORERS]
    first = "from course_lib import runtime\nruntime.choose()"
    cells = [first, *(f"from courseware.explorers import {m}\n{m}.{f}()" for m, f in calls)]
    written = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=authoring.NOTEBOOK_METADATA
    )
    nbformat.write(written, folder / "explorers.ipynb")
    lab.open_notebook(page, address, "explorers.ipynb")
    lab.run_all(page)
    page.locator("div.explorer .pages").nth(len(EXPLORERS) - 1).wait_for()
    yield page
    assert errors == []


def test_in_jupyterlab_no_key_is_lost_that_comes_before_the_answer(notebook):
    tip = notebook.get_by_label("tip of a")
    for key, place in (("ArrowLeft", "-4"), ("ArrowRight", "4"), ("ArrowLeft", "-4")):
        for _ in range(32):
            tip.press(key)
        notebook.wait_for_function("place => document.activeElement.ariaValueNow == place", arg=place)


def test_start_here(jupyterlab):
    page, address, folder, errors = jupyterlab
    lab.copy_not_executed(authoring.NOTEBOOKS / "00_start_here.ipynb", folder)
    lab.open_notebook(page, address, "00_start_here.ipynb")
    lab.run_all(page)
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
    assert errors == []


@pytest.mark.parametrize("name", ["05_online_softmax", "13_variants"])
def test_formulas_are_drawn_and_the_console_stays_quiet(jupyterlab, name):
    """In a lesson with its outputs, as it is committed."""
    page, address, folder, errors = jupyterlab
    shutil.copy(authoring.NOTEBOOKS / f"{name}.ipynb", folder)
    lab.open_notebook(page, address, f"{name}.ipynb")
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
    assert left == errors == []


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
