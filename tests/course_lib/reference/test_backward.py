"""The backward, whole and tiled, against PyTorch's gradients in float64, and a difference of the forward."""

import functools
import itertools

import numpy as np
import pytest
import torch

from course_lib import traffic
from course_lib.machine import Machine, SRAMOverflow
from course_lib.reference import attention, attention_backward, softmax_vjp, stable_softmax, tiled_backward
from course_lib.reference.attention import causal_mask
from course_lib.reference.backward import tiled_backward_on_machine

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


def test_softmax_vjp_is_the_transposed_jacobian():
    rng = np.random.default_rng(0)
    p, dp = stable_softmax(rng.normal(size=7)), rng.normal(size=7)
    np.testing.assert_allclose(softmax_vjp(p, dp), (np.diag(p) - np.outer(p, p)) @ dp, atol=1e-15)
    np.testing.assert_allclose(softmax_vjp(np.stack([p, 0 * p]), dp), [softmax_vjp(p, dp), 0 * p], atol=1e-15)


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


NAMES = ("Q", "K", "V", "O", "lse", "dO", "dQ", "dK", "dV", "delta")


def on_machine(n_q, n_k, d, dtype, sram_bytes=np.inf, **options):
    """The machine's report of a tiled backward on given sizes."""
    q, k, v, do = inputs(n_q, n_k, d, dtype)
    o, lse = attention(q, k, v, causal=options["causal"], return_lse=True)
    results = [np.full_like(x, np.nan) for x in (q, k, v, lse)]
    machine = Machine(sram_bytes)
    arrays = zip(NAMES, (q, k, v, o, lse, do, *results), strict=True)
    tiled_backward_on_machine(machine, **{name: machine.hbm(x, name) for name, x in arrays}, **options)
    expected = attention_backward(q, k, v, o, lse, do, causal=options["causal"])
    for ours, whole in zip(results, expected, strict=False):
        np.testing.assert_allclose(ours, whole, atol=1e-2)
    return machine.report()


def test_the_machine_counts_what_the_closed_form_says():
    shapes = (*LENGTHS, (33, 17), (17, 33))
    blocks = ((16, 16, None), (4, 7, (5, 3)), (64, 3, (3, 64)), (8, 16, (16, 8)))
    dtypes = itertools.cycle((np.float16, np.float32, np.float64))
    for ((n_q, n_k), (block_q, block_k, dq_blocks), causal), dtype in zip(
        itertools.product(shapes, blocks, (False, True)), dtypes, strict=False
    ):
        itemsize = np.dtype(dtype).itemsize
        options = {"block_q": block_q, "block_k": block_k, "dq_blocks": dq_blocks, "causal": causal}
        report = on_machine(n_q, n_k, 3, dtype, **options)
        form = traffic.flash_attention_backward(
            n_q, n_k, 3, dtype_bytes=itemsize, stat_bytes=max(itemsize, 4), **options
        )
        where = f"n_q={n_q} n_k={n_k} {options}"
        assert report.by_tensor == form.by_tensor, where
        assert (report.read_bytes, report.write_bytes) == (form.read_bytes, form.write_bytes), where
        assert report.matmul_flops == form.flops, where
        assert form.peak_bytes == 2 * n_q * max(itemsize, 4), "lse and delta"


def test_key_heads_are_counted_once_where_they_are_read_once():
    options = {"block_q": 16, "block_k": 32, "causal": True}
    alone = traffic.flash_attention_backward(40, 50, 8, **options)
    many = traffic.flash_attention_backward(40, 50, 8, heads=6, kv_heads=2, batch=3, **options)
    equal = traffic.flash_attention_backward(40, 50, 8, heads=6, batch=3, **options)
    assert equal.total_bytes == 18 * alone.total_bytes and equal.flops == many.flops == 18 * alone.flops
    assert many.by_tensor["dK"].write_bytes == 6 * alone.by_tensor["dK"].write_bytes
    assert equal.read_bytes - many.read_bytes == (18 - 6) * 2 * 50 * 8 * 2
    with pytest.raises(ValueError, match="kv_heads is 4; accepted: a divisor of heads, 6"):
        traffic.flash_attention_backward(40, 50, 8, heads=6, kv_heads=4, **options)


@pytest.mark.parametrize("causal", [False, True])
def test_the_sram_needed_does_not_grow_with_the_length(causal):
    options = {"block_q": 16, "block_k": 16, "causal": causal}
    peaks = {on_machine(n, n, 8, np.float32, **options).peak_sram_bytes for n in (64, 128)}
    assert len(peaks) == 1
    (peak,) = peaks
    on_machine(64, 64, 8, np.float32, sram_bytes=peak, **options)
    with pytest.raises(SRAMOverflow):
        on_machine(64, 64, 8, np.float32, sram_bytes=peak - 1, **options)
