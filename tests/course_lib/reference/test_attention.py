"""Attention, whole and tiled, against PyTorch's scaled_dot_product_attention in float64."""

import functools
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.machine import Machine, SRAMOverflow
from course_lib.reference import attention, tiled_attention
from course_lib.reference.attention import standard_attention_on_machine

Q_OUTER = functools.partial(tiled_attention, block_q=4, block_k=3, order="q_outer")
KV_OUTER = functools.partial(tiled_attention, block_q=4, block_k=3, order="kv_outer")
IMPLEMENTATIONS = pytest.mark.parametrize(
    "implementation", [attention, Q_OUTER, KV_OUTER], ids=["whole", "q_outer", "kv_outer"]
)
deterministic = settings(derandomize=True, deadline=None, database=None, max_examples=250)
CASES = {
    "seed": st.integers(0, 10**6),
    "n_q": st.integers(1, 40),
    "n_k": st.integers(1, 40),
    "d": st.integers(1, 9),
    "causal": st.booleans(),
    "scale": st.sampled_from([None, 1.0, -0.5, 0.0]),
    "size": st.sampled_from([1.0, 1e3]),
}


def inputs(seed, n_q, n_k, d, dtype=np.float64, size=1.0):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(n, d)) for n in (n_q, n_k, n_k))
    return (np.sqrt(size) * q).astype(dtype), (np.sqrt(size) * k).astype(dtype), v.astype(dtype)


def bottom_right(n_q, n_k):
    """The causal mask, one pair at a time: the last query sees every key."""
    return np.array([[n_k - 1 - j >= n_q - 1 - i for j in range(n_k)] for i in range(n_q)])


def sdpa(q, k, v, mask=None, scale=None):
    """PyTorch's attention, plain mathematics, in the dtype of its inputs."""
    q, k, v = (torch.from_numpy(x)[None, None] for x in (q, k, v))
    mask = None if mask is None else torch.from_numpy(mask)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return out[0, 0].numpy()


@deterministic
@given(
    **CASES,
    implementation=st.one_of(
        st.just(attention),
        st.builds(
            functools.partial,
            st.just(tiled_attention),
            block_q=st.integers(1, 41),
            block_k=st.integers(1, 41),
            order=st.sampled_from(["q_outer", "kv_outer"]),
        ),
    ),
)
def test_attention_matches_pytorch(implementation, seed, n_q, n_k, d, causal, scale, size):
    q, k, v = inputs(seed, n_q, n_k, d, size=size)
    visible = bottom_right(n_q, n_k) if causal else np.ones((n_q, n_k), bool)
    seeing = visible.any(axis=1)
    with np.errstate(all="raise", under="ignore"):
        out, lse = implementation(q, k, v, causal=causal, scale=scale, return_lse=True)
    np.testing.assert_allclose(out[seeing], sdpa(q, k, v, visible, scale)[seeing], rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(out[~seeing], 0)
    scores = q @ k.T * (1 / np.sqrt(q.shape[1]) if scale is None else scale)
    scores = torch.from_numpy(np.where(visible, scores, -np.inf))
    np.testing.assert_allclose(lse, torch.logsumexp(scores, dim=1).numpy(), rtol=1e-12, atol=1e-12)


@IMPLEMENTATIONS
@pytest.mark.parametrize("tensor", ["q", "k", "v"])
def test_what_is_not_finite_stays_in_the_rows_that_see_it(implementation, tensor):
    # Of large scores, most weights underflow to 0, which hides nothing.
    for (n_q, n_k), causal, size in itertools.product([(5, 12), (12, 5)], (False, True), (1.0, 1e5)):
        clean = dict(zip("qkv", inputs(2, n_q, n_k, 3, size=size), strict=True))
        expected = implementation(*clean.values(), causal=causal)
        visible = bottom_right(n_q, n_k) if causal else np.ones((n_q, n_k), bool)
        for poison, row in itertools.product((np.nan, np.inf, -np.inf), range(len(clean[tensor]))):
            where = f"n_q={n_q} n_k={n_k} causal={causal}: {tensor}[{row}, 1] = {poison}"
            poisoned = dict(clean, **{tensor: clean[tensor].copy()})
            poisoned[tensor][row, 1] = poison
            seeing = (np.arange(n_q) == row) & visible.any(axis=1) if tensor == "q" else visible[:, row]
            with np.errstate(invalid="ignore"):
                out = implementation(*poisoned.values(), causal=causal)
            np.testing.assert_allclose(out[~seeing], expected[~seeing], atol=1e-13, err_msg=where)
            # An infinite q or k may give a score of -inf, whose weight is 0: only there may the row stay finite.
            if np.isnan(poison) or tensor == "v":
                assert not np.isfinite(out[seeing, 1]).any(), where


@IMPLEMENTATIONS
@pytest.mark.parametrize("dtype, statistic", [("f2", "f4"), ("f4", "f4"), ("f8", "f8")])
def test_the_output_has_the_inputs_dtype_and_its_precision_and_inputs_are_not_modified(
    implementation, dtype, statistic
):
    arrays = inputs(3, 37, 101, 64, dtype)
    for array in arrays:
        array.setflags(write=False)
    out, lse = implementation(*arrays, causal=True, return_lse=True)
    assert (out.dtype, lse.dtype) == (dtype, statistic)
    exact = sdpa(*(x.astype(np.float64) for x in arrays), bottom_right(37, 101))
    # With keys outermost, the output is rounded after each of 34 tiles.
    allowed = (2 if implementation is KV_OUTER else 0.5) * np.finfo(dtype).eps + 8 * np.finfo(statistic).eps
    assert np.linalg.norm(out - exact) <= allowed * np.linalg.norm(exact)


def on_machine(q, k, v, *, sram_bytes=np.inf, block_q=4, **options):
    """Standard attention on a machine: P, the output, and the report."""
    machine = Machine(sram_bytes)
    S, P = (np.full((len(q), len(k)), np.nan, q.dtype) for _ in range(2))
    O = np.full_like(q, np.nan)
    handles = [machine.hbm(x, name) for name, x in zip("QKVSPO", (q, k, v, S, P, O), strict=True)]
    standard_attention_on_machine(machine, *handles, block_q=block_q, **options)
    return P, O, machine.report()


@deterministic
@given(**CASES, block_q=st.integers(1, 41))
def test_standard_attention_on_the_machine_is_attention(seed, n_q, n_k, d, block_q, causal, scale, size):
    q, k, v = inputs(seed, n_q, n_k, d, size=size)
    P, O, _ = on_machine(q, k, v, block_q=block_q, causal=causal, scale=scale)
    np.testing.assert_allclose(O, attention(q, k, v, causal=causal, scale=scale), rtol=1e-11, atol=1e-13)
    seeing = bottom_right(n_q, n_k).any(axis=1) if causal else np.ones(n_q, bool)
    np.testing.assert_allclose(P.sum(axis=1), seeing, rtol=1e-13)


def test_standard_attention_on_the_machine_rounds_to_the_dtype_of_its_arrays():
    q, k, v = inputs(5, 40, 56, 8, np.float16)
    _, O, _ = on_machine(q, k, v, causal=True)
    exact = attention(*(x.astype(np.float64) for x in (q, k, v)), causal=True)
    assert np.linalg.norm(O - exact) <= 2e-3 * np.linalg.norm(exact)


def test_standard_attention_needs_all_keys_in_sram_and_no_more_than_tiles_beside():
    q, k, v = inputs(6, 64, 64, 8, np.float32)
    peak = on_machine(q, k, v)[2].peak_sram_bytes
    assert on_machine(q, k, v, sram_bytes=peak)[2].peak_sram_bytes == peak
    with pytest.raises(SRAMOverflow):
        on_machine(q, k, v, sram_bytes=peak - 1)
    assert on_machine(*inputs(6, 256, 64, 8, np.float32))[2].peak_sram_bytes == peak  # more queries cost none
    assert on_machine(q, k, v, block_q=8)[2].peak_sram_bytes > peak
