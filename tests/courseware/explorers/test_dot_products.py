import io
import re

import numpy as np
import pytest
from PIL import Image

from course_lib.hardware import GPUS
from course_lib.reference import cosine_similarity, dot, entropy, example, scores, stable_softmax
from courseware.explorers import dot_products as explorer
from courseware.explorers import drawing
from courseware.explorers.figures import png

ANGLES = (-180, -95, -30, 0, 25, 90, 180)
LENGTHS = (0.0, 0.25, 3.0)


def turned(degrees, length):
    return length * np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])


def every_pair():
    for angle in ANGLES:
        for length_a in LENGTHS:
            for length_b in LENGTHS:
                yield angle, explorer.pair(turned(40 + angle, length_a), turned(40, length_b))


def every_crowd():
    for d in explorer.DIMENSIONS:
        for scale in explorer.SCALES:
            yield explorer.crowd(d, scale)


def numbers_in(text):
    return [float(x) for x in re.findall(r"-?\d+\.\d+", text)]


def test_a_pair_is_length_times_length_times_cosine():
    for angle, model in every_pair():
        assert model.dot == dot(model.a, model.b)
        np.testing.assert_array_equal(model.products, model.a * model.b)
        np.testing.assert_allclose(model.products.sum(), model.dot, rtol=1e-13, atol=1e-15)
        assert model.cosine == cosine_similarity(model.a, model.b)
        np.testing.assert_allclose([model.length_a, model.length_b], np.linalg.norm([model.a, model.b], axis=1))
        np.testing.assert_allclose(model.length_a * model.length_b * model.cosine, model.dot, atol=1e-14)
        if model.length_a and model.length_b:
            assert model.degrees == pytest.approx(abs(angle), abs=1e-5)  # arccos near 1 halves the digits
        else:
            assert model.degrees is None and model.cosine == 0


def test_the_shadow_ends_on_as_line_below_b():
    for _, model in every_pair():
        assert dot(model.foot, model.a) == pytest.approx(model.dot if model.length_b else 0, abs=1e-12)
        if model.degrees is not None:
            assert dot(model.b - model.foot, model.a) == pytest.approx(0, abs=1e-12)
            assert model.foot[0] * model.a[1] == pytest.approx(model.foot[1] * model.a[0], abs=1e-12)


def test_a_state_says_what_the_model_says():
    for _, model in every_pair():
        state = explorer.pair_state(model.a.tolist(), model.b.tolist(), 0.25)
        assert (state["a"], state["b"]) == (model.a.tolist(), model.b.tolist())
        np.testing.assert_allclose(state["foot"], model.foot, atol=5.0001e-4)
        assert state["values"] == [*model.products, model.dot]
        shadow = model.length_b * model.cosine
        np.testing.assert_allclose(state["area"], [model.length_a, shadow], atol=5.0001e-4)
        *found, cosine, angle = state["numbers"]
        expected = [model.length_b, model.length_a, shadow, model.length_a * shadow]
        np.testing.assert_allclose([float(x) for x in found], expected, atol=5.0001e-4)
        if model.degrees is None:
            assert cosine == angle == "none"
        else:
            assert float(cosine) == pytest.approx(model.cosine, abs=5.0001e-4)
            assert float(angle[:-1]) == pytest.approx(model.degrees, abs=0.051)
        assert "-0.000" not in state["numbers"] and state["kinds"][2] == ("plus" if model.dot >= 0 else "minus")


def test_every_tip_stays_on_the_plane_and_every_sum_on_its_axis():
    corner = explorer.pair(np.array([4.0, 4.0]), np.array([4.0, 4.0]))
    state = explorer.pair_state([4.0, 4.0], [-4.0, -4.0], 0.25)
    assert state["plane"]["limit"] < state["plane"]["ends"][1] and corner.dot <= state["sums"]["ends"][1]
    assert max(corner.length_a, corner.length_b) < min(side["ends"][1] for side in state["sides"])


def test_a_crowd_has_the_scores_and_softmax_of_the_reference():
    for model in every_crowd():
        Q, K = (entries[:, : model.d] for entries in explorer._entries())
        factor = {"1 (no scale)": 1, "1/sqrt(d)": model.d**-0.5, "1/d": 1 / model.d}[model.scale]
        assert model.factor == pytest.approx(factor, rel=1e-15)
        np.testing.assert_allclose(model.scores, scores(Q, K, factor), rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(model.weights, stable_softmax(model.scores))
        assert model.spread == model.scores.std()
        assert model.entropy == entropy(model.weights).mean()
        assert model.effective_keys == np.exp(model.entropy)
        assert model.largest == model.weights.max(axis=1).mean()


def test_each_scale_does_what_the_lesson_says():
    for d in explorer.DIMENSIONS[2:]:
        none, root, inverse = (explorer.crowd(d, scale) for scale in explorer.SCALES)
        assert none.spread == pytest.approx(np.sqrt(d), rel=0.1)
        assert root.spread == pytest.approx(1, rel=0.1)
        assert inverse.spread == pytest.approx(1 / np.sqrt(d), rel=0.1)
        assert none.entropy < root.entropy < inverse.entropy < np.log(64)
    assert explorer.crowd(256, explorer.NONE).effective_keys == pytest.approx(1.3, abs=0.05)
    assert explorer.crowd(256).effective_keys == pytest.approx(39.4, abs=0.05)


def test_every_number_in_the_text_of_a_crowd_comes_from_the_model():
    for model in every_crowd():
        text = explorer.describe_crowd(model)
        assert f"d = {model.d}, scale {model.scale}<" in text and "of 64 keys" in text
        factor, *found = numbers_in(text)
        assert factor == pytest.approx(model.factor, abs=5.0001e-5)
        expected = [model.spread, model.entropy, np.log(64), model.effective_keys, model.largest]
        np.testing.assert_allclose(found, expected, atol=5.0001e-4)


def test_the_drawing_of_a_crowd_shows_the_model():
    for d, scale in ((1, explorer.NONE), (64, explorer.ROOT), (1024, explorer.NONE), (1024, explorer.INVERSE)):
        model = explorer.crowd(d, scale)
        histogram, weights, curve = explorer.draw_crowd(model).axes
        counts, edges, _ = histogram.patches[0].get_data()
        inside = np.abs(model.scores) <= explorer.SCORES_END
        assert counts.sum() == pytest.approx(inside.mean()) and edges[0] == -edges[-1] == -explorer.SCORES_END
        assert counts.max() < histogram.get_ylim()[1], "no bin leaves the picture"
        np.testing.assert_array_equal(weights.patches[0].get_data().values, np.sort(model.weights[0])[::-1])
        np.testing.assert_array_equal(curve.lines[-1].get_xydata(), [[d, model.entropy]])


def test_entropy_curves_pass_through_every_crowd():
    axes = explorer.draw_crowd(explorer.crowd(1)).axes[-1]
    curves = [line for line in axes.lines if len(line.get_xdata()) == len(explorer.DIMENSIONS)]
    assert len(curves) == len(explorer.SCALES)
    for line, scale in zip(curves, explorer.SCALES, strict=True):
        expected = [[d, explorer.crowd(d, scale).entropy] for d in explorer.DIMENSIONS]
        np.testing.assert_array_equal(line.get_xydata(), expected)


def test_the_score_matrix_is_written_out():
    S = scores(example.Q, example.K, 1.0)
    (axes,) = drawing.draw_matrices({"S": S}, example.TOKENS, example.TOKENS).axes
    assert [text.get_text() for text in axes.texts] == [f"{s:.0f}" for s in S.ravel()]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(example.TOKENS)


def test_spreads_are_drawn_beside_the_root():
    d, spreads, cosines = np.array([2, 8]), np.array([1.5, 2.9]), np.array([0.7, 0.3])
    left, right = explorer.draw_spreads(d, spreads, cosines).axes
    for axes, line, dots in ((left, np.sqrt(d), spreads), (right, 1 / np.sqrt(d), cosines)):
        np.testing.assert_array_equal(axes.lines[0].get_ydata(), line)
        np.testing.assert_array_equal(axes.lines[1].get_xydata(), np.transpose([d, dots]))


def test_rooflines_bend_at_the_ridge():
    points = {"half a FLOP": 0.5, "many": 1000.0}
    (axes,) = explorer.draw_roofline({name: GPUS[name] for name in ("H100", "T4")}, points).axes
    for line, name in zip(axes.lines, ("H100", "T4"), strict=False):
        gpu, (intensity, tflops) = GPUS[name], line.get_data()
        below = intensity < gpu.ridge_flops_per_byte
        np.testing.assert_allclose(tflops[below], intensity[below] * gpu.hbm_bytes_per_s / 1e12)
        np.testing.assert_array_equal(tflops[~below], gpu.fp16_tensor_tflops)
        assert f"{name}: ridge at {gpu.ridge_flops_per_byte:.0f}" == line.get_label()
    tops = [lines.get_segments()[0][1] for lines in axes.collections]
    h100 = GPUS["H100"]
    np.testing.assert_allclose(tops, [[0.5, 0.5 * h100.hbm_bytes_per_s / 1e12], [1000, h100.fp16_tensor_tflops]])
    assert [text.get_text() for text in axes.texts] == ["half a FLOP: 0.5", "many: 1000"]


def test_pictures_are_opaque_and_white_at_the_edge():
    pixels = np.array(Image.open(io.BytesIO(png(explorer.draw_crowd(explorer.crowd(64))))).convert("RGBA"))
    assert (pixels[..., 3] == 255).all()
    assert (pixels[[0, -1]] == 255).all() and (pixels[:, [0, -1]] == 255).all()


def test_the_crowd_follows_both_controls(shell_of):
    def shown(d, scale):
        model = explorer.crowd(d, scale)
        return explorer.describe_crowd(model), explorer.draw_crowd(model)

    moves = [
        ("d", 256, {"d": 256}),
        ("scale", explorer.ROOT, {"scale": explorer.ROOT}),
        ("d", 128, {"d": 128}),
        ("scale", explorer.INVERSE, {"scale": explorer.INVERSE}),
    ]
    shell_of(explorer.explore_crowd()).assert_follows(shown, {"d": 64, "scale": explorer.NONE}, moves)


def test_the_crowds_are_drawn_on_one_axis():
    """A spread of 8 looks wider than one of 1, and d can be played."""
    shell = explorer.explore_crowd()
    views = {explorer.draw_crowd(explorer.crowd(64, scale)).axes[0].viewLim.bounds for scale in explorer.SCALES}
    assert len(views) == 1
    shell._button.value = 0
    assert shell.controls["d"].value == explorer.DIMENSIONS[0] and shell._button.max == len(explorer.DIMENSIONS) - 1
