"""A streaming multiprocessor of a Hopper GPU on a CPU: jobs of warp groups, asynchronous copies and products, barriers.

simulator   the multiprocessor, the operations that a job yields, what it finds wrong, and the timeline
attention   lesson 15's kernel as jobs, rung by rung, and what they predict
ring        a producer and consumers whose operations are plain tuples, for the exercises
"""

from .attention import RUNGS, Prediction, predict, simulate
from .ring import Times, run_ring
from .simulator import (
    H100,
    KINDS,
    SM,
    Finding,
    JobError,
    Rates,
    Run,
    Span,
    compute,
    mbarrier,
    named,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

__all__ = [
    "H100", "KINDS", "RUNGS", "SM", "Finding", "JobError", "Prediction", "Rates", "Run", "Span", "Times", "compute",
    "mbarrier", "named", "predict", "run_ring", "simulate", "tma", "warpgroup_mma", "warpgroup_mma_wait",
]  # fmt: skip
