"""Kernels of lessons 08 and 12 compile; the one of lesson 08 can be read without Triton.

What those of lesson 07 compute, touch and cost, and that they compile, is asked of them as answers of exercises. The
shipped Triton kernels are compiled in tests/courseware/bench/test_resources.py.
"""

import os
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

from course_lib.hardware import GPUS
from course_lib.kernels.cuda import gpu, launches
from course_lib.kernels.triton_basics import compile_scores_tile
from tests.thorough import ALL, some
from tools.resources import registers_and_stack

ROOT = Path(__file__).resolve().parents[3]
COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from course_lib.kernels.plain_forward import flash_forward

SIZES = {"IS_CAUSAL": True, "HEAD_DIM": 64, "BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_D": 64}
for sizes, dtype, archs in (
    (SIZES, "fp16", (75, 80, 90, 100) if ALL else (75, 100)),
    (SIZES | {"HEAD_DIM": 20, "BLOCK_M": 16, "BLOCK_D": 32}, "fp32", (75, 90) if ALL else (90,)),
):
    types = {name: f"*{dtype}" if name.endswith("_ptr") else "i32" for name in flash_forward.arg_names}
    types |= {"scale": "fp32", "lse_ptr": "*fp32"} | dict.fromkeys(sizes, "constexpr")
    for arch in archs:
        source = ASTSource(flash_forward, types, sizes)
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_stages": 1})
        assert compiled.asm["cubin"] and compiled.metadata.shared <= 16_384
        print(arch)
"""


def test_the_compiler_takes_what_it_should_and_refuses_what_the_interpreter_takes():
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    code = f"ALL = {ALL}\n{COMPILE}"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert len(run.stdout.splitlines()) == (6 if ALL else 3), run.stderr[-2000:]
    assert "K >= 16" in compile_scores_tile(2)


WITHOUT_TRITON = """
import importlib.metadata, sys
real_version = importlib.metadata.version

def version(name):
    if name == "triton":
        raise importlib.metadata.PackageNotFoundError(name)
    return real_version(name)

class Refuse:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("torch", "triton"):
            raise ImportError(name)

importlib.metadata.version = version
sys.meta_path.insert(0, Refuse())
from course_lib.kernels.plain_forward import flash_forward
assert flash_forward.__doc__.startswith("FlashAttention-2, Alg. 1")
print([name for name in sys.modules if name.startswith("course_lib.kernels")])
"""


def test_the_plain_kernel_is_imported_without_triton_torch_or_the_shipped_kernels():
    run = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "['course_lib.kernels', 'course_lib.kernels.plain_forward']", run.stderr


@pytest.mark.parametrize("name", some(("T4", "A100", "H100", "B200"), {"T4", "H100"}))
def test_cuda_kernels_fit_and_do_not_spill(name):
    """NVRTC compiles every kernel of `solve` and the lesson for every GPU generation, into registers of a block."""
    found = GPUS[name]
    limits = {"sms": found.sms, "max_shared_bytes": found.shared_bytes_per_block}
    planned = [launches.plain(1000, 1000, d) for d in (1, 64, 96, 128)]
    planned += [
        launches.shipped(M, 1000, d, **limits) for M, d in ((1, 128), (64, 64), (1000, 32), (1000, 64), (1000, 128))
    ]
    for launch in {launch.kernel: launch for plan in planned for launch in plan}.values():
        cubin = gpu.compiled(launch.source, launch.kernel, "sm_{}{}".format(*found.compute_capability)).code
        registers, stack_bytes = registers_and_stack(cubin)
        assert stack_bytes <= 24, launch.kernel  # what a division may take
        assert registers * prod(launch.block) <= found.registers_per_sm, launch.kernel
        assert launch.shared_bytes <= found.shared_bytes_per_block, launch.kernel
