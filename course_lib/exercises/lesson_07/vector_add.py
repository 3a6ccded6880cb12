"""Add two vectors, block by block."""

import numpy as np
from hypothesis import strategies as st

from course_lib import language
from course_lib.exercises.common.generators import arrays
from course_lib.exercises.lesson_07.launches import agrees
from course_lib.grading.exercise import Exercise, ExpectedOutput, Slip
from course_lib.grading.kernel_calls import TRITON, kernel_property

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

PROPERTIES = (
    kernel_property(
        "one whole block: out is x + y",
        CALL,
        agrees(sums),
        (case(4, 4), case(1, 1)),
        vectors([4]),
        slips=(
            Slip("x added to itself", {"tl.load(y_ptr": "tl.load(x_ptr"}),
            Slip("product for sum", {"x + y, mask": "x * y, mask"}),
            Slip("mask one too narrow", {"offs < n": "offs < n - 1"}),
        ),
    ),
    kernel_property(
        "several whole blocks: every program does its own",
        CALL,
        agrees(sums),
        (case(8, 4), case(96, 32)),
        vectors([8, 12]),
        slips=(
            Slip("program id not times BLOCK", {"tl.program_id(0) * BLOCK +": "tl.program_id(0) +"}),
            Slip(
                "every program does the first block",
                {"tl.program_id(0) * BLOCK + ": ""},
                {"tl.program_id(0) * B": "tl.program_id(1) * B"},
            ),
        ),
    ),
    kernel_property(
        "a length that no block divides: nothing outside is touched",
        CALL,
        agrees(sums),
        (case(5, 4), case(3, 4), case(1, 4), case(1000, 256)),
        vectors([1, 2, 3, 5, 6, 7, 9]),
        slips=(
            Slip(
                "no mask on a load",
                {Y: "tl.load(y_ptr + offs)"},
                {X: "tl.load(x_ptr + offs)"},
                {X: "tl.load(x_ptr + offs)", Y: "tl.load(y_ptr + offs)"},
            ),
            Slip("no mask on the store", {"x + y, mask=mask": "x + y"}),
            Slip("mask one too wide", {"offs < n": "offs <= n"}),
            Slip("whole blocks only", {"offs < n": "offs < n // BLOCK * BLOCK"}),
        ),
    ),
    kernel_property(
        "each element is read once and written once",
        CALL,
        agrees(sums, once),
        (case(8, 4), case(5, 4), case(100, 32)),
        slips=(
            Slip(
                "an input loaded twice",
                {f"    y = {Y}": f"    x = {X}\n    y = {Y}"},
                {f"    y = {Y}": f"    y = {Y}\n    y = {Y}"},
            ),
            Slip(
                "every program does all blocks",
                {
                    BODY: "    for i in range(0, n, BLOCK):\n"
                    + BODY.replace("    ", "        ").replace("tl.program_id(0) * BLOCK", "i")
                },
            ),
        ),
    ),
)

EXERCISE = Exercise(__file__, vector_add, points=2, minutes=8, difficulty="easy", properties=PROPERTIES, imports=TRITON)
