"""FlashAttention-2 backward (Dao 2023, Alg. 2) as lesson 09 teaches it: three kernels, each gradient written once.

Each kernel works on one head and `plain_attention_backward` launches them. The second, which is the longest, is the
lesson's exercise. `backward.py` is this made fast.
"""

from course_lib.language import tl, triton


@triton.jit
def delta_tile(o_ptr, do_ptr, delta_ptr, n_q, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Alg. 2, line 4: delta = rowsum(dO * O), float32 [n_q], from contiguous O and dO. Program i has query tile i."""
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    offs_md = offs_m[:, None] * HEAD_DIM + offs_d[None, :]
    mask_md = (offs_m < n_q)[:, None] & (offs_d < HEAD_DIM)[None, :]
    o = tl.load(o_ptr + offs_md, mask=mask_md, other=0.0).to(tl.float32)
    do = tl.load(do_ptr + offs_md, mask=mask_md, other=0.0).to(tl.float32)
    tl.store(delta_ptr + offs_m, tl.sum(o * do, axis=1), mask=offs_m < n_q)


@triton.jit
def dkdv_tile(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    stride_qm, stride_kn, stride_vn, stride_dom, stride_dkn, stride_dvn, n_q, n_k, scale,
    IS_CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dK and dV of one head. Program j has key tile j; the query tiles that see one of its keys pass by.

    q_ptr, do_ptr: [n_q, HEAD_DIM]; k_ptr, v_ptr: [n_k, HEAD_DIM]; all float32, or all float16. lse_ptr (natural
        logarithm), delta_ptr: float32 [n_q]. Columns lie side by side, rows stride_qm, ... elements apart.
    dk_ptr, dv_ptr, to be written: [n_k, HEAD_DIM], float32 or of the inputs' dtype. Scores and sums are float32.
    IS_CAUSAL: query i sees keys 0 to i + n_k - n_q; one that sees none has lse = -inf.
    A tile has BLOCK_M queries or BLOCK_N keys, and BLOCK_D columns: query tile i has the queries from i * BLOCK_M on,
        and key tile j the keys from j * BLOCK_N on. All three sizes are powers of two, 16 or more;
        BLOCK_D is at least HEAD_DIM. n_q, n_k and HEAD_DIM are any numbers from 1 up: nothing outside a tensor may be
        touched, or enter a sum.
    Loads: K and V once; Q, dO, lse and delta once for each key tile, except query tiles that see none of its keys.

    >>> ones, zeros = np.ones((16, 16)), np.zeros((16, 16))
    >>> statistics = {"lse_ptr": np.full(16, np.log(16)), "delta_ptr": np.full(16, 16.0)}
    >>> sizes = {"n_q": 16, "n_k": 16, "scale": 0.25, "HEAD_DIM": 16, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": 16}
    >>> strides = {"q_ptr": ("stride_qm",), "k_ptr": ("stride_kn",), "v_ptr": ("stride_vn",),
    ...            "do_ptr": ("stride_dom",), "dk_ptr": ("stride_dkn",), "dv_ptr": ("stride_dvn",)}
    >>> launch = launched(dkdv_tile, (1,), {"dk_ptr": (16, 16), "dv_ptr": (16, 16)}, strides=strides, q_ptr=zeros,
    ...                   k_ptr=zeros, v_ptr=ones, do_ptr=ones, IS_CAUSAL=False, **statistics, **sizes)
    >>> print(launch.outputs["dv_ptr"][0, 0].round(4))
    1.0
    """
    start_n = tl.program_id(0) * BLOCK_N
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    mask_n = offs_n < n_k
    mask_d = (offs_d < HEAD_DIM)[None, :]
    mask_nd = mask_n[:, None] & mask_d
    k = tl.load(k_ptr + offs_n[:, None] * stride_kn + offs_d[None, :], mask=mask_nd, other=0.0)
    v = tl.load(v_ptr + offs_n[:, None] * stride_vn + offs_d[None, :], mask=mask_nd, other=0.0)
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    first_m = 0
    if IS_CAUSAL:
        first_m = tl.maximum(start_n + n_q - n_k, 0) // BLOCK_M * BLOCK_M
    for start_m in range(first_m, n_q, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        mask_m = offs_m < n_q
        q = tl.load(q_ptr + offs_m[:, None] * stride_qm + offs_d[None, :], mask=mask_m[:, None] & mask_d, other=0.0)
        do = tl.load(do_ptr + offs_m[:, None] * stride_dom + offs_d[None, :], mask=mask_m[:, None] & mask_d, other=0.0)
        lse = tl.load(lse_ptr + offs_m, mask=mask_m, other=0.0)
        delta = tl.load(delta_ptr + offs_m, mask=mask_m, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
        visible = mask_m[:, None] & mask_n[None, :]
        if IS_CAUSAL:
            visible = visible & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)
        p = tl.where(visible, tl.exp(s - lse[:, None]), 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision="ieee")  # [BLOCK_N, BLOCK_M] @ [BLOCK_M, BLOCK_D]
        dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
    tl.store(dk_ptr + offs_n[:, None] * stride_dkn + offs_d[None, :], dk * scale, mask=mask_nd)
    tl.store(dv_ptr + offs_n[:, None] * stride_dvn + offs_d[None, :], dv, mask=mask_nd)


@triton.jit
def dq_tile(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, n_q, n_k, scale, IS_CAUSAL: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dQ of one head, all tensors contiguous. Program i has query tile i, and visits the key tiles that it sees."""
    start_m = tl.program_id(0) * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_m = offs_m < n_q
    mask_d = (offs_d < HEAD_DIM)[None, :]
    offs_md = offs_m[:, None] * HEAD_DIM + offs_d[None, :]
    q = tl.load(q_ptr + offs_md, mask=mask_m[:, None] & mask_d, other=0.0)
    do = tl.load(do_ptr + offs_md, mask=mask_m[:, None] & mask_d, other=0.0)
    lse = tl.load(lse_ptr + offs_m, mask=mask_m, other=0.0)
    delta = tl.load(delta_ptr + offs_m, mask=mask_m, other=0.0)
    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    kv_end = n_k
    if IS_CAUSAL:
        kv_end = tl.minimum(tl.maximum(tl.minimum(start_m + BLOCK_M, n_q) + n_k - n_q, 0), n_k)
    for start_n in range(0, kv_end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        offs_nd = offs_n[:, None] * HEAD_DIM + offs_d[None, :]
        k = tl.load(k_ptr + offs_nd, mask=(offs_n < n_k)[:, None] & mask_d, other=0.0)
        v = tl.load(v_ptr + offs_nd, mask=(offs_n < n_k)[:, None] & mask_d, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
        visible = (offs_n < n_k)[None, :]
        if IS_CAUSAL:
            visible = visible & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)
        p = tl.where(visible, tl.exp(s - lse[:, None]), 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")  # [BLOCK_M, BLOCK_N] @ [BLOCK_N, BLOCK_D]
    tl.store(dq_ptr + offs_md, dq * scale, mask=mask_m[:, None] & mask_d)


def plain_attention_backward(q, k, v, o, lse, do, *, causal, scale, block_q=32, block_k=32):
    """(dq, dk, dv) for do, the gradient of o.

    q, o, do: [batch, heads, n_q, d]; k, v: [batch, heads, n_k, d]; torch tensors, all float32 or all float16.
    lse: float32 [batch, heads, n_q], the natural log-sum-exp of the scaled scores.
    """
    import torch

    q, k, v, o, lse, do = (x.contiguous() for x in (q, k, v, o, lse, do))
    dq, dk, dv, delta = (torch.empty_like(x) for x in (q, k, v, lse))
    n_q, n_k, d = q.shape[2], k.shape[2], q.shape[3]
    q_tiles, k_tiles = (triton.cdiv(n_q, block_q),), (triton.cdiv(n_k, block_k),)
    block_d = max(16, triton.next_power_of_2(d))
    sizes = n_q, n_k, scale, causal, d, block_q, block_k, block_d
    heads = zip(*(x.flatten(0, 1) for x in (q, k, v, o, lse, do, dq, dk, dv, delta)), strict=True)
    for q_h, k_h, v_h, o_h, lse_h, do_h, dq_h, dk_h, dv_h, delta_h in heads:
        delta_tile[q_tiles](o_h, do_h, delta_h, n_q, d, block_q, block_d)
        # One stage: with more, tiles of 256 columns would not fit into shared memory.
        dkdv_tile[k_tiles](q_h, k_h, v_h, do_h, lse_h, delta_h, dk_h, dv_h, *[d] * 6, *sizes, num_stages=1)
        dq_tile[q_tiles](q_h, k_h, v_h, do_h, lse_h, delta_h, dq_h, *sizes, num_stages=1)
    return dq, dk, dv
