"""Finite scores of any size give finite answers, and right ones, by every kernel. A GPU fuses multiplications and
additions, which Triton's interpreter does not: see tests/courseware/bench/test_resources.py for what it misses."""

import numpy as np
import pytest
import torch

from course_lib import masks
from course_lib.kernels import cuda, flash_attention, flash_decode, hopper_flash_attention
from course_lib.kernels.score_mods import soft_cap
from tests.course_lib.kernels.common import BFLOAT, DEVICE, FLOAT, HALF, ON_CPU, random
from tests.course_lib.kernels.test_attention import HAS_HOPPER

LARGEST = [10.0**e for e in range(0, 39, 2)] + [3e38]
SIGNS = {"ascending": -1, "descending": 1}  # from key to key, so tiles and splits have other maxima


def large(largest, dtype, *, n_q=20, n_k=200, d=64):
    """(q, k, v, scale) whose scores, before they are scaled, are products of two 8-bit numbers, exact in fp32."""
    q, k = (torch.zeros(1, 1, n, d, dtype=dtype, device=DEVICE) for n in (n_q, n_k))
    q[0, 0, :, 0] = 256.0 - torch.arange(n_q) % 59
    k[0, 0, :, 0] = 256.0 - torch.arange(n_k) % 200
    return q, k, random(1, 1, n_k, d, dtype=dtype), 2.0 ** int(np.log2(largest / 2**16))


def hopper(q, k, v, scale):
    if q.dtype == FLOAT or not HAS_HOPPER:
        pytest.skip("of fp16 and bf16, and GPUs of compute capability 9.0")
    return hopper_flash_attention(q, k, v, scale=scale, return_lse=True)


def varied(**how):
    return lambda q, k, v, scale: flash_attention(q, k, v, scale=scale, return_lse=True, **how)


def decoded(**how):
    def call(q, k, v, scale):
        lengths = torch.tensor([k.shape[2]], dtype=torch.int32, device=DEVICE)
        return flash_decode(q, k, v, lengths, scale=scale, causal=False, **how), None

    return call


def thread_by_thread(q, k, v, scale):
    if q.dtype != FLOAT:
        pytest.skip("of fp32")
    # `solve` has a scale of its own.
    factor, output = scale * q.shape[-1] ** 0.5, torch.empty_like(q[0, 0])
    q = q[0, 0] * max(-(2.0**111), min(factor, 2.0**111))
    cuda.solve(q.contiguous(), k[0, 0], v[0, 0], output, *q.shape[:1], *k.shape[2:])
    return output[None, None], None


KERNELS = {
    "portable": varied(block_q=16, block_k=64), "hopper": hopper, "CUDA": thread_by_thread,
    "masked": varied(mask=masks.full()), "sink": varied(sinks=torch.ones(1, device=DEVICE)),
    "soft cap": varied(score_mod=soft_cap(3e38)),
    "dropout": varied(dropout_p=1e-9, seed=0), "decode": decoded(num_splits=1), "split": decoded(num_splits=3),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [HALF, BFLOAT, FLOAT])
@pytest.mark.parametrize("order", SIGNS)
@pytest.mark.parametrize("name", KERNELS)
def test_large_scores(name, order, dtype):
    for largest in LARGEST[:: 4 if ON_CPU else 1]:
        q, k, v, scale = large(largest, dtype, **{"n_q": 512, "n_k": 512} if name == "hopper" else {})
        scale *= SIGNS[order]
        o, found_lse = KERNELS[name](q, k, v, scale)
        scores = (q.double() @ k.double().mT) * scale
        if name == "soft cap":
            scores = 3e38 * torch.tanh(scores / 3e38)
        if name == "sink":
            scores, v = torch.nn.functional.pad(scores, (0, 1), value=1.0), torch.nn.functional.pad(v, (0, 0, 0, 1))
        lse, expected = torch.logsumexp(scores, -1), torch.softmax(scores, -1) @ v.double()
        error, size = (o - expected).norm(), expected.norm()  # near a sink that is far above all scores, both are 0
        # The soft cap rounds scores to fp32 before their maximum is subtracted.
        assert error <= 4 * torch.finfo(dtype).eps * size + 1e-30 or name == "soft cap", (largest, error, size)
        assert o.isfinite().all(), largest
        assert found_lse is None or ((found_lse - lse).abs() <= 4e-7 * lse.abs() + 1e-6).all(), largest
