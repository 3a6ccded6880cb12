"""Times the kernels against PyTorch's, side by side on one GPU, and records what was measured with where and how.

    python -m course_lib bench [--json FILE] [--head-dim 64 128] [--length 1024 4096 16384] [--dtype float16]
    python -m course_lib bench --correctness [--json FILE]      runs the kernels' tests on this GPU instead

For each shape: first the answers, on fresh random data against float64; then times. Runs of all contestants take
turns, in an order that is reversed every second round, the L2 cache is flushed before each, and the median counts.
Shapes are those of the FlashAttention-3 paper: hidden dimension 2048, 16384 tokens in total. A causal call counts
half the FLOPs, as all published figures do.
"""

import argparse
import datetime
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
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
    """{name: median milliseconds} of callables that take turns on the current GPU."""
    flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    times_ms = {name: [] for name in contestants}
    for call in contestants.values():
        for _ in range(3):
            call()
    for index in range(rounds):
        for name in list(contestants)[:: 1 if index % 2 else -1]:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            begin.record()
            contestants[name]()
            end.record()
            times_ms[name].append((begin, end))
    torch.cuda.synchronize()
    return {n: statistics.median(b.elapsed_time(e) for b, e in pairs) for n, pairs in times_ms.items()}


def forward_row(head_dim, length, causal, dtype):
    """One shape: relative Frobenius errors against float64, milliseconds and TFLOP/s of ours and the peers."""
    from course_lib.kernels import flash_attention
    from course_lib.kernels.accuracy import exact_attention

    heads, batch = HIDDEN_DIM // head_dim, TOKENS // length
    q, k, v = (torch.randn(batch, heads, length, head_dim, device="cuda", dtype=dtype) for _ in range(3))
    contestants = {"ours": lambda: flash_attention(q, k, v, causal=causal)}
    for name, backend in PEERS.items():
        contestants[name] = _peer(backend, q, k, v, causal)
    # Two heads suffice for the check; the score matrix of more would not fit in float64.
    exact, _ = exact_attention(q[:1, :2], k[:1, :2], v[:1, :2], causal=causal)
    errors = {name: float((call()[:1, :2] - exact).norm() / exact.norm()) for name, call in contestants.items()}
    if not errors["ours"] <= 2 * errors["sdpa_flash"] + 2 * torch.finfo(dtype).eps:
        raise RuntimeError(f"wrong answers are not timed: relative errors {errors}")
    times_ms = median_ms(contestants)
    flops = traffic.attention_flops(length, length, head_dim, heads=heads, batch=batch) / (2 if causal else 1)
    return {
        "pass": "forward", "dtype": str(dtype).removeprefix("torch."), "batch": batch, "heads": heads,
        "n": length, "head_dim": head_dim, "causal": causal,
        "relative_error": errors, "ms": times_ms,
        "tflops": {name: flops / ms * 1e-9 for name, ms in times_ms.items()},
    }  # fmt: skip


def _peer(backend, q, k, v, causal):
    def call():
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return call


def forward_rows(options):
    """The rows of all shapes asked for, each printed when it is there."""
    torch.manual_seed(0)
    rows = []
    for head_dim in options.head_dim:
        for causal in (False, True):
            for length in options.length:
                row = forward_row(head_dim, length, causal, getattr(torch, options.dtype))
                rows.append(row)
                rates = ", ".join(f"{name} {rate:.0f}" for name, rate in row["tflops"].items())
                ratio = row["tflops"]["ours"] / row["tflops"]["sdpa_flash"]
                print(
                    f"d={head_dim} N={length} {'causal' if causal else 'full'}: TFLOP/s {rates}; "
                    f"ours / sdpa_flash {ratio:.2f}",
                    flush=True,
                )
    return rows


def correctness():
    """The kernels' tests, compiled, and a few of them under compute-sanitizer, in a clone: what came of each."""
    tests = ["tests/kernels/test_flash_forward.py", "tests/test_counts_agree.py", "tests/test_tracer.py"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        subprocess.run([*pytest, "-n", "8", f"--junitxml={report}", *tests], check=False)
        suite = ElementTree.parse(report).getroot().find("testsuite")
    failed, skipped = (sum(int(suite.get(key)) for key in keys) for keys in (("failures", "errors"), ("skipped",)))
    result = {
        "files": tests,
        "passed": int(suite.get("tests")) - failed - skipped,
        "failed": failed,
        "skipped": skipped,
    }
    for tool in ("memcheck", "racecheck"):
        sanitizer = ["compute-sanitizer", "--tool", tool, *pytest, tests[0], "-k", "test_lengths[ or grouped or flash1"]
        output = subprocess.run(sanitizer, capture_output=True, text=True, check=False).stdout
        lines = [line.strip("= ") for line in output.splitlines() if "SUMMARY" in line or " passed" in line]
        result[tool] = "; ".join(lines)
    return result


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="python -m course_lib bench", description=__doc__.split("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="write the record here, as course_lib/data/ holds them")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--length", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--correctness", action="store_true", help="run the kernels' tests on this GPU, time nothing")
    parser.add_argument("--commit", help="what is measured, where the tree comes without its git history")
    options = parser.parse_args(argv)
    if runtime.mode() != "gpu":
        print("bench times compiled kernels and needs a GPU; there is none here", file=sys.stderr)
        return 1
    measured = {"correctness": correctness()} if options.correctness else {"rows": forward_rows(options)}
    if options.correctness:
        print(measured["correctness"])
    if options.json:
        # The record names its file, not where one machine keeps it.
        words = [Path(word).name if word == options.json else word for word in argv]
        record = {**provenance(shlex.join(["python", "-m", "course_lib", "bench", *words]), options.commit), **measured}
        with open(options.json, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    return 0
