"""What several launches of attention found about the same rows, made one: outputs are merged, gradients added.

`distributed` launches attention once for each pair of shards. Both kernels have a program for each tile of a head's
rows, and compute in fp32.
"""

import functools

import torch
import triton
import triton.language as tl

from course_lib.kernels.device import LN_2, LOG2_E, store_tile
from course_lib.kernels.launch import MAX_CACHED_LAUNCHES, Launch, padded_head_dim, tensor_meta


@triton.jit
def head_and_tile(start_row, n, BLOCK_M: tl.constexpr):
    """The head of this program, int64, and its first row, of tiles that begin at start_row."""
    n_tiles = tl.cdiv(n - start_row, BLOCK_M)
    return tl.cast(tl.program_id(0) // n_tiles, tl.int64), start_row + tl.program_id(0) % n_tiles * BLOCK_M


@triton.jit
def load_rows(ptr, head, first, n_rows, offs_m, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows offs_m of a head, fp32 [BLOCK_M, BLOCK_D]. ptr: [heads, n_rows, HEAD_DIM], from row first on; others 0."""
    offs_d = tl.arange(0, BLOCK_D)
    mask = ((offs_m >= first) & (offs_m < first + n_rows))[:, None] & (offs_d < HEAD_DIM)[None, :]
    ptrs = ptr + (head * n_rows + offs_m - first)[:, None] * HEAD_DIM + offs_d[None, :]
    return tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["n", "start_row", "first"])
def merge_kernel(
    o_ptr, lse_ptr, part_ptr, part_lse_ptr, out_ptr, n, start_row, first,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Lesson 05's `merge_states` for normalised states, in fp32: a program merges BLOCK_M rows of a head.

    o, out: [heads, n, HEAD_DIM], perhaps the same; lse: fp32 [heads, n], overwritten. part, part_lse: the other state,
    [heads, n - first, HEAD_DIM] and [heads, n - first], of the rows from first on. Rows before start_row are left
    alone. All are contiguous.
    """
    head, start_m = head_and_tile(start_row, n, BLOCK_M)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    mask_m = offs_m < n
    o = load_rows(o_ptr, head, 0, n, offs_m, HEAD_DIM, BLOCK_D)
    part = load_rows(part_ptr, head, first, n - first, offs_m, HEAD_DIM, BLOCK_D)
    lse = tl.load(lse_ptr + head * n + offs_m, mask=mask_m, other=float("-inf"))
    part_lse_ptrs = part_lse_ptr + head * (n - first) + offs_m - first
    part_lse = tl.load(part_lse_ptrs, mask=mask_m & (offs_m >= first), other=float("-inf"))
    m = tl.maximum(lse, part_lse)
    m = tl.where(m == float("-inf"), 0.0, m)  # a row without keys stays 0, with -inf
    weight, part_weight = tl.exp2((lse - m) * LOG2_E), tl.exp2((part_lse - m) * LOG2_E)
    total = weight + part_weight
    l_safe = tl.where(total == 0.0, 1.0, total)
    merged = tl.where(total == 0.0, float("-inf"), m + tl.log2(l_safe) * LN_2)
    # Several warps may hold the same row of lse. None overwrites it before all have loaded it.
    tl.debug_barrier()
    tl.store(lse_ptr + head * n + offs_m, merged, mask=mask_m)
    out = (o * weight[:, None] + part * part_weight[:, None]) * (1.0 / l_safe)[:, None]
    store_tile(out_ptr + head * n * HEAD_DIM, out, start_m, n, HEAD_DIM, True, HEAD_DIM, BLOCK_M, BLOCK_D)


@triton.jit(do_not_specialize=["n", "first_a", "n_a", "first_b", "n_b", "first_c", "n_c"])
def sum_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr, n, first_a, n_a, first_b, n_b, first_c, n_c,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """out [heads, n, HEAD_DIM] is the sum of up to three tensors, in fp32: a program writes BLOCK_M rows of a head.

    a: [heads, n_a, HEAD_DIM], the rows from first_a on, and so on; b and c may be None. All are contiguous.
    """
    head, start_m = head_and_tile(0, n, BLOCK_M)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    out = load_rows(a_ptr, head, first_a, n_a, offs_m, HEAD_DIM, BLOCK_D)
    if b_ptr is not None:
        out += load_rows(b_ptr, head, first_b, n_b, offs_m, HEAD_DIM, BLOCK_D)
    if c_ptr is not None:
        out += load_rows(c_ptr, head, first_c, n_c, offs_m, HEAD_DIM, BLOCK_D)
    store_tile(out_ptr + head * n * HEAD_DIM, out, start_m, n, HEAD_DIM, True, HEAD_DIM, BLOCK_M, BLOCK_D)


@functools.lru_cache(MAX_CACHED_LAUNCHES)
def rows_plan(kernel, out, start_row, *numbers, metas):
    """The Launch of a kernel above that writes the rows of out from start_row on. metas: of its other tensors."""
    batch, heads, n, head_dim = out.shape
    block_d = padded_head_dim(head_dim)
    block_m = min(128, 4096 // block_d)
    return Launch(
        kernel, (-(-(n - start_row) // block_m) * batch * heads, 1, 1), n, *numbers,
        HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_D=block_d,
    )  # fmt: skip


def merge(state, part, dtype):
    """(o, lse) over the keys of both, o in dtype. lse, and o if it has that dtype, are overwritten.

    state: (o, lse) of all rows; part: (o, lse) of the last rows, as many as it has, over other keys.
    """
    (o, lse), first = state, state[0].shape[2] - part[0].shape[2]
    out = o if o.dtype == dtype else torch.empty_like(o, dtype=dtype)
    start_row = first if out is o else 0
    metas = tuple(map(tensor_meta, (o, lse, *part)))
    rows_plan(merge_kernel, tensor_meta(out), start_row, start_row, first, metas=metas)(o, lse, *part, out)
    return out, lse


def sum_rows(parts, n, dtype):
    """[batch, heads, n, head_dim] in dtype: the fp32 sum of up to three parts, each (tensor, its first row there)."""
    batch, heads, _, head_dim = parts[0][0].shape
    out = parts[0][0].new_empty((batch, heads, n, head_dim), dtype=dtype)
    tensors = [x for x, _ in parts] + [None] * (3 - len(parts))
    places = [number for x, first in parts for number in (first, x.shape[2])] + [0, 0] * (3 - len(parts))
    metas = tuple(x if x is None else tensor_meta(x) for x in tensors)
    rows_plan(sum_kernel, tensor_meta(out), 0, *places, metas=metas)(*tensors, out)
    return out
