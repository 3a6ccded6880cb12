"""FlashAttention-2 backward (Dao 2023, Alg. 2) as lesson 09 teaches it: three kernels, each gradient written once.

Each kernel works on one head, and has a function that launches it. The second, which is the longest, is the lesson's
exercise, and so is what calls the launches. `backward.py` is this made fast.
"""

import functools

from course_lib.kernels.plain_forward import plain_attention
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


def launch_forward(q, k, v, causal, scale):
    """(o, lse) of one head from lesson 08's kernel. q: [n_q, d]; k, v: [n_k, d]; contiguous, as for all launches here.

    All are torch tensors, float32 or float16. causal and scale: of the kernels.
    """
    _require_contiguous(q=q, k=k, v=v)
    o, lse = plain_attention(q[None, None], k[None, None], v[None, None], causal=causal, scale=scale)
    return o[0, 0], lse[0, 0]


def launch_delta(o, do, block_q=32):
    """delta, float32 [n_q]. o, do: [n_q, d]."""
    _require_contiguous(o=o, do=do)
    (n_q, d), delta = o.shape, o.new_empty(len(o)).float()
    delta_tile[(triton.cdiv(n_q, block_q),)](o, do, delta, n_q, d, block_q, _columns(d))
    return delta


def launch_dkdv(q, k, v, do, lse, delta, causal, scale, block_q=32, block_k=32):
    """(dk, dv), each as k and v. q, do: [n_q, d]; k, v: [n_k, d]; lse, delta: float32 [n_q]."""
    _require_contiguous(q=q, k=k, v=v, do=do, lse=lse, delta=delta)
    (n_q, d), n_k, dk, dv = q.shape, len(k), k.new_empty(k.shape), v.new_empty(v.shape)
    # One stage: with more, tiles of 256 columns would not fit into shared memory.
    dkdv_tile[(triton.cdiv(n_k, block_k),)](
        q, k, v, do, lse, delta, dk, dv, *[d] * 6, n_q, n_k, scale, causal, d, block_q, block_k, _columns(d),
        num_stages=1,
    )  # fmt: skip
    return dk, dv


def launch_dq(q, k, v, do, lse, delta, causal, scale, block_q=32, block_k=32):
    """dq, as q. The arguments are those of `launch_dkdv`."""
    _require_contiguous(q=q, k=k, v=v, do=do, lse=lse, delta=delta)
    (n_q, d), n_k, dq = q.shape, len(k), q.new_empty(q.shape)
    dq_tile[(triton.cdiv(n_q, block_q),)](
        q, k, v, do, lse, delta, dq, n_q, n_k, scale, causal, d, block_q, block_k, _columns(d), num_stages=1
    )
    return dq


def _columns(d):
    return max(16, triton.next_power_of_2(d))


def _require_contiguous(**tensors):
    for name, x in tensors.items():
        if not x.is_contiguous():
            raise ValueError(f"{name} has strides {x.stride()}, and the kernel takes its rows to follow one another")


def plain_attention_backward(q, k, v, o, lse, do, *, causal, scale, block_q=32, block_k=32):
    """(dq, dk, dv) for do, the gradient of o.

    q, o, do: [batch, heads, n_q, d]; k, v: [batch, heads, n_k, d]; torch tensors, all float32 or all float16.
    lse: float32 [batch, heads, n_q], the natural log-sum-exp of the scaled scores.
    """
    import torch

    inputs, made = (x.flatten(0, 1).contiguous() for x in (q, k, v, o, lse, do)), []
    for q_h, k_h, v_h, o_h, lse_h, do_h in zip(*inputs, strict=True):
        given = q_h, k_h, v_h, do_h, lse_h, launch_delta(o_h, do_h, block_q), causal, scale, block_q, block_k
        made.append((launch_dq(*given), *launch_dkdv(*given)))
    dq, dk, dv = map(torch.stack, zip(*made, strict=True))
    return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)


def differentiable_attention(q, k, v, *, causal=False, scale=None, block_q=32, block_k=32):
    """o, from lesson 08's forward; its backward is `plain_attention_backward`.

    q: [batch, heads, n_q, d]; k, v: [batch, kv_heads, n_k, d], kv_heads a divisor of heads; torch tensors, float32 or
    float16; on a GPU also bfloat16. The kernels give each query head keys of its own, so shared ones are copied.
    """
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    return _function().apply(q, k, v, causal, q.shape[-1] ** -0.5 if scale is None else scale, block_q, block_k)


@functools.cache
def _function():
    """The subclass of torch.autograd.Function; made late, because the kernels are read where torch is missing, too."""
    import torch

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, *how):
            causal, scale, block_q, block_k = how
            o, lse = plain_attention(q, k, v, causal=causal, scale=scale, block_q=block_q, block_k=block_k)
            ctx.save_for_backward(q, k, v, o, lse)
            ctx.how = dict(zip(("causal", "scale", "block_q", "block_k"), how, strict=True))
            return o

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, do):
            return *plain_attention_backward(*ctx.saved_tensors, do, **ctx.how), None, None, None, None

    return Attention
