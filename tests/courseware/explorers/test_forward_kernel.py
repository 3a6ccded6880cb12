"""The forward kernel's explorer: places against the mask, bounds against the kernel, bars against the record."""

import itertools

import numpy as np
import torch
import triton
import triton.language as tl

from course_lib import runtime
from course_lib.kernels.device import kv_loop_bounds
from courseware.bench import records
from courseware.explorers import forward_kernel
from courseware.explorers.forward_kernel import HIDDEN, NO_KEY, NO_QUERY, VISIBLE, describe, draw, program

SIZES = list(itertools.product((4, 7, 13, 20), (4, 8, 13, 20), (2, 4, 6), (3, 4, 8), (False, True)))


@triton.jit
def bounds_kernel(out_ptr, n_q, n_k, IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    pid = tl.program_id(0)
    full_end, kv_end = kv_loop_bounds(pid * BLOCK_M, n_q, n_k, IS_CAUSAL, BLOCK_M, BLOCK_N)
    tl.store(out_ptr + 2 * pid, full_end)
    tl.store(out_ptr + 2 * pid + 1, kv_end)


def test_bounds_match_the_kernel():
    for n_q, n_k, block_m, block_n, causal in SIZES[::5]:
        programs = -(-n_q // block_m)
        out = torch.zeros((programs, 2), dtype=torch.int32, device=runtime.device())
        bounds_kernel[(programs,)](out, n_q, n_k, IS_CAUSAL=causal, BLOCK_M=block_m, BLOCK_N=block_n)
        models = [
            program(n_q, n_k, block_m=block_m, block_n=block_n, causal=causal, pid=pid) for pid in range(programs)
        ]
        assert [[model.full_end, model.kv_end] for model in models] == out.tolist(), (n_q, n_k, block_m, block_n)


def test_every_place_is_what_the_mask_says():
    for n_q, n_k, block_m, block_n, causal in SIZES:
        sizes = {"block_m": block_m, "block_n": block_n, "causal": causal}
        visible = 0
        for pid in range(-(-n_q // block_m)):
            where = f"n_q={n_q} n_k={n_k} {sizes} pid={pid}"
            model = program(n_q, n_k, **sizes, pid=pid)
            for (i, key), place in np.ndenumerate(model.places):
                query = pid * block_m + i
                if query >= n_q:
                    expected = NO_QUERY
                elif key >= n_k:
                    expected = NO_KEY
                else:
                    expected = HIDDEN if causal and key > query + n_k - n_q else VISIBLE
                assert place == expected, where
            visible += int((model.places == VISIBLE).sum())
            assert len(model.kinds) * block_n == model.places.shape[1] >= n_k, where
            for j, kind in enumerate(model.kinds):
                # The loop visits [0, kv_end), and needs no mask before full_end.
                assert (kind == "not visited") == (j * block_n >= model.kv_end), where
                assert (kind == "no mask") == ((j + 1) * block_n <= model.full_end), where
        seen = [min(max(query + 1 + n_k - n_q, 0), n_k) if causal else n_k for query in range(n_q)]
        assert visible == sum(seen), f"n_q={n_q} n_k={n_k} {sizes}"


def test_description_counts_the_places():
    model = program(10, 13, block_m=4, block_n=4, causal=True, pid=1)
    text = describe(model, 2)
    assert "queries 4 to 7" in text and "2 no mask, 1 masked, 1 not visited" in text
    assert "full_end = 8, kv_end = 11" in text and "keys 8 to 11: masked" in text
    assert "6 visible, 10 hidden, 0 no such key, 0 no such query" in text
    last = describe(program(10, 13, block_m=4, block_n=4, causal=False, pid=2), 3)
    assert "queries 8 to 9" in last and "keys 12 to 12" in last
    assert "2 visible, 0 hidden, 6 no such key, 8 no such query" in last


def test_picture_shows_the_tile_and_the_bounds():
    model = program(10, 13, block_m=4, block_n=4, causal=True, pid=1)
    grid, tile = draw(model, 2).axes
    assert [line.get_xdata()[0] for line in grid.lines] == [model.full_end, model.kv_end]
    (mesh,) = tile.collections
    np.testing.assert_array_equal(mesh.get_array(), model.places[:, 8:12])
    assert tile.get_ylim() == (7.5, 3.5), "the first query is above"


def test_bars_are_those_of_the_record():
    record = records.record("attention-h100")
    figure = forward_kernel.draw_speed()
    heights = sorted(bar.get_height() for axes in figure.axes for bar in axes.patches)
    forward = [row for row in record["rows"] if row["pass"] == "forward"]
    assert heights == sorted(rate for row in forward for rate in row["tflops"].values()) and len(forward) == 12
    written = " ".join(text.get_text() for text in figure.texts)
    assert all(record[name] in written for name in ("gpu", "torch", "triton", "date"))
    assert "batch x N = 16,384, heads x d = 2,048, float16" in written


def test_every_kind_of_tile_and_place_has_a_look_of_its_own():
    looks = [tuple(look.items()) for look in (*forward_kernel.KINDS.values(), *forward_kernel.LOOKS.values())]
    assert len(set(looks)) == len(looks) == 7


def test_nothing_is_shown_at_the_places_of_a_tile_that_is_not_visited():
    """Hidden and missing keys are there in its model, and the kernel does not look."""
    model = program(20, 4, block_m=8, block_n=3, causal=True, pid=0)
    _, tile = draw(model, 1).axes
    assert model.kinds == ("not visited", "not visited")
    (patch,) = tile.patches
    assert patch.get_hatch() == forward_kernel.KINDS["not visited"]["hatch"]
    assert patch.get_width() * patch.get_height() == model.tile(1).size


def test_the_explorer_follows_every_control(shell_of):
    def shown(step, **sizes):
        model = program(**sizes)
        return describe(model, step), draw(model, step)

    shell = shell_of(forward_kernel.explore())
    start = {"n_q": 10, "n_k": 13, "block_m": 4, "block_n": 4, "causal": True, "pid": 1, "step": 2}
    moves = [
        ("causal", False, {"causal": False}),
        ("tile", 1, {"step": 1}),
        ("program", 2, {"pid": 2}),
        ("queries", 20, {"n_q": 20}),
        ("keys", 7, {"n_k": 7}),
        ("BLOCK_M", 8, {"block_m": 8}),
        ("BLOCK_N", 6, {"block_n": 6}),
    ]
    shell.assert_follows(shown, start, moves)


def test_a_program_or_tile_that_no_longer_exists_gives_way_to_the_last(shell_of):
    shell = shell_of(forward_kernel.explore())
    shell["program"].value = shell["program"].max
    shell["queries"].value = 4
    assert shell["program"].value == 0 and "queries 0 to 3" in shell["HTML"].value
    shell["tile"].value = shell["tile"].max
    shell["keys"].value = 4
    assert shell["tile"].value == 0 and "Tile 0</b> of tiles 0 to 0" in shell["HTML"].value
