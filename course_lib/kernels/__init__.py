"""Triton kernels, one source that runs compiled on a GPU and interpreted on a CPU; and, in cuda/, kernels in CUDA C++.

plain_forward.py    lesson 08: the FlashAttention-2 forward as a learner writes it, whole
plain_backward.py   lesson 09: the backward, likewise
triton_basics.py    lesson 07: vector_add, scores_tile, row_softmax, online_row_stats
attention.py        flash_attention and flash_decode, the public functions: inputs, autograd, torch.compile
checks.py           what they accept and refuse
forward.py          the portable forward: the plain kernel, made fast
backward.py         the portable backward: delta, dK and dV, dQ, without atomics
masked_attention.py any mask, changed scores, sinks and dropout: forward, backward, and how they meet autograd
block_mask.py       which tiles the programs of a masked kernel visit, as numbers that it reads
score_mods.py       ALiBi, soft caps, or a change of scores of your own
decode.py           a few queries to the keys of a cache: keys split over programs, in pages or not
hopper/             forward and backward for compute capability 9.0, in Gluon, which gluon.py brings in
device.py           what the Triton kernels share on the device: the online-softmax update, tiles, causal masks
configs.py          tile sizes and launch options as one table, and `select`, which everyone asks
launch.py           the host's side of a launch: descriptors, padding, cached preparation
cuda/               lesson 12: attention thread by thread, in CUDA C++
"""

import importlib

from course_lib import runtime

# Triton reads TRITON_INTERPRET when it is imported, so the mode is settled before any kernel module loads.
runtime.choose()

# Loaded on first use: the plain kernels can be read where neither torch nor Triton is installed.
_MODULE_OF = dict.fromkeys(("flash_attention", "flash_decode"), "course_lib.kernels.attention")
_MODULE_OF["hopper_flash_attention"] = "course_lib.kernels.hopper.forward"
__all__ = sorted(_MODULE_OF)


def __getattr__(name):
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
