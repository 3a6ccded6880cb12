"""The explorers of tiles: their visits, bytes and FLOPs against the machine and `traffic`, and what their pages say."""

import json
import re
from itertools import product

import numpy as np
import pytest

from course_lib import traffic
from course_lib.machine import Machine
from course_lib.reference.tiled import tiled_attention_on_machine
from courseware.explorers import backward_passes, tile_grid

from .conftest import shapes, tips

ATTENDED = [(12, 12, 4, 3), (4, 24, 3, 8), (24, 4, 8, 3), (8, 8, 8, 8)]
SIZES = [(1, 1, 1, 1), (8, 8, 2, 4), (7, 10, 3, 4), (10, 7, 3, 4), (12, 4, 5, 2), (4, 12, 2, 5), (5, 9, 16, 3)]
CASES = [(*sizes, causal, order) for sizes, causal, order in product(SIZES, (False, True), tile_grid.ORDERS)]


def report_of(n_q, n_k, block_q, block_k, causal, order, d=1, dtype=np.float32):
    """The report of the same visits on a plain memory machine."""
    machine, rows = Machine(), {"Q": n_q, "K": n_k, "V": n_k, "O": n_q}
    handles = [machine.hbm(np.zeros((n, d), dtype), name) for name, n in rows.items()]
    kept = {name: machine.hbm(np.zeros(n_q, np.float32), name) for name in "lm"} if order == "kv_outer" else {}
    options = {"block_q": block_q, "block_k": block_k, "causal": causal, "order": order}
    tiled_attention_on_machine(machine, *handles, **options, **kept)
    return machine.report()


def test_every_tile_is_visited_as_by_the_machine_or_skipped_and_flops_agree():
    for case in CASES:
        n_q, n_k, block_q, block_k, causal, order = case
        grid, visits, now = tile_grid.tile_grid(*case), [], {}
        for event in report_of(*case).events:
            if event.kind == "load":
                now[event.tensor] = event.start
                if event.tensor == ("V" if order == "q_outer" else "Q"):  # the inner loop's load
                    visits.append((now["Q"] // block_q, now["K"] // block_k))
        assert list(grid.visits) == visits, case
        tiles = set(product(range(-(-n_q // block_q)), range(-(-n_k // block_k))))
        assert sorted([*grid.visits, *grid.skipped]) == sorted(tiles), case
        sizes = {"block_q": block_q, "block_k": block_k, "causal": causal, "order": order}
        assert 4 * sum(grid.pairs) == traffic.flash_attention(n_q, n_k, 1, **sizes).flops, case


@pytest.mark.parametrize("order", tile_grid.ORDERS)
@pytest.mark.parametrize("done", [0, 4, 8])
def test_the_grid_shows_the_model(order, done):
    grid = tile_grid.tile_grid(7, 10, 3, 4, True, order)
    panel = tile_grid.grid_panel(grid, done, "title", choose={"order": order}, before=2)
    drawn = {one["data-tip"]: one for one in shapes(panel)}
    for (i, j), visit in np.ndenumerate(grid.visit_number):
        kind = "skipped" if not visit else "empty" if visit > done else "now" if visit == done < 8 else "P pale"
        one = drawn[" and ".join(tile_grid.rows_of(grid, i, j))]
        assert one["class"] == f"cell {kind}", (i, j)
        chosen = json.loads(one.get("data-choose", "{}"))
        assert chosen == ({"order": order, "visit": 2 + visit} if visit else {}), (i, j)
    assert grid.n_visits == 8 and tile_grid.rows_of(grid, 2, 1) == ("queries 6 to 6", "keys 4 to 7")


def attention_of(n_q, n_k, block_q, block_k, causal, order, d=8, dtype="float16"):
    blocks = {"block_q": block_q, "block_k": block_k}
    return tile_grid.run(n_q, n_k, **blocks, causal=causal, order=order, d=d, dtype=dtype)


@pytest.mark.parametrize("d, dtype", [(8, "float16"), (5, "float32")])
def test_each_visit_of_attention_loads_its_own_tiles_and_all_are_the_closed_form(d, dtype):
    row_bytes = d * np.dtype(dtype).itemsize
    for sizes, causal, order in product(ATTENDED, (False, True), tile_grid.ORDERS):
        case = *sizes, causal, order
        n_q, n_k, block_q, block_k = sizes
        model, report = attention_of(*case, d=d, dtype=dtype), report_of(*case, d=d, dtype=dtype)
        options = {"block_q": block_q, "block_k": block_k, "causal": causal, "order": order}
        expected = traffic.flash_attention(n_q, n_k, d, dtype_bytes=np.dtype(dtype).itemsize, **options).by_tensor
        assert model.moved[-1] == expected and tile_grid.total_bytes(model.moved[0]) == 0, case
        assert len(model.moved) == model.grid.n_visits + 1, case
        assert sum(model.held.values()) == report.peak_sram_bytes, case
        computed = sum(n_bytes for name, n_bytes in report.peak_holders if "[" not in name)
        assert computed == model.held[tile_grid.WORK], case
        for step, (i, j) in enumerate(model.grid.visits, start=1):
            before, after = model.moved[step - 1], model.moved[step]
            q_rows, k_rows = (np.ptp(rows) for rows in (model.grid.tiles.query_rows[i], model.grid.tiles.key_rows[j]))
            inner, rows = ("K", k_rows) if order == "q_outer" else ("Q", q_rows)
            assert after[inner][0] - before[inner][0] == rows * row_bytes, (case, step)


def test_the_other_loop_gets_as_far_as_the_same_bytes():
    for sizes, causal, order in product(ATTENDED, (False, True), tile_grid.ORDERS):
        runs = {name: attention_of(*sizes, causal, name) for name in tile_grid.ORDERS}
        other = next(name for name in tile_grid.ORDERS if name != order)
        steps = [tile_grid.total_bytes(step) for step in runs[other].moved]
        for visit, step in enumerate(runs[order].moved):
            done, spent = tile_grid.visits_of_both(runs, order, visit), tile_grid.total_bytes(step)
            assert done[order] == visit and steps[done[other]] <= spent
            assert done[other] + 1 == len(steps) or steps[done[other] + 1] > spent


@pytest.mark.parametrize("order, visit", [("q_outer", 5), ("kv_outer", 7)])
def test_the_race_shows_the_numbers_of_the_visit(order, visit):
    runs = {name: attention_of(11, 11, 4, 3, True, name) for name in tile_grid.ORDERS}
    run, done = runs[order], tile_grid.visits_of_both(runs, order, visit)
    grids, moved, said = tile_grid.race_panels(runs, order, visit)
    spent = [f"{tile_grid.total_bytes(runs[name].moved[done[name]]):,}" for name in tile_grid.ORDERS]
    assert moved.title == "Bytes: {} (upper: queries outermost), {}. Pale: written".format(*spent)
    titles = [f"{title}: {done[name]} of {runs[name].grid.n_visits}" for name, title in tile_grid.LOOPS.items()]
    assert [grid.title for grid in grids] == titles
    steps = runs["kv_outer"].moved[done["kv_outer"]], runs["kv_outer"].moved[-1]
    (read, written), both = (np.add(step["l"], step["m"]) for step in steps)
    told = f"{read:,} bytes read and {written:,} written, of {sum(both):,} in all"
    assert tips(moved, "l, m, keys outermost: ") == [told]
    numbers = [int(number.replace(",", "")) for number in re.findall(r" [QKVOlm] ([\d,]+)", said)]
    assert sum(numbers) == tile_grid.total_bytes(run.moved[visit]) - tile_grid.total_bytes(run.moved[visit - 1])
    (grid, _), _, said = tile_grid.race_panels(runs, "q_outer", 1)
    assert said == "q_outer: queries 0 to 3 and keys 0 to 2: visit 1, reads Q 64, K 48, V 48 bytes."
    assert "queries 0 to 3 and keys 9 to 10: never loaded." in grid.html()


@pytest.mark.parametrize("sizes, causal", list(product([*ATTENDED, (24, 4, 2, 3)], (False, True))))
def test_each_visit_of_the_backward_loads_its_own_tiles_and_all_are_the_closed_form(sizes, causal):
    n_q, n_k, block_q, block_k = sizes
    options = {"block_q": block_q, "block_k": block_k, "causal": causal}
    model, row_bytes = backward_passes.run(n_q, n_k, **options), backward_passes.D * 2
    formula = traffic.flash_attention_backward(n_q, n_k, backward_passes.D, **options)
    assert {name: tuple(formula.by_tensor[name]) for name in backward_passes.TENSORS} == model.moved[-1]
    assert model.flops[-1] == formula.flops and tile_grid.total_bytes(model.moved[0]) == model.flops[0] == 0
    assert len(model.moved) == len(model.flops) == model.n_visits + 1
    for step in range(1, model.n_visits + 1):
        name, visit = model.places[step - 1]
        grid, index = model.grids[name], list(model.grids).index(name)
        i, j = grid.visits[visit - 1]
        rows = {"q": np.ptp(grid.tiles.query_rows[i]), "k": np.ptp(grid.tiles.key_rows[j])}
        inner, of, outer = (("O", "q", None), ("Q", "q", "K"), ("K", "k", "Q"))[index]
        before, after = model.moved[step - 1], model.moved[step]
        assert after[inner][0] - before[inner][0] == rows[of] * row_bytes, step
        if outer and visit > 1:
            tile = "qk"[index == 1]  # the outer loop's, loaded with the first of its visits
            is_new = grid.visits[visit - 2]["qk".index(tile)] != (i, j)["qk".index(tile)]
            assert after[outer][0] - before[outer][0] == is_new * rows[tile] * row_bytes, step
        # A pass stores nothing before the pass ahead of it is done.
        assert (after["dK"][1] > 0) <= (index >= 1) and (after["dQ"][1] > 0) <= (index == 2), step


def test_the_page_of_the_backward_has_the_numbers_of_the_model():
    model = backward_passes.run(12, 12, block_q=4, block_k=3, causal=True)
    pages = [backward_passes.draw(model, step) for step in range(model.n_visits + 1)]
    for step, page in enumerate(pages):
        total, html = tile_grid.total_bytes(model.moved[step]), page.html()
        assert f"so far: {total:,}; FLOPs of matrix products: {model.flops[step]:,}." in page.alt
        for name, (read, written) in model.moved[step].items():
            in_all, shown = sum(model.moved[-1][name]), "\u03b4" if name == "delta" else name
            assert f"{shown}, three passes: {read:,} bytes read and {written:,} written, of {in_all:,}" in html
        assert html.count('class="cell P pale"') + html.count('class="cell now"') == step
    assert "Visit 0 of 21" in pages[0].alt and "3 skipped" in pages[0].alt and "Nothing done yet." in pages[0].alt
    assert "Pass 1, delta: delta of queries 8 to 11" in pages[3].alt
    assert "keys 0 to 2 stay, queries 0 to 3 pass by" in pages[4].alt
    assert "queries 8 to 11 stay, keys 9 to 11 pass by" in pages[21].alt
    # A click on a tile goes to its visit, which its tip describes.
    clicks = [(int(re.search(r"\d+", one["data-choose"])[0]), one["data-tip"]) for one in shapes(pages[0])
              if "data-choose" in one]  # fmt: skip
    assert sorted(visit for visit, _ in clicks) == list(range(1, 22))
    assert all(tip in pages[visit].alt for visit, tip in clicks)
