"""The kernels' masks and loop bounds are those of course_lib.masks, for all small shapes and blocks.

The helpers work on tensors as well as on numbers, so that one program computes all cases of one pair of block sizes.
"""

import itertools

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from course_lib import masks, runtime
from course_lib.kernels.device import kv_loop_bounds, q_loop_bounds, visible

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


@triton.jit
def visible_kernel(i_ptr, j_ptr, n_q_ptr, n_k_ptr, out_ptr, N_CASES: tl.constexpr, IS_CAUSAL: tl.constexpr):
    case = tl.arange(0, N_CASES)
    n_q, n_k = tl.load(n_q_ptr + case), tl.load(n_k_ptr + case)
    seen = visible(tl.load(i_ptr + case), tl.load(j_ptr + case), n_q, n_k, IS_CAUSAL)
    tl.store(out_ptr + case, seen.to(tl.int32))


def columns(cases):
    """Cases as one int32 tensor for each argument, padded to a power of two with copies of the last case."""
    padded = cases + cases[-1:] * (triton.next_power_of_2(len(cases)) - len(cases))
    return [torch.tensor(column, dtype=torch.int32, device=runtime.device()) for column in zip(*padded, strict=True)]


def bounds(cases, **constants):
    arguments = columns(cases)
    out = torch.full((2, len(arguments[0])), -1, dtype=torch.int32, device=runtime.device())
    bounds_kernel[(1,)](*arguments, *out, N_CASES=len(arguments[0]), **constants)
    return list(zip(*out[:, : len(cases)].tolist(), strict=True))


@pytest.mark.parametrize("causal", MASKS)
def test_key_tiles_of_a_query_tile(causal):
    for block_m, block_n in BLOCKS:
        cases, expected = [], []
        for n_q, n_k in LENGTHS:
            tiles = MASKS[causal].tiles(n_q, n_k, block_m, block_n)
            whole = [stop - start == block_n for start, stop in tiles.key_rows]  # a short tile needs a mask
            for i, (start, stop) in enumerate(tiles.query_rows):
                seen = MASKS[causal].dense(n_q, n_k)[start:stop].any(axis=0)
                cases.append((start, n_q, n_k))
                expected.append((block_n * sum((tiles.kinds[i] == masks.FULL) & whole), seen.sum()))
                assert tiles.key_tiles(i) == list(range(-(-seen.sum() // block_n))), "a loop from 0 visits them all"
        assert bounds(cases, KEYS=True, IS_CAUSAL=causal, BLOCK_M=block_m, BLOCK_N=block_n) == expected


@pytest.mark.parametrize("causal", MASKS)
def test_query_tiles_of_a_key_tile(causal):
    for block_m, block_n in BLOCKS:
        cases, expected = [], []
        for n_q, n_k in LENGTHS:
            tiles = MASKS[causal].tiles(n_q, n_k, block_m, block_n)
            for j, (start, _) in enumerate(tiles.key_rows):
                full = np.flatnonzero(tiles.kinds[:, j] == masks.FULL)
                cases.append((start, n_q, n_k))
                expected.append((block_m * tiles.query_tiles(j)[0], block_m * full[0] if len(full) else n_q))
                assert tiles.query_tiles(j)[-1] == tiles.shape[0] - 1, "a loop to n_q visits them all"
        assert bounds(cases, KEYS=False, IS_CAUSAL=causal, BLOCK_M=block_m, BLOCK_N=block_n) == expected


@pytest.mark.parametrize("causal", MASKS)
def test_visible_hides_what_the_mask_hides_and_keys_that_do_not_exist(causal):
    cases, expected = [], []
    for n_q, n_k in LENGTHS:
        dense = np.pad(MASKS[causal].dense(n_q, n_k), ((0, 0), (0, 4)))  # four columns beyond the last key
        cases += [(i, j, n_q, n_k) for i, j in np.ndindex(dense.shape)]
        expected += dense.ravel().tolist()
    arguments = columns(cases)
    out = torch.full_like(arguments[0], -1)
    visible_kernel[(1,)](*arguments, out, N_CASES=len(out), IS_CAUSAL=causal)
    assert out[: len(cases)].tolist() == expected
