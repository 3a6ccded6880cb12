"""Six forward kernels that look right and pass an ordinary test, each wrong in one way, for lesson 08.

Each is lesson 08's kernel with one mistake. `source(name)` is what a learner reads, `run` launches a kernel on arrays,
and `error_beyond_budget` says whether an input shows that the kernel is wrong.
"""

import functools
import inspect
import re
import tomllib
from pathlib import Path

import numpy as np

from course_lib import runtime
from courseware.editing import edits_of, with_edits

# Kernel -> "mistake", a diff of the right kernel, and "look_at", a hint.
MISTAKES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NAMES = tuple(MISTAKES)


@functools.cache
def _kernel(name):
    from course_lib.kernels.plain_forward import flash_forward

    if name not in (*NAMES, "right"):
        raise ValueError(f"there is no kernel {name!r}; there are {', '.join(NAMES)}")
    edits = edits_of(MISTAKES[name]["mistake"]) if name in MISTAKES else {}
    return with_edits(flash_forward, edits, f"kernel {name}")


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
    """What `courseware.checks.launched` takes, besides the kernel, to run lesson 08's kernel on NumPy arrays.

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

    from course_lib.kernels.plain_forward import plain_attention

    q, k, v = (torch.from_numpy(np.ascontiguousarray(x))[None].to(runtime.device()) for x in (q, k, v))
    options = {"causal": causal, "block_q": block_q, "block_k": block_k}
    with np.errstate(all="ignore"):
        results = plain_attention(q, k, v, **options, kernel=_kernel(name))
    return tuple(result[0].cpu().numpy() for result in results)


def no_measure(q, k):
    """Why plain attention is no measure for a kernel on this input, as a sentence; None if it is one."""
    with np.errstate(over="ignore"):
        if np.isfinite(q @ k.transpose(0, 2, 1)).all():
            return None
    return f"q k^T overflows {q.dtype}, and so does plain attention"


def error_beyond_budget(name, q, k, v, causal, block_q, block_k):
    """What is wrong with kernel `name` on this input, as a sentence; None if it keeps the error budget."""
    import torch

    from courseware.bench import accuracy

    if outside := no_measure(q, k):
        return outside
    o, lse = (torch.from_numpy(x)[None] for x in run(name, q, k, v, causal, block_q, block_k))
    try:
        accuracy.check_attention((o, lse), *(torch.from_numpy(x)[None] for x in (q, k, v)), causal=causal)
    except AssertionError as error:
        return str(error)
    return None
