import json
import re
from itertools import product

import numpy as np
import pytest

from course_lib import traffic
from course_lib.machine import Machine
from course_lib.reference.tiled import tiled_attention_on_machine
from courseware.explorers import tiled_attention as explorer

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


def test_each_visit_loads_its_own_tiles():
    row_bytes = explorer.D * 2
    for case in CASES:
        model = model_of(*case)
        for step, (i, j) in enumerate(model.grid.visits, start=1):
            before, after = model.moved[step - 1], model.moved[step]
            q_start, q_stop = model.grid.tiles.query_rows[i]
            k_start, k_stop = model.grid.tiles.key_rows[j]
            for name in after:
                assert after[name][0] >= before[name][0] and after[name][1] >= before[name][1], (case, step, name)
            inner, rows = ("K", k_stop - k_start) if case[-1] == "q_outer" else ("Q", q_stop - q_start)
            assert after[inner][0] - before[inner][0] == rows * row_bytes, (case, step)
            held = model.held[step]
            assert held["Q"] == (q_stop - q_start) * row_bytes, (case, step)
            assert held["K"] == held["V"] == (k_stop - k_start) * row_bytes, (case, step)


def state_of(n_q, n_k, block_q, block_k, causal, order):
    sizes = {"n_q": n_q, "n_k": n_k, "block_q": block_q, "block_k": block_k, "causal": causal}
    return json.loads(json.dumps(explorer.visits_state(order, **sizes)))


def test_a_state_has_the_bytes_of_both_runs():
    for *sizes, order in CASES:
        state = state_of(*sizes, order)
        for name, loop, moved, totals in zip(
            explorer.ORDERS, state["loops"], state["moved"], state["totals"], strict=True
        ):
            model = model_of(*sizes, name)
            assert (loop["name"], [tuple(tile) for tile in loop["visits"]]) == (name, list(model.grid.visits))
            assert loop["number"] == model.grid.visit_number.tolist()
            assert totals == [sum(map(sum, step.values())) for step in model.moved]
            for step, by_tensor in enumerate(model.moved):
                for (_, tensors, _), series in zip(explorer.TENSORS, moved, strict=True):
                    expected = [sum(by_tensor.get(tensor, (0, 0))[i] for tensor in tensors) for i in (0, 1)]
                    assert [numbers[step] for numbers in series] == expected, (sizes, name, step, tensors)


def test_the_other_loop_gets_as_far_as_the_same_bytes():
    for case in CASES:
        state = state_of(*case)
        mine, other = state["totals"][state["chosen"]], state["totals"][1 - state["chosen"]]
        assert explorer.ORDERS[state["chosen"]] == case[-1]
        for spent, visits in zip(mine, state["other"], strict=True):
            assert visits == 0 or other[visits] <= spent, case
            assert visits + 1 == len(other) or other[visits + 1] > spent, case


def test_the_words_for_a_visit_add_up_to_its_bytes():
    state = state_of(12, 12, 4, 3, True, "kv_outer")
    for loop, totals in zip(state["loops"], state["totals"], strict=True):
        costs = [state["costs"][about] for about in loop["about"]]
        spent = [sum(int(n.replace(",", "")) for n in re.findall(r"[a-zA-Z] ([\d,]+)", cost)) for cost in costs]
        assert spent == np.diff(totals).tolist()
    assert state["costs"][state["loops"][0]["about"][0]] == "reads Q 64, K 48, V 48 bytes"


def test_sram_is_that_of_the_visits():
    for case in CASES:
        state, model = state_of(*case), model_of(*case)
        held = [{name: n_bytes for name, n_bytes, _ in moment["parts"]} for moment in state["held"]]
        assert held == list(model.held)
        assert state["sram"]["mark"] == plain_report(*case).peak_sram_bytes


def test_the_stair_ends_what_each_query_sees():
    state = state_of(4, 24, 3, 8, True, "q_outer")
    corners = {tuple(corner) for corner in state["stair"]}
    assert corners == {(21 + query, row) for query in range(4) for row in (query, query + 1)}
    assert state_of(4, 24, 3, 8, False, "q_outer")["stair"] is None


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
    left, right = explorer.draw_elements(([2, 4], {"a": [1, 4]}), ([2, 4], {"a": [4, 2], "b": [3, 1]})).axes
    assert [list(line.get_ydata()) for line in (*left.lines, *right.lines)] == [[1, 4], [4, 2], [3, 1]]
    assert len(explorer.draw_orders(10, 10, 4, 3).axes) == 4
