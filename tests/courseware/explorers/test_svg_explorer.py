"""What the explorers that move in a browser share: the shell, the states written beforehand, the still pictures."""

import builtins
import json
import random
import re
from html import escape

import pytest
from PIL import Image

from courseware.explorers import svg_explorer
from tools import site_explorers

SMALL_BYTES = 400_000


@pytest.fixture(scope="module", params=site_explorers.EXPLORERS)
def explorer(request):
    return site_explorers.explorer(request.param)


@pytest.fixture(scope="module")
def data(explorer):
    """The static data as a page has it."""
    return json.loads(json.dumps(site_explorers.static_data(explorer)))


@pytest.fixture(scope="module")
def pages(explorer, data):
    """Two pieces of a page, of the same explorer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_explorers, "static_data", lambda _: data)  # which takes seconds
        return [site_explorers.static_html(explorer) for _ in range(2)]


def states_of(data):
    """The (settings, state) of each row of static data."""
    n = len(data["names"]["settings"])
    for row in data["rows"]:
        values = [data["values"][index] for index in row]
        yield (
            dict(zip(data["names"]["settings"], values[:n], strict=True)),
            dict(zip(data["names"]["state"], values[n:], strict=True)),
        )


def test_states_written_beforehand_are_the_models(explorer, data):
    every = list(states_of(data))
    for settings, state in random.Random(1).sample(every, 25):
        expected = json.loads(json.dumps(explorer.state(settings)))
        assert expected == state | {"settings": settings}
    assert len({json.dumps(settings) for settings, _ in every}) == len(every), "a setting is written twice"


def test_a_page_offers_what_it_holds(data):
    every = [settings for settings, _ in states_of(data)]
    for control in data["controls"]:
        for _, value in control["options"]:
            assert any(settings[control["name"]] == value for settings in every), control["name"]


def test_a_page_is_small_and_asks_for_nothing(pages, data):
    page = pages[0]
    assert len(page) < SMALL_BYTES
    assert not re.search(r"(src|href)=|import |fetch\(|url\(", page)
    assert json.loads(re.search(r"written\((.*)\), el:", page)[1]) == data


def test_two_of_one_explorer_fit_on_a_page(pages):
    first, second = (set(re.findall(r'id="([^"]+)"', page)) for page in pages)
    assert first and not first & second


def test_the_static_image_is_of_what_is_drawn(explorer):
    """If this fails: python -m tests.browser.static_images"""
    with Image.open(svg_explorer.HERE / f"{explorer.name}.png") as image:
        assert image.text["digest"] == site_explorers.digest(explorer)
        assert image.width == 2 * svg_explorer.STATIC_WIDTH


def test_a_notebook_keeps_the_picture_and_its_words(explorer):
    bundle = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/plain"] == explorer.alt and len(explorer.alt) > 80
    assert f'width="{svg_explorer.STATIC_WIDTH}"' in bundle["text/html"] and escape(explorer.alt) in bundle["text/html"]


def test_without_anywidget_the_picture_stands_still(explorer, monkeypatch):
    import_module = builtins.__import__

    def without(name, *arguments, **options):
        if name == "anywidget":
            raise ImportError(name)
        return import_module(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert explorer._repr_mimebundle_().keys() == {"text/html", "text/plain"}


def test_the_widget_answers_every_change(explorer, data):
    widget = explorer.widget()
    assert widget.state == explorer.state(explorer.start)
    for settings, _ in random.Random(2).sample(list(states_of(data)), 3):
        widget.settings = settings
        assert widget.state == explorer.state(settings)


@pytest.mark.parametrize("path", sorted(svg_explorer.HERE.glob("*.js")), ids=lambda path: path.name)
def test_javascript_computes_places_only(path):
    """No formula of the course: nothing beyond what puts a number of the model on the screen."""
    code = re.sub(r"//.*", "", path.read_text())
    assert set(re.findall(r"Math\.(\w+)", code)) <= {"abs", "ceil", "max", "min", "random", "round", "trunc"}
    assert "**" not in code and not re.search(r"\b(exp|sqrt|softmax)\b", code)
    assert not re.search(r"(?<!u)\d{4}", code), "a number of the model's"


def test_every_colour_of_a_tensor_reaches_the_page():
    sheet, used = svg_explorer.style(), set(re.findall(r"var\(--(\w+)\)", svg_explorer.style()))
    known = set(re.findall(r"--(\w+):", sheet))
    assert used <= known
