"""Building blocks of the attention kernels. Tiles are named as in the FlashAttention-2 paper."""

import triton
import triton.language as tl

from course_lib import runtime

INTERPRETED = tl.constexpr(runtime.mode() == "interpreter")
# exp(x) = exp2(x * log2(e)): GPUs have an instruction for exp2, so scores are kept in units of log2(e).
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def online_softmax_update(
    m_i, l_i, acc, scores, values, scale_log2, MAY_BE_EMPTY: tl.constexpr, INPUT_PRECISION: tl.constexpr
):
    """Fold one tile of keys into the running state (m, l, acc): FA2 Alg. 1, lines 9 and 10.

    The same function as `course_lib.reference.softmax.online_softmax_update`, with the same first five
    arguments, on tiles: m_i, l_i fp32 [BLOCK_M]; acc fp32 [BLOCK_M, BLOCK_D]; scores fp32
    [BLOCK_M, BLOCK_N], not yet scaled, -inf where a key is invisible; values [BLOCK_N, BLOCK_D].

    scale_log2 is the softmax scale times log2(e), positive. Multiplying inside `exp2` lets the compiler fuse
    scale and subtraction into one instruction per score. m_i is in scaled base-2 units.
    MAY_BE_EMPTY: some row may have no visible key so far, and -inf - (-inf) must not be evaluated.
    INPUT_PRECISION: see `configs.dot_precision`.
    """
    m_new = tl.maximum(m_i, tl.max(scores, axis=1) * scale_log2)
    m_ref = tl.where(m_new == float("-inf"), 0.0, m_new) if MAY_BE_EMPTY else m_new
    p = tl.exp2(scores * scale_log2 - m_ref[:, None])
    alpha = tl.exp2(m_i - m_ref)
    l_i = l_i * alpha + tl.sum(p, axis=1)
    acc = acc * alpha[:, None]
    # [BLOCK_M, BLOCK_N] @ [BLOCK_N, BLOCK_D]
    acc = tl.dot(p.to(values.dtype), values, acc, input_precision=INPUT_PRECISION)
    return m_new, l_i, acc


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
