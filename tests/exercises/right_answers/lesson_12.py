"""Lesson 12: right answers written differently."""

import itertools

import numpy as np


def map_by_divmod(thread, step, n_threads, rows, columns):
    row, column = divmod(thread + n_threads * step, columns)
    return [row, column] if row < rows else None


def map_by_walking(thread, step, n_threads, rows, columns):
    """Hands out the tile's places one after the other."""
    places = itertools.product(range(rows), range(columns))
    for _ in range(step * n_threads + thread):
        next(places, None)
    return next(places, None)


def sectors_by_numpy(addresses, element_bytes):
    asked = np.unique([address for address in addresses if address is not None])
    return [np.unique(asked // 32).size, (asked.size * element_bytes + 31) // 32]


def sectors_by_bits(addresses, element_bytes):
    touched, bytes_asked = 0, 0
    for address in set(addresses) - {None}:
        touched |= 1 << (address >> 5)
        bytes_asked += element_bytes
    return touched.bit_count(), -(-bytes_asked // 32)


def passes_by_numpy(addresses):
    words = np.unique([address // 4 for address in addresses if address is not None]).astype(int)
    return np.bincount(words % 32, minlength=32).max()


def passes_one_by_one(addresses):
    wanted, passes = set(addresses) - {None}, 0
    while wanted:
        busy = set()
        for address in sorted(wanted):
            if address % 128 not in busy:
                busy.add(address % 128)
                wanted.remove(address)
        passes += 1
    return passes


def races_by_pairs(accesses):
    return sorted(
        one[3]
        for one, other in itertools.permutations(accesses, 2)
        if one[0] != other[0] and one[1] == other[1] and one[3] == other[3] and one[2] == "store"
    )


def races_with_the_last_store(accesses):
    """Stores first, and any one of them: all others race with it, except those of its own thread."""
    racing = set()
    stores = [access for access in accesses if access[2] == "store"]
    for thread, interval, _, word in stores:
        racing |= {w for t, i, _, w in accesses if (w, i) == (word, interval) and t != thread}
    return frozenset(racing)


RIGHT_ANSWERS = {
    "thread_map": {"by divmod, as a list": map_by_divmod, "place by place": map_by_walking},
    "sectors": {"by np.unique": sectors_by_numpy, "a bit for each sector": sectors_by_bits},
    "bank_conflicts": {"by np.bincount": passes_by_numpy, "pass by pass": passes_one_by_one},
    "find_the_race": {"pair by pair, as a list": races_by_pairs, "store by store": races_with_the_last_store},
}
