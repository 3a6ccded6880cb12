"""Times the kernels against PyTorch's, side by side on one GPU, and records what was measured with where and how.

    python -m course_lib bench [--json FILE] [--head-dim 64 128] [--length 1024 4096 16384] [--dtype float16] [--flex]
    python -m course_lib bench --shapes [--json FILE]           ours alone: dtypes, ragged shapes, grouped heads, memory
    python -m course_lib bench --standard | --ladder | --dram | --tf32 | --tune [backward]   experiments of the lessons
    python -m course_lib bench --correctness [--json FILE]      runs the test suite on this GPU instead

For each shape: first the answers, on fresh random data against float64; then times. Runs of all contestants take
turns, in an order that is reversed every second round, the L2 cache is flushed before each, and the median counts.
Shapes are those of the FlashAttention-3 paper: hidden dimension 2048, 16384 tokens in total. The backward is timed
alone and counts 2.5 times the forward's FLOPs, a causal call half of them, as all published figures do.
"""

import argparse
import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from course_lib import runtime, traffic

HIDDEN_DIM = 2048
TOKENS = 16384
PEERS = {"sdpa_flash": SDPBackend.FLASH_ATTENTION, "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION}
L2_FLUSH_BYTES = 256 * 2**20
HEAD_START_CLOCKS = 3_000_000  # more than a millisecond


def provenance(command, commit=None):
    """Where and how a record was measured: what a figure must name."""
    import triton

    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver.stdout.strip() or None,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "date": datetime.date.today().isoformat(),
        "commit": commit or git.stdout.strip() or None,
        "command": command,
    }


def median_ms(contestants, rounds=30):
    """{name: median milliseconds} of callables that take turns on the current GPU.

    The GPU is kept waiting before each, so that the host has prepared the call by then: a call whose kernels are short
    would else be timed with the gaps in which the GPU waits for the host.
    """
    flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    times_ms = {name: [] for name in contestants}
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
            times_ms[name].append((begin, end))
    torch.cuda.synchronize()
    return {n: statistics.median(b.elapsed_time(e) for b, e in pairs) for n, pairs in times_ms.items()}


def random_inputs(batch, heads, length, head_dim, dtype, *, kv_heads=None):
    """q, k, v and a gradient of the output, on the GPU; q, k and v require gradients."""
    shapes = [(batch, n_heads, length, head_dim) for n_heads in (heads, kv_heads or heads, kv_heads or heads, heads)]
    q, k, v, do = (torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), do


def backward_of(o, q, k, v, do):
    """A callable that runs the backward of o alone, and can be called again."""
    return lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True)


def compared_rows(head_dim, length, causal, dtype, with_flex=False):
    """One shape, forward and backward: relative Frobenius errors against float64, ms and TFLOP/s of all contestants."""
    from course_lib.kernels import flash_attention
    from course_lib.measure.accuracy import exact_attention, exact_gradients

    heads, batch = HIDDEN_DIM // head_dim, TOKENS // length
    q, k, v, do = random_inputs(batch, heads, length, head_dim, dtype)
    forward = {"ours": lambda: flash_attention(q, k, v, causal=causal)}
    for name, backend in PEERS.items():
        forward[name] = peer(backend, q, k, v, causal)
    if with_flex:
        forward["flex"] = _flex(q, k, v, causal)
    # Two heads suffice for the check; the score matrix of more would not fit in float64.
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


def check_answers(answers, inputs, causal=False):
    """Raise RuntimeError unless all keep the error budget of `kernels.accuracy`: what is wrong is not timed.

    answers: name -> [o], if inputs are (q, k, v), or (dq, dk, dv), if they are (q, k, v, do), with None for what was
    not computed. As many kv heads as heads. Looked at are the first sequence's first head and the last one's last.
    """
    from course_lib.measure.accuracy import check_attention, check_gradients

    for sequence, head in ((slice(1), slice(1)), (slice(-1, None), slice(-1, None))):
        given = [x.detach()[sequence, head] for x in inputs]
        for name, tensors in answers.items():
            found = [None if x is None else x.detach()[sequence, head] for x in tensors]
            try:
                if len(given) == 3:
                    check_attention(*found, *given, causal=causal)
                else:
                    check_gradients(found, *given, causal=causal)
            except AssertionError as error:
                raise RuntimeError(f"wrong answers are not timed: {name}, {list(inputs[0].shape)}: {error}") from None


def relative_error(x, exact):
    return float((x.detach() - exact).norm() / exact.norm())


def peer(backend, q, k, v, causal):
    """A callable: PyTorch's attention by one of its backends."""

    def call():
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return call


def _flex(q, k, v, causal):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n = q.shape[2]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cuda") if causal else None
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=mask)


def compared(options):
    """The rows of all shapes asked for, each printed when it is there."""
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
                torch.compiler.reset()  # or FlexAttention gives up after a number of shapes
    return rows


# What a shape is held against: the same with one thing made round, or of the other kind.
SHAPES = {
    "fp16": {}, "bf16": {"dtype": torch.bfloat16}, "ragged length": {"length": 4095},
    "head_dim 64": {"head_dim": 64, "heads": 32}, "head_dim 80": {"head_dim": 80}, "head_dim 96": {"head_dim": 96},
    "grouped heads": {"kv_heads": 2}, "head_dim 32": {"head_dim": 32, "heads": 64},
    "head_dim 256": {"head_dim": 256, "heads": 8},
}  # fmt: skip


def shape_rows():
    """Ours alone at batch 4, 16 heads, length 4096, head_dim 128, fp16, and with one thing changed at a time."""
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


def peak_bytes(call):
    """Most bytes held during a call, beyond what was there before and the tensors it returns."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results = call()
    torch.cuda.synchronize()
    kept = sum(x.numel() * x.element_size() for x in results)
    return torch.cuda.max_memory_allocated() - before - kept


def memory_and_launch():
    """Peak bytes over inputs and results, a long sequence's time, and what one small call costs the host."""
    from course_lib.kernels import flash_attention

    q, k, v, do = random_inputs(1, 16, 4096, 128, torch.float16)
    o = flash_attention(q, k, v)
    rows_bytes = 16 * 4096 * 4
    measured = {
        "forward_peak_bytes": peak_bytes(lambda: [flash_attention(q, k, v)]),
        "backward_peak_bytes": peak_bytes(backward_of(o, q, k, v, do)),
        "lse_bytes": rows_bytes,
        "delta_bytes": rows_bytes,
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
    # Chosen once and not by `peer` in every call: choosing costs the host time, and is no part of attention.
    with sdpa_kernel(PEERS["sdpa_flash"]):
        quickest_s = least_mean_s(calls, calls=100, wait=False)
    measured["n_128_host_us"] = {name: 1e6 * seconds for name, seconds in quickest_s.items()}
    return measured


def least_mean_s(contestants, *, calls, wait, least_rounds=5, least_s=2.0):
    """{name: seconds of one call in the quickest train of `calls`} of callables that take turns.

    wait: for the GPU to end, at the end of each train; else only what the host spends counts. least_rounds, least_s:
    trains go on until there were that many of each and that many seconds have passed, for a host that shares its
    cores is slow for a while now and then.
    """
    quickest_s = dict.fromkeys(contestants, float("inf"))
    rounds, end_s = 0, time.perf_counter() + least_s
    while rounds < least_rounds or time.perf_counter() < end_s:
        rounds += 1
        for name, call in contestants.items():
            torch.cuda.synchronize()
            begin_s = time.perf_counter()
            for _ in range(calls):
                call()
            if wait:
                torch.cuda.synchronize()
            quickest_s[name] = min(quickest_s[name], (time.perf_counter() - begin_s) / calls)
    return quickest_s


def correctness():
    """The whole test suite where kernels are compiled, browsers excepted, and some calls under compute-sanitizer."""
    calls = [sys.executable, "-c", "from course_lib.measure import bench; bench.sanitized_calls()"]
    sanitizers = {
        tool: subprocess.Popen(["compute-sanitizer", "--tool", tool, *calls], stdout=subprocess.PIPE, text=True)
        for tool in ("memcheck", "racecheck")
    }
    workers = str(min(15, max(1, os.cpu_count() - len(sanitizers))))  # each has its share of the GPU's memory
    pytest = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "-n", workers]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        subprocess.run([*pytest, f"--junitxml={report}", "tests", "--ignore", "tests/browser"], check=False)
        suite = ElementTree.parse(report).getroot().find("testsuite")
    failed, skipped = (sum(int(suite.get(key)) for key in keys) for keys in (("failures", "errors"), ("skipped",)))
    result = {
        "passed": int(suite.get("tests")) - failed - skipped,
        "failed": failed,
        "skipped": skipped,
        "minutes": float(suite.get("time")) / 60,
    }
    for tool, process in sanitizers.items():
        lines = [line.strip("= \n") for line in process.communicate()[0].splitlines()]
        result[tool] = "; ".join(line for line in lines if "SUMMARY" in line or "calls agree" in line)
    return result


def sanitized_calls():
    """Forward and backward on shapes that take every path, few enough for a sanitizer, which slows them a lot."""
    from course_lib.kernels import flash_attention
    from course_lib.measure.accuracy import check_attention, check_gradients

    torch.manual_seed(0)
    # Ragged and unequal lengths by pointers, grouped heads; then keys enough for tensor descriptors.
    shapes = [(130, 200, 64, True), (129, 77, 40, False), (600, 600, 128, True), (640, 640, 128, False)]
    for n_q, n_k, head_dim, causal in shapes:
        q, do, k, v = (
            torch.randn(1, heads, n, head_dim, device="cuda", dtype=torch.float16)
            for heads, n in ((4, n_q), (4, n_q), (2, n_k), (2, n_k))
        )
        inputs = [x.requires_grad_() for x in (q, k, v)]
        o, lse = flash_attention(*inputs, causal=causal, return_lse=True)
        check_attention((o.detach(), lse.detach()), q.detach(), k.detach(), v.detach(), causal=causal)
        gradients = torch.autograd.grad(o, inputs, do)
        check_gradients(gradients, q.detach(), k.detach(), v.detach(), do, causal=causal)
    print(f"{len(shapes)} forward and {len(shapes)} backward calls agree with float64")


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="python -m course_lib bench", description=__doc__.split("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the record here, as course_lib/data/ holds them")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--length", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--flex", action="store_true", help="FlexAttention too, which compiles for every shape anew")
    parser.add_argument("--shapes", action="store_true", help="time ours alone, over dtypes and uneven shapes")
    parser.add_argument("--standard", action="store_true", help="standard attention against ours, over the lengths")
    parser.add_argument("--ladder", action="store_true", help="the rungs of the forward kernel's ladder")
    parser.add_argument("--dram", action="store_true", help="bytes by the hardware's counters; needs ncu")
    parser.add_argument("--tf32", action="store_true", help="errors on fp32 of TF32 and of IEEE products")
    parser.add_argument(
        "--tune", nargs="?", choices=("forward", "backward"), const="forward",
        help="every configuration of the forward, or of the backward; takes minutes",
    )  # fmt: skip
    parser.add_argument("--correctness", action="store_true", help="run the test suite on this GPU, time nothing")
    parser.add_argument("--commit", help="what is measured, where the tree comes without its git history")
    options = parser.parse_args(argv)
    from course_lib.measure import experiments  # which takes this module's clock

    if runtime.mode() != "gpu":
        print("bench times compiled kernels and needs a GPU; there is none here", file=sys.stderr)
        return 1
    if options.correctness:
        measured = {"correctness": correctness()}
        print(measured["correctness"])
    elif options.shapes:
        measured = {"rows": shape_rows()} | memory_and_launch()
    elif options.standard:
        measured = {"rows": experiments.standard_rows()}
    elif options.ladder:
        measured = {"rows": experiments.ladder_rows()}
    elif options.dram:
        measured = {"rows": experiments.dram_rows()}
    elif options.tf32:
        measured = experiments.precision_errors()
    elif options.tune:
        measured = {"rows": experiments.tune_rows(options.tune, options.head_dim)}
    else:
        measured = {"rows": compared(options)}
    if options.json:
        # The record names its file, not where one machine keeps it.
        words = [Path(word).name if word == options.json else word for word in argv]
        record = {**provenance(shlex.join(["python", "-m", "course_lib", "bench", *words]), options.commit), **measured}
        with open(options.json, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    return 0
