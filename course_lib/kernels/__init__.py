"""Triton kernels, one source that runs compiled on a GPU and interpreted on a CPU; and, in cuda/, kernels in CUDA C++.

plain_forward.py    lesson 08: the FlashAttention-2 forward as a learner writes it, whole
plain_backward.py   lesson 09: the backward, likewise; plain_dkdv.py has the kernel that the learner writes
flash_attention     and flash_decode, the public functions: flash.py connects them to autograd and torch.compile
checks.py           what the public functions accept and refuse
flash_forward.py    the shipped forward: the plain kernel, made fast
flash_backward.py   the shipped backward: delta, dK and dV, dQ, without atomics
decode.py           a few queries to the keys of a cache: keys split over programs, in pages or not
hopper_forward.py   the forward for compute capability 9.0, in Gluon: warps with different jobs; `hopper_flash_attention`
gluon.py            Gluon where there is a GPU, and elsewhere gluon_interpreter.py, which runs that kernel on a CPU
variants.py         the forward with any mask, changed scores, sinks and dropout; variant_backward.py: its backward
variant_attention.py: what `flash_attention` accepts of these, and how they meet autograd
score_mods.py       ALiBi, soft caps, or a change of scores of your own
visits.py           which tiles the programs of a masked kernel visit, as numbers that it reads
configs.py          tile sizes and launch options as one table, and `select`, which everyone asks
launch.py           the host's side of a launch: descriptors, padding, cached preparation
masks.py            which keys a query sees, and which tiles a tile visits
tiles.py            loading and storing one tile, by pointer or by descriptor
primitives.py       the online-softmax update, and what the interpreter needs for bf16
warmup.py           lesson 07: vector_add, scores_tile
softmax.py          lesson 07: row_softmax, online_row_stats
flash1_forward.py   the FlashAttention-1 forward (keys outermost), kept to be counted, not to be fast
cuda/               lesson 12: attention thread by thread, in CUDA C++
"""

from course_lib import runtime

# Triton reads TRITON_INTERPRET when it is imported, so the mode is settled before any kernel module loads.
runtime.choose()

__all__ = ["flash_attention", "flash_decode"]


def __getattr__(name):
    # Loaded on first use: the plain kernels can be read where neither torch nor Triton is installed.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from course_lib.kernels import flash

    return getattr(flash, name)
