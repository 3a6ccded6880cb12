"""FlashAttention-1 forward (Dao et al. 2022, Alg. 1), keys outermost: kept to be counted, not to be fast.

One program does one head. For each key tile it walks over all query tiles, and reads and writes their output and
statistics every time: that is the traffic that FlashAttention-2's order of loops removes.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.checks import check_tensors
from course_lib.kernels.device import LOG2_E, load_tile, online_softmax_update, store_tile, visible
from course_lib.kernels.launch import padded_head_dim


@triton.jit
def flash1_forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, l_ptr, m_ptr, n_q, n_k, scale_log2, IS_CAUSAL: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """q, o [heads, n_q, HEAD_DIM] and k, v [heads, n_k, HEAD_DIM], contiguous; l, m fp32 [heads, n_q]."""
    head = tl.cast(tl.program_id(0), tl.int64)
    q_ptr += head * n_q * HEAD_DIM
    o_ptr += head * n_q * HEAD_DIM
    k_ptr += head * n_k * HEAD_DIM
    v_ptr += head * n_k * HEAD_DIM
    l_ptr += head * n_q
    m_ptr += head * n_q

    # Line 2: O = 0, l = 0, m = -inf in HBM.
    for start_m in range(0, n_q, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        zeros = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        store_tile(o_ptr, zeros, start_m, n_q, HEAD_DIM, True, HEAD_DIM, BLOCK_M, BLOCK_D)
        tl.store(l_ptr + offs_m, tl.zeros([BLOCK_M], tl.float32), mask=offs_m < n_q)
        tl.store(m_ptr + offs_m, tl.full([BLOCK_M], float("-inf"), tl.float32), mask=offs_m < n_q)
    # What one thread of the program wrote, another may read.
    tl.debug_barrier()

    for start_n in range(0, n_k, BLOCK_N):
        # Line 6: K_j and V_j stay while every query tile passes.
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k = load_tile(k_ptr, None, 0, 0, start_n, n_k, HEAD_DIM, True, HEAD_DIM, BLOCK_N, BLOCK_D)
        v = load_tile(v_ptr, None, 0, 0, start_n, n_k, HEAD_DIM, True, HEAD_DIM, BLOCK_N, BLOCK_D)
        first_m = 0
        if IS_CAUSAL:
            # The first query that sees the tile's first key, rounded down to its tile.
            first_m = tl.maximum(start_n + n_q - n_k, 0) // BLOCK_M * BLOCK_M
        for start_m in range(first_m, n_q, BLOCK_M):
            offs_m = start_m + tl.arange(0, BLOCK_M)
            mask_m = offs_m < n_q
            # Line 8: Q_i, O_i, l_i, m_i come back from HBM.
            q = load_tile(q_ptr, None, 0, 0, start_m, n_q, HEAD_DIM, True, HEAD_DIM, BLOCK_M, BLOCK_D)
            o = load_tile(o_ptr, None, 0, 0, start_m, n_q, HEAD_DIM, True, HEAD_DIM, BLOCK_M, BLOCK_D).to(tl.float32)
            l_i = tl.load(l_ptr + offs_m, mask=mask_m, other=0.0)
            m_i = tl.load(m_ptr + offs_m, mask=mask_m, other=float("-inf"))
            # Line 9: [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            seen = visible(offs_m[:, None], offs_n[None, :], n_q, n_k, IS_CAUSAL)
            scores = tl.where(seen & mask_m[:, None], scores, float("-inf"))
            # Lines 10 to 12. O_i is kept divided by l_i, so it is multiplied back before it is rescaled.
            m_i, l_i, acc = online_softmax_update(
                m_i, l_i, o * l_i[:, None], scores, v, scale_log2, MAY_BE_EMPTY=True, INPUT_PRECISION="ieee"
            )
            o = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]
            # Lines 12 and 13: and go out to HBM again.
            store_tile(o_ptr, o, start_m, n_q, HEAD_DIM, True, HEAD_DIM, BLOCK_M, BLOCK_D)
            tl.store(l_ptr + offs_m, l_i, mask=mask_m)
            tl.store(m_ptr + offs_m, m_i, mask=mask_m)
        tl.debug_barrier()


def flash1_attention(q, k, v, *, causal, block_q, block_k):
    """FlashAttention-1 forward; returns (o, lse), shapes and dtypes as `flash_attention` has them.

    q, k, v: [batch, heads, seq, head_dim], as many heads in k and v as in q. The output is rounded to q's dtype at
    every visit, as Alg. 1 keeps it in HBM.
    """
    check_tensors(q, k, v)
    if q.shape[1] != k.shape[1]:
        raise ValueError(f"k and v must have q's {q.shape[1]} heads, got {k.shape[1]}")
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    batch, heads, n_q, head_dim = q.shape
    o = torch.empty_like(q)
    l, m = (torch.empty((batch, heads, n_q), dtype=torch.float32, device=q.device) for _ in "lm")  # noqa: E741
    flash1_forward_kernel[(batch * heads,)](
        q, k, v, o, l, m, n_q, k.shape[2], LOG2_E.value * head_dim**-0.5,
        IS_CAUSAL=causal, HEAD_DIM=head_dim, BLOCK_M=block_q, BLOCK_N=block_k,
        BLOCK_D=padded_head_dim(head_dim), num_warps=4, num_stages=1,
    )  # fmt: skip
    return o, m * head_dim**-0.5 + torch.log(l)
