"""FlashAttention-2 forward (Dao 2023, Alg. 1) in Triton.

One program computes BLOCK_M rows of the output of one head. It loads its queries once, streams the keys and
values past them in tiles of BLOCK_N, and writes its output once (a causal tile that meets a NaN begins again). Nothing
of size N x N exists anywhere.

Reading order: the tiles one query tile visits, the loop over tiles, the output, the kernel, configurations, launch.
"""

import functools
import itertools

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from course_lib import runtime
from course_lib.kernels.launch import MOST_REMEMBERED, Launch, kind
from course_lib.kernels.primitives import LN_2, LOG2_E, narrow, online_softmax_update, widen

NO_KEY = tl.constexpr(2**31 - 1)  # after every key there is
LONGEST_AXIS = 65535  # of a CUDA grid, but for its first, which takes 2^31 - 1


@triton.jit
def kv_loop_bounds(start_m, n_q, n_k, IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Key tiles of one query tile: rows [0, full_end) need no mask, rows [full_end, kv_end) need one.

    Causal masks are aligned bottom-right: query i sees the keys j <= i + n_k - n_q.
    """
    if IS_CAUSAL:
        first_visible = start_m + 1 + n_k - n_q  # keys that the tile's first query sees, if positive
        last_row = tl.minimum(start_m + BLOCK_M, n_q)
        kv_end = tl.minimum(tl.maximum(last_row + n_k - n_q, 0), n_k)
        full_end = tl.minimum(tl.maximum(first_visible, 0), n_k) // BLOCK_N * BLOCK_N
    else:
        kv_end = n_k
        full_end = n_k // BLOCK_N * BLOCK_N
    return full_end, kv_end


@triton.jit
def set_aside_nonfinite(v, offs_n, first_nonfinite):
    """Keep a NaN or inf of a value row away from the queries that do not see that row.

    A masked score gives p = 0 exactly, but 0 * NaN is NaN: the matmul would carry it into every row of the
    tile. So the matmul gets zeros in such places, and first_nonfinite [BLOCK_D] remembers for each column the
    first key that had one. A causal query sees a prefix of the keys, so that one number tells which queries see it.
    """
    # x - x is 0 for finite x and NaN for the rest.
    is_finite = (v - v) == 0.0
    first_here = tl.min(tl.where(is_finite, NO_KEY, offs_n[:, None]), axis=0)
    return tl.where(is_finite, v, 0.0), tl.minimum(first_nonfinite, first_here)


@triton.jit
def attend(
    m_i, l_i, acc, first_nonfinite, q, k_ptr, v_ptr, k_desc, v_desc, index_b, index_h, start, end,
    stride_kn, stride_kd, stride_vn, stride_vd, n_k, last_key_seen, scale_log2,
    MASKED: tl.constexpr, IS_CAUSAL: tl.constexpr, CONTAIN: tl.constexpr, TMA: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """FA2 Alg. 1, lines 6 to 11: the loop over key tiles [start, end), with or without a mask.

    TMA: tiles come by descriptor, which knows where the tensor ends and gives zeros beyond; else by pointers.
    CONTAIN: set NaN and inf of the values aside, see `set_aside_nonfinite`.
    """
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < HEAD_DIM
    # A tile's first row is found in 64 bits, places inside the tile in 32: large tensors, cheap arithmetic.
    offs_k = tl.arange(0, BLOCK_N)[:, None] * stride_kn + offs_d[None, :] * stride_kd
    offs_v = tl.arange(0, BLOCK_N)[:, None] * stride_vn + offs_d[None, :] * stride_vd
    for start_n in range(start, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        if TMA:
            k = k_desc.load([index_b, index_h, start_n, 0]).reshape(BLOCK_N, BLOCK_D)
            v = v_desc.load([index_b, index_h, start_n, 0]).reshape(BLOCK_N, BLOCK_D)
        else:
            k_ptrs = k_ptr + tl.cast(start_n, tl.int64) * stride_kn + offs_k
            v_ptrs = v_ptr + tl.cast(start_n, tl.int64) * stride_vn + offs_v
            if MASKED:
                k = tl.load(k_ptrs, mask=(offs_n < n_k)[:, None] & mask_d[None, :], other=0.0)
                v = tl.load(v_ptrs, mask=(offs_n < n_k)[:, None] & mask_d[None, :], other=0.0)
            elif HEAD_DIM == BLOCK_D:
                k = tl.load(k_ptrs)
                v = tl.load(v_ptrs)
            else:
                k = tl.load(k_ptrs, mask=mask_d[None, :], other=0.0)
                v = tl.load(v_ptrs, mask=mask_d[None, :], other=0.0)
        k, v = widen(k), widen(v)

        # [BLOCK_M, BLOCK_D] @ [BLOCK_D, BLOCK_N]
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if MASKED:
            if IS_CAUSAL:
                visible = offs_n[None, :] <= last_key_seen[:, None]  # no query of the tensor sees beyond the last key
            else:
                visible = (offs_n < n_k)[None, :]
            scores = tl.where(visible, scores, float("-inf"))
        if CONTAIN:
            v, first_nonfinite = set_aside_nonfinite(v, offs_n, first_nonfinite)
        m_i, l_i, acc = online_softmax_update(m_i, l_i, acc, scores, v, scale_log2, MAY_BE_EMPTY=MASKED and IS_CAUSAL)
    return m_i, l_i, acc, first_nonfinite


@triton.jit
def write_output(
    m_i, l_i, acc, o_ptr, lse_ptr, stride_om, stride_od, offs_m, n_q, mask_md,
    STORE_LSE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """FA2 Alg. 1, lines 12 to 14: divide once, write O_i and the log-sum-exp.

    o_ptr: of the tile's first row; lse_ptr: of the head's. A row without keys has l = 0: its output is 0 and its
    log-sum-exp -inf.
    """
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    o = narrow(acc * (1.0 / l_safe)[:, None], o_ptr.dtype.element_ty)
    tl.store(o_ptr + tl.arange(0, BLOCK_M)[:, None] * stride_om + tl.arange(0, BLOCK_D)[None, :] * stride_od,
             o, mask=mask_md)  # fmt: skip
    if STORE_LSE:
        # m_i is in units of log2(e); lse is a natural logarithm.
        lse = tl.where(l_i == 0.0, float("-inf"), (m_i + tl.log2(l_safe)) * LN_2)
        tl.store(lse_ptr + offs_m, lse, mask=offs_m < n_q)


@triton.jit(do_not_specialize=["n_q", "n_k"])
def flash_forward_kernel(
    q_ptr, k_ptr, v_ptr, k_desc, v_desc, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_om, stride_od,
    n_heads, n_q, n_k, scale_log2,
    GROUP_SIZE: tl.constexpr, Q_SIGN: tl.constexpr, IS_CAUSAL: tl.constexpr, STORE_LSE: tl.constexpr,
    TMA: tl.constexpr, NO_Q_TAIL: tl.constexpr, NO_K_TAIL: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (i, h, b) computes query tile i, or causal the i-th from the end, of head h of batch b.

    q, o: [batch, heads, n_q, HEAD_DIM]; k, v: [batch, heads / GROUP_SIZE, n_k, HEAD_DIM].

    lse: fp32 [batch, heads, n_q], contiguous, or None. scale_log2: positive. Q_SIGN: 1, -1 or 0, times q.
    NO_Q_TAIL, NO_K_TAIL: tiles of queries, or of keys, end where the tensor ends, and need no mask.
    """
    # A grid of three axes: tile, head and batch from one number would take two divisions.
    pid_m, index_h, index_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if IS_CAUSAL:
        # The last query tiles see the most keys. Started first, they do not run on alone at the end.
        pid_m = tl.num_programs(0) - 1 - pid_m
    # 64 bits before these multiply a stride: a tensor may have more than 2^31 elements.
    batch, head = tl.cast(index_b, tl.int64), tl.cast(index_h, tl.int64)

    start_m = pid_m * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    if NO_Q_TAIL and HEAD_DIM == BLOCK_D:
        mask_md = tl.full([BLOCK_M, BLOCK_D], True, tl.int1)
    else:
        mask_md = (offs_m < n_q)[:, None] & (offs_d < HEAD_DIM)[None, :]

    # FA2 Alg. 1, lines 4 and 5: load Q_i, initialise the state.
    q_base = q_ptr + batch * stride_qb + head * stride_qh + tl.cast(start_m, tl.int64) * stride_qm
    q = tl.load(q_base + tl.arange(0, BLOCK_M)[:, None] * stride_qm + offs_d[None, :] * stride_qd,
                mask=mask_md, other=0.0)  # fmt: skip
    q = widen(q)
    if Q_SIGN != 1:
        q = (q * Q_SIGN).to(q.dtype)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    first_nonfinite = tl.full([BLOCK_D], NO_KEY, tl.int32)

    k_base = k_ptr + batch * stride_kb + head // GROUP_SIZE * stride_kh
    v_base = v_ptr + batch * stride_vb + head // GROUP_SIZE * stride_vh
    last_key_seen = offs_m + n_k - n_q
    full_end, kv_end = kv_loop_bounds(start_m, n_q, n_k, IS_CAUSAL, BLOCK_M, BLOCK_N)
    m_i, l_i, acc, first_nonfinite = attend(
        m_i, l_i, acc, first_nonfinite, q, k_base, v_base, k_desc, v_desc, index_b,
        index_h // GROUP_SIZE, 0, full_end, stride_kn, stride_kd, stride_vn, stride_vd, n_k, last_key_seen,
        scale_log2, MASKED=False, IS_CAUSAL=IS_CAUSAL, CONTAIN=False, TMA=TMA, HEAD_DIM=HEAD_DIM, BLOCK_N=BLOCK_N,
        BLOCK_D=BLOCK_D,
    )  # fmt: skip
    if IS_CAUSAL or not NO_K_TAIL:
        m_i, l_i, acc, first_nonfinite = attend(
            m_i, l_i, acc, first_nonfinite, q, k_base, v_base, k_desc, v_desc, index_b,
            index_h // GROUP_SIZE, full_end, kv_end, stride_kn, stride_kd, stride_vn, stride_vd, n_k,
            last_key_seen, scale_log2, MASKED=True, IS_CAUSAL=IS_CAUSAL, CONTAIN=False, TMA=TMA, HEAD_DIM=HEAD_DIM,
            BLOCK_N=BLOCK_N, BLOCK_D=BLOCK_D,
        )  # fmt: skip
    o_base = o_ptr + batch * stride_ob + head * stride_oh + tl.cast(start_m, tl.int64) * stride_om
    lse_base = lse_ptr
    if STORE_LSE:
        lse_base += (batch * n_heads + head) * n_q
    write_output(
        m_i, l_i, acc, o_base, lse_base, stride_om, stride_od, offs_m, n_q, mask_md,
        STORE_LSE=STORE_LSE, BLOCK_M=BLOCK_M, BLOCK_D=BLOCK_D,
    )  # fmt: skip
    if IS_CAUSAL:
        # A NaN or inf among the values may have reached rows that do not see it: then begin again. To look for one in
        # every tile of values halved the speed on an H100 (lesson 10's worklog); the sum of a result that is on its way
        # already takes next to nothing. A sum that overflows costs a second attempt, and no more.
        total = tl.sum(acc)
        if (full_end < kv_end) & (total - total != 0.0):
            m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
            l_i = tl.zeros([BLOCK_M], tl.float32)
            acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
            m_i, l_i, acc, first_nonfinite = attend(
                m_i, l_i, acc, first_nonfinite, q, k_base, v_base, k_desc, v_desc, index_b,
                index_h // GROUP_SIZE, 0, kv_end, stride_kn, stride_kd, stride_vn, stride_vd, n_k,
                last_key_seen, scale_log2, MASKED=True, IS_CAUSAL=True, CONTAIN=True, TMA=False, HEAD_DIM=HEAD_DIM,
                BLOCK_N=16, BLOCK_D=BLOCK_D,
            )  # fmt: skip
            acc = tl.where(last_key_seen[:, None] >= first_nonfinite[None, :], float("nan"), acc)
            write_output(
                m_i, l_i, acc, o_base, lse_base, stride_om, stride_od, offs_m, n_q, mask_md,
                STORE_LSE=STORE_LSE, BLOCK_M=BLOCK_M, BLOCK_D=BLOCK_D,
            )  # fmt: skip


def padded(head_dim):
    """BLOCK_D: the power of two, 16 at least, that holds head_dim. Plain Python: Triton's own takes 3 microseconds."""
    return max(16, 1 << (head_dim - 1).bit_length())


def default_config(dtype, head_dim, causal, capability, n_k=4096, tma=False):
    """Shipped (BLOCK_M, BLOCK_N, num_warps, num_stages).

    dtype: torch dtype; head_dim: 1 to 256; capability: (major, minor) of the GPU, None in the interpreter;
    tma: whether keys and values come by descriptor. Those of 9.0 were timed on an H100, and are at N = 4096 and
    head_dim 64 and 128 the fastest of a sweep or within 3 % of it; the others are the largest tiles whose loops the
    compiler keeps in registers.
    """
    block_d = padded(head_dim)
    if capability is None:
        # The interpreter's time is per operation executed, whatever the tile's size.
        return 128, 128, 4, 1
    if dtype == torch.float32:
        # IEEE products use no tensor cores.
        if block_d <= 64:
            return (32, 32, 8, 1) if block_d <= 32 else (64, 32, 8, 1)
        if block_d == 128:
            return (32, 16, 8, 1) if capability[0] in (9, 10) else (32, 16, 4, 1)
        return 16, 16, 8, 1
    if capability < (8, 0):
        # No tensor-core code from this compiler, so products live in registers: small tiles on many threads.
        return 32, 16, 8, 1
    if capability[0] == 9 and tma:
        # A long stream of keys pays for large tiles, which take long to fill; a causal query sees half of them.
        is_long = (n_k // 2 if causal else n_k) > 1536
        if block_d <= 32:
            return (64, 64, 4, 3) if causal else (64, 128, 4, 3)
        if block_d == 64:
            return (64, 128, 4, 2) if n_k > 2048 or not causal else (64, 64, 4, 3)
        if block_d == 128:
            return (128, 128, 8, 3) if is_long or head_dim < 128 else (64, 64, 4, 3)
        return (64, 64, 4, 3) if head_dim == 256 else (128, 64, 8, 2)
    if capability[0] == 9:
        if block_d <= 128:
            return (128, 64, 8, 3) if causal and block_d == 128 else (64, 64, 4, 3)
        return (128, 32, 8, 2) if causal else (128, 64, 8, 2)
    if capability[0] == 10:
        if block_d <= 128:
            return 128, 64, 8, 3 if block_d <= 64 else 2
        return 64, 32, 8, 2
    # 8.0, and the 99 KB a block of 8.6, 8.9 and 12.0.
    if block_d <= 64:
        return 128, 64, 8, 2
    if block_d == 128:
        return (128, 64, 8, 2) if head_dim == 128 and not causal else (64, 32, 4, 2)
    return 64, 32, 8, 2


def takes_descriptors(capability, *kinds):
    """Whether the kernel fetches tiles by tensor descriptor; kinds: of tensors [batch, heads, seq, d], see `kind`.

    That needs a GPU with a unit for it (from 9.0 on), rows that begin at multiples of 16 bytes, and, for the
    descriptors take time to make, rows enough to pay for them.
    """
    if capability is None or capability < (9, 0):
        return False
    for x in kinds:
        starts = x.offset, *(stride * x.dtype.itemsize for stride in x.strides[:3])
        if x.shape[2] < 512 or any(start % 16 for start in starts) or 0 in x.strides:
            return False
    return True


def descriptor(x, rows):
    """Of x [batch, heads, seq, d] in tiles of one head's rows, or None for None rows."""
    return TensorDescriptor(x, x.shape, x.stride(), [1, 1, rows, padded(x.shape[3])]) if rows else None


def masks_whole_tiles(block_m):
    """Whether Q and O are masked although every tile lies inside them.

    With 128 queries they are. Without that mask the loop is compiled otherwise, and was a slower one where it was
    measured: full mask, fp16, head_dim 128, an H100 (lesson 10's worklog, "no mask on Q").
    """
    return block_m >= 128


@functools.lru_cache(MOST_REMEMBERED)
def _plan(q, k, v, o, causal, scale, store_lse, config, tma, mask_q):
    """(Launch, rows of a tile of keys if they come by descriptor else None) for tensors of these kinds.

    (None, None) for more heads or a larger batch than one grid has room for.
    """
    batch, n_heads, n_q, head_dim = q.shape
    if max(batch, n_heads) > LONGEST_AXIS:
        return None, None
    _, n_kv_heads, n_k, _ = k.shape
    capability = runtime.capability(q.device)
    if tma is None:
        tma = takes_descriptors(capability, k, v)
    block_m, block_n, num_warps, num_stages = config or default_config(q.dtype, head_dim, causal, capability, n_k, tma)
    if mask_q is None:
        mask_q = masks_whole_tiles(block_m)
    # The kernel takes a positive scale; a negative or zero one moves into q, exactly.
    q_sign = 1 if scale > 0 else -1 if scale < 0 else 0
    scale_log2 = (abs(scale) or 1.0) * LOG2_E.value
    launch = Launch(
        flash_forward_kernel, (-(-n_q // block_m), n_heads, batch),
        *q.strides, *k.strides, *v.strides, *o.strides,
        n_heads, n_q, n_k, scale_log2,
        GROUP_SIZE=n_heads // n_kv_heads, Q_SIGN=q_sign, IS_CAUSAL=causal, STORE_LSE=store_lse,
        TMA=tma, NO_Q_TAIL=n_q % block_m == 0 and not mask_q, NO_K_TAIL=n_k % block_n == 0, HEAD_DIM=head_dim,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=padded(head_dim), num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return launch, block_n if tma else None


def _launch(q, k, v, o, lse, *how):
    launch, rows = _plan(kind(q), kind(k), kind(v), kind(o), *how)
    if launch is not None:
        launch(q, k, v, descriptor(k, rows), descriptor(v, rows), o, lse)
    else:
        for part in _parts(q, k, v, o, lse):
            _launch(*part, *how)


def _parts(q, k, v, o, lse):
    """[(q, k, v, o, lse)] of heads and batches as many as a grid has room for."""
    batch, n_heads = q.shape[:2]
    group_size = n_heads // k.shape[1]
    # Whole groups, or of one group what has room.
    step = LONGEST_AXIS // group_size * group_size or LONGEST_AXIS
    within = n_heads if group_size <= LONGEST_AXIS else group_size
    spans = [(h, min(h + step, g + within)) for g in range(0, n_heads, within) for h in range(g, g + within, step)]
    # Heads are parted within one batch, so that lse's part is contiguous, too.
    batches = LONGEST_AXIS if len(spans) == 1 else 1
    parts = []
    for b, (h, end) in itertools.product(range(0, batch, batches), spans):
        some, heads = slice(b, b + batches), slice(h, end)
        kv_heads = slice(h // group_size, (end - 1) // group_size + 1)
        lse_part = None if lse is None else lse[some, heads]
        parts.append((q[some, heads], k[some, kv_heads], v[some, kv_heads], o[some, heads], lse_part))
    return parts


def flash_forward(q, k, v, *, causal, scale, store_lse, config=None, tma=None, mask_q=None):
    """Launch the forward kernel on checked inputs; returns (o, lse), lse None unless store_lse.

    q [batch, heads, n_q, d], k and v [batch, kv_heads, n_k, d], last dimension contiguous, one dtype.
    config: (BLOCK_M, BLOCK_N, num_warps, num_stages), default `default_config`. tma: whether k and v come by
    descriptor, default `takes_descriptors`. mask_q: whether tiles of Q and O that end with the queries are masked, too,
    default `masks_whole_tiles`.
    """
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if store_lse else None
    if o.numel() == 0:
        return o, lse
    _launch(q, k, v, o, lse, causal, scale, store_lse, config, tma, mask_q)
    return o, lse
