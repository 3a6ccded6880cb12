"""Who sees whom, for kernels: jitted twins of `course_lib.masks`.

Causal masks are aligned bottom-right: query i sees the keys j <= i + n_k - n_q, so the last query sees every key.
"""

import triton
import triton.language as tl


@triton.jit
def visible(offs_m, offs_n, n_q, n_k, IS_CAUSAL: tl.constexpr):
    """Whether query offs_m sees key offs_n; offsets that broadcast, as [BLOCK_M, 1] and [1, BLOCK_N] do.

    offs_m must lie below n_q where IS_CAUSAL: the comparison then hides the keys beyond n_k as well.
    """
    if IS_CAUSAL:
        return offs_n <= offs_m + n_k - n_q
    else:
        return offs_n < n_k


@triton.jit
def kv_loop_bounds(start_m, n_q, n_k, IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(full_end, kv_end): of the keys that a query tile visits, [0, full_end) need no mask, [full_end, kv_end) do.

    full_end is a multiple of BLOCK_N. start_m: the tile's first query.
    """
    if IS_CAUSAL:
        first_row_sees = start_m + 1 + n_k - n_q  # a number of keys, if positive
        last_row = tl.minimum(start_m + BLOCK_M, n_q)
        kv_end = tl.minimum(tl.maximum(last_row + n_k - n_q, 0), n_k)
        full_end = tl.minimum(tl.maximum(first_row_sees, 0), n_k) // BLOCK_N * BLOCK_N
    else:
        kv_end = n_k
        full_end = n_k // BLOCK_N * BLOCK_N
    return full_end, kv_end


@triton.jit
def q_loop_bounds(start_n, n_q, n_k, IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(q_start, full_start): of the queries that a key tile visits, [q_start, full_start) need a causal mask.

    Queries from full_start on see every key of the tile. Both are multiples of BLOCK_M, and full_start may lie beyond
    n_q: clamped here, it would no longer be known as a multiple where the loop without a mask starts, which then loads
    more slowly. start_n: the tile's first key.
    """
    if IS_CAUSAL:
        first_seen_by = tl.maximum(start_n + n_q - n_k, 0)
        last_key = tl.minimum(start_n + BLOCK_N, n_k) - 1
        seen_whole_by = tl.maximum(last_key + n_q - n_k, 0)
        q_start = first_seen_by // BLOCK_M * BLOCK_M
        full_start = tl.cdiv(seen_whole_by, BLOCK_M) * BLOCK_M
    else:
        q_start = 0
        full_start = 0
    return q_start, full_start
