"""Records whether compiled kernels are right on this GPU: `python -m tools.correctness --json FILE`.

It runs the test suite, and some calls under NVIDIA's compute-sanitizer, which has to be on the path.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import torch

from course_lib import runtime
from courseware.bench import records
from courseware.bench.accuracy import check_attention, check_gradients


def correctness():
    """The record's contents: numbers of tests passed, failed and skipped (without the browser's), and what two
    sanitizers found.
    """
    calls = [sys.executable, "-m", "tools.correctness", "--calls"]
    sanitizers = {
        tool: subprocess.Popen(["compute-sanitizer", "--tool", tool, *calls], stdout=subprocess.PIPE, text=True)
        for tool in ("memcheck", "racecheck")
    }
    # At most 15, because each worker holds a share of the GPU's memory.
    workers = str(min(15, max(1, os.cpu_count() - len(sanitizers))))
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
    return {"correctness": result}


# What the sanitizers watch: shapes that take every path, and few of them, because a sanitizer slows each a lot.
# (n_q, n_k, head_dim, causal): ragged and unequal lengths by pointers; then keys enough for tensor descriptors.
ATTENTION = ((130, 200, 64, True), (129, 77, 40, False), (600, 600, 128, True), (640, 640, 128, False))
# (n_new, head_dim, page_size, num_splits): a token, several, and more than one tile of rows, of three ragged sequences.
DECODING = ((1, 64, None, 1), (4, 40, None, 3), (1, 128, 16, 4), (40, 128, 256, 1), (3, 80, 64, 2))
CAPACITY = 512  # of each sequence's cache
# (case of variant_timing, n, head_dim): ranges and bits, changed scores, dropout; by pointers, and by descriptors.
VARIANTS = (
    ("documents", 130, 64), ("block-sparse 50 %", 200, 40), ("soft cap", 77, 64), ("dropout", 130, 128),
    ("window 256", 600, 128), ("block-sparse 25 %", 600, 64), ("ALiBi", 600, 64), ("dropout", 600, 64),
)  # fmt: skip


def random(*shape):
    return torch.randn(shape, device=runtime.device(), dtype=torch.float16)


def sanitized_calls():
    """Forward, backward and decoding, in 4 heads of which two share keys, and variants in 2, against float64."""
    from courseware.bench import variant_timing

    torch.manual_seed(0)
    for shape in ATTENTION:
        differentiate(*shape)
    for shape in DECODING:
        decode(*shape)
    for name, n, head_dim in VARIANTS:
        variant_timing.check(name, head_dim, torch.float16, n, heads=2)
    both = len(ATTENTION) + len(VARIANTS)
    print(f"{both} forward, {both} backward and {len(DECODING)} decoding calls agree with float64")


def differentiate(n_q, n_k, head_dim, causal):
    from course_lib.kernels import flash_attention

    q, do, k, v = (random(1, heads, n, head_dim) for heads, n in ((4, n_q), (4, n_q), (2, n_k), (2, n_k)))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    o, lse = flash_attention(*inputs, causal=causal, return_lse=True)
    check_attention((o.detach(), lse.detach()), q.detach(), k.detach(), v.detach(), causal=causal)
    gradients = torch.autograd.grad(o, inputs, do)
    check_gradients(gradients, q.detach(), k.detach(), v.detach(), do, causal=causal)


def decode(n_new, head_dim, page_size, num_splits):
    from course_lib.kernels import flash_decode
    from courseware.bench import decode_timing

    lengths = torch.tensor([CAPACITY, n_new, CAPACITY * 2 // 3], dtype=torch.int32, device=runtime.device())
    q, kv = random(3, 4, n_new, head_dim), random(2, 3, 2, CAPACITY, head_dim)
    (k, v), caches, table = kv, kv, None
    if page_size:
        *caches, table = decode_timing.in_pages(kv, page_size)
    o = flash_decode(q, *caches, lengths, block_table=table, num_splits=num_splits)
    for b, length in enumerate(lengths.tolist()):
        one = slice(b, b + 1)
        check_attention(o[one], q[one], k[one, :, :length], v[one, :, :length], causal=True)


def main():
    parser = argparse.ArgumentParser("python -m tools.correctness", description=__doc__.splitlines()[0])
    records.add_options(parser)
    parser.add_argument("--calls", action="store_true", help="only the calls that the sanitizers watch")
    options = parser.parse_args()
    if options.calls:
        sanitized_calls()
    else:
        found = correctness()
        print(records.in_words(found))
        records.save(options, "tools.correctness", sys.argv[1:], found)


if __name__ == "__main__":
    main()
