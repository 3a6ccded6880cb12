"""A function with parts of its source replaced."""

import re
import traceback

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from course_lib import runtime
from courseware.editing import edits_of, with_edits, with_nodes_replaced

OFFSET = 1


def double(x):
    return np.asarray(x) * 2


@triton.jit
def double_kernel(x_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) * 2)


def test_a_diff_is_a_series_of_edits():
    diff = " kept\n-old\n-    older\n+new\n@@\n-gone\n@@\n below\n+\n"
    assert edits_of(diff) == {"kept\nold\n    older\n": "kept\nnew\n", "gone\n": "", "below\n": "below\n\n"}
    with pytest.raises(ValueError, match=r"'without a sign\\n' of a diff begins with none"):
        edits_of("-old\nwithout a sign\n")


def test_two_kernels_of_one_name_both_run_as_they_were_edited():
    triple, quadruple = (with_edits(double_kernel, {"* 2": f"* {factor}"}, "misconception") for factor in (3, 4))
    x = torch.ones(4, device=runtime.device())
    triple[(1,)](x, BLOCK=4)
    quadruple[(1,)](x, BLOCK=4)
    assert x.tolist() == [12.0] * 4


def test_it_stands_alone_as_in_a_learner_s_cell_and_a_traceback_shows_the_edited_line():
    with pytest.raises(NameError, match="OFFSET") as raised:
        with_edits(double, {"* 2": "+ OFFSET"}, "leaning")(1)
    shown = "".join(traceback.format_exception(raised.value))
    assert '"<leaning ' in shown and "return np.asarray(x) + OFFSET" in shown


def clipped(xs, low=0):
    total = 0
    best = 9
    for x in xs:  # as they come
        total += max(x,
                     low)  # fmt: skip
    if total > best:
        total = best
    return total


def cuda():
    return "__global__ void twice(float* x, float* xs) {\n  x[0]  =  2.0f*xs[0];\n}"


def test_a_body_of_which_nothing_is_left_passes():
    assert with_nodes_replaced(clipped, [("max(x, low)", "x * 4"), ("total = best", "")], "edited")([1, -1, 3]) == 12


def test_of_cuda_cpp_tokens_are_replaced():
    edited = with_nodes_replaced(cuda, [("2.0f * xs[0]", "3.0f"), ("float *x", "int* x")], "thrice")()
    assert edited == "__global__ void twice(int* x, float* xs) {\n  x[0]  =  3.0f;\n}"


@pytest.mark.parametrize(
    "function, old, count",
    [(clipped, "low + 1", 0), (clipped, "best", 2), (clipped, "total = 0; total = best", 0), (cuda, "float", 2),
     (double, "x + 3", 0), (double, "x", 2)],
)  # fmt: skip
def test_what_is_not_there_exactly_once_is_refused(function, old, count):
    with pytest.raises(ValueError, match=re.escape(f"other: {old!r} occurs {count} times in {function.__name__}, not")):
        replaced, edits = (with_edits, {old: "7"}) if function is double else (with_nodes_replaced, [(old, "7")])
        replaced(function, edits, "other")
