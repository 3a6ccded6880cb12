"""Lesson 08's figure: recorded speeds of the forward."""

import numpy as np

from courseware.bench import records

from .base import legend, panels, tidy
from .lesson_10 import PEERS


def draw_speed():
    """Recorded TFLOP/s of the forward: a panel for each head dimension and mask, bars by length."""
    record = "attention-h100"
    rows = records.rows(record, **{"pass": "forward"})
    shapes = sorted({(row["head_dim"], row["causal"]) for row in rows})
    first = rows[0]  # tokens and heads times d are the same in all rows
    sizes = (
        f"batch x N = {first['batch'] * first['n']:,}, heads x d = {first['heads'] * first['head_dim']:,}, "
        f"{first['dtype']}"
    )
    rates = [
        f"d = {row['head_dim']}, {'causal' if row['causal'] else 'full'}, N = {row['n']:,}: "
        f"{row['tflops']['ours']:.0f} and {row['tflops']['sdpa_flash']:.0f}"
        for row in rows
    ]
    place = {"left": 0.06, "above": 0.8, "wspace": 0.15, "note": f"{sizes}; {records.provenance(record)}"}
    place["alt"] = f"Bars of TFLOP/s, forward, of which this course and FlashAttention-2: {'; '.join(rates)}."
    figure, every = panels(3.2, *[1] * len(shapes), sharey=True, **place)
    for axes, (d, causal) in zip(every, shapes, strict=True):
        shown = sorted((r for r in rows if (r["head_dim"], r["causal"]) == (d, causal)), key=lambda r: r["n"])
        for place, (key, (name, colour, _)) in enumerate(PEERS.items()):
            heights = [row["tflops"].get(key, 0) for row in shown]
            offset = 0.21 * (place - (len(PEERS) - 1) / 2)
            axes.bar(np.arange(len(shown)) + offset, heights, width=0.19, color=colour, label=name)
        axes.set_xticks(range(len(shown)), [f"{row['n']:,}" for row in shown])
        tidy(axes, title=f"d = {d}, {'causal' if causal else 'full'}", x="N", y="TFLOP/s" if axes is every[0] else None)
    legend(every[0], loc="lower left", bbox_to_anchor=(-0.02, 1.17), ncols=len(PEERS))
    return figure
