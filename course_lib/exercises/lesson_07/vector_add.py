"""Add two vectors, block by block."""

import numpy as np
from hypothesis import strategies as st

from course_lib import language
from course_lib.exercises.common.generators import arrays
from course_lib.exercises.lesson_07.launches import agrees
from course_lib.grading.exercise import Before, Exercise, ExpectedOutput, Slip, each_and_all
from course_lib.grading.kernel_calls import TRITON, kernel_checks

triton, tl = language.WRITTEN.triton, language.WRITTEN.tl


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out = x + y, one block of BLOCK elements for each program.

    x_ptr, y_ptr, out_ptr: float32 [n], contiguous. n: any length of at least 1. BLOCK: a power of two.
    Launched with cdiv(n, BLOCK) programs, along axis 0. Each element is read once and written once.

    >>> x, y = np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0])
    >>> launched(vector_add, (2,), {"out_ptr": (3,)}, x_ptr=x, y_ptr=y, n=3, BLOCK=2).outputs["out_ptr"].tolist()
    [11.0, 22.0, 33.0]
    """
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)


def sums(x, y, BLOCK):
    return [ExpectedOutput("out", x + y, np.float32(x) + np.float32(y), np.abs(x) + np.abs(y), index="element")]


def once(x, y, BLOCK):
    return {"x": (x.size * 4, 0), "y": (y.size * 4, 0), "out": (0, x.size * 4)}


def case(n, block):
    return {"x": np.arange(1.0, n + 1), "y": 10.0 * np.arange(1, n + 1), "BLOCK": block}


@st.composite
def vectors(draw, lengths):
    n = draw(st.sampled_from(lengths))
    return {"x": arrays(draw, n), "y": arrays(draw, n), "BLOCK": 4}


CALL = 'launched(vector_add, (-(-len(x) // BLOCK),), {"out_ptr": x.shape}, x_ptr=x, y_ptr=y, n=len(x), BLOCK=BLOCK)'
X, Y = "tl.load(x_ptr + offs, mask=mask)", "tl.load(y_ptr + offs, mask=mask)"
BODY = f"""\
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = {X}
    y = {Y}
    tl.store(out_ptr + offs, x + y, mask=mask)
"""
check = kernel_checks(CALL, agrees(sums))

check("one whole block: out is x + y", [case(4, 4), case(1, 1), vectors([4])]).catches(
    Slip("x added to itself", {"tl.load(y_ptr": "tl.load(x_ptr"}),
    Slip("product for sum", {"x + y, mask": "x * y, mask"}),
    Slip("mask one too narrow", {"offs < n": "offs < n - 1"}),
)
check("several whole blocks: every program does its own", [case(8, 4), case(96, 32), vectors([8, 12])]).catches(
    Slip("program id not times BLOCK", {"tl.program_id(0) * BLOCK +": "tl.program_id(0) +"}),
    Slip(
        "every program does the first block",
        {"tl.program_id(0) * BLOCK + ": ""},
        {"tl.program_id(0) * B": "tl.program_id(1) * B"},
    ),
)
check(
    "a length that no block divides: nothing outside is touched",
    [case(5, 4), case(3, 4), case(1, 4), case(1000, 256), vectors([1, 2, 3, 5, 6, 7, 9])],
).catches(
    Slip("no mask on a load", *each_and_all({X: "tl.load(x_ptr + offs)", Y: "tl.load(y_ptr + offs)"})),
    Slip("no mask on the store", {"x + y, mask=mask": "x + y"}),
    Slip("mask one too wide", {"offs < n": "offs <= n"}),
    Slip("whole blocks only", {"offs < n": "offs < n // BLOCK * BLOCK"}),
)
check(
    "each element is read once and written once", [case(8, 4), case(5, 4), case(100, 32)], test=agrees(sums, once)
).catches(
    Slip("an input loaded twice", {Before("y ="): f"x = {X}"}, {Before("y ="): f"y = {Y}"}),
    Slip(
        "every program does all blocks",
        {
            BODY: "    for i in range(0, n, BLOCK):\n"
            + BODY.replace("    ", "        ").replace("tl.program_id(0) * BLOCK", "i")
        },
    ),
)

EXERCISE = Exercise(__file__, vector_add, check, points=2, minutes=8, difficulty="easy", imports=TRITON)
