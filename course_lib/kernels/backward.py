"""FlashAttention-2 backward (Dao 2023, Alg. 2) in Triton, in three kernels without atomics: `plain_backward` made fast.

    delta       one program per query tile: delta = rowsum(dO * O)                        Alg. 2, line 4
    dK and dV   one program per key tile: its keys stay, query tiles stream past          Alg. 2, lines 5 to 19
    dQ          one program per query tile: its queries stay, key tiles stream past       Alg. 2, line 15

Alg. 2 adds to dQ from every key tile. In parallel that takes atomics, and their order changes the last bits from run to
run. Here the dQ kernel computes S and dP a second time instead: 7 matrix products where Alg. 2 has 5, but every output
is written once, by one program, and the same call gives the same bits.

With P = softmax(S), S = scale Q K^T, and G = dP - delta:

    dV = P^T dO     dP = dO V^T     dS = P * G     dQ = scale dS K     dK = scale dS^T Q

P is not stored but recomputed as exp(S - lse); the scale of dQ and dK is applied once, at the end. Beyond the plain
kernels:

    two loops                only tiles that hide something from a query are masked
    transposed scores        dK and dV take P^T and dS^T straight from registers
    tensor descriptors       on Hopper and newer, a hardware unit fetches the tiles that stream past
    grouped heads            programs are ordered so that long ones start first and neighbours share what they read
    tiles from a table       block sizes, warps and prefetching come from `configs`

Reading order: the order of programs, delta, dK and dV, dQ, launch.
"""

import functools

import torch
import triton
import triton.language as tl

from course_lib import runtime
from course_lib.kernels.configs import dot_precision, select
from course_lib.kernels.device import (
    LOG2_E,
    kv_loop_bounds,
    load_tile,
    q_loop_bounds,
    store_tile,
    visible,
    weights_of,
)  # fmt: skip
from course_lib.kernels.launch import (
    MAX_CACHED_LAUNCHES,
    Launch,
    addressable,
    descriptor,
    padded_head_dim,
    takes_descriptors,
    tensor_meta,
)  # fmt: skip

GROUPED_HEADS = tl.constexpr(8)


@triton.jit
def tile_and_head(num_tiles):
    """The tile and the head (batch * heads + head) of this program; tile 0 of a head has the most work.

    Under a causal mask, tiles differ in work. Tile 0 of GROUPED_HEADS heads comes first, then tile 1 of these heads,
    and so on, so that the GPU's last programs are short ones. With all heads in one group, the programs that run at the
    same time would read more keys and values than fit into L2.
    """
    pid = tl.program_id(0)
    first_head = pid // (GROUPED_HEADS * num_tiles) * GROUPED_HEADS
    heads_here = tl.minimum(tl.num_programs(0) // num_tiles - first_head, GROUPED_HEADS)
    inside = pid - first_head * num_tiles
    return inside // heads_here, first_head + inside % heads_here


@triton.jit(do_not_specialize=["n_q"])
def delta_kernel(
    o_ptr, do_ptr, dlse_ptr, delta_ptr, stride_dob, stride_doh, stride_dom, n_heads, n_q,
    HAS_DLSE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """FA2 Alg. 2, line 4: delta = rowsum(dO * O), fp32 [batch, n_heads, n_q], one pass over O and dO.

    o: [batch, n_heads, n_q, HEAD_DIM], contiguous. A gradient of lse, fp32 [batch, n_heads, n_q], enters here and
    nowhere else: d lse_i / d S_ij = P_ij, so dS = P * (dP - delta + dlse).
    """
    num_m_tiles = tl.cdiv(n_q, BLOCK_M)
    pid = tl.program_id(0)
    start_m = pid % num_m_tiles * BLOCK_M
    # Divided in 32 bits, which is faster, but 64 bits when multiplied: a tensor may have more than 2^31 elements.
    batch = tl.cast(pid // num_m_tiles // n_heads, tl.int64)
    head = tl.cast(pid // num_m_tiles % n_heads, tl.int64)
    row = (batch * n_heads + head) * n_q
    do_ptr += batch * stride_dob + head * stride_doh
    o = load_tile(o_ptr + row * HEAD_DIM, None, batch, head, start_m, n_q, HEAD_DIM, True, HEAD_DIM, BLOCK_M, BLOCK_D)
    do = load_tile(do_ptr, None, batch, head, start_m, n_q, stride_dom, True, HEAD_DIM, BLOCK_M, BLOCK_D)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    if HAS_DLSE:
        delta -= tl.load(dlse_ptr + row + offs_m, mask=offs_m < n_q, other=0.0)
    tl.store(delta_ptr + row + offs_m, delta, mask=offs_m < n_q)


@triton.jit
def load_statistics(lse_ptr, delta_ptr, offs_m, n_q, MASK_ROWS: tl.constexpr):
    """lse in units of log2(e), and delta: fp32 [BLOCK_M] each.

    Rows beyond n_q get 0 for both, like their q and dO. Their P is then 1, and they add 1 * 0 to dV and
    dS = 1 * (0 - 0) to dK, so P needs no mask for them.
    """
    if MASK_ROWS:
        lse = tl.load(lse_ptr + offs_m, mask=offs_m < n_q, other=0.0)
        delta = tl.load(delta_ptr + offs_m, mask=offs_m < n_q, other=0.0)
    else:
        lse = tl.load(lse_ptr + offs_m)
        delta = tl.load(delta_ptr + offs_m)
    return lse * LOG2_E, delta


@triton.jit
def dkdv_loop(
    dk, dv, k, v, q_ptr, do_ptr, q_desc, do_desc, lse_ptr, delta_ptr,
    stride_qb, stride_qh, stride_qm, stride_dob, stride_doh, stride_dom,
    batch, kv_head, n_kv_heads, start, end, offs_n, n_q, n_k, scale_log2,
    MASKED: tl.constexpr, GROUP_SIZE: tl.constexpr, INPUT_PRECISION: tl.constexpr, MASK_Q_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """FA2 Alg. 2, lines 8 to 17: the queries [start, end) of the heads that share this key tile stream past it.

    MASKED: the causal mask may hide some of the keys from some of these queries. Scores are computed transposed,
    [BLOCK_N, BLOCK_M], because P^T and dS^T are the left factors of dV and dK, which tensor cores take from registers.
    """
    for member in range(GROUP_SIZE):
        head = kv_head * GROUP_SIZE + member
        row = (batch * n_kv_heads * GROUP_SIZE + head) * n_q
        q_head, do_head = q_ptr + batch * stride_qb + head * stride_qh, do_ptr + batch * stride_dob + head * stride_doh
        for start_m in range(start, end, BLOCK_M):
            offs_m = start_m + tl.arange(0, BLOCK_M)
            q = load_tile(q_head, q_desc, batch, head, start_m, n_q, stride_qm, MASK_Q_ROWS, HEAD_DIM, BLOCK_M, BLOCK_D)
            do = load_tile(
                do_head, do_desc, batch, head, start_m, n_q, stride_dom, MASK_Q_ROWS, HEAD_DIM, BLOCK_M, BLOCK_D
            )
            lse_log2, delta = load_statistics(lse_ptr + row, delta_ptr + row, offs_m, n_q, MASK_Q_ROWS)

            # Lines 10 and 11. [BLOCK_N, BLOCK_D] @ [BLOCK_D, BLOCK_M]
            log2_p = tl.dot(k, tl.trans(q), input_precision=INPUT_PRECISION) * scale_log2 - lse_log2[None, :]
            if MASKED:
                is_visible = visible(offs_m[None, :], offs_n[:, None], n_q, n_k, IS_CAUSAL=True)
                log2_p = tl.where(is_visible, log2_p, float("-inf"))
            p = weights_of(log2_p)
            # Line 13. [BLOCK_N, BLOCK_D] @ [BLOCK_D, BLOCK_M]
            dp = tl.dot(v, tl.trans(do), input_precision=INPUT_PRECISION)
            # Line 14.
            ds = p * (dp - delta[None, :])
            # Lines 12 and 16. [BLOCK_N, BLOCK_M] @ [BLOCK_M, BLOCK_D]
            dv = tl.dot(p.to(do.dtype), do, dv, input_precision=INPUT_PRECISION)
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=INPUT_PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=["n_q", "n_k"])
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, q_desc, do_desc, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_dob, stride_doh, stride_dom,
    n_kv_heads, n_q, n_k, scale, scale_log2,
    GROUP_SIZE: tl.constexpr, IS_CAUSAL: tl.constexpr, INPUT_PRECISION: tl.constexpr, MASK_Q_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per key tile of one kv head; it sums over the GROUP_SIZE query heads that share the head.

    q, do: [batch, n_kv_heads * GROUP_SIZE, n_q, HEAD_DIM]; k, v: [batch, n_kv_heads, n_k, HEAD_DIM]; unit stride last.
    lse, delta: fp32 [batch, heads, n_q], contiguous; dk, dv: like k, contiguous. q_desc, do_desc: descriptors by which
    q and do are loaded, or None. MASK_Q_ROWS: whether the last tile of queries may end beyond the tensor.
    """
    # The first key tiles are seen by the most queries, and start first.
    tile, batch_and_head = tile_and_head(tl.cdiv(n_k, BLOCK_N))
    batch, kv_head = tl.cast(batch_and_head // n_kv_heads, tl.int64), tl.cast(batch_and_head % n_kv_heads, tl.int64)
    start_n = tile * BLOCK_N
    offs_n = start_n + tl.arange(0, BLOCK_N)

    # FA2 Alg. 2, lines 6 and 7: load K_j and V_j, dK_j = dV_j = 0.
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    k = load_tile(k_ptr, None, batch, kv_head, start_n, n_k, stride_kn, True, HEAD_DIM, BLOCK_N, BLOCK_D)
    v = load_tile(v_ptr, None, batch, kv_head, start_n, n_k, stride_vn, True, HEAD_DIM, BLOCK_N, BLOCK_D)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)

    q_start, full_start = q_loop_bounds(start_n, n_q, n_k, IS_CAUSAL, BLOCK_M, BLOCK_N)
    masked_end = tl.minimum(full_start, n_q)
    if HEAD_DIM > 64:
        # The compiler no longer knows that the loop starts at a multiple of BLOCK_M, and orders its instructions
        # otherwise: 4 % faster on an H200 for 128 columns. For 64 it would be 16 % slower.
        full_start = masked_end
    # Run the unmasked loop first: otherwise ptxas serializes every wgmma (its warning C7515).
    dk, dv = dkdv_loop(
        dk, dv, k, v, q_ptr, do_ptr, q_desc, do_desc, lse_ptr, delta_ptr,
        stride_qb, stride_qh, stride_qm, stride_dob, stride_doh, stride_dom,
        batch, kv_head, n_kv_heads, full_start, n_q, offs_n, n_q, n_k, scale_log2,
        False, GROUP_SIZE, INPUT_PRECISION, MASK_Q_ROWS, HEAD_DIM, BLOCK_M, BLOCK_D,
    )  # fmt: skip
    if IS_CAUSAL:
        dk, dv = dkdv_loop(
            dk, dv, k, v, q_ptr, do_ptr, q_desc, do_desc, lse_ptr, delta_ptr,
            stride_qb, stride_qh, stride_qm, stride_dob, stride_doh, stride_dom,
            batch, kv_head, n_kv_heads, q_start, masked_end, offs_n, n_q, n_k, scale_log2,
            True, GROUP_SIZE, INPUT_PRECISION, MASK_Q_ROWS, HEAD_DIM, BLOCK_M, BLOCK_D,
        )  # fmt: skip

    # FA2 Alg. 2, line 18: write dK_j and dV_j.
    first = (batch * n_kv_heads + kv_head) * n_k * HEAD_DIM
    store_tile(dk_ptr + first, dk * scale, start_n, n_k, HEAD_DIM, True, HEAD_DIM, BLOCK_N, BLOCK_D)
    store_tile(dv_ptr + first, dv, start_n, n_k, HEAD_DIM, True, HEAD_DIM, BLOCK_N, BLOCK_D)


@triton.jit
def dq_loop(
    dq, q, do, lse_log2, delta, k_ptr, v_ptr, k_desc, v_desc, batch, kv_head, stride_kn, stride_vn, start, end,
    offs_m, n_q, n_k, scale_log2,
    MASKED: tl.constexpr, IS_CAUSAL: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """FA2 Alg. 2, lines 10, 11, 13 to 15: the keys [start, end), whose tiles need a mask if MASKED, stream past."""
    # When tiles are loaded by pointer and both loops are prefetched, ptxas serializes every wgmma (C7515).
    for start_n in tl.range(start, end, BLOCK_N, num_stages=1 if MASKED and k_desc is None else None):
        k = load_tile(k_ptr, k_desc, batch, kv_head, start_n, n_k, stride_kn, MASKED, HEAD_DIM, BLOCK_N, BLOCK_D)
        v = load_tile(v_ptr, v_desc, batch, kv_head, start_n, n_k, stride_vn, MASKED, HEAD_DIM, BLOCK_N, BLOCK_D)
        # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
        log2_p = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION) * scale_log2 - lse_log2[:, None]
        if MASKED:
            offs_n = start_n + tl.arange(0, BLOCK_N)
            is_visible = visible(offs_m[:, None], offs_n[None, :], n_q, n_k, IS_CAUSAL)
            log2_p = tl.where(is_visible, log2_p, float("-inf"))
        p = weights_of(log2_p)
        # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
        dp = tl.dot(do, tl.trans(v), input_precision=INPUT_PRECISION)
        ds = p * (dp - delta[:, None])
        # [BLOCK_M, BLOCK_N] @ [BLOCK_N, BLOCK_D]
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=INPUT_PRECISION)
    return dq


@triton.jit(do_not_specialize=["n_q", "n_k"])
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, k_desc, v_desc, lse_ptr, delta_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_dob, stride_doh, stride_dom,
    n_heads, n_q, n_k, scale, scale_log2,
    GROUP_SIZE: tl.constexpr, IS_CAUSAL: tl.constexpr, INPUT_PRECISION: tl.constexpr, MASK_K_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per query tile of one head; its loops visit the same key tiles as the forward's.

    Arguments as `dkdv_kernel`'s, but k and v come by descriptor, or keys end beyond the tensor; dq: like q, contiguous.
    """
    # The last query tiles see the most keys, and start first.
    num_m_tiles = tl.cdiv(n_q, BLOCK_M)
    tile, batch_and_head = tile_and_head(num_m_tiles)
    batch, head = tl.cast(batch_and_head // n_heads, tl.int64), tl.cast(batch_and_head % n_heads, tl.int64)
    kv_head = head // GROUP_SIZE
    start_m = (num_m_tiles - 1 - tile) * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)

    q_ptr += batch * stride_qb + head * stride_qh
    do_ptr += batch * stride_dob + head * stride_doh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    row = (batch * n_heads + head) * n_q
    q = load_tile(q_ptr, None, batch, head, start_m, n_q, stride_qm, True, HEAD_DIM, BLOCK_M, BLOCK_D)
    do = load_tile(do_ptr, None, batch, head, start_m, n_q, stride_dom, True, HEAD_DIM, BLOCK_M, BLOCK_D)
    lse_log2, delta = load_statistics(lse_ptr + row, delta_ptr + row, offs_m, n_q, True)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    full_end, kv_end = kv_loop_bounds(start_m, n_q, n_k, IS_CAUSAL, BLOCK_M, BLOCK_N)
    dq = dq_loop(
        dq, q, do, lse_log2, delta, k_ptr, v_ptr, k_desc, v_desc, batch, kv_head, stride_kn, stride_vn, 0, full_end,
        offs_m, n_q, n_k, scale_log2, False, IS_CAUSAL, INPUT_PRECISION, HEAD_DIM, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    if IS_CAUSAL or MASK_K_ROWS:
        dq = dq_loop(
            dq, q, do, lse_log2, delta, k_ptr, v_ptr, k_desc, v_desc, batch, kv_head, stride_kn, stride_vn,
            full_end, kv_end,
            offs_m, n_q, n_k, scale_log2, True, IS_CAUSAL, INPUT_PRECISION, HEAD_DIM, BLOCK_N, BLOCK_D,
        )  # fmt: skip
    store_tile(dq_ptr + row * HEAD_DIM, dq * scale, start_m, n_q, HEAD_DIM, True, HEAD_DIM, BLOCK_M, BLOCK_D)


@functools.lru_cache(MAX_CACHED_LAUNCHES)
def delta_plan(o, do, dlse, capability):
    """The Launch of the first kernel for tensors of this metadata (o and dlse, or None, are contiguous)."""
    batch, n_heads, n_q, head_dim = do.shape
    block_d = padded_head_dim(head_dim)
    # Large enough tiles to hide the latency of memory, small enough for registers, no more rows than
    # `launch.MAX_ROW_STRIDE` counts on.
    block_m = 128 if capability is None else min(128, 4096 // block_d)
    return Launch(
        delta_kernel, (-(-n_q // block_m) * batch * n_heads, 1, 1), *do.strides[:3], n_heads, n_q,
        HAS_DLSE=dlse is not None, HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_D=block_d,
    )  # fmt: skip


def row_delta(o, do, dlse=None):
    """delta of each row, fp32 [batch, n_heads, n_q], contiguous. o, do, dlse as `flash_backward` takes them."""
    o, do, dlse = o.contiguous(), addressable(do), None if dlse is None else dlse.contiguous()
    delta = torch.empty(o.shape[:3], dtype=torch.float32, device=o.device)
    metas = [None if x is None else tensor_meta(x) for x in (o, do, dlse)]
    delta_plan(*metas, runtime.capability(o.device))(o, do, dlse, delta)
    return delta


@functools.lru_cache(MAX_CACHED_LAUNCHES)
def plan(q, k, v, lse, delta, do, capability, causal, scale, *, config_dkdv=None, config_dq=None, by_descriptor=None):
    """The Launches of the other two kernels for tensors of this metadata, and whether tiles come by descriptor.

    lse and delta are contiguous; they are arguments because their alignment is compiled in. capability: of the GPU,
    None for the interpreter. config_dkdv, config_dq, by_descriptor: see `flash_backward`.
    """
    batch, n_heads, n_q, head_dim = q.shape
    _, n_kv_heads, n_k, _ = k.shape
    if by_descriptor is None:
        by_descriptor = takes_descriptors(capability, q, k, v, do)
    shape = dict(
        dtype=q.dtype, head_dim=head_dim, causal=causal, capability=capability, n_k=n_k, by_descriptor=by_descriptor,
        n_rows=batch * n_heads * n_q,
    )  # fmt: skip
    sizes = dict(HEAD_DIM=head_dim, BLOCK_D=padded_head_dim(head_dim))
    strides = *q.strides[:3], *k.strides[:3], *v.strides[:3], *do.strides[:3]
    numbers = n_q, n_k, scale, scale * LOG2_E.value
    sizes |= dict(
        GROUP_SIZE=n_heads // n_kv_heads, IS_CAUSAL=causal, INPUT_PRECISION=dot_precision(q.dtype, capability)
    )
    block_m, block_n, num_warps, num_stages = config_dkdv or select("dkdv", **shape)
    dkdv = Launch(
        dkdv_kernel, (-(-n_k // block_n) * batch * n_kv_heads, 1, 1), *strides, n_kv_heads, *numbers,
        MASK_Q_ROWS=n_q % block_m != 0, BLOCK_M=block_m, BLOCK_N=block_n, **sizes,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    block_m, block_n, num_warps, num_stages = config_dq or select("dq", **shape)
    dq = Launch(
        dq_kernel, (-(-n_q // block_m) * batch * n_heads, 1, 1), *strides, n_heads, *numbers,
        MASK_K_ROWS=n_k % block_n != 0, BLOCK_M=block_m, BLOCK_N=block_n, **sizes,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return dkdv, dq, by_descriptor


def flash_backward(
    q, k, v, o, lse, do, dlse=None, *, causal, scale, delta=None, need_dq=True, need_dkdv=True, config_dkdv=None,
    config_dq=None, by_descriptor=None,
):  # fmt: skip
    """Launch the backward kernels; returns (dq, dk, dv) in the inputs' dtype, None for those not needed.

    q, k, v as `flash_forward` took them, o and lse as it returned them or slices of that; do like o; dlse like lse, or
    None; scale finite. Any strides of o, lse, do and dlse are right, but only those of do's first three dimensions do
    not cost a copy. delta: what `row_delta` returned, or a slice, if the caller has it; o and dlse are not looked at.
    The launches take what `configs.select` returns. To measure other choices, config_dkdv and config_dq replace its
    results, and by_descriptor the decision of `takes_descriptors` on how the tiles that stream past are loaded.
    """
    dq = torch.empty_like(q, memory_format=torch.contiguous_format) if need_dq else None
    dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) if need_dkdv else None for x in (k, v))
    if q.numel() == 0:
        return dq, dk, dv
    lse, do = lse.contiguous(), addressable(do)
    delta = row_delta(o, do, dlse) if delta is None else delta.contiguous()
    metas = map(tensor_meta, (q, k, v, lse, delta, do))
    launch_dkdv, launch_dq, by_descriptor = plan(
        *metas, runtime.capability(q.device), causal, scale,
        config_dkdv=config_dkdv, config_dq=config_dq, by_descriptor=by_descriptor,
    )  # fmt: skip

    def streamed(x, rows):
        return descriptor(x, rows) if by_descriptor else None

    if need_dkdv:
        rows = launch_dkdv.constants["BLOCK_M"]
        launch_dkdv(q, k, v, do, streamed(q, rows), streamed(do, rows), lse, delta, dk, dv)
    if need_dq:
        rows = launch_dq.constants["BLOCK_N"]
        launch_dq(q, k, v, do, streamed(k, rows), streamed(v, rows), lse, delta, dq)
    return dq, dk, dv
