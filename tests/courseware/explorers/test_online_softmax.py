import re

import numpy as np
import pytest

from course_lib.reference import logsumexp, stable_softmax
from courseware.explorers import online_softmax as explorer

STREAMS = explorer.streams()
# Every block of a stream in every order, carrying acc or the output.
CHOICES = [
    (name, order, block, every_step)
    for name, (scores, *_) in STREAMS.items()
    for order in explorer.ORDERS for block in range(1, len(scores) + 1) for every_step in (False, True)
]  # fmt: skip


def model_of(name, order="as given", block=1, every_step=False):
    scores, values, names = STREAMS[name]
    return explorer.run(scores, values, names=names, block=block, order=order, every_step=every_step)


def test_every_step_is_the_softmax_of_the_keys_so_far():
    for choice in CHOICES:
        model, values, every_step = model_of(*choice), STREAMS[choice[0]][1], choice[-1]
        block = model.block
        assert sorted(np.concatenate([step.keys for step in model.steps])) == list(range(len(model.scores)))
        assert model.steps[0].alpha == 0, "nothing is kept of nothing"
        for j, step in enumerate(model.steps):
            seen = model.order[: j * block]
            s, v = model.scores[seen], values[seen]
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
            # What is carried is acc or the output, and the weights are what each key counts in it.
            np.testing.assert_array_equal(step.carried, step.out if every_step else step.acc)
            np.testing.assert_allclose(step.weights @ values, step.carried, rtol=1e-12, atol=1e-14)
            total = float(step.l > 0) if every_step else step.l
            np.testing.assert_allclose(step.weights.sum(), total, rtol=1e-13)


def test_orders_are_what_their_names_say():
    name = "12 random keys"
    given, ascending, descending, shuffled = (model_of(name, order).order.tolist() for order in explorer.ORDERS)
    by_score = np.argsort(STREAMS[name][0]).tolist()
    assert given == list(range(12)) and ascending == by_score and descending == by_score[::-1]
    assert shuffled not in (given, ascending, descending)


def page_of(**settings):
    """(settings, ends, the numbers on the cards by name, the sentence below, the height of each weight)."""
    settings, ends, page = explorer.explore().page(settings)
    html = page.html()
    cards = {name: text for text, name in re.findall("<b>([^<]*)</b> <span>([^<]*)</span>", html)}
    return settings, ends, cards, page.text, re.findall(r'<rect class="bar P[^>]*height="([^"]*)"', html)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("every_step", [False, True])
def test_a_page_says_what_the_model_says(name, every_step):
    model = model_of(name, "descending", 2, every_step)
    chosen = {"stream": name, "order": "descending", "block": 2, "every_step": every_step}
    for fed, step in enumerate(model.steps):
        settings, ends, cards, said, weights = page_of(**chosen, fed=fed)
        divisions = fed if every_step else min(fed, 1)
        expected = [step.m, step.alpha, step.l, *step.carried, *step.out, *step.batch, divisions]
        found = [float(x) for text in cards.values() for x in re.findall(r"-?(?:[\d.]+|inf)", text)]
        np.testing.assert_allclose(found, expected, atol=5.0001e-4)
        assert ("carried: output" if every_step else "carried: acc") in cards
        assert ends == {"fed": len(model.steps) - 1} and settings["order"] == "descending"
        keys = ", ".join(model.names[key] for key in step.keys)
        assert said == (f"Block {fed} of {ends['fed']}: {keys}." if fed else "Nothing seen yet.")
        heights = np.array([float(height) for height in weights])
        np.testing.assert_allclose(heights * 1.12 / 204, step.weights[model.order], atol=1e-3)


def test_a_dragged_score_and_a_dragged_place():
    own = ["the sentence", 4, 2, 3, 1]
    settings, _, cards, *_ = page_of(scores=own, fed=1)
    assert cards["maximum m"] == "4.000" and settings["order"] == "as given"
    settings, _, _, said, _ = page_of(places=[1.1, 1, 2, 3], fed=1)
    assert settings["places"] == [1, 0, 2, 3] and settings["order"] == "your own" and "cat" in said
    assert page_of(**settings | {"fed": 2})[0]["places"] == [1, 0, 2, 3], "it stays"
    assert page_of(order="ascending", scores=own)[0]["places"] == [3, 1, 2, 0], "a named order follows the scores"
    other = page_of(**settings | {"stream": "12 keys, first 4 masked"})[0]
    assert other["places"] == list(range(12)) and other["scores"][:5] == ["12 keys, first 4 masked", *4 * [None]]
