"""The explorer of programs: the model agrees with traced kernels, the drawing and the controls with the model."""

import json

import numpy as np
import pytest
import torch

from course_lib import runtime
from course_lib.kernels.triton_basics import scores_tile, vector_add
from courseware.explorers import programs as explorer
from courseware.explorers.programs import Program, one_dimension
from courseware.tracer import trace

from .conftest import shapes

interpreted = pytest.mark.skipif(runtime.mode() != "interpreter", reason="the trace of a launch, many times")


@interpreted
@pytest.mark.parametrize("n,block", ((10, 4), (8, 4), (3, 8), (1, 1)))
def test_one_dimension_is_what_vector_add_touches(n, block):
    programs = [one_dimension(n, block, pid) for pid in range(-(-n // block) + 1)]
    x, y, out = torch.ones(n), torch.ones(n), torch.empty(n)
    with trace(out=out) as traced:
        vector_add[programs[0].grid[1:]](x, y, out, n, BLOCK=block)
    everything = sum(program.touched[0].astype(int) for program in programs)
    assert np.array_equal(everything, traced.heatmap("out", "store")) and (everything == 1).all()
    # A grid of one program touches what the explorer shows for program 0.
    with trace(out=out) as traced:
        vector_add[(1,)](x, y, out, n, BLOCK=block)
    assert np.array_equal(programs[0].touched[0], traced.heatmap("out", "store") == 1)


@interpreted
def test_two_dimensions_are_what_scores_tile_stores():
    programs = [Program((5, 9), (2, 4), (i, j)) for i in range(3) for j in range(3)]
    assert programs[0].grid == (3, 3) and all(program.exists for program in programs)
    q, k, s = torch.ones(5, 2), torch.ones(9, 2), torch.empty(5, 9)
    blocks = {"HEAD_DIM": 2, "BLOCK_M": 2, "BLOCK_N": 4, "BLOCK_D": 2}
    with trace(s=s) as traced:
        scores_tile[programs[0].grid](q, k, s, *q.stride(), *k.stride(), *s.stride(), 5, 9, 1.0, **blocks)
    assert np.array_equal(sum(program.touched.astype(int) for program in programs), traced.heatmap("s", "store"))
    assert programs[-1].mask.sum() == programs[-1].touched.sum() == 1 and programs[-1].touched[4, 8]


def test_the_text_describes_the_program():
    text = explorer.describe(one_dimension(10, 4, 2))
    assert "Program 2" in text and "grid of 3" in text and "offsets 8 to 11" in text
    assert "4 lanes, 2 inside the tensor, 2 masked off" in text
    assert "no such program" in explorer.describe(one_dimension(10, 4, 3))
    assert "rows 2 to 3, columns 4 to 7" in explorer.describe(Program((5, 10), (2, 4), (1, 1)))
    assert "rows 0 to 1, columns" in explorer.describe(Program((1, 10), (2, 4), (0, 0))), "one row in blocks of two"


def test_an_element_is_the_colour_of_its_program_and_a_click_chooses_it():
    shown = explorer.explore()
    *_, drawn = shown.page()
    elements = shapes(drawn)
    touched = Program((5, 10), (2, 4), (2, 2)).touched
    assert [one["class"] == "cell Q" for one in elements] == touched.ravel().tolist()
    assert drawn.html().count("cell hatched") == 6
    one = elements[3 * 10 + 6]
    assert one["data-tip"] == "element (3, 6): program (1, 1), lane (1, 2)"
    settings, _, page = shown.page(json.loads(one["data-choose"]))
    assert (settings["pid_0"], settings["pid_1"]) == (1, 1) and "Program (1, 1)" in page.alt
    # In one dimension only columns count.
    line = {"grid": "1-D", "cols": 9, "block_n": 2, "pid_1": 4, "rows": 3, "block_m": 8, "pid_0": 5}
    assert shown.page(line)[2].text == explorer.describe(one_dimension(9, 2, 4))
    assert shown.page(line | {"grid": "2-D"})[2].text == explorer.describe(Program((3, 9), (8, 2), (5, 4)))
