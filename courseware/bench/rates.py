"""What a multiprocessor does in a clock, and how long a thread waits for data: lessons 04, 11 and 15.

Every figure comes from a kernel in rates.cu that does one thing many times and reads its multiprocessor's clock.
"""

from pathlib import Path

import torch

from course_lib.kernels.cuda import gpu
from course_lib.kernels.cuda.launches import Launch

SOURCE = Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")
INSTRUCTIONS = ("fma", "add", "mul", "max", "exp2", "shuffle", "convert")  # convert: two fp32 to fp16
THREADS, COUNT = 1024, 2**14
LINE_BYTES = 128
# {memory: (its kernel, bytes that the pointers are spread over)}. The last is many times the L2 cache.
MEMORIES = {"L1": ("chase_l1", 16 * 2**10), "L2": ("chase_l2", 8 * 2**20), "HBM": ("chase_l2", 2**30)}
CHASED = 4096
REPEATS = 9


def rates():
    """Clocks per instruction and per dependent load of one multiprocessor (lessons 04, 11, 15).

    per_clock: results that one multiprocessor delivers in a clock, with 1,024 threads on it; the fastest of 9 runs.
    latency_clocks: from one load, or instruction, to the next that waits for it, in one thread; the median of 9.
    clock_mhz: the clock in the middle of the run.
    """
    clocks = torch.zeros(4, dtype=torch.int64, device="cuda")
    _launch("tick", 1, clocks=clocks, wait=100_000_000)
    begin, end, begin_ns, end_ns = clocks.tolist()
    found = {"clock_mhz": 1e3 * (end - begin) / (end_ns - begin_ns), "per_clock": {}, "latency_clocks": {}}
    for name in INSTRUCTIONS:
        found["per_clock"][name] = THREADS * COUNT / min(_clocks_of(f"rate_{name}", THREADS) for _ in range(REPEATS))
        found["latency_clocks"][name] = _median(lambda kernel=f"latency_{name}": _clocks_of(kernel, 1) / COUNT)
    found["latency_clocks"]["shared memory"] = _median(lambda: _clocks_of_loads("chase_shared"))
    for name, (kernel, spread_bytes) in MEMORIES.items():
        found["latency_clocks"][name] = _median(lambda k=kernel, n=spread_bytes: _clocks_of_loads(k, n))
    return found


def _median(measure):
    return sorted(measure() for _ in range(REPEATS))[REPEATS // 2]


def _launch(kernel, threads, **arguments):
    """Launch one block of a kernel. A tensor is passed by its address."""
    tensors = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    values = {name: None if name in tensors else x for name, x in arguments.items()}
    gpu.launched(Launch(SOURCE, kernel, (1,), (threads,), values), tensors)
    torch.cuda.synchronize()


def _clocks_of(kernel, threads):
    """From the first thread's first instruction to the last thread's last."""
    clocks = torch.zeros(threads, 2, dtype=torch.int64, device="cuda")
    _launch(kernel, threads, sink=torch.empty(threads, device="cuda"), clocks=clocks, count=COUNT, one=1.0)
    begin, end = clocks.T.tolist()
    return max(end) - min(begin)


def _clocks_of_loads(kernel, spread_bytes=0):
    """Of one load that waits for the one before."""
    clocks = torch.zeros(2, dtype=torch.int64, device="cuda")
    if not spread_bytes:
        _launch(kernel, 1, clocks=clocks, steps=CHASED)
    else:
        lines = spread_bytes // LINE_BYTES
        pointers = torch.empty(spread_bytes // 8, dtype=torch.int64, device="cuda")
        # Each line points to the next of a random order that leads back to the first.
        order = torch.randperm(lines, device="cuda")
        addresses = pointers.data_ptr() + order * LINE_BYTES
        pointers[order * (LINE_BYTES // 8)] = addresses.roll(-1)
        torch.empty(2**28, dtype=torch.int8, device="cuda").zero_()  # nothing of it stays in L2
        # All lines once first, so that a cache has them if they fit.
        warm_up = lines if lines <= 2**17 else 0
        first = pointers[order[0] * (LINE_BYTES // 8) :]
        _launch(kernel, 1, first=first, clocks=clocks, warm_up=warm_up, steps=CHASED)
    begin, end = clocks.tolist()
    return (end - begin) / CHASED
