"""Lesson 09's backward kernels, in whichever mode this machine has."""

import itertools

import pytest
import torch

from course_lib import runtime
from course_lib.kernels.plain_backward import plain_attention_backward
from courseware.bench.accuracy import check_gradients, exact_attention

DEVICE = runtime.device()


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """What a kernel leaves unwritten is NaN."""
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full(x.shape, torch.nan).to(x))


def check(n_q, n_k, d, *, causal, dtype=torch.float32, scale=None, **blocks):
    """Two sequences of two heads, with rows that do not lie side by side."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, do = (
        torch.randn(2, n, 2, d, generator=generator).to(DEVICE, dtype).transpose(1, 2) for n in (n_q, n_k, n_k, n_q)
    )
    scale = d**-0.5 if scale is None else scale
    o, lse = exact_attention(q, k, v, causal=causal, scale=scale)
    gradients = plain_attention_backward(q, k, v, o.to(dtype), lse.float(), do, causal=causal, scale=scale, **blocks)
    check_gradients(gradients, q, k, v, do, causal=causal, scale=scale)
    return gradients


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("n_q,n_k", ((1, 1), (1, 40), (40, 1), (33, 31), (64, 64), (45, 70), (70, 45)))
def test_lengths(n_q, n_k, causal):
    check(n_q, n_k, 24, causal=causal)


@pytest.mark.parametrize("d", (1, 16, 40, 128, 256))
def test_head_dims(d):
    """In each dtype with the causal mask or without it; both occur with both."""
    check(37, 51, d, causal=d % 5 == 1, dtype=torch.float16)
    check(37, 51, d, causal=d % 5 != 1, dtype=torch.float32)


@pytest.mark.parametrize("block_q,block_k", ((16, 16), (16, 64), (64, 16)))
def test_tile_sizes(block_q, block_k):
    for causal, (n_q, n_k) in itertools.product((False, True), ((40, 50), (50, 40))):
        check(n_q, n_k, 16, causal=causal, block_q=block_q, block_k=block_k)


@pytest.mark.parametrize("scale", (1.0, -0.7, 0.0))
def test_scale(scale):
    check(40, 50, 16, causal=True, scale=scale)


@pytest.mark.parametrize("block", (16, 64))
def test_rows_without_a_visible_key(block):
    dq, _, _ = check(50, 13, 16, causal=True, block_q=block, block_k=block)
    assert (dq[:, :, :37] == 0).all()
