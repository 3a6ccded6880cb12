"""A warp's load: mappings go where they say, counts are the rules', the picture is the model."""

import numpy as np
import pytest

from courseware.explorers import warp as explorer
from courseware.explorers.figures import png
from courseware.explorers.warp import MAPPINGS, Load
from courseware.simulators.cuda_emulator import request

LOADS = [
    Load(mapping, columns, padding, floats)
    for mapping in MAPPINGS
    for columns in (32, 64, 128)
    for padding, floats in ((0, 1), (1, 1), (4, 4), (8, 2), (0, 4))
]


@pytest.mark.parametrize("load", LOADS, ids=str)
def test_every_step_stays_inside_the_matrix_and_a_copy_visits_each_element_once(load):
    visited = np.zeros((load.rows, load.columns), dtype=int)
    for step in range(1, load.steps + 1):
        now = Load(load.mapping, load.columns, load.padding, load.floats, step)
        for row, column in now.places:
            assert 0 <= row < load.rows and 0 <= column <= load.columns - load.floats
            visited[row, column : column + load.floats] += 1
        assert (now.memory == 2).sum() * 4 == now.requested_bytes
        assert now.misaligned is None and len(now.group_of_pass) == len(now.passes)
    if load.mapping in ("along the row", "down the column", "4 rows of 8 lanes"):
        assert (visited == 1).all()
    assert Load(load.mapping, load.columns, load.padding, load.floats, load.steps + 1).places == load.places


@pytest.mark.parametrize(
    "load, sectors, passes, conflicts",
    [
        (Load("down the column"), 32, 32, 31),
        (Load("down the column", padding=1), 32, 1, 0),
        (Load("along the row"), 4, 1, 0),
        (Load("along the row", floats=4), 16, 4, 0),
        (Load("4 rows of 8 lanes", columns=128), 4, 4, 3),
        (Load("4 rows of 8 lanes", columns=128, padding=8), 4, 1, 0),
        (Load("row lane % 8", columns=128, padding=4, floats=4), 8, 4, 0),
        (Load("row lane // 2 % 8", columns=128, padding=4, floats=4), 8, 2, 0),
        (Load("row lane // 2 % 8", columns=128, floats=4), 8, 16, 14),
        (Load("all lanes one address", floats=4), 1, 2, 0),
    ],
)
def test_counts_that_the_lesson_speaks_of(load, sectors, passes, conflicts):
    assert (len(load.sectors), len(load.passes), load.conflicts) == (sectors, passes, conflicts)


def test_memory_shows_sectors_that_reach_over_the_end_of_a_row():
    load = Load("down the column", padding=4)
    assert set(load.sectors) == {(row * 36) // 8 for row in range(32)}
    memory = load.memory
    assert memory[1].tolist() == [2] + 3 * [1] + 28 * [0] + 4 * [3]  # a sector that began in the padding before it
    assert memory[0].tolist() == [2] + 7 * [1] + 24 * [0] + 4 * [1]


def test_a_load_that_no_gpu_does():
    load = Load("down the column", 64, 1, 4)
    assert load.misaligned == 260 and "misaligned" in explorer.describe(load)
    png(explorer.draw(load))
    with pytest.raises(ValueError):
        request.sectors(load.addresses, load.element_bytes)


def test_the_text_says_the_counts():
    text = explorer.describe(Load("down the column", 64))
    assert "32 sectors" in text and "1,024 bytes, of which 128 are requested" in text
    assert "32 passes" in text and "31 of them conflicts" in text
    text = explorer.describe(Load("all lanes one address"))
    assert "1 sector<" in text and "1 pass<" in text and "no conflict" in text


def test_the_drawing_is_the_model():
    load = Load("4 rows of 8 lanes", 32, 8, 1, step=2)
    memory, banks = explorer.draw(load).axes
    assert np.array_equal(memory.collections[0].get_array(), load.memory)
    assert [text.get_text() for text in memory.texts] == [str(lane) for lane in range(32)]
    assert "4 sectors" in memory.get_title(loc="left") and "1 pass," in banks.get_title(loc="left")

    load = Load("row lane // 2 % 8", 32, 0, 4)
    _, banks = explorer.draw(load).axes
    state = banks.collections[0].get_array()
    for number, of_banks in enumerate(load.passes):
        assert set(np.flatnonzero(state[number])) == set(of_banks)
    assert (state == 1).any(axis=1).sum() == 2 and (state == 2).any(axis=1).sum() == load.conflicts == 14
    assert [tick.get_text() for tick in banks.get_yticklabels()] == ["lanes 0-15", "lanes 16-31"]


def test_the_banks_name_the_lanes_that_they_serve():
    _, banks = explorer.draw(Load("row lane // 2 % 8", 32, 4, 4)).axes
    assert [text.get_text() for text in banks.texts][:2] == ["0, 1", "2, 3"] and len(banks.texts) == 16
    _, banks = explorer.draw(Load("all lanes one address")).axes
    assert [text.get_text() for text in banks.texts] == ["0-31"]


def test_a_copy_is_divided_among_all_warps_in_every_step():
    for axes in explorer.draw_copies(16, 64, warps=16).axes:
        pieces = [text.get_text() for text in axes.texts]
        assert sorted(pieces) == sorted(f"warp {warp}, step {step}" for warp in range(16) for step in (0, 1))
        steps = axes.collections[0].get_array()
        assert [f"step {step}" for step in np.ravel(steps)] == [piece.split(", ")[1] for piece in pieces]
    by_row, in_turn = ([text.get_text() for text in axes.texts] for axes in explorer.draw_copies(8, 32, warps=4).axes)
    assert by_row == in_turn  # a row is one request
    by_row, in_turn = ([text.get_text() for text in axes.texts] for axes in explorer.draw_copies(4, 64, warps=4).axes)
    assert by_row[:2] == ["warp 0, step 0", "warp 0, step 1"] and in_turn[:2] == ["warp 0, step 0", "warp 1, step 0"]


def test_the_ladder_shows_what_counts_allow_and_what_was_measured():
    rungs = {"plain": (1.0, 1.8, 1.5), "padding": (26.0, 52.0, 35.0)}
    figure = explorer.draw_ladder(rungs, 66.9, "a note")
    (axes,) = figure.axes
    spans = [tuple(segment[:, 0]) for segment in axes.collections[0].get_segments()]
    assert spans == [(1.0, 1.8), (26.0, 52.0)] and axes.lines[0].get_xdata().tolist() == [1.5, 35.0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == list(rungs)
    assert "padding: 26.0 to 52.0, measured 35.0" in figure.alt


def test_lines_are_those_of_the_two_kernels():
    rows = explorer.line_beside_line()
    assert rows[0][1] == "`const long long row = (long long)blockIdx.x * BLOCK_M + warp;`"
    assert [row[:2] for row in rows if row[0] is None] == [(None, "`__syncthreads();`")]
    assert all(part is None or part[0] == part[-1] == "`" for row in rows for part in row[:2])


def test_the_explorer_follows_every_control(shell_of):
    def shown(**settings):
        load = Load(**settings)
        return explorer.describe(load), explorer.draw(load)

    shell = shell_of(explorer.explore())
    moves = [
        ("step", 3, {"step": 3}),
        ("padding", 4, {"padding": 4}),
        ("a lane loads", 4, {"floats": 4}),
        ("row (floats)", 64, {"columns": 64}),
        ("mapping", "row lane // 2 % 8", {"mapping": "row lane // 2 % 8"}),
    ]
    shell.assert_follows(
        shown, {"mapping": "down the column", "columns": 32, "padding": 0, "floats": 1, "step": 1}, moves
    )
    assert shell["step"].max == 16
    shell["mapping"].value = "along the row"
    assert shell["step"].max == 4
