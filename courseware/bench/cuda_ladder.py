"""The ladder of lesson 12's CUDA kernels, and what each rung's counts let us expect of its time.

cuda_ladder.toml lists the rungs. cuda_timing.py times them on a GPU, and asks Nsight Compute for its counters.
"""

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from course_lib.hardware import GPUS
from course_lib.kernels.cuda import counts, launches
from courseware.bench import records
from courseware.editing import edited_text, edits_of, source_of_rung
from courseware.simulators.cuda_emulator import runner
from courseware.simulators.cuda_emulator.compiling import NoCompiler

# An H200 computes as an H100 does. A multiprocessor multiplies and adds 128 times in a clock.
SMS = GPUS["H100"].sms
CLOCK_HZ = GPUS["H100"].fp32_tflops * 1e12 / (SMS * 128 * 2)


@dataclass(frozen=True)
class Rung:
    """file: of kernels/cuda, which diff changes. idea: in a sentence. shuffles: for each score."""

    name: str
    file: str
    idea: str
    diff: str = ""
    kept: bool = True
    shuffles: int = 0

    @functools.cached_property
    def source(self):
        """The CUDA C++ of this rung."""
        text = launches.source(self.file)
        if self.file == "plain_attention.cu":
            return edited_text(text, edits_of(self.diff), self.name, self.file)
        return source_of_rung(text, self, [rung for rung in rungs().values() if rung.file == self.file], self.file)

    def launches(self, M, N, d, *, sms, max_shared_bytes):
        """As `launches.shipped` returns them."""
        if self.file == "plain_attention.cu":
            return launches.plain(M, N, d, self.source)
        splits = launches.MAX_SPLITS if self.name == "keys split" or not self.kept else 1
        gpu = {"sms": sms, "max_shared_bytes": max_shared_bytes}
        return launches.shipped(M, N, d, **gpu, text=self.source, max_splits=splits)


@functools.cache
def rungs():
    """{name: Rung}, in the order of the lesson."""
    text = Path(__file__).with_name("cuda_ladder.toml").read_text(encoding="utf-8")
    return {name: Rung(name, **{"diff": "", **keys}) for name, keys in tomllib.loads(text).items()}


def counted(rung, M, N, d):
    """The runner's Report of a rung, thread by thread on this CPU, where its keys are not split."""
    (launch,) = rung.launches(M, N, d, sms=1, max_shared_bytes=runner.MAX_DYNAMIC_SHARED_BYTES)
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((rows, d), dtype=np.float32) for name, rows in (("Q", M), ("K", N), ("V", N))}
    return runner.run(launch, arrays | {"output": np.empty((M, d), np.float32), "states": np.empty(1, np.float32)})


def split_states(N, d, sms):
    """One query whose keys the shipped kernel splits, run on this CPU: (states, output).

    sms: of the GPU for which the launch is planned. states: (m, l, acc [d]) of each split, as lesson 05 has them.
    output: [d], what merge_splits makes of them.
    """
    planned = launches.shipped(1, N, d, sms=sms, max_shared_bytes=runner.MAX_DYNAMIC_SHARED_BYTES)
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((rows, d), dtype=np.float32) for name, rows in (("Q", 1), ("K", N), ("V", N))}
    arrays |= {"output": np.empty(d, np.float32), "states": np.empty(launches.states_floats(planned), np.float32)}
    for launch in planned:
        runner.run(launch, arrays)
    splits = planned[0].grid[1]
    acc, statistics = np.split(arrays["states"], [splits * d])
    m, l = statistics.reshape(splits, 2).T
    # The kernel's m belongs to powers of two.
    return list(zip(m * np.log(2), l, acc.reshape(splits, d), strict=True)), arrays["output"]


def profile(report):
    """A runner's Report by the names that Nsight Compute's counters have in the record cuda-counters-h200."""
    tensors, shared = report.tensors.values(), report.shared
    return {
        "load_requests": sum(memory.loads.requests for memory in tensors),
        "load_sectors": sum(memory.loads.sectors for memory in tensors),
        "store_requests": sum(memory.stores.requests for memory in tensors),
        "store_sectors": sum(memory.stores.sectors for memory in tensors),
        "shared_loads": shared.loads.requests,
        "shared_stores": shared.stores.requests,
        "shared_load_passes": shared.loads.passes,
        "shared_store_passes": shared.stores.passes,
        "shared_load_conflicts": shared.loads.conflicts,
        "shared_store_conflicts": shared.stores.conflicts,
    }


def profile_of_plain(M, N, d):
    """The closed forms of counts.py for the plain kernel, by the same names."""
    form = counts.plain_attention(M, N, d)
    return {
        "load_requests": sum(form.by_tensor[name][0] for name in "QKV"),
        "load_sectors": sum(form.by_tensor[name][1] for name in "QKV"),
        "store_requests": form.by_tensor["output"][0],
        "store_sectors": form.by_tensor["output"][1],
        "shared_loads": form.shared_loads,
        "shared_stores": form.shared_stores,
    }


class Clocks(NamedTuple):
    """Clocks of one multiprocessor for each query and key, d = 128.

    passes, shuffles: shared memory makes one of them in a clock. conflicts: of the passes. issue: four instructions are
    issued in a clock.
    """

    passes: float
    conflicts: float
    shuffles: float
    issue: float

    @property
    def in_turn(self):
        """If nothing overlaps."""
        return self.passes + self.shuffles + self.issue

    @property
    def overlapping(self):
        """If shared memory and the schedulers never wait for each other."""
        return max(self.passes + self.shuffles, self.issue)


def clocks(rung):
    """The Clocks of a rung. Passes and shuffles are the runner's; without a C++ compiler, the record's and the table's.

    Instructions are Nsight Compute's, by the record, because a GPU's compiler makes them.
    """
    (on_gpu,) = records.rows("cuda-counters-h200", rung=rung.name, m=256, n=256, head_dim=128)
    try:
        report = counted(rung, 128, 128, 128)
        seen, pairs, shuffles = profile(report), 128 * 128, report.shuffles
    except NoCompiler:
        seen, pairs, shuffles = on_gpu, 256 * 256, rung.shuffles * 256 * 256
    passes, conflicts = (seen[f"shared_load_{kind}"] + seen[f"shared_store_{kind}"] for kind in ("passes", "conflicts"))
    return Clocks(passes / pairs, conflicts / pairs, shuffles / pairs, on_gpu["instructions"] / 4 / 256**2)


def tflops(rung, clocks, M):
    """The speed of an H200, d = 128, whose multiprocessors take so many clocks for each query and key of a block."""
    blocks = -(-M // (launches.PLAIN_BLOCK_M if rung.file == "plain_attention.cu" else 128))
    busy = blocks / -(-blocks // SMS)  # multiprocessors, on average
    return 4 * 128 * busy * CLOCK_HZ / clocks / 1e12


def bounds_and_speed(rung, of, M):
    """TFLOP/s of a rung with the Clocks `of` and M queries: if nothing overlaps, if all does, and as measured."""
    (row,) = [row for row in records.rows("cuda-h200", rung=rung.name, head_dim=128) if row["m"] == M]
    return tflops(rung, of.in_turn, M), tflops(rung, of.overlapping, M), row["speed_tflops"]


def limits_of_published():
    """[(what, how much)]: the time of the record published-profile beside what the card could do, by the counts."""
    published, card = records.record("published-profile"), GPUS["RTX 4090"]
    (on_gpu,) = records.rows("cuda-counters-h200", rung="plain", m=1024)
    seconds, blocks = published["ms"] * 1e-3, 64
    # Each of an SM's 128 units multiplies and adds once in a clock.
    clock_hz = card.fp32_tflops * 1e12 / (card.sms * 128 * 2)
    passes_s = on_gpu["shared_load_passes"] / blocks / clock_hz
    once_bytes, moved_bytes = 4 * 4 * published["m"] * published["head_dim"], 32 * published["load_sectors"]
    return [
        ("GFLOP/s, as part of the card's fp32 peak", f"{published['gflops'] / card.fp32_tflops / 1e3:.1%}"),
        ("Q, K, V and output, each once, over the time (GB/s)", f"{once_bytes / seconds / 1e9:.1f}"),
        ("sectors loaded, over the time (GB/s)", f"{moved_bytes / seconds / 1e9:.0f}"),
        ("what the card's memory can deliver (GB/s)", f"{card.hbm_bytes_per_s / 1e9:,.0f}"),
        ("multiprocessors that have a block", f"{blocks} of {card.sms}"),
        ("passes of shared memory on these, one in a clock, of the time", f"{passes_s / seconds:.0%}"),
    ]
