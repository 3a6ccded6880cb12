"""One colour for one tensor, in every picture: `figures.TENSOR_COLOURS` is the only place that gives one."""

import ast
from pathlib import Path

import pytest

from courseware.explorers import figures

MODULES = [path for path in Path(figures.__file__).parent.glob("*.py") if path.name != "figures.py"]
PALETTE = {name for name, value in vars(figures).items() if name.isupper() and str(value).startswith("#")}


def is_colour(node):
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.startswith("#")
    return isinstance(node, ast.Name) and node.id in PALETTE


def own_colours(source):
    """Tensors that a module pairs with a colour: as a dictionary's key and value, or side by side in a tuple."""
    found = []
    for node in ast.walk(ast.parse(source)):
        pairs = []
        if isinstance(node, ast.Dict):
            pairs = [(key, value) for key, value in zip(node.keys, node.values, strict=True)]
        elif isinstance(node, ast.Tuple):
            pairs = [(one, other) for one in node.elts for other in node.elts]
        for key, value in pairs:
            if isinstance(key, ast.Constant) and key.value in figures.TENSOR_COLOURS and is_colour(value):
                found.append(key.value)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_picture_gives_a_tensor_a_colour_of_its_own(path):
    assert own_colours(path.read_text()) == []


def test_colours_of_its_own_are_found():
    assert own_colours('COLOURS = {"Q": BLUE, "tile": ORANGE}') == ["Q"]
    assert own_colours('bars = [("dO", 3, "#123456"), ("four tiles", 2, GREY)]') == ["dO"]


def test_every_tensor_has_a_colour_to_itself():
    assert len(set(figures.TENSOR_COLOURS.values())) == len(figures.TENSOR_COLOURS)
