"""Attention with any mask, changed scores, sinks and dropout, in Triton: the forward; see masked_backward.py, too.

One kernel serves all variants, because they differ in data and in functions, not in the algorithm:

    a mask            is a list of tiles that a program visits, and what to hide in partial ones (block_mask.py)
    a score mod       is a function that the kernel applies to each score (score_mods.py)
    a sink            is one more term of the softmax, which has weight and no value: a state (sink, 1, 0) to merge
    dropout           is a function of seed, head, query and key (Philox, Salmon et al. 2011); the backward repeats it

Reading order: what tiles have in common with the backward, the kernel, launch.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from course_lib import runtime
from course_lib.kernels.block_mask import block_mask_of, keys_of_a_query
from course_lib.kernels.configs import dot_precision, select
from course_lib.kernels.device import LN_2, LOG2_E, load_tile, store_tile
from course_lib.kernels.launch import descriptor, padded_head_dim, takes_descriptors, tensor_meta, with_positive_scale


@triton.jit
def positions(offs_m, positions_ptr, n_q, n_k):
    """The keys at whose positions queries stand."""
    if positions_ptr is not None:
        return tl.load(positions_ptr + offs_m, mask=offs_m < n_q, other=0)
    else:
        return offs_m + n_k - n_q


@triton.jit
def apply_score_mods(scores, queries, keys, head, w_ptr, stride_w, MODS: tl.constexpr):
    """The scores after all score mods. queries, keys: positions. head: the flattened index batch * n_heads + head."""
    for i in tl.static_range(len(MODS)):
        scores = MODS[i](scores, queries, keys, tl.load(w_ptr + i * stride_w + head))
    return scores


@triton.jit
def score_mods_backward(
    ds, scores, queries, keys, head, w_ptr, stride_w, MODS: tl.constexpr, DERIVATIVES: tl.constexpr
):
    """ds * d apply_score_mods(scores) / d scores, by the chain rule."""
    for i in tl.static_range(len(MODS)):
        parameter = tl.load(w_ptr + i * stride_w + head)
        if DERIVATIVES[i] is not None:
            # Where a weight is 0, the derivative of a huge score may be anything.
            ds = tl.where(ds == 0.0, 0.0, ds * DERIVATIVES[i](scores, queries, keys, parameter))
        scores = MODS[i](scores, queries, keys, parameter)
    return ds


@triton.jit
def load_ranges(ranges_ptr, offs, n):
    """The first and the stop of what each of a program's own rows sees, or is seen by; both 0 without ranges."""
    if ranges_ptr is not None:
        first = tl.load(ranges_ptr + offs, mask=offs < n, other=0)
        return first, tl.load(ranges_ptr + n + offs, mask=offs < n, other=0)
    else:
        return offs * 0, offs * 0


@triton.jit
def block_mask_visible(
    m, n, first, stop, ranges_ptr, bits_ptr, bits_of_ptr, visit,
    TRANSPOSED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Which pairs of this visit's tile the mask shows. m, n: queries and keys, offsets that broadcast."""
    if ranges_ptr is not None:
        other = m if TRANSPOSED else n
        return (other >= first[:, None]) & (other < stop[:, None])
    else:
        WORDS: tl.constexpr = (BLOCK_N + 31) // 32  # of a query; loaded once, not once for every pair
        bits_ptr += tl.load(bits_of_ptr + visit).to(tl.int64) * (BLOCK_M * WORDS) + m % BLOCK_M * WORDS
        key = n % BLOCK_N
        bit = tl.load(bits_ptr) >> (key % 32)
        for word in tl.static_range(1, WORDS):
            bit = tl.where(key < 32 * word, bit, tl.load(bits_ptr + word) >> (key % 32))
        return bit & 1 != 0


@triton.jit
def dropout_keep_mask(
    start_m, start_n, head, seed_ptr, dropped, TRANSPOSED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Whether dropout keeps the pairs of a tile: [BLOCK_M, BLOCK_N], or transposed.

    head: the flattened index batch * n_heads + head.
    Philox draws four 32-bit numbers at once, for queries i and i + 8 and keys j and j + 8 of an aligned square of 16 x
    16 pairs: tensor cores leave these four in one thread, transposed or not. Its 7 rounds pass BigCrush (Salmon et al.
    2011, table 2). dropped: the share of the pairs that are, times 2^32, less 2^31.
    """
    m, n = start_m // 2 + tl.arange(0, BLOCK_M // 2), start_n // 2 + tl.arange(0, BLOCK_N // 2)
    rows, columns = (n, m) if TRANSPOSED else (m, n)
    zero = rows[:, None] * 0 + columns[None, :] * 0
    rows, columns = zero + rows[:, None], zero + columns[None, :]
    m, n = (columns, rows) if TRANSPOSED else (rows, columns)
    near, key_8, query_8, both_8 = tl.philox(tl.load(seed_ptr), n, m, zero + head.to(tl.int32), zero, 7)
    row_8, column_8 = (key_8, query_8) if TRANSPOSED else (query_8, key_8)
    drawn = tl.join(tl.join(near, row_8), tl.join(column_8, both_8))
    drawn = drawn.reshape(zero.shape[0] // 8, 8, zero.shape[1] // 8, 8, 2, 2).permute(0, 4, 1, 2, 5, 3)
    return drawn.reshape(2 * zero.shape[0], 2 * zero.shape[1]).to(tl.int32, bitcast=True) >= dropped


@triton.jit
def variant_forward_kernel(
    q_ptr, k_ptr, v_ptr, k_desc, v_desc, o_ptr, lse_ptr,
    programs_ptr, tiles_ptr, bits_of_ptr, bits_ptr, ranges_ptr, positions_ptr, w_ptr, sinks_ptr, seed_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_w, n_heads, n_q, n_k, scale, dropped, kept_scale,
    GROUP_SIZE: tl.constexpr, MODS: tl.constexpr, INPUT_PRECISION: tl.constexpr, MASK_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (i, h, b): the query tile of programs[i], of head h of sequence b.

    q, k, v, k_desc, v_desc, o, lse: as in `flash_forward_kernel`; o contiguous. programs and the next five: BlockMask.
    w: parameters of the score mods, fp32 [len(MODS), batch, n_heads], the first axis stride_w apart. sinks: fp32
    [n_heads] or None. seed: int64 [1], or None without dropout. scale: positive. kept_scale: 1 / (1 - p).
    """
    program = programs_ptr + 5 * tl.program_id(0)
    start_m = tl.load(program) * BLOCK_M
    head, batch = tl.cast(tl.program_id(1), tl.int64), tl.cast(tl.program_id(2), tl.int64)
    kv_head, batch_head = head // GROUP_SIZE, batch * n_heads + head
    offs_m = start_m + tl.arange(0, BLOCK_M)
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    q = load_tile(q_ptr, None, 0, 0, start_m, n_q, stride_qm, True, HEAD_DIM, BLOCK_M, BLOCK_D)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if sinks_ptr is not None:
        # The state of a key that has this score and the value 0.
        m_i = tl.zeros([BLOCK_M], tl.float32) + tl.load(sinks_ptr + head) * LOG2_E
        l_i += 1.0
    first, stop = load_ranges(ranges_ptr, offs_m, n_q)
    first_partial = tl.load(program + 2)
    tile = tl.load(program + 4)
    for visit in range(tl.load(program + 1), tl.load(program + 3)):
        start_n = tile * BLOCK_N
        tile = tl.load(tiles_ptr + visit + 1)  # in time for the next visit
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k = load_tile(k_ptr, k_desc, batch, kv_head, start_n, n_k, stride_kn, MASK_ROWS, HEAD_DIM, BLOCK_N, BLOCK_D)
        v = load_tile(v_ptr, v_desc, batch, kv_head, start_n, n_k, stride_vn, MASK_ROWS, HEAD_DIM, BLOCK_N, BLOCK_D)
        # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
        scores = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION)
        scale_log2 = scale * LOG2_E
        if len(MODS) > 0:
            queries = positions(offs_m[:, None], positions_ptr, n_q, n_k)
            scores = apply_score_mods(scores * scale, queries, offs_n[None, :], batch_head, w_ptr, stride_w, MODS)
            scale_log2 = LOG2_E
        if visit >= first_partial:
            seen = block_mask_visible(
                offs_m[:, None], offs_n[None, :], first, stop, ranges_ptr, bits_ptr, bits_of_ptr, visit,
                False, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            scores = tl.where(seen, scores, float("-inf"))
        # `online_softmax_update`, with dropout in its middle: what is dropped counts in l_i all the same.
        m_new = tl.maximum(m_i, tl.max(scores, axis=1) * scale_log2)
        m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(scores * scale_log2 - m_ref[:, None])
        alpha = tl.exp2(m_i - m_ref)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        if seed_ptr is not None:
            kept = dropout_keep_mask(start_m, start_n, batch_head, seed_ptr, dropped, False, BLOCK_M, BLOCK_N)
            p = tl.where(kept, p, 0.0)
        # [BLOCK_M, BLOCK_N] @ [BLOCK_N, BLOCK_D]
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=INPUT_PRECISION)
        m_i = m_new
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    o = acc * (kept_scale / l_safe)[:, None]
    store_tile(o_ptr + batch_head * n_q * HEAD_DIM, o, start_m, n_q, HEAD_DIM, True, HEAD_DIM, BLOCK_M, BLOCK_D)
    lse = tl.where(l_i == 0.0, float("-inf"), (m_i + tl.log2(l_safe)) * LN_2)
    tl.store(lse_ptr + batch_head * n_q + offs_m, lse, mask=offs_m < n_q)


class Variant(NamedTuple):
    """What sets a call apart from plain attention, checked. mods: ScoreMods; w: their parameters, as the kernel's."""

    mask: Any
    mods: tuple
    w: torch.Tensor | None
    sinks: torch.Tensor | None
    dropout_p: float
    seed: torch.Tensor | None

    @property
    def numbers(self):
        """(dropped, kept_scale) of the kernels; a scale of 0 where nothing is kept."""
        kept = 1.0 - self.dropout_p
        return min(round(self.dropout_p * 2**32) - 2**31, 2**31 - 1), 1.0 / kept if kept else 0.0

    def constants(self, q, k):
        return dict(
            GROUP_SIZE=q.shape[1] // k.shape[1], MODS=tuple(mod.apply for mod in self.mods),
            INPUT_PRECISION=dot_precision(q.dtype, runtime.capability(q.device)),
            HEAD_DIM=q.shape[3], BLOCK_D=padded_head_dim(q.shape[3]),
        )  # fmt: skip


def config_of(kernel, mask, q, k, by_descriptor=False):
    """The Config of a kernel that takes its tiles from a list. by_descriptor: how it loads them."""
    # To a query, a sequence is as long as what it sees of it.
    return select(
        kernel, dtype=q.dtype, head_dim=q.shape[3], causal=None, capability=runtime.capability(q.device),
        n_k=keys_of_a_query(mask, q.shape[2], k.shape[2]), by_descriptor=by_descriptor, n_rows=q.shape[:3].numel(),
    )  # fmt: skip


def variant_forward(q, k, v, variant, scale, config=None, by_descriptor=None):
    """Launch the kernel on checked inputs; returns (o, lse).

    To measure other choices, config replaces the result of `config_of`, and by_descriptor that of `takes_descriptors`.
    """
    batch, n_heads, n_q, _ = q.shape
    n_k = k.shape[2]
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if o.numel() == 0:
        return o, lse
    if by_descriptor is None:
        by_descriptor = takes_descriptors(runtime.capability(q.device), tensor_meta(k), tensor_meta(v))
    config = config or config_of("forward", variant.mask, q, k, by_descriptor)
    block_m, block_n, num_warps, num_stages = config
    seen = block_mask_of(variant.mask, n_q, n_k, block_m, block_n, q.device)
    q, scale = with_positive_scale(q, scale)
    variant_forward_kernel[len(seen.programs), n_heads, batch](
        q, k, v, *(descriptor(x, block_n) if by_descriptor else None for x in (k, v)), o, lse, *seen,
        variant.w, variant.sinks, variant.seed, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        batch * n_heads, n_heads, n_q, n_k, scale, *variant.numbers,
        MASK_ROWS=n_k % block_n != 0, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=num_warps, num_stages=num_stages,
        **variant.constants(q, k),
    )  # fmt: skip
    return o, lse
