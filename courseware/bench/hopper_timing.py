"""Lesson 15's measurements, on a GPU of compute capability 9.0: the Gluon kernels beside their peers, and the ladder.

Run as a program, this module is what `ncu` watches in `hopper_counter_rows`.
"""

import itertools
from functools import partial

import torch

from course_lib.kernels.backward import flash_backward
from course_lib.kernels.forward import flash_forward
from course_lib.kernels.hopper.backward import hopper_backward
from course_lib.kernels.hopper.forward import hopper_forward
from courseware.bench import timing
from courseware.bench.accuracy import (
    assert_within_budget,
    check_answers,
    exact_attention,
    exact_gradients,
    relative_error,
)
from courseware.bench.counters import counted_by_ncu, run_profiled
from courseware.bench.hopper_ladder import rungs

LENGTHS = 1024, 4096, 16384
# (head_dim, n, causal) at which every rung is timed, and at which its tensor cores are watched.
LADDER = *itertools.product((128,), LENGTHS, (False, True)), *itertools.product((64,), (1024, 4096), (False, True))
WATCHED = (128, 4096, False), (64, 4096, False)
TENSOR_CORES = 4  # of a multiprocessor; the first counter adds up the clocks of each
COUNTERS = {"tensor_clocks": "sm__pipe_tensor_cycles_active.sum", "clocks": "sm__cycles_active.sum"}


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
        tflops, errors = timed(calls, q, k, v, causal)
        row = {**shape, "causal": causal, "dtype": str(dtype).removeprefix("torch.")}
        yield {**row, "tflops": tflops, "relative_error": errors}
    for head_dim, n, causal in LADDER:
        q, k, v, shape = inputs(head_dim, n, torch.float16)
        tflops, errors = timed(ladder_calls(q, k, v, causal), q, k, v, causal)
        for name in rungs():
            yield {
                "rung": name, **shape, "causal": causal, "tflops": tflops[name], "relative_error": errors[name]
            }  # fmt: skip


def hopper_backward_rows():
    """The Gluon backward beside the portable one and PyTorch's, each alone and sustained.

    Wrong gradients are not timed.
    """
    for dtype, head_dim, n, causal in itertools.product(
        (torch.float16, torch.bfloat16), (64, 128), LENGTHS, (False, True)
    ):
        q, k, v, shape = inputs(head_dim, n, dtype)
        do, how = torch.randn_like(q), {"causal": causal, "scale": head_dim**-0.5}
        o, lse = hopper_forward(q, k, v, **how, store_lse=True)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        peers = timing.forward_calls(timing.PEERS, *leaves, causal)
        calls = {name: timing.backward_of(peers[name](), *leaves, do) for name in timing.PEERS}
        calls["portable"] = partial(flash_backward, q, k, v, o, lse, do, **how)
        calls["ours"] = partial(hopper_backward, q, k, v, o, lse, do, **how)
        exact = exact_gradients(*(x[:1, :1] for x in (q, k, v, do)), causal=causal)
        errors = {name: max(map(relative_error, call(), exact)) for name, call in calls.items()}
        check_answers({name: calls[name]() for name in ("portable", "ours")}, (q, k, v, do), causal)
        tflops = {  # the backward has 2.5 times the FLOPs of the forward
            name: 2.5 * timing.tflops(timing.sustained_ms(call), n, head_dim, shape["heads"], shape["batch"], causal)
            for name, call in calls.items()
        }
        row = {"pass": "backward", **shape, "causal": causal, "dtype": str(dtype).removeprefix("torch.")}
        yield {**row, "tflops": tflops, "relative_error": errors}


def hopper_counter_rows():
    """How many of an SM's TENSOR_CORES are busy on average, in each rung of lesson 15; needs ncu on the path."""
    counted = counted_by_ncu(__name__, [COUNTERS])
    for ((head_dim, n, causal), rung), sums in zip(itertools.product(WATCHED, rungs()), counted, strict=True):
        busy = sums["tensor_clocks"] / sums["clocks"]
        yield {"rung": rung, "n": n, "head_dim": head_dim, "causal": causal, "busy_tensor_cores": busy}


def ladder_calls(q, k, v, causal):
    how = {"causal": causal, "scale": q.shape[-1] ** -0.5, "store_lse": False}
    return {name: lambda rung=rung: rung.forward(q, k, v, **how)[0] for name, rung in rungs().items()}


def inputs(head_dim, n, dtype):
    """(q, k, v, {"batch": ..., "heads": ..., "n": ..., "head_dim": ...})."""
    shape = {"batch": timing.TOKENS // n, "heads": timing.HIDDEN_DIM // head_dim, "n": n, "head_dim": head_dim}
    return *timing.random_inputs(*shape.values(), dtype)[:3], shape


def timed(calls, q, k, v, causal):
    """({name: sustained TFLOP/s}, {name: relative error against float64}); errors are the first and the last head's."""
    ends = [tuple(x[of, of] for x in (q, k, v)) for of in (slice(1), slice(-1, None))]
    exact = torch.cat([exact_attention(*end, causal=causal)[0] for end in ends])
    plain = torch.cat([exact_attention(*end, causal=causal, dtype=q.dtype)[0] for end in ends])
    errors = {}
    for name, call in calls.items():
        o = call()
        o = torch.cat([o[:1, :1], o[-1:, -1:]])
        assert_within_budget(name, o, plain, exact, q.dtype)
        errors[name] = relative_error(o, exact)
    batch, heads, n, head_dim = q.shape
    tflops = {
        name: timing.tflops(timing.sustained_ms(call), n, head_dim, heads, batch, causal)
        for name, call in calls.items()
    }
    return tflops, errors


def cases():
    """A callable for each row of `hopper_counter_rows`."""
    for head_dim, n, causal in WATCHED:
        q, k, v, _ = inputs(head_dim, n, torch.float16)
        yield from ladder_calls(q, k, v, causal).values()


if __name__ == "__main__":
    run_profiled(cases())
