"""Gluon, Triton's lower level, as the Hopper kernels need it: compiled on a GPU, and otherwise emulated.

Triton's own interpreter does not know Gluon. On a CPU, what `runtime.emulators` names takes its place.
"""

from course_lib import runtime

__all__ = [
    "PROPAGATE_NAN", "TensorDescriptor", "async_add_shared_to_global", "fence_async_shared", "gl", "gluon", "mbarrier",
    "tma", "warpgroup_mma", "warpgroup_mma_wait",
]  # fmt: skip

if runtime.mode() == "gpu":
    from triton._C.libtriton import ir
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language._core import builtin
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

    @builtin
    def async_add_shared_to_global(tensor_desc, coord, src, _semantic=None):
        """`tma.async_copy_shared_to_global`, but the copy engine adds to what is there. Gluon has no name for it."""
        coord = _semantic._convert_to_ir_values(coord, require_i64=False)
        _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)

else:
    globals().update({name: getattr(runtime.emulator("gluon"), name) for name in __all__})
