"""Lesson 05's explorer: feed a stream of scores block by block and watch m, l, alpha and acc.

`run` is the model: every step's state, computed by `course_lib.reference`. `page` shows one moment of it.
"""

from functools import cache, partial
from itertools import product
from types import SimpleNamespace

import numpy as np

from course_lib.reference import example, merge_states, online_softmax_update, stable_softmax
from course_lib.reference.softmax import normalise_state

from .explorer import Explorer, buttons, menu, slider
from .float_formats import sentence_logits
from .svg import Page, Panel, cards
from .words import number, vector

ORDERS = ("as given", "ascending", "descending", "shuffled")
DRAGGED_BY = 0.25
decimals = partial(number, digits=3)


def run(scores, values, *, names=None, block=1, order="as given", every_step=False):
    """Feed scores [n] with values [n, d], float64, through the online softmax in blocks of `block` keys.

    names: [n] labels of the keys (None: 1 to n). order: one of ORDERS, or the keys' indices. every_step: whether acc is
    divided by l at every step.

    Returns a namespace of these: order as [n] indices in the order of feeding; and steps, the state after each block as
    a namespace, steps[0] being that before the first. A step has keys: this block's, as indices into the stream; m, l,
    alpha: floats; acc, out: [d], out = acc / l; carried: [d], what is kept until the next block: acc, or out if
    normalised at every step; weights: [n], what each key counts in `carried`: exp(s - m), divided by l if normalised at
    every step; batch: [d], the softmax average over all keys fed so far, computed at one go.
    """
    n, d = values.shape
    permutation = orders_of(scores)[order] if isinstance(order, str) else np.array(order)
    # One-hot columns beside the values: the weighted sum of those is the weights themselves.
    tracked = np.hstack([values, np.eye(n)])

    m, l, alpha, acc, steps = np.float64(-np.inf), np.float64(0), np.float64(0), np.zeros(d + n), []
    carried = acc
    for stop in range(0, n + block, block):
        keys, seen = permutation[max(stop - block, 0) : stop], permutation[:stop]
        if stop:
            if every_step:
                acc = carried * l  # FA1 Alg. 1, line 12: diag(l) O undoes the last division
            m_old = m
            m, l, acc = online_softmax_update(m, l, acc, scores[keys], tracked[keys])
            # What a sum of 1, measured from the old maximum, becomes when measured from the new one.
            alpha = merge_states((m_old, np.float64(1), acc), (m, np.float64(0), acc))[1]
            carried = normalise_state(l, acc) if every_step else acc
        out, batch = normalise_state(l, acc), stable_softmax(scores[seen]) @ values[seen]
        steps.append(SimpleNamespace(
            keys=keys, m=float(m), l=float(l), alpha=float(alpha), acc=acc[:d], out=out[:d], carried=carried[:d],
            weights=carried[d:], batch=batch,
        ))  # fmt: skip
    names = names or [str(i + 1) for i in range(n)]
    return SimpleNamespace(scores=scores, names=names, order=permutation, block=block, steps=steps)


def orders_of(scores):
    """The orders in which keys with these scores may come: name of ORDERS -> indices [n]."""
    n = len(scores)
    by_score = np.argsort(scores, kind="stable"), np.argsort(-scores, kind="stable")
    return dict(zip(ORDERS, (np.arange(n), *by_score, np.random.default_rng(5).permutation(n)), strict=True))


def page(stream, order, block, every_step, fed, scores, places):
    """The state after `fed` blocks: scores and the maximum, weights, the plane of the values, numbers.

    The arguments are settings as `settle` leaves them.
    """
    given, values, names = streams()[stream]
    own, order = _numbers(scores[1:]), order if order in ORDERS else np.argsort(places)
    model = run(own, values, names=names, block=block, order=order, every_step=every_step)
    now, before = model.steps[fed], model.steps[max(fed - 1, 0)]
    ends = np.cumsum([len(step.keys) for step in model.steps])
    arrived, start, end = model.order, ends[max(fed - 1, 0)], ends[fed]
    masked = ~np.isfinite(own[arrived])
    faded = ["" if i < end and not masked[i] else "faint" for i in range(len(arrived))]
    keys = [model.names[key] for key in arrived]
    across = {"x": (-0.6, len(keys) - 0.4), "x_ticks": list(enumerate(keys)), "grid": "y"}

    visible = given[np.isfinite(given)]
    low, high = min(int(visible.min()) - 1, 0), int(visible.max()) + 3
    title = f"Drag the scores; line: maximum m{'; no bar: masked' if masked.any() else ''}"
    score_panel = Panel(title, 300, 250, y=(low, high), y_ticks=range(low, high + 1, 2), y_label="score", **across)
    weights = Panel(
        f"Weights in {'the output, exp(s - m) / l' if every_step else 'acc, exp(s - m)'}; dashed: before", 300, 250,
        y=(0, 1.12), y_ticks=(0, 0.5, 1), y_label="weight", **across,
    )  # fmt: skip
    for panel in (score_panel, weights):
        panel.rect((start - 0.5, end - 0.5), panel.ends["y"], "ground")
    for i, key in enumerate(arrived):
        score_panel.bar(i, 0 if masked[i] else own[key], f"bar S {faded[i]}")
        weights.bar(i, now.weights[key], f"bar P {faded[i]}")
    levels = [
        (end - 0.5, step.m)
        for j, step in enumerate(model.steps[1 : fed + 1]) if step.m > -np.inf for end in ends[j : j + 2]
    ]  # fmt: skip
    score_panel.line(levels, "ink")
    for key, name in enumerate(model.names):
        place, score = int(np.flatnonzero(arrived == key)[0]), own[key]
        if score > -np.inf:  # a masked one cannot be dragged
            up, right = ["scores", key + 1, low, high, DRAGGED_BY, 1], ["places", key, -0.6, len(keys) - 0.4, 0.1, 1.1]
            score_panel.handle(place, score, "S", f"score of {name}", decimals(score), up=up, right=right, radius=7)
    for i, height in enumerate(before.weights[arrived] if fed else ()):
        if height:
            weights.line([(i - 0.35, 0), (i - 0.35, height), (i + 0.35, height), (i + 0.35, 0)], "thin dashed ink")

    (left, right), (bottom, top) = ((int(np.floor(x.min())), int(np.ceil(x.max()))) for x in values.T)
    plane = Panel(
        "Values; line: the output; star: the answer", 300, 250, (left - 0.3, right + 0.5), (bottom - 0.3, top + 0.5),
        x_ticks=range(left, right + 1), y_ticks=range(bottom, top + 1), x_label="first component", y_label="second",
    )  # fmt: skip
    for i, key in enumerate(arrived):
        plane.dot(*values[key], f"V {faded[i]}", tip=f"value of {keys[i]}: {vector(values[key], decimals)}")
        plane.text(*values[key], keys[i], "middle", down=-8 if key % 2 else 17)  # of these streams, none hides another
    plane.text(*model.steps[-1].batch, "\u2605", "middle number", down=6)
    plane.line([step.out for step in model.steps[: fed + 1] if step.m > -np.inf], "O")
    if now.m > -np.inf:  # before the first visible key there is no output
        plane.dot(*now.out, "O", 6)
    said = f"Block {fed} of {len(model.steps) - 1}: {', '.join(keys[start:end])}." if fed else "Nothing seen yet."
    carried, out, batch = (vector(x, decimals) for x in (now.carried, now.out, now.batch))
    divisions = fed if every_step else min(fed, 1)
    numbers = cards(
        (decimals(now.m), "maximum m"), (decimals(now.alpha), "alpha"), (decimals(now.l), "normaliser l"),
        (carried, "carried: output" if every_step else "carried: acc"), (out, "output so far"),
        (batch, "these keys at once"), (str(divisions), "divisions by l"),
    )  # fmt: skip
    return Page(
        f"Scores of {', '.join(keys)}, their weights, and the output on its way to the answer. {said} Maximum m "
        f"{decimals(now.m)}, normaliser l {decimals(now.l)}, output {out}.",
        (score_panel, weights, plane, numbers), text=said,
    )  # fmt: skip


def _numbers(scores):
    """Scores as settings have them, None where one is masked, as an array."""
    return np.array([-np.inf if score is None else score for score in scores], float)


def settle(stream, order, block, every_step, fed, scores, places):
    """The scores of the chosen stream, and the places of its keys; a place between two others makes a new order."""
    given, *_ = streams()[stream]
    if scores[0] != stream:
        scores = [stream, *(None if np.isinf(score) else float(score) for score in given)]
    n = len(given)
    if len(places) != n:
        order = order if order in ORDERS else "as given"
    elif any(place % 1 for place in places):
        order = "your own"
    orders = orders_of(_numbers(scores[1:])) | {"your own": np.argsort(places, kind="stable")}
    return {"order": order, "scores": scores, "block": min(block, n), "places": np.argsort(orders[order]).tolist()}


@cache
def streams():
    """The streams one can choose from: name -> (scores [n], values [n, 2], names [n])."""
    random = np.random.default_rng(9)
    twelve = random.normal(0, 2, 12), random.normal(0, 1, (12, 2)), None
    masked = np.where(np.arange(12) < 4, -np.inf, twelve[0]), twelve[1], None
    return {
        "the sentence": (sentence_logits(), example.V, example.TOKENS),
        "12 random keys": twelve,
        "12 keys, first 4 masked": masked,
    }


def explore():
    """The explorer: a stream to play, whose scores are dragged up, down and to another place."""
    controls = {
        "stream": menu("stream", list(streams())), "order": menu("order", ORDERS),
        "block": slider("block size", range(1, 13)),
        "every_step": buttons("divide by l", {"once, at the end": False, "at every step": True}),
        "fed": slider("blocks fed", range(13), 3, play=True),
    }  # fmt: skip
    # A page without a kernel has orders and blocks of the streams as they are; for the sentence, scores of 1 to 4.
    written = [
        {"stream": streams(), "order": ORDERS, "block": (1, 2, 3, 4, 6, 12), "every_step": (False, True),
         "fed": range(13)},
        {"scores": [["the sentence", *own] for own in product(range(1, 5), repeat=4)], "fed": range(5)},
    ]  # fmt: skip
    ends = {"fed": lambda stream, block, **_: -(-len(streams()[stream][0]) // block)}
    return Explorer(page, controls, start={"scores": [""], "places": []}, ends=ends, settle=settle, written=written)
