"""How the kernels of this folder are launched, on a GPU and on a CPU alike."""

from dataclasses import dataclass
from pathlib import Path

LANES = 32
MAX_HEAD_DIM = 128
# Of attention.cu.
PLAIN_BLOCK_M = PLAIN_BLOCK_N = 16


@dataclass(frozen=True)
class Launch:
    """source: CUDA C++. kernel: an expression for a __global__ function in it. grid, block: blocks, threads of a block.

    shared_bytes: dynamic shared memory of a block.
    """

    source: str
    kernel: str
    grid: tuple
    block: tuple
    shared_bytes: int = 0


def plain(M, N, d):
    """`plain_attention`, whose arguments are Q, K, V, output, M, N, d, scale; see attention.cu."""
    columns = -(-d // LANES) * LANES
    return Launch(
        source("attention.cu"),
        f"plain_attention<{columns}>",
        grid=(-(-M // PLAIN_BLOCK_M),),
        block=(LANES, PLAIN_BLOCK_M),
    )


def source(name):
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
