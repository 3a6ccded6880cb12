import re
from itertools import product

import ipywidgets as widgets
import numpy as np
import pytest

from course_lib import traffic
from course_lib.explorers import backward_passes as explorer
from course_lib.explorers.figures import png

CASES = [
    (*sizes, causal)
    for sizes, causal in product(
        [(12, 12, 4, 3), (4, 24, 3, 8), (24, 4, 8, 3), (24, 4, 2, 3), (8, 8, 8, 8)], (False, True)
    )
]


def model_of(n_q, n_k, block_q, block_k, causal):
    return explorer.run(n_q, n_k, block_q=block_q, block_k=block_k, causal=causal)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_last_step_is_the_closed_form(case):
    n_q, n_k, block_q, block_k, causal = case
    model = model_of(*case)
    formula = traffic.flash_attention_backward(n_q, n_k, explorer.D, block_q=block_q, block_k=block_k, causal=causal)
    assert {name: tuple(formula.by_tensor[name]) for name in explorer.TENSORS} == model.moved[-1]
    assert model.flops[-1] == formula.flops
    assert len(model.moved) == len(model.flops) == model.n_visits + 1
    assert not any(map(sum, model.moved[0].values())) and model.flops[0] == 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_visit_loads_its_own_tiles(case):
    model = model_of(*case)
    row_bytes = explorer.D * 2
    for step in range(1, model.n_visits + 1):
        index, visit = model.place(step)
        grid = model.passes[index].grid
        i, j = grid.visits[visit - 1]
        rows = {"q": np.ptp(grid.query_rows(i)), "k": np.ptp(grid.key_rows(j))}
        inner, of = (("O", "q"), ("Q", "q"), ("K", "k"))[index]
        before, after = model.moved[step - 1], model.moved[step]
        assert after[inner][0] - before[inner][0] == rows[of] * row_bytes
        assert all(now >= then for name in after for now, then in zip(after[name], before[name], strict=True))
        # Passes do not run into each other.
        assert (after["dK"][1] > 0) <= (index >= 1) and (after["dQ"][1] > 0) <= (index == 2)


def test_the_text_has_the_models_numbers():
    model = model_of(12, 12, 4, 3, True)
    for step in range(model.n_visits + 1):
        text = explorer.describe(model, step)
        assert int(re.search(r"so far: ([\d,]+)", text)[1].replace(",", "")) == sum(
            map(sum, model.moved[step].values())
        )
        assert int(re.search(r"products: ([\d,]+)", text)[1].replace(",", "")) == model.flops[step]
    assert "Visit 0 of 21" in explorer.describe(model, 0) and "3 skipped" in explorer.describe(model, 0)
    assert "Pass 1, delta: delta of queries 8 to 11" in explorer.describe(model, 3)
    assert "keys 0 to 2 stay, queries 0 to 3 pass by" in explorer.describe(model, 4)
    assert "queries 8 to 11 stay, keys 9 to 11 pass by" in explorer.describe(model, 21)
    with pytest.raises(ValueError, match="21 visits"):
        model.place(22)


def test_drawing_shows_the_model(heights):
    model = model_of(12, 12, 4, 3, True)
    *grids, hbm = explorer.draw(model, 6).axes
    assert [axes.get_title(loc="left") for axes in grids] == ["1: delta", "2: dK and dV", "3: dQ"]
    *read_and_written, ends = map(heights, hbm.collections)
    assert list(zip(*read_and_written, strict=True)) == [model.moved[6][name] for name in explorer.TENSORS]
    assert ends == [sum(model.moved[-1][name]) for name in explorer.TENSORS]
    for step in (0, model.n_visits):
        png(explorer.draw(model, step))


def test_figures_show_what_they_are_given():
    matrices = {"P": np.eye(4), "dS": -np.eye(4)}
    panels = explorer.draw_gradient(matrices, "abcd").axes
    assert [float(text.get_text()) for text in panels[1].texts] == (-np.eye(4)).ravel().tolist()
    (axes,) = explorer.draw_products({"forward": ("S", "O"), "backward": ("S again", "dP", "dV")}).axes
    assert [text.get_text() for text in axes.texts] == ["S", "O", "2", "S again", "dP", "dV", "3"]


def controls(widget):
    for child in widget.children:
        if isinstance(child, widgets.Box):
            yield from controls(child)
        else:
            yield child


def test_every_control_changes_text_and_picture():
    shell = explorer.explore()
    text, image = shell.children[-2:]

    def named(name):
        return next(c for c in controls(shell) if getattr(c, "description", "") == name)

    for name, value in (("visit", 5), ("causal", False), ("queries", 24), ("keys", 8), ("block_q", 8), ("block_k", 2)):
        before = text.value, image.value
        named(name).value = value
        assert text.value != before[0] and image.value != before[1], name
    named("visit").value = named("visit").max
    named("block_k").value = 8  # fewer visits than before: the slider comes along
    assert named("visit").value == named("visit").max
    assert f"Visit {named('visit').max} of {named('visit').max}" in text.value
