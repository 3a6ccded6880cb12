"""Lesson 05's explorer: feed a stream of scores block by block and watch m, l, alpha and acc.

`run` is the model: every step's state, computed by `course_lib.reference`. `draw` shows one moment of it,
`draw_corrections` all of it, `draw_merge_trees` two ways to merge the same states. `explore` is the widget.
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np

from course_lib.reference import example, merge_states, online_softmax_update, scores, stable_softmax
from course_lib.reference.softmax import normalise_state

from . import figures
from .drawing import curves, names_below
from .figures import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, VERMILLION, corner, label, legend, panel, tidy
from .shell import Explorer, buttons, menu, slider
from .words import number, plain, vector

ORDERS = ("as given", "ascending", "descending", "shuffled")
AT_THE_END, EVERY_STEP = "once, at the end", "at every step"
# Bars of what was there before a step.
BEFORE = {"width": 0.7, "facecolor": "none", "edgecolor": VERMILLION, "linestyle": "--", "linewidth": 1.3}


@dataclass(frozen=True)
class Step:
    """The state after one block; `steps[0]` is the state before the first.

    keys: this block's keys, as indices into the stream. m, l, alpha: floats. acc, out: [d], out = acc / l.
    carried: [d], what is kept until the next block: acc, or out if normalised at every step.
    weights: [n], what each key counts in `carried`: exp(s - m), divided by l if normalised at every step.
    batch: [d], the softmax average over all keys fed so far, computed at one go.
    """

    keys: np.ndarray
    m: float
    l: float
    alpha: float
    acc: np.ndarray
    out: np.ndarray
    carried: np.ndarray
    weights: np.ndarray
    batch: np.ndarray


@dataclass(frozen=True)
class Run:
    """A stream of n keys, and the state after each block of it.

    scores: [n]; values: [n, d]; names: [n] labels of the keys; order: [n] indices in the order of feeding.
    `fed` of the blocks have been taken in; steps holds the states of all blocks, fed or not.
    """

    scores: np.ndarray
    values: np.ndarray
    names: tuple
    order: np.ndarray
    block: int
    fed: int
    every_step: bool
    steps: tuple

    @property
    def n_blocks(self):
        return len(self.steps) - 1

    @property
    def now(self):
        return self.steps[self.fed]


def run(scores, values, *, names=None, block=1, order="as given", fed=None, normalise=AT_THE_END):
    """Feed scores [n] with values [n, d], float64, through the online softmax in blocks of `block` keys.

    names: [n] labels of the keys (None: 1 to n). order: one of ORDERS. fed: how many blocks have been taken
    in (None: all). normalise: AT_THE_END or EVERY_STEP. block and fed are clamped to what the stream allows.
    Returns a Run.
    """
    n, d = values.shape
    block = int(np.clip(block, 1, n))
    permutation = {
        "as given": np.arange(n),
        "ascending": np.argsort(scores, kind="stable"),
        "descending": np.argsort(-scores, kind="stable"),
        "shuffled": np.random.default_rng(5).permutation(n),
    }[order]
    every_step = normalise == EVERY_STEP
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
    fed = len(steps) - 1 if fed is None else int(np.clip(fed, 0, len(steps) - 1))
    names = tuple(names) if names is not None else tuple(str(i + 1) for i in range(n))
    return Run(scores, values, names, permutation, block, fed, every_step, tuple(steps))


def _step(keys, scores, values, m, l, alpha, acc, carried, seen):
    d = values.shape[1]
    batch = stable_softmax(scores[seen]) @ values[seen]
    out = normalise_state(l, acc)
    return Step(keys, float(m), float(l), float(alpha), acc[:d], out[:d], carried[:d], carried[d:], batch)


def describe(model):
    """The step in words and numbers, as HTML: every number is the model's, to three decimals."""
    now = model.now
    m, alpha, l = (_decimals(x) for x in (now.m, now.alpha, now.l))
    acc, carried, out, batch = (vector(x, _decimals) for x in (now.acc, now.carried, now.out, now.batch))
    if model.fed == 0:
        return f"<b>0 of {model.n_blocks} blocks.</b> Nothing seen: m = {m}, l = {l}, acc = {acc}."
    names = ", ".join(model.names[key] for key in now.keys)
    return (
        f"<b>Block {model.fed} of {model.n_blocks}</b> (keys: {names}). m = {m}, alpha = {alpha}, l = {l}; "
        f"carried: {'output' if model.every_step else 'acc'} = {carried}.<br>"
        f"Output over the keys so far: {out}; all at once: {batch}. "
        f"Divisions by l to get it: {model.fed if model.every_step else 1}."
    )


def _decimals(x):
    return number(x, 3)


def draw(model):
    """Three panels: scores with the running maximum, weights before and after alpha, the output's path."""
    alt = f"The stream's scores with the running maximum, the weights, and the output's path. {plain(describe(model))}"
    figure, (stream, weights, plane) = figures.panels(3.4, 1, 1, 1, left=0.055, alt=alt)
    _draw_stream(stream, model)
    _draw_weights(weights, model)
    for axes in (stream, weights):
        # Names of the keys in order of arrival below the plot, and a line between blocks.
        names_below(axes, [model.names[key] for key in model.order])
        _block_lines(axes, len(model.order), model.block)
    _draw_plane(plane, model)
    return figure


def _block_lines(axes, n, block):
    edges = np.arange(block, n, block) - 0.5
    axes.vlines(edges, 0, 1, transform=axes.get_xaxis_transform(), color=PALE, linewidth=0.8, zorder=0)


def _key_colours(model):
    """Colour of each key in order of arrival: fed before, fed in this step, not yet fed."""
    n_fed = sum(len(step.keys) for step in model.steps[: model.fed + 1])
    n_now = len(model.now.keys)
    return [BLUE] * (n_fed - n_now) + [ORANGE] * n_now + [PALE] * (len(model.order) - n_fed)


def _draw_stream(axes, model):
    tidy(axes, title="scores; line: running maximum m", x="key")
    s = model.scores[model.order]
    visible = np.isfinite(s)
    axes.bar(range(len(s)), np.where(visible, s, 0), width=0.7, color=_key_colours(model))
    for i in np.flatnonzero(~visible):
        label(axes, i, 0, "-inf", size=8, va="bottom")
    axes.axhline(0, color=GREY, linewidth=0.8)
    ends = np.cumsum([len(step.keys) for step in model.steps]) - 0.5
    fed = model.steps[1 : model.fed + 1]
    axes.hlines([step.m for step in fed], ends[: model.fed], ends[1 : model.fed + 1], color=INK, linewidth=2)
    axes.margins(y=0.08)
    axes.locator_params(axis="y", nbins=4, integer=True)


def _draw_weights(axes, model):
    what = "output: exp(s - m) / l" if model.every_step else "acc: exp(s - m)"
    tidy(axes, title=f"weights in {what}", x="key")
    axes.set(ylim=(0, 1.3), yticks=(0, 0.5, 1))
    now = model.now.weights[model.order]
    axes.bar(range(len(now)), now, width=0.7, color=_key_colours(model))
    if model.fed:
        before = model.steps[model.fed - 1].weights[model.order]
        axes.bar(np.flatnonzero(before), before[before > 0], **BEFORE)
    corner(axes, f"bars add up to {'1' if model.every_step and now.any() else f'l = {_decimals(model.now.l)}'}")
    corner(axes, "dashed: one block ago", line=1, color=VERMILLION)


def _draw_plane(axes, model):
    tidy(axes, title="values, output (line), answer (star)", x="first component", y="second component")
    values = model.values[model.order]
    axes.scatter(*values.T, s=30, color=_key_colours(model), edgecolors=GREY, linewidths=0.5)
    for key, value in zip(model.order, values, strict=True):
        axes.annotate(model.names[key], value, xytext=(4, 4), textcoords="offset points", fontsize=8, color=INK)
    axes.plot(*model.steps[-1].batch, marker="*", markersize=15, color="white", markeredgecolor=INK)
    if model.fed:
        path = np.array([step.out for step in model.steps[1 : model.fed + 1]])
        axes.plot(*path.T, color=GREEN, linewidth=1.6, marker="o", markersize=3)
        axes.plot(*path[-1], color=GREEN, marker="o", markersize=7)
    axes.margins(0.16)
    axes.locator_params(nbins=4, integer=True)


def draw_corrections(model):
    """The running state over the whole stream: m, l with each fall by alpha and each rise, the output.

    Returns a figure.
    """
    moved = [block for block, step in enumerate(model.steps[1:], start=1) if block > 1 and step.alpha < 1]
    alt = (
        f"Over {model.n_blocks} blocks: scores with the running maximum, the running normaliser l, and the output. The "
        f"maximum moves at blocks {', '.join(map(str, moved))}, where the old terms shrink; in the end l is "
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

    scores: [n]; values: [n, 2]; names: [n]; n a power of two; float64. Returns a figure.
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


def draw_weight_ratios(ratios, block):
    """By what factor a formula weighs each key too much or too little, key by key, on a logarithmic axis.

    ratios: name of a formula -> [n], the weight it gives each key over the right one. Returns a figure.
    """
    title, n = "the weight each formula gives a key, over the right weight", len(next(iter(ratios.values())))
    spans = [f"{name}: from {min(weights):.2g} to {max(weights):.2g}" for name, weights in ratios.items()]
    alt = f"The weight that each formula gives a key, over the right weight, for {n} keys. {'; '.join(spans)}."
    figure, axes = panel(3.0, left=0.09, alt=alt, title=title, x="key, counted from 0", y="ratio")
    axes.set_yscale("log")
    curves(axes, range(n), ratios, ((GREEN, "o"), (VERMILLION, "v"), (PURPLE, "^"), (BLUE, "s")))
    _block_lines(axes, n, block)
    axes.set_xticks(range(0, n, block))
    legend(axes)
    return figure


def streams():
    """The streams one can choose from: name -> (scores [n], values [n, 2], names [n])."""
    random = np.random.default_rng(9)
    twelve = random.normal(0, 2, 12), random.normal(0, 1, (12, 2)), None
    masked = np.where(np.arange(12) < 4, -np.inf, twelve[0]), twelve[1], None
    last_query = scores(example.Q[3:], example.K, 1.0)[0]
    return {
        "the sentence": (last_query, example.V, example.TOKENS),
        "12 random keys": twelve,
        "12 keys, first 4 masked": masked,
    }


def explore():
    """The explorer as a widget: stream, order, block size, blocks fed, when to normalise."""
    choices = streams()

    def model_of(stream, **chosen):
        stream_scores, values, names = choices[stream]
        return run(stream_scores, values, names=names, **chosen)

    return Explorer(
        model_of, describe, draw,
        {"stream": menu("stream", choices, "the sentence"), "order": menu("order", ORDERS, ORDERS[0])},
        {"block": slider("block size", 1, 4, 1), "fed": slider("blocks fed", 0, 4, 1)},
        {"normalise": buttons("divide by l", (AT_THE_END, EVERY_STEP), AT_THE_END)},
        ends={
            "block": lambda stream, **_: len(choices[stream][0]),
            "fed": lambda **chosen: model_of(**chosen).n_blocks,
        },
        play="fed",
    )  # fmt: skip
