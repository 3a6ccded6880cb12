"""Lesson 04's figure: who sees whom."""

import numpy as np

from courseware.explorers.svg import BLUE, GREY

from .base import INK, bare, cells, panels, tidy


def draw_masks(masks):
    """Which query (row) sees which key (column). masks: title -> [n_q, n_k] of bool."""
    seen = "; ".join(f"{title}: {', '.join(map(str, mask.sum(1)))}" for title, mask in masks.items())
    alt = f"Grids of queries by keys, filled where a query sees a key. Keys that each query sees, of {seen}."
    figure, every = panels(2.6, *[1] * len(masks), left=0.05, below=0.13, above=0.68, wspace=0.3, alt=alt)
    for axes, (title, mask) in zip(every, masks.items(), strict=True):
        cells(axes, mask, ("white", BLUE), edgecolors=GREY, linewidth=0.8)
        axes.invert_yaxis()
        axes.set_aspect("equal")
        axes.set_title(title, loc="left", pad=10, fontsize=10.5, color=INK)
        axes.set_xticks(np.arange(mask.shape[1]) + 0.5, range(mask.shape[1]))
        axes.set_yticks(np.arange(mask.shape[0]) + 0.5, range(mask.shape[0]))
        axes.xaxis.tick_top()
        bare(axes)
    tidy(every[0], x="key", y="query")
    every[0].xaxis.set_label_position("top")
    return figure
