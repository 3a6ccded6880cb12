"""Gluon, Triton's lower level, as the Hopper kernels need it: compiled on a GPU, and otherwise emulated.

Triton's own interpreter does not know Gluon. On a CPU, what `runtime.emulators` names takes its place.
"""

from course_lib import runtime

__all__ = [
    "PROPAGATE_NAN", "TensorDescriptor", "fence_async_shared", "gl", "gluon", "mbarrier", "tma", "warpgroup_mma",
    "warpgroup_mma_wait",
]  # fmt: skip

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
    from triton.language import PropagateNan

    PROPAGATE_NAN = gl.constexpr(PropagateNan.ALL)
else:
    globals().update({name: getattr(runtime.emulator("gluon"), name) for name in __all__})
