"""The backward, whole and tiled, against PyTorch's gradients in float64."""

import functools
import itertools

import numpy as np
import pytest
import torch

from course_lib.reference import attention, attention_backward, tiled_backward
from course_lib.reference.attention import causal_mask

IMPLEMENTATIONS = pytest.mark.parametrize(
    "implementation",
    [attention_backward, functools.partial(tiled_backward, block_q=4, block_k=3)],
    ids=["whole", "tiled"],
)
LENGTHS = ((1, 1), (7, 7), (5, 9), (9, 5), (1, 8), (8, 1), (12, 16))


def inputs(n_q, n_k, d, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, d)).astype(dtype) for n in (n_q, n_k, n_k, n_q)]


def backward(implementation, q, k, v, do, **options):
    o, lse = attention(q, k, v, return_lse=True, **options)
    return implementation(q, k, v, o, lse, do, **options)


def by_sdpa(q, k, v, do, causal, scale):
    """PyTorch's gradients of its own attention; 0 for the rows that see no key, which it makes nan."""
    visible = causal_mask(len(q), len(k)) if causal else np.ones((len(q), len(k)), bool)
    seeing = visible.any(axis=1)
    leaves = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(
        leaves[0][None, None, seeing], *(x[None, None] for x in leaves[1:]),
        attn_mask=torch.from_numpy(visible[seeing]), scale=scale,
    )  # fmt: skip
    return [x.numpy() for x in torch.autograd.grad(out, leaves, torch.from_numpy(do[seeing])[None, None])]


@IMPLEMENTATIONS
def test_gradients_match_pytorch(implementation):
    for (n_q, n_k), causal, scale in itertools.product(LENGTHS, (False, True), (None, -0.5, 0.0)):
        arrays = inputs(n_q, n_k, 3)
        expected = by_sdpa(*arrays, causal, scale)
        where = f"n_q={n_q} n_k={n_k} causal={causal} scale={scale}"
        with np.errstate(all="raise", under="ignore"):
            gradients = backward(implementation, *arrays, causal=causal, scale=scale)
        for ours, theirs in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, err_msg=where)


@IMPLEMENTATIONS
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_gradients_have_the_inputs_dtype_and_inputs_are_not_modified(implementation, dtype):
    arrays = inputs(7, 10, 4, dtype)
    for array in arrays:
        array.setflags(write=False)
    exact = backward(attention_backward, *(x.astype(np.float64) for x in arrays), causal=True)
    for ours, expected in zip(backward(implementation, *arrays, causal=True), exact, strict=True):
        assert ours.dtype == dtype
        assert np.linalg.norm(ours - expected) <= 4 * np.finfo(dtype).eps * np.linalg.norm(expected)
