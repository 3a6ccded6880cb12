import re
from itertools import product

import numpy as np
import pytest

from course_lib.reference import cosine_similarity, dot, entropy, scores, stable_softmax
from courseware.explorers import dot_products as explorer

from .conftest import numbers, tips


def turned(degrees, length):
    return length * np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])


def test_a_pair_is_length_times_length_times_cosine_and_so_says_its_page():
    for angle, length_a, length_b in product((-180, -95, -30, 0, 25, 90, 180), (0.0, 0.25, 3.0), (0.0, 0.25, 3.0)):
        model = explorer.pair(turned(40 + angle, length_a), turned(40, length_b))
        cosine = cosine_similarity(model.a, model.b)
        assert model.dot == dot(model.a, model.b)
        np.testing.assert_array_equal(model.products, model.a * model.b)
        np.testing.assert_allclose(length_a * length_b * model.cosine, model.dot, atol=1e-14)
        # The shadow ends on a's line, below b.
        assert dot(model.foot, model.a) == pytest.approx(model.dot if length_b else 0, abs=1e-12)
        html = explorer.pair_page(model.a.tolist(), model.b.tolist()).html()
        assert "-0.000" not in html and f"bar {'good' if model.dot >= 0 else 'bad'}" in html
        *found, said_cosine, said_angle = re.findall("<b>([^<]*)</b>", html)
        expected = [length_b, length_a, length_b * cosine, model.dot]
        np.testing.assert_allclose([float(x) for x in found], expected, atol=5.0001e-4)
        if length_a and length_b:
            assert model.degrees == pytest.approx(abs(angle), abs=1e-5)  # arccos near 1 halves the digits
            assert dot(model.b - model.foot, model.a) == pytest.approx(0, abs=1e-12)
            assert model.foot[0] * model.a[1] == pytest.approx(model.foot[1] * model.a[0], abs=1e-12)
            assert float(said_cosine) == pytest.approx(cosine, abs=5.0001e-4)
            assert float(said_angle[:-1]) == pytest.approx(abs(angle), abs=0.051)
        else:
            assert model.degrees is None and model.cosine == 0 and said_cosine == said_angle == "none"
        terms = re.findall(r'data-tip="(?:first product|second product|sum[^:]*): ([^"]*)"', html)
        np.testing.assert_allclose([float(x) for x in terms], [*model.a * model.b, model.dot], atol=5.001e-3)


def test_a_crowd_has_the_scores_and_softmax_of_the_reference_and_so_says_its_page():
    for d, scale in product(explorer.DIMENSIONS, explorer.SCALES):
        model, page = explorer.crowd(d, scale), explorer.crowd_page(d, scale)
        Q, K = np.random.default_rng(1).normal(size=(2, 64, 1024))[:, :, :d]
        factor = {"1 (no scale)": 1, "1/sqrt(d)": d**-0.5, "1/d": 1 / d}[scale]
        np.testing.assert_allclose(model.scores, scores(Q, K, factor), rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(model.weights, stable_softmax(model.scores))
        nats = entropy(model.weights).mean()
        said = page.text.replace(f"d = {d}, scale {scale}<", "")
        assert said != page.text
        expected = [factor, model.scores.std(), nats, np.log(64), np.exp(nats), 64, model.weights.max(axis=1).mean()]
        np.testing.assert_allclose(numbers(said), expected, atol=5.0001e-4)
        shares = [float(share) for share in re.findall(r'data-tip="([\d.]+)% of the scores', page.html())]
        inside = np.abs(model.scores) <= explorer.SCORES_END
        assert sum(shares) == pytest.approx(100 * inside.mean(), abs=0.05 * len(shares) + 0.01)
        weights = [float(weight) for weight in tips(page, r"key \d+: ")]
        np.testing.assert_allclose(weights, np.sort(model.weights[0])[::-1], atol=5.0001e-4)
        for there, of, nats in re.findall(r'data-tip="d = (\d+), scale ([^:]*): ([\d.]+) nats', page.html()):
            assert float(nats) == pytest.approx(explorer.crowd(int(there), of).entropy, abs=5.0001e-4)
