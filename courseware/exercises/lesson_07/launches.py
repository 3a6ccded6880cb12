"""What the lesson's exercises share: matrices with the block that their rows go through, and who does what."""

import numpy as np
from hypothesis import strategies as st

from courseware.checks import case_of
from courseware.checks.kernel_calls import compare_requests, launch_agrees
from courseware.exercises.common.generators import NUMBERS, arrays

rows_case = case_of("x BLOCK")
WIDE = np.random.default_rng(7).standard_normal((2, 18)).round(1)


@st.composite
def rows(draw, counts, lengths, block=4, of=NUMBERS):
    """As many rows as one of `counts`, as long as one of `lengths`."""
    shape = draw(st.sampled_from(counts)), draw(st.sampled_from(lengths))
    return arrays(draw, *shape, of=of), block


def shared_out(oracle, work, requested_bytes=None):
    """`launch_agrees`, and every program has its part. work(**inputs): the arguments of `compare_requests`."""
    agrees = launch_agrees(oracle, requested_bytes)
    return lambda launch, **inputs: agrees(launch, **inputs) or compare_requests(launch, *work(**inputs))
