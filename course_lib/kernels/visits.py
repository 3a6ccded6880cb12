"""Which tiles the programs of a masked kernel visit, as numbers that the kernel reads: `course_lib.masks` on a GPU.

The mask itself stays on the host. What it says becomes, for given lengths and tile sizes,

    a list      the tiles that each program visits: full ones first, which need no mask, then partial ones
    ranges      where every query sees one range of keys, its first key and the one behind its last; or else
    bits        of every partial tile, one for each pair; tiles with the same bits share them
    positions   of packed sequences, where queries stand that are not as many as the keys
"""

import functools
from typing import NamedTuple

import numpy as np
import torch

from course_lib.masks import FULL, PARTIAL


class Visits(NamedTuple):
    """What a kernel reads; all on one device.

    programs: int32 [n, 4], for each program, longest first: its own tile; its visits begin at this index, partial ones
    at that, and end before the last. tiles: int32, the tile of each visit, and one more number, since kernels read one
    visit ahead. bits_of: int32, which of bits belong to each visit, or None. bits: int32 [distinct tiles, block_q,
    ceil(block_k / 32)], or None; the lowest bit is the first key's. ranges: int32 [2, n_q], or None.
    positions: int32 [n_q], or None where query i stands at key i + n_k - n_q.
    """

    programs: torch.Tensor
    tiles: torch.Tensor
    bits_of: torch.Tensor | None
    bits: torch.Tensor | None
    ranges: torch.Tensor | None
    positions: torch.Tensor | None


@functools.lru_cache(256)
def visits(mask, n_q, n_k, block_q, block_k, device, by_key=False):
    """The Visits of programs that have a tile of queries each, or, by_key, a tile of keys."""
    tiles = mask.tiles(n_q, n_k, block_q, block_k)
    kinds = tiles.kinds.copy()
    # A tile that ends beyond the tensor is never taken whole.
    for edge, length, block in ((kinds[-1], n_q, block_q), (kinds[:, -1], n_k, block_k)):
        if length % block:
            edge[edge == FULL] = PARTIAL
    rows = kinds.T if by_key else kinds
    of_program = [np.concatenate([np.flatnonzero(row == kind) for kind in (FULL, PARTIAL)]) for row in rows]
    n_visits, n_full = np.array([len(visited) for visited in of_program]), (rows == FULL).sum(axis=1)
    ends = n_visits.cumsum()
    begins = ends - n_visits
    order = np.argsort(-n_visits, kind="stable")
    programs = np.stack([np.arange(len(rows)), begins, begins + n_full, ends], axis=1)[order]
    bits_of = bits = ranges = None
    if mask.has_ranges:
        ranges = np.stack(mask.key_range(np.arange(n_q), n_q, n_k))
    else:
        bits_of, bits = _bits(tiles, kinds, of_program, by_key)
    positions = mask.positions(n_q, n_k)
    positions = None if np.array_equal(positions, np.arange(n_k - n_q, n_k)) else positions
    arrays = programs, np.concatenate([*of_program, [0]]), bits_of, bits, ranges, positions
    return Visits(*(None if x is None else torch.from_numpy(x.astype(np.int32)).to(device) for x in arrays))


def _bits(tiles, kinds, of_program, by_key):
    """(bits_of, bits) of Visits."""
    numbers, distinct, bits_of = {}, [], []
    for own, visited in enumerate(of_program):
        for other in visited:
            i, j = (other, own) if by_key else (own, other)
            if kinds[i, j] == FULL:
                bits_of.append(0)
                continue
            pairs = np.zeros((tiles.block_q, -(-tiles.block_k // 32) * 32), bool)
            visible = tiles.visible(i, j)
            pairs[: visible.shape[0], : visible.shape[1]] = visible
            packed = np.packbits(pairs, axis=1, bitorder="little").view(np.int32)
            bits_of.append(numbers.setdefault(packed.tobytes(), len(numbers)))
            if len(distinct) < len(numbers):
                distinct.append(packed)
    return np.array(bits_of, dtype=np.int64), np.stack(distinct or [np.zeros((1, 1), np.int32)])
