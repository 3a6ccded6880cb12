"""FlashAttention-2 forward (Dao 2023, Alg. 1) in Triton: `plain_forward`, and what makes it fast.

One program computes BLOCK_M rows of the output of one head. It loads its queries once, streams the keys and values past
them in tiles of BLOCK_N, and writes its output once. Nothing of size N x N exists anywhere. Beyond the plain kernel:

    two loops over keys      only tiles that hide something from a query are masked
    tensor descriptors       on Hopper and newer, a hardware unit fetches tiles of keys and values
    longest programs first   under a causal mask, the last query tiles see the most keys and start first
    tiles from a table       block sizes, warps and prefetching come from `configs`

Reading order: the loop over key tiles, the kernel, launch.
"""

import functools

import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

from course_lib import runtime
from course_lib.kernels.configs import dot_precision, select
from course_lib.kernels.device import (
    LN_2,
    LOG2_E,
    kv_loop_bounds,
    load_tile,
    logsumexp,
    online_softmax_update,
    store_tile,
    visible,
)
from course_lib.kernels.launch import (
    MAX_CACHED_LAUNCHES,
    Launch,
    descriptor,
    padded_head_dim,
    takes_descriptors,
    tensor_meta,
    with_positive_scale,
)  # fmt: skip


@triton.jit
def attend(
    m_i, l_i, acc, q, k_ptr, v_ptr, k_desc, v_desc, batch, kv_head, stride_kn, stride_vn, start, end,
    offs_m, n_q, n_k, scale_log2,
    MASKED: tl.constexpr, IS_CAUSAL: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """FA2 Alg. 1, lines 6 to 11: the loop over the keys [start, end), whose tiles need a mask if MASKED."""
    for start_n in range(start, end, BLOCK_N):
        k = load_tile(k_ptr, k_desc, batch, kv_head, start_n, n_k, stride_kn, MASKED, HEAD_DIM, BLOCK_N, BLOCK_D)
        v = load_tile(v_ptr, v_desc, batch, kv_head, start_n, n_k, stride_vn, MASKED, HEAD_DIM, BLOCK_N, BLOCK_D)
        # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
        scores = tl.dot(q, tl.trans(k), input_precision=INPUT_PRECISION)
        if MASKED:
            offs_n = start_n + tl.arange(0, BLOCK_N)
            is_visible = visible(offs_m[:, None], offs_n[None, :], n_q, n_k, IS_CAUSAL)
            scores = tl.where(is_visible, scores, float("-inf"))
        m_i, l_i, acc = online_softmax_update(
            m_i, l_i, acc, scores, v, scale_log2, MAY_BE_EMPTY=MASKED and IS_CAUSAL, INPUT_PRECISION=INPUT_PRECISION
        )
    return m_i, l_i, acc


@triton.jit(do_not_specialize=["n_q", "n_k"])
def flash_forward_kernel(
    q_ptr, k_ptr, v_ptr, k_desc, v_desc, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_om,
    n_heads, n_q, n_k, scale_log2,
    GROUP_SIZE: tl.constexpr, IS_CAUSAL: tl.constexpr, STORE_LSE: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    MASK_Q_ROWS: tl.constexpr, MASK_K_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (i, h, b) computes query tile i, or causal the i-th from the end, of head h of sequence b.

    q, o: [batch, n_heads, n_q, HEAD_DIM]; k, v: [batch, n_heads / GROUP_SIZE, n_k, HEAD_DIM]; unit stride last.
    lse: fp32 [batch, n_heads, n_q], contiguous, or None. k_desc, v_desc: descriptors by which k and v are loaded, or
    None. scale_log2: positive. MASK_Q_ROWS, MASK_K_ROWS: whether tiles of queries, or of keys, may end beyond the
    tensor.
    """
    # With one grid axis, from which tile, head and sequence follow by division, an H100 was up to 3 % slower.
    pid_m = tl.program_id(0)
    if IS_CAUSAL:
        # The last query tiles see the most keys. Started first, they do not run on alone at the end.
        pid_m = tl.num_programs(0) - 1 - pid_m
    # 64 bits before these multiply a stride: a tensor may have more than 2^31 elements.
    head, batch = tl.cast(tl.program_id(1), tl.int64), tl.cast(tl.program_id(2), tl.int64)
    kv_head = head // GROUP_SIZE
    start_m = pid_m * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)

    # FA2 Alg. 1, lines 4 and 5: load Q_i, initialise the state.
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    q = load_tile(q_ptr, None, batch, head, start_m, n_q, stride_qm, MASK_Q_ROWS, HEAD_DIM, BLOCK_M, BLOCK_D)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    full_end, kv_end = kv_loop_bounds(start_m, n_q, n_k, IS_CAUSAL, BLOCK_M, BLOCK_N)
    m_i, l_i, acc = attend(
        m_i, l_i, acc, q, k_ptr, v_ptr, k_desc, v_desc, batch, kv_head, stride_kn, stride_vn, 0, full_end,
        offs_m, n_q, n_k, scale_log2, False, IS_CAUSAL, INPUT_PRECISION, HEAD_DIM, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    if IS_CAUSAL or MASK_K_ROWS:
        m_i, l_i, acc = attend(
            m_i, l_i, acc, q, k_ptr, v_ptr, k_desc, v_desc, batch, kv_head, stride_kn, stride_vn, full_end, kv_end,
            offs_m, n_q, n_k, scale_log2, True, IS_CAUSAL, INPUT_PRECISION, HEAD_DIM, BLOCK_N, BLOCK_D,
        )  # fmt: skip

    # Lines 12 to 15: divide once, write O_i and the log-sum-exp. A row without keys has l = 0, and gets 0 and -inf.
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    o = acc * (1.0 / l_safe)[:, None]
    o_ptr += batch * stride_ob + head * stride_oh
    store_tile(o_ptr, o, start_m, n_q, stride_om, MASK_Q_ROWS, HEAD_DIM, BLOCK_M, BLOCK_D)
    if STORE_LSE:
        lse = logsumexp(m_i, l_i, scale_log2 * LN_2)
        tl.store(lse_ptr + (batch * n_heads + head) * n_q + offs_m, lse, mask=offs_m < n_q)


@functools.lru_cache(MAX_CACHED_LAUNCHES)
def plan(q, k, v, capability, causal, scale, store_lse, *, block_q=None, block_k=None, config=None, by_descriptor=None):
    """(Launch, rows of the tiles that descriptors load, or None) for tensors of this metadata.

    capability: of the GPU, None for the interpreter. scale: positive. The others are `flash_forward`'s.
    """
    batch, n_heads, n_q, head_dim = q.shape
    _, n_kv_heads, n_k, _ = k.shape
    if by_descriptor is None:
        by_descriptor = takes_descriptors(capability, k, v)
    block_m, block_n, num_warps, num_stages = config or select(
        "forward", dtype=q.dtype, head_dim=head_dim, causal=causal, capability=capability, n_k=n_k,
        by_descriptor=by_descriptor, n_rows=batch * n_heads * n_q, block_q=block_q, block_k=block_k,
    )  # fmt: skip
    launch = Launch(
        flash_forward_kernel, (-(-n_q // block_m), n_heads, batch),
        *q.strides[:3], *k.strides[:3], *v.strides[:3], n_heads * n_q * head_dim, n_q * head_dim, head_dim,
        n_heads, n_q, n_k, scale * LOG2_E.value,
        GROUP_SIZE=n_heads // n_kv_heads, IS_CAUSAL=causal, STORE_LSE=store_lse,
        INPUT_PRECISION=dot_precision(q.dtype, capability),
        # Tiles of 128 queries are masked even if they end with the tensor. Without this redundant mask the compiler
        # schedules the loop differently: about 10 % slower with head_dim 128 and no causal mask on an H100.
        MASK_Q_ROWS=n_q % block_m != 0 or block_m >= 128, MASK_K_ROWS=n_k % block_n != 0,
        HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=padded_head_dim(head_dim),
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return launch, block_n if by_descriptor else None


def flash_forward(
    q, k, v, *, causal, scale, store_lse, block_q=None, block_k=None, config=None, by_descriptor=None
):  # fmt: skip
    """Launch the forward kernel on checked inputs; returns (o, lse), with lse None unless store_lse.

    q [batch, heads, n_q, d], k and v [batch, kv_heads, n_k, d], last dimension contiguous, one dtype; scale finite.
    The launch takes what `configs.select` returns for block_q and block_k; to measure other choices, config replaces
    its result, and by_descriptor the decision of `takes_descriptors` on how k and v are loaded.
    Raises ValueError, with the bytes needed, if the tiles do not fit the GPU.
    """
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if store_lse else None
    if o.numel() == 0:
        return o, lse
    q, scale = with_positive_scale(q, scale)
    launch, desc_rows = plan(
        tensor_meta(q), tensor_meta(k), tensor_meta(v), runtime.capability(q.device), causal, scale, store_lse,
        block_q=block_q, block_k=block_k, config=config, by_descriptor=by_descriptor,
    )  # fmt: skip
    k_desc, v_desc = (descriptor(k, desc_rows), descriptor(v, desc_rows)) if desc_rows else (None, None)
    try:
        launch(q, k, v, k_desc, v_desc, o, lse)
    except OutOfResources as error:
        block_m, block_n = launch.constants["BLOCK_M"], launch.constants["BLOCK_N"]
        raise ValueError(
            f"block_q={block_m}, block_k={block_n} at head_dim={q.shape[-1]}, {str(q.dtype).removeprefix('torch.')}, "
            f"needs {error.required} bytes of {error.name}; this GPU has {error.limit}. Take smaller blocks."
        ) from error
    return o, lse
