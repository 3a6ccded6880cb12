"""The clocks of every measurement on a GPU, and the inputs that measurements share.

Shapes follow the FlashAttention-3 paper: hidden dimension 2048, 16384 tokens in all, cut into sequences.
"""

import concurrent.futures
import multiprocessing
import statistics
import sys
import time
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from course_lib import kernels, runtime, traffic
from course_lib.kernels.checks import name_of
from course_lib.kernels.configs import select
from course_lib.kernels.launch import takes_descriptors, tensor_meta
from course_lib.kernels.masked_attention import config_of
from courseware.bench.accuracy import check_answers

HIDDEN_DIM = 2048
TOKENS = 16384
# PyTorch's own attention kernels, by the names of the records.
PEERS = {"sdpa_flash": SDPBackend.FLASH_ATTENTION, "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION}
L2_FLUSH_BYTES = 256 * 2**20  # several times the L2 cache of any GPU in `hardware`
HEAD_START_CLOCKS = 3_000_000  # more than a millisecond


def median_ms(contestants, rounds=30):
    """{name: median milliseconds} of callables that take turns on the current GPU.

    The L2 cache is flushed before each call. A spin kernel keeps the GPU busy until the host has launched the call;
    without it, the time of a short call would include gaps in which the GPU waits for the host.
    """
    flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    events = {name: [] for name in contestants}
    for call in contestants.values():
        for _ in range(3):
            call()
    for index in range(rounds):
        for name in list(contestants)[:: 1 if index % 2 else -1]:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(HEAD_START_CLOCKS)
            flush.zero_()
            begin.record()
            contestants[name]()
            end.record()
            events[name].append((begin, end))
    torch.cuda.synchronize()
    return {n: statistics.median(b.elapsed_time(e) for b, e in pairs) for n, pairs in events.items()}


def sustained_ms(contestants, seconds=0.5):
    """{name: milliseconds} of one call, of many back to back on the current GPU for so long, each contestant alone.

    Products on tensor cores heat a GPU until its clock gives way. Kernels that take turns share the warmth, so that one
    that follows a cooler one seems faster. Alone, each has the clock that it can keep. The first half does not count.
    """
    sustained = {}
    for name, call in contestants.items():
        call()
        torch.cuda.synchronize()
        calls = max(3, round(seconds / 2 * 1e3 / _mean_ms(call, 3)))
        for _ in range(calls):
            call()
        sustained[name] = _mean_ms(call, calls)
    return sustained


def _mean_ms(call, calls):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / calls


def back_to_back_s(contestants, *, calls, wait, min_rounds=5, min_s=2.0):
    """{name: seconds of one call, in the fastest series of `calls` back-to-back calls} of callables that take turns.

    wait: end each series when the GPU has finished; otherwise when the host has launched the last call, which gives
    the host's own time. min_rounds, min_s: repeat until each has had that many series and that many seconds have
    passed, because a host that shares its cores is sometimes slow for a while.
    """
    fastest_s = dict.fromkeys(contestants, float("inf"))
    rounds, end_s = 0, time.perf_counter() + min_s
    while rounds < min_rounds or time.perf_counter() < end_s:
        rounds += 1
        for name, call in contestants.items():
            torch.cuda.synchronize()
            begin_s = time.perf_counter()
            for _ in range(calls):
                call()
            if wait:
                torch.cuda.synchronize()
            fastest_s[name] = min(fastest_s[name], (time.perf_counter() - begin_s) / calls)
    return fastest_s


def compile_ahead(compile_one, jobs):
    """Fill Triton's cache from several processes: some measurements have hundreds of kernels."""
    workers = max(1, multiprocessing.cpu_count() - 1)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        for done, _ in enumerate(pool.map(compile_one, jobs), start=1):
            print(f"\rcompiled {done} of {len(jobs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def peak_bytes(call):
    """The most memory in use during a call, beyond what was allocated before it and the tensors that it returns."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results = call()
    torch.cuda.synchronize()
    kept = sum(x.numel() * x.element_size() for x in results)
    return torch.cuda.max_memory_allocated() - before - kept


def tflops(ms, n, head_dim, heads, batch=1, causal=False, n_q=None):
    """TFLOP/s of a forward pass that takes ms. A causal call counts half the FLOPs. n_q: of queries, n by default."""
    flops = traffic.attention_flops(n_q or n, n, head_dim, heads=heads, batch=batch) / (2 if causal else 1)
    return flops / ms * 1e-9


def compare(calls, inputs, causal=False, *, checked=("ours",), clock=None):
    """{"relative_error", "ms", "tflops"}, of each {name: number}. Of `checked`, wrong answers are not timed.

    calls: name -> a callable that returns o if inputs are (q, k, v), or (dq, dk, dv) if they are (q, k, v, do). Of
    gradients only the backward pass counts, which has 2.5 times the FLOPs of the forward. clock: `median_ms` if None.
    """
    is_backward = len(inputs) == 4
    answers = {name: call() if is_backward else [call()] for name, call in calls.items()}
    errors = check_answers(answers, inputs, causal, checked)
    del answers
    times_ms = (clock or median_ms)(calls)
    (batch, heads, n_q, head_dim), n = inputs[0].shape, inputs[1].shape[2]
    factor = 2.5 if is_backward else 1.0
    speeds = {name: factor * tflops(ms, n, head_dim, heads, batch, causal, n_q) for name, ms in times_ms.items()}
    return {"relative_error": errors, "ms": times_ms, "tflops": speeds}


def ladder_rows(rungs, shapes, dtype, **how):
    """A row for each of the rungs at each shape, (batch, heads, n, head_dim, causal); how: as `compare` takes it.

    n: a length, or those of the queries and of the keys. Wrong answers are not timed, unless `how` says otherwise.
    """
    for *sizes, causal in shapes:
        batch, heads, n, head_dim = sizes
        q, k, v, _ = random_inputs(batch, heads, n, head_dim, dtype)
        calls = {name: partial(rung.launch, q, k, v, causal=causal) for name, rung in rungs.items()}
        found = compare(calls, (q, k, v), causal, **{"checked": calls} | how)
        for name in calls:
            yield {
                "rung": name, "batch": batch, "heads": heads, "n": n, "head_dim": head_dim, "causal": causal,
                "dtype": name_of(dtype), **{what: found[what][name] for what in ("ms", "tflops", "relative_error")},
            }  # fmt: skip


def random_inputs(batch, heads, length, head_dim, dtype, *, kv_heads=None, differentiable=False):
    """q, k, v and a gradient of the output, on the GPU. length: of the sequences, or (of q, of k and v).

    differentiable: q, k and v require gradients.
    """
    n_q, n_k = length if isinstance(length, tuple) else (length, length)
    of_q, of_k = (batch, heads, n_q, head_dim), (batch, kv_heads or heads, n_k, head_dim)
    q, k, v, do = (torch.randn(shape, device=runtime.device(), dtype=dtype) for shape in (of_q, of_k, of_k, of_q))
    return *(x.requires_grad_(differentiable) for x in (q, k, v)), do


def with_backend(backend, call):
    """The call with a backend of PyTorch's, which it enters every time."""

    def chosen():
        with sdpa_kernel(backend):
            return call()

    return chosen


def forward_calls(peers, q, k, v, causal=False):
    """{name: callable}: our attention, as "ours", and PyTorch's by each of its backends in `peers`."""
    ours = {"ours": partial(kernels.flash_attention, q, k, v, causal=causal)}
    theirs = partial(scaled_dot_product_attention, q, k, v, is_causal=causal)
    return ours | {name: with_backend(backend, theirs) for name, backend in peers.items()}


def backward_of(o, q, k, v, do):
    """A callable that runs only the backward pass of o, as often as it is called."""
    return lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True)


def shipped(kernel, q, k, v, do=None, *, causal=False, mask=None):
    """The configuration that a launch takes by itself, and whether its tiles come by tensor descriptor.

    mask: of course_lib.masks, for the kernels that take their tiles from a list.
    """
    capability = runtime.capability(q.device)
    loaded = (k, v) if kernel == "forward" else (q, k, v, do)
    by_descriptor = takes_descriptors(capability, *map(tensor_meta, loaded))
    if mask is not None:
        return config_of(kernel, mask, q, k, by_descriptor), by_descriptor
    config = select(
        kernel, dtype=q.dtype, head_dim=q.shape[-1], causal=causal, capability=capability, n_k=k.shape[2],
        by_descriptor=by_descriptor, n_rows=q.shape[:3].numel(),
    )  # fmt: skip
    return config, by_descriptor


def attempt(row, measure):
    """The row with what measure() returns, or with its error."""
    try:
        measured = measure()
    except Exception as error:
        measured = {"error": f"{type(error).__name__}: {error}"[:400]}
    torch.cuda.empty_cache()
    return row | measured
