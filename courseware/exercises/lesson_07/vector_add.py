"""Add two vectors, block by block."""

import numpy as np
from hypothesis import strategies as st

from course_lib.kernels import triton_basics
from courseware.checks import Exercise, ExpectedOutput
from courseware.checks.compile_calls import compiles
from courseware.checks.kernel_calls import TRITON, kernel_checks, launch_agrees, plain
from courseware.exercises.common.generators import drawn_case
from courseware.exercises.lesson_07.launches import shared_out

vector_add = plain(triton_basics.vector_add)


def sums(x, y, BLOCK):
    return [ExpectedOutput("out", x + y, np.float32(x) + np.float32(y), np.abs(x) + np.abs(y), index="element")]


def once(x, y, BLOCK):
    return {"x": (x.size * 4, 0), "y": (y.size * 4, 0), "out": (0, x.size * 4)}


def a_block_each(x, y, BLOCK):
    return -(-len(x) // BLOCK), BLOCK, {("x", "load"): 1, ("y", "load"): 1, ("out", "store"): 1}


def case(n, block):
    return {"x": np.arange(1.0, n + 1), "y": 10.01 * np.arange(n, 0, -1), "BLOCK": block}


VECTORS = drawn_case({"n": 13}, x="n", y="n", BLOCK=st.just(4))
CALL = 'launched(vector_add, (-(-len(x) // BLOCK),), {"out_ptr": x.shape}, x_ptr=x, y_ptr=y, n=len(x), BLOCK=BLOCK)'
check = kernel_checks(CALL, launch_agrees(sums), case)

check("one whole block: out is x + y", [(4, 4), (1, 1)])
check("several whole blocks: every program does its own", [(8, 4), (96, 32)])
check("a length that no block divides: every element, and nothing outside", [(5, 4), (37, 16), VECTORS])
check("each element is read once and written once", [(8, 4), (5, 4), (100, 32)], test=launch_agrees(sums, once))
check("every program takes one block, as a whole", [(8, 4), (5, 4), (100, 32)], test=shared_out(sums, a_block_each))
compiles(check, {"x": np.zeros(100), "y": np.zeros(100), "BLOCK": 32})

EXERCISE = Exercise(__file__, vector_add, check, points=2, minutes=8, difficulty="easy", imports=TRITON)
