import re
from itertools import product

import numpy as np
import pytest

from course_lib import traffic
from course_lib.explorers import tiled_attention as explorer
from course_lib.explorers.figures import png
from course_lib.machine import Machine
from course_lib.reference.tiled import tiled_attention_on_machine

CASES = [
    (n_q, n_k, block_q, block_k, causal, order)
    for (n_q, n_k, block_q, block_k), causal, order in product(
        [(12, 12, 4, 3), (4, 24, 3, 8), (24, 4, 8, 3), (8, 8, 8, 8)], (False, True), explorer.ORDERS
    )
]


def model_of(n_q, n_k, block_q, block_k, causal, order):
    return explorer.run(n_q, n_k, block_q=block_q, block_k=block_k, causal=causal, order=order)


def plain_report(n_q, n_k, block_q, block_k, causal, order):
    """The report of the same run on a plain memory machine."""
    machine = Machine()
    shapes = {"Q": n_q, "K": n_k, "V": n_k, "O": n_q}
    handles = [machine.hbm(np.zeros((n, explorer.D), np.float16), name) for name, n in shapes.items()]
    kept = {name: machine.hbm(np.zeros(n_q, np.float32), name) for name in "lm"} if order == "kv_outer" else {}
    options = {"block_q": block_q, "block_k": block_k, "causal": causal, "order": order}
    tiled_attention_on_machine(machine, *handles, **options, **kept)
    return machine.report()


def test_the_last_step_is_the_closed_form_and_the_fullest_moment_is_the_peak():
    for case in CASES:
        n_q, n_k, block_q, block_k, causal, order = case
        model, report = model_of(*case), plain_report(*case)
        sizes = {"block_q": block_q, "block_k": block_k, "causal": causal, "order": order}
        assert model.moved[-1] == traffic.flash_attention(n_q, n_k, explorer.D, **sizes).by_tensor, case
        assert len(model.moved) == len(model.held) == model.grid.n_visits + 1, case
        assert max(sum(held.values()) for held in model.held) == report.peak_sram_bytes, case
        assert model.standard_bytes == traffic.standard_attention(n_q, n_k, explorer.D).total_bytes, case


def test_each_visit_loads_its_own_tiles():
    row_bytes = explorer.D * 2
    for case in CASES:
        model = model_of(*case)
        for step, (i, j) in enumerate(model.grid.visits, start=1):
            before, after = model.moved[step - 1], model.moved[step]
            q_start, q_stop = model.grid.query_rows(i)
            k_start, k_stop = model.grid.key_rows(j)
            for name in after:
                assert after[name][0] >= before[name][0] and after[name][1] >= before[name][1], (case, step, name)
            inner, rows = ("K", k_stop - k_start) if case[-1] == "q_outer" else ("Q", q_stop - q_start)
            assert after[inner][0] - before[inner][0] == rows * row_bytes, (case, step)
            held = model.held[step]
            assert held["Q"] == (q_stop - q_start) * row_bytes, (case, step)
            assert held["K"] == held["V"] == (k_stop - k_start) * row_bytes, (case, step)


def test_the_text_has_the_numbers_of_the_model():
    model = model_of(12, 12, 4, 3, True, "kv_outer")
    for step in range(model.grid.n_visits + 1):
        text = explorer.describe(model, step)
        total = int(re.search(r"so far: ([\d,]+)", text)[1].replace(",", ""))
        assert total == sum(map(sum, model.moved[step].values()))
        if step:
            fullest = int(re.search(r"fullest: ([\d,]+)", text)[1].replace(",", ""))
            assert fullest == sum(model.held[step].values())
    assert "Visit 5 of 9" in explorer.describe(model, 5) and "3 skipped" in explorer.describe(model, 0)
    assert "queries 4 to 7, keys 3 to 5" in explorer.describe(model, 5)


def test_drawing_shows_the_model(heights):
    model = model_of(12, 12, 4, 3, False, "kv_outer")
    _, sram, hbm = explorer.draw(model, 4).axes
    names = [text.get_text() for text in sram.texts if -1 < text.get_position()[1] < 0]
    assert dict(zip(names, heights(sram.patches), strict=True)) == model.held[4]
    assert [text.get_text() for text in hbm.texts if -1 < text.get_position()[1] < 0] == list(model.moved[4])
    *read_and_written, ends = map(heights, hbm.containers)
    assert list(zip(*read_and_written, strict=True)) == list(model.moved[4].values())
    assert ends == [sum(moved) for moved in model.moved[-1].values()]
    for step in (0, model.grid.n_visits):
        png(explorer.draw(model, step))


def test_figures_show_what_they_are_given():
    counts = {
        "standard": traffic.standard_attention(64, 64, 16).by_tensor,
        "flash": traffic.flash_attention(64, 64, 16, block_q=16, block_k=16).by_tensor,
    }
    (axes,) = explorer.draw_bytes(counts).axes
    totals = [sum(map(sum, by_tensor.values())) / 1e6 for by_tensor in counts.values()]
    for y, total in enumerate(totals):
        bars = [bar for bar in axes.patches if round(bar.get_y() + bar.get_height() / 2) == y]
        assert sum(bar.get_width() for bar in bars) == pytest.approx(total)
    (axes,) = explorer.draw_budget({"four tiles": {"Q": 10, "K": 20}, "more": {"Q": 10, "": 5}}, 30).axes
    assert [bar.get_width() for bar in axes.patches] == [10, 20, 10, 5]
    left, right = explorer.draw_growth(([2, 4], {"a": [1, 4]}), ([2, 4], {"a": [4, 2], "b": [3, 1]})).axes
    assert [list(line.get_ydata()) for line in (*left.lines, *right.lines)] == [[1, 4], [4, 2], [3, 1]]
    assert len(explorer.draw_orders(10, 10, 4, 3).axes) == 4


def test_the_explorer_follows_every_control(shell_of):
    def shown(visit, **sizes):
        model = explorer.run(**sizes)
        return explorer.describe(model, visit), explorer.draw(model, visit)

    moves = [
        ("visit", 3, {"visit": 3}),
        ("loops", "kv_outer", {"order": "kv_outer"}),
        ("causal", True, {"causal": True}),
        ("queries", 24, {"n_q": 24}),
        ("keys", 8, {"n_k": 8}),
        ("block_q", 8, {"block_q": 8}),
        ("block_k", 2, {"block_k": 2}),
    ]
    start = {"n_q": 12, "n_k": 12, "block_q": 4, "block_k": 3, "causal": False, "order": "q_outer", "visit": 1}
    shell_of(explorer.explore()).assert_follows(shown, start, moves)


def test_the_visit_stays_within_fewer_visits(shell_of):
    shell = shell_of(explorer.explore())
    shell["visit"].value = shell["visit"].max
    before = shell["visit"].max
    shell["block_k"].value = 8
    end = shell["visit"].max
    assert shell["visit"].value == end < before and f"Visit {end} of {end}" in shell["HTML"].value
