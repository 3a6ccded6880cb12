"""The time of kernels that run one after the other, by a model."""

import numpy as np
from hypothesis import strategies as st

from courseware.bench.bounds import STANDARD_4096, roofline_seconds
from courseware.checks import Checks, Exercise, ExpectedOutput, agrees, not_modified
from courseware.exercises.common.explanations import explain


def least_time(kernels, flops_per_s, bytes_per_s, launch_s):
    needs = np.array(kernels, dtype=np.float64).reshape(-1, 2) / [flops_per_s, bytes_per_s]
    exact = np.maximum(needs.max(axis=1, initial=0.0), launch_s).sum()
    return [ExpectedOutput("the time", exact, np.float64(np.float32(exact)), exact)]


def needs(_, kernels, flops_per_s, bytes_per_s, launch_s):
    each = (f"{flops / flops_per_s:.4g} and {n_bytes / bytes_per_s:.4g}" for flops, n_bytes in kernels[:4])
    return f"arithmetic and memory of each kernel, in seconds: {'; '.join(each)}; launch_s is {launch_s:.4g}"


def case(*kernels, launch_s=0.0):
    """Round rates, so that the times can be read off: 100 FLOPs and 10 bytes a second."""
    return {"kernels": list(kernels), "flops_per_s": 100.0, "bytes_per_s": 10.0, "launch_s": launch_s}


@st.composite
def rows(draw, least, most, launches):
    size = st.integers(0, 8)
    kernel = st.tuples(size.map(lambda i: 100.0 * i), size.map(lambda i: 10.0 * i))
    kernels = draw(st.lists(kernel, min_size=least, max_size=most))
    return case(*kernels, launch_s=draw(st.sampled_from(launches)))


check = Checks(roofline_seconds, explain(agrees(least_time), needs))

check("one kernel: the longer of its FLOPs' and its bytes' time", [case((200.0, 10.0)), case((100.0, 30.0))])
check(
    "kernels follow one another: their times add up, and those of none to 0.0",
    [case((200.0, 10.0), (0.0, 30.0)), case((100.0, 10.0), (100.0, 10.0)), case(), rows(0, 3, [0.0])],
)
check(
    "no kernel takes less than launch_s",
    [
        case((100.0, 10.0), (0.0, 60.0), launch_s=2.0),  # the long kernel does not make up for the short one
        case((0.0, 0.0), (100.0, 10.0), (300.0, 10.0), launch_s=0.5),
        STANDARD_4096,
        case(launch_s=4.0),
        rows(1, 3, [0.5, 1.5, 4.0]),
    ],
)
check(
    "launch_s is 0 unless it is given",
    [case((20.0, 1.0), (10.0, 3.0))],
    call="roofline_seconds(kernels, flops_per_s, bytes_per_s)",
)
check("the list is not modified", [case((200.0, 10.0), (0.0, 30.0))], calls=not_modified)

EXERCISE = Exercise(__file__, roofline_seconds, check, points=3, minutes=10, difficulty="medium")
