"""What the lesson's exercises share: how a launch is judged, and matrices with the block that their rows go through."""

import numpy as np
from hypothesis import strategies as st

from course_lib.exercises.common.generators import NUMBERS, arrays
from course_lib.grading.kernel_calls import compare_bytes, compare_launch

WIDE = np.random.default_rng(7).standard_normal((3, 45)).round(3)


def agrees(oracle, requested_bytes=None):
    """A test of a launch: in bounds, all written, the outputs that oracle(**inputs) states, and no other bytes.

    requested_bytes(**inputs): {tensor: (bytes loaded, bytes stored)}; None leaves them open.
    """

    def test(launch, **inputs):
        wrong = compare_launch(launch, oracle(**inputs))
        if wrong is None and requested_bytes is not None:
            wrong = compare_bytes(launch, requested_bytes(**inputs))
        return wrong

    return test


def rows_case(x, block=None):
    """block: None for the smallest power of two that holds a row."""
    x = np.array(x, dtype=np.float64)
    return {"x": x, "BLOCK": block or 1 << (x.shape[1] - 1).bit_length()}


@st.composite
def rows(draw, counts, lengths, block=4, of=NUMBERS):
    """As many rows as one of `counts`, as long as one of `lengths`."""
    shape = draw(st.sampled_from(counts)), draw(st.sampled_from(lengths))
    return {"x": arrays(draw, *shape, of=of), "BLOCK": block}
