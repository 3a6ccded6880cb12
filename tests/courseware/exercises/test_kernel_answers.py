"""Answers that are kernels and stand in no other file: GPUs' compiler takes them, not the interpreter alone."""

import os
import subprocess
import sys

from course_lib.language import tl, triton
from courseware import checks
from courseware.editing import run_source

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from courseware.checks import registry
from courseware.checks.kernel_calls import _runnable

SIZES = {"GROUP_SIZE": 3, "HEAD_DIM": 20, "BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_D": 32}
KINDS = ("lengths_ptr", "*i32"), ("kinds_ptr", "*i32"), ("visible_ptr", "*i8"), ("scale", "fp32")
for exercise_id in ("08.lse_epilogue", "13.masked_forward", "14.decode_kernel"):
    for arch in (80, 90):
        kernel = _runnable(registry.find(exercise_id).answer)
        sizes = {name: SIZES[name] for name in kernel.arg_names if name in SIZES}
        types = dict.fromkeys(kernel.arg_names, "i32")
        types |= {name: "*fp32" for name in types if name.endswith("_ptr")}
        types |= {name: kind for name, kind in KINDS if name in types}
        source = ASTSource(fn=kernel, signature=types | dict.fromkeys(sizes, "constexpr"), constexprs=sizes)
        assert triton.compile(source, target=GPUTarget("cuda", arch, 32)).asm["cubin"]
        print(exercise_id, arch)
"""


def test_the_compiler_takes_them():
    run = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert len(run.stdout.splitlines()) == 6, run.stderr[-2000:]


HELPED = """
@triton.jit
def plus(a, b):
    return a + b

@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, plus(tl.load(x_ptr + offs, mask=mask), tl.load(y_ptr + offs, mask=mask)), mask=mask)
"""


def test_an_answer_may_call_a_kernel_of_its_cell():
    cell = {"__name__": "__main__", "triton": triton, "tl": tl}
    run_source(HELPED, "<cell with a helper>", cell)
    result = checks.grade("07.vector_add", cell["vector_add"])
    assert result.passed, result.message
