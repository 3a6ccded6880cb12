"""The explorer of programs: the model agrees with traced kernels, the drawing and the controls with the model."""

import numpy as np
import pytest
import torch

from course_lib import runtime
from course_lib.kernels.triton_basics import scores_tile, vector_add
from courseware.explorers import programs as explorer
from courseware.explorers.figures import png
from courseware.explorers.programs import Program, one_dimension
from courseware.tracer import trace

interpreted = pytest.mark.skipif(runtime.mode() != "interpreter", reason="the trace of a launch, many times")


@interpreted
@pytest.mark.parametrize("n,block", ((10, 4), (8, 4), (3, 8), (1, 1)))
def test_one_dimension_is_what_vector_add_touches(n, block):
    everything = np.zeros(n, dtype=int)
    for pid in range(-(-n // block) + 1):
        everything += one_dimension(n, block, pid).touched[0]
    x, y, out = torch.ones(n), torch.ones(n), torch.empty(n)
    with trace(out=out) as traced:
        vector_add[one_dimension(n, block, 0).grid[1:]](x, y, out, n, BLOCK=block)
    assert np.array_equal(everything, traced.heatmap("out", "store")) and (everything == 1).all()
    # A grid of one program touches what the explorer shows for program 0.
    with trace(out=out) as traced:
        vector_add[(1,)](x, y, out, n, BLOCK=block)
    assert np.array_equal(one_dimension(n, block, 0).touched[0], traced.heatmap("out", "store") == 1)


@interpreted
def test_two_dimensions_are_what_scores_tile_stores():
    shape, block = (5, 9), (2, 4)
    programs = [Program(shape, block, (i, j)) for i in range(3) for j in range(3)]
    assert programs[0].grid == (3, 3) and all(program.exists for program in programs)
    q, k, s = torch.ones(5, 2), torch.ones(9, 2), torch.empty(shape)
    with trace(s=s) as traced:
        scores_tile[programs[0].grid](
            q, k, s, *q.stride(), *k.stride(), *s.stride(), 5, 9, 1.0, HEAD_DIM=2, BLOCK_M=2, BLOCK_N=4, BLOCK_D=2
        )
    assert np.array_equal(sum(program.touched.astype(int) for program in programs), traced.heatmap("s", "store"))
    last = programs[-1]
    assert last.mask.sum() == last.touched.sum() == 1 and last.touched[4, 8]


def test_the_text_describes_the_program():
    text = explorer.describe(one_dimension(10, 4, 2))
    assert "Program 2" in text and "grid of 3" in text and "offsets 8 to 11" in text
    assert "4 lanes, 2 inside the tensor, 2 masked off" in text
    assert "no such program" in explorer.describe(one_dimension(10, 4, 3))
    assert "rows 2 to 3, columns 4 to 7" in explorer.describe(Program((5, 10), (2, 4), (1, 1)))


def test_the_drawing_is_the_model():
    program = Program((5, 10), (2, 4), (2, 2))
    (axes,) = explorer.draw(program).axes
    elements, down, across = axes.collections
    assert np.array_equal(elements.get_array(), program.touched)
    lanes = [(lane.get_y(), lane.get_x()) for lane in axes.patches]
    assert lanes == [(row, col) for row in (4, 5) for col in range(8, 12) if row > 4 or col > 9]
    assert [line[0, 1] for line in down.get_segments()] == [0, 2, 4, 6]
    assert [line[0, 0] for line in across.get_segments()] == [0, 4, 8, 12]
    png(explorer.draw(one_dimension(10, 4, 5)))


def test_the_explorer_follows_every_control(shell_of):
    def shown_in_1d(n, block, pid):
        model = one_dimension(n, block, pid)
        return explorer.describe(model), explorer.draw(model)

    def shown_in_2d(shape, block, pid):
        model = Program(shape, block, pid)
        return explorer.describe(model), explorer.draw(model)

    shell = shell_of(explorer.explore())
    shell.assert_shows(*shown_in_2d((5, 10), (2, 4), (2, 2)))
    shell["grid"].value = "1-D"
    shell["program_id(0)"].value = 0
    moves = [("program_id(0)", 2, {"pid": 2}), ("elements", 9, {"n": 9}), ("BLOCK", 2, {"block": 2})]
    shell.assert_follows(shown_in_1d, {"n": 10, "block": 4, "pid": 0}, moves)

    # Columns, their block and their program keep what was chosen for one dimension.
    shell["grid"].value = "2-D"
    moves = [
        ("program_id(0)", 1, {"pid": (1, 2)}),
        ("program_id(1)", 1, {"pid": (1, 1)}),
        ("rows", 4, {"shape": (4, 9)}),
        ("columns", 8, {"shape": (4, 8)}),
        ("BLOCK_M", 4, {"block": (4, 2)}),
        ("BLOCK_N", 4, {"block": (4, 4)}),
    ]
    shell.assert_follows(shown_in_2d, {"shape": (5, 9), "block": (2, 2), "pid": (2, 2)}, moves)
