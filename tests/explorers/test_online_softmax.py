import io
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from course_lib.explorers import online_softmax as explorer
from course_lib.explorers.figures import png
from course_lib.reference import example, logsumexp, online_softmax_update, stable_softmax

STREAMS = explorer.streams()
NORMALISE = (explorer.AT_THE_END, explorer.EVERY_STEP)


def model_of(name, order="as given", block=1, normalise=explorer.AT_THE_END, fed=None):
    scores, values, names = STREAMS[name]
    return explorer.run(scores, values, names=names, block=block, order=order, fed=fed, normalise=normalise)


def every_model(name):
    """All that the controls can choose for a stream, with all blocks fed."""
    for order in explorer.ORDERS:
        for block in range(1, len(STREAMS[name][0]) + 1):
            for normalise in NORMALISE:
                yield model_of(name, order, block, normalise)


@pytest.mark.parametrize("name", STREAMS)
def test_every_step_is_the_softmax_of_the_keys_so_far(name):
    for model in every_model(name):
        block = model.block
        assert sorted(np.concatenate([step.keys for step in model.steps])) == list(range(len(model.scores)))
        for j, step in enumerate(model.steps):
            seen = model.order[: j * block]
            s, v = model.scores[seen], model.values[seen]
            visible = np.isfinite(s).any()
            p = np.exp(s - s.max()) if visible else np.zeros(len(s))
            assert step.m == s.max(initial=-np.inf)
            np.testing.assert_allclose(step.l, p.sum(), rtol=1e-13)
            np.testing.assert_allclose(step.acc, p @ v, rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(step.out, stable_softmax(s) @ v, rtol=1e-12, atol=1e-14)
            np.testing.assert_array_equal(step.batch, stable_softmax(s) @ v)
            if visible:
                np.testing.assert_allclose(step.m + np.log(step.l), logsumexp(s), rtol=1e-13)
            if j:
                np.testing.assert_array_equal(step.keys, model.order[(j - 1) * block : j * block])
                alpha = np.exp(model.steps[j - 1].m - step.m) if visible else 0
                np.testing.assert_allclose(step.alpha, alpha, rtol=1e-15)


@pytest.mark.parametrize("name", STREAMS)
def test_what_is_carried_is_acc_or_the_output(name):
    for model in every_model(name):
        for step in model.steps:
            np.testing.assert_array_equal(step.carried, step.out if model.every_step else step.acc)
            np.testing.assert_allclose(step.weights @ model.values, step.carried, rtol=1e-12, atol=1e-14)
            total = float(step.l > 0) if model.every_step else step.l
            np.testing.assert_allclose(step.weights.sum(), total, rtol=1e-13)


def test_orders_are_what_their_names_say():
    scores = STREAMS["12 random keys"][0]
    given, ascending, descending, shuffled = (model_of("12 random keys", order).order for order in explorer.ORDERS)
    np.testing.assert_array_equal(given, np.arange(12))
    assert (np.diff(scores[ascending]) >= 0).all() and (np.diff(scores[descending]) <= 0).all()
    assert sorted(shuffled) == list(range(12))
    assert len({tuple(order) for order in (given, ascending, descending, shuffled)}) == 4


@pytest.mark.parametrize(
    "block, fed, expected", [(0, -1, (1, 0)), (-3, 99, (1, 12)), (99, 99, (12, 1)), (5, 2, (5, 2))]
)
def test_settings_out_of_range_are_clamped(block, fed, expected):
    model = model_of("12 random keys", block=block, fed=fed)
    assert (model.block, model.fed) == expected


@pytest.mark.parametrize("name", STREAMS)
def test_every_number_in_the_text_comes_from_the_model(name):
    for all_fed in every_model(name):
        for fed in range(all_fed.n_blocks + 1):
            model = replace(all_fed, fed=fed)
            numbers = [float(x) for x in re.findall(r"-?(?:\d+\.\d+|inf)\b", explorer.describe(model))]
            now = model.now
            expected = (
                [now.m, now.alpha, now.l, *now.carried, *now.out, *now.batch] if fed else [now.m, now.l, *now.acc]
            )
            np.testing.assert_allclose(numbers, expected, atol=5.0001e-4)
            assert f"{fed} of {model.n_blocks}" in explorer.describe(model)


def test_text_names_the_keys_and_counts_the_divisions():
    text = explorer.describe(model_of("the sentence", "descending", 2, explorer.EVERY_STEP, fed=2))
    assert "keys: cat, the" in text and "carried: output" in text and "Divisions by l to get it: 2." in text
    text = explorer.describe(model_of("the sentence", fed=2))
    assert "keys: cat" in text and "carried: acc" in text and "Divisions by l to get it: 1." in text


@pytest.mark.parametrize("normalise", NORMALISE)
@pytest.mark.parametrize("name", STREAMS)
def test_drawing_shows_the_model(name, normalise, heights):
    for order in explorer.ORDERS:
        model = model_of(name, order, 3, normalise, fed=2)
        stream, weights, plane = explorer.draw(model).axes
        s = model.scores[model.order]
        np.testing.assert_array_equal(heights(stream.patches), np.where(np.isfinite(s), s, 0))
        now, dashed = weights.containers
        before = model.steps[1].weights[model.order]
        np.testing.assert_array_equal(heights(now), model.now.weights[model.order])
        np.testing.assert_array_equal(heights(dashed), before[before > 0])
        (path,) = (line for line in plane.lines if len(line.get_xdata()) == 2)
        np.testing.assert_array_equal(path.get_xydata(), [step.out for step in model.steps[1:3]])


@pytest.mark.parametrize("name", STREAMS)
def test_the_first_and_the_last_moment_can_be_drawn(name):
    for block, fed in ((1, 0), (1, 99), (99, 0), (99, 1)):
        png(explorer.draw(model_of(name, block=block, fed=fed)))


def test_pictures_are_opaque_and_white_at_the_edge():
    pixels = np.array(Image.open(io.BytesIO(png(explorer.draw(model_of("the sentence"))))).convert("RGBA"))
    assert (pixels[..., 3] == 255).all()
    assert (pixels[[0, -1]] == 255).all() and (pixels[:, [0, -1]] == 255).all()


def test_corrections_stack_to_the_running_normaliser():
    model = model_of("12 random keys", block=2)
    middle = explorer.draw_corrections(model).axes[1]
    kept, new = (np.array([bar.get_height() for bar in bars]) for bars in middle.containers[:2])
    np.testing.assert_allclose(kept + new, [step.l for step in model.steps[1:]])
    np.testing.assert_allclose(kept, [old.l * new.alpha for old, new in pairwise(model.steps)])


def test_both_merge_trees_end_in_the_state_of_the_stream():
    scores, values, names = STREAMS["the sentence"]
    left, right = explorer.draw_merge_trees(scores, values, names).axes
    empty = np.float64(-np.inf), np.float64(0), np.zeros(2)
    m, l, acc = online_softmax_update(*empty, scores, values)
    root = f"m {m:.0f}   l {l:.3f}\nacc ({acc[0]:.2f}, {acc[1]:.2f})"
    for axes in (left, right):
        nodes = [text.get_text() for text in axes.texts]
        assert len(nodes) == 7 and sum(root in node for node in nodes) == 1
        assert [node.split("\n")[0] for node in nodes[-4:]] == list(example.TOKENS)
    for pair in (slice(0, 2), slice(2, 4)):
        m, l, _ = online_softmax_update(*empty, scores[pair], values[pair])
        assert any(f"m {m:.0f}   l {l:.3f}" in text.get_text() for text in right.texts)


@pytest.fixture
def shell(shell_of):
    return shell_of(explorer.explore())


def test_the_explorer_follows_every_control(shell):
    def shown(**settings):
        model = model_of(**settings)
        return explorer.describe(model), explorer.draw(model)

    moves = [
        ("stream", "12 random keys", {"name": "12 random keys"}),
        ("order", "descending", {"order": "descending"}),
        ("block size", 3, {"block": 3}),
        ("blocks fed", 4, {"fed": 4}),
        ("divide by l", explorer.EVERY_STEP, {"normalise": explorer.EVERY_STEP}),
    ]
    shell.assert_follows(shown, {"name": "the sentence", "fed": 1}, moves)


def test_block_size_and_blocks_fed_stay_within_the_stream(shell):
    shell["stream"].value = "12 random keys"
    shell["block size"].value, shell["blocks fed"].value = 1, 12
    shell["block size"].value = 5
    assert (shell["blocks fed"].max, shell["blocks fed"].value) == (3, 3)
    shell["block size"].value = 12
    shell["stream"].value = "the sentence"
    assert (shell["block size"].max, shell["block size"].value) == (4, 4)
    assert (shell["blocks fed"].max, shell["blocks fed"].value) == (1, 1)
    assert shell["HTML"].value == explorer.describe(model_of("the sentence", block=4, fed=1))


def test_a_slider_is_replaced_when_its_range_changes(shell):
    """In the browser, a slider's End key goes to the end it was drawn with."""
    before = shell["block size"], shell["blocks fed"]
    shell["stream"].value = "12 random keys"
    after = shell["block size"], shell["blocks fed"]
    assert [slider.max for slider in after] == [12, 12]
    assert not set(before) & set(after)
    shell["blocks fed"].value = 7
    assert shell["blocks fed"] is after[1], "the focus would be lost"
    assert "Block 7 of 12" in shell["HTML"].value
