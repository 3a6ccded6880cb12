"""Lesson 05's figures: the running state over a stream, and two ways to merge the same states."""

from functools import reduce

import numpy as np

from course_lib.reference import merge_states, online_softmax_update
from courseware.explorers.online_softmax import decimals
from courseware.explorers.svg import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILLION
from courseware.explorers.words import number, vector

from .base import INK, Picture, label, legend, panels, tidy

# Bars of what was there before a step.
BEFORE = {"width": 0.7, "facecolor": "none", "edgecolor": VERMILLION, "linestyle": "--", "linewidth": 1.3}


def draw_corrections(model):
    """The running state over the whole stream: m, l with each fall by alpha and each rise, the output."""
    moved = [block for block, step in enumerate(model.steps[1:], start=1) if block > 1 and step.alpha < 1]
    alt = (
        f"Over {len(model.steps) - 1} blocks: scores with the running maximum, the running normaliser l, the output. "
        f"The maximum moves at blocks {', '.join(map(str, moved))}, where the old terms shrink; in the end l is "
        f"{decimals(model.steps[-1].l)} and the output {vector(model.steps[-1].out, decimals)}."
    )
    figure = Picture(5.8, alt=alt)
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
    figure, every = panels(3.9, 1, 1, left=0.01, right=0.99, below=0.1, wspace=0.05, alt=alt)
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
