"""The kernels' loop bounds are those of course_lib.masks, for all small shapes and blocks.

The helpers work on tensors as well as on numbers, so that one program computes all cases of one pair of block sizes.
"""

import itertools

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from course_lib import masks, runtime
from course_lib.kernels.device import kv_loop_bounds, q_loop_bounds

LENGTHS = list(itertools.product(range(1, 8), repeat=2))
BLOCKS = list(itertools.product(range(1, 5), repeat=2))
MASKS = {False: masks.full(), True: masks.causal()}


@triton.jit
def bounds_kernel(
    starts_ptr, n_q_ptr, n_k_ptr, from_ptr, to_ptr, N_CASES: tl.constexpr,
    KEYS: tl.constexpr, IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    case = tl.arange(0, N_CASES)
    start, n_q, n_k = tl.load(starts_ptr + case), tl.load(n_q_ptr + case), tl.load(n_k_ptr + case)
    if KEYS:
        first, second = kv_loop_bounds(start, n_q, n_k, IS_CAUSAL, BLOCK_M, BLOCK_N)
    else:
        first, second = q_loop_bounds(start, n_q, n_k, IS_CAUSAL, BLOCK_M, BLOCK_N)
        second = tl.minimum(second, n_q)  # as the kernel ends its loop with a mask
    tl.store(from_ptr + case, first)
    tl.store(to_ptr + case, second)


def bounds(cases, **constants):
    """What the kernel says of cases, which are padded to a power of two with copies of the last one."""
    padded = cases + cases[-1:] * (triton.next_power_of_2(len(cases)) - len(cases))
    columns = torch.tensor(padded, dtype=torch.int32, device=runtime.device()).T.contiguous()
    out = torch.full_like(columns[:2], -1)
    bounds_kernel[(1,)](*columns, *out, N_CASES=len(padded), **constants)
    return list(zip(*out[:, : len(cases)].tolist(), strict=True))


@pytest.mark.parametrize("keys", (True, False), ids=("keys", "queries"))
@pytest.mark.parametrize("causal", MASKS)
def test_tiles_that_a_tile_visits(causal, keys):
    for block_m, block_n in BLOCKS:
        cases, expected = [], []
        for n_q, n_k in LENGTHS:
            tiles = MASKS[causal].tiles(n_q, n_k, block_m, block_n)
            whole = [stop - start == block_n for start, stop in tiles.key_rows]  # a short tile needs a mask
            for number, (start, stop) in enumerate(tiles.query_rows if keys else tiles.key_rows):
                cases.append((start, n_q, n_k))
                if keys:
                    seen = MASKS[causal].dense(n_q, n_k)[start:stop].any(axis=0).sum()
                    expected.append((block_n * sum((tiles.kinds[number] == masks.FULL) & whole), seen))
                    assert tiles.key_tiles(number) == list(range(-(-seen // block_n))), "a loop from 0 visits them all"
                else:
                    full = np.flatnonzero(tiles.kinds[:, number] == masks.FULL)
                    seen = tiles.query_tiles(number)
                    expected.append((block_m * seen[0], block_m * full[0] if len(full) else n_q))
                    assert seen[-1] == tiles.shape[0] - 1, "a loop to n_q visits them all"
        assert bounds(cases, KEYS=keys, IS_CAUSAL=causal, BLOCK_M=block_m, BLOCK_N=block_n) == expected
