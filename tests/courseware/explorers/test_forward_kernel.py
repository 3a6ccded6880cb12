"""The forward kernel's explorer: places against the mask, bounds against the kernel, bars against the record."""

from itertools import product

import numpy as np

from courseware.explorers import forward_kernel
from courseware.explorers.forward_kernel import HIDDEN, NO_KEY, NO_QUERY, VISIBLE, Program, page
from tests.course_lib.kernels.test_device import bounds

from .conftest import cells_of

SIZES = list(product((4, 7, 13, 20), (4, 8, 13, 20), (2, 4, 6), (3, 4, 8), (False, True)))


def test_places_are_what_the_mask_says_and_bounds_what_the_kernel_computes():
    for case, (n_q, n_k, block_m, block_n, causal) in enumerate(SIZES):
        programs = -(-n_q // block_m)
        starts = [(pid * block_m, n_q, n_k) for pid in range(programs)]
        of_kernel = dict(KEYS=True, IS_CAUSAL=causal, BLOCK_M=block_m, BLOCK_N=block_n)
        computed = [None] * programs if case % 5 else bounds(starts, **of_kernel)
        for pid, stops in enumerate(computed):
            where = f"n_q={n_q} n_k={n_k} {block_m} x {block_n} causal={causal} pid={pid}"
            model = Program(n_q, n_k, block_m=block_m, block_n=block_n, causal=causal, pid=pid)
            assert stops in (None, (model.full_end, model.kv_end)), where
            query, key = pid * block_m + np.arange(block_m)[:, None], np.arange(model.places.shape[1])
            places = np.where(causal & (key > query + n_k - n_q), HIDDEN, VISIBLE)
            places = np.where(query >= n_q, NO_QUERY, np.where(key >= n_k, NO_KEY, places))
            np.testing.assert_array_equal(model.places, places, where)
            assert len(model.kinds) * block_n == model.places.shape[1] >= n_k, where
            for j, kind in enumerate(model.kinds):
                # The loop visits [0, kv_end), and needs no mask before full_end.
                assert (kind == "not visited") == (j * block_n >= model.kv_end), where
                assert (kind == "no mask") == ((j + 1) * block_n <= model.full_end), where


def test_the_page_counts_the_places_and_lanes_have_the_look_of_what_they_are():
    shown = page(10, 13, 4, 4, True, 1, 2)
    assert "queries 4 to 7" in shown.text and "2 no mask, 1 masked, 1 not visited" in shown.text
    assert "full_end = 8, kv_end = 11" in shown.text and "keys 8 to 11: masked" in shown.text
    assert "6 visible, 10 hidden, 0 no such key, 0 no such query" in shown.text
    assert cells_of(shown)[:6] == [
        ("ground", "Program 0: queries 0 to 3", {"pid": 0}),
        ("Q", "Tile 0, keys 0 to 3: no mask", {"step": 0}),
        ("Q", "Tile 1, keys 4 to 7: no mask", {"step": 1}),
        ("now", "Tile 2, keys 8 to 11: masked", {"step": 2}),
        ("hatched", "Tile 3, keys 12 to 12: not visited", {"step": 3}),
        ("ground", "Program 2: queries 8 to 9", {"pid": 2}),
    ]
    shown = page(10, 13, 4, 4, False, 2, 3)
    assert "queries 8 to 9" in shown.text and "keys 12 to 12" in shown.text
    assert "2 visible, 0 hidden, 6 no such key, 8 no such query" in shown.text
    lanes = [lane for lane in cells_of(shown) if lane[1].startswith("query")]
    assert [css for css, *_ in lanes] == 2 * ["P", "bad", "bad", "bad"] + 8 * ["empty"]
    assert lanes[5][1] == "query 9, key 13: no such key: needs -inf too"
    # Hidden and missing keys are there in the model of a tile that is not visited, and the kernel does not look.
    lanes = [css for css, tip, _ in cells_of(page(20, 4, 8, 3, True, 0, 1)) if tip.startswith("query")]
    assert lanes == 24 * ["hatched"]
    # A program or a tile that no longer exists gives way to the last.
    shown = forward_kernel.explore()
    assert "queries 0 to 3" in shown.page({"n_q": 4, "pid": 2})[2].text
    assert "Tile 0</b> of tiles 0 to 0" in shown.page({"n_k": 4, "step": 3})[2].text
