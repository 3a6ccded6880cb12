"""What the lesson's exercises share: matrices with the block that their rows go through, and who does what."""

import numpy as np
from hypothesis import strategies as st

from courseware.checks import case_of
from courseware.checks.kernel_calls import compare_requests, launch_agrees
from courseware.exercises.common.generators import NUMBERS, drawn_case

rows_case = case_of("x BLOCK")
WIDE = np.random.default_rng(7).standard_normal((2, 18)).round(1)


def rows(counts, lengths, block=4, of=NUMBERS):
    """As many rows as one of `counts`, as long as one of `lengths`."""
    return drawn_case({"n": counts, "length": lengths}, of, x="n length", BLOCK=st.just(block))


def shared_out(oracle, work, requested_bytes=None):
    """`launch_agrees`, and every program has its part. work(**inputs): the arguments of `compare_requests`."""
    agrees = launch_agrees(oracle, requested_bytes)
    return lambda launch, **inputs: agrees(launch, **inputs) or compare_requests(launch, *work(**inputs))
