"""Times the kernels against PyTorch's on one GPU, and writes records. `python -m courseware bench --help` lists all.

The answers of ours are checked against float64 on fresh random data before anything is timed. The backward pass is
timed alone and counts 2.5 times the FLOPs of the forward, a causal call half of them, as published figures do.
"""

import argparse
import importlib
import inspect
import itertools
import sys

import torch
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from course_lib import kernels, runtime
from course_lib.kernels import attention
from courseware.bench import records, timing, variant_timing
from courseware.bench.timing import PEERS, backward_of, median_ms, random_inputs

LENGTHS = 1024, 4096, 16_384


def compared_rows(head_dim, length, causal, dtype, with_flex=False):
    """One shape, forward and backward: relative Frobenius errors against float64, ms and TFLOP/s of all contestants."""
    shape = {"batch": timing.TOKENS // length, "heads": timing.HIDDEN_DIM // head_dim, "n": length}
    inputs = random_inputs(*shape.values(), head_dim, dtype, differentiable=True)
    q, k, v, do = inputs
    forward = timing.forward_calls(PEERS, q, k, v, causal)
    if with_flex:
        case = variant_timing.case_of("causal" if causal else "full", length, shape["heads"], q.device)
        forward["flex"] = variant_timing.flex_call(case, q, k, v)
    backward = {name: backward_of(call(), *inputs) for name, call in forward.items()}
    for which, calls, given in (("forward", forward, (q, k, v)), ("backward", backward, inputs)):
        with torch.set_grad_enabled(which == "backward"):
            found = timing.compare(calls, given, causal)
        yield {
            "pass": which, "dtype": timing.name_of(dtype), **shape, "head_dim": head_dim, "causal": causal, **found,
        }  # fmt: skip


def comparison(options):
    """Ours and PyTorch's kernels, forward and backward, at each length and head dimension, causal and not."""
    lengths, dtype = options.length or LENGTHS, getattr(torch, options.dtype)
    for head_dim, causal, length in itertools.product(options.head_dim, (False, True), lengths):
        yield from compared_rows(head_dim, length, causal, dtype, options.flex)
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
    for causal, (name, changed) in itertools.product((False, True), SHAPES.items()):
        shape = {"batch": 4, "heads": 16, "length": 4096, "head_dim": 128, "dtype": torch.float16} | changed
        forward, backward = _both_passes(causal, **shape)
        with torch.no_grad():
            times_ms = median_ms({"forward": forward})
        times_ms |= median_ms({"backward": backward})
        yield {"name": name, "causal": causal, **shape, "dtype": str(shape["dtype"]), "ms": times_ms}


def _both_passes(causal, **shape):
    """The forward and the backward of `flash_attention` on random inputs, as callables."""
    q, k, v, do = random_inputs(**shape, differentiable=True)
    forward = timing.forward_calls({}, q, k, v, causal)["ours"]
    return forward, backward_of(forward(), q, k, v, do)


def memory_and_host_time():
    """Peak bytes over inputs and results, the time of a long sequence, and the host's time for one small call."""
    half = {"dtype": torch.float16, "batch": 1}
    forward, backward = _both_passes(False, heads=16, length=4096, head_dim=128, **half)
    statistics_bytes = 16 * 4096 * 4
    measured = {
        "forward_peak_bytes": timing.peak_bytes(lambda: [forward()]),
        "backward_peak_bytes": timing.peak_bytes(backward),
        "lse_bytes": statistics_bytes,
        "delta_bytes": statistics_bytes,
    }
    both = _both_passes(True, heads=1, length=131072, head_dim=128, **half)
    measured["n_131072_ms"] = median_ms(dict(zip(("forward", "backward"), both, strict=True)), rounds=5)
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


def experiments():
    """{option: function} of the records that are measured here. A function may take the command's options.

    It returns the record's contents, or its rows one by one.
    """
    found = {}
    for name, kind in records.KINDS.items():
        if "measure" in kind:
            module, _, function = kind["measure"].partition(".")
            found[name] = getattr(importlib.import_module(f"courseware.bench.{module}"), function)
    return found


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m courseware bench",
        description="Time the kernels against PyTorch's, side by side on this GPU. The contestants take turns, the L2 "
        "cache is flushed before each call, and the median counts. One of the experiments below runs instead if named.",
    )
    records.add_options(parser)
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
    for name, measure in experiments().items():
        if measure is not comparison:
            lessons = ", ".join(f"{number:02}" for number in records.KINDS[name]["lessons"])
            described = measure.__doc__.splitlines()[0] + (f" (lesson {lessons})" if lessons else "")
            group.add_argument(f"--{name}", dest="measure", action="store_const", const=measure, help=described)
    parser.set_defaults(measure=comparison)
    return parser


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    options = _parser().parse_args(argv)
    if runtime.mode() != "gpu":
        print("bench times compiled kernels and needs a GPU; there is none here", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    attention.PORTABLE = options.portable
    takes_options = inspect.signature(options.measure).parameters
    measured = options.measure(options) if takes_options else options.measure()
    if isinstance(measured, dict):
        print(records.in_words({name: value for name, value in measured.items() if name != "rows"}))
    else:
        measured = {"rows": shown(measured)}
    records.save(options, "courseware bench", argv, measured)
    return 0
