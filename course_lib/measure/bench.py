"""Times the kernels against PyTorch's on one GPU, and writes records. `python -m course_lib bench --help` lists all.

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

from course_lib import runtime, traffic
from course_lib.measure import correctness, counters, experiments, records, sweep
from course_lib.measure.accuracy import check_answers, exact_attention, exact_gradients, relative_error
from course_lib.measure.timing import (
    HIDDEN_DIM,
    PEERS,
    TOKENS,
    back_to_back_s,
    backward_of,
    median_ms,
    peak_bytes,
    random_inputs,
    with_backend,
)


def compared_rows(head_dim, length, causal, dtype, with_flex=False):
    """One shape, forward and backward: relative Frobenius errors against float64, ms and TFLOP/s of all contestants."""
    from course_lib.kernels import flash_attention

    heads, batch = HIDDEN_DIM // head_dim, TOKENS // length
    q, k, v, do = random_inputs(batch, heads, length, head_dim, dtype)
    forward = {"ours": lambda: flash_attention(q, k, v, causal=causal)}
    for name, backend in PEERS.items():
        forward[name] = with_backend(backend, q, k, v, causal)
    if with_flex:
        forward["flex"] = _flex(q, k, v, causal)
    # Two heads suffice to compare errors; the score matrix of all would not fit in float64.
    few = [x[:1, :2].detach() for x in (q, k, v, do)]
    exact, _ = exact_attention(*few[:3], causal=causal)
    gradients = exact_gradients(*few, causal=causal)
    outputs = {name: call() for name, call in forward.items()}
    backward = {name: backward_of(o, q, k, v, do) for name, o in outputs.items()}
    errors = {
        "forward": {name: relative_error(o[:1, :2], exact) for name, o in outputs.items()},
        "backward": {
            name: max(relative_error(x[:1, :2], y) for x, y in zip(call(), gradients, strict=True))
            for name, call in backward.items()
        },
    }
    flops = traffic.attention_flops(length, length, head_dim, heads=heads, batch=batch) / (2 if causal else 1)
    rows = []
    for which, contestants, flops_here in (("forward", forward, flops), ("backward", backward, 2.5 * flops)):
        ours = [outputs["ours"].detach()] if which == "forward" else backward["ours"]()
        check_answers({"ours": ours}, (q, k, v) if which == "forward" else (q, k, v, do), causal)
        with torch.set_grad_enabled(which == "backward"):
            times_ms = median_ms(contestants)
        rows.append({
            "pass": which, "dtype": str(dtype).removeprefix("torch."), "batch": batch, "heads": heads,
            "n": length, "head_dim": head_dim, "causal": causal,
            "relative_error": errors[which], "ms": times_ms,
            "tflops": {name: flops_here / ms * 1e-9 for name, ms in times_ms.items()},
        })  # fmt: skip
    return rows


def _flex(q, k, v, causal):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n = q.shape[2]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cuda") if causal else None
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=mask)


def comparison(options):
    """The rows of all requested shapes. Each is printed as soon as it is measured."""
    torch.manual_seed(0)
    rows = []
    for head_dim in options.head_dim:
        for causal in (False, True):
            for length in options.length:
                for row in compared_rows(head_dim, length, causal, getattr(torch, options.dtype), options.flex):
                    rows.append(row)
                    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in row["tflops"].items())
                    ratio = row["tflops"]["ours"] / row["tflops"]["sdpa_flash"]
                    print(
                        f"{row['pass']} d={head_dim} N={length} {'causal' if causal else 'full'}: TFLOP/s {rates}; "
                        f"ours / sdpa_flash {ratio:.2f}",
                        flush=True,
                    )
                torch.compiler.reset()  # FlexAttention refuses to compile again after a number of shapes
    return {"rows": rows}


# What differs from the base shape: fp16, batch 4, 16 heads, length 4096, head_dim 128.
SHAPES = {
    "fp16": {}, "bf16": {"dtype": torch.bfloat16}, "ragged length": {"length": 4095},
    "head_dim 64": {"head_dim": 64, "heads": 32}, "head_dim 80": {"head_dim": 80}, "head_dim 96": {"head_dim": 96},
    "grouped heads": {"kv_heads": 2}, "head_dim 32": {"head_dim": 32, "heads": 64},
    "head_dim 256": {"head_dim": 256, "heads": 8},
}  # fmt: skip


def shape_rows():
    """Our kernels alone, causal and not, for each of SHAPES."""
    from course_lib.kernels import flash_attention

    torch.manual_seed(0)
    rows = []
    for causal in (False, True):
        for name, changed in SHAPES.items():
            shape = {"batch": 4, "heads": 16, "length": 4096, "head_dim": 128, "dtype": torch.float16} | changed
            q, k, v, do = random_inputs(**shape)
            o = flash_attention(q, k, v, causal=causal)
            with torch.no_grad():
                times_ms = median_ms({"forward": lambda q=q, k=k, v=v, c=causal: flash_attention(q, k, v, causal=c)})
            times_ms |= median_ms({"backward": backward_of(o, q, k, v, do)})
            rows.append({"name": name, "causal": causal, **shape, "dtype": str(shape["dtype"]), "ms": times_ms})
            print(f"{name}, {'causal' if causal else 'full'}: {times_ms}", flush=True)
    return rows


def memory_and_host_time():
    """Peak bytes over inputs and results, the time of a long sequence, and the host's time for one small call."""
    from course_lib.kernels import flash_attention

    q, k, v, do = random_inputs(1, 16, 4096, 128, torch.float16)
    o = flash_attention(q, k, v)
    statistics_bytes = 16 * 4096 * 4
    measured = {
        "forward_peak_bytes": peak_bytes(lambda: [flash_attention(q, k, v)]),
        "backward_peak_bytes": peak_bytes(backward_of(o, q, k, v, do)),
        "lse_bytes": statistics_bytes,
        "delta_bytes": statistics_bytes,
    }
    q, k, v, do = random_inputs(1, 1, 131072, 128, torch.float16)
    o = flash_attention(q, k, v, causal=True)
    measured["n_131072_ms"] = median_ms(
        {"forward": lambda: flash_attention(q, k, v, causal=True), "backward": backward_of(o, q, k, v, do)}, rounds=5
    )
    small = [x.detach() for x in random_inputs(1, 8, 128, 64, torch.float16)[:3]]
    calls = {
        "ours": lambda: flash_attention(*small, causal=True),
        "sdpa_flash": lambda: scaled_dot_product_attention(*small, is_causal=True),
    }
    # Entered once and not in every call, as `with_backend` does: choosing a backend takes the host's time.
    with sdpa_kernel(PEERS["sdpa_flash"]):
        host_s = back_to_back_s(calls, calls=100, wait=False)
    measured["n_128_host_us"] = {name: 1e6 * seconds for name, seconds in host_s.items()}
    return measured


# Option -> (what it measures, a function from the options to the record's contents).
EXPERIMENTS = {
    "shapes": (
        "our kernels alone: dtypes, ragged lengths, head dimensions, grouped heads, memory, the host's time",
        lambda options: {"rows": shape_rows()} | memory_and_host_time(),
    ),
    "standard": (
        "standard attention against FlashAttention over the lengths: time and peak memory",
        lambda options: {"rows": experiments.standard_rows()},
    ),
    "ladder": (
        "every rung of the forward kernel's ladder, kept and rejected",
        lambda options: {"rows": experiments.ladder_rows()},
    ),
    "dram": (
        "bytes by the GPU's own counters, standard and FlashAttention; needs Nsight Compute's ncu on the path",
        lambda options: {"rows": counters.dram_rows()},
    ),
    "tf32": (
        "errors of lesson 08's kernel on fp32 inputs, with TF32 and with IEEE products",
        lambda options: experiments.precision_errors(),
    ),
    "fp32": (
        "fp32 inputs, beside PyTorch's memory-efficient and unfused kernels: speed and error",
        lambda options: {"rows": experiments.fp32_rows()},
    ),
    "correctness": (
        "no times: the test suite on this GPU, and some calls under NVIDIA's compute-sanitizer",
        lambda options: {"correctness": correctness.correctness()},
    ),
}


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m course_lib bench",
        description="Time the kernels against PyTorch's, side by side on this GPU. The contestants take turns, the L2 "
        "cache is flushed before each call, and the median counts. One of the experiments below runs instead if named.",
    )
    parser.add_argument("--json", metavar="FILE", help="write the record here, in the form of course_lib/data/")
    parser.add_argument("--commit", help="the commit measured, where the files come without their git history")
    shapes = parser.add_argument_group("the comparison")
    shapes.add_argument("--head-dim", type=int, nargs="+", default=[64, 128], help="also those that --tune sweeps")
    shapes.add_argument("--length", type=int, nargs="+", default=[1024, 4096, 16384], help="of the sequences")
    shapes.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    shapes.add_argument("--flex", action="store_true", help="add FlexAttention, which compiles for every shape anew")
    group = parser.add_argument_group("experiments").add_mutually_exclusive_group()
    for name, (help_text, measure) in EXPERIMENTS.items():
        group.add_argument(f"--{name}", dest="measure", action="store_const", const=measure, help=help_text)
    group.add_argument(
        "--tune", nargs="?", choices=tuple(sweep.KERNELS), const="forward",
        help="every configuration of the forward kernel, or of the backward's two; takes minutes",
    )  # fmt: skip
    return parser


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    options = _parser().parse_args(argv)
    if runtime.mode() != "gpu":
        print("bench times compiled kernels and needs a GPU; there is none here", file=sys.stderr)
        return 1
    if options.tune:
        measured = {"rows": sweep.sweep_rows(options.tune, options.head_dim)}
    else:
        measured = (options.measure or comparison)(options)
    if "rows" not in measured:
        print(measured)  # the others print each row as soon as it is measured
    if options.json:
        # The record names its file, not where one machine keeps it.
        words = [Path(word).name if word == options.json else word for word in argv]
        command = shlex.join(["python", "-m", "course_lib", "bench", *words])
        records.write(options.json, measured, command=command, commit=options.commit)
    return 0
