import json
import re
from itertools import pairwise

import numpy as np
import pytest

from course_lib.reference import example, logsumexp, online_softmax_update, stable_softmax
from courseware.explorers import online_softmax as explorer

STREAMS = explorer.streams()


def model_of(name, order="as given", block=1, every_step=False):
    scores, values, names = STREAMS[name]
    return explorer.run(scores, values, names=names, block=block, order=order, every_step=every_step)


def state_of(name, order="as given", block=1, every_step=False, step=0.25):
    return json.loads(json.dumps(explorer.stream_state(name, order, block, every_step, step)))


def every_model(name):
    """All that the controls can choose for a stream, with all blocks fed."""
    for order in explorer.ORDERS:
        for block in range(1, len(STREAMS[name][0]) + 1):
            for every_step in (False, True):
                yield model_of(name, order, block, every_step)


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


@pytest.mark.parametrize("block, expected", [(0, 1), (-3, 1), (99, 12), (5, 5)])
def test_a_block_out_of_range_is_clamped(block, expected):
    assert model_of("12 random keys", block=block).block == expected
    assert state_of("12 random keys", block=block)["settings"]["block"] == expected


@pytest.mark.parametrize("name", STREAMS)
def test_a_state_says_what_the_model_says(name):
    for model in every_model(name):
        order = model.order.tolist()
        state = state_of(name, order, model.block, model.every_step)
        scores = [-np.inf if x is None else x for x in state["scores"]]
        np.testing.assert_array_equal(scores, model.scores[order])
        assert state["keys"] == [model.names[key] for key in order]
        np.testing.assert_allclose(state["values"], model.values[order], atol=5.0001e-4)
        np.testing.assert_allclose(state["answer"], model.steps[-1].batch, atol=5.0001e-4)
        for fed, step in enumerate(model.steps):
            assert state["fed"][fed] == min(fed * model.block, len(order))
            assert (-np.inf if state["m"][fed] is None else state["m"][fed]) == step.m
            np.testing.assert_allclose(state["weights"][fed], step.weights[order], atol=5.0001e-4)
            np.testing.assert_allclose(state["out"][fed], step.out, atol=5.0001e-4)
            numbers = [float(x) for text in state["numbers"][fed] for x in re.findall(r"-?(?:[\d.]+|inf)", text)]
            expected = [step.m, step.alpha, step.l, *step.carried, *step.out, *step.batch]
            expected.append(fed if model.every_step else min(fed, 1))
            np.testing.assert_allclose(numbers, expected, atol=5.0001e-4)


def test_every_score_is_on_its_axis_and_every_value_in_its_plane():
    for name in STREAMS:
        state = state_of(name)
        low, high = state["axes"]["score"]["ends"]
        assert all(low <= score <= high for score in state["scores"] if score is not None)
        for axis, column in zip(("first", "second"), np.transpose(state["values"]), strict=True):
            low, high = state["axes"][axis]["ends"]
            assert low < column.min() and column.max() < high


def test_scores_and_places_of_ones_own():
    state = state_of(["the sentence", [4, 2, 3, 1]], [3, 2, 1, 0], 2)
    assert state["scores"] == [1, 3, 2, 4] and state["keys"] == list(reversed(example.TOKENS))
    assert state["m"] == [None, 3, 4] and state["drag"]["places"]
    masked = state_of(["12 keys, first 4 masked", [None, *[1] * 11]])
    assert masked["scores"][0] is None and masked["m"][:3] == [None, None, 1]
    assert state_of("12 random keys", [3, 2, 1, 0])["order"] == list(range(12)), "an order of another stream"


def test_the_cards_say_what_is_carried():
    assert "carried: acc" in state_of("the sentence")["cards"]
    every = state_of("the sentence", every_step=True)
    assert "carried: output" in every["cards"] and len(every["cards"]) == len(every["numbers"][0])


def test_it_opens_where_the_maximum_rises():
    state = state_of("the sentence")
    at = state["opens"]
    assert state["m"][at] > state["m"][at - 1] and state["weights"][at][0] < state["weights"][at - 1][0]


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
