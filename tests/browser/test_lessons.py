"""What only a browser shows of a lesson: explorers answer the keyboard, formulas are drawn, the console stays quiet.

Numbers and pictures of explorers are tested in tests/courseware/explorers, other cells of lessons in tests/notebooks.
"""

import re

import lab
import nbformat
import pytest

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
def browser():
    with lab.chromium() as context:
        yield context


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


def keyboard(page, explorer):
    """`press(control, *keys)` presses keys, waits until text and figure have both changed, and returns the new text.

    It waits for the first change only, so the keys of one call must change the explorer once.
    """
    from playwright.sync_api import expect

    text, image = explorer.locator(".widget-html-content").last, explorer.locator("img")

    def press(control, *keys):
        before = text.inner_text(), image.get_attribute("src")
        control.focus()
        for key in keys:
            page.keyboard.press(key)
        page.wait_for_function(
            """([text, image, [oldText, oldSource]]) => text.innerText != oldText
                && image.getAttribute("src") != oldSource && image.complete && image.naturalWidth > 0""",
            arg=[text.element_handle(), image.element_handle(), before],
        )
        expect(control).to_be_focused()  # it waits: a picture gives a cell its focus back once it has been redrawn
        return text.inner_text()

    return press


def said_by(place):
    """What a place of a picture says while one points at it, and nothing before."""
    said = "node => getComputedStyle(node, '::after').content"
    assert place.evaluate(said) == "none"
    place.hover()
    return place.evaluate(said)


def centre(shape):
    box = shape.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


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


def test_dot_products(open_lesson):
    page = open_lesson("01_dot_products")

    pair, crowd = page.locator(".svg-explorer").first, page.locator(".jp-OutputArea .widget-vbox", has_text="scale")
    press_crowd = keyboard(page, crowd)
    tip = pair.locator("circle.a")
    assert "36.9\u00b0" in pair.inner_text()
    tip.focus()
    page.keyboard.press("ArrowRight")
    pair.get_by_text("31.4\u00b0").wait_for()
    assert tip.evaluate("node => node == document.activeElement"), "the focus stays with the tip"
    page.mouse.move(*centre(tip))
    page.mouse.down()
    page.mouse.move(*centre(pair.locator("circle.b")))
    page.mouse.up()
    pair.get_by_text("1.000").wait_for()  # the cosine

    (d,) = crowd.locator(".noUi-handle").all()
    none, root, inverse = crowd.locator(".widget-toggle-button").all()
    assert "d = 64, scale 1 (no scale)" in crowd.inner_text()
    assert "d = 128, scale 1 (no scale)" in press_crowd(d, "ArrowRight")
    assert "d = 128, scale 1/sqrt(d)" in press_crowd(root, "Enter")
    assert "d = 128, scale 1/d" in press_crowd(inverse, "Enter")
    assert "d = 128, scale 1 (no scale)" in press_crowd(none, "Enter")
    assert "d = 64, scale 1 (no scale)" in press_crowd(d, "ArrowLeft")


def test_online_softmax(open_lesson):
    page = open_lesson("05_online_softmax")

    explorer = page.locator(".svg-explorer").first
    fed, block = explorer.get_by_label("blocks fed"), explorer.get_by_label("block size")
    assert "Block 3 of 4: sat." in explorer.inner_text()
    explorer.get_by_label("stream").select_option("12 random keys")
    explorer.get_by_text("Block 3 of 12: 3.").wait_for()
    explorer.get_by_label("order").select_option("descending")
    block.press("ArrowRight")
    explorer.get_by_text("Block 3 of 6").wait_for()
    fed.press("End")
    assert "Block 6 of 6" in explorer.inner_text() and fed.evaluate("node => node == document.activeElement")
    explorer.get_by_text("at every step").click()
    explorer.get_by_text("carried: output").wait_for()
    explorer.get_by_label("stream").select_option("the sentence")
    explorer.get_by_label("order").select_option("as given")
    explorer.get_by_label("score of the").press("ArrowUp")
    explorer.locator("[aria-valuetext='1.250']").wait_for()
    explorer.get_by_label("score of the").press("ArrowRight")  # to the second place
    fed.press("Home")
    fed.press("ArrowRight")
    explorer.get_by_text("Block 1 of 2: cat, the.").wait_for()


def test_softmax_overflow(open_lesson):
    page = open_lesson("02_softmax_overflow")

    explorer = page.locator(".jp-OutputArea .widget-vbox").first
    press = keyboard(page, explorer)
    the, cat, sat, down, shift = explorer.locator(".noUi-handle").all()

    # All are shifted by 8.
    assert "True softmax of (9.25, 10, 11, 12)" in press(the, "ArrowRight")
    assert "True softmax of (9.25, 9.75, 11, 12)" in press(cat, "ArrowLeft")
    assert "True softmax of (9.25, 9.75, 11.25, 12)" in press(sat, "ArrowRight")
    text = press(down, "End")  # 28: beyond float16
    assert "(9.25, 9.75, 11.25, 28)" in text and text.count("NaN: exp overflows") == 1
    assert press(shift, "End").count("NaN: exp overflows") == 3
    assert "NaN: every exp is 0" in press(shift, "Home")


def test_stable_softmax(open_lesson):
    page = open_lesson("03_stable_softmax")

    explorer = page.locator(".jp-OutputArea .widget-vbox").first
    press = keyboard(page, explorer)
    logits, dtype, arithmetic = explorer.locator("select").all()
    spread, shift, step = explorer.locator(".noUi-handle").all()
    naive, stable, lse = explorer.locator(".widget-toggle-button").all()

    assert "Step 6 of 6 (stable)" in explorer.inner_text()
    assert "Not finite" in press(naive, "Enter")
    assert "Largest error" in press(shift, "ArrowLeft")
    assert "Step 6 of 6 (stable)" in press(stable, "Enter")
    assert "Step 5 of 6 (stable)" in press(step, "ArrowLeft")
    assert "Largest error" in press(step, "ArrowRight")
    # Random numbers, which float16 rounds by more than a pixel at this shift; small whole numbers it does not round.
    press(logits, "Space", "ArrowDown", "ArrowDown", "ArrowDown", "Enter")
    assert "float16" in press(dtype, "Space", "ArrowUp", "Enter")
    press(spread, "ArrowRight")
    assert "float32" not in press(arithmetic, "Space", "ArrowDown", "Enter")
    assert "Step 8 of 8 (log-sum-exp)" in press(lse, "Enter")
    assert "-inf" in press(logits, "Space", "ArrowUp", "ArrowUp", "Enter")
    assert "(naive)" in press(naive, "Enter")


def test_attention(open_lesson):
    page = open_lesson("04_attention")

    explorer = page.locator(".jp-OutputArea .widget-vbox").first
    press = keyboard(page, explorer)
    n, d, heads = explorer.locator(".noUi-handle").all()
    fp16, fp32 = explorer.locator(".widget-toggle-button").all()
    (gpu,) = explorer.locator("select").all()

    assert "N = 32,768, d = 64, 16 heads, fp16" in explorer.inner_text()
    text = press(n, "End")
    assert "N = 131,072" in text and "does not fit" in text
    assert "N = 100,000" in press(n, "ArrowLeft")
    assert "d = 128" in press(d, "ArrowRight")
    assert "8 heads" in press(heads, "ArrowLeft")
    assert "fp32" in press(fp32, "Enter")
    assert "of one RTX 4090" in press(gpu, "Space", "ArrowDown", "Enter")
    assert "fp16" in press(fp16, "Enter")
    assert "which fits in" in press(n, "Home")


def move_every_control(explorer):
    """The block-size explorer: each control, and what it must then say."""
    headline, said = explorer.locator(".headline"), explorer.locator("p").first
    steps = [
        ("B_r", lambda control: control.press("ArrowRight"), "75.5 MB"),
        ("B_c", lambda control: control.press("ArrowLeft"), "32 of 227 KiB"),
        ("GPU", lambda control: control.select_option("A100"), "of 163 KiB"),
        ("N", lambda control: control.select_option("4,095"), "1.11 GB"),
        ("d", lambda control: control.select_option("128"), "2.21 GB"),
        ("dtype", lambda control: control.select_option("fp32"), "8.85 GB"),
        ("heads x batch", lambda control: control.select_option("64"), "17.7 GB"),
        ("keys outermost (FA1)", lambda control: control.check(), "of 64 programs"),
        ("causal", lambda control: control.check(), "27.2 GB"),
        ("queries outermost (FA2)", lambda control: control.check(), "of 2,048 programs"),
    ]
    for name, move, expected in steps:
        before = headline.inner_text()
        move(explorer.get_by_label(name, exact=True))
        headline.get_by_text(expected).wait_for()
        assert headline.inner_text() != before, name
    visits = explorer.get_by_label("visits")
    visits.press("Home")
    assert "Nothing visited yet" in said.inner_text()
    visits.press("ArrowRight")
    assert "queries 0 to 127 and keys 0 to 31: visit 1, reads Q 65,536" in said.inner_text()
    explorer.get_by_role("button", name="play").press("Enter")
    explorer.get_by_text(re.compile("visit [3-9],|visit [0-9]{2,},")).wait_for()
    explorer.locator("summary").press("Enter")
    assert "registers a thread" in explorer.locator("details").inner_text()


def test_block_size_explorer(open_lesson):
    page = open_lesson("block_size_explorer")
    move_every_control(page.locator(".svg-explorer").first)


def test_block_size_explorer_as_a_page(browser, tmp_path):
    """As the README starts it, with Voila: without JupyterLab, and no code is visible."""
    with lab.voila(authoring.NOTEBOOKS / "block_size_explorer.ipynb", tmp_path) as address:
        page = browser.new_page()
        errors = console_errors(page, HARMLESS_IN_VOILA)
        page.goto(address)
        explorer = page.locator(".svg-explorer").first
        explorer.wait_for(timeout=60_000)
        explorer.get_by_label("B_r").press("ArrowRight")
        explorer.get_by_text("75.5 MB").first.wait_for()
        assert "block_sizes.explore()" not in page.locator("body").inner_text()
        assert errors == []


def test_flash_attention_backward(open_lesson):
    page = open_lesson("09_flash_attention_backward")

    explorer = page.locator(".jp-OutputArea .widget-vbox").first
    press = keyboard(page, explorer)
    (causal,) = explorer.locator("input[type=checkbox]").all()
    queries, keys, block_q, block_k, visit = explorer.locator(".noUi-handle").all()

    assert "Visit 8 of 21" in explorer.inner_text() and "keys 3 to 5 stay" in explorer.inner_text()
    assert "keys 3 to 5 stay, queries 8 to 11 pass by" in press(visit, "ArrowRight")
    assert "Visit 9 of 27" in press(causal, "Space")
    assert "Visit 9 of 21" in press(explorer.locator(".noUi-handle").nth(3), "ArrowRight")
    assert "Visit 9 of 14" in press(explorer.locator(".noUi-handle").nth(2), "ArrowRight")
    assert "3 for delta, 9 for dK and dV" in press(queries, "ArrowRight")
    assert "3 for delta, 12 for dK and dV, 12 for dQ" in press(keys, "ArrowRight")
    assert "Visit 27 of 27" in press(explorer.locator(".noUi-handle").last, "End")
    assert "Nothing done yet" in press(explorer.locator(".noUi-handle").last, "Home")


def test_tiled_attention(open_lesson):
    page = open_lesson("06_tiled_attention")

    explorer = page.locator(".svg-explorer").first
    said = explorer.locator("p").first
    assert "visit 5, reads Q 64, K 48, V 48 bytes" in said.inner_text()
    explorer.get_by_label("visits").press("ArrowRight")
    assert "q_outer: queries 4 to 7 and keys 3 to 5: visit 6" in said.inner_text()
    explorer.get_by_label("kv_outer").check()
    explorer.get_by_text("kv_outer: queries 8 to 11 and keys 3 to 5: visit 6").wait_for()
    for name, key, expected in (
        ("causal", "Space", "of 9"),
        ("block_k", "ArrowRight", "of 6"),
        ("block_q", "ArrowRight", "of 5"),
        ("queries", "ArrowRight", "of 6"),
        ("keys", "ArrowRight", "of 9"),
    ):
        explorer.get_by_label(name, exact=True).press(key)
        explorer.locator(".player").get_by_text(expected).wait_for()


def test_first_triton_kernels(open_lesson):
    page = open_lesson("07_first_triton_kernels")

    explorer = page.locator(".jp-OutputArea .widget-vbox").first
    press = keyboard(page, explorer)
    columns, rows, block_n, block_m, pid_1, pid_0 = explorer.locator(".noUi-handle").all()
    one, two = explorer.locator(".widget-toggle-button").all()

    assert "Program (2, 2) of a grid of 3 x 3" in explorer.inner_text()
    assert "Program 2 of a grid of 3" in press(one, "Enter")
    assert "offsets 4 to 7" in press(pid_1, "ArrowLeft")
    assert "offsets 8 to 15" in press(block_n, "ArrowRight")
    assert "3 inside the tensor, 5 masked off" in press(columns, "ArrowRight")
    assert "rows 4 to 5, columns 8 to 15" in press(two, "Enter")
    assert "rows 2 to 3" in press(pid_0, "ArrowLeft")
    assert "Program (1, 1) of a grid of 2 x 2: rows 4 to 7" in press(block_m, "ArrowRight")
    assert "8 masked off" not in press(rows, "ArrowRight")


def test_flash_attention_forward(open_lesson):
    page = open_lesson("08_flash_attention_forward")

    explorer = page.locator(".jp-OutputArea .widget-vbox").first
    press = keyboard(page, explorer)
    n_q, n_k, block_m, block_n, program, tile = explorer.locator(".noUi-handle").all()
    (causal,) = explorer.locator("input[type=checkbox]").all()

    assert "Tile 2 of tiles 0 to 3, keys 8 to 11: masked" in explorer.inner_text()
    first = explorer.get_by_label("Tile 0")
    assert said_by(first) == '"Tile 0, keys 0 to 3: no mask"'
    first.click()
    explorer.get_by_text("Tile 0 of tiles 0 to 3").wait_for()
    assert tile.get_attribute("aria-valuenow") == "0.0"
    explorer.get_by_label("Program 0").click()
    explorer.get_by_text("queries 0 to 3").wait_for()
    explorer.get_by_label("Program 1").focus()
    page.keyboard.press("Enter")
    explorer.get_by_text("queries 4 to 7").wait_for()
    explorer.locator(".widget-play button").first.click()
    explorer.get_by_text("Tile 3 of tiles 0 to 3").wait_for()
    explorer.get_by_label("Tile 2").click()
    explorer.get_by_text("Tile 2 of tiles 0 to 3").wait_for()
    assert "Tile 3 of tiles 0 to 3, keys 12 to 12: not visited" in press(tile, "ArrowRight")
    assert "full_end = 12, kv_end = 13" in press(causal, "Space")
    assert "queries 8 to 9" in press(program, "ArrowRight")
    assert "full_end = 16" in press(n_k, "ArrowRight")
    assert "queries 8 to 11" in press(n_q, "ArrowRight")
    assert "Tile 2 of tiles 0 to 2" in press(block_n, "ArrowRight")
    assert "queries 12 to 12" in press(block_m, "ArrowRight")


def test_performance(open_lesson):
    page = open_lesson("10_performance")

    explorer = page.locator(".jp-OutputArea .widget-vbox", has=page.locator("select")).first
    press = keyboard(page, explorer)
    n, d, block_q = explorer.locator(".noUi-handle").all()
    requested, once, dram = explorer.locator(".widget-toggle-button").all()
    (gpu,) = explorer.locator("select").all()
    (causal,) = explorer.locator("input[type=checkbox]").all()

    assert "Faster than HBM delivers these bytes: this course; PyTorch, cuDNN" in explorer.inner_text()
    ours = "this course, N = 4,096, d = 128, full: 593 TFLOP/s measured, at 124.1 FLOPs a byte, bytes requested"
    assert said_by(explorer.get_by_label("this course")) == f'"{ours}"'
    assert "The arithmetic binds: at most 989 TFLOP/s" in press(once, "Enter")
    assert "N = 16,384, d = 128, full" in press(n, "ArrowRight")
    assert "N = 16,384, d = 64, full" in press(d, "ArrowLeft")
    assert "requested with 128 queries a tile" in press(requested, "Enter")
    assert "requested with 64 queries a tile" in press(block_q, "ArrowLeft")
    assert "d = 64, causal" in press(causal, "Space")
    assert "nothing is measured here" in press(gpu, "Space", "ArrowDown", "Enter")
    assert "no counter was read" in press(dram, "Enter")
    assert explorer.get_by_label("measured, at").count() == 0


def test_a_click_enlarges_a_picture_that_a_narrow_page_has_made_small(open_lesson):
    page = open_lesson("10_performance")
    picture = page.locator(".widget-gridbox").first
    image, place = picture.locator("img"), {"position": {"x": 60, "y": 10}}
    wide = page.viewport_size
    page.set_viewport_size(wide | {"width": 600})
    page.wait_for_function("image => image.clientWidth < 560", arg=image.element_handle())
    picture.click(**place)
    assert image.evaluate("image => image.clientWidth") == 960 > picture.evaluate("box => box.clientWidth")
    picture.click(**place)
    assert image.evaluate("image => image.clientWidth") < 560
    page.set_viewport_size(wide)


def test_making_it_fast(open_lesson):
    page = open_lesson("11_making_it_fast")

    explorer = page.locator(".jp-OutputArea .widget-vbox", has=page.locator("select")).first
    press = keyboard(page, explorer)
    (n,) = explorer.locator(".noUi-handle").all()
    _, h200 = explorer.locator(".widget-toggle-button").all()
    (rung,) = explorer.locator("select").all()
    (causal,) = explorer.locator("input[type=checkbox]").all()

    assert "64 tiles of keys each" in explorer.inner_text()
    assert "16 tiles of keys each" in press(n, "ArrowLeft")
    assert "8.5 tiles of keys each" in press(causal, "Space")
    assert "measured 1.19" in press(h200, "Enter")
    assert "128 queries: Tiles of 128 x 64" in press(rung, "Space", "ArrowDown", "Enter")


def test_hopper(open_lesson):
    page = open_lesson("15_hopper")

    explorer = page.locator(".jp-OutputArea .widget-vbox", has=page.locator("select")).first
    press = keyboard(page, explorer)
    consumers, stages, d, keys = explorer.locator(".noUi-handle").all()
    (rung,) = explorer.locator("select").all()

    assert "2,048 cycles for 128 query rows" in explorer.inner_text()
    assert "for 64 query rows" in press(consumers, "Home")
    assert "for 128 query rows" in press(consumers, "End")
    assert "busy 94%" in press(stages, "Home")
    assert "320 KiB of 227 KiB: it does not fit" in press(stages, "End")
    assert "busy 91%" in press(d, "Home")
    assert "100%" in press(d, "End")
    assert "1,024 cycles" in press(keys, "Home")
    assert "1 group that computes" in press(rung, "Space", "ArrowUp", "Enter")


def test_cuda(open_lesson):
    page = open_lesson("12_cuda")

    explorer = page.locator(".jp-OutputArea .widget-vbox").first
    press = keyboard(page, explorer)
    (mapping,) = explorer.locator("select").all()
    columns, padding, lane_loads, step = explorer.locator(".noUi-handle").all()

    assert "32 passes, 31 of them conflicts" in explorer.inner_text()
    assert "1 pass, no conflict" in press(padding, "ArrowRight")
    assert "2 passes, 1 of them a conflict" in press(padding, "ArrowRight")
    assert "4 passes, 3 of them conflicts" in press(padding, "ArrowRight")
    assert "rows of 64 and 4 of padding" in press(columns, "ArrowRight")
    assert "4 passes, 2 of them conflicts" in press(lane_loads, "ArrowRight")
    assert "4 passes, no conflict" in press(lane_loads, "ArrowRight")
    assert "step 2 of 16" in press(explorer.locator(".noUi-handle").nth(3), "ArrowRight")
    text = press(mapping, "Space", *3 * ["ArrowDown"], "Enter")
    assert "row lane // 2 % 8" in text and "2 passes, no conflict" in text
    assert "misaligned address" in press(padding, "ArrowLeft")
    assert "2 passes, no conflict" in press(padding, "ArrowRight")
    play = explorer.get_by_role("button").first
    play.click()
    explorer.get_by_text(re.compile("step ([4-9]|1[0-6]) of 16")).wait_for()
    play.click()  # left playing, it would go on sending to a notebook that the next test has closed


def test_variants(open_lesson):
    page = open_lesson("13_variants")

    explorer = page.locator(".jp-OutputArea .widget-vbox", has=page.locator("[data-chosen]")).first
    press = keyboard(page, explorer)
    (start,) = explorer.locator("select").all()
    _, block_k = explorer.locator(".noUi-handle").all()
    last_of_first_row = explorer.locator("[data-chosen]").nth(11)

    assert "6 of 9 tiles" in explorer.inner_text()
    assert "query 0, key 11: in a tile that is skipped" in said_by(last_of_first_row)
    assert "7 of 9 tiles" in press(last_of_first_row, "Enter")
    assert "6 of 6 tiles" in press(block_k, "ArrowRight")
    assert "5 of 6 tiles" in press(last_of_first_row, "Enter")
    assert "6 of 6 tiles" in press(last_of_first_row, "Enter")
    of_the_window = re.compile(r"pairs that are visible\s+0\s+42\s+0\s+42")
    assert of_the_window.search(press(start, "Space", "ArrowDown", "Enter")), "what was painted is gone"
