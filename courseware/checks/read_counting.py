"""Inputs that notice how they are read, and a measure of what an answer keeps while it reads them."""

import os
import re
import signal
import tracemalloc
from pathlib import Path

import numpy as np

_samples = []  # (the answer, bytes of the worker's memory) during one call of an answer that runs there
COUNTED = "Shared_Dirty", "Private_Dirty", "Referenced"  # of each of a process's mappings, in this order
PAGES = 16  # so many times the items, where memory is counted in pages


class Rows:
    """An array that hands out copies of its rows and notes which: what a stream of tiles from HBM looks like.

    Slicing rows, as in rows[start:stop], reads them; len(rows) and rows.shape read nothing; anything else
    that an array can do reads all rows at once.
    reads: how often each row was read. most_at_once: the largest read, in rows.
    """

    def __init__(self, array):
        self._array = np.asarray(array)
        self.shape, self.dtype, self.ndim = self._array.shape, self._array.dtype, self._array.ndim
        self._reads = np.zeros(len(self._array), dtype=np.int64)
        self.most_at_once = 0

    @property
    def reads(self):
        return self._reads.copy()  # an answer holds this object too, and must not be able to wipe its traces

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, index):
        rows, *rest = index if isinstance(index, tuple) else (index,)
        read = self._array[rows].copy()
        self._reads[rows] += 1
        self.most_at_once = max(self.most_at_once, 1 if isinstance(rows, (int, np.integer)) else len(read))
        if not rest:
            return read
        return read[tuple(rest)] if read.ndim < self.ndim else read[(slice(None), *rest)]

    def __array__(self, dtype=None, copy=None):
        return np.array(self[:], dtype=dtype)

    def __getattr__(self, name):  # .T, .astype, .max, ...: of the whole array
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self[:], name)

    def __matmul__(self, other):
        return self[:] @ other


def growth_bytes_per_item(run, short, long, given=lambda n: n):
    """How fast the memory of run(given(n)) grows with n: bytes per item, between n = short and n = long.

    Of an answer in this process counts the peak of what Python and NumPy allocate during the call, in every thread.
    Another thread can only add, so a growth of a byte or more is measured again, five times in all, and the least one
    counts. Of an answer in the worker, whose word counts for nothing, the pages that it has touched in this call
    whenever it asks for more: what it had before may be where it keeps things now.
    """

    def peak(n):
        _samples.clear()
        inputs = given(n)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        run(inputs)
        return max(n_bytes for _, n_bytes in _samples) if _samples else tracemalloc.get_traced_memory()[1] - before

    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        peak(short)  # first use of anything fills caches
        if _samples:
            short, long = PAGES * short, PAGES * long
        growth = float("inf")
        for _ in range(5):
            if _samples:  # a new process: pages that have been used once are seldom given back
                _samples[-1][0].close()
                peak(short)
            least = peak(short)
            growth = min(growth, (peak(long) - least) / (long - short))
            if growth < 1:
                break
        return growth
    finally:
        if not was_tracing:
            tracemalloc.stop()


def sample(answer):
    """Note how much memory the process of a RemoteAnswer, which waits meanwhile, has touched since the first sample."""
    if not _samples:
        Path(f"/proc/{answer.process_id}/clear_refs").write_text("1")
    rows = re.findall(r"^(\w+): *(\d+) kB", Path(f"/proc/{answer.process_id}/smaps").read_text(), re.MULTILINE)
    shared, private, touched = ([int(n) for name, n in rows if name == which] for which in COUNTED)
    # Which code runs is partly chance; what is kept has been written.
    kept = sum(min(each, a + b) for a, b, each in zip(shared, private, touched, strict=True))
    _samples.append((answer, kept << 10))
    # On a busy machine, a time limit's alarm rings in long calls, and touches memory. So it rings in every call here.
    os.kill(answer.process_id, signal.SIGALRM)
