"""Tile sizes and launch options of every attention kernel, as one table, and `select`, which reads it.

Whatever needs to know how a kernel is launched asks `select`: the launch itself, its error messages, the benchmark, the
explorers and the tests. A row says where its numbers come from:

    sweep-h100       the fastest of a recorded sweep (`python -m tools.sweep`), or within 3 % of it
    timed-h100       the fastest of the candidates that were timed on an H100, without a record
    timed-h200       likewise, on an H200
    compiler report  not timed: the largest tiles whose loop the compiler keeps in registers and shared memory (in fp32
                     with more than 128 columns, the smallest tiles: none fits)
    interpreter      the interpreter's time grows with the number of operations, so the tiles are the largest
"""

import tomllib
from pathlib import Path
from typing import NamedTuple

import torch

BLOCK_SIZES = (16, 32, 64, 128)  # what a caller of `flash_attention` may choose
ANY = "any"


class Config(NamedTuple):
    """A tile has block_m queries or block_n keys; num_stages tiles are prefetched ahead of the one in use.

    For "decode", block_m is the most rows that a tile may have; where there are fewer, it is smaller.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


class Row(NamedTuple):
    """The Config for every launch that the row matches; ANY in a column matches everything.

    kernel: "forward", "dkdv", "dq" or "decode". arch: see `arch_of`. dtype: "half" for fp16 and bf16, or "fp32".
    head_dims: [lowest, highest]. mask: "full", "causal", or "list" of the tiles that a mask shows. more_keys_than,
    more_rows_than: the number of keys in a sequence (with a list, of those that a query visits on average), and of
    query rows in all heads and sequences together, must exceed them. by_descriptor: whether the tiles in the loop come
    by tensor descriptor.
    """

    kernel: str
    arch: str
    dtype: str
    head_dims: list
    mask: str
    more_keys_than: int
    more_rows_than: int
    by_descriptor: bool
    config: Config
    source: str


TABLE = tuple(
    Row(*row[:8], Config(*row[8]), row[9])
    for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["rows"]
)


def arch_of(capability):
    """The table's column for a compute capability (major, minor), or None for the interpreter.

    "sm_80" stands for every GPU that has neither Hopper's nor Blackwell's large shared memory: 8.0, 8.6, 8.9, 12.0.
    """
    if capability is None:
        return "interpreter"
    if capability < (8, 0):
        return "sm_75"
    return {9: "sm_90", 10: "sm_100"}.get(capability[0], "sm_80")


def select(kernel, *, dtype, head_dim, causal, capability, n_k, by_descriptor, n_rows=None, block_q=None, block_k=None):
    """The Config that a kernel is launched with.

    kernel: as in a Row; dtype: torch's; causal: None for a list of tiles; capability: (major, minor) of the GPU, None
    where kernels are interpreted; n_k: keys in a sequence; by_descriptor: whether the tiles in the loop come by tensor
    descriptor; n_rows: query rows in all heads and sequences together, None for as many as the GPU can use.
    block_q, block_k: the caller's own choice. It is launched without prefetching, which would take more shared memory;
    a block that is None comes from the table.
    """
    config = find_row(kernel, dtype, head_dim, causal, capability, n_k, by_descriptor, n_rows).config
    if block_q is None and block_k is None:
        return config
    block_m, block_n = block_q or config.block_m, block_k or config.block_n
    # One warp for 16 query rows, the least that a tensor core multiplies, but four at least.
    return Config(block_m, block_n, num_warps=max(4, block_m // 16), num_stages=1)


def find_row(kernel, dtype, head_dim, causal, capability, n_k, by_descriptor, n_rows=None):
    """The first Row that matches; arguments as `select`'s."""
    wanted = (
        kernel, arch_of(capability), "fp32" if dtype == torch.float32 else "half",
        "list" if causal is None else "causal" if causal else "full", bool(by_descriptor),
    )  # fmt: skip
    for row in TABLE:
        columns = row.kernel, row.arch, row.dtype, row.mask, row.by_descriptor
        lowest, highest = row.head_dims
        if (
            all(column in (ANY, value) for column, value in zip(columns, wanted, strict=True))
            and lowest <= head_dim <= highest
            and n_k > row.more_keys_than
            and (n_rows is None or n_rows > row.more_rows_than)
        ):
            return row
    raise ValueError(f"no configuration for {kernel}, {dtype}, head_dim {head_dim}, compute capability {capability}")


def dot_precision(dtype, capability):
    """How `tl.dot` multiplies tiles of dtype: its `input_precision`, which matters for fp32 only.

    Left to itself, Triton rounds fp32 to TF32 (relative errors near 1e-3). "bf16x6" splits each number into three bf16
    parts and adds six products of parts: as accurate as fp32 arithmetic, and on tensor cores, which from compute
    capability 8.0 on know bf16. "ieee" multiplies without tensor cores. The interpreter knows only the latter.
    """
    has_bf16_products = capability is not None and capability >= (8, 0)
    return "bf16x6" if dtype == torch.float32 and has_bf16_products else "ieee"
