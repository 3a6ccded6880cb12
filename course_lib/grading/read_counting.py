"""Inputs that notice how they are read, and a measure of what an answer keeps while it reads them."""

import tracemalloc

import numpy as np

from .exercise import single_finding


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
        # A copy: an answer holds this object too, and must not be able to wipe its traces.
        return self._reads.copy()

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

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype=None, copy=None):
        return np.array(self[:], dtype=dtype)

    def __getattr__(self, name):
        # .T, .astype, .max, ...: of the whole array.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self[:], name)

    def __matmul__(self, other):
        return self[:] @ other


def growing(run, n, text):
    """Evidence if the peak memory of run(n) grows with n, or None. text: says so, with {} for the bytes per item."""
    growth = growth_bytes_per_item(run, n // 8, n)
    return None if growth < 1 else single_finding("memory", text.format(f"{round(growth, -1):.0f}"))


def growth_bytes_per_item(run, short, long):
    """How fast the peak memory of run(n) grows with n: bytes per item, between n = short and n = long.

    Counts what Python and NumPy allocate during the call, in every thread. Another thread can only add, so a
    growth of a byte or more is measured again, three times in all, and the least one counts.
    """

    def peak(n):
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        run(n)
        return tracemalloc.get_traced_memory()[1] - before

    run(short)  # first use of anything fills caches
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        growth = float("inf")
        for _ in range(3):
            growth = min(growth, (peak(long) - peak(short)) / (long - short))
            if growth < 1:
                break
        return growth
    finally:
        if not was_tracing:
            tracemalloc.stop()
