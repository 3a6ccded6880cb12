"""Lesson 15's pictures: shares are those that the kernel hands out, marks are the record's."""

import pytest

from courseware.bench import records
from courseware.bench.hopper_ladder import interpreted, rungs
from courseware.explorers import hopper
from courseware.simulators import gluon_emulator, sm_simulator


def tiles_handed_out(n, heads, n_programs, paired):
    """Key tiles of each program, by the kernel's own functions."""
    kernel = interpreted({}).__globals__
    n_tiles, shares = heads * n // 128, []
    for pid in range(n_programs):
        gluon_emulator.Program.current = gluon_emulator.Program((pid, 0, 0), (n_programs, 1, 1))
        tiles = range(kernel["tiles_of_program"](n_tiles, paired))
        shape = n_tiles, heads, 1, n, n
        shares.append(sum(kernel["query_tile"](i, shape, True, paired)[2] for i in tiles))
    return shares


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("n, heads, n_programs", [(1024, 1, 4), (1024, 3, 5), (512, 16, 7), (2048, 4, 32)])
def test_programs_get_the_tiles_that_the_kernel_hands_out(n, heads, n_programs, paired):
    shares = hopper.key_tiles_of_programs(n, heads, n_programs, paired)
    assert shares == tiles_handed_out(n, heads, n_programs, paired)
    of_head = n // 128
    assert sum(shares) == heads * of_head * (of_head + 1) // 2


def test_shares_are_drawn_from_the_largest_down():
    named = {"in turns": [3, 9, 5], "in pairs": [6, 5, 6]}
    figure = hopper.draw_shares(named)
    for axes, shares in zip(figure.axes, named.values(), strict=True):
        assert [bar.get_height() for bar in axes.patches] == sorted(shares, reverse=True)
        assert axes.lines[0].get_ydata()[0] == sum(shares) / 3
    assert "in turns: most 9, on average 6" in figure.alt


def test_the_ladder_shows_kept_rungs_and_what_was_simulated():
    (axes,) = hopper.draw_ladder(4096).axes
    full, causal, simulated = (line.get_xdata() for line in axes.lines[:3])
    kept = [name for name, rung in rungs().items() if rung.kept]
    assert [text.get_text() for text in axes.get_yticklabels()] == kept
    for speeds, masked in ((full, False), (causal, True)):
        rows = [records.rows(hopper.RECORD, rung=name, n=4096, head_dim=128, causal=masked) for name in kept]
        assert list(speeds) == [row["tflops"] for (row,) in rows]
    known = [name for name in kept if name in sm_simulator.RUNGS]
    assert list(simulated) == [sm_simulator.predict(name, 128, key_tiles=32).tflops for name in known]
    assert [kept[int(y)] for y in axes.lines[2].get_ydata()] == known


def test_the_peers_are_the_records():
    figure = hopper.draw_peers("bfloat16")
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_yticklabels()]
    place = labels.index("d=64 causal 4k")
    (row,) = records.rows(hopper.RECORD, dtype="bfloat16", head_dim=64, causal=True, n=4096)
    assert [line.get_xdata()[place] for line in axes.lines] == [row["tflops"][peer] for peer in hopper.PEERS]
    assert len(labels) == len(set(labels)) == 12
