"""Times the kernels against PyTorch's on one GPU, and writes records. `python -m courseware bench --help` lists all.

The answers of every contestant are checked against float64 on fresh random data before anything is timed. The
backward pass is timed alone and counts 2.5 times the FLOPs of the forward, a causal call half of them, as published
figures do.
"""

import argparse
import shlex
import sys
from pathlib import Path

import torch
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from course_lib import kernels, runtime
from course_lib.kernels import attention
from courseware.bench import (
    counters,
    cuda_timing,
    decode_timing,
    experiments,
    hopper_timing,
    records,
    serving_timing,
    timing,
    variant_timing,
)
from courseware.bench.accuracy import check_answers, exact_attention, exact_gradients, relative_error
from courseware.bench.timing import PEERS, backward_of, median_ms, random_inputs

LENGTHS = 1024, 4096, 16_384


def compared_rows(head_dim, length, causal, dtype, with_flex=False):
    """One shape, forward and backward: relative Frobenius errors against float64, ms and TFLOP/s of all contestants."""
    heads, batch = timing.HIDDEN_DIM // head_dim, timing.TOKENS // length
    q, k, v, do = random_inputs(batch, heads, length, head_dim, dtype, differentiable=True)
    forward = timing.forward_calls(PEERS, q, k, v, causal)
    if with_flex:
        forward["flex"] = _flex(q, k, v, causal)
    outputs = {name: call() for name, call in forward.items()}
    backward = {name: backward_of(o, q, k, v, do) for name, o in outputs.items()}
    # Two heads suffice to compare errors; the score matrix of all would not fit in float64.
    few = [x[:1, :2].detach() for x in (q, k, v, do)]
    exact, gradients = exact_attention(*few[:3], causal=causal)[:1], exact_gradients(*few, causal=causal)
    # The backward has 2.5 times the FLOPs of the forward.
    for which, calls, right, flops in (("forward", forward, exact, 1.0), ("backward", backward, gradients, 2.5)):
        answers = {name: [outputs[name]] if which == "forward" else call() for name, call in calls.items()}
        check_answers({"ours": answers["ours"]}, (q, k, v) if which == "forward" else (q, k, v, do), causal)
        errors = {name: max(map(relative_error, found, right)) for name, found in answers.items()}
        with torch.set_grad_enabled(which == "backward"):
            times_ms = median_ms(calls)
        yield {
            "pass": which, "dtype": str(dtype).removeprefix("torch."), "batch": batch, "heads": heads,
            "n": length, "head_dim": head_dim, "causal": causal, "relative_error": errors, "ms": times_ms,
            "tflops": {
                name: flops * timing.tflops(ms, length, head_dim, heads, batch, causal) for name, ms in times_ms.items()
            },
        }  # fmt: skip


def _flex(q, k, v, causal):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n = q.shape[2]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cuda") if causal else None
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=mask)


def comparison(options):
    """The rows of all requested shapes."""
    for head_dim in options.head_dim:
        for causal in (False, True):
            for length in options.length or LENGTHS:
                yield from compared_rows(head_dim, length, causal, getattr(torch, options.dtype), options.flex)
                torch.compiler.reset()  # FlexAttention refuses to compile again after a number of shapes


# What differs from the base shape: fp16, batch 4, 16 heads, length 4096, head_dim 128.
SHAPES = {
    "fp16": {}, "bf16": {"dtype": torch.bfloat16}, "ragged length": {"length": 4095},
    "head_dim 64": {"head_dim": 64, "heads": 32}, "head_dim 80": {"head_dim": 80}, "head_dim 96": {"head_dim": 96},
    "grouped heads": {"kv_heads": 2}, "head_dim 32": {"head_dim": 32, "heads": 64},
    "head_dim 256": {"head_dim": 256, "heads": 8},
}  # fmt: skip


def shape_rows():
    """Our kernels alone, causal and not, for each of SHAPES."""
    for causal in (False, True):
        for name, changed in SHAPES.items():
            shape = {"batch": 4, "heads": 16, "length": 4096, "head_dim": 128, "dtype": torch.float16} | changed
            q, k, v, do = random_inputs(**shape, differentiable=True)
            forward = timing.forward_calls({}, q, k, v, causal)["ours"]
            backward = backward_of(forward(), q, k, v, do)
            with torch.no_grad():
                times_ms = median_ms({"forward": forward})
            times_ms |= median_ms({"backward": backward})
            yield {"name": name, "causal": causal, **shape, "dtype": str(shape["dtype"]), "ms": times_ms}


def memory_and_host_time():
    """Peak bytes over inputs and results, the time of a long sequence, and the host's time for one small call."""
    q, k, v, do = random_inputs(1, 16, 4096, 128, torch.float16, differentiable=True)
    o = kernels.flash_attention(q, k, v)
    statistics_bytes = 16 * 4096 * 4
    measured = {
        "forward_peak_bytes": timing.peak_bytes(lambda: [kernels.flash_attention(q, k, v)]),
        "backward_peak_bytes": timing.peak_bytes(backward_of(o, q, k, v, do)),
        "lse_bytes": statistics_bytes,
        "delta_bytes": statistics_bytes,
    }
    q, k, v, do = random_inputs(1, 1, 131072, 128, torch.float16, differentiable=True)
    forward = timing.forward_calls({}, q, k, v, causal=True)["ours"]
    both = {"forward": forward, "backward": backward_of(forward(), q, k, v, do)}
    measured["n_131072_ms"] = median_ms(both, rounds=5)
    small = random_inputs(1, 8, 128, 64, torch.float16)[:3]
    calls = {
        "ours": lambda: kernels.flash_attention(*small, causal=True),
        "sdpa_flash": lambda: scaled_dot_product_attention(*small, is_causal=True),
    }
    # Entered once and not in every call, as `forward_calls` does: choosing a backend takes the host's time.
    with sdpa_kernel(PEERS["sdpa_flash"]):
        host_s = timing.back_to_back_s(calls, calls=100, wait=False)
    measured["n_128_host_us"] = {name: 1e6 * seconds for name, seconds in host_s.items()}
    return measured


def shapes():
    """Our kernels alone: dtypes, ragged lengths, head dimensions, grouped heads, memory, the host's time."""
    return {"rows": shown(shape_rows())} | memory_and_host_time()


# Option -> a function that returns the record's contents, or its rows one by one; its first line of documentation is
# the option's help.
EXPERIMENTS = {
    "shapes": shapes,
    "standard": experiments.standard_rows,
    "ladder": experiments.ladder_rows,
    "dram": counters.dram_rows,
    "tf32": experiments.precision_errors,
    "fp32": experiments.fp32_rows,
    "cuda": cuda_timing.cuda_rows,
    "cuda-counters": cuda_timing.cuda_counter_rows,
    "decode": decode_timing.decode_rows,
    "decode-counters": decode_timing.counter_rows,
    "serve": serving_timing.served_rows,
    "hopper": hopper_timing.hopper_rows,
    "hopper-backward": hopper_timing.hopper_backward_rows,
    "hopper-counters": hopper_timing.hopper_counter_rows,
}


def shown(rows):
    """The rows as a list. Each is printed as soon as it is measured, with our speed relative to each peer's."""
    found = []
    for row in rows:
        found.append(row)
        speeds = row.get("tflops", row.get("gb_per_s"))
        speeds = speeds if isinstance(speeds, dict) else {}
        ratios = {f"ours / {peer}": speeds["ours"] / speed for peer, speed in speeds.items() if peer != "ours"}
        print(records.in_words(row | ratios), flush=True)
    return found


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m courseware bench",
        description="Time the kernels against PyTorch's, side by side on this GPU. The contestants take turns, the L2 "
        "cache is flushed before each call, and the median counts. One of the experiments below runs instead if named.",
    )
    parser.add_argument("--json", metavar="FILE", help="write the record here, in the form of courseware/data/")
    parser.add_argument("--commit", help="the commit measured, where the files come without their git history")
    shapes = parser.add_argument_group("the comparison, and --variants")
    shapes.add_argument("--head-dim", type=int, nargs="+", default=[64, 128])
    shapes.add_argument("--length", type=int, nargs="+", help="of the sequences")
    shapes.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    shapes.add_argument("--flex", action="store_true", help="add FlexAttention, which compiles for every shape anew")
    parser.add_argument(
        "--portable", action="store_true",
        help="leave out lesson 15's kernels, which GPUs of compute capability 9.0 take, as lessons 08 to 11 do",
    )  # fmt: skip
    group = parser.add_argument_group("experiments").add_mutually_exclusive_group()
    for name, measure in EXPERIMENTS.items():
        described = measure.__doc__.splitlines()[0]
        group.add_argument(f"--{name}", dest="measure", action="store_const", const=measure, help=described)
    described = variant_timing.variant_rows.__doc__
    group.add_argument("--variants", action="store_true", help=described)
    return parser


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    options = _parser().parse_args(argv)
    if runtime.mode() != "gpu":
        print("bench times compiled kernels and needs a GPU; there is none here", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    attention.PORTABLE = options.portable
    if options.variants:
        dtype = getattr(torch, options.dtype)
        lengths = options.length or variant_timing.LENGTHS
        measured = variant_timing.variant_rows(options.head_dim, lengths, dtype, options.flex)
    else:
        measured = options.measure() if options.measure else comparison(options)
    if isinstance(measured, dict):
        print(records.in_words({name: value for name, value in measured.items() if name != "rows"}))
    else:
        measured = {"rows": shown(measured)}
    if options.json:
        # The record names its file, not where one machine keeps it.
        words = [Path(word).name if word == options.json else word for word in argv]
        command = shlex.join(["python", "-m", "courseware", "bench", *words])
        records.write(options.json, measured, command=command, commit=options.commit)
    return 0
