"""Attention with any mask, changed scores, sinks and dropout, in Triton, forward and backward.

One set of kernels serves all variants, because they differ in data and in functions, not in the algorithm:

    a mask            is a list of tiles that a program visits, and what to hide in partial ones (block_mask.py)
    a score mod       is a function that the kernel applies to each score (score_mods.py)
    a sink            is one more term of the softmax, which has weight and no value: a state (sink, 1, 0) to merge
    dropout           is a function of seed, head, query and key (Philox, Salmon et al. 2011); the backward repeats it

The backward computes delta, dK and dV, and dQ as in backward.py. What changes in FlashAttention-2's Alg. 2, with s the
score before the score mods, and Z / (1 - p) the number by which dropout multiplies a weight:

    dV = (P * Z / (1 - p))^T dO     dP = dO V^T * Z / (1 - p)     dS = P * (dP - delta) * d apply_score_mods(s) / d s

delta remains rowsum(dO * O), because O has the dropped weights in it. A sink has the weight exp(sink - lse) in each row
and no value, so its gradient is the sum of -exp(sink - lse) * delta.

Reading order: what tiles have in common, the forward kernel, the backward kernels, launch.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from course_lib import masks, runtime
from course_lib.kernels.backward import load_statistics, row_delta
from course_lib.kernels.block_mask import block_mask_of, block_mask_of_ranges, keys_of_a_query
from course_lib.kernels.configs import dot_precision, select
from course_lib.kernels.device import (
    LOG2_E,
    add_sink,
    load_tile,
    logsumexp,
    softmax_weights,
    store_tile,
    weights_of,
)  # fmt: skip
from course_lib.kernels.launch import (
    addressable,
    descriptor,
    padded_head_dim,
    takes_descriptors,
    tensor_meta,
    with_positive_scale,
)
from course_lib.kernels.score_mods import apply_score_mods, score_mods_backward


@triton.jit
def positions(offs_m, positions_ptr, n_q, n_k):
    """The keys at whose positions queries stand."""
    if positions_ptr is not None:
        return tl.load(positions_ptr + offs_m, mask=offs_m < n_q, other=0)
    else:
        return offs_m + n_k - n_q


@triton.jit
def program_of(programs_ptr, index):
    """What a BlockMask says of this program, for the head that it has under this index."""
    return programs_ptr + 5 * (index * tl.num_programs(0) + tl.program_id(0))


@triton.jit
def load_ranges(ranges_ptr, index, offs, n):
    """The first and the stop of what each of a program's own rows sees, or is seen by; both 0 without ranges."""
    if ranges_ptr is not None:
        ranges_ptr += 2 * n * index
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
    stride_w, list_b, list_h, n_heads, n_q, n_k, scale, dropped, kept_scale,
    GROUP_SIZE: tl.constexpr, MODS: tl.constexpr, INPUT_PRECISION: tl.constexpr, MASK_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (i, h, b): the query tile of programs[i], of head h of sequence b.

    q, k, v, k_desc, v_desc, o, lse: as in `flash_forward_kernel`; o contiguous. programs and the next five: BlockMask.
    list_b, list_h: how many heads of the BlockMask lie between those of two sequences, or two heads. w: parameters of
    the score mods, fp32 [len(MODS), batch, n_heads], the first axis stride_w apart. sinks: fp32 [n_heads] or None.
    seed: int64 [1], or None without dropout. scale: positive. kept_scale: 1 / (1 - p).
    """
    head, batch = tl.cast(tl.program_id(1), tl.int64), tl.cast(tl.program_id(2), tl.int64)
    kv_head, batch_head = head // GROUP_SIZE, batch * n_heads + head
    program = program_of(programs_ptr, batch * list_b + head * list_h)
    start_m = tl.load(program) * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    q = load_tile(q_ptr, None, 0, 0, start_m, n_q, stride_qm, True, HEAD_DIM, BLOCK_M, BLOCK_D)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    score_scale = scale if len(MODS) == 0 else 1.0  # score mods take scaled scores
    first, stop = load_ranges(ranges_ptr, batch * list_b + head * list_h, offs_m, n_q)
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
        if len(MODS) > 0:
            queries = positions(offs_m[:, None], positions_ptr, n_q, n_k)
            scores = apply_score_mods(scores * scale, queries, offs_n[None, :], batch_head, w_ptr, stride_w, MODS)
        if visit >= first_partial:
            seen = block_mask_visible(
                offs_m[:, None], offs_n[None, :], first, stop, ranges_ptr, bits_ptr, bits_of_ptr, visit,
                False, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            scores = tl.where(seen, scores, float("-inf"))
        m_i, l_i, alpha, p = softmax_weights(m_i, l_i, scores, score_scale * LOG2_E, MAY_BE_EMPTY=True)
        if seed_ptr is not None:
            # After the sum: what is dropped counts in l_i all the same.
            kept = dropout_keep_mask(start_m, start_n, batch_head, seed_ptr, dropped, False, BLOCK_M, BLOCK_N)
            p = tl.where(kept, p, 0.0)
        # [BLOCK_M, BLOCK_N] @ [BLOCK_N, BLOCK_D]
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=INPUT_PRECISION)
    if sinks_ptr is not None:
        m_i, l_i, alpha = add_sink(m_i, l_i, tl.load(sinks_ptr + head), score_scale)
        acc, score_scale = acc * alpha[:, None], 1.0
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    o = acc * (kept_scale / l_safe)[:, None]
    store_tile(o_ptr + batch_head * n_q * HEAD_DIM, o, start_m, n_q, HEAD_DIM, True, HEAD_DIM, BLOCK_M, BLOCK_D)
    lse = logsumexp(m_i, l_i, score_scale)
    tl.store(lse_ptr + batch_head * n_q + offs_m, lse, mask=offs_m < n_q)


@triton.jit
def weights(
    own, passing, own_v, passing_v, scale, start_m, start_n, lse_log2, delta, n_q, n_k, is_partial, first, stop,
    ranges_ptr, bits_ptr, bits_of_ptr, positions_ptr, visit, w_ptr, stride_w, seed_ptr, dropped, kept_scale, head,
    TRANSPOSED: tl.constexpr, MODS: tl.constexpr, DERIVATIVES: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """(P * Z / (1 - p), dS) of a tile, [BLOCK_M, BLOCK_N] or transposed. lse_log2, delta: of its queries.

    own, own_v: the program's Q and dO, or K and V for transposed tiles. passing, passing_v: those that stream past.
    """
    # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N], or with M and N exchanged.
    scores = tl.dot(own, tl.trans(passing), input_precision=INPUT_PRECISION)
    m = tl.expand_dims(start_m + tl.arange(0, BLOCK_M), 1 - TRANSPOSED)
    n = tl.expand_dims(start_n + tl.arange(0, BLOCK_N), TRANSPOSED)
    lse_log2, delta = tl.expand_dims(lse_log2, 1 - TRANSPOSED), tl.expand_dims(delta, 1 - TRANSPOSED)
    queries = positions(m, positions_ptr, n_q, n_k)
    if len(MODS) > 0:
        # A row may have no weights because of what changes the scores, and -inf - (-inf) must not be evaluated.
        lse_log2 = tl.where(lse_log2 == float("-inf"), float("inf"), lse_log2)
        scores *= scale
        log2_p = apply_score_mods(scores, queries, n, head, w_ptr, stride_w, MODS) * LOG2_E - lse_log2
    else:
        log2_p = scores * (scale * LOG2_E) - lse_log2
    if is_partial:
        seen = block_mask_visible(
            m, n, first, stop, ranges_ptr, bits_ptr, bits_of_ptr, visit, TRANSPOSED, BLOCK_M, BLOCK_N
        )  # fmt: skip
        log2_p = tl.where(seen, log2_p, float("-inf"))
    p = weights_of(log2_p)
    # After the exponentials: their registers are free then.
    dp = tl.dot(own_v, tl.trans(passing_v), input_precision=INPUT_PRECISION)
    kept_p = p
    if seed_ptr is not None:
        kept = dropout_keep_mask(start_m, start_n, head, seed_ptr, dropped, TRANSPOSED, BLOCK_M, BLOCK_N)
        kept_p, dp = tl.where(kept, p * kept_scale, 0.0), tl.where(kept, dp * kept_scale, 0.0)
    ds = p * (dp - delta)
    ds = score_mods_backward(ds, scores, queries, n, head, w_ptr, stride_w, MODS, DERIVATIVES)
    return kept_p, ds


@triton.jit
def variant_dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, q_desc, do_desc, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    programs_ptr, tiles_ptr, bits_of_ptr, bits_ptr, ranges_ptr, positions_ptr, w_ptr, seed_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_dob, stride_doh, stride_dom,
    stride_w, list_b, list_h, n_kv_heads, n_q, n_k, scale, dropped, kept_scale,
    GROUP_SIZE: tl.constexpr, MODS: tl.constexpr, DERIVATIVES: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    MASK_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (i, h, b): the key tile of programs[i], of kv head h of sequence b. Arguments as the forward's."""
    start_n = tl.load(program_of(programs_ptr, 0)) * BLOCK_N  # of all heads
    kv_head, batch = tl.cast(tl.program_id(1), tl.int64), tl.cast(tl.program_id(2), tl.int64)
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    k = load_tile(k_ptr, None, 0, 0, start_n, n_k, stride_kn, True, HEAD_DIM, BLOCK_N, BLOCK_D)
    v = load_tile(v_ptr, None, 0, 0, start_n, n_k, stride_vn, True, HEAD_DIM, BLOCK_N, BLOCK_D)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for member in range(GROUP_SIZE):
        head = kv_head * GROUP_SIZE + member
        program = program_of(programs_ptr, batch * list_b + head * list_h)
        first, stop = load_ranges(ranges_ptr, batch * list_b + head * list_h, start_n + tl.arange(0, BLOCK_N), n_k)
        begin, first_partial, end = tl.load(program + 1), tl.load(program + 2), tl.load(program + 3)
        batch_head = batch * n_kv_heads * GROUP_SIZE + head
        q_head, do_head = q_ptr + batch * stride_qb + head * stride_qh, do_ptr + batch * stride_dob + head * stride_doh
        tile = tl.load(program + 4)
        for visit in range(begin, end):
            start_m = tile * BLOCK_M
            tile = tl.load(tiles_ptr + visit + 1)
            offs_m = start_m + tl.arange(0, BLOCK_M)
            q = load_tile(q_head, q_desc, batch, head, start_m, n_q, stride_qm, MASK_ROWS, HEAD_DIM, BLOCK_M, BLOCK_D)
            do = load_tile(
                do_head, do_desc, batch, head, start_m, n_q, stride_dom, MASK_ROWS, HEAD_DIM, BLOCK_M, BLOCK_D
            )
            rows = batch_head * n_q
            lse_log2, delta = load_statistics(lse_ptr + rows, delta_ptr + rows, offs_m, n_q, MASK_ROWS)
            p, ds = weights(
                k, q, v, do, scale, start_m, start_n, lse_log2, delta, n_q, n_k, visit >= first_partial, first, stop,
                ranges_ptr, bits_ptr, bits_of_ptr, positions_ptr, visit, w_ptr, stride_w,
                seed_ptr, dropped, kept_scale, batch_head, 1, MODS, DERIVATIVES, INPUT_PRECISION, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            # [BLOCK_N, BLOCK_M] @ [BLOCK_M, BLOCK_D]
            dv = tl.dot(p.to(do.dtype), do, dv, input_precision=INPUT_PRECISION)
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=INPUT_PRECISION)
    row_0 = (batch * n_kv_heads + kv_head) * n_k * HEAD_DIM
    store_tile(dk_ptr + row_0, dk * scale, start_n, n_k, HEAD_DIM, True, HEAD_DIM, BLOCK_N, BLOCK_D)
    store_tile(dv_ptr + row_0, dv, start_n, n_k, HEAD_DIM, True, HEAD_DIM, BLOCK_N, BLOCK_D)


@triton.jit
def variant_dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, k_desc, v_desc, lse_ptr, delta_ptr, dq_ptr,
    programs_ptr, tiles_ptr, bits_of_ptr, bits_ptr, ranges_ptr, positions_ptr, w_ptr, seed_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_dob, stride_doh, stride_dom,
    stride_w, list_b, list_h, n_heads, n_q, n_k, scale, dropped, kept_scale,
    GROUP_SIZE: tl.constexpr, MODS: tl.constexpr, DERIVATIVES: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    MASK_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (i, h, b): the query tile of programs[i], of head h of sequence b. Arguments as the forward's."""
    head, batch = tl.cast(tl.program_id(1), tl.int64), tl.cast(tl.program_id(2), tl.int64)
    kv_head, batch_head = head // GROUP_SIZE, batch * n_heads + head
    program = program_of(programs_ptr, batch * list_b + head * list_h)
    start_m = tl.load(program) * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    q_ptr += batch * stride_qb + head * stride_qh
    do_ptr += batch * stride_dob + head * stride_doh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    q = load_tile(q_ptr, None, 0, 0, start_m, n_q, stride_qm, True, HEAD_DIM, BLOCK_M, BLOCK_D)
    do = load_tile(do_ptr, None, 0, 0, start_m, n_q, stride_dom, True, HEAD_DIM, BLOCK_M, BLOCK_D)
    lse_log2, delta = load_statistics(lse_ptr + batch_head * n_q, delta_ptr + batch_head * n_q, offs_m, n_q, True)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    first, stop = load_ranges(ranges_ptr, batch * list_b + head * list_h, offs_m, n_q)
    first_partial = tl.load(program + 2)
    tile = tl.load(program + 4)
    for visit in range(tl.load(program + 1), tl.load(program + 3)):
        start_n = tile * BLOCK_N
        tile = tl.load(tiles_ptr + visit + 1)
        k = load_tile(k_ptr, k_desc, batch, kv_head, start_n, n_k, stride_kn, MASK_ROWS, HEAD_DIM, BLOCK_N, BLOCK_D)
        v = load_tile(v_ptr, v_desc, batch, kv_head, start_n, n_k, stride_vn, MASK_ROWS, HEAD_DIM, BLOCK_N, BLOCK_D)
        _, ds = weights(
            q, k, do, v, scale, start_m, start_n, lse_log2, delta, n_q, n_k, visit >= first_partial, first, stop,
            ranges_ptr, bits_ptr, bits_of_ptr, positions_ptr, visit, w_ptr, stride_w,
            seed_ptr, dropped, kept_scale, batch_head, 0, MODS, DERIVATIVES, INPUT_PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        # [BLOCK_M, BLOCK_N] @ [BLOCK_N, BLOCK_D]
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=INPUT_PRECISION)
    dq_ptr += batch_head * n_q * HEAD_DIM
    store_tile(dq_ptr, dq * scale, start_m, n_q, HEAD_DIM, True, HEAD_DIM, BLOCK_M, BLOCK_D)


class Variant(NamedTuple):
    """What sets a call apart from plain attention, checked. w, seed: as the kernel's. functions: of the ScoreMods.

    key_ranges: as `flash_attention`'s, or None. With them, tiles are as large as they would be for mask.
    """

    mask: masks.Mask
    functions: tuple
    w: torch.Tensor | None
    sinks: torch.Tensor | None
    dropout_p: float
    seed: torch.Tensor | None
    key_ranges: torch.Tensor | None = None

    @property
    def lists(self):
        """list_b and list_h of the kernels; 0 where all share one."""
        batch, heads = self.mask.shape if self.key_ranges is None else (len(self.key_ranges), 1)
        return heads * (batch > 1), int(heads > 1)

    @property
    def numbers(self):
        """(dropped, kept_scale) of the kernels; a scale of 0 where nothing is kept."""
        kept = 1.0 - self.dropout_p
        return min(round(self.dropout_p * 2**32) - 2**31, 2**31 - 1), 1.0 / kept if kept else 0.0

    def block_mask(self, q, k, block_q, block_k, by_key=False):
        n_q, n_k = q.shape[2], k.shape[2]
        if self.key_ranges is not None:
            return block_mask_of_ranges(self.key_ranges, n_k, block_q, block_k, by_key)
        return block_mask_of(self.mask, n_q, n_k, block_q, block_k, q.device, by_key)

    def constants(self, q, k):
        return dict(
            GROUP_SIZE=q.shape[1] // k.shape[1], MODS=tuple(apply for apply, _ in self.functions),
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
    seen = variant.block_mask(q, k, block_m, block_n)
    q, scale = with_positive_scale(q, scale)
    variant_forward_kernel[seen.programs.shape[1], n_heads, batch](
        q, k, v, *(descriptor(x, block_n) if by_descriptor else None for x in (k, v)), o, lse, *seen,
        variant.w, variant.sinks, variant.seed, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        batch * n_heads, *variant.lists, n_heads, n_q, n_k, scale, *variant.numbers,
        MASK_ROWS=n_k % block_n != 0, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=num_warps, num_stages=num_stages,
        **variant.constants(q, k),
    )  # fmt: skip
    return o, lse


def variant_backward(
    q, k, v, o, lse, do, dlse, variant, scale, *, need_dq=True, need_dkdv=True, config_dkdv=None, config_dq=None,
    by_descriptor=None,
):  # fmt: skip
    """Launch the kernels on checked inputs; returns (dq, dk, dv, dsinks), None for what is not needed or not there.

    o, lse, do and dlse (or None): any strides, as `backward.flash_backward`'s. config_dkdv, config_dq and
    by_descriptor: as config and by_descriptor of `variant_forward`.
    """
    batch, n_heads, n_q, _ = q.shape
    _, n_kv_heads, n_k, _ = k.shape
    dq, dk, dv = (
        torch.empty_like(x, memory_format=torch.contiguous_format) if needed else None
        for x, needed in ((q, need_dq), (k, need_dkdv), (v, need_dkdv))
    )
    if q.numel() == 0:
        return dq, dk, dv, None if variant.sinks is None else torch.zeros_like(variant.sinks)
    lse, do = lse.contiguous(), addressable(do)
    capability, metas = runtime.capability(q.device), [tensor_meta(x) for x in (q, k, v, do)]
    if by_descriptor is None:
        by_descriptor = takes_descriptors(capability, *metas)
    delta, dsinks = row_delta(o, do, dlse), None
    if variant.sinks is not None:
        weight = torch.exp(variant.sinks[:, None] - lse).nan_to_num(0.0)  # 0 where sink and lse are both -inf
        dsinks = -(weight * delta).sum((0, 2))
    strides = [stride for x in (q, k, v, do) for stride in x.stride()[:3]]
    constants = variant.constants(q, k) | {"DERIVATIVES": tuple(derivative for _, derivative in variant.functions)}

    def launch(name, kernel, results, config, heads, streamed):
        by_key = name == "dkdv"
        block_m, block_n, num_warps, num_stages = config or config_of(name, variant.mask, q, k, by_descriptor)
        rows, length = (block_m, n_q) if by_key else (block_n, n_k)
        seen = variant.block_mask(q, k, block_m, block_n, by_key)
        kernel[seen.programs.shape[1], heads, batch](
            q, k, v, do, *(descriptor(x, rows) if by_descriptor else None for x in streamed), lse, delta, *results,
            *seen, variant.w, variant.seed, *strides, batch * n_heads, *variant.lists, heads, n_q, n_k, scale,
            *variant.numbers,
            MASK_ROWS=length % rows != 0, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=num_warps, num_stages=num_stages,
            **constants,
        )  # fmt: skip

    if need_dkdv:
        launch("dkdv", variant_dkdv_kernel, (dk, dv), config_dkdv, n_kv_heads, (q, do))
    if need_dq:
        launch("dq", variant_dq_kernel, (dq,), config_dq, n_heads, (k, v))
    return dq, dk, dv, dsinks
