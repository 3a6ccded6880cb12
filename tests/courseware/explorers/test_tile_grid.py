from itertools import product

import numpy as np
import pytest

from course_lib import masks, traffic
from course_lib.machine import Machine
from course_lib.reference.tiled import tiled_attention_on_machine
from courseware.explorers import tile_grid as explorer
from courseware.explorers.figures import Picture

SIZES = [(1, 1, 1, 1), (8, 8, 2, 4), (7, 10, 3, 4), (10, 7, 3, 4), (12, 4, 5, 2), (4, 12, 2, 5), (5, 9, 16, 3)]
CASES = [(*sizes, causal, order) for sizes, causal, order in product(SIZES, (False, True), explorer.ORDERS)]


def events_of(n_q, n_k, block_q, block_k, causal, order):
    """What the memory machine logs for one head of d = 1."""
    machine, d = Machine(), 1
    handles = [
        machine.hbm(np.zeros((n, d), np.float32), name) for n, name in ((n_q, "Q"), (n_k, "K"), (n_k, "V"), (n_q, "O"))
    ]
    kept = {name: machine.hbm(np.zeros(n_q, np.float32), name) for name in "lm"} if order == "kv_outer" else {}
    options = {"block_q": block_q, "block_k": block_k, "causal": causal, "order": order}
    tiled_attention_on_machine(machine, *handles, **options, **kept)
    return machine.report().events


def test_visits_match_the_machine():
    for case in CASES:
        _, _, block_q, block_k, _, order = case
        visits, now = [], {}
        for event in events_of(*case):
            if event.kind == "load":
                now[event.tensor] = event.start
                if event.tensor == ("V" if order == "q_outer" else "Q"):  # the inner loop's load
                    visits.append((now["Q"] // block_q, now["K"] // block_k))
        assert list(explorer.tile_grid(*case).visits) == visits, case


def test_every_tile_is_visited_or_skipped_and_flops_agree():
    for case in CASES:
        n_q, n_k, block_q, block_k, causal, order = case
        grid = explorer.tile_grid(*case)
        tiles = set(product(range(-(-n_q // block_q)), range(-(-n_k // block_k))))
        assert sorted([*grid.visits, *grid.skipped]) == sorted(tiles), case
        pairs = 0
        for i, j in grid.visits:
            (q_start, q_stop), (k_start, k_stop) = grid.tiles.query_rows[i], grid.tiles.key_rows[j]
            pairs += (q_stop - q_start) * (k_stop - k_start)
            visible = np.arange(k_start, k_stop) <= np.arange(q_start, q_stop)[:, None] + n_k - n_q
            assert visible.any() or not causal, (case, i, j)
            kind = masks.PARTIAL if causal and not visible.all() else masks.FULL
            assert grid.tiles.kinds[i, j] == kind, (case, i, j)
        sizes = {"block_q": block_q, "block_k": block_k, "causal": causal, "order": order}
        assert 4 * pairs == traffic.flash_attention(n_q, n_k, 1, **sizes).flops, case


def test_the_two_orders_visit_the_same_tiles_in_another_order():
    by_query, by_key = (explorer.tile_grid(8, 8, 4, 2, False, order) for order in explorer.ORDERS)
    assert by_query.visits[:4] == ((0, 0), (0, 1), (0, 2), (0, 3))
    assert by_key.visits[:4] == ((0, 0), (1, 0), (0, 1), (1, 1))


@pytest.mark.parametrize("bad", [(0, 1, 1, 1, False, "q_outer"), (1, 1, 1, 1, False, "rows")])
def test_bad_sizes_are_refused_as_by_traffic(bad):
    with pytest.raises(ValueError):
        explorer.tile_grid(*bad)


def drawn_states(model, step):
    axes = Picture(3).subplots()
    explorer.draw_tile_grid(axes, model, step)
    return np.asarray(axes.collections[0].get_array()), {text.get_position(): text.get_text() for text in axes.texts}


@pytest.mark.parametrize("order", explorer.ORDERS)
def test_drawing_shows_the_model(order):
    model = explorer.tile_grid(7, 10, 3, 4, True, order)
    states, labels = drawn_states(model, 4)
    assert [(states == state).sum() for state in range(4)] == [len(model.skipped), model.n_visits - 4, 3, 1]
    assert states[model.visits[3]] == 3
    middles = [np.mean([model.tiles.key_rows[j], model.tiles.query_rows[i]], axis=1) for i, j in model.visits]
    assert labels == {tuple(middle): str(visit) for visit, middle in enumerate(middles, start=1)}
    assert set(drawn_states(model, None)[0].ravel()) == {0, 2}
    assert set(drawn_states(model, 0)[0].ravel()) == {0, 1}
    np.testing.assert_array_equal(drawn_states(model, -3)[0], drawn_states(model, 0)[0])
    np.testing.assert_array_equal(drawn_states(model, 99)[0], drawn_states(model, None)[0])
