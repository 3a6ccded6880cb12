"""Triton's names for kernels that are written down: `from course_lib.language import tl, triton`.

They are Triton's own where it can run, compiled or interpreted. Where it is not installed they are `WRITTEN`, with
which a kernel can be defined but not launched. Exercise modules define their kernels with `WRITTEN` everywhere:
an answer is a source, which is run where it is checked, and a lesson's module is read without importing Triton.
"""

from types import SimpleNamespace

from course_lib import runtime

WRITTEN = SimpleNamespace(
    triton=SimpleNamespace(jit=lambda function: function), tl=SimpleNamespace(constexpr="tl.constexpr")
)


def __getattr__(name):
    if name not in ("tl", "triton"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if runtime.mode() == "numpy":
        return getattr(WRITTEN, name)
    import triton
    import triton.language as tl

    return {"tl": tl, "triton": triton}[name]
