"""The table of configurations: complete, reachable, and what `select` makes of it."""

import itertools

import pytest
import torch

from course_lib.kernels import configs
from course_lib.kernels.configs import Config, dot_precision, find_row, select

CAPABILITIES = (None, (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
HEAD_DIMS = (1, 32, 33, 64, 65, 127, 128, 129, 255, 256)
SHAPES = list(
    itertools.product(
        (torch.float16, torch.float32), HEAD_DIMS, (None, False, True), (None, (7, 5), (8, 0), (9, 0), (10, 0)),
        (1, 2049, 3074, 5000, 16385), (False, True), (1, 5000, None),
    )
)  # fmt: skip


def test_every_shape_has_a_row_and_every_row_a_shape():
    used = {id(find_row(kernel, *shape)) for kernel in ("forward", "dkdv", "dq", "decode") for shape in SHAPES}
    assert used == set(map(id, configs.TABLE))


def test_rows_are_configurations_that_a_kernel_can_be_launched_with():
    for row in configs.TABLE:
        assert {row.config.block_m, row.config.block_n} <= set(configs.BLOCK_SIZES), row
        assert row.config.num_warps in (2, 4, 8) and row.config.num_stages in (1, 2, 3, 4), row
        assert row.source in ("sweep-h100", "timed-h100", "timed-h200", "compiler report", "interpreter"), row
        if row.source.endswith("h100"):
            assert row.arch == "sm_90", row


H100 = dict(dtype=torch.float16, capability=(9, 0), by_descriptor=True)


def test_long_sequences_get_large_tiles_on_an_h100():
    """Those that sweep-h100.json shows to be the fastest; tests/courseware/bench/test_experiments.py compares."""
    large, small = Config(128, 128, 8, 3), Config(64, 64, 4, 3)
    for causal, longest_short in ((False, 1536), (True, 3073)):
        shape = dict(head_dim=128, causal=causal, **H100)
        assert select("forward", n_k=longest_short, **shape) == small
        assert select("forward", n_k=longest_short + 1, **shape) == large


def test_few_query_rows_get_small_tiles():
    shape = H100 | dict(dtype=torch.float32, head_dim=128, causal=False, n_k=8192)
    tiles = [select("forward", n_rows=n_rows, **shape).block_m for n_rows in (1024, 8192, 65_536, None)]
    assert tiles == [16, 32, 128, 128]


def test_gpus_of_one_generation_share_rows():
    shape = dict(dtype=torch.float16, head_dim=128, causal=True, n_k=4096, by_descriptor=False)
    for kernel in ("forward", "dkdv", "dq"):
        assert len({select(kernel, capability=c, **shape) for c in ((8, 0), (8, 6), (8, 9), (12, 0))}) == 1


@pytest.mark.parametrize("block_q,num_warps", ((16, 4), (64, 4), (128, 8)))
def test_a_caller_s_blocks_are_launched_without_prefetching(block_q, num_warps):
    shape = dict(head_dim=128, causal=False, n_k=4096, **H100)
    assert select("forward", block_q=block_q, block_k=32, **shape) == (block_q, 32, num_warps, 1)
    # The other block comes from the row that the launch would take, here 128 x 128.
    assert select("forward", block_q=block_q, **shape) == (block_q, 128, num_warps, 1)
    assert select("forward", block_k=16, **shape) == (128, 16, 8, 1)


def test_fp32_is_multiplied_on_tensor_cores_that_know_bf16():
    assert {c: dot_precision(torch.float32, c) for c in CAPABILITIES} == {
        c: "bf16x6" if c and c >= (8, 0) else "ieee" for c in CAPABILITIES
    }
    assert dot_precision(torch.float16, (9, 0)) == "ieee"
