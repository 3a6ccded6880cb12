"""FlashAttention-2 backward (Dao 2023, Alg. 2) in Triton, in three kernels without atomics.

    delta       one program per query tile: delta = rowsum(dO * O)                        Alg. 2, line 4
    dK and dV   one program per key tile: its keys stay, queries stream past              Alg. 2, lines 5 to 19
    dQ          one program per query tile: its queries stay, keys stream past            Alg. 2, line 15

Alg. 2 adds to dQ from every key tile, which in parallel takes atomics, and their order changes the last bits from
run to run. Here S and dP are computed a second time for dQ instead: 7 matrix products where Alg. 2 has 5, no
write is shared, and the same call gives the same bits.

With P = softmax(S), S = scale Q K^T, and G = dP - delta:

    dV = P^T dO     dP = dO V^T     dS = P * G     dQ = scale dS K     dK = scale dS^T Q

P is not stored but recomputed as exp(S - lse); the scale of dQ and dK is applied once, at the end.

Reading order: which tile a program has, loading tiles, what keeps NaN in its place, dK and dV, dQ, delta,
configurations, launch.
"""

import functools

import torch
import triton
import triton.language as tl

from course_lib import runtime
from course_lib.kernels.launch import MAX_CACHED_LAUNCHES, Launch, takes_descriptors
from course_lib.kernels.launch import descriptor as _descriptor
from course_lib.kernels.launch import padded_head_dim as padded
from course_lib.kernels.launch import tensor_meta as kind
from course_lib.kernels.masks import kv_loop_bounds
from course_lib.kernels.primitives import LOG2_E
from course_lib.kernels.primitives import round_to as narrow
from course_lib.kernels.primitives import upcast_if_interpreted as widen


def descriptor(x, rows):
    return _descriptor(x, rows) if rows else None


# Rows of the tiles that are done again for a NaN: few, so that this rare path takes no registers from the usual one.
SECOND_TRY = tl.constexpr(16)
NO_QUERY = tl.constexpr(-(2**30))  # before every query there is, whatever n_k - n_q is added
# So many heads' tiles are in progress at a time, see `tile_and_head`.
HEADS_TOGETHER = tl.constexpr(8)


@triton.jit
def tile_and_head(num_tiles):
    """Which tile of which head (batch * heads + head) this program takes.

    Under a causal mask tiles differ in work. The k-th tiles of a few heads start together, then their next ones, so
    that the GPU's last programs are short ones. Not those of all heads: programs that run side by side share what they
    read.
    """
    pid = tl.program_id(0)
    first_head = pid // (HEADS_TOGETHER * num_tiles) * HEADS_TOGETHER
    heads_here = tl.minimum(tl.num_programs(0) // num_tiles - first_head, HEADS_TOGETHER)
    inside = pid - first_head * num_tiles
    return inside // heads_here, first_head + inside % heads_here


@triton.jit
def load_tile(
    ptr, start, n_rows, stride_row,
    MASK_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Rows start to start + BLOCK - 1 of a matrix [n_rows, HEAD_DIM]: [BLOCK, BLOCK_D], zeros outside the matrix."""
    rows = tl.arange(0, BLOCK)
    offs_d = tl.arange(0, BLOCK_D)
    # A tile's first row is found in 64 bits, places inside the tile in 32: large tensors, cheap arithmetic.
    ptrs = ptr + tl.cast(start, tl.int64) * stride_row + (rows[:, None] * stride_row + offs_d[None, :])
    mask_d = offs_d < HEAD_DIM
    if MASK_ROWS:
        tile = tl.load(ptrs, mask=(start + rows < n_rows)[:, None] & mask_d[None, :], other=0.0)
    elif HEAD_DIM == BLOCK_D:
        tile = tl.load(ptrs)
    else:
        tile = tl.load(ptrs, mask=mask_d[None, :], other=0.0)
    return widen(tile)


@triton.jit
def load_streamed(
    ptr, desc, index_b, index_h, start, n_rows, stride_row,
    TMA: tl.constexpr, MASK_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """As `load_tile`, of the matrix (index_b, index_h) at ptr; TMA: by the descriptor, which masks by itself."""
    if TMA:
        return widen(desc.load([index_b, index_h, start, 0]).reshape(BLOCK, BLOCK_D))
    else:
        return load_tile(ptr, start, n_rows, stride_row, MASK_ROWS, HEAD_DIM, BLOCK, BLOCK_D)


@triton.jit
def load_statistics(lse_ptr, delta_ptr, offs_m, n_q, MASK_ROWS: tl.constexpr):
    """lse in units of log2(e), and delta: fp32 [BLOCK_M] each.

    A row beyond n_q gets 0 for both, as for q and dO: its S and dP are 0, its P is 1, and it adds 1 * 0 to dV and
    dS = 1 * (0 - 0) to dK. No mask on P is needed. (A key with inf in it gets NaN from such a row, as it does from
    any query that does not give it a score of -inf.)
    """
    if MASK_ROWS:
        lse = tl.load(lse_ptr + offs_m, mask=offs_m < n_q, other=0.0)
        delta = tl.load(delta_ptr + offs_m, mask=offs_m < n_q, other=0.0)
    else:
        lse = tl.load(lse_ptr + offs_m)
        delta = tl.load(delta_ptr + offs_m)
    return lse * LOG2_E, delta


@triton.jit
def only_finite(x):
    """x with 0 in place of NaN and inf. x - x is 0 for finite x and NaN for the rest."""
    return tl.where((x - x) == 0.0, x, 0.0)


@triton.jit
def any_nonfinite(x):
    """Whether a tile holds a NaN or inf: one bool."""
    return tl.max(tl.where((x - x) == 0.0, 0, 1)) > 0


@triton.jit
def dkdv_loop(
    dk, dv, k, v, q_ptr, do_ptr, q_desc, do_desc, index_b, index_h, lse_ptr, delta_ptr, start, end,
    stride_qm, stride_dom, offs_n, n_q, n_k, scale_log2,
    MASKED: tl.constexpr, SET_ASIDE: tl.constexpr, MASK_ROWS: tl.constexpr, TMA: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """FA2 Alg. 2, lines 8 to 17: the query tiles [start, end) of one head pass by one key tile.

    Scores are computed transposed, [BLOCK_N, BLOCK_M]: as P^T and dS^T they are what the products for dV and dK
    take from the left, and go there from registers.
    MASKED: some pair of the tiles may be hidden by the causal mask. SET_ASIDE: see `dkdv_kernel`.
    """
    for start_m in tl.range(start, end, BLOCK_M, num_stages=1 if SET_ASIDE else None):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        q = load_streamed(q_ptr, q_desc, index_b, index_h, start_m, n_q, stride_qm,
                          TMA, MASK_ROWS, HEAD_DIM, BLOCK_M, BLOCK_D)  # fmt: skip
        do = load_streamed(do_ptr, do_desc, index_b, index_h, start_m, n_q, stride_dom,
                           TMA, MASK_ROWS, HEAD_DIM, BLOCK_M, BLOCK_D)  # fmt: skip
        lse_log2, delta = load_statistics(lse_ptr, delta_ptr, offs_m, n_q, MASK_ROWS)

        # Lines 10 and 11. [BLOCK_N, BLOCK_D] @ [BLOCK_D, BLOCK_M]
        log2_p = tl.dot(k, tl.trans(q), input_precision="ieee") * scale_log2 - lse_log2[None, :]
        if MASKED:
            visible = offs_n[:, None] <= offs_m[None, :] + n_k - n_q
            log2_p = tl.where(visible, log2_p, float("-inf"))
        p = tl.exp2(log2_p)
        # Line 13. [BLOCK_N, BLOCK_D] @ [BLOCK_D, BLOCK_M]
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        # Line 14.
        ds = p * (dp - delta[None, :])
        if SET_ASIDE:
            ds = tl.where(visible, ds, 0.0)
            q, do = only_finite(q), only_finite(do)
        # Lines 12 and 16. [BLOCK_N, BLOCK_M] @ [BLOCK_M, BLOCK_D]
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


@triton.jit
def dkdv_of_group(
    dk, dv, k, v, q_ptr, do_ptr, q_desc, do_desc, lse_ptr, delta_ptr, start, end,
    stride_qb, stride_qh, stride_qm, stride_dob, stride_doh, stride_dom,
    batch, kv_head, n_kv_heads, offs_n, n_q, n_k, scale_log2,
    GROUP_SIZE: tl.constexpr, MASKED: tl.constexpr, SET_ASIDE: tl.constexpr, MASK_ROWS: tl.constexpr,
    TMA: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """`dkdv_loop` over the query heads that share a kv head, one after the other."""
    for member in range(GROUP_SIZE):
        head = kv_head * GROUP_SIZE + member
        row = (batch * n_kv_heads * GROUP_SIZE + head) * n_q
        dk, dv = dkdv_loop(
            dk, dv, k, v,
            q_ptr + batch * stride_qb + head * stride_qh, do_ptr + batch * stride_dob + head * stride_doh,
            q_desc, do_desc, tl.cast(batch, tl.int32), tl.cast(head, tl.int32),
            lse_ptr + row, delta_ptr + row, start, end, stride_qm, stride_dom,
            offs_n, n_q, n_k, scale_log2,
            MASKED=MASKED, SET_ASIDE=SET_ASIDE, MASK_ROWS=MASK_ROWS, TMA=TMA, HEAD_DIM=HEAD_DIM,
            BLOCK_M=BLOCK_M, BLOCK_D=BLOCK_D,
        )  # fmt: skip
    return dk, dv


@triton.jit
def last_nonfinite(
    do_ptr, start, end, stride_dob, stride_doh, stride_dom, batch, kv_head,
    GROUP_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The last query of [start, end) with a NaN or inf in a column of dO, for each column: int32 [BLOCK_D].

    Of the query heads that share a kv head together. NO_QUERY where there is none.
    """
    last = tl.full([BLOCK_D], NO_QUERY, tl.int32)
    for member in range(GROUP_SIZE):
        do_head = do_ptr + batch * stride_dob + (kv_head * GROUP_SIZE + member) * stride_doh
        for start_m in tl.range(start, end, BLOCK_M, num_stages=1):
            do = load_tile(do_head, start_m, end, stride_dom, True, HEAD_DIM, BLOCK_M, BLOCK_D)
            rows = start_m + tl.arange(0, BLOCK_M)
            last = tl.maximum(last, tl.max(tl.where((do - do) == 0.0, NO_QUERY, rows[:, None]), axis=0))
    return last


@triton.jit(do_not_specialize=["n_q", "n_k"])
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, q_desc, do_desc, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_dob, stride_doh, stride_dom,
    n_kv_heads, n_q, n_k, scale, scale_log2,
    GROUP_SIZE: tl.constexpr, IS_CAUSAL: tl.constexpr, TMA: tl.constexpr, NO_TAIL: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """q, do [batch, kv_heads * GROUP_SIZE, n_q, HEAD_DIM]; k, v [batch, kv_heads, n_k, HEAD_DIM], unit stride last.

    lse, delta fp32 [batch, heads, n_q] and dk, dv [batch, kv_heads, n_k, HEAD_DIM], contiguous.
    One program per key tile of one kv head; it sums over the GROUP_SIZE query heads that share the head.

    A NaN in a query tile must not reach the keys that the query does not see, though 0 * NaN is NaN in the products.
    That is rare, so the sums are taken plainly; only when they come out non-finite are they taken again, with such
    elements set aside, a tile of 16 queries at a time: several times slower. There an inf of dO makes dV NaN, where it
    would be inf in real arithmetic.
    """
    # The first key tiles are seen by the most queries, and they start first.
    tile, head_of_all = tile_and_head(tl.cdiv(n_k, BLOCK_N))
    start_n = tile * BLOCK_N
    offs_n = start_n + tl.arange(0, BLOCK_N)
    # 64 bits before these multiply a stride: a tensor may have more than 2^31 elements.
    batch = tl.cast(head_of_all // n_kv_heads, tl.int64)
    kv_head = tl.cast(head_of_all % n_kv_heads, tl.int64)

    # FA2 Alg. 2, lines 6 and 7: load K_j and V_j, dK_j = dV_j = 0. A row beyond n_k gets what no one stores.
    k = load_tile(k_ptr + batch * stride_kb + kv_head * stride_kh, start_n, n_k, stride_kn,
                  True, HEAD_DIM, BLOCK_N, BLOCK_D)  # fmt: skip
    v = load_tile(v_ptr + batch * stride_vb + kv_head * stride_vh, start_n, n_k, stride_vn,
                  True, HEAD_DIM, BLOCK_N, BLOCK_D)  # fmt: skip
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)

    full_start = 0
    if IS_CAUSAL:
        # Query i sees the keys j <= i + n_k - n_q. Query tiles before first_m see no key of this tile, those from
        # full_start on see all of them.
        first_m = tl.maximum(start_n + n_q - n_k, 0) // BLOCK_M * BLOCK_M
        sees_all = tl.maximum(tl.minimum(start_n + BLOCK_N, n_k) - 1 + n_q - n_k, 0)
        full_start = tl.cdiv(sees_all, BLOCK_M) * BLOCK_M
        masked_end = tl.minimum(full_start, n_q)
    # The tiles without a mask come first: what runs before this loop takes registers from it, and where sums that were
    # written by other instructions went on into it, ptxas let every product of the kernel wait for the one before (its
    # warning C7515).
    dk, dv = dkdv_of_group(
        dk, dv, k, v, q_ptr, do_ptr, q_desc, do_desc, lse_ptr, delta_ptr, full_start, n_q,
        stride_qb, stride_qh, stride_qm, stride_dob, stride_doh, stride_dom,
        batch, kv_head, n_kv_heads, offs_n, n_q, n_k, scale_log2,
        GROUP_SIZE=GROUP_SIZE, MASKED=False, SET_ASIDE=False, MASK_ROWS=not NO_TAIL, TMA=TMA, HEAD_DIM=HEAD_DIM,
        BLOCK_M=BLOCK_M, BLOCK_D=BLOCK_D,
    )  # fmt: skip
    if IS_CAUSAL:
        dk, dv = dkdv_of_group(
            dk, dv, k, v, q_ptr, do_ptr, q_desc, do_desc, lse_ptr, delta_ptr, first_m, masked_end,
            stride_qb, stride_qh, stride_qm, stride_dob, stride_doh, stride_dom,
            batch, kv_head, n_kv_heads, offs_n, n_q, n_k, scale_log2,
            GROUP_SIZE=GROUP_SIZE, MASKED=True, SET_ASIDE=False, MASK_ROWS=not NO_TAIL, TMA=TMA, HEAD_DIM=HEAD_DIM,
            BLOCK_M=BLOCK_M, BLOCK_D=BLOCK_D,
        )  # fmt: skip
        if any_nonfinite(dk) | any_nonfinite(dv):
            # dV = P^T dO column by column: a key is seen by all queries from some row on, so the last row with a
            # non-finite element in a column tells which keys it reaches. dK needs no such thing: a query that is
            # not finite makes dS non-finite for every key that it sees.
            last = last_nonfinite(
                do_ptr, first_m, n_q, stride_dob, stride_doh, stride_dom, batch, kv_head,
                GROUP_SIZE=GROUP_SIZE, HEAD_DIM=HEAD_DIM, BLOCK_M=SECOND_TRY, BLOCK_D=BLOCK_D,
            )  # fmt: skip
            dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
            dv = tl.where(offs_n[:, None] <= last[None, :] + n_k - n_q, float("nan"), dk)
            dk, dv = dkdv_of_group(
                dk, dv, k, v, q_ptr, do_ptr, q_desc, do_desc, lse_ptr, delta_ptr, first_m, n_q,
                stride_qb, stride_qh, stride_qm, stride_dob, stride_doh, stride_dom,
                batch, kv_head, n_kv_heads, offs_n, n_q, n_k, scale_log2,
                GROUP_SIZE=GROUP_SIZE, MASKED=True, SET_ASIDE=True, MASK_ROWS=True, TMA=False, HEAD_DIM=HEAD_DIM,
                BLOCK_M=SECOND_TRY, BLOCK_D=BLOCK_D,
            )  # fmt: skip

    # FA2 Alg. 2, line 18: write dK_j and dV_j.
    offs_d = tl.arange(0, BLOCK_D)
    mask_nd = (offs_n < n_k)[:, None] & (offs_d < HEAD_DIM)[None, :]
    offs_nd = tl.cast(offs_n, tl.int64)[:, None] * HEAD_DIM + offs_d[None, :]
    first = (batch * n_kv_heads + kv_head) * n_k * HEAD_DIM
    tl.store(dk_ptr + first + offs_nd, narrow(dk * scale, dk_ptr.dtype.element_ty), mask=mask_nd)
    tl.store(dv_ptr + first + offs_nd, narrow(dv, dv_ptr.dtype.element_ty), mask=mask_nd)


@triton.jit
def dq_loop(
    dq, q, do, lse_log2, delta, k_ptr, v_ptr, k_desc, v_desc, index_b, index_h, start, end, stride_kn, stride_vn,
    offs_m, n_q, n_k, scale_log2,
    MASKED: tl.constexpr, SET_ASIDE: tl.constexpr, IS_CAUSAL: tl.constexpr, TMA: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """FA2 Alg. 2, lines 10, 11, 13 to 15: the key tiles [start, end) pass by one query tile.

    MASKED: the tiles may hold keys that are hidden, or that lie beyond n_k.
    """
    # By pointers, a second loop that is prefetched too made ptxas let all products wait for each other (C7515).
    for start_n in tl.range(start, end, BLOCK_N, num_stages=1 if SET_ASIDE or (MASKED and not TMA) else None):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k = load_streamed(k_ptr, k_desc, index_b, index_h, start_n, n_k, stride_kn,
                          TMA, MASKED, HEAD_DIM, BLOCK_N, BLOCK_D)  # fmt: skip
        v = load_streamed(v_ptr, v_desc, index_b, index_h, start_n, n_k, stride_vn,
                          TMA, MASKED, HEAD_DIM, BLOCK_N, BLOCK_D)  # fmt: skip
        # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
        log2_p = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2 - lse_log2[:, None]
        if MASKED:
            if IS_CAUSAL:  # hides the keys beyond n_k too, from every row up to n_q
                visible = offs_n[None, :] <= offs_m[:, None] + n_k - n_q
            else:
                visible = (offs_n < n_k)[None, :]
            log2_p = tl.where(visible, log2_p, float("-inf"))
        p = tl.exp2(log2_p)
        # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        if SET_ASIDE:
            ds = tl.where(visible, ds, 0.0)
            k = only_finite(k)
        # [BLOCK_M, BLOCK_N] @ [BLOCK_N, BLOCK_D]
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    return dq


@triton.jit(do_not_specialize=["n_q", "n_k"])
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, k_desc, v_desc, lse_ptr, delta_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_dob, stride_doh, stride_dom,
    n_heads, n_q, n_k, scale, scale_log2,
    GROUP_SIZE: tl.constexpr, IS_CAUSAL: tl.constexpr, TMA: tl.constexpr, NO_TAIL: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Arguments as `dkdv_kernel`'s; dq [batch, heads, n_q, HEAD_DIM], contiguous. One program per query tile.

    The loop is the forward's, over the same key tiles. As in `dkdv_kernel`, a sum that comes out non-finite is taken
    again with the NaN and inf of K set aside. (Such a key makes dS non-finite for every query that sees it, save one
    whose score is -inf: its weight is 0.)
    """
    # The last query tiles see the most keys, and they start first.
    num_m_tiles = tl.cdiv(n_q, BLOCK_M)
    tile, head_of_all = tile_and_head(num_m_tiles)
    start_m = (num_m_tiles - 1 - tile) * BLOCK_M
    batch = tl.cast(head_of_all // n_heads, tl.int64)
    head = tl.cast(head_of_all % n_heads, tl.int64)

    offs_m = start_m + tl.arange(0, BLOCK_M)
    q = load_tile(q_ptr + batch * stride_qb + head * stride_qh, start_m, n_q, stride_qm,
                  True, HEAD_DIM, BLOCK_M, BLOCK_D)  # fmt: skip
    do = load_tile(do_ptr + batch * stride_dob + head * stride_doh, start_m, n_q, stride_dom,
                   True, HEAD_DIM, BLOCK_M, BLOCK_D)  # fmt: skip
    row = (batch * n_heads + head) * n_q
    lse_log2, delta = load_statistics(lse_ptr + row, delta_ptr + row, offs_m, n_q, True)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    k_base = k_ptr + batch * stride_kb + head // GROUP_SIZE * stride_kh
    v_base = v_ptr + batch * stride_vb + head // GROUP_SIZE * stride_vh
    index_b, index_h = tl.cast(batch, tl.int32), tl.cast(head // GROUP_SIZE, tl.int32)
    full_end, kv_end = kv_loop_bounds(start_m, n_q, n_k, IS_CAUSAL, BLOCK_M, BLOCK_N)
    dq = dq_loop(
        dq, q, do, lse_log2, delta, k_base, v_base, k_desc, v_desc, index_b, index_h, 0, full_end,
        stride_kn, stride_vn, offs_m, n_q, n_k, scale_log2,
        MASKED=False, SET_ASIDE=False, IS_CAUSAL=IS_CAUSAL, TMA=TMA,
        HEAD_DIM=HEAD_DIM, BLOCK_N=BLOCK_N, BLOCK_D=BLOCK_D,
    )  # fmt: skip
    if IS_CAUSAL or not NO_TAIL:
        dq = dq_loop(
            dq, q, do, lse_log2, delta, k_base, v_base, k_desc, v_desc, index_b, index_h, full_end, kv_end,
            stride_kn, stride_vn, offs_m, n_q, n_k, scale_log2,
            MASKED=True, SET_ASIDE=False, IS_CAUSAL=IS_CAUSAL, TMA=TMA,
            HEAD_DIM=HEAD_DIM, BLOCK_N=BLOCK_N, BLOCK_D=BLOCK_D,
        )  # fmt: skip
    if IS_CAUSAL:
        if any_nonfinite(dq):
            dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
            dq = dq_loop(
                dq, q, do, lse_log2, delta, k_base, v_base, k_desc, v_desc, index_b, index_h, 0, kv_end,
                stride_kn, stride_vn, offs_m, n_q, n_k, scale_log2,
                MASKED=True, SET_ASIDE=True, IS_CAUSAL=True, TMA=False,
                HEAD_DIM=HEAD_DIM, BLOCK_N=SECOND_TRY, BLOCK_D=BLOCK_D,
            )  # fmt: skip

    offs_d = tl.arange(0, BLOCK_D)
    tl.store(dq_ptr + row * HEAD_DIM + tl.cast(offs_m, tl.int64)[:, None] * HEAD_DIM + offs_d[None, :],
             narrow(dq * scale, dq_ptr.dtype.element_ty),
             mask=(offs_m < n_q)[:, None] & (offs_d < HEAD_DIM)[None, :])  # fmt: skip


@triton.jit(do_not_specialize=["n_q"])
def delta_kernel(
    o_ptr, do_ptr, dlse_ptr, delta_ptr, stride_dob, stride_doh, stride_dom, n_heads, n_q,
    HAS_DLSE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """FA2 Alg. 2, line 4: delta = rowsum(dO * O), fp32 [batch, heads, n_q], one pass over O and dO.

    o [batch, heads, n_q, HEAD_DIM] contiguous. A gradient of lse, fp32 [batch, heads, n_q], enters here and nowhere
    else: d lse_i / d S_ij = P_ij, so dS = P * (dP - delta + dlse).
    """
    num_m_tiles = tl.cdiv(n_q, BLOCK_M)
    pid = tl.program_id(0)
    batch = tl.cast(pid // num_m_tiles // n_heads, tl.int64)
    head = tl.cast(pid // num_m_tiles % n_heads, tl.int64)
    start_m = pid % num_m_tiles * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    row = (batch * n_heads + head) * n_q
    o = load_tile(o_ptr + row * HEAD_DIM, start_m, n_q, HEAD_DIM, True, HEAD_DIM, BLOCK_M, BLOCK_D)
    do = load_tile(do_ptr + batch * stride_dob + head * stride_doh, start_m, n_q, stride_dom,
                   True, HEAD_DIM, BLOCK_M, BLOCK_D)  # fmt: skip
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    if HAS_DLSE:
        delta -= tl.load(dlse_ptr + row + offs_m, mask=offs_m < n_q, other=0.0)
    tl.store(delta_ptr + row + offs_m, delta, mask=offs_m < n_q)


def default_backward_config(dtype, head_dim, causal, capability, tma=False):
    """Shipped (BLOCK_M, BLOCK_N, num_warps, num_stages) of the dK/dV kernel and of the dQ kernel.

    dtype: torch dtype; head_dim: 1 to 256; capability: (major, minor) of the GPU, None in the interpreter; tma:
    whether tiles stream past by descriptor.
    Those of 9.0 for fp16 and bf16 are the fastest of a sweep on an H100; without descriptors, of a few at head_dim 64
    and 128, while the rest was taken over from an earlier form of the kernels. The others are chosen by the compiler's
    resource report, as large as does not spill (fp32 beyond head_dim 128 does, at the smallest tiles there are), and
    have not been timed.
    """
    if capability is None:
        # The interpreter's time is per operation executed, whatever the tile's size.
        return (128, 128, 4, 1), (128, 128, 4, 1)
    block_d = padded(head_dim)
    if dtype == torch.float32 or capability < (8, 0):
        # No tensor cores: products live in registers, and tiles are small.
        if block_d <= 64 and dtype == torch.float32 and capability >= (8, 0):
            return (16, 32, 4, 1), (32, 16, 4, 1)
        return (16, 16, 8, 1), (16, 16, 8, 1)
    if capability[0] == 9:
        if block_d <= 32:
            return (128, 64, 4, 3), (64, 64, 4, 3)
        if block_d == 64:
            if tma:
                return (64, 64, 4, 3), (128, 64, 8, 3) if causal else (128, 64, 4, 3)
            return (64, 64, 4, 3), (64, 64, 4, 3) if causal else (64, 64, 4, 2)
        if block_d == 128:
            return (64, 64, 4, 2) if tma else (64, 128, 8, 3), (128, 64, 8, 3)
        return (64, 64, 8, 2) if tma else (64, 32, 4, 2), (128, 32, 8, 3)
    if capability[0] == 10 and block_d <= 128:
        return (64, 64, 8, 2), (64, 64, 8, 2)
    # 8.0, and the 99 KB a block of 8.6, 8.9 and 12.0.
    if block_d <= 64:
        return (32, 64, 4, 2), (128, 64, 8, 2)
    if block_d == 128:
        return (32, 64, 8, 2), (64, 32, 8, 2)
    return (16, 32, 8, 1), (64, 16, 8, 1)


@functools.lru_cache(MAX_CACHED_LAUNCHES)
def _plan(q, k, v, o, lse, do, dlse, causal, scale, config_dkdv, config_dq, tma):
    """The launches of delta, dK/dV and dQ for tensors of these kinds, each with the rows of a tile that streams past
    if it comes by descriptor, else None. dlse may be None. o, lse and dlse are contiguous; they tell launches apart.
    """
    batch, n_heads, n_q, head_dim = q.shape
    _, n_kv_heads, n_k, _ = k.shape
    capability = runtime.capability(q.device)
    if tma is None:
        tma = takes_descriptors(capability, q, k, v, do)
    shipped_dkdv, shipped_dq = default_backward_config(q.dtype, head_dim, causal, capability, tma)
    block_d = padded(head_dim)
    block_m = 128 if capability is None else max(16, 4096 // block_d)
    delta = Launch(
        delta_kernel, (-(-n_q // block_m) * batch * n_heads, 1, 1), *do.strides[:3], n_heads, n_q,
        HAS_DLSE=dlse is not None, HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_D=block_d,
    )  # fmt: skip
    strides = *q.strides[:3], *k.strides[:3], *v.strides[:3], *do.strides[:3]
    common = dict(GROUP_SIZE=n_heads // n_kv_heads, IS_CAUSAL=causal, HEAD_DIM=head_dim, BLOCK_D=block_d, TMA=tma)
    block_m, block_n, num_warps, num_stages = config_dkdv or shipped_dkdv
    dkdv = Launch(
        dkdv_kernel, (-(-n_k // block_n) * batch * n_kv_heads, 1, 1),
        *strides, n_kv_heads, n_q, n_k, scale, scale * LOG2_E.value,
        NO_TAIL=n_q % block_m == 0, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=num_warps, num_stages=num_stages,
        **common,
    )  # fmt: skip
    rows_dkdv = block_m if tma else None
    block_m, block_n, num_warps, num_stages = config_dq or shipped_dq
    dq = Launch(
        dq_kernel, (-(-n_q // block_m) * batch * n_heads, 1, 1),
        *strides, n_heads, n_q, n_k, scale, scale * LOG2_E.value,
        NO_TAIL=n_k % block_n == 0, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=num_warps, num_stages=num_stages,
        **common,
    )  # fmt: skip
    return delta, (dkdv, rows_dkdv), (dq, block_n if tma else None)


def flash_backward(
    q, k, v, o, lse, do, dlse=None, *, causal, scale, need_dq=True, need_dkdv=True, config_dkdv=None, config_dq=None,
    tma=None,
):  # fmt: skip
    """Launch the backward kernels; returns (dq, dk, dv) in the inputs' dtype, None for those not needed.

    q, k, v as `flash_forward` took them, o and lse as it returned them; do like o, any strides, last dimension
    contiguous; dlse like lse, contiguous, or None. scale: finite.
    config_dkdv, config_dq: (BLOCK_M, BLOCK_N, num_warps, num_stages), default `default_backward_config`. tma: whether
    the tiles that stream past come by descriptor, default `takes_descriptors`.
    """
    dq = torch.empty_like(q, memory_format=torch.contiguous_format) if need_dq else None
    dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) if need_dkdv else None for x in (k, v))
    if q.numel() == 0:
        return dq, dk, dv
    kinds = [None if x is None else kind(x) for x in (q, k, v, o, lse, do, dlse)]
    launch_delta, (launch_dkdv, rows_dkdv), (launch_dq, rows_dq) = _plan(
        *kinds, causal, scale, config_dkdv, config_dq, tma
    )
    delta = torch.empty_like(lse)
    launch_delta(o, do, dlse, delta)
    if need_dkdv:
        launch_dkdv(q, k, v, do, descriptor(q, rows_dkdv), descriptor(do, rows_dkdv), lse, delta, dk, dv)
    if need_dq:
        launch_dq(q, k, v, do, descriptor(k, rows_dq), descriptor(v, rows_dq), lse, delta, dq)
    return dq, dk, dv
