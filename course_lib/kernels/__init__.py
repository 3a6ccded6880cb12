"""Triton kernels: one source that runs compiled on a GPU and interpreted on a CPU.

primitives.py       the online-softmax update, shared by every attention kernel
warmup.py           lesson 07: vector_add, scores_tile
softmax.py          lesson 07: row_softmax, online_row_stats
flash_forward.py    FlashAttention-2 forward: kernel, configurations, launch
flash_backward.py   FlashAttention-2 backward: delta, dK and dV, dQ, without atomics
flash1_forward.py   FlashAttention-1 forward (keys outermost), kept to be counted, not to be fast
launch.py           starts a kernel that was compiled before, quickly
flash.py            the public `flash_attention`: contract, checks, autograd
"""

from course_lib import runtime

# Triton reads TRITON_INTERPRET when it is imported, so the mode is settled before any kernel module loads.
runtime.choose()

from course_lib.kernels.flash import flash_attention  # noqa: E402

__all__ = ["flash_attention"]
