"""Lesson 11's explorer, and its pictures: rungs of the ladder as the model counts them, and as they were measured.

`evaluate` is the model: counts and times from `bench.ladder_model`, measured rates from the records. `draw` shows it,
`explore` is the widget.
"""

from types import SimpleNamespace

import numpy as np

from course_lib import traffic
from course_lib.hardware import GPUS
from courseware.bench import ladder_model, records

from .drawing import shaded, stacked
from .figures import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, VERMILLION, label, legend, panels, tidy
from .measured import shape_of
from .roofline import roof_tflops
from .shell import Explorer, buttons, choice, menu, tick

PARTS = {"products": BLUE, "instructions": ORANGE, "waiting": GREY, "empty places": PALE}
RECORDS = {"H100": "ladder-h100", "H200": "ladder-h200"}


def verdict(predicted, measured):
    """A predicted gain against the clock. Within 5 % is as predicted; a gain under 2 % either way is no change."""
    if 1 / 1.05 <= measured / predicted <= 1.05:
        return "as predicted"
    if abs(measured - 1) < 0.02:
        return "no change, predicted otherwise"
    if abs(predicted - 1) >= 0.02 and (measured > 1) != (predicted > 1):
        return "the other way"
    return "more than predicted" if measured > predicted else "less than predicted"


def evaluate(rung, n=4096, causal=False, gpu="H100"):
    """A rung, by name, of a length, a mask and a GPU of the records, as a namespace.

    rung: the Rung. counts: as `predict_rung` takes them. parts: name -> clocks of one SM for each 64 x 64 scores that
    are not hidden; measured_clocks: the same by the record. tflops, formula_tflops: measured, and by the model.
    parent: this of the rung that it builds on, None for the first; with one, gains relative to it: written (before it
    was measured), formula, measured; and verdict, of what was written. None stands for what was not measured.
    """
    from courseware.bench.triton_ladder import RUNGS

    (found,) = (one for one in RUNGS if one.name == rung)
    counts = ladder_model.counts_of(rung, n, causal)
    model = SimpleNamespace(rung=found, n=n, causal=causal, gpu=gpu, counts=counts, parent=None, tflops=None)
    flops = 4 * ladder_model.HEAD_DIM * n * ladder_model.ROWS / (2 if causal else 1)
    useful = flops / (4 * ladder_model.HEAD_DIM * 64 * 64)
    most = -(-counts["programs"] // ladder_model.GPU["sms"])  # programs of the busiest multiprocessor
    clocks = {
        "products": counts["product_clocks"],
        "instructions": counts["instructions"] * counts["warps"] / ladder_model.GPU["schedulers"],
        "waiting": counts["wait_clocks"] / min(counts["resident"], most),
    }
    model.parts = {name: each * counts["tiles"] * counts["programs"] / useful for name, each in clocks.items()}
    model.parts["empty places"] = (most * ladder_model.GPU["sms"] / counts["programs"] - 1) * sum(model.parts.values())
    model.formula_tflops = flops / ladder_model.predict_rung(counts, ladder_model.GPU) / 1e12
    for row in records.rows(RECORDS[gpu], rung=rung, n=n, causal=causal):
        model.tflops = row["tflops"]
    model.measured_clocks = model.tflops and sum(model.parts.values()) * model.formula_tflops / model.tflops
    if found.builds_on:
        model.parent = parent = evaluate(found.builds_on, n, causal, gpu)
        model.written = found.predicted_gain["causal" if causal else "full"]
        model.formula = model.formula_tflops / parent.formula_tflops
        model.measured = model.tflops and model.tflops / parent.tflops
        model.verdict = model.tflops and verdict(model.written, model.measured)
    return model


def draw(*models):
    """Each model's clocks as a bar of its parts, and a mark where its measured time is."""
    first = models[0]
    shape = f"N = {first.n:,}, d = {ladder_model.HEAD_DIM}, {'causal' if first.causal else 'no mask'}, fp16"
    note = f"{shape}; {records.provenance(RECORDS[first.gpu])}; counted by triton {records.record('rungs')['triton']}"
    height = 1.5 + 0.42 * len(models)
    said = [f"{m.rung.name}: predicted {sum(m.parts.values()):,.0f} clocks" for m in models]
    measured = [f", measured {m.measured_clocks:,.0f}" if m.tflops else "" for m in models]
    alt = f"Clocks for each 64 x 64 scores. {'; '.join(map(''.join, zip(said, measured, strict=True)))}."
    figure, (axes,) = panels(height, left=0.16, below=0.85, above=0.62, note=note, alt=alt)
    bars = {m.rung.name: [("", m.parts[part], colour) for part, colour in PARTS.items()] for m in models}
    notes = [
        f"predicted {m.formula_tflops:.0f}, measured {m.tflops:.0f} TFLOP/s" if m.tflops else "not measured here"
        for m in models
    ]
    ends = [max(sum(m.parts.values()), m.measured_clocks or 0) for m in models]
    stacked(axes, bars, notes, end=1.5 * max(ends), behind=ends)
    for y, model in enumerate(models):
        if model.measured_clocks:
            axes.plot(2 * [model.measured_clocks], [y - 0.42, y + 0.42], color=VERMILLION, linewidth=2.5)
    tidy(axes, x="clocks of one multiprocessor for each 64 x 64 visible scores")
    axes.spines["left"].set_visible(False)
    handles = [axes.barh(0, 0, color=colour, label=part) for part, colour in PARTS.items()]
    handles += axes.plot([], [], color=VERMILLION, linewidth=2.5, label="measured")
    legend(figure, handles=handles, ncols=5, loc="upper left", bbox_to_anchor=(0.15, 1.0))
    return figure


def describe(model):
    """The model in words and numbers, as HTML."""
    counts = model.counts
    arrives = f"{counts['wait_clocks']:,} clocks until it is there" if counts["wait_clocks"] else "fetched ahead"
    text = (
        f"<b>{model.rung.name}</b>: {model.rung.idea}<br>{counts['programs']:,} programs of {counts['warps']} warps, "
        f"{counts['resident']} at a time on a multiprocessor, {counts['tiles']:,g} tiles of keys each. For a tile: "
        f"{counts['product_clocks']:,.0f} clocks of products, {counts['instructions']:,.0f} instructions; {arrives}."
        "<br>"
    )
    if model.parent is None:
        return text + "The first rung is measured against none."
    text += f"Over <b>{model.rung.builds_on}</b>: predicted {model.written:.2f} times as fast before it was measured"
    text += f", {model.formula:.2f} by these counts"
    return text + (f"; measured {model.measured:.2f}: {model.verdict}." if model.tflops else "; not measured here.")


def explore():
    """The explorer as a widget: a rung, a length, the mask and the GPU that it was measured on."""
    from courseware.bench.triton_ladder import RUNGS

    def shown(model):
        return draw(*filter(None, (model.parent, model)))

    return Explorer(
        evaluate, describe, shown,
        {"rung": menu("rung", [rung.name for rung in RUNGS], "prefetch")},
        {"n": choice("N", [("1,024", 1024), ("4,096", 4096)], 4096), "causal": tick("causal", False)},
        {"gpu": buttons("GPU", RECORDS, "H100")},
    )  # fmt: skip


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
        return (values[:, None] > values).sum(axis=1) + ((values[:, None] == values).sum(axis=1) - 1) / 2

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
