"""Attention of a few new queries to the keys of a cache, as in decoding, in Triton.

One new query of each sequence is little to compute with, and all of its cache has to be read. The forward kernel reads
it with one program for each head: too few to keep the memory busy, and every head reads again what heads share. Here

    the keys are split       several programs share a sequence's keys; each stores the state (m, l, acc) of its part,
                             which `merge_kernel` merges as in lesson 05 (Flash-Decoding, Dao et al. 2023)
    query heads are grouped  the query heads that share keys are rows of one tile, so that K and V are read once
    keys may lie in pages    a block table says which page holds which keys (PagedAttention, Kwon et al. 2023)

The host decides everything from shapes. Lengths and pages are read by the kernels alone, so no call waits for the GPU,
and a CUDA graph that captured one can be replayed with other lengths and pages.

Reading order: the kernel, the merge, the number of splits, launch.
"""

import functools

import torch
import triton
import triton.language as tl

from course_lib import runtime
from course_lib.kernels.configs import dot_precision, select
from course_lib.kernels.device import (
    LOG2_E,
    add_sink,
    logsumexp,
    online_softmax_update,
    round_to,
    upcast_if_interpreted,
    visible,
)  # fmt: skip
from course_lib.kernels.launch import MAX_CACHED_LAUNCHES, Launch, padded_head_dim, tensor_meta, with_positive_scale
from course_lib.kernels.score_mods import apply_score_mods

MAX_SPLITS = 512  # as many states as a program of `merge_kernel` can hold in registers
# What `splits` assumes: how many programs run on a multiprocessor at a time, and in how many tiles' time one starts.
PROGRAMS_PER_MULTIPROCESSOR, START_TILES = 1, 2


@triton.jit
def load_page(
    table_ptr, stride_tb, batch, start_n, kv_start, kv_end, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """The pages that hold the tile of keys from start_n on, int64: a number if it is one page, else [BLOCK_N].

    Entries of the table without a key from kv_start to kv_end - 1 are not read. A cache that is not paged is one page
    for each sequence, and the sequence's number is the page's.
    """
    if PAGE_SIZE is None:
        page = batch
    else:
        table_ptr += batch * stride_tb
        if PAGE_SIZE % BLOCK_N == 0:
            page = tl.load(table_ptr + start_n // PAGE_SIZE, mask=start_n < kv_end, other=0)
        elif BLOCK_N % PAGE_SIZE == 0:
            # Pages are fewer than keys, and so are the addresses that come of them.
            starts = start_n + PAGE_SIZE * tl.arange(0, BLOCK_N // PAGE_SIZE)
            mask = (starts + PAGE_SIZE > kv_start) & (starts < kv_end)
            pages = tl.load(table_ptr + starts // PAGE_SIZE, mask=mask, other=0)
            page = tl.reshape(tl.broadcast_to(pages[:, None], [BLOCK_N // PAGE_SIZE, PAGE_SIZE]), [BLOCK_N])
        else:
            keys = start_n + tl.arange(0, BLOCK_N)
            page = tl.load(table_ptr + keys // PAGE_SIZE, mask=(keys >= kv_start) & (keys < kv_end), other=0)
    return tl.cast(page, tl.int64)


@triton.jit(do_not_specialize=["n_new", "n_keys", "window_left"])
def decode_kernel(
    q_ptr, k_ptr, v_ptr, lengths_ptr, table_ptr, sinks_ptr, w_ptr, o_ptr, stats_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_tb, stride_w, n_new, n_keys, window_left, scale,
    GROUP_SIZE: tl.constexpr, IS_CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, IS_SPLIT: tl.constexpr,
    STORE_LSE: tl.constexpr, MODS: tl.constexpr, INPUT_PRECISION: tl.constexpr, PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (t, h, s) computes row tile t, counted through all sequences, of kv head h over split s of the keys.

    q: [batch, n_heads, n_new, HEAD_DIM]. k, v: [batch, n_heads / GROUP_SIZE, n_keys, HEAD_DIM], or, unless PAGE_SIZE is
    None, [n_pages, n_heads / GROUP_SIZE, PAGE_SIZE, HEAD_DIM]; unit stride last. lengths: [batch] integers, how many
    keys each sequence has; None: n_keys. table: [batch, pages] integers; key j is in page table[b, j // PAGE_SIZE].
    Query i stands at the position of key length - n_new + i. IS_CAUSAL: it sees no key behind that. HAS_WINDOW: it sees
    no key more than window_left before it. scale: positive. w: parameters of the score mods, fp32 [len(MODS), batch,
    n_heads], the first axis stride_w apart. sinks: fp32 [n_heads], or None.
    o: [batch, n_heads, n_new, HEAD_DIM], contiguous. stats: lse, fp32 [batch, n_heads, n_new], if STORE_LSE.
    If IS_SPLIT, they take the states instead: o is acc, fp32 [batch, n_heads, n_new, n_splits, HEAD_DIM], and stats are
    m, not scaled unless there are score mods, and l, fp32 [batch, n_heads, n_new, n_splits, 2]. Without keys, a state
    is (-inf, 0, 0).
    """
    n_row_tiles = tl.cdiv(n_new * GROUP_SIZE, BLOCK_M)
    start_row = tl.program_id(0) % n_row_tiles * BLOCK_M
    # 64 bits before these multiply a stride: a cache may have more than 2^31 elements.
    batch, kv_head = tl.cast(tl.program_id(0) // n_row_tiles, tl.int64), tl.cast(tl.program_id(1), tl.int64)
    split, n_splits = tl.program_id(2), tl.num_programs(2)
    length = n_keys if lengths_ptr is None else tl.load(lengths_ptr + batch).to(tl.int32)

    # Row r is query r // GROUP_SIZE of one of the GROUP_SIZE heads that share these keys.
    offs_r = start_row + tl.arange(0, BLOCK_M)
    offs_m, head = offs_r // GROUP_SIZE, kv_head * GROUP_SIZE + offs_r % GROUP_SIZE
    offs_d = tl.arange(0, BLOCK_D)
    mask_m, mask_d = offs_m < n_new, (offs_d < HEAD_DIM)[None, :]
    q_rows = batch * stride_qb + head * stride_qh + tl.cast(offs_m, tl.int64) * stride_qm
    q = tl.load(q_ptr + q_rows[:, None] + offs_d[None, :], mask=mask_m[:, None] & mask_d, other=0.0)
    q = upcast_if_interpreted(q)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    score_scale = scale if len(MODS) == 0 else 1.0  # score mods take scaled scores

    # Some row sees the keys from kv_start to kv_end - 1. Their tiles are dealt out to the splits, in order.
    kv_start, kv_end = 0, length
    if IS_CAUSAL:
        last_query = tl.minimum((start_row + BLOCK_M - 1) // GROUP_SIZE, n_new - 1)
        kv_end = tl.maximum(length - n_new + last_query + 1, 0)
    if HAS_WINDOW:
        kv_start = tl.maximum(length - n_new + start_row // GROUP_SIZE - window_left, 0)
    first_tile = kv_start // BLOCK_N
    n_tiles = tl.cdiv(kv_end, BLOCK_N) - first_tile
    share, left_over = n_tiles // n_splits, n_tiles % n_splits
    begin = (first_tile + split * share + tl.minimum(split, left_over)) * BLOCK_N
    end = (first_tile + (split + 1) * share + tl.minimum(split + 1, left_over)) * BLOCK_N

    k_ptr += kv_head * stride_kh
    v_ptr += kv_head * stride_vh
    for start_n in range(begin, end, BLOCK_N):
        page = load_page(table_ptr, stride_tb, batch, start_n, kv_start, kv_end, PAGE_SIZE, BLOCK_N)
        offs_n = start_n + tl.arange(0, BLOCK_N)
        in_page = tl.cast(offs_n if PAGE_SIZE is None else offs_n % PAGE_SIZE, tl.int64)
        k_rows, v_rows = page * stride_kb + in_page * stride_kn, page * stride_vb + in_page * stride_vn
        mask_kv = ((offs_n >= kv_start) & (offs_n < kv_end))[:, None] & mask_d
        k = upcast_if_interpreted(tl.load(k_ptr + k_rows[:, None] + offs_d[None, :], mask=mask_kv, other=0.0))
        v = upcast_if_interpreted(tl.load(v_ptr + v_rows[:, None] + offs_d[None, :], mask=mask_kv, other=0.0))
        # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
        scores = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION)
        if len(MODS) > 0:
            heads = (batch * tl.num_programs(1) * GROUP_SIZE + head)[:, None]
            queries, w_head = (offs_m + length - n_new)[:, None], tl.where(mask_m[:, None], heads, 0)
            scores = apply_score_mods(scores * scale, queries, offs_n[None, :], w_head, w_ptr, stride_w, MODS)
        is_visible = visible(offs_m[:, None], offs_n[None, :], n_new, length, IS_CAUSAL)
        if HAS_WINDOW:
            is_visible &= offs_n[None, :] >= offs_m[:, None] + length - n_new - window_left
        scores = tl.where(is_visible, scores, float("-inf"))
        m_i, l_i, acc = online_softmax_update(
            m_i, l_i, acc, scores, v, score_scale * LOG2_E,
            MAY_BE_EMPTY=IS_CAUSAL or HAS_WINDOW or len(MODS) > 0,  # a score mod may hide keys
            INPUT_PRECISION=INPUT_PRECISION,
        )  # fmt: skip

    row = (batch * tl.num_programs(1) * GROUP_SIZE + head) * n_new + offs_m
    if IS_SPLIT:
        row = row * n_splits + split
        tl.store(stats_ptr + 2 * row, m_i, mask=mask_m)
        tl.store(stats_ptr + 2 * row + 1, l_i, mask=mask_m)
    else:
        if sinks_ptr is not None:
            m_i, l_i, alpha = add_sink(m_i, l_i, tl.load(sinks_ptr + head, mask=mask_m, other=0.0), score_scale)
            acc, score_scale = acc * alpha[:, None], 1.0
        # A row without keys has l = 0, and gets 0 and -inf.
        l_safe = tl.where(l_i == 0.0, 1.0, l_i)
        acc = acc * (1.0 / l_safe)[:, None]
        if STORE_LSE:
            tl.store(stats_ptr + row, logsumexp(m_i, l_i, score_scale), mask=mask_m)
    o_ptrs = o_ptr + row[:, None] * HEAD_DIM + offs_d[None, :]
    tl.store(o_ptrs, round_to(acc, o_ptr.dtype.element_ty), mask=mask_m[:, None] & mask_d)


@triton.jit(do_not_specialize=["n_splits", "n_heads", "n_new"])
def merge_kernel(
    acc_ptr, stats_ptr, sinks_ptr, o_ptr, lse_ptr, n_splits, n_heads, n_new, scale,
    STORE_LSE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (r, c) merges the states of row r, in columns c * BLOCK_D to (c + 1) * BLOCK_D - 1.

    acc: fp32 [rows, n_splits, HEAD_DIM]; stats: m and l, fp32 [rows, n_splits, 2]; as `decode_kernel` stores them.
    sinks: fp32 [n_heads], or None. scale: by which m is multiplied. o: [rows, HEAD_DIM]; lse: fp32 [rows], if
    STORE_LSE. BLOCK_S: a power of two, at least n_splits.
    """
    row = tl.cast(tl.program_id(0), tl.int64)
    offs_s = tl.arange(0, BLOCK_S)
    offs_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    mask_s, mask_d = offs_s < n_splits, offs_d < HEAD_DIM
    state = row * n_splits + offs_s
    m = tl.load(stats_ptr + 2 * state, mask=mask_s, other=float("-inf"))
    l = tl.load(stats_ptr + 2 * state + 1, mask=mask_s, other=0.0)
    acc_ptrs = acc_ptr + state[:, None] * HEAD_DIM + offs_d[None, :]
    acc = tl.load(acc_ptrs, mask=mask_s[:, None] & mask_d[None, :], other=0.0)
    # Lesson 05's `merge_states`, for all states at once.
    m_merged = tl.max(m, axis=0)
    alpha = tl.exp2((m - tl.where(m_merged == float("-inf"), 0.0, m_merged)) * (scale * LOG2_E))
    l_merged = tl.sum(alpha * l, axis=0)
    acc_merged = tl.sum(alpha[:, None] * acc, axis=0)
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + row // n_new % n_heads)
        m_merged, l_merged, alpha_merged = add_sink(m_merged, l_merged, sink, scale)
        acc_merged, scale = acc_merged * alpha_merged, 1.0
    l_safe = tl.where(l_merged == 0.0, 1.0, l_merged)
    tl.store(o_ptr + row * HEAD_DIM + offs_d, round_to(acc_merged / l_safe, o_ptr.dtype.element_ty), mask=mask_d)
    if STORE_LSE:
        tl.store(lse_ptr + row, logsumexp(m_merged, l_merged, scale), mask=tl.program_id(1) == 0)


def tiles_of_a_slot(n_programs, n_tiles, n_slots, num_splits):
    """In how many tiles' time the GPU is done, if every program's keys are split into num_splits parts.

    n_programs: how many there would be without splits; n_tiles: key tiles of a full cache; n_slots: how many programs
    the GPU runs at a time. A slot runs one program after another, and each takes the time of its share of the tiles,
    and START_TILES more before its first tile is there.
    """
    return -(-n_programs * num_splits // n_slots) * (-(-n_tiles // num_splits) + START_TILES)


def splits(n_programs, n_tiles, n_slots):
    """Into how many parts the keys are split: the fewest for which `tiles_of_a_slot` is within 5 % of the least."""
    choices = range(1, min(n_tiles, MAX_SPLITS) + 1)
    tiles = {num_splits: tiles_of_a_slot(n_programs, n_tiles, n_slots, num_splits) for num_splits in choices}
    return next(num_splits for num_splits in choices if tiles[num_splits] <= 1.05 * min(tiles.values()))


@functools.lru_cache(MAX_CACHED_LAUNCHES)
def plan(
    q, k, v, lengths, block_table, sinks, weights, capability, multiprocessors,
    causal, scale, window_left, store_lse, num_splits, config, mods=(),
):  # fmt: skip
    """(Launch of `decode_kernel`, Launch of `merge_kernel`, number of splits) for tensors of this metadata.

    lengths, block_table, sinks, weights: None if there are none. capability: of the GPU, None for the interpreter;
    multiprocessors: how many the GPU has. scale: positive. The others are `decode`'s.
    """
    batch, n_heads, n_new, head_dim = q.shape
    _, n_kv_heads, page_size, _ = k.shape
    n_keys = page_size if block_table is None else block_table.shape[1] * page_size
    group_size = n_heads // n_kv_heads
    most_rows, block_n, num_warps, num_stages = config or select(
        "decode", dtype=q.dtype, head_dim=head_dim, causal=causal, capability=capability, n_k=n_keys,
        by_descriptor=False, n_rows=batch * n_heads * n_new,
    )  # fmt: skip
    if block_table:
        # Triton prefetches a tile's pages as many tiles ahead of its keys as these are ahead of their use.
        num_stages = 2 * num_stages - 1
    block_m = min(most_rows, max(16, triton.next_power_of_2(n_new * group_size)))
    n_row_tiles = batch * -(-n_new * group_size // block_m)
    num_splits = num_splits or splits(
        n_row_tiles * n_kv_heads, -(-n_keys // block_n), PROGRAMS_PER_MULTIPROCESSOR * multiprocessors
    )
    launch = Launch(
        decode_kernel, (n_row_tiles, n_kv_heads, num_splits),
        *q.strides[:3], *k.strides[:3], *v.strides[:3], block_table.strides[0] if block_table else 0,
        weights.strides[0] if mods else 0, n_new, n_keys, window_left or 0, scale,
        # A single query sees every key, causal or not.
        GROUP_SIZE=group_size, IS_CAUSAL=causal and n_new > 1, HAS_WINDOW=window_left is not None,
        IS_SPLIT=num_splits > 1, STORE_LSE=store_lse, MODS=mods, INPUT_PRECISION=dot_precision(q.dtype, capability),
        PAGE_SIZE=page_size if block_table else None, HEAD_DIM=head_dim,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=padded_head_dim(head_dim),
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    block_d = min(32, padded_head_dim(head_dim))  # few columns, so that even one row's merge has several programs
    merge = Launch(
        merge_kernel, (batch * n_heads * n_new, -(-head_dim // block_d), 1), num_splits, n_heads, n_new,
        1.0 if mods else scale,
        STORE_LSE=store_lse, HEAD_DIM=head_dim, BLOCK_S=triton.next_power_of_2(num_splits), BLOCK_D=block_d,
    )  # fmt: skip
    return launch, merge, num_splits


def decode(
    q, k, v, lengths=None, block_table=None, sinks=None, weights=None, *, causal, scale, window_left=None,
    store_lse=False, num_splits=None, mods=(), config=None,
):  # fmt: skip
    """Launch the kernels on checked inputs; returns (o, lse), with lse None unless store_lse.

    Arguments as `flash_decode`'s; scale finite; lengths None where every sequence fills its cache; mods: the functions
    of the score mods, and weights their parameters, as the kernel's w. To measure other choices, config replaces the
    result of `configs.select`; its block_m is the most rows that a tile may have.
    """
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if store_lse else None
    if o.numel() == 0:
        return o, lse
    q, scale = with_positive_scale(q, scale)
    metas = [None if x is None else tensor_meta(x) for x in (q, k, v, lengths, block_table, sinks, weights)]
    launch, merge, num_splits = plan(
        *metas, runtime.capability(q.device), runtime.multiprocessors(q.device), causal, scale, window_left, store_lse,
        num_splits, config, mods,
    )  # fmt: skip
    if num_splits == 1:
        launch(q, k, v, lengths, block_table, sinks, weights, o, lse)
        return o, lse
    acc = torch.empty((*q.shape[:3], num_splits, q.shape[3]), dtype=torch.float32, device=q.device)
    stats = torch.empty((*q.shape[:3], num_splits, 2), dtype=torch.float32, device=q.device)
    launch(q, k, v, lengths, block_table, sinks, weights, acc, stats)
    merge(acc, stats, sinks, o, lse)
    return o, lse
