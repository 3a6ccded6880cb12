"""Bytes that the GPU's own counters see, for lesson 10: DRAM, L2 and the multiprocessors. Needs Nsight Compute's `ncu`.

`ncu` runs this module as a program once for each set of counters. The program runs the cases one after another, and a
separator kernel after each of them tells where in ncu's list of kernels the next case begins.
"""

import csv
import subprocess
import sys
import tempfile
from functools import reduce
from itertools import groupby
from operator import itemgetter, or_
from pathlib import Path

import torch

from course_lib import masks, runtime
from courseware.bench.experiments import ATTENTION, GPT2_MEDIUM, HEADS, one_pass
from courseware.bench.timing import L2_FLUSH_BYTES, random_inputs

# {name in our rows: ncu's metric} of each run. Each set fits into one pass, so that ncu need not replay a kernel.
COUNTERS = (
    {"dram_read_bytes": "dram__bytes_read.sum", "dram_write_bytes": "dram__bytes_write.sum"},
    {"l2_read_sectors": "lts__t_sectors_op_read.sum", "l2_write_sectors": "lts__t_sectors_op_write.sum"},
    {"sm_read_bytes": "l1tex__m_xbar2l1tex_read_bytes.sum", "sm_write_bytes": "l1tex__m_l1tex2xbar_write_bytes.sum"},
)
SECTOR_BYTES = 32
SEPARATOR = "spin_kernel"  # what torch.cuda._sleep launches


def dram_cases():
    """[(method, pass, shape)] in the order in which they run."""
    lengths = [{"batch": 1, "heads": HEADS, "n": 2**i, "head_dim": d} for d in (64, 128) for i in range(9, 15)]
    one_head = {"batch": 1, "heads": 1, "n": 1024, "head_dim": 64}
    cases = [("forward", shape) for shape in (one_head, *lengths, GPT2_MEDIUM)] + [("both", GPT2_MEDIUM)]
    return [(method, which, shape) for which, shape in cases for method in ("standard", "flash")]


def dram_rows():
    """Bytes by the GPU's own counters, standard and FlashAttention; needs Nsight Compute's ncu on the path.

    A row for each case: the bytes moved, summed over its kernels. The first kernel of a case finds its inputs in DRAM,
    and each later one finds the caches as the one before left them. Data still dirty in L2 when the case ends is not
    counted.
    """
    for (method, which, shape), sums in zip(dram_cases(), counted_by_ncu(__name__, COUNTERS), strict=True):
        row = {"method": method, "pass": which, **shape, "causal": False, "dtype": "float16"}
        if method == "flash":
            x = torch.empty(*shape.values(), dtype=torch.float16, device="cuda")
            config, _ = shipped("forward", x, x, x, causal=False)
            row |= {"block_q": config.block_m, "block_k": config.block_n}
        yield row | in_bytes(sums)


def shipped(kernel, q, k, v, do=None, *, causal):
    """The configuration that a launch takes by itself, and whether its tiles come by tensor descriptor."""
    from course_lib.kernels.configs import select
    from course_lib.kernels.launch import takes_descriptors, tensor_meta
    from course_lib.kernels.masked_forward import config_of

    capability = runtime.capability(q.device)
    loaded = (k, v) if kernel == "forward" else (q, k, v, do)
    by_descriptor = takes_descriptors(capability, *map(tensor_meta, loaded))
    if causal is None:
        return config_of(kernel, masks.causal(), q, k, by_descriptor), by_descriptor
    config = select(
        kernel, dtype=q.dtype, head_dim=q.shape[-1], causal=causal, capability=capability, n_k=k.shape[2],
        by_descriptor=by_descriptor, n_rows=q.shape[:3].numel(),
    )  # fmt: skip
    return config, by_descriptor


def in_bytes(sums):
    """The same counters, with the bytes of sectors in place of their number."""
    return {
        name.replace("sectors", "bytes"): value * (SECTOR_BYTES if "sectors" in name else 1)
        for name, value in sums.items()
    }


def counted_by_ncu(module, counter_sets):
    """[{name: sum over the kernels of a case}] of the cases that a module runs as a program, with `run_profiled`.

    counter_sets: dictionaries {name: ncu's metric}, each of one pass. The program runs once for each of them.
    """
    runs = []
    for counters in counter_sets:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "counters.csv"
            subprocess.run(
                ["ncu", "--metrics", ",".join(counters.values()), "--csv", "--print-units", "base", "--log-file", log,
                 "--profile-from-start", "off", "--cache-control", "none", "--clock-control", "none",
                 sys.executable, "-m", module],
                check=True,
            )  # fmt: skip
            runs.append(sums_by_case(log.read_text(), counters))
    return [reduce(or_, case) for case in zip(*runs, strict=True)]


def run_profiled(calls):
    """What a program does that ncu watches: each call with the profiler on, and the separator's kernel after it."""
    torch.manual_seed(0)
    clean = torch.zeros(L2_FLUSH_BYTES, dtype=torch.int8, device="cuda")
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


def cases():
    """A callable for each of `dram_cases`."""
    for method, which, shape in dram_cases():
        inputs = random_inputs(*shape.values(), torch.float16, differentiable=True)
        yield one_pass(ATTENTION[method], which, *inputs)


if __name__ == "__main__":
    run_profiled(cases())
