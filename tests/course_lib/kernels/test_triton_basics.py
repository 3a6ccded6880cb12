"""Lesson 07's kernels: right, in bounds, each byte once; and the compiler takes them. They run in either mode."""

import itertools
import os
import subprocess
import sys

import pytest
import torch
import triton

from course_lib import runtime
from course_lib.kernels.triton_basics import compile_scores_tile, online_row_stats, row_softmax, scores_tile, vector_add
from courseware.tracer import trace

DEVICE = runtime.device()


def random(*shape, seed=0, spread=None):
    """Random floats; rows `spread` elements apart, NaN between them."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    if spread is None:
        return values.to(DEVICE)
    wide = torch.full((shape[0], spread), float("nan"))
    wide[:, : shape[1]] = values
    return wide.to(DEVICE)[:, : shape[1]]


def empty(*shape):
    return torch.full(shape, float("nan"), device=DEVICE)


@pytest.mark.parametrize("n,block", ((1, 16), (16, 16), (17, 16), (1000, 128)))
def test_vector_add(n, block):
    x, y, out = random(n), random(n, seed=1), empty(n)
    with trace(x=x, y=y, out=out) as traced:
        vector_add[(triton.cdiv(n, block),)](x, y, out, n, BLOCK=block)
    torch.testing.assert_close(out, x + y, rtol=0, atol=0)
    assert not traced.violations and traced.by_tensor == {"x": (4 * n, 0), "y": (4 * n, 0), "out": (0, 4 * n)}


@pytest.mark.parametrize("n_q,n_k,d", list(itertools.product((1, 16, 37), (16, 50), (16, 20))))
def test_scores_tile(n_q, n_k, d):
    q, k, s = random(n_q, d, spread=64), random(n_k, d, seed=1, spread=40), empty(n_q, n_k)
    grid = triton.cdiv(n_q, 16), triton.cdiv(n_k, 32)
    with trace(q=q, k=k, s=s) as traced:
        scores_tile[grid](
            q, k, s, *q.stride(), *k.stride(), *s.stride(), n_q, n_k, 0.25,
            HEAD_DIM=d, BLOCK_M=16, BLOCK_N=32, BLOCK_D=triton.next_power_of_2(d),
        )  # fmt: skip
    exact = 0.25 * q.double() @ k.double().T
    torch.testing.assert_close(s.double(), exact, rtol=1e-5, atol=1e-5)
    assert not traced.violations
    q_bytes, k_bytes = 4 * n_q * d * grid[1], 4 * n_k * d * grid[0]
    assert traced.by_tensor == {"q": (q_bytes, 0), "k": (k_bytes, 0), "s": (0, 4 * n_q * n_k)}


@pytest.mark.parametrize("n_cols,scale", ((1, 1.0), (5, 1.0), (64, 1.0), (45, 1000.0)))
def test_row_softmax(n_cols, scale):
    x, out = random(3, n_cols, spread=n_cols + 7), empty(3, n_cols)
    x *= scale
    with trace(x=x, out=out) as traced:
        row_softmax[(3,)](x, out, *x.stride(), *out.stride(), n_cols, BLOCK=triton.next_power_of_2(n_cols))
    torch.testing.assert_close(out.double(), torch.softmax(x.double(), dim=1), rtol=1e-5, atol=1e-7)
    assert not traced.violations and traced.by_tensor == {"x": (12 * n_cols, 0), "out": (0, 12 * n_cols)}


@pytest.mark.parametrize("n_cols", (1, 16, 45, 300))
@pytest.mark.parametrize("hidden", (0, 16, 20))
def test_online_row_stats(n_cols, hidden):
    x = random(3, n_cols, spread=n_cols + 7)
    x *= torch.tensor([[1.0], [100.0], [-1000.0]], device=DEVICE)
    x[:, :hidden] = float("-inf")
    m, l = empty(3), empty(3)
    with trace(x=x, m=m, l=l) as traced:
        online_row_stats[(3,)](x, m, l, *x.stride(), n_cols, BLOCK=16)
    exact_m = x.double().amax(dim=1)
    shift = torch.where(exact_m.isinf(), 0.0, exact_m)
    assert torch.equal(m.double(), exact_m)
    torch.testing.assert_close(l.double(), (x.double() - shift[:, None]).exp().sum(dim=1), rtol=1e-5, atol=1e-7)
    assert not traced.violations and traced.by_tensor == {"x": (12 * n_cols, 0), "m": (0, 12), "l": (0, 12)}


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from course_lib.kernels import triton_basics

SIZES = {"BLOCK": 128, "HEAD_DIM": 20, "BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_D": 32}
for name in ('vector_add', 'scores_tile', 'row_softmax', 'online_row_stats'):
    kernel = getattr(triton_basics, name)
    for arch in (80, 90):
        sizes = {name: SIZES[name] for name in kernel.arg_names if name in SIZES}
        types = {"scale": "fp32"}
        signature = {
            name: "constexpr" if name in sizes else "*fp32" if name.endswith("_ptr") else types.get(name, "i32")
            for name in kernel.arg_names
        }
        source = ASTSource(fn=kernel, signature=signature, constexprs=sizes)
        triton.compile(source, target=GPUTarget("cuda", arch, 32))
        print(kernel.fn.__module__.split(".")[-1], kernel.fn.__name__, arch)
"""


def test_the_compiler_takes_them():
    run = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert len(run.stdout.splitlines()) == 8, run.stderr[-2000:]


def test_the_compiler_refuses_what_the_interpreter_takes():
    assert compile_scores_tile(16) == "compiled"
    assert "K >= 16" in compile_scores_tile(2)


def test_a_wrong_kernel_would_be_noticed():
    x, out = random(3, 5), empty(3, 5)
    with trace(x=x, out=out) as traced:
        row_softmax[(3,)](x, out, *x.stride(), *out.stride(), 8, BLOCK=8)
    assert traced.violations and not torch.allclose(out, torch.softmax(x, dim=1))
