import inspect
import json
import re
from html import unescape
from importlib import import_module
from pathlib import Path

from courseware import explorers


def every_explorer():
    """{"module.function": the function that makes an explorer}, as they lie in courseware/explorers."""
    found = {}
    for path in sorted(Path(explorers.__file__).parent.glob("*.py")):
        module = import_module(f"courseware.explorers.{path.stem}" if path.stem != "__init__" else explorers.__name__)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("explore") and function.__module__ == module.__name__:
                found[f"{path.stem}.{name}"] = function
    return found


def pytest_generate_tests(metafunc):
    if "explorer" in metafunc.fixturenames:
        explorers = every_explorer()
        metafunc.parametrize("explorer", explorers.values(), ids=explorers, indirect=True, scope="module")


def shapes(page):
    """The attributes, as texts by name, of each shape of a page or a panel that says something, in their order."""
    found = re.findall(r"<\w+ ([^<>]*data-tip=[^<>]*)>", page.html())
    return [{name: unescape(text) for name, text in re.findall(r'([\w-]+)="([^"]*)"', one)} for one in found]


def cells_of(page):
    """[(class, tip, what a click chooses)] of the shapes of a page, most of which are cells."""
    return [(one["class"].removeprefix("cell "), one["data-tip"], json.loads(one.get("data-choose", "{}")))
            for one in shapes(page)]  # fmt: skip


def tips(page, pattern=""):
    """What the shapes say whose tip begins with a regular expression: the rest of each tip."""
    found = (re.match(f"(?:{pattern})(.*)", shape["data-tip"]) for shape in shapes(page))
    return [match[1] for match in found if match]


def numbers(text):
    """The numbers in a text, some with commas between thousands, in their order; inf and nan among them."""
    found = re.findall(r"-?(?:\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|\b(?:inf|nan)\b)", text)
    return [float(number.replace(",", "")) for number in found]
