"""Dot products and the matrix of scores."""

import itertools

import numpy as np
import pytest

from course_lib.reference import cosine_similarity, dot, scores


def test_dot_and_scores_of_float16_are_float32_sums_of_products():
    assert dot(np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])) == 32
    assert (ones := dot(*2 * [np.ones(3000, np.float16)])) == 3000 and ones.dtype == np.float32
    Q, K = (np.random.default_rng(0).normal(size=(n, 64)).astype(np.float16) for n in (3, 5))
    S = scores(Q, K, 0.5)
    exact = 0.5 * Q.astype(np.float64) @ K.T.astype(np.float64)
    assert S.dtype == np.float32
    np.testing.assert_allclose(S, exact, rtol=1e-5, atol=1e-6)  # rounded to float16 they would be off by 5e-4


def test_cosine_similarity_depends_on_the_angle_and_not_on_the_lengths():
    """It stays within its interval, above which rounding would lift it; of no direction it is 0."""
    for degrees, stretch in itertools.product((0, 30, 90, 135, 180), (1e-9, 1, 1e9)):
        angle = np.radians(degrees)
        a, b = np.array([2.0, 0.0]), stretch * np.array([np.cos(angle), np.sin(angle)])
        assert cosine_similarity(a, b) == pytest.approx(np.cos(angle), abs=1e-15), (degrees, stretch)
        assert cosine_similarity(b, a) == cosine_similarity(a, b), (degrees, stretch)
    assert all(1 - 1e-15 < cosine_similarity(v, v) <= 1 for v in np.random.default_rng(0).normal(size=(1000, 3)))
    of_none = cosine_similarity(np.zeros(3, np.float32), np.ones(3, np.float32))
    assert of_none == 0 and of_none.dtype == np.float32
