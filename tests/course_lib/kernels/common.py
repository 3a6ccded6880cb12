"""Inputs, layouts and checks that the tests of several kernels share."""

import pytest
import torch

from course_lib import runtime

DEVICE = runtime.device()
ON_CPU = DEVICE == "cpu"
HALF, BFLOAT, FLOAT = DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def random(*shape, dtype=torch.float32, seed=0):
    """Normal numbers, which for every dtype are the same before they are rounded."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def inputs(n_q, n_k, d, *, dtype=torch.float32, batch=1, heads=1, kv_heads=None):
    """q, k, v and a gradient of o."""
    q, k = (batch, heads, n_q, d), (batch, kv_heads or heads, n_k, d)
    return [random(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate((q, k, k, q))]


def leaves(*tensors):
    return [x.detach().requires_grad_() for x in tensors]


def seq_before_heads(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def nan_between(x):
    """x, of which rows and columns lie apart, with NaN between them."""
    wide = torch.full((*x.shape[:2], 2 * x.shape[2], x.shape[3] + 5), torch.nan, dtype=x.dtype, device=x.device)
    wide[:, :, ::2, : x.shape[3]] = x
    return wide[:, :, ::2, : x.shape[3]]


def columns_apart(x):
    return x.mT.contiguous().mT


def misaligned(x):
    """x, which begins 2 or 4 bytes after a multiple of 16."""
    moved = torch.zeros(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view_as(x)
    moved.copy_(x)
    return moved


LAYOUTS = (seq_before_heads, nan_between, columns_apart, misaligned)


def far_apart(shape, axis, stride, dtype=torch.float16):
    """Random numbers whose sequences, heads or rows are `stride` elements apart: gigabytes that nobody touches."""
    strides = [shape[2] * shape[3], shape[2] * shape[3], shape[3], 1]
    strides[axis] = stride
    storage = torch.empty(stride * (shape[axis] - 1) + shape[2] * shape[3], dtype=dtype, device=DEVICE)
    far = storage.as_strided(shape, strides)
    far.copy_(random(*shape, dtype=dtype))
    return far


def check_refusal(call, good, changed, message):
    """call(**good | changed) raises an error with this message.

    message: a pattern, behind "T: " for a TypeError or "V: " for a ValueError.
    """
    kind, _, pattern = message.partition(": ")
    on_cpu = torch.device("cpu")  # tensors of other devices stay there
    arguments = {n: x.to(DEVICE) if getattr(x, "device", 0) == on_cpu else x for n, x in (good | changed).items()}
    with pytest.raises({"T": TypeError, "V": ValueError}[kind], match=pattern):
        call(**arguments)
