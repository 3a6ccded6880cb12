"""Lesson 13: right answers written differently."""

import numpy as np


def kinds_from_a_padded_array(visible, block_q, block_k):
    (n_q, n_k), pads = visible.shape, [(0, -n % block) for n, block in zip(visible.shape, (block_q, block_k), strict=True)]
    shape = (n_q + pads[0][1]) // block_q, block_q, (n_k + pads[1][1]) // block_k, block_k
    some, every = (
        of(np.pad(visible, pads, constant_values=fill).reshape(shape), axis=(1, 3))
        for of, fill in ((np.any, False), (np.all, True))
    )
    return some + every.astype(int)


def kinds_as_lists(visible, block_q, block_k):
    kinds = []
    for rows in np.split(visible, range(block_q, len(visible), block_q)):
        shares = [part.mean() for part in np.split(rows, range(block_k, rows.shape[1], block_k), axis=1)]
        kinds.append([1 + (share == 1) - (share == 0) for share in shares])
    return kinds


def bounds_with_clip(start_m, n_q, n_k, left, right, block_m, block_n):
    positions = np.array([start_m, min(start_m + block_m, n_q) - 1]) + n_k - n_q
    (start, full_start), (full_stop, stop) = (
        np.clip(edge, 0, n_k).tolist() for edge in (positions - left, positions + right + 1)
    )
    tiles = (n_k + block_n - 1) // block_n
    full_end = tiles if full_stop >= n_k else full_stop // block_n
    return [start // block_n, (full_start + block_n - 1) // block_n, full_end, (stop + block_n - 1) // block_n]


def bounds_that_say_nothing_of_empty_ranges(start_m, n_q, n_k, left, right, block_m, block_n):
    shift = n_k - n_q
    last = min(n_q, start_m + block_m) + shift - 1
    begin, end = max(start_m + shift - left, 0) // block_n, min(last + right, n_k - 1) // block_n + 1
    if last + right < 0 or begin >= end:
        return 0, 0, 0, 0
    first_whole = max(0, last - left + block_n - 1) // block_n
    behind = min(start_m + shift + right + 1, n_k)
    whole = first_whole
    if behind == n_k:
        whole = end
    elif behind // block_n > first_whole:
        whole = behind // block_n
    return begin, first_whole, whole, end


RIGHT_ANSWERS = {
    "tile_kinds": {"from a padded array": kinds_from_a_padded_array, "as lists": kinds_as_lists},
    "sliding_window_bounds": {
        "with np.clip": bounds_with_clip,
        "nothing said of empty ranges": bounds_that_say_nothing_of_empty_ranges,
    },
}
