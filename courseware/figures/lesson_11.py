"""Lesson 11's last figure and table: block sizes, predicted and measured."""

import numpy as np

from course_lib import traffic
from course_lib.hardware import GPUS
from courseware.explorers.roofline import roof_tflops
from courseware.explorers.svg import BLUE, GREEN, GREY, PURPLE

from .base import INK, PALE, label, panels, shaded, tidy
from .lesson_10 import shape_of

# Block sizes, predicted and measured: the record sweep-h100.


def sweep_table(rows):
    """[(block_q, block_k, predicted TFLOP/s, measured)], the best of all warps and stages, of rows of one shape.

    Predicted is the H100's roof at the bytes requested. Measured is None where no configuration fitted.
    """
    best = {}
    for row in rows:
        blocks = row["block_q"], row["block_k"]
        best[blocks] = max(best.get(blocks) or 0, row.get("tflops") or 0) or None
    n, d, causal = (rows[0][key] for key in ("n", "head_dim", "causal"))
    flops = traffic.attention_flops(n, n, d) / (2 if causal else 1)
    table = []
    for (block_q, block_k), measured in sorted(best.items()):
        requested = traffic.flash_attention(n, n, d, block_q=block_q, block_k=block_k, causal=causal)
        table.append((block_q, block_k, roof_tflops(GPUS["H100"], flops / requested.total_bytes), measured))
    return table


def rank_agreement(a, b):
    """Spearman's coefficient of two lists: 1 if they rank alike, -1 if one ranks the other way, near 0 if neither."""

    def ranks(values):
        values = np.asarray(values, dtype=np.float64)
        return (values[:, None] > values).sum(axis=1) + (values[:, None] == values).sum(axis=1) / 2

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def draw_sweep(rows):
    """Three panels of block_q by block_k: the roof's prediction, the measured rate, and one against the other."""
    table = sweep_table(rows)
    mask = "causal" if rows[0]["causal"] else "full"
    note = f"N = {rows[0]['n']:,}, {mask}, {shape_of(rows, 'sweep-h100')}"
    best = max(table, key=lambda row: row[3] or 0)
    alt = (
        f"Predicted and measured TFLOP/s of {len(table)} tiles, as tables, and one against the other. Measured best: "
        f"{best[3]:.0f} with {best[0]} queries and {best[1]} keys a tile, predicted {best[2]:.0f}."
    )
    figure, (left, middle, right) = panels(3.6, 1, 1, 1, left=0.06, above=0.66, note=note, alt=alt)
    sizes_q, sizes_k = (sorted({row[i] for row in table}) for i in (0, 1))
    for axes, column, title in ((left, 2, "predicted TFLOP/s"), (middle, 3, "measured TFLOP/s")):
        values = {row[:2]: row[column] for row in table}
        grid = np.array([[values.get((q, k)) or np.nan for k in sizes_k] for q in sizes_q])
        shaded(axes, grid, sizes_q, sizes_k, write=lambda rate: "-" if np.isnan(rate) else f"{rate:.0f}")
        axes.set_title(f"{title}: B_r by B_c", loc="left", y=1.1, fontsize=10.5, color=INK)
    for block_q, colour in zip(sizes_q, (PALE, GREY, PURPLE, BLUE, GREEN), strict=False):
        pairs = [row[2:] for row in table if row[0] == block_q and row[3]]
        right.plot(*zip(*pairs, strict=True), "o", color=colour)
        label(right, pairs[0][0], max(rate for _, rate in pairs) + 45, f"{block_q}", color=INK)
    top = 1.08 * max(max(row[2], row[3] or 0) for row in table)
    right.plot([0, top], [0, top], ":", color=GREY, linewidth=1)
    tidy(right, title="measured against predicted, by B_r", x="predicted, TFLOP/s")
    return figure
