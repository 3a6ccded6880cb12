"""Which tiles the programs of a masked kernel visit, as numbers that the kernel reads: `course_lib.masks` on a GPU.

The mask itself stays on the host. What it says becomes, for given lengths and tile sizes,

    a list      the tiles that each program visits: full ones first, which need no mask, then partial ones
    ranges      for each query, the first key that it sees and the one behind its last; by key, the other way round; or
                where one range does not say it all
    bits        of every partial tile, one for each pair; tiles with the same bits share them
    positions   of packed sequences, where queries stand that are not as many as the keys
"""

import functools
from typing import NamedTuple

import numpy as np
import torch

from course_lib.masks import FULL, HIDDEN, PARTIAL


class BlockMask(NamedTuple):
    """What a kernel reads; all on one device.

    programs: int32 [heads, n, 5], for each head of the mask's shape and each program, longest first: its own tile; its
    visits begin at this index, partial ones at that, and end before the next; the tile of its first visit. tiles:
    int32, the tile of each visit, and one more number, since kernels read one visit ahead. bits_of: int32, which of
    bits belong to each visit, or None. bits: int32 [distinct tiles, block_q, ceil(block_k / 32)], or None; the lowest
    bit is the first key's. ranges: int32 [heads, 2, n_q], by key [heads, 2, n_k], or None. positions: int32 [n_q], or
    None where query i stands at key i + n_k - n_q.
    """

    programs: torch.Tensor
    tiles: torch.Tensor
    bits_of: torch.Tensor | None
    bits: torch.Tensor | None
    ranges: torch.Tensor | None
    positions: torch.Tensor | None


@functools.lru_cache(256)
def keys_of_a_query(mask, n_q, n_k):
    """How many keys a query visits on average, in tiles of 128, at least 1. The first head's mask stands for all."""
    return max(1, mask.at(0, 0).in_ranges(n_q, n_k).tiles(n_q, n_k, 128, 128).visited.pairs // n_q)


@functools.lru_cache(256)
def block_mask_of(mask, n_q, n_k, block_q, block_k, device, by_key=False):
    """The BlockMask of programs that have a tile of queries each, or, by_key, a tile of keys."""
    heads = [mask.at(*index).in_ranges(n_q, n_k) for index in np.ndindex(mask.shape)]
    tiles = [head.tiles(n_q, n_k, block_q, block_k) for head in heads]
    kinds = np.stack([of_head.kinds for of_head in tiles])
    # A tile that ends beyond the tensor is never taken whole.
    for edge, length, block in ((kinds[:, -1], n_q, block_q), (kinds[:, :, -1], n_k, block_k)):
        if length % block:
            edge[edge == FULL] = PARTIAL
    rows = kinds.swapaxes(1, 2) if by_key else kinds
    of_program = [np.concatenate([np.flatnonzero(row == kind) for kind in (FULL, PARTIAL)]) for row in np.vstack(rows)]
    n_visits, n_full = (rows != HIDDEN).sum(axis=2), (rows == FULL).sum(axis=2)
    ends = n_visits.cumsum().reshape(n_visits.shape)
    begins = ends - n_visits
    # One order for all heads: the heads that share keys share their key tiles.
    order = np.argsort(-n_visits.sum(axis=0), kind="stable")
    listed = np.concatenate([*of_program, [0]])
    own = np.broadcast_to(np.arange(n_visits.shape[1]), n_visits.shape)
    programs = np.stack([own, begins, begins + n_full, ends, listed[begins]], axis=2)[:, order]
    bits_of = bits = None
    ranges = [_ranges(head, n_q, n_k, by_key) for head in heads]
    if any(of_head is None for of_head in ranges):
        ranges = None
        bits_of, bits = _bits(tiles, kinds, of_program, by_key)
    positions = mask.at(0, 0).positions(n_q, n_k)
    positions = None if np.array_equal(positions, np.arange(n_k - n_q, n_k)) else positions
    arrays = programs, listed, bits_of, bits, None if ranges is None else np.stack(ranges), positions
    return BlockMask(
        *(None if x is None else torch.from_numpy(x.astype(np.int32, order="C")).to(device) for x in arrays)
    )


def block_mask_of_ranges(key_ranges, n_k, block_q, block_k, by_key=False):
    """Likewise, of `flash_attention`'s key_ranges, computed where they are: the host does not know them.

    As neither end moves left, the tiles that a program visits lie side by side. Each counts as partial, full or not. A
    program may visit a tile of which it sees nothing, if some of its own rows see nothing at all.
    """
    first, stop = key_ranges.unbind(1)
    batch, n_q = first.shape
    (block, length), (other_block, other) = ((block_k, n_k), (block_q, n_q))[:: 1 if by_key else -1]
    options = dict(dtype=torch.int32, device=key_ranges.device)
    if by_key:
        # Query i sees key j if first[i] <= j < stop[i]; up to which i the one holds, and from which the other.
        keys = torch.arange(n_k, **options).expand(batch, n_k).contiguous()
        first, stop = (torch.searchsorted(x.contiguous(), keys, right=True, out_int32=True) for x in (stop, first))
    n_tiles, n_others = -(-length // block), -(-other // other_block)
    own = torch.arange(n_tiles, **options)
    own = own if by_key else own.flip(0)  # later queries of a causal mask see more keys, later keys fewer queries
    begins = (first[:, own * block] // other_block).clamp(0, n_others)
    ends = (-(-stop[:, ((own + 1) * block).clamp(max=length) - 1] // other_block)).clamp(0, n_others)
    programs = torch.stack([own.expand(batch, n_tiles), begins, begins, ends, begins], dim=2)
    ranges = torch.stack([first, stop], dim=1)
    return BlockMask(programs, torch.arange(n_others + 1, **options), None, None, ranges, None)


def _ranges(mask, n_q, n_k, by_key):
    """The ranges of BlockMask, or None."""
    if not mask.has_ranges:
        return None
    first, stop = mask.key_range(np.arange(n_q), n_q, n_k)
    if not by_key:
        return np.stack([first, stop])
    if (np.diff(first) < 0).any() or (np.diff(stop) < 0).any():
        return None
    # Neither end moves left from query to query: a key is seen from the first range that reaches it to the last that
    # begins before it.
    keys = np.arange(n_k)
    return np.stack([np.searchsorted(stop, keys, side="right"), np.searchsorted(first, keys, side="right")])


def _bits(tiles, kinds, of_program, by_key):
    """(bits_of, bits) of BlockMask."""
    numbers, distinct, bits_of = {}, [], []
    for program, visited in enumerate(of_program):
        head, own = divmod(program, kinds.shape[2 if by_key else 1])
        for other in visited:
            i, j = (other, own) if by_key else (own, other)
            if kinds[head, i, j] == FULL:
                bits_of.append(0)
                continue
            pairs = np.zeros((tiles[head].block_q, -(-tiles[head].block_k // 32) * 32), bool)
            visible = tiles[head].visible(i, j)
            pairs[: visible.shape[0], : visible.shape[1]] = visible
            packed = np.packbits(pairs, axis=1, bitorder="little").view(np.int32)
            bits_of.append(numbers.setdefault(packed.tobytes(), len(numbers)))
            if len(distinct) < len(numbers):
                distinct.append(packed)
    return np.array(bits_of, dtype=np.int64), np.stack(distinct or [np.zeros((1, 1), np.int32)])
