"""Inputs of the lesson's exercises: matrices, with the block that their rows go through."""

import numpy as np
from hypothesis import strategies as st

from course_lib.exercises.common.generators import NUMBERS, arrays
from course_lib.grading import case_of

rows_case = case_of("x BLOCK")
WIDE = np.random.default_rng(7).standard_normal((3, 45)).round(3)


@st.composite
def rows(draw, counts, lengths, block=4, of=NUMBERS):
    """As many rows as one of `counts`, as long as one of `lengths`."""
    shape = draw(st.sampled_from(counts)), draw(st.sampled_from(lengths))
    return arrays(draw, *shape, of=of), block
