"""The jitted masks against their definition: query i sees the keys j <= i + n_k - n_q, or every key."""

import itertools

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from course_lib import runtime
from course_lib.kernels.masks import kv_loop_bounds, q_loop_bounds, visible

DEVICE = runtime.device()


@triton.jit
def write_masks(
    visible_ptr, kv_ptr, q_ptr, n_q, n_k,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """visible [BLOCK, BLOCK]; of each query tile, then of each key tile, the two bounds of its loop."""
    offs_m, offs_n = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    is_visible = visible(offs_m, offs_n, n_q, n_k, IS_CAUSAL) & (offs_m < BLOCK)
    tl.store(visible_ptr + offs_m * BLOCK + offs_n, is_visible.to(tl.int32))
    for start_m in range(0, n_q, BLOCK_M):
        full_end, kv_end = kv_loop_bounds(start_m, n_q, n_k, IS_CAUSAL, BLOCK_M, BLOCK_N)
        tl.store(kv_ptr + start_m // BLOCK_M * 2, full_end)
        tl.store(kv_ptr + start_m // BLOCK_M * 2 + 1, kv_end)
    for start_n in range(0, n_k, BLOCK_N):
        q_start, full_start = q_loop_bounds(start_n, n_q, n_k, IS_CAUSAL, BLOCK_M, BLOCK_N)
        tl.store(q_ptr + start_n // BLOCK_N * 2, q_start)
        tl.store(q_ptr + start_n // BLOCK_N * 2 + 1, full_start)


def masks_of(n_q, n_k, causal, block_m, block_n):
    outputs = [torch.full(shape, -1, dtype=torch.int32, device=DEVICE) for shape in ((16, 16), (16, 2), (16, 2))]
    write_masks[(1,)](*outputs, n_q, n_k, causal, block_m, block_n, 16)
    return [x.cpu().numpy() for x in outputs]


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("block_m,block_n", ((1, 1), (2, 4), (4, 2), (4, 4), (8, 2)))
def test_masks_and_loop_bounds_are_what_the_definition_says(block_m, block_n, causal):
    for n_q, n_k in itertools.product((1, 2, 3, 4, 5, 8, 11), repeat=2):
        case = (n_q, n_k)
        sees = np.arange(n_k) <= np.arange(n_q)[:, None] + n_k - n_q if causal else np.ones((n_q, n_k), bool)
        is_visible, kv, q = masks_of(n_q, n_k, causal, block_m, block_n)
        np.testing.assert_array_equal(is_visible[:n_q, :n_k], sees, str(case))
        assert not is_visible[:n_q, n_k:].any(), case
        for tile, start in enumerate(range(0, n_q, block_m)):
            rows = sees[start : start + block_m]
            seen = np.flatnonzero(rows.any(0))
            hidden = np.flatnonzero(~rows.all(0))
            full_end, kv_end = kv[tile]
            assert kv_end == (seen[-1] + 1 if seen.size else 0), case
            assert full_end == (hidden[0] if hidden.size else n_k) // block_n * block_n, case
        for tile, start in enumerate(range(0, n_k, block_n)):
            columns = sees[:, start : start + block_n]
            seeing = np.flatnonzero(columns.any(1))
            seeing_all = np.flatnonzero(columns.all(1))
            q_start, full_start = q[tile]
            assert q_start == seeing[0] // block_m * block_m, case
            assert full_start == min(-(-seeing_all[0] // block_m) * block_m, n_q), case
