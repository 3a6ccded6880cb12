"""What holds for every explorer: each setting has a page, quick, complete and legible; with and without a kernel."""

import base64
import gzip
import json
import random
import re
import sys
import time
from xml.etree import ElementTree

import nbformat
import pytest

from courseware.explorers import svg
from courseware.explorers.explorer import AT_END, SCRIPT, Explorer, slider, tick
from courseware.explorers.svg import Page, style
from tools import authoring

from .conftest import every_explorer, tips

MAX_PAGE_S, MAX_STATIC_BYTES = 0.2, 600_000


@pytest.fixture(scope="module")
def explorer(request):
    return request.param()


@pytest.fixture(scope="module")
def data(explorer):
    """The static data as a page has it."""
    return json.loads(json.dumps(explorer.static_data()))


def test_every_option_of_every_control_changes_the_page_quickly(explorer):
    first = explorer.state()
    settings = first["settings"]
    for control in explorer.controls:
        name, pages = control["name"], {first["html"]}
        assert settings[name] in [value for _, value in control["options"]], f"{name} starts at none of its options"
        for _, value in control["options"]:
            state, least_s = {}, 10.0
            for _ in range(3):
                start = time.process_time()
                state = explorer.state(settings | {name: value})
                least_s = min(least_s, time.process_time() - start)
                if least_s < MAX_PAGE_S:
                    break
            assert least_s < MAX_PAGE_S, f"{name} = {value} takes {least_s:.2f} s"
            assert_legible(state["html"])
            assert json.loads(json.dumps(state)) == state, "JSON cannot hold it"
            pages.add(state["html"])
        elsewhere = random.Random(3).sample(explorer.written, min(60, len(explorer.written)))
        assert len(pages) > 1 or any(
            len({explorer.state(there | {name: value})["html"] for _, value in control["options"]}) > 1
            for there in elsewhere
        ), f"{name} changes nothing"


def assert_legible(html):
    for drawing in re.findall("<svg.*?</svg>", html):
        ElementTree.fromstring(drawing)
        assert not re.search(r'="[^"]*\b(nan|inf)\b', re.sub('data-tip="[^"]*"|data-choose="[^"]*"', "", drawing))
        assert set(re.findall(r"[a-zA-Z-]+", " ".join(re.findall('class="([^"]*)"', drawing)))) <= set(
            re.findall(r"\.([a-zA-Z-]+)", style())
        ), "a class that the style sheet does not have"


def test_what_can_be_clicked_or_dragged_sets_a_setting(explorer):
    state = explorer.state()
    for chosen in re.findall('data-choose="([^"]*)"', state["html"]):
        change = json.loads(chosen.replace("&quot;", '"'))
        assert change.keys() <= state["settings"].keys()
        explorer.state(state["settings"] | change)
    for moves in re.findall('data-moves="([^"]*)"', state["html"]):
        for name, index, low, high, *_ in json.loads(moves.replace("&quot;", '"')).values():
            assert low <= state["settings"][name][index] <= high
    for name in state["ends"]:
        at_end = explorer.state({name: AT_END})
        assert at_end["settings"][name] == at_end["ends"][name]


def shown(state, data):
    """A state of the static data as explorer.js shows it."""
    return state | {"html": "".join(data["pieces"][piece] for piece in state["html"])}


def test_states_written_beforehand_and_the_widgets_are_the_models(explorer, data):
    settings = [json.dumps(state["settings"]) for state in data["states"]]
    assert len(set(settings)) == len(settings) > 1, "a setting is written twice, or only one"
    assert data["start"] in [state["settings"] for state in data["states"]]
    widget = explorer.widget()
    assert widget.state == explorer.state()
    for i, state in enumerate(random.Random(1).sample(data["states"], min(15, len(settings)))):
        assert explorer.state(state["settings"]) == shown(state, data)
        if i < 2:
            widget.settings = state["settings"] | {"at": i}
            assert widget.state == shown(state, data) | {"at": i}
    for control in data["controls"]:
        found = [state["settings"][control["name"]] for state in data["states"]]
        assert all(value in found for _, value in control["options"]), control["name"]


def test_a_page_without_a_kernel_asks_for_nothing(explorer, data, monkeypatch):
    monkeypatch.setattr(explorer, "static_data", lambda: data)  # which takes seconds
    page = explorer.static_html("here")
    assert not re.search(r"(src|href)=|import |fetch\(|url\((?!#)", page)
    assert len(page) < MAX_STATIC_BYTES
    assert json.loads(gzip.decompress(base64.b64decode(re.search(r'unpacked\("(.*)"\)', page)[1]))) == data
    assert re.findall(r'<div id="([^"]+)"', page) == ["here"]


def test_a_notebook_keeps_images_and_words(explorer, monkeypatch):
    bundle = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert len(bundle["text/plain"]) > 60 and bundle["text/html"].count("<img alt=")
    assert all(alt for alt in re.findall('<img alt="([^"]*)"', bundle["text/html"]))
    monkeypatch.setitem(sys.modules, "anywidget", None)  # cannot be imported
    assert explorer._repr_mimebundle_().keys() == {"text/html", "text/plain"}


def test_lessons_show_every_explorer():
    """A page of the site finds them by what the last line of such a cell calls."""
    found = set()
    for path in authoring.NOTEBOOKS.glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        code = "\n".join(cell.source for cell in cells)
        imports = " ".join(re.findall(r"from courseware\.explorers import (.*)", code))
        modules = {alias: module for module, alias in re.findall(r"(\w+) as (\w+)", imports)}
        for cell in cells:
            if "explorer" in cell.metadata.get("tags", []):
                module, _, call = cell.source.splitlines()[-1].partition(".")
                found.add(f"{modules.get(module, module)}.{call.removesuffix('()')}")
    assert found == every_explorer().keys()


def test_javascript_computes_places_only_and_the_style_sheet_defines_its_colours():
    code = re.sub(r"//.*", "", SCRIPT)
    assert set(re.findall(r"Math\.(\w+)", code)) <= {"abs", "ceil", "max", "min", "random", "round"}
    assert f"{AT_END:.0e}".replace("+0", "") in code
    assert set(re.findall(r"var\(--([\w-]+)\)", style())) <= set(re.findall(r"--([\w-]+):", style()))


def test_a_text_on_a_colour_can_be_read():
    """White or black, as the style sheet has it: a contrast of 4.5, by WCAG 2.2's formula."""
    [black] = re.findall(r":is\((.*)\)\.on-colour \{ fill: #000", style())
    for name, colour in svg.COLOURS.items():
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminance = sum(c * weight for c, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True)) + 0.05
        assert (luminance / 0.05 if f".{name}" in black.split(", ") else 1.05 / luminance) >= 4.5, name


def test_ends_settle_and_written_states():
    """A slider is cut off at its end, settings that do not go together are changed, and a page sees the result."""
    made = Explorer(
        lambda size, step, odd: Page("A step.", text=f"{step} of {size}"),
        {"size": slider("size", (3, 4)), "step": slider("step", range(5), 2, play=True), "odd": tick("odd")},
        ends={"step": lambda size, **_: size}, settle=lambda size, **_: {"odd": size % 2 == 1},
        written={"size": (3, 4), "step": (0, 3, 4)},
    )  # fmt: skip
    state = made.state({"size": 4, "step": AT_END})
    assert state["settings"] == {"size": 4, "step": 4, "odd": False} and state["ends"] == {"step": 4}
    assert "4 of 4" in state["html"] and made.state()["settings"]["odd"]
    assert [s["step"] for s in made.written] == [0, 3, 0, 3, 4], "4 steps of 3 are all 3, which are written once"
    assert [c["name"] for c in made.static_data()["controls"]] == ["size", "step", "odd"]


def panel_of(**options):
    return svg.Panel("A title", 200, 100, (0, 10), (0, 4), margins=(40, 10, 10, 20), **options)


def test_places_are_the_datas_and_a_shape_says_what_it_is():
    panel = panel_of(x_ticks=(0, (10, "ten")), y_ticks=[(4, "four")])
    assert [panel.x(0), panel.x(10), panel.x(5)] == [40, 190, 115]
    assert [panel.y(0), panel.y(4)] == [80, 10], "the y axis points up"
    assert svg.Panel("", 200, 100, (1, 100), (0, 1), log="x", margins=(0, 0, 0, 0)).x(10) == 100
    panel.rect((10, 5), (2, 0), "Q", tip='a & "b" < c', choose={"a": 1})
    panel.line([(0, 0), (5, 2), (10, 4)], "Q")
    drawn = ElementTree.fromstring(re.search("<svg.*</svg>", panel.html())[0])
    about = drawn.find("rect").attrib
    assert [float(about[name]) for name in ("x", "y", "width", "height")] == [115, 45, 75, 35]
    assert about["data-tip"] == 'a & "b" < c' and json.loads(about["data-choose"]) == {"a": 1}
    assert drawn.findall("path")[-1].attrib["d"] == "M40.0 80.0L115.0 45.0L190.0 10.0"
    assert ">ten<" in panel.html() and ">four<" in panel.html()
    assert panel.image().startswith('<img alt="A title" class="drawn" src="data:image/svg+xml')


def test_neighbouring_cells_of_one_kind_are_one_unless_something_is_said_of_each():
    panel, said = panel_of(), panel_of()
    panel.cells([["Q", "Q", "K"], ["", "Q", "Q"]])
    said.cells([["Q", "Q"]], tips=lambda i, j: f"{i} {j}")
    assert panel.html().count("<rect") == 3 and tips(said) == ["0 0", "0 1"]


def test_parts_of_a_bar_lie_end_to_end_before_its_note():
    panel = panel_of()
    panel.stacked({"all": ([("first", 6, "Q"), ("", 2, "K")], "8 of them")})
    x, width = (list(map(float, re.findall(rf'<rect [^>]*\b{of}="([\d.]+)"', panel.html()))) for of in ("x", "width"))
    assert x == [panel.x(0), panel.x(6)] and width == [90, 30]
    assert float(re.search(r'x="([\d.]+)"[^>]*>8 of them', panel.html())[1]) == panel.x(8) + 5
