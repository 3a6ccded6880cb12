"""Six forward kernels that look right and pass an ordinary test, each wrong in one way, for lesson 08.

Each is lesson 08's kernel with one mistake. `source(name)` is what a learner reads, `run` launches a kernel on arrays,
and `error_beyond_budget` says whether an input shows that the kernel is wrong.
"""

import functools
import inspect
import re

import numpy as np

from course_lib import runtime
from course_lib.editing import with_edits

# Kernel -> its mistake, as edits of the right kernel's source.
MISTAKES = {
    # FlashAttention-1's update, as it is widely copied: each tile is measured from its own max. Where a tile is hidden
    # from a row, that max is -inf, and -inf - -inf is NaN.
    "A": {
        "        m_new = tl.maximum(m_i, tl.max(scores, axis=1))\n"
        '        m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)  # -inf - (-inf) is never computed\n'
        "        alpha = tl.exp2(m_i - m_ref)\n"
        "        p = tl.exp2(scores - m_ref[:, None])\n":
        "        m_ij = tl.max(scores, axis=1)\n"
        "        m_new = tl.maximum(m_i, m_ij)\n"
        "        p = tl.exp2(scores - m_ij[:, None])\n"
        "        alpha = tl.exp2(m_i - m_new)\n"
        "        beta = tl.exp2(m_ij - m_new)\n"
        "        p = p * beta[:, None]\n",
    },
    # The loads of the last tile are masked, but its scores are not: a padded key has the score 0 and gets a weight.
    "B": {
        "        visible = mask_n[None, :]\n"
        "        if IS_CAUSAL:\n"
        "            visible = visible & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)\n"
        '        scores = tl.where(visible, scores, float("-inf"))\n':
        "        if IS_CAUSAL:\n"
        "            visible = offs_n[None, :] <= offs_m[:, None] + n_k - n_q\n"
        '            scores = tl.where(visible, scores, float("-inf"))\n',
    },
    # The causal mask is aligned at the top left.
    "C": {
        "<= offs_m[:, None] + n_k - n_q": "<= offs_m[:, None]",
        "tl.minimum(tl.maximum(tl.minimum(start_m + BLOCK_M, n_q) + n_k - n_q, 0), n_k)":
        "tl.minimum(start_m + BLOCK_M, n_k)",
    },
    # The accumulator has the inputs' dtype.
    "D": {
        "acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)": "acc = tl.zeros([BLOCK_M, BLOCK_D], q.dtype)",
        "acc = acc * alpha[:, None]": "acc = (acc * alpha[:, None]).to(q.dtype)",
        'acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")':
        'acc += tl.dot(p.to(v.dtype), v, input_precision="ieee").to(q.dtype)',
        "o = acc / l_safe[:, None]": "o = acc.to(tl.float32) / l_safe[:, None]",
    },
    # The scale is derived from the padded head dimension.
    "E": {"(scale * 1.4426950408889634)": "(BLOCK_D ** -0.5 * 1.4426950408889634)"},
    # The running max starts at 0, which strongly negative scores never reach.
    "F": {'m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)': "m_i = tl.zeros([BLOCK_M], tl.float32)"},
}  # fmt: skip
NAMES = tuple(MISTAKES)


@functools.cache
def _kernel(name):
    from course_lib.kernels.plain_forward import flash_forward

    if name not in (*NAMES, "right"):
        raise ValueError(f"there is no kernel {name!r}; there are {', '.join(NAMES)}")
    return with_edits(flash_forward, MISTAKES.get(name, {}), f"kernel {name}")


def source(name):
    """The source of kernel `name`, "A" to "F"; "right" is the one without a mistake. ValueError for another name."""
    text = inspect.getsource(getattr(_kernel(name), "fn", _kernel(name)))
    without_docstring = re.sub(r'    """.*?"""\n', "", text, count=1, flags=re.DOTALL)
    return without_docstring.replace("def flash_forward(", f"def kernel_{name}(").replace("  # fmt: skip", "")


# Tensor -> the parameters that take the strides of its axes.
STRIDES = {
    "q_ptr": ("stride_qh", "stride_qm"),
    "k_ptr": ("stride_kh", "stride_kn"),
    "v_ptr": ("stride_vh", "stride_vn"),
    "o_ptr": ("stride_oh", "stride_om"),
    "lse_ptr": ("stride_lh",),
}


def forward_launch(q, k, v, scale, causal, block_m, block_n):
    """What `course_lib.grading.launched` takes, besides the kernel, to run lesson 08's kernel on NumPy arrays.

    q: [heads, n_q, d]; k, v: [heads, n_k, d].
    """
    heads, n_q, d = q.shape
    return {
        "grid": (-(-n_q // block_m), heads),
        "outputs": {"o_ptr": q.shape, "lse_ptr": (heads, n_q)},
        "strides": STRIDES,
        "q_ptr": q, "k_ptr": k, "v_ptr": v, "n_q": n_q, "n_k": k.shape[1], "scale": scale, "IS_CAUSAL": causal,
        "HEAD_DIM": d, "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_D": max(16, 1 << (d - 1).bit_length()),
    }  # fmt: skip


def run(name, q, k, v, causal, block_q, block_k):
    """Launch kernel `name` on NumPy arrays q [heads, n_q, d], k and v [heads, n_k, d]; returns arrays (o, lse)."""
    import torch

    call = forward_launch(q, k, v, q.shape[-1] ** -0.5, causal, block_q, block_k)
    grid, outputs, strides = (call.pop(name) for name in ("grid", "outputs", "strides"))
    call |= {"o_ptr": np.full_like(q, np.nan), "lse_ptr": np.full(outputs["lse_ptr"], np.nan, np.float32)}
    for pointer, parameters in strides.items():
        call[pointer] = torch.from_numpy(np.ascontiguousarray(call[pointer])).to(runtime.device())
        call |= {parameter: call[pointer].stride(axis) for axis, parameter in enumerate(parameters)}
    with np.errstate(all="ignore"):
        _kernel(name)[grid](**call)
    return call["o_ptr"].cpu().numpy(), call["lse_ptr"].cpu().numpy()


def error_beyond_budget(name, q, k, v, causal, block_q, block_k):
    """What is wrong with kernel `name` on this input, as a sentence; None if it keeps the error budget."""
    import torch

    from course_lib.measure import accuracy

    o, lse = (torch.from_numpy(x)[None] for x in run(name, q, k, v, causal, block_q, block_k))
    try:
        accuracy.check_attention((o, lse), *(torch.from_numpy(x)[None] for x in (q, k, v)), causal=causal)
    except AssertionError as error:
        return str(error)
    return None
