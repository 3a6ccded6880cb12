"""`tl` and `triton` for modules that define kernels but must also load where Triton is not installed.

`from course_lib.language import tl, triton` gives Triton's own where it is installed, and otherwise the
stand-ins in `WRITTEN`, with which a kernel can be defined but not launched. Exercise modules use `WRITTEN` everywhere:
loading a lesson does not import Triton, and the source of an answer is run where it is checked.
"""

from types import SimpleNamespace

from course_lib import runtime

WRITTEN = SimpleNamespace(
    triton=SimpleNamespace(
        jit=lambda function: function,
        cdiv=lambda x, y: -(-x // y),
        next_power_of_2=lambda n: 1 << (n - 1).bit_length(),
    ),
    tl=SimpleNamespace(constexpr="tl.constexpr"),
)


def __getattr__(name):
    if name not in ("tl", "triton"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if runtime.mode() == "numpy":
        return getattr(WRITTEN, name)
    import triton
    import triton.language as tl

    if runtime.mode() == "interpreter" and "triton" in runtime.emulators:
        runtime.emulator("triton").install()
    return {"tl": tl, "triton": triton}[name]
