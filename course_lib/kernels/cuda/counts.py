"""What `plain_attention` costs, as closed forms: what a profiler counts, predicted from the mapping of its threads.

A request is one instruction of one warp that accesses memory. Device memory is moved in sectors of 32 bytes. Arrays
begin at multiples of 32 bytes, as all that CUDA allocates do.
"""

from dataclasses import dataclass

from .launches import LANES, PLAIN_BLOCK_M, PLAIN_BLOCK_N

SECTOR_BYTES, FLOAT_BYTES = 32, 4


@dataclass(frozen=True)
class Counts:
    """Of one launch. by_tensor: {name: (requests, sectors)}; Q, K and V are loaded, output is stored.

    shared_loads, shared_stores: requests. barriers: __syncthreads, of all blocks.
    """

    by_tensor: dict
    shared_loads: int
    shared_stores: int
    barriers: int


def plain_attention(M, N, d):
    """Counts for Q and output [M, d], K and V [N, d] in float32.

    A block of 16 warps computes 16 rows. It loads its rows of Q once, and all of K and V in tiles of 16 rows; a warp
    moves one row of a tile, 32 columns at a time. D is d, rounded up to a multiple of 32.

    Shared stores, of a block: D / 32 for each of the 16 rows of a tile, which is filled up with zeros.
    Shared loads, of a warp and for each tile: D / 4 loads of four columns of its row of Q, for each of these 16 of four
        columns of a key, and D / 32 of a value for each of 16 keys.

    >>> plain_attention(1024, 1024, 128)
    Counts(by_tensor={'Q': (4096, 16384), 'K': (262144, 1048576), 'V': (262144, 1048576), 'output': (4096, 16384)}, \
shared_loads=39845888, shared_stores=528384, barriers=8192)
    """
    blocks, tiles, chunks = -(-M // PLAIN_BLOCK_M), -(-N // PLAIN_BLOCK_N), -(-d // LANES)
    D = chunks * LANES
    queries, keys = (M * chunks, row_sectors(M, d)), (N * chunks * blocks, row_sectors(N, d) * blocks)
    tile_loads = PLAIN_BLOCK_M * (D // 4 * (1 + PLAIN_BLOCK_N) + PLAIN_BLOCK_N * chunks)
    tile_stores = (PLAIN_BLOCK_N + PLAIN_BLOCK_N) * chunks
    return Counts(
        by_tensor={"Q": queries, "K": keys, "V": keys, "output": queries},
        shared_loads=blocks * tiles * tile_loads,
        shared_stores=blocks * (PLAIN_BLOCK_M * chunks + tiles * tile_stores),
        barriers=blocks * tiles * 2,
    )


def row_sectors(rows, d):
    """Sectors of `rows` rows of d floats, when a request is for 32 columns of a row, or for the columns that are left.

    Where 8 divides d, that is rows * d / 8. Otherwise a request may begin or end within a sector, and a sector in which
    two requests meet counts for both.
    """
    sectors = 0
    for row in range(rows):
        for first in range(0, d, LANES):
            begin = (row * d + first) * FLOAT_BYTES
            end = (row * d + min(first + LANES, d)) * FLOAT_BYTES
            sectors += (end - 1) // SECTOR_BYTES - begin // SECTOR_BYTES + 1
    return sectors
