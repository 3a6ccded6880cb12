"""Lesson 08's kernel, whole: right for every shape, inside its tensors, and compiled for every GPU generation."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from course_lib import runtime
from course_lib.kernels import plain_forward
from course_lib.kernels.plain_forward import plain_attention
from courseware.bench.accuracy import check_attention
from courseware.tracer import trace

DEVICE = runtime.device()
ROOT = Path(__file__).resolve().parents[3]


def qkv(n_q, n_k, d, dtype=torch.float32, batch=1, heads=2):
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, heads, n_q, d), (batch, heads, n_k, d), (batch, heads, n_k, d)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(DEVICE, dtype) for s in shapes]


# Where three things vary, each pair of their values occurs, and not each combination: the interpreter is slow.
@pytest.mark.parametrize("d", (1, 3, 16, 40, 64, 128, 200, 256))
def test_head_dims(d):
    dtypes = torch.float16, torch.bfloat16, torch.float32
    for dtype, causal in zip(dtypes, itertools.cycle((d % 3 == 1, d % 3 != 1)), strict=False):
        q, k, v = qkv(37, 51, d, dtype)
        check_attention(plain_attention(q, k, v, causal=causal), q, k, v, causal=causal)


@pytest.mark.parametrize("n_q,n_k", list(itertools.product((1, 15, 16, 17, 40), repeat=2)))
def test_lengths(n_q, n_k):
    blocks = ((16, 32), (32, 16)) if n_q < n_k else ((32, 16), (16, 32))
    for causal, (block_q, block_k) in zip((False, True), blocks, strict=True):
        q, k, v = qkv(n_q, n_k, 8, heads=1, batch=2)
        answer = plain_attention(q, k, v, causal=causal, scale=0.7, block_q=block_q, block_k=block_k)
        check_attention(answer, q, k, v, causal=causal, scale=0.7)


def test_rows_without_a_visible_key():
    o, lse = plain_attention(*qkv(50, 13, 16), causal=True)
    assert (o[:, :, :37] == 0).all() and (lse[:, :, :37] == float("-inf")).all()
    assert torch.isfinite(o).all() and torch.isfinite(lse[:, :, 37:]).all()


def test_nothing_outside_the_tensors_is_touched_and_every_output_is_written():
    for (n_q, n_k, d), causal in itertools.product(((33, 70, 24), (70, 33, 16), (1, 1, 1)), (False, True)):
        q, k, v = qkv(n_q, n_k, d)
        with trace(q=q, k=k, v=v) as traced:
            plain_attention(q, k, v, causal=causal, block_q=32, block_k=16)
        assert traced.violations == []
        assert not traced.unwritten("o").any() and not traced.unwritten("lse").any()


@pytest.mark.parametrize("axis", (0, 1))
def test_offsets_beyond_31_bits(axis):
    """Three heads, or three rows, 2^30 elements apart; memory that nobody touches costs nothing."""
    shape, strides = ((3, 20, 16), [2**30 + 16, 16, 1]) if axis == 0 else ((1, 3, 16), [0, 2**30 + 16, 1])
    storage = torch.empty(2 * (2**30 + 16) + 20 * 16, dtype=torch.float16, device=DEVICE)
    far = storage.as_strided(shape, strides)
    far.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    outputs = []
    for x in (far, far.contiguous()):
        o = torch.empty(shape, dtype=torch.float16, device=DEVICE)
        lse = torch.empty(shape[:2], device=DEVICE)
        plain_forward.flash_forward[(2, shape[0])](
            x, x, x, o, lse, *3 * x.stride()[:2], *o.stride()[:2], shape[1], shape[1], shape[1], 0.25,
            IS_CAUSAL=True, HEAD_DIM=16, BLOCK_M=16, BLOCK_N=16, BLOCK_D=16,
        )  # fmt: skip
        outputs.append(o)
    assert torch.equal(*outputs)


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from course_lib.kernels.plain_forward import flash_forward

for dtype, head_dim in (("fp16", 64), ("fp32", 32)):
    constants = dict(IS_CAUSAL=True, HEAD_DIM=head_dim, BLOCK_M=32, BLOCK_N=32, BLOCK_D=head_dim)
    types = {name: f"*{dtype}" if name.endswith("_ptr") else "i32" for name in flash_forward.arg_names}
    types |= {"lse_ptr": "*fp32", "scale": "fp32"} | dict.fromkeys(constants, "constexpr")
    for arch in (75, 80, 90, 100):
        compiled = triton.compile(
            ASTSource(flash_forward, types, constants), target=GPUTarget("cuda", arch, 32), options={"num_stages": 1}
        )
        assert compiled.asm["cubin"]
        print(dtype, arch, compiled.metadata.shared)
"""


def test_it_compiles_for_every_gpu_generation():
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    *compiled, shared_bytes = zip(*map(str.split, run.stdout.splitlines()), strict=True)
    assert list(zip(*compiled, strict=True)) == list(itertools.product(("fp16", "fp32"), ("75", "80", "90", "100")))
    assert max(map(int, shared_bytes)) <= 16_384


def test_it_is_imported_without_triton_torch_or_the_shipped_kernels():
    code = """
import importlib.metadata, importlib.util, sys
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
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "['course_lib.kernels', 'course_lib.kernels.plain_forward']", run.stderr
