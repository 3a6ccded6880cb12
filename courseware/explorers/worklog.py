"""Lesson 11's explorer: rungs of the ladder as the model counts them, and as they were measured.

`evaluate` is the model: counts and times from `bench.ladder_model`, measured rates from the records. `draw` shows it.
"""

from functools import cache
from html import escape
from types import SimpleNamespace

from courseware.bench import ladder_model, records

from .explorer import Explorer, buttons, menu, tick
from .svg import Page, Panel

SOFTMAX = "instructions, or exponentials"  # whichever take longer
PARTS = {"products": "Q", SOFTMAX: "K", "waiting": "grey", "empty places": "skipped"}  # and their classes
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


@cache
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
        SOFTMAX: ladder_model.softmax_clocks(counts),
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
    """Each model's clocks as a bar of its parts, with a mark at its measured time, and the last in words: a Page."""
    first = models[0]
    mask, d = "causal" if first.causal else "no mask", ladder_model.HEAD_DIM
    ends = [max(sum(m.parts.values()), m.measured_clocks or 0) for m in models]
    step = next(clocks for clocks in (500, 1000, 2000, 5000, 10_000) if 6 * clocks > max(ends))
    panel = Panel(
        f"N = {first.n:,}, d = {d}, {mask}, fp16, {first.gpu}: clocks of one multiprocessor for each 64 x 64 visible "
        "scores", 720, 54 + 38 * len(models),
        (0, 1.85 * max(ends)), (len(models) - 0.5, -0.5), margins=(132, 4, 24, 22), grid="x",
        x_ticks=range(0, int(max(ends)) + 1, step),
    )  # fmt: skip
    panel.legend(PARTS | {"measured": "bad"})
    panel.stacked({m.rung.name: ([(name, m.parts[name], css) for name, css in PARTS.items()], "") for m in models})
    said = []
    for y, (model, end) in enumerate(zip(models, ends, strict=True)):
        note, predicted = "not measured here", sum(model.parts.values())
        said.append(f"{model.rung.name}: predicted {predicted:,.0f}")
        if model.measured_clocks:
            note = f"predicted {model.formula_tflops:.0f}, measured {model.tflops:.0f} TFLOP/s"
            tip = f"{model.rung.name}: {model.measured_clocks:,.0f} clocks measured, {predicted:,.0f} predicted"
            panel.line([(model.measured_clocks, y - 0.42), (model.measured_clocks, y + 0.42)], "bad thick", tip=tip)
            said[-1] += f", measured {model.measured_clocks:,.0f}"
        panel.text(end, y, note, "", right=8)
    source = f"{records.provenance(RECORDS[first.gpu])}; counted by triton {records.record('rungs')['triton']}"
    what = f"Clocks for each 64 x 64 scores. {'; '.join(said)}."
    return Page(what, (panel,), text=f"{describe(models[-1])} <small>{source}</small>")


def describe(model):
    """The model in words and numbers, as HTML."""
    counts = model.counts
    arrives = f"{counts['wait_clocks']:,} clocks until it is there" if counts["wait_clocks"] else "fetched ahead"
    text = (
        f"<b>{model.rung.name}</b>: {model.rung.idea}<br>{counts['programs']:,} programs of {counts['warps']} warps, "
        f"{counts['resident']} at a time on a multiprocessor, {counts['tiles']:,g} tiles of keys each. For a tile: "
        f"{counts['product_clocks']:,.0f} clocks of products, {counts['instructions']:,.0f} instructions of each warp, "
        f"{counts['exponentials']:,} exponentials; {arrives}.<br>"
    )
    if model.parent is None:
        return text + "The first rung is measured against none."
    from courseware.bench.triton_ladder import change_of

    diff = escape(change_of(model.rung.name))
    text += f"<details><summary>The change, as a diff</summary><pre>{diff}</pre></details>"
    text += f"Over <b>{model.rung.builds_on}</b>: predicted {model.written:.2f} times as fast before it was measured"
    text += f", {model.formula:.2f} by these counts"
    return text + (f"; measured {model.measured:.2f}: {model.verdict}." if model.tflops else "; not measured here.")


def page(rung, n, causal, gpu):
    """The page of the explorer's settings: the rung below the one that it builds on."""
    model = evaluate(rung, n, causal, gpu)
    return draw(*filter(None, (model.parent, model)))


def explore():
    """The explorer: a rung, a length, the mask and the GPU that it was measured on."""
    controls = {
        "rung": menu("rung", [row["rung"] for row in records.rows("rungs")], "prefetch"),
        "n": buttons("N", (1024, 4096), 4096), "causal": tick("causal"), "gpu": buttons("GPU", list(RECORDS)),
    }  # fmt: skip
    return Explorer(page, controls)
