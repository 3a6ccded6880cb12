import re
from itertools import product

import numpy as np

from course_lib import traffic
from courseware.explorers import backward_passes as explorer
from courseware.explorers import drawing
from courseware.explorers.figures import png

CASES = [
    (*sizes, causal)
    for sizes, causal in product(
        [(12, 12, 4, 3), (4, 24, 3, 8), (24, 4, 8, 3), (24, 4, 2, 3), (8, 8, 8, 8)], (False, True)
    )
]


def model_of(n_q, n_k, block_q, block_k, causal):
    return explorer.run(n_q, n_k, block_q=block_q, block_k=block_k, causal=causal)


def test_the_last_step_is_the_closed_form():
    for case in CASES:
        n_q, n_k, block_q, block_k, causal = case
        sizes = {"block_q": block_q, "block_k": block_k, "causal": causal}
        model = model_of(*case)
        formula = traffic.flash_attention_backward(n_q, n_k, explorer.D, **sizes)
        assert {name: tuple(formula.by_tensor[name]) for name in explorer.TENSORS} == model.moved[-1], case
        assert model.flops[-1] == formula.flops, case
        assert len(model.moved) == len(model.flops) == model.n_visits + 1, case
        assert not any(map(sum, model.moved[0].values())) and model.flops[0] == 0, case


def test_each_visit_loads_its_own_tiles():
    row_bytes = explorer.D * 2
    for case in CASES:
        model = model_of(*case)
        for step in range(1, model.n_visits + 1):
            name, visit = model.places[step - 1]
            grid, index = model.grids[name], list(model.grids).index(name)
            i, j = grid.visits[visit - 1]
            rows = {"q": np.ptp(grid.tiles.query_rows[i]), "k": np.ptp(grid.tiles.key_rows[j])}
            inner, of = (("O", "q"), ("Q", "q"), ("K", "k"))[index]
            before, after = model.moved[step - 1], model.moved[step]
            assert after[inner][0] - before[inner][0] == rows[of] * row_bytes, (case, step)
            for name in after:
                assert after[name][0] >= before[name][0] and after[name][1] >= before[name][1], (case, step, name)
            # A pass stores nothing before the pass ahead of it is done.
            assert (after["dK"][1] > 0) <= (index >= 1) and (after["dQ"][1] > 0) <= (index == 2), (case, step)


def test_the_text_has_the_numbers_of_the_model():
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


def test_drawing_shows_the_model(heights):
    model = model_of(12, 12, 4, 3, True)
    *grids, hbm = explorer.draw(model, 6).axes
    assert [axes.get_title(loc="left") for axes in grids] == ["1: delta", "2: dK and dV", "3: dQ"]
    *read_and_written, ends = map(heights, hbm.containers)
    assert list(zip(*read_and_written, strict=True)) == [model.moved[6][name] for name in explorer.TENSORS]
    assert ends == [sum(model.moved[-1][name]) for name in explorer.TENSORS]
    for step in (0, model.n_visits):
        png(explorer.draw(model, step))


def test_figures_show_what_they_are_given():
    matrices = {"P": np.eye(4), "dS": -np.eye(4)}
    panels = drawing.draw_matrices(matrices, "abcd", "abcd", signed=True).axes
    assert [float(text.get_text()) for text in panels[1].texts] == (-np.eye(4)).ravel().tolist()
    (axes,) = explorer.draw_products({"forward": ("S", "O"), "backward": ("S again", "dP", "dV")}).axes
    texts = ["forward", "S", "O", "2", "backward", "S again", "dP", "dV", "3"]
    assert [text.get_text().strip() for text in axes.texts] == texts


def test_the_explorer_follows_every_control(shell_of):
    def shown(visit, **sizes):
        model = explorer.run(**sizes)
        return explorer.describe(model, visit), explorer.draw(model, visit)

    moves = [
        ("visit", 5, {"visit": 5}),
        ("causal", False, {"causal": False}),
        ("queries", 24, {"n_q": 24}),
        ("keys", 8, {"n_k": 8}),
        ("block_q", 8, {"block_q": 8}),
        ("block_k", 2, {"block_k": 2}),
    ]
    start = {"n_q": 12, "n_k": 12, "block_q": 4, "block_k": 3, "causal": True, "visit": 8}
    shell_of(explorer.explore()).assert_follows(shown, start, moves)


def test_the_visit_stays_within_fewer_visits(shell_of):
    shell = shell_of(explorer.explore())
    shell["visit"].value = shell["visit"].max
    before = shell["visit"].max
    shell["block_k"].value = 8
    end = shell["visit"].max
    assert shell["visit"].value == end < before and f"Visit {end} of {end}" in shell["HTML"].value
