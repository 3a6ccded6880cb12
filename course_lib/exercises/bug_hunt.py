"""Six forward kernels that look right and pass an ordinary test, each wrong in one way, for `08.find_failing_input`.

All are one kernel with one slip each. `source(name)` is what a learner reads, `run` launches a kernel on arrays,
`error_beyond_budget` says whether an input shows that it is wrong.
"""

import functools
import linecache

import numpy as np
import torch

from course_lib import runtime
from course_lib.measure import accuracy

TEMPLATE = """\
@triton.jit
def kernel_{name}(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, n_q, n_k, softmax_scale,
    IS_CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    # q, o: [heads, n_q, HEAD_DIM]; k, v: [heads, n_k, HEAD_DIM]; lse: [heads, n_q]; all contiguous
    start_m, head = tl.program_id(0) * BLOCK_M, tl.program_id(1)
    offs_m, offs_d = start_m + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    mask_m, mask_d = offs_m < n_q, offs_d < HEAD_DIM
    rows = head * n_q + offs_m
    mask = mask_m[:, None] & mask_d[None, :]
    q = tl.load(q_ptr + rows[:, None] * HEAD_DIM + offs_d[None, :], mask=mask, other=0.0)
    scale = softmax_scale * 1.4426950408889634
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    kv_end = n_k
    if IS_CAUSAL:
        kv_end = tl.minimum(tl.maximum(tl.minimum(start_m + BLOCK_M, n_q) + n_k - n_q, 0), n_k)
    for start_n in range(0, kv_end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        places = (head * n_k + offs_n)[:, None] * HEAD_DIM + offs_d[None, :]
        mask_nd = (offs_n < n_k)[:, None] & mask_d[None, :]
        k = tl.load(k_ptr + places, mask=mask_nd, other=0.0)
        v = tl.load(v_ptr + places, mask=mask_nd, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if IS_CAUSAL:
            visible = offs_n[None, :] <= offs_m[:, None] + n_k - n_q
            scores = tl.where(visible, scores, float("-inf"))
        else:
            scores = tl.where((offs_n < n_k)[None, :], scores, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(scores, axis=1))
        m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(scores - m_ref[:, None])
        alpha = tl.exp2(m_i - m_ref)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = acc * alpha[:, None]
        acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m_i = m_new
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    o = (acc / l_safe[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + rows[:, None] * HEAD_DIM + offs_d[None, :], o, mask=mask)
    lse = tl.where(l_i == 0.0, float("-inf"), (m_i + tl.log2(l_safe)) * 0.6931471805599453)
    tl.store(lse_ptr + rows, lse, mask=mask_m)
"""

# Kernel -> the slip: text of the template and what stands there instead.
SLIPS = {
    # FlashAttention-1's form, as it is widely copied: each tile from its own max. A tile that is hidden from a row
    # has the max -inf, and -inf - -inf is NaN.
    "A": {
        "        m_ref = tl.where(m_new == float(\"-inf\"), 0.0, m_new)\n"
        "        p = tl.exp2(scores - m_ref[:, None])\n"
        "        alpha = tl.exp2(m_i - m_ref)\n"
        "        l_i = l_i * alpha + tl.sum(p, axis=1)\n":
        "        m_ij = tl.max(scores, axis=1)\n"
        "        p = tl.exp2(scores - m_ij[:, None])\n"
        "        alpha = tl.exp2(m_i - m_new)\n"
        "        beta = tl.exp2(m_ij - m_new)\n"
        "        p = p * beta[:, None]\n"
        "        l_i = l_i * alpha + tl.sum(p, axis=1)\n",
    },
    # The last tile's loads are masked, its scores are not: a padded key has the score 0, and gets weight.
    "B": {
        "        else:\n"
        "            scores = tl.where((offs_n < n_k)[None, :], scores, float(\"-inf\"))\n": "",
    },
    # Aligned at the top left.
    "C": {
        "visible = offs_n[None, :] <= offs_m[:, None] + n_k - n_q":
        "visible = (offs_n[None, :] <= offs_m[:, None]) & (offs_n < n_k)[None, :]",
        "tl.minimum(tl.maximum(tl.minimum(start_m + BLOCK_M, n_q) + n_k - n_q, 0), n_k)":
        "tl.minimum(start_m + BLOCK_M, n_k)",
    },
    # The accumulator in the inputs' dtype.
    "D": {
        "acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)": "acc = tl.zeros([BLOCK_M, BLOCK_D], q.dtype)",
        "acc = acc * alpha[:, None]": "acc = (acc * alpha[:, None]).to(q.dtype)",
        "acc += tl.dot(p.to(v.dtype), v, input_precision=\"ieee\")":
        "acc += tl.dot(p.to(v.dtype), v, input_precision=\"ieee\").to(acc.dtype)",
        "(acc / l_safe[:, None])": "(acc.to(tl.float32) / l_safe[:, None])",
    },
    # The scale from the padded head dimension.
    "E": {"softmax_scale * 1.4426950408889634": "BLOCK_D ** -0.5 * 1.4426950408889634"},
    # The running max from 0: strongly negative scores all vanish.
    "F": {"m_i = tl.full([BLOCK_M], float(\"-inf\"), tl.float32)": "m_i = tl.zeros([BLOCK_M], tl.float32)"},
}  # fmt: skip
NAMES = tuple(SLIPS)


def source(name, precision="ieee"):
    """The source of kernel `name`, "A" to "F"; "right" is the one without a slip. ValueError for another.

    precision: of fp32 products, `tl.dot`'s input_precision; None leaves it to `tl.dot`.
    """
    if name not in (*NAMES, "right"):
        raise ValueError(f"there is no kernel {name!r}; there are {', '.join(NAMES)}")
    text = TEMPLATE.replace("{name}", name)
    for old, new in SLIPS.get(name, {}).items():
        if text.count(old) != 1:
            raise ValueError(f"{name}: {old!r} is there {text.count(old)} times, not once")
        text = text.replace(old, new)
    if precision != "ieee":
        text = text.replace(', input_precision="ieee"', f', input_precision="{precision}"' if precision else "")
    return text


@functools.cache
def _kernel(name, precision):
    import triton
    import triton.language as tl

    text, file = source(name, precision), f"<kernel {name}, {precision}>"
    # Triton reads a kernel's source, and looks for it where Python looks.
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    namespace = {"triton": triton, "tl": tl, "__name__": __name__}
    exec(compile(text, file, "exec"), namespace)
    return namespace[f"kernel_{name}"]


def run(name, q, k, v, causal, block_q, block_k, precision="ieee"):
    """Launch kernel `name` on NumPy arrays q [heads, n_q, d], k and v [heads, n_k, d]; returns arrays (o, lse)."""
    device = runtime.device()
    q, k, v = (torch.from_numpy(np.ascontiguousarray(x)).to(device) for x in (q, k, v))
    heads, n_q, d = q.shape
    o = torch.full_like(q, float("nan"))
    lse = torch.full((heads, n_q), float("nan"), dtype=torch.float32, device=device)
    block_d = max(16, 1 << (d - 1).bit_length())
    with np.errstate(all="ignore"):
        _kernel(name, precision)[(-(-n_q // block_q), heads)](
            q, k, v, o, lse, n_q, k.shape[1], d**-0.5,
            IS_CAUSAL=causal, HEAD_DIM=d, BLOCK_M=block_q, BLOCK_N=block_k, BLOCK_D=block_d,
        )  # fmt: skip
    return o.cpu().numpy(), lse.cpu().numpy()


def error_beyond_budget(name, q, k, v, causal, block_q, block_k):
    """What is wrong with kernel `name` on this input, as a sentence; None if it keeps the error budget."""
    o, lse = (torch.from_numpy(x)[None] for x in run(name, q, k, v, causal, block_q, block_k))
    try:
        accuracy.check_attention((o, lse), *(torch.from_numpy(x)[None] for x in (q, k, v)), causal=causal)
    except AssertionError as error:
        return str(error)
    return None
