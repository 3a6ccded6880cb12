"""The backward of masked_forward.py: delta, dK and dV, and dQ as in backward.py, over the tiles of a mask.

What changes in FlashAttention-2's Alg. 2, with s the score before the score mods, and Z / (1 - p) the number by which
dropout multiplies a weight:

    dV = (P * Z / (1 - p))^T dO     dP = dO V^T * Z / (1 - p)     dS = P * (dP - delta) * d changed(s) / d s

delta remains rowsum(dO * O), because O has the dropped weights in it. A sink has the weight exp(sink - lse) in each row
and no value, so its gradient is the sum of -exp(sink - lse) * delta.
"""

import torch
import triton
import triton.language as tl

from course_lib import runtime
from course_lib.kernels.backward import delta_plan, load_statistics, with_known_strides
from course_lib.kernels.block_mask import block_mask_of
from course_lib.kernels.device import LOG2_E, load_tile, store_tile
from course_lib.kernels.launch import descriptor, takes_descriptors, tensor_meta
from course_lib.kernels.masked_forward import (
    apply_score_mods,
    block_mask_visible,
    config_of,
    dropout_keep_mask,
    load_ranges,
    positions,
    score_mods_backward,
)


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
    p = tl.exp2(log2_p)
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
    stride_w, n_kv_heads, n_q, n_k, scale, dropped, kept_scale,
    GROUP_SIZE: tl.constexpr, MODS: tl.constexpr, DERIVATIVES: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    MASK_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (i, h, b): the key tile of programs[i], of kv head h of sequence b. Arguments as the forward's."""
    program = programs_ptr + 5 * tl.program_id(0)
    start_n = tl.load(program) * BLOCK_N
    kv_head, batch = tl.cast(tl.program_id(1), tl.int64), tl.cast(tl.program_id(2), tl.int64)
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    k = load_tile(k_ptr, None, 0, 0, start_n, n_k, stride_kn, True, HEAD_DIM, BLOCK_N, BLOCK_D)
    v = load_tile(v_ptr, None, 0, 0, start_n, n_k, stride_vn, True, HEAD_DIM, BLOCK_N, BLOCK_D)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    first, stop = load_ranges(ranges_ptr, start_n + tl.arange(0, BLOCK_N), n_k)
    begin, first_partial, end = tl.load(program + 1), tl.load(program + 2), tl.load(program + 3)
    for member in range(GROUP_SIZE):
        head = kv_head * GROUP_SIZE + member
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
    stride_w, n_heads, n_q, n_k, scale, dropped, kept_scale,
    GROUP_SIZE: tl.constexpr, MODS: tl.constexpr, DERIVATIVES: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    MASK_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (i, h, b): the query tile of programs[i], of head h of sequence b. Arguments as the forward's."""
    program = programs_ptr + 5 * tl.program_id(0)
    start_m = tl.load(program) * BLOCK_M
    head, batch = tl.cast(tl.program_id(1), tl.int64), tl.cast(tl.program_id(2), tl.int64)
    kv_head, batch_head = head // GROUP_SIZE, batch * n_heads + head
    offs_m = start_m + tl.arange(0, BLOCK_M)
    q_ptr += batch * stride_qb + head * stride_qh
    do_ptr += batch * stride_dob + head * stride_doh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    q = load_tile(q_ptr, None, 0, 0, start_m, n_q, stride_qm, True, HEAD_DIM, BLOCK_M, BLOCK_D)
    do = load_tile(do_ptr, None, 0, 0, start_m, n_q, stride_dom, True, HEAD_DIM, BLOCK_M, BLOCK_D)
    lse_log2, delta = load_statistics(lse_ptr + batch_head * n_q, delta_ptr + batch_head * n_q, offs_m, n_q, True)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    first, stop = load_ranges(ranges_ptr, offs_m, n_q)
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
    o, lse, do, dlse = with_known_strides(o, lse, do, dlse)
    capability, metas = runtime.capability(q.device), [tensor_meta(x) for x in (q, k, v, do)]
    if by_descriptor is None:
        by_descriptor = takes_descriptors(capability, *metas)
    delta, dsinks = torch.empty_like(lse), None
    delta_plan(metas[-1], capability, dlse is not None)(o, do, dlse, delta)
    if variant.sinks is not None:
        weight = torch.exp(variant.sinks[:, None] - lse).nan_to_num(0.0)  # 0 where sink and lse are both -inf
        dsinks = -(weight * delta).sum((0, 2))
    strides = [stride for x in (q, k, v, do) for stride in x.stride()[:3]]
    constants = variant.constants(q, k) | {"DERIVATIVES": tuple(mod.derivative for mod in variant.mods)}

    def launch(name, kernel, results, config, heads, streamed):
        by_key = name == "dkdv"
        block_m, block_n, num_warps, num_stages = config or config_of(name, variant.mask, q, k, by_descriptor)
        rows, length = (block_m, n_q) if by_key else (block_n, n_k)
        seen = block_mask_of(variant.mask, n_q, n_k, block_m, block_n, q.device, by_key)
        kernel[len(seen.programs), heads, batch](
            q, k, v, do, *(descriptor(x, rows) if by_descriptor else None for x in streamed), lse, delta, *results,
            *seen, variant.w, variant.seed, *strides, batch * n_heads, heads, n_q, n_k, scale, *variant.numbers,
            MASK_ROWS=length % rows != 0, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=num_warps, num_stages=num_stages,
            **constants,
        )  # fmt: skip

    if need_dkdv:
        launch("dkdv", variant_dkdv_kernel, (dk, dv), config_dkdv, n_kv_heads, (q, do))
    if need_dq:
        launch("dq", variant_dq_kernel, (dq,), config_dq, n_heads, (k, v))
    return dq, dk, dv, dsinks
