"""A streaming multiprocessor of a Hopper GPU on a CPU: jobs of warp groups, asynchronous copies and products, barriers.

simulator   the multiprocessor and the operations that a job yields
parts       its stages, barriers and rates; what it finds wrong, and the timeline
attention   lesson 15's kernel as jobs, rung by rung, and what they predict
ring        a producer and consumers whose operations are plain tuples, for the exercises
"""

from .attention import RUNGS, Prediction, predict, simulate
from .parts import H100, Finding, Rates, Run, Span
from .ring import Times, run_ring
from .simulator import SM, JobError, compute, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

__all__ = [
    "H100", "RUNGS", "SM", "Finding", "JobError", "Prediction", "Rates", "Run", "Span", "Times", "compute",
    "mbarrier", "predict", "run_ring", "simulate", "tma", "warpgroup_mma", "warpgroup_mma_wait",
]  # fmt: skip
