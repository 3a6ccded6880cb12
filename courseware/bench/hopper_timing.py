"""Lesson 15's measurements, on a GPU of compute capability 9.0: the Gluon kernels beside their peers; the ladder."""

import itertools
from functools import partial

import torch

from course_lib.kernels.backward import flash_backward
from course_lib.kernels.forward import flash_forward
from course_lib.kernels.hopper.backward import hopper_backward
from course_lib.kernels.hopper.forward import hopper_forward
from courseware.bench import timing
from courseware.bench.hopper_ladder import rungs

LENGTHS = 1024, 4096, 16384
DTYPES = torch.float16, torch.bfloat16
# (head_dim, n, causal) at which every rung is timed.
LADDER = *itertools.product((128,), LENGTHS, (False, True)), *itertools.product((64,), (1024, 4096), (False, True))
TENSOR_CORES = 4  # of a multiprocessor


def hopper_rows():
    """The Gluon kernel beside the portable one and PyTorch's, each alone and sustained; then every rung of its ladder.

    Rows with "rung" are the ladder's, in fp16; the others compare. Wrong answers are not timed.
    """
    for dtype, head_dim, n, causal in itertools.product(DTYPES, (64, 128), LENGTHS, (False, True)):
        q, k, v, shape = inputs(head_dim, n, dtype)
        how = {"causal": causal, "scale": head_dim**-0.5, "store_lse": False}
        calls = timing.forward_calls(timing.PEERS, q, k, v, causal)
        calls["portable"] = lambda qkv=(q, k, v), how=how: flash_forward(*qkv, **how)[0]
        calls["ours"] = lambda qkv=(q, k, v), how=how: hopper_forward(*qkv, **how)[0]
        yield {**shape, "causal": causal, "dtype": timing.name_of(dtype), **compared(calls, (q, k, v), causal)}
    shapes = [(timing.TOKENS // n, timing.HIDDEN_DIM // d, n, d, causal) for d, n, causal in LADDER]
    for row in timing.ladder_rows(rungs(), shapes, torch.float16, clock=timing.sustained_ms):
        del row["dtype"]  # by which the rows that compare are found
        yield row


def hopper_backward_rows():
    """The Gluon backward beside the portable one and PyTorch's, each alone and sustained.

    Wrong gradients are not timed.
    """
    for dtype, head_dim, n, causal in itertools.product(DTYPES, (64, 128), LENGTHS, (False, True)):
        q, k, v, shape = inputs(head_dim, n, dtype)
        do, how = torch.randn_like(q), {"causal": causal, "scale": head_dim**-0.5}
        o, lse = hopper_forward(q, k, v, **how, store_lse=True)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        peers = timing.forward_calls(timing.PEERS, *leaves, causal)
        calls = {name: timing.backward_of(peers[name](), *leaves, do) for name in timing.PEERS}
        calls["portable"] = partial(flash_backward, q, k, v, o, lse, do, **how)
        calls["seven products"] = partial(hopper_backward, q, k, v, o, lse, do, **how)
        calls["ours"] = partial(hopper_backward, q, k, v, o, lse, do, fused=True, **how)
        row = {"pass": "backward", **shape, "causal": causal, "dtype": timing.name_of(dtype)}
        yield {**row, **compared(calls, (q, k, v, do), causal)}


def compared(calls, inputs, causal):
    """As `timing.compare`, with the course's kernels checked, each contestant alone and sustained."""
    checked = calls.keys() - timing.PEERS.keys()
    return timing.compare(calls, inputs, causal, checked=checked, clock=timing.sustained_ms)


def timed(calls, q, k, v, causal):
    """({name: sustained TFLOP/s}, {name: relative error against float64}) of forward calls."""
    found = compared(calls, (q, k, v), causal)
    return found["tflops"], found["relative_error"]


def inputs(head_dim, n, dtype):
    """(q, k, v, {"batch": ..., "heads": ..., "n": ..., "head_dim": ...})."""
    shape = {"batch": timing.TOKENS // n, "heads": timing.HIDDEN_DIM // head_dim, "n": n, "head_dim": head_dim}
    return *timing.random_inputs(*shape.values(), dtype)[:3], shape
