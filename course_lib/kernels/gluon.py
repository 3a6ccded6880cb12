"""Gluon, Triton's lower level, as the Hopper kernels need it: compiled on a GPU, and otherwise interpreted.

Triton's own interpreter does not know Gluon, so gluon_interpreter.py stands in for it on a CPU.
"""

from course_lib import runtime

if runtime.mode() == "gpu":
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
else:
    from course_lib.kernels.gluon_interpreter import (
        TensorDescriptor,
        fence_async_shared,
        gl,
        gluon,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )

__all__ = [
    "TensorDescriptor", "fence_async_shared", "gl", "gluon", "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait",
]  # fmt: skip
