"""What the attention kernels share on the device: the online-softmax update, tiles in and out, causal masks.

Tiles are named as in the FlashAttention-2 paper. Causal masks, the jitted twins of `course_lib.masks`, are aligned
bottom-right: query i sees the keys j <= i + n_k - n_q, so the last query sees every key.
"""

import triton
import triton.language as tl

from course_lib import runtime

INTERPRETED = tl.constexpr(runtime.mode() == "interpreter")
# exp(x) = exp2(x * log2(e)): GPUs have an instruction for exp2, so scores are kept in units of log2(e).
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def softmax_weights(m_i, l_i, scores, scale_log2, MAY_BE_EMPTY: tl.constexpr):
    """(m_i, l_i, alpha, p) with one more tile of scores: FA2 Alg. 1, line 9. Arguments as `online_softmax_update`'s.

    p: exp(scores - m), fp32 [BLOCK_M, BLOCK_N]. alpha: what the accumulator is multiplied by before p's values join it.
    """
    m_new = tl.maximum(m_i, tl.max(scores, axis=1))
    m_ref = tl.where(m_new == float("-inf"), 0.0, m_new) if MAY_BE_EMPTY else m_new
    # Scaled after the subtraction. In scores * scale_log2 - m * scale_log2, the compiler fuses the first product into
    # the subtraction: then one of the two is rounded and the other is not. From scores of 3e9 on, they can differ by
    # more than 128 for the largest score, whose p is inf.
    p = tl.exp2((scores - m_ref[:, None]) * scale_log2)
    alpha = tl.exp2((m_i - m_ref) * scale_log2)
    return m_new, l_i * alpha + tl.sum(p, axis=1), alpha, p


@triton.jit
def logsumexp(m_i, l_i, scale):
    """The natural logarithm of a row's sum of exp(scores), scaled, from its state; -inf for a row without keys."""
    # In units of log2(e), a score of 3e38 would be beyond the largest float.
    lse = m_i * scale + tl.log2(tl.where(l_i == 0.0, 1.0, l_i)) * LN_2
    return tl.where(l_i == 0.0, float("-inf"), lse)


@triton.jit
def online_softmax_update(
    m_i, l_i, acc, scores, values, scale_log2, MAY_BE_EMPTY: tl.constexpr, INPUT_PRECISION: tl.constexpr
):
    """Fold one tile of keys into the running state (m, l, acc): FA2 Alg. 1, lines 9 and 10.

    The same function as `course_lib.reference.softmax.online_softmax_update`, with the same first five
    arguments, on tiles: m_i, l_i fp32 [BLOCK_M]; acc fp32 [BLOCK_M, BLOCK_D]; scores fp32
    [BLOCK_M, BLOCK_N], not yet scaled, -inf where a key is invisible; values [BLOCK_N, BLOCK_D].

    scale_log2 is the softmax scale times log2(e), positive. m_i is not scaled either, like the scores.
    MAY_BE_EMPTY: some row may have no visible key so far, and -inf - (-inf) must not be evaluated.
    INPUT_PRECISION: see `configs.dot_precision`.
    """
    m_i, l_i, alpha, p = softmax_weights(m_i, l_i, scores, scale_log2, MAY_BE_EMPTY)
    acc = acc * alpha[:, None]
    # [BLOCK_M, BLOCK_N] @ [BLOCK_N, BLOCK_D]
    acc = tl.dot(p.to(values.dtype), values, acc, input_precision=INPUT_PRECISION)
    return m_i, l_i, acc


@triton.jit
def weights_of(log2_p):
    """exp2(log2_p), at most 1: P, as the backward recomputes it from scores and lse.

    Unrounded, log2_p is at most 0. But lse is rounded as coarsely as the largest score: without the bound, P could be
    inf for huge scores.
    """
    return tl.exp2(tl.minimum(log2_p, 0.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def rounded(x):
    """x, rounded to fp32. A product would otherwise be fused, unrounded, into a subtraction that follows it."""
    return x + 0.0


@triton.jit
def add_sink(m_i, l_i, sink, scale):
    """(m_i, l_i, alpha) with one more key, whose score is sink and whose value is 0. m_i comes out scaled."""
    m_i = rounded(m_i * scale)
    m_new = tl.maximum(m_i, sink)
    m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)
    alpha = tl.exp2((m_i - m_ref) * LOG2_E)
    return m_new, l_i * alpha + tl.exp2((sink - m_ref) * LOG2_E), alpha


@triton.jit
def upcast_if_interpreted(x):
    """A tile that `tl.dot` multiplies correctly: in the interpreter, bf16 becomes fp32.

    Triton's interpreter multiplies the raw bits of bf16 tiles (every version from 3.4 to 3.9). What a GPU makes of bf16
    can therefore be tested on a GPU only.
    """
    if INTERPRETED:
        if x.dtype == tl.bfloat16:
            x = x.to(tl.float32)
    return x


@triton.jit
def round_to(x, dtype: tl.constexpr):
    """An fp32 tile rounded to the nearest number of dtype. Triton's interpreter truncates to bf16; a GPU rounds."""
    if INTERPRETED:
        if dtype == tl.bfloat16:
            bits = x.to(tl.uint32, bitcast=True)
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
            x = bits.to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def tile_ptrs(ptr, start, stride_row, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):
    """Pointers to rows start to start + BLOCK - 1 of a head: [BLOCK, BLOCK_D]. ptr: the first element of its row 0.

    The first row's offset is 64-bit, because tensors may have more than 2^31 elements; offsets inside the tile are
    32-bit, which is cheaper (`launch.MAX_ROW_STRIDE` makes sure that they fit).
    """
    offsets = tl.arange(0, BLOCK)[:, None] * stride_row + tl.arange(0, BLOCK_D)[None, :]
    return ptr + tl.cast(start, tl.int64) * stride_row + offsets


@triton.jit
def load_tile(
    ptr, desc, batch, head, start, n_rows, stride_row,
    MASK_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Rows start to start + BLOCK - 1 of one head: [BLOCK, BLOCK_D], ready for `tl.dot`, zeros outside the tensor.

    ptr: the first element of the head's row 0. desc: a descriptor of the whole tensor (`launch.descriptor`), of which
    batch and head name the head; or None, and the tile is loaded by ptr. MASK_ROWS: the tile may end beyond n_rows. A
    descriptor needs no mask, since it knows where the tensor ends.
    """
    if desc is not None:
        tile = desc.load([tl.cast(batch, tl.int32), tl.cast(head, tl.int32), start, 0]).reshape(BLOCK, BLOCK_D)
    else:
        ptrs = tile_ptrs(ptr, start, stride_row, BLOCK, BLOCK_D)
        mask_d = (tl.arange(0, BLOCK_D) < HEAD_DIM)[None, :]
        if MASK_ROWS:
            mask_rows = (start + tl.arange(0, BLOCK) < n_rows)[:, None]
            tile = tl.load(ptrs, mask=mask_rows & mask_d, other=0.0)
        elif HEAD_DIM == BLOCK_D:
            tile = tl.load(ptrs)
        else:
            tile = tl.load(ptrs, mask=mask_d, other=0.0)
    return upcast_if_interpreted(tile)


@triton.jit
def store_tile(
    ptr, tile, start, n_rows, stride_row,
    MASK_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write an fp32 tile [BLOCK, BLOCK_D], rounded to ptr's dtype, as rows start to start + BLOCK - 1 of one head."""
    ptrs = tile_ptrs(ptr, start, stride_row, BLOCK, BLOCK_D)
    tile = round_to(tile, ptr.dtype.element_ty)
    mask_d = (tl.arange(0, BLOCK_D) < HEAD_DIM)[None, :]
    if MASK_ROWS:
        mask_rows = (start + tl.arange(0, BLOCK) < n_rows)[:, None]
        tl.store(ptrs, tile, mask=mask_rows & mask_d)
    elif HEAD_DIM == BLOCK_D:
        tl.store(ptrs, tile)
    else:
        tl.store(ptrs, tile, mask=mask_d)


@triton.jit
def visible(offs_m, offs_n, n_q, n_k, IS_CAUSAL: tl.constexpr):
    """Whether query offs_m sees key offs_n; offsets that broadcast, as [BLOCK_M, 1] and [1, BLOCK_N] do.

    offs_m must lie below n_q where IS_CAUSAL: the comparison then hides the keys beyond n_k as well.
    """
    if IS_CAUSAL:
        return offs_n <= offs_m + n_k - n_q
    else:
        return offs_n < n_k


@triton.jit
def kv_loop_bounds(start_m, n_q, n_k, IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(full_end, kv_end): of the keys that a query tile visits, [0, full_end) need no mask, [full_end, kv_end) do.

    full_end is a multiple of BLOCK_N. start_m: the tile's first query.
    """
    if IS_CAUSAL:
        first_row_sees = start_m + 1 + n_k - n_q  # a number of keys, if positive
        last_row = tl.minimum(start_m + BLOCK_M, n_q)
        kv_end = tl.minimum(tl.maximum(last_row + n_k - n_q, 0), n_k)
        full_end = tl.minimum(tl.maximum(first_row_sees, 0), n_k) // BLOCK_N * BLOCK_N
    else:
        kv_end = n_k
        full_end = n_k // BLOCK_N * BLOCK_N
    return full_end, kv_end


@triton.jit
def q_loop_bounds(start_n, n_q, n_k, IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(q_start, full_start): of the queries that a key tile visits, [q_start, full_start) need a causal mask.

    Queries from full_start on see every key of the tile. Both are multiples of BLOCK_M, and full_start may lie beyond
    n_q: clamped here, it would no longer be known as a multiple where the loop without a mask starts, which then loads
    more slowly. start_n: the tile's first key.
    """
    if IS_CAUSAL:
        first_seen_by = tl.maximum(start_n + n_q - n_k, 0)
        last_key = tl.minimum(start_n + BLOCK_N, n_k) - 1
        seen_whole_by = tl.maximum(last_key + n_q - n_k, 0)
        q_start = first_seen_by // BLOCK_M * BLOCK_M
        full_start = tl.cdiv(seen_whole_by, BLOCK_M) * BLOCK_M
    else:
        q_start = 0
        full_start = 0
    return q_start, full_start
