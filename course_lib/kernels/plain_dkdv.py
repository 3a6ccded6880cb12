"""dK and dV of FlashAttention-2's backward (Dao 2023, Alg. 2) as lesson 09 teaches it, and as you write it there.

`plain_backward.py` launches this kernel with the other two.
"""

from course_lib.language import tl, triton


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
