"""Attention over several GPUs beside one, and beside PyTorch's context_parallel: a process for each GPU.

    torchrun --nproc-per-node=2 -m courseware.bench.ring_timing --json FILE

Causal, bf16, head_dim 128. Ours is checked before it is timed: ragged lengths against float64, all others against one
GPU. A time is that of one of many back-to-back calls, on the slowest rank; "one_gpu" runs on every rank at once, as hot
as the others. Where something fails, its row holds the error. The record is written again after each row.
"""

import argparse
import contextlib
import datetime
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.attention import sdpa_kernel

from course_lib import distributed, runtime
from course_lib.kernels import flash_attention
from courseware.bench import records, timing, training_timing
from courseware.bench.accuracy import check_answers, relative_error
from courseware.bench.timing import attempt

HEAD_DIM = 128
HEADS = ((16, 16), (32, 8))
LENGTHS = (8192, 32_768, 131_072, 524_288)
LONG = 524_288  # from here on, the ring alone beside one GPU, with HEADS[0], a single call of each
SERIES = 5
STEP_LENGTHS = (4096, 32_768, 262_144)  # of the sequences in training steps of lesson 17's model
METHODS = {
    "ring": distributed.ring_attention,
    "all_gather": distributed.all_gather_attention,
    "ulysses": distributed.ulysses_attention,
}
ROTATIONS = ("allgather", "alltoall")  # how context_parallel passes keys on
shard, unshard = (partial(f, causal=True) for f in (distributed.shard, distributed.unshard))


def slowest(number):
    """The largest of the ranks' numbers."""
    number = torch.tensor([float(number)], device=runtime.device())
    dist.all_reduce(number, op=dist.ReduceOp.MAX)
    return number.item()


def bytes_of(*tensors):
    return sum(x.numel() * x.element_size() for x in tensors)


def sustained(call, other_bytes, seconds=0.4):
    """(ms of one of many back-to-back calls, peak bytes in use beyond other_bytes). seconds=0: of a single call.

    ms: the median of SERIES series.
    """

    def mean(calls):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        dist.barrier()
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        peak_bytes = torch.cuda.max_memory_allocated() - other_bytes
        return slowest(begin.elapsed_time(end) / calls), int(slowest(peak_bytes))

    if seconds == 0:
        return mean(1)
    call()
    calls = max(2, round(1e3 * seconds / SERIES / mean(2)[0]))
    series, peaks = zip(*(mean(calls) for _ in range(SERIES)), strict=True)
    return statistics.median(series), max(peaks)


def both_passes(call, leaves, do, exact, seconds, checked=True):
    """Of the forward, and of the backward alone: ms; peak bytes beside inputs and results, with what is saved between
    them. Errors beside `exact`, which are those of one GPU."""
    before = torch.cuda.memory_allocated()
    o = call()
    backward = timing.backward_of(o, *leaves, do)
    errors = {}
    if exact:
        answers = zip(("o", "dq", "dk", "dv"), [o, *backward()], exact, strict=True)
        errors = {name: slowest(relative_error(x.float(), y.float())) for name, x, y in answers}
    if checked and not all(error < 2e-2 for error in errors.values()):
        raise RuntimeError(f"wrong answers are not timed: {errors}")
    backward_ms, backward_bytes = sustained(backward, before + bytes_of(*leaves), seconds)
    del backward, o
    with torch.no_grad():
        forward_ms, forward_bytes = sustained(call, before + bytes_of(do), seconds)
    return {
        "ms": {"forward": forward_ms, "backward": backward_ms}, "relative_error": errors,
        "peak_bytes": {"forward": forward_bytes, "backward": backward_bytes}, "input_bytes": bytes_of(*leaves),
    }  # fmt: skip


@contextlib.contextmanager
def context_parallel(mesh, backend, rotation, tensors):
    """(leaves, call): PyTorch's context_parallel, which shards whole q, k and v in zigzag, too."""
    from torch.distributed.tensor.experimental import context_parallel as sharded
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    leaves = [x.detach().clone() for x in tensors]
    how = {"is_causal": True, "enable_gqa": leaves[0].shape[1] != leaves[1].shape[1]}
    set_rotate_method(rotation)
    with sdpa_kernel(backend), sharded(mesh, buffers=tuple(leaves), buffer_seq_dims=(2, 2, 2)):
        for x in leaves:
            x.requires_grad_()
        try:
            # By this name: it is the module's function that context_parallel replaces.
            yield leaves, lambda: functional.scaled_dot_product_attention(*leaves, **how)
        finally:
            for x in leaves:
                x.requires_grad_(False)  # or they could not be resized to the whole again


def check_rows(size):
    """Our methods with ragged lengths and GQA: o against float64, gradients against one GPU."""
    for name, head_dim in itertools.product(METHODS, (64, 128)):
        torch.manual_seed(1)
        n = 2 * size * 517 if runtime.mode() == "gpu" else 2 * size * 5
        *whole, do = timing.random_inputs(1, 4 * size, n, head_dim, torch.bfloat16, kv_heads=size, differentiable=True)
        leaves = [shard(x.detach()).requires_grad_() for x in whole]
        o = METHODS[name](*leaves, causal=True)
        found = [unshard(x) for x in (o, *torch.autograd.grad(o, leaves, shard(do)))]
        errors = check_answers({"o": found[:1]}, whole, True)
        exact = torch.autograd.grad(flash_attention(*whole, causal=True), whole, do)
        errors |= {w: relative_error(x, y) for w, x, y in zip(("dq", "dk", "dv"), found[1:], exact, strict=True)}
        if not all(error < 2e-2 for error in errors.values()):
            raise RuntimeError(f"wrong answers: {name}, head_dim {head_dim}: {errors}")
        yield {"kind": "check", "method": name, "n": n, "head_dim": head_dim, "relative_error": errors}


def timed_rows(n, heads, kv_heads, mesh):
    """One GPU, our three methods, and PyTorch's, on one shape; and K and V on their way to the next rank, alone."""
    torch.manual_seed(1)  # the same on every rank
    shape = {"kind": "time", "n": n, "heads": heads, "kv_heads": kv_heads}
    *whole, do = timing.random_inputs(1, heads, n, HEAD_DIM, torch.bfloat16, kv_heads=kv_heads, differentiable=True)
    seconds = 0 if n >= LONG else 0.4
    o = flash_attention(*whole, causal=True)
    exact = [shard(x.detach()) for x in (o, *torch.autograd.grad(o, whole, do))]
    del o
    one = both_passes(partial(flash_attention, *whole, causal=True), whole, do, None, seconds)
    yield shape | {"method": "one_gpu"} | one
    do = shard(do)
    leaves = [shard(x.detach()).requires_grad_() for x in whole]

    def row(measured):
        return measured | {"times_one_gpu": {which: one["ms"][which] / ms for which, ms in measured["ms"].items()}}

    for name in METHODS if n < LONG else ("ring",):
        call = partial(METHODS[name], *leaves, causal=True)
        yield attempt(shape | {"method": name}, lambda call=call: row(both_passes(call, leaves, do, exact, seconds)))
    for (name, backend), rotation in itertools.product(timing.PEERS.items() if n < LONG else (), ROTATIONS):

        def theirs(backend=backend, rotation=rotation):
            with context_parallel(mesh, backend, rotation, whole) as (parts, call):
                return row(both_passes(call, parts, do, exact, seconds, checked=False))

        yield attempt(shape | {"method": f"context_parallel, {name}, {rotation}"}, theirs)
    yield attempt(shape | {"kind": "rotation"}, partial(rotation_alone, *(x.detach() for x in leaves[1:])))


def rotation_alone(k, v):
    ring, sent_bytes = distributed.ring_of(None), bytes_of(k, v)
    ms, _ = sustained(lambda: distributed.finish(distributed.rotate((k, v), ring)[1], ring), 0, 0.2)
    return {"ms": ms, "bytes": sent_bytes, "gb_per_s": sent_bytes / ms * 1e-6}


def span_rows(n, heads, kv_heads):
    """What the streams of each GPU do during one forward and one backward of the ring, by PyTorch's profiler."""
    inputs = timing.random_inputs(1, heads, n, HEAD_DIM, torch.bfloat16, kv_heads=kv_heads)
    *leaves, do = (shard(x) for x in inputs)
    leaves = [x.requires_grad_() for x in leaves]
    forward = partial(distributed.ring_attention, *leaves, causal=True)
    for which, call in (("forward", forward), ("backward", timing.backward_of(forward(), *leaves, do))):
        call()
        with torch.profiler.profile() as profiler:
            torch.cuda.synchronize()
            dist.barrier()
            call()
            torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            profiler.export_chrome_trace(f"{folder}/trace.json")
            events = json.loads(Path(folder, "trace.json").read_text(encoding="utf-8"))["traceEvents"]
        mine = [
            {
                "kind": "span", "pass": which, "n": n, "heads": heads, "kv_heads": kv_heads, "rank": dist.get_rank(),
                "stream": e["args"].get("stream"), "name": e["name"][:60], "start_us": e["ts"], "us": e["dur"],
            }
            for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        ]  # fmt: skip
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        spans = sorted(itertools.chain(*everyone), key=lambda span: (span["rank"], span["start_us"]))
        first_us = min((span["start_us"] for span in spans), default=0)
        yield from (span | {"start_us": round(span["start_us"] - first_us, 2)} for span in spans)


def parts(lengths, size, mesh):
    """(what it is, an iterator over its rows) of each part of the record."""
    yield {"kind": "check"}, check_rows(size)
    for n, shape in itertools.product(lengths, HEADS):
        if n < LONG or shape == HEADS[0]:
            yield {"kind": "time", "n": n, "heads": shape[0]}, timed_rows(n, *shape, mesh)
    for n in lengths:
        if n < LONG:
            yield {"kind": "span", "n": n}, span_rows(n, *HEADS[0])
    for n in STEP_LENGTHS:
        yield {"kind": "step", "n": n}, training_timing.rank_rows(n)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    records.add_options(parser)
    parser.add_argument("--length", type=int, nargs="*", default=LENGTHS, help="tokens of the whole sequence")
    options = parser.parse_args()
    rank, size, device = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), None
    if runtime.mode() == "gpu":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    backend = "nccl" if device else "gloo"
    dist.init_process_group(backend, device_id=device, timeout=datetime.timedelta(seconds=90))
    mesh = dist.init_device_mesh(runtime.device(), (size,))
    begin_s, rows, origin, writes = time.perf_counter(), [], {}, rank == 0 and options.json
    if writes:
        program = f"torch.distributed.run --nproc-per-node={size} -m courseware.bench.ring_timing"
        records.save(options, program, sys.argv[1:], {"gpus": size})
        origin = json.loads(Path(options.json).read_text(encoding="utf-8"))
        origin["driver"] = origin["driver"].split()[0]  # a line for each GPU
    for what, found in parts(options.length, size, mesh):
        try:
            for row in found:
                rows.append(row)
                if rank == 0 and row["kind"] != "span":
                    print(f"{time.perf_counter() - begin_s:.0f} s: {records.in_words(row)}", flush=True)
                if writes and row["kind"] != "span":
                    records.write(options.json, origin | {"rows": rows})
        except Exception as error:
            rows.append(what | {"error": f"{type(error).__name__}: {error}"[:400]})
            print(f"rank {rank}: {records.in_words(rows[-1])}", flush=True)
        if writes:
            records.write(options.json, origin | {"rows": rows})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
