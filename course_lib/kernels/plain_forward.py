"""FlashAttention-2's forward (Dao 2023, Alg. 1) at its plainest, for lesson 08. `forward.py` makes it fast."""

from course_lib import runtime
from course_lib.language import tl, triton


@triton.jit
def flash_forward(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qh, stride_qm, stride_kh, stride_kn, stride_vh, stride_vn, stride_oh, stride_om, stride_lh,
    n_q, n_k, scale,
    IS_CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """FlashAttention-2, Alg. 1: program (i, h) computes query tile i of head h.

    q, o: [heads, n_q, HEAD_DIM]; k, v: [heads, n_k, HEAD_DIM]; q, k and v float32, or float16. Element [h, n, d] of q
        lies at q_ptr + h * stride_qh + n * stride_qm + d, likewise for k, v and o. lse: float32 [heads, n_q], element
        [h, n] at lse_ptr + h * stride_lh + n.
    scale: positive, multiplies the scores. The scaled scores are finite in float32. IS_CAUSAL: query i sees keys 0
        to i + n_k - n_q.
    A tile has BLOCK_M queries or BLOCK_N keys, and BLOCK_D columns. All three are powers of two, 16 or more;
        BLOCK_D is at least HEAD_DIM. n_q, n_k and HEAD_DIM are any numbers from 1 up. Nothing outside a tensor may be
        touched.
    Stores softmax(scale q k^T) v in o, in o's dtype, and in lse the natural logarithm of the sum of exp(scores). For a
        query that sees no key, o is 0 and lse is -inf. Statistics and accumulator are float32.
    Each program loads its queries once. It loads the tiles of keys and values in which at least one of its queries sees
        a key, once each, and no others.

    >>> from courseware.checks import launched
    >>> q, k, v = np.zeros((1, 2, 4)), np.zeros((1, 3, 4)), np.ones((1, 3, 4))
    >>> sizes = dict(IS_CAUSAL=True, HEAD_DIM=4, BLOCK_M=16, BLOCK_N=16, BLOCK_D=16)
    >>> outputs = {"o_ptr": q.shape, "lse_ptr": (1, 2)}
    >>> arguments = dict(q_ptr=q, k_ptr=k, v_ptr=v, n_q=2, n_k=3, scale=0.5) | sizes
    >>> strides = {"q_ptr": ("stride_qh", "stride_qm"), "k_ptr": ("stride_kh", "stride_kn"),
    ...            "v_ptr": ("stride_vh", "stride_vn"), "o_ptr": ("stride_oh", "stride_om"), "lse_ptr": ("stride_lh",)}
    >>> launched(flash_forward, (1, 1), outputs, strides=strides, **arguments).outputs["lse_ptr"].round(3)
    array([[0.693, 1.099]], dtype=float32)
    """
    start_m = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1).to(tl.int64)  # 64-bit, as the rows below: a tensor may have more than 2^31 elements
    offs_m = start_m + tl.arange(0, BLOCK_M).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask_m = offs_m < n_q
    mask_d = offs_d < HEAD_DIM
    # FA2 Alg. 1, lines 4 and 5
    q_ptrs = q_ptr + head * stride_qh + offs_m[:, None] * stride_qm + offs_d[None, :]
    q = tl.load(q_ptrs, mask=mask_m[:, None] & mask_d[None, :], other=0.0)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    kv_end = n_k
    if IS_CAUSAL:
        kv_end = tl.minimum(tl.maximum(tl.minimum(start_m + BLOCK_M, n_q) + n_k - n_q, 0), n_k)
    # lines 6 to 11
    for start_n in range(0, kv_end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)
        mask_n = offs_n < n_k
        k_ptrs = k_ptr + head * stride_kh + offs_n[:, None] * stride_kn + offs_d[None, :]
        v_ptrs = v_ptr + head * stride_vh + offs_n[:, None] * stride_vn + offs_d[None, :]
        k = tl.load(k_ptrs, mask=mask_n[:, None] & mask_d[None, :], other=0.0)
        v = tl.load(v_ptrs, mask=mask_n[:, None] & mask_d[None, :], other=0.0)
        # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N], times log2(e) for exp2
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
        visible = mask_n[None, :]
        if IS_CAUSAL:
            visible = visible & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)
        scores = tl.where(visible, scores, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(scores, axis=1))
        m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)  # -inf - (-inf) is never computed
        alpha = tl.exp2(m_i - m_ref)
        p = tl.exp2(scores - m_ref[:, None])
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = acc * alpha[:, None]
        # [BLOCK_M, BLOCK_N] @ [BLOCK_N, BLOCK_D]
        acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m_i = m_new
    # lines 12 to 15
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    o = acc / l_safe[:, None]
    o_ptrs = o_ptr + head * stride_oh + offs_m[:, None] * stride_om + offs_d[None, :]
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=mask_m[:, None] & mask_d[None, :])
    lse = tl.where(l_i == 0.0, float("-inf"), (m_i + tl.log2(l_safe)) * 0.6931471805599453)
    tl.store(lse_ptr + head * stride_lh + offs_m, lse, mask=mask_m)


def plain_attention(q, k, v, *, causal=False, scale=None, block_q=32, block_k=32, kernel=flash_forward):
    """(o, lse) for torch tensors [batch, heads, n, head_dim] of one dtype, all with as many heads; scale positive.

    kernel: `flash_forward`, or one of the bug hunt in its place.
    """
    import torch  # not at the top: the kernel is read where torch is missing, too

    (batch, heads, n_q, head_dim), dtype = q.shape, q.dtype
    if dtype == torch.bfloat16 and runtime.mode() == "interpreter":
        q, k, v = q.float(), k.float(), v.float()  # Triton's interpreter multiplies bf16 wrongly
    q, k, v = (x.flatten(0, 1).contiguous() for x in (q, k, v))
    o, lse = torch.empty_like(q), torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    kernel[triton.cdiv(n_q, block_q), batch * heads](
        q, k, v, o, lse, *(stride for x in (q, k, v, o) for stride in x.stride()[:2]), n_q,
        n_q, k.shape[1], head_dim**-0.5 if scale is None else scale, causal, head_dim,
        BLOCK_M=block_q, BLOCK_N=block_k, BLOCK_D=max(16, triton.next_power_of_2(head_dim)), num_stages=1,
    )  # fmt: skip
    return o.to(dtype).unflatten(0, (batch, heads)), lse.unflatten(0, (batch, heads))
