"""How the kernels of this folder are launched, on a GPU and on a CPU alike: grid, block, shared memory, arguments.

Of the plain kernel also what a profiler counts, predicted from the mapping of its threads. A request is one instruction
of one warp that accesses memory. Device memory is moved in sectors of 32 bytes. Arrays begin at multiples of 32 bytes,
as all that CUDA allocates do.
"""

from dataclasses import dataclass
from pathlib import Path

from course_lib.integers import python_integers

LANES = 32
SECTOR_BYTES, FLOAT_BYTES = 32, 4
MAX_HEAD_DIM = 128
# Of plain_attention.cu.
PLAIN_BLOCK_M = PLAIN_BLOCK_N = 16
# Of attention.cu: threads of its two kernels, and the splits of the keys that merge_splits takes.
THREADS, MERGE_THREADS, MAX_SPLITS = 256, 128, 1024
# Queries of a block and keys of a tile, the fastest first: it is taken if its shared memory is there. On an H200, 32
# queries with tiles of 64 keys take 8 % less than with tiles of 32, which are for GPUs with 64 KiB of shared memory.
TILES = ((128, 64), (64, 64), (32, 64), (32, 32))
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Launch:
    """source: CUDA C++. kernel: an expression for a __global__ function in it. grid, block: blocks, threads of a block.

    arguments: parameter -> its value; None for an array, which the caller has. shared_bytes: dynamic, of a block.
    """

    source: str
    kernel: str
    grid: tuple
    block: tuple
    arguments: dict
    shared_bytes: int = 0


@python_integers
def plain(M, N, d, text=None):
    """The launch of `plain_attention`, as a list of one. text: in place of plain_attention.cu."""
    columns = -(-d // LANES) * LANES
    arguments = dict.fromkeys(("Q", "K", "V", "output")) | {"M": M, "N": N, "d": d, "scale": d**-0.5}
    grid, block = (-(-M // PLAIN_BLOCK_M),), (LANES, PLAIN_BLOCK_M)
    return [Launch(text or source("plain_attention.cu"), f"plain_attention<{columns}>", grid, block, arguments)]


@dataclass(frozen=True)
class Counts:
    """Of one launch. by_tensor: {name: (requests, sectors)}; Q, K and V are loaded, output is stored.

    shared_loads, shared_stores: requests. barriers: __syncthreads, of all blocks.
    """

    by_tensor: dict
    shared_loads: int
    shared_stores: int
    barriers: int


@python_integers
def plain_counts(M, N, d):
    """Counts of `plain_attention` for Q and output [M, d], K and V [N, d] in float32.

    A block of 16 warps computes 16 rows. It loads its rows of Q once, and all of K and V in tiles of 16 rows; a warp
    moves one row of a tile, 32 columns at a time. D is d, rounded up to a multiple of 32.

    Shared stores, of a block: D / 32 for each of the 16 rows of a tile, which is filled up with zeros.
    Shared loads, of a warp and for each tile: D / 4 loads of four columns of its row of Q, for each of these 16 of four
        columns of a key, and D / 32 of a value for each of 16 keys.

    >>> plain_counts(1024, 1024, 128)
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


@python_integers
def shipped(M, N, d, *, sms, max_shared_bytes, text=None, max_splits=MAX_SPLITS):
    """The launches of `attention` and, where it splits the keys, of `merge_splits`.

    sms, max_shared_bytes: of the GPU, and what a block can have there. text: in place of attention.cu. max_splits: 1
    never splits the keys.
    """
    columns = next(columns for columns in (32, 64, 128) if d <= columns)
    rows = max(32, min(128, 1 << (M - 1).bit_length()))
    block_m, block_n = next(
        tile for tile in TILES if tile[0] <= rows and shared_bytes(columns, *tile) <= max_shared_bytes
    )
    keys = keys_per_split(-(-M // block_m), -(-N // block_n), sms, max_splits) * block_n
    splits = -(-N // keys)
    text = text or source("attention.cu")
    arrays = dict.fromkeys(("Q", "K", "V", "output", "states"))
    sizes = {"M": M, "N": N, "d": d, "scale_log2": LOG2_E * d**-0.5, "keys_per_split": keys}
    first = Launch(
        text, f"attention<{columns}, {block_m}, {block_n}>", (-(-M // block_m), splits), (THREADS,), arrays | sizes,
        shared_bytes(columns, block_m, block_n),
    )  # fmt: skip
    merging = {"output": None, "states": None, "M": M, "d": d, "scale_log2": sizes["scale_log2"], "splits": splits}
    return [first, Launch(text, "merge_splits", (M,), (MERGE_THREADS,), merging)] if splits > 1 else [first]


def shared_bytes(columns, block_m, block_n):
    """Q, V, and the larger of K and P, whose rows are padded by 4 floats, P's by 8. See attention.cu."""
    k, p = block_n * (columns + 4), block_m * (block_n + 8)
    return 4 * ((block_m + block_n) * (columns + 4) + max(k, p))


def keys_per_split(blocks_of_rows, tiles, sms, max_splits):
    """How many tiles of keys a block takes, so that the last block is done soonest.

    An SM runs one block at a time: blocks run in rounds of `sms`, and a block takes as long as its tiles, and one more
    for its beginning and its end. Of splits that are equally fast, the fewest are best, for there is less to merge.
    """

    def tiles_in_a_row(splits):
        return -(-blocks_of_rows * splits // sms) * (-(-tiles // splits) + 1), splits

    most = min(tiles, max_splits, max(1, 4 * sms // blocks_of_rows))
    return -(-tiles // min(range(1, most + 1), key=tiles_in_a_row))


def states_floats(launches):
    """What the array "states" of these launches holds: m, l and acc of every row and split; 0 if there is none."""
    sizes = launches[-1].arguments
    return sizes["splits"] * sizes["M"] * (sizes["d"] + 2) if "splits" in sizes else 0


def source(name):
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
