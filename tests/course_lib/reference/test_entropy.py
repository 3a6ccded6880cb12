"""Entropy of a set of weights."""

import numpy as np
import pytest
import torch

from course_lib.reference import entropy, stable_softmax


@pytest.mark.parametrize("n", [1, 2, 64])
def test_equal_weights_have_the_largest_entropy_and_one_weight_has_none(n):
    assert entropy(np.full(n, 1 / n)) == pytest.approx(np.log(n))
    assert entropy(np.eye(n)[0]) == 0


def test_entropy_agrees_with_pytorch():
    p = stable_softmax(np.random.default_rng(0).normal(size=(5, 7)), axis=0)
    expected = torch.distributions.Categorical(probs=torch.from_numpy(p.T)).entropy()
    np.testing.assert_allclose(entropy(p, axis=0), expected, rtol=1e-12)


def test_entropy_keeps_the_statistics_dtype_and_refuses_others():
    assert entropy(np.full(4, 0.25, np.float16)).dtype == np.float32
    with pytest.raises(TypeError, match="p has dtype int64"):
        entropy(np.array([1, 0]))
