"""Dtypes and axes of softmax and its statistics, and the entropy of its weights.

Their values are asked of them as the answers of the exercises of lessons 02, 03 and 05.
"""

import itertools

import numpy as np
import pytest
import torch

from course_lib.reference import entropy, logsumexp, merge_states, naive_softmax, online_softmax_update, stable_softmax


@pytest.mark.parametrize("softmax", [naive_softmax, stable_softmax])
def test_softmax_keeps_shape_and_dtype_and_sums_to_one(softmax):
    for dtype, axis in itertools.product((np.float16, np.float64), (-1, 0)):
        x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(dtype)
        x.setflags(write=False)
        p = softmax(x, axis=axis)
        assert p.dtype == dtype and p.shape == x.shape, (dtype, axis)
        np.testing.assert_allclose(p.astype(np.float64).sum(axis=axis), 1, atol=5 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype, result", [("f2", "f4"), ("f4", "f4"), ("f8", "f8")])
def test_statistics_are_float32_up_to_float32_inputs(dtype, result):
    rng = np.random.default_rng(2)
    x, values = rng.normal(size=(3, 7)).astype(dtype), rng.normal(size=(7, 4)).astype(dtype)
    state = online_softmax_update(-np.inf, 0, 0, x[:, :2], values[:2])
    state = online_softmax_update(*state, x[:, 2:], values[2:])
    assert {part.dtype for part in (*state, *merge_states(state, state), logsumexp(x))} == {np.dtype(result)}
    np.testing.assert_allclose(logsumexp(x, axis=0), np.log(np.exp(x.astype(np.float64)).sum(axis=0)), rtol=1e-6)


def test_entropy_agrees_with_pytorch():
    p = stable_softmax(np.random.default_rng(0).normal(size=(5, 7)), axis=0)
    expected = torch.distributions.Categorical(probs=torch.from_numpy(p.T)).entropy()
    np.testing.assert_allclose(entropy(p, axis=0), expected, rtol=1e-12)
    assert entropy(np.eye(3, dtype=np.float16)[0]) == 0
    assert entropy(np.full(4, 0.25, np.float16)).dtype == np.float32
