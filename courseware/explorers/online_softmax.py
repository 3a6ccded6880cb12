"""Lesson 05's explorer: feed a stream of scores block by block and watch m, l, alpha and acc.

`run` is the model: every step's state, computed by `course_lib.reference`. stream.js draws one moment of it,
`draw_corrections` all of it, `draw_merge_trees` two ways to merge the same states. `explore` is the widget.
"""

from functools import reduce
from itertools import product
from types import SimpleNamespace

import numpy as np

from course_lib.reference import example, merge_states, online_softmax_update, stable_softmax
from course_lib.reference.softmax import normalise_state

from . import figures
from .figures import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, VERMILLION, label, legend, tidy
from .float_formats import sentence_logits
from .svg_explorer import SvgExplorer, axis, choices
from .words import number, vector

ORDERS = ("as given", "ascending", "descending", "shuffled")
DRAGGED_BY = 0.25
CARDS = ["maximum m", "alpha", "normaliser l", "carried: acc", "carried: output", "output so far",
         "these keys at once", "divisions by l"]  # fmt: skip
# Bars of what was there before a step.
BEFORE = {"width": 0.7, "facecolor": "none", "edgecolor": VERMILLION, "linestyle": "--", "linewidth": 1.3}


def run(scores, values, *, names=None, block=1, order="as given", every_step=False):
    """Feed scores [n] with values [n, d], float64, through the online softmax in blocks of `block` keys.

    names: [n] labels of the keys (None: 1 to n). order: one of ORDERS, or the keys' indices. every_step: whether acc is
    divided by l at every step. block is clamped to what the stream allows.

    Returns a namespace of these: order as [n] indices in the order of feeding, and steps, what `_step` gives after each
    block; steps[0] is the state before the first.
    """
    n, d = values.shape
    block = int(np.clip(block, 1, n))
    named = {
        "as given": np.arange(n),
        "ascending": np.argsort(scores, kind="stable"),
        "descending": np.argsort(-scores, kind="stable"),
        "shuffled": np.random.default_rng(5).permutation(n),
    }
    permutation = named[order] if isinstance(order, str) else np.array(order)
    # One-hot columns beside the values: the weighted sum of those is the weights themselves.
    tracked = np.hstack([values, np.eye(n)])

    m, l, acc = np.float64(-np.inf), np.float64(0), np.zeros(d + n)
    carried = acc
    steps = [_step(np.arange(0), scores, values, m, l, np.float64(0), acc, carried, permutation[:0])]
    for start in range(0, n, block):
        keys = permutation[start : start + block]
        if every_step:
            acc = carried * l  # FA1 Alg. 1, line 12: diag(l) O undoes the last division
        m_old = m
        m, l, acc = online_softmax_update(m, l, acc, scores[keys], tracked[keys])
        # What a sum of 1, measured from the old maximum, becomes when measured from the new one.
        alpha = merge_states((m_old, np.float64(1), acc), (m, np.float64(0), acc))[1]
        carried = normalise_state(l, acc) if every_step else acc
        steps.append(_step(keys, scores, values, m, l, alpha, acc, carried, permutation[: start + block]))
    return SimpleNamespace(
        scores=scores, values=values, names=names or [str(i + 1) for i in range(n)], order=permutation, block=block,
        every_step=every_step, steps=steps,
    )  # fmt: skip


def _step(keys, scores, values, m, l, alpha, acc, carried, seen):
    """The state after a block, as a namespace.

    keys: this block's keys, as indices into the stream. m, l, alpha: floats. acc, out: [d], out = acc / l.
    carried: [d], what is kept until the next block: acc, or out if normalised at every step. weights: [n], what each
    key counts in `carried`: exp(s - m), divided by l if normalised at every step. batch: [d], the softmax average over
    all keys fed so far, computed at one go.
    """
    d, out, batch = values.shape[1], normalise_state(l, acc), stable_softmax(scores[seen]) @ values[seen]
    return SimpleNamespace(
        keys=keys, m=float(m), l=float(l), alpha=float(alpha), acc=acc[:d], out=out[:d], carried=carried[:d],
        weights=carried[d:], batch=batch,
    )  # fmt: skip


def stream_state(stream, order, block, every_step, step):
    """What stream.js draws.

    stream: a key of `streams`, or (such a key, scores of its keys, None for a masked one). order, block, every_step: as
    of `run`; an order of another stream's keys is taken for "as given". step: by which scores are dragged; None: not
    at all.
    """
    name, own = (stream, None) if isinstance(stream, str) else stream
    given, values, names = streams()[name]
    stream_scores = given if own is None else np.array([-np.inf if x is None else x for x in own], float)
    order = order if isinstance(order, str) or len(order) == len(given) else "as given"
    model = run(stream_scores, values, names=names, block=block, order=order, every_step=every_step)
    visible = given[np.isfinite(given)]
    low, high = min(int(visible.min()) - 1, 0), int(visible.max()) + 3
    arrived, of = model.order.tolist(), "the output, exp(s - m) / l" if every_step else "acc, exp(s - m)"
    masked = "" if np.isfinite(stream_scores).all() else "; no bar: masked"
    return {
        "settings": {"stream": stream, "order": order, "block": model.block, "every_step": every_step, "step": step},
        "stream": name, "order": arrived, "keys": [model.names[key] for key in arrived],
        "scores": [_finite(score) for score in model.scores[arrived]],
        "texts": [_decimals(score) for score in model.scores[arrived]],
        "values": values[arrived].round(3).tolist(), "answer": model.steps[-1].batch.round(3).tolist(),
        "captions": [
            f"{'Drag the scores' if step else 'Scores'}; line: maximum m{masked}", f"Weights in {of}; dashed: before"
        ],
        "cards": CARDS[:3] + [CARDS[3 + every_step]] + CARDS[5:], "opens": 3,
        "axes": {
            "score": axis(low, high, range(low, high + 1, 2)), "weight": axis(0, 1.12, (0, 0.5, 1)),
            **{name: _around(column) for name, column in zip(("first", "second"), values.T, strict=True)},
        },
        "drag": {"low": low, "high": high, "step": step, "places": step == DRAGGED_BY},
        "m": [_finite(step.m) for step in model.steps], "out": [step.out.round(3).tolist() for step in model.steps],
        "fed": np.cumsum([len(step.keys) for step in model.steps]).tolist(),
        "weights": [step.weights[arrived].round(3).tolist() for step in model.steps],
        "numbers": [_numbers(model, fed) for fed in range(len(model.steps))],
    }  # fmt: skip


def _numbers(model, fed):
    """What the cards say after `fed` blocks."""
    now = model.steps[fed]
    vectors = [vector(x, _decimals) for x in (now.carried, now.out, now.batch)]
    return [*map(_decimals, (now.m, now.alpha, now.l)), *vectors, str(fed if model.every_step else min(fed, 1))]


def _finite(x):
    return float(x) if np.isfinite(x) else None


def _around(numbers):
    low, high = int(np.floor(numbers.min())), int(np.ceil(numbers.max()))
    return axis(low - 0.3, high + 0.5, range(low, high + 1))


def _decimals(x):
    return number(x, 3)


def draw_corrections(model):
    """The running state over the whole stream: m, l with each fall by alpha and each rise, the output."""
    moved = [block for block, step in enumerate(model.steps[1:], start=1) if block > 1 and step.alpha < 1]
    alt = (
        f"Over {len(model.steps) - 1} blocks: scores with the running maximum, the running normaliser l, the output. "
        f"The maximum moves at blocks {', '.join(map(str, moved))}, where the old terms shrink; in the end l is "
        f"{_decimals(model.steps[-1].l)} and the output {vector(model.steps[-1].out, _decimals)}."
    )
    figure = figures.Picture(5.8, alt=alt)
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(1, 1.3, 1))
    figure.subplots_adjust(left=0.065, right=0.985, bottom=0.085, top=0.95, hspace=0.36)
    steps = model.steps[1:]
    j = np.arange(1, len(steps) + 1)

    tidy(top, title="scores (dots) and the running maximum m (line)", y="score")
    block_of_key = np.arange(len(model.order)) // model.block
    top.plot(block_of_key + 1, model.scores[model.order], "o", color=BLUE, markersize=5)
    edges = np.arange(len(steps) + 1) + 0.5
    top.stairs([step.m for step in steps], edges, baseline=None, color=INK, linewidth=1.8)

    tidy(middle, title=r"the running normaliser $l$: old terms shrink by $\alpha$, new ones join", y=r"$l$")
    l = np.array([step.l for step in model.steps])
    kept_l = l[:-1] * [step.alpha for step in steps]
    moved = l[:-1] > kept_l
    middle.bar(j, kept_l, width=0.7, color=BLUE, label=r"old terms, $\alpha\, l_{old}$")
    middle.bar(j, l[1:] - kept_l, bottom=kept_l, width=0.7, color=ORANGE, label="this block's terms")
    middle.bar(j[moved], l[:-1][moved], label=r"$l_{old}$, before the maximum moved", **BEFORE)
    middle.set_ylim(0, 1.35 * l.max())
    legend(middle, loc="upper left", ncols=3)

    tidy(bottom, title="the output so far, and the answer over all keys (dashed)", x="blocks fed", y="output")
    for component, colour in enumerate((GREEN, PURPLE)):
        path = [step.out[component] for step in steps]
        bottom.plot(j, path, marker="o", markersize=4, color=colour, label=f"component {component + 1}")
        bottom.axhline(model.steps[-1].batch[component], color=colour, linewidth=1, linestyle="--")
    bottom.set_xticks(j)
    legend(bottom, ncols=2)
    return figure


def draw_merge_trees(scores, values, names):
    """Two trees that merge the states of single keys, one after another and in pairs; m, l, acc at each node.

    scores: [n]; values: [n, 2]; names: [n]; n a power of two; float64.
    """
    empty = np.float64(-np.inf), np.float64(0), np.zeros(values.shape[1])
    states = [online_softmax_update(*empty, scores[i : i + 1], values[i : i + 1]) for i in range(len(scores))]
    leaves = [(x, 0, state) for x, state in enumerate(states)]
    m, l, acc = reduce(merge_states, states)
    alt = (
        f"Two trees merge the states of {', '.join(names)}: one after another, and in pairs. Both end at m {m:.0f}, "
        f"l {l:.3f}, acc {vector(acc, number)}."
    )
    figure, every = figures.panels(3.9, 1, 1, left=0.01, right=0.99, below=0.1, wspace=0.05, alt=alt)
    for axes, title in zip(every, ("one after another", "in pairs"), strict=True):
        tidy(axes, title=title)
        axes.set_axis_off()
        nodes = leaves
        while len(nodes) > 1:
            n_merges = 1 if title == "one after another" else len(nodes) // 2
            merged = [_draw_merge(axes, *nodes[2 * i : 2 * i + 2]) for i in range(n_merges)]
            nodes = merged + nodes[2 * n_merges :]
        for leaf, name in zip(leaves, names, strict=True):
            _draw_state(axes, *leaf, name)
        axes.set_xlim(-0.6, len(leaves) - 0.4)
        axes.set_ylim(-0.5, nodes[0][1] + 0.5)
    return figure


def _draw_merge(axes, left, right):
    """The node above two: its state is theirs merged."""
    x, y = (left[0] + right[0]) / 2, max(left[1], right[1]) + 1
    for child in (left, right):
        axes.plot([child[0], x], [child[1], y], color=GREY, linewidth=1.2, zorder=1)
    node = x, y, merge_states(left[2], right[2])
    _draw_state(axes, *node, "merged")
    return node


def _draw_state(axes, x, y, state, name):
    m, l, acc = state
    text = f"{name}\nm {m:.0f}   l {l:.3f}\nacc ({acc[0]:.2f}, {acc[1]:.2f})"
    box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": BLUE}
    label(axes, x, y, text, size=8, bbox=box, zorder=2)


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
    named, start = streams(), {"stream": "the sentence", "order": "as given", "block": 1, "every_step": False}
    controls = [
        choices("menu", "stream", "stream", dict(zip(named, named, strict=True))),
        choices("menu", "order", "order", dict(zip(ORDERS, ORDERS, strict=True))),
        choices("slider", "block", "block size", range(1, 13)),
        choices("buttons", "every_step", "divide by l", {"once, at the end": False, "at every step": True}),
    ]
    # A page without a kernel has orders and blocks of the streams as they are; for the sentence, scores of 1 to 4.
    grid = [
        {"stream": name, "order": order, "block": block, "every_step": every_step, "step": 1 if len(s) == 4 else None}
        for (name, (s, _, _)), order in product(named.items(), ORDERS)
        for block, every_step in product([n for n in (1, 2, 3, 4, 6, 12) if n <= len(s)], (False, True))
    ]
    grid += [start | {"stream": ["the sentence", list(own)], "step": 1} for own in product(range(1, 5), repeat=4)]
    alt = (
        "Three panels after the third of four blocks. Scores 1, 2 and 3 have been fed, 4 waits; the running maximum is "
        "3. The weights of the first two keys have shrunk to 0.135 and 0.368, below their dashed outlines of one block "
        "ago, as the third key raised the maximum. In the plane of the values the output approaches the answer."
    )
    return SvgExplorer("stream", stream_state, start | {"step": DRAGGED_BY}, controls=controls, grid=grid, alt=alt)
