"""What the GPU's own counters see: bytes at DRAM, L2 and the multiprocessors, and more. Needs Nsight Compute's `ncu`.

`ncu` runs this module as a program once for each set of counters in counters.toml: `python -m
courseware.bench.counters NAME`, of CASES. The program runs the cases one after another, and a separator kernel after
each of them tells where in ncu's list of kernels the next case begins.
"""

import csv
import itertools
import subprocess
import sys
import tempfile
import tomllib
from functools import partial, reduce
from itertools import groupby
from operator import itemgetter, or_
from pathlib import Path

import torch

from courseware.bench import cuda_ladder, decode_timing, hopper_timing, timing
from courseware.bench.experiments import ATTENTION, GPT2_MEDIUM, HEADS, one_pass

COUNTERS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SECTOR_BYTES = 32
SEPARATOR = "spin_kernel"  # what torch.cuda._sleep launches


def dram_cases():
    """(row, call) of each case, in the order in which they run."""
    lengths = [{"batch": 1, "heads": HEADS, "n": 2**i, "head_dim": d} for d in (64, 128) for i in range(9, 15)]
    one_head = {"batch": 1, "heads": 1, "n": 1024, "head_dim": 64}
    shapes = [("forward", shape) for shape in (one_head, *lengths, GPT2_MEDIUM)] + [("both", GPT2_MEDIUM)]
    for (which, shape), method in itertools.product(shapes, ("standard", "flash")):
        inputs = timing.random_inputs(*shape.values(), torch.float16, differentiable=True)
        row = {"method": method, "pass": which, **shape, "causal": False, "dtype": "float16"}
        if method == "flash":
            config, _ = timing.shipped("forward", *inputs)
            row |= {"block_q": config.block_m, "block_k": config.block_n}
        yield row, one_pass(ATTENTION[method], which, *inputs)


# Every rung on a small shape, the plain and the shipped kernel on ragged ones, and the plain kernel on the shape of the
# published profile. No rung splits its keys here but the last kept one.
CUDA_SHAPES = ((256, 256, 128), (200, 100, 80), (100, 77, 50), (1024, 1024, 128))


def cuda_cases():
    """Likewise."""
    every, *ragged, published = CUDA_SHAPES
    cases = [(name, *every) for name in cuda_ladder.rungs()]
    cases += [(name, *shape) for shape in ragged for name in ("plain", "prefetch")] + [("plain", *published)]
    for name, M, N, d in cases:
        q, k, v, _ = timing.random_inputs(1, 1, (M, N), d, torch.float32)
        yield {"rung": name, "m": M, "n": N, "head_dim": d}, partial(cuda_ladder.rungs()[name].launch, q, k, v)


def hopper_cases():
    """Likewise."""
    for head_dim in (128, 64):
        q, k, v, _ = hopper_timing.inputs(head_dim, 4096, torch.float16)
        for name, rung in hopper_timing.rungs().items():
            row = {"rung": name, "n": 4096, "head_dim": head_dim, "causal": False}
            yield row, partial(rung.launch, q, k, v, causal=False)


CASES = {
    "dram": dram_cases, "cuda": cuda_cases, "decode": decode_timing.counted_cases, "hopper": hopper_cases,
}  # fmt: skip


def dram_rows():
    """Bytes by the GPU's own counters, standard and FlashAttention; needs Nsight Compute's ncu on the path.

    A row for each case: the bytes moved, summed over its kernels. The first kernel of a case finds its inputs in DRAM,
    and each later one finds the caches as the one before left them. Data still dirty in L2 when the case ends is not
    counted.
    """
    return map(in_bytes, counted("dram", "bytes"))


def cuda_rows():
    """Nsight Compute's counters of lesson 12's CUDA kernels; needs ncu on the path"""
    return counted("cuda", "cuda")


def decode_rows():
    """Bytes of decoding by the GPU's own counters, beside the closed form; needs Nsight Compute's ncu on the path"""
    return map(in_bytes, counted("decode", "bytes"))


def hopper_rows():
    """How many of an SM's tensor cores are busy on average, in each rung of lesson 15; needs ncu on the path."""
    for row in counted("hopper", "hopper"):
        del row["kernels"]
        yield row | {"busy_tensor_cores": row.pop("tensor_clocks") / row.pop("clocks")}


def in_bytes(row):
    """The row with the bytes of sectors in place of their number."""
    return {
        name.replace("sectors", "bytes"): value * (SECTOR_BYTES if "sectors" in name else 1)
        for name, value in row.items()
    }


def counted(name, counters_of):
    """The rows of a name's cases, with counters summed over the kernels of each, and the number of these kernels."""
    runs = []
    for counters in COUNTERS[counters_of]:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "counters.csv"
            subprocess.run(
                ["ncu", "--metrics", ",".join(counters.values()), "--csv", "--print-units", "base", "--log-file", log,
                 "--profile-from-start", "off", "--cache-control", "none", "--clock-control", "none",
                 sys.executable, "-m", "courseware.bench.counters", name],
                check=True,
            )  # fmt: skip
            runs.append(sums_by_case(log.read_text(), counters))
    for (row, _), sums in zip(CASES[name](), zip(*runs, strict=True), strict=True):
        yield row | reduce(or_, sums)


def sums_by_case(text, counters):
    """A case's counters summed over its kernels, for each case in the text that ncu wrote.

    ncu writes one line for each kernel and counter, in the order of the launches.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise RuntimeError("ncu counted nothing:\n" + "\n".join(lines[-10:]))
    cases = [[]]  # of each case its kernels, of each kernel its lines
    for _, kernel in groupby(csv.DictReader(lines[start:]), key=itemgetter("ID")):
        kernel = list(kernel)
        if SEPARATOR in kernel[0]["Kernel Name"]:
            cases.append([])
        else:
            cases[-1].append(kernel)

    def total(kernels, counter):
        found = [row["Metric Value"] for kernel in kernels for row in kernel if row["Metric Name"] == counter]
        return sum(int(float(value.replace(",", ""))) for value in found)

    return [
        {name: total(kernels, counter) for name, counter in counters.items()} | {"kernels": len(kernels)}
        for kernels in cases[:-1]
    ]


def run_profiled(calls):
    """What the program does that ncu watches: each call with the profiler on, and the separator's kernel after it."""
    torch.manual_seed(0)
    clean = torch.zeros(timing.L2_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    driver = torch.cuda.cudart()
    for call in calls:
        call()
        clean.sum()  # flushes L2 by reading: lines that a write leaves dirty would be written back during the case
        torch.cuda.synchronize()
        driver.cudaProfilerStart()
        call()
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
        driver.cudaProfilerStop()


if __name__ == "__main__":
    run_profiled(call for _, call in CASES[sys.argv[1]]())
