"""Lesson 15's measurements, on a GPU of compute capability 9.0: the Gluon kernel beside its peers, and its ladder."""

import itertools

import torch

from course_lib.kernels.flash_forward import flash_forward
from course_lib.kernels.hopper_forward import hopper_forward
from course_lib.measure import timing
from course_lib.measure.accuracy import check_answers, exact_attention, relative_error
from course_lib.measure.hopper_rungs import rungs

LENGTHS = 1024, 4096, 16384
# (head_dim, n, causal) at which every rung is timed.
LADDER = *itertools.product((128,), LENGTHS, (False, True)), *itertools.product((64,), (1024, 4096), (False, True))


def hopper_rows():
    """The Gluon kernel beside the portable one and PyTorch's, each alone and sustained; then every rung of its ladder.

    Rows with "dtype" compare, rows with "rung" are the ladder's, in fp16. Wrong answers are not timed.
    """
    for dtype, head_dim, n, causal in itertools.product(
        (torch.float16, torch.bfloat16), (64, 128), LENGTHS, (False, True)
    ):
        q, k, v, shape = inputs(head_dim, n, dtype)
        calls = timing.forward_calls(timing.PEERS, q, k, v, causal)
        how = {"causal": causal, "scale": head_dim**-0.5, "store_lse": False}
        calls["portable"] = lambda q=q, k=k, v=v, how=how: flash_forward(q, k, v, **how)[0]
        calls["ours"] = lambda q=q, k=k, v=v, how=how: hopper_forward(q, k, v, **how)[0]
        yield {**shape, "causal": causal, "dtype": str(dtype).removeprefix("torch."), **timed(calls, q, k, v, causal)}
    for head_dim, n, causal in LADDER:
        q, k, v, shape = inputs(head_dim, n, torch.float16)
        how = {"causal": causal, "scale": head_dim**-0.5, "store_lse": False}
        for rung in rungs().values():
            call = {rung.name: lambda rung=rung, q=q, k=k, v=v, how=how: rung.forward(q, k, v, **how)[0]}
            measured = timed(call, q, k, v, causal)
            yield {"rung": rung.name, **shape, "causal": causal, **{key: x[rung.name] for key, x in measured.items()}}


def inputs(head_dim, n, dtype):
    shape = {"batch": timing.TOKENS // n, "heads": timing.HIDDEN_DIM // head_dim, "n": n, "head_dim": head_dim}
    return *timing.random_inputs(*shape.values(), dtype)[:3], shape


def timed(calls, q, k, v, causal):
    """{"tflops": {name: sustained}, "relative_error": {name: of the first two heads, against float64}}."""
    exact, _ = exact_attention(*(x[:1, :2] for x in (q, k, v)), causal=causal)
    errors = {}
    for name, call in calls.items():
        o = call()
        check_answers({name: [o]}, (q, k, v), causal)
        errors[name] = relative_error(o, exact)
    batch, heads, n, head_dim = q.shape
    tflops = {
        name: timing.tflops(timing.sustained_ms(call), n, head_dim, heads, batch, causal)
        for name, call in calls.items()
    }
    return {"tflops": tflops, "relative_error": errors}
