"""The ladder of lesson 12's CUDA kernels, which cuda_ladder.toml lists, and what each rung's counts let us expect."""

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from course_lib.hardware import GPUS
from course_lib.kernels.cuda import launches
from courseware.bench import ladder, records
from courseware.simulators.cuda_emulator import runner
from courseware.simulators.cuda_emulator.compiling import NoCompiler

H100 = GPUS["H100"]  # an H200 computes as it does


def clock_hz(gpu):
    """By its peak: a multiprocessor multiplies and adds 128 times in a clock."""
    return gpu.fp32_tflops * 1e12 / (gpu.sms * 128 * 2)


def launch(rung, q, k, v, *, causal=False):
    """o of fp32 tensors [1, heads, rows, d] on the GPU, one head after the other, without a mask."""
    import torch

    from course_lib.kernels.cuda import gpu

    found, o = torch.cuda.get_device_properties(), torch.empty_like(q)
    limits = {"sms": found.multi_processor_count, "max_shared_bytes": found.shared_memory_per_block_optin}
    for Q, K, V, output in zip(q[0], k[0], v[0], o[0], strict=True):
        gpu.run(planned(rung, len(Q), *K.shape, **limits), {"Q": Q, "K": K, "V": V, "output": output})
    return o


rungs = functools.cache(functools.partial(ladder.read, Path(__file__).with_suffix(".toml"), launch))


@functools.cache
def planned(rung, M, N, d, *, sms, max_shared_bytes):
    """A rung's launches on such a GPU, as `launches.shipped` returns them."""
    if is_plain(rung):
        return launches.plain(M, N, d, rung.source)
    splits = launches.MAX_SPLITS if rung.name == "keys split" or not rung.kept else 1
    gpu = {"sms": sms, "max_shared_bytes": max_shared_bytes}
    return launches.shipped(M, N, d, **gpu, text=rung.source, max_splits=splits)


def is_plain(rung):
    """Whether it is the plain kernel, or a change of that."""
    return rung.file == "cuda/plain_attention.cu"


def random_arrays(M, N, d):
    """Q, K, V and an output, by the names of the kernels' parameters."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((rows, d), dtype=np.float32) for name, rows in (("Q", M), ("K", N), ("V", N))}
    return arrays | {"output": np.empty((M, d), np.float32)}


def counted(rung, M, N, d):
    """The runner's Report of a rung, thread by thread on this CPU, where its keys are not split."""
    (only,) = planned(rung, M, N, d, sms=1, max_shared_bytes=runner.MAX_DYNAMIC_SHARED_BYTES)
    return runner.run(only, random_arrays(M, N, d) | {"states": np.empty(1, np.float32)})


def split_states(N, d, sms):
    """One query whose keys the shipped kernel splits, run on this CPU: (states, output).

    sms: of the GPU for which the launch is planned. states: (m, l, acc [d]) of each split, as lesson 05 has them.
    output: [d], what merge_splits makes of them.
    """
    both = launches.shipped(1, N, d, sms=sms, max_shared_bytes=runner.MAX_DYNAMIC_SHARED_BYTES)
    arrays = random_arrays(1, N, d) | {"states": np.empty(launches.states_floats(both), np.float32)}
    for each in both:
        runner.run(each, arrays)
    splits = both[0].grid[1]
    acc, statistics = np.split(arrays["states"], [splits * d])
    m, l = statistics.reshape(splits, 2).T
    # The kernel's m is of scores that are not scaled.
    return list(zip(m * d**-0.5, l, acc.reshape(splits, d), strict=True)), arrays["output"][0]


def profile(report):
    """A runner's Report by the names that Nsight Compute's counters have in the record cuda-counters-h200."""
    seen = {}
    for what in ("load", "store"):
        of_tensors = [getattr(memory, f"{what}s") for memory in report.tensors.values()]
        seen[f"{what}_requests"] = sum(accesses.requests for accesses in of_tensors)
        seen[f"{what}_sectors"] = sum(accesses.sectors for accesses in of_tensors)
        shared = getattr(report.shared, f"{what}s")
        seen[f"shared_{what}s"] = shared.requests
        seen[f"shared_{what}_passes"], seen[f"shared_{what}_conflicts"] = shared.passes, shared.conflicts
    return seen


def profile_of_plain(M, N, d):
    """The closed forms of launches.py for the plain kernel, by the same names."""
    form = launches.plain_counts(M, N, d)
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
    blocks = -(-M // (launches.PLAIN_BLOCK_M if is_plain(rung) else 128))
    busy = blocks / -(-blocks // H100.sms)  # multiprocessors, on average
    return 4 * 128 * busy * clock_hz(H100) / clocks / 1e12


def bounds_and_speed(rung, of, M):
    """TFLOP/s of a rung with the Clocks `of` and M queries: if nothing overlaps, if all does, and as measured."""
    (row,) = [row for row in records.rows("cuda-h200", rung=rung.name, head_dim=128) if row["m"] == M]
    return tflops(rung, of.in_turn, M), tflops(rung, of.overlapping, M), row["speed_tflops"]


def limits_of_published():
    """[(what, how much)]: the time of the record published-profile beside what the card could do, by the counts."""
    published, card = records.record("published-profile"), GPUS["RTX 4090"]
    (on_gpu,) = records.rows("cuda-counters-h200", rung="plain", m=1024)
    seconds, blocks = published["ms"] * 1e-3, 64
    passes_s = on_gpu["shared_load_passes"] / blocks / clock_hz(card)
    once_bytes, moved_bytes = 4 * 4 * published["m"] * published["head_dim"], 32 * published["load_sectors"]
    return [
        ("GFLOP/s, as part of the card's fp32 peak", f"{published['gflops'] / card.fp32_tflops / 1e3:.1%}"),
        ("Q, K, V and output, each once, over the time (GB/s)", f"{once_bytes / seconds / 1e9:.1f}"),
        ("sectors loaded, over the time (GB/s)", f"{moved_bytes / seconds / 1e9:.0f}"),
        ("what the card's memory can deliver (GB/s)", f"{card.hbm_bytes_per_s / 1e9:,.0f}"),
        ("multiprocessors that have a block", f"{blocks} of {card.sms}"),
        ("passes of shared memory on these, as many as on an H200, of the time", f"{passes_s / seconds:.0%}"),
    ]
