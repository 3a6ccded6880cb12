"""Lesson 10's tables and pictures: what the records in course_lib/data say, beside what was predicted.

Each table is a function of rows as `course_lib.measure.records` hands them out, and each picture one of a table.
"""

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from course_lib import traffic
from course_lib.hardware import GPUS
from course_lib.measure import records

from .figures import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, VERMILLION, Picture, png, tidy

METHODS = {"standard": (VERMILLION, "s"), "flash": (BLUE, "o"), "sdpa_flash": (ORANGE, "^")}
NAMES = {"standard": "standard, in PyTorch", "flash": "this course", "sdpa_flash": "PyTorch's FlashAttention-2"}


class Still(Picture):
    """A Picture whose PNG has 256 colours at most and a third of the bytes: this lesson has many pictures."""

    def _repr_png_(self):
        buffer = io.BytesIO()
        pixels = Image.open(io.BytesIO(png(self))).convert("RGB")
        pixels.quantize(256, dither=Image.Dither.NONE).save(buffer, "png")
        return buffer.getvalue()


def _picture(height, columns, caption, *, bottom, wspace=0.22, left=0.075, **ratios):
    """A figure with `columns` axes side by side, and the record's name and origin at the foot."""
    figure = Still(height)
    axes = figure.subplots(1, columns, squeeze=False, **ratios)[0]
    figure.subplots_adjust(left=left, right=0.985, bottom=bottom, top=0.98 - 0.3 / height, wspace=wspace)
    figure.text(0.985, 0.02, caption, ha="right", fontsize=8.5, color=INK)
    return figure, axes


def growth(n, values):
    """Slope of log(values) against log(n): 1 is linear, 2 quadratic; 0 if the values are 0 and nothing grows."""
    pairs = [(x, y) for x, y in zip(n, values, strict=True) if y > 0]
    if len(pairs) < 2:
        return 0.0
    x, y = np.log(np.array(pairs, dtype=np.float64)).T
    return float(np.polyfit(x, y, 1)[0])


# The worklog.


@dataclass(frozen=True)
class Step:
    """One rung of the worklog: what was predicted, and what came of it. Gains are speeds relative to the rung that it
    builds on; those of the first are None. blind: it was predicted before anything like it had been timed."""

    name: str
    idea: str
    because: str
    kept: bool
    tflops: float
    predicted: float | None
    measured: float | None
    blind: bool = True

    @property
    def verdict(self):
        """The prediction against the clock. Within 5 % is as predicted; a gain under 2 % either way is no change."""
        if self.measured is None:
            return "where it begins"
        if 1 / 1.05 <= self.measured / self.predicted <= 1.05:
            return "as predicted"
        if abs(self.measured - 1) < 0.02:
            return "no change, predicted otherwise"
        if abs(self.predicted - 1) >= 0.02 and (self.measured > 1) != (self.predicted > 1):
            return "the other way"
        return "more than predicted" if self.measured > self.predicted else "less than predicted"


def steps(rungs, rows, causal):
    """The worklog as a list of Step, in the order of `rungs`, of the mask `causal`.

    rungs: of kernels.ladder, with name, idea, because, kept, builds_on, predicted_gain, a number for each of "full" and
    "causal", and timed_before. rows: of the record ladder-h100.
    """
    mask = "causal" if causal else "full"
    tflops = {row["rung"]: row["tflops"] for row in rows if row["causal"] == causal}
    worklog = []
    for rung in rungs:
        predicted = measured = None
        if rung.builds_on is not None:
            predicted = rung.predicted_gain[mask]
            measured = tflops[rung.name] / tflops[rung.builds_on]
        texts, blind = (rung.name, rung.idea, rung.because), mask not in rung.timed_before
        worklog.append(Step(*texts, rung.kept, tflops[rung.name], predicted, measured, blind))
    return worklog


def draw_worklog(full, causal):
    """Two lists of Step: TFLOP/s as bars, and the predicted gain (open) against the measured one (filled)."""
    names = [step.name for step in full]
    at = {name: i for i, name in enumerate(names)}
    row = records.rows("ladder-h100")[0]
    caption = f"grey: rejected; N = {row['n']:,}, {_shape_of([row], 'ladder-h100')}"
    height = 1.3 + 0.27 * len(names)
    figure, (bars, gains) = _picture(
        height, 2, caption, bottom=0.75 / height, left=0.2, wspace=0.05, sharey=True, width_ratios=(1, 1)
    )
    for worklog, offset, colour, label in ((full, -0.19, BLUE, "full"), (causal, 0.19, ORANGE, "causal")):
        rows = [at[step.name] + offset for step in worklog]
        colours = [colour if step.kept else PALE for step in worklog]
        bars.barh(rows, [step.tflops for step in worklog], height=0.36, color=colours, label=label)
        steps_with_gain = [(row, step) for row, step in zip(rows, worklog, strict=True) if step.measured]
        for row, step in steps_with_gain:
            shade = colour if step.kept else GREY
            gains.plot([step.predicted, step.measured], [row, row], color=shade, linewidth=1)
            gains.plot(step.predicted, row, "o", markersize=6, markerfacecolor="white", color=shade)
            gains.plot(step.measured, row, "o", markersize=6, color=shade)
    bars.set_yticks(range(len(names)), names)
    bars.invert_yaxis()
    tidy(bars, title="speed", x="TFLOP/s")
    bars.legend(frameon=False, fontsize=9)
    gains.set_xscale("log", base=2)
    ticks = [tick for tick in (0.125, 0.25, 0.5, 0.8, 1, 1.25, 1.6, 2, 3, 4) if _in_range(tick, full + causal)]
    gains.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    gains.axvline(1, color=GREY, linewidth=0.8)
    tidy(gains, title="gain: open predicted, filled measured", x="times as fast as the rung that it builds on")
    return figure


def _in_range(tick, worklog):
    gains = [gain for step in worklog if step.measured for gain in (step.predicted, step.measured)] + [1]
    return min(gains) / 1.3 <= tick <= max(gains) * 1.3


# Memory and time against the length: the record standard-h100.


def by_length(rows, method, key):
    """(lengths, values of `key`) of a method's rows, in the order of the lengths."""
    pairs = sorted((row["n"], row[key]) for row in rows if row["method"] == method)
    return [n for n, _ in pairs], [value for _, value in pairs]


def draw_memory(rows):
    """Peak bytes over inputs and outputs, measured, with the closed forms for S and P, and for lse."""
    figure, axes = _picture(3.4, 1, _shape_of(rows, "standard-h100"), bottom=0.23)
    for method, (colour, marker) in METHODS.items():
        n, peak_bytes = by_length(rows, method, "peak_bytes")
        if any(peak_bytes):
            axes[0].plot(n, peak_bytes, marker, color=colour, label=f"{NAMES[method]}, measured")
    n, heads = np.array(sorted({row["n"] for row in rows})), rows[0]["heads"]
    forms = {"standard": traffic.standard_attention, "flash": _flash_with_lse}
    for method, form in forms.items():
        values = [form(length, length, rows[0]["head_dim"], heads=heads).peak_bytes for length in n]
        name = "S and P: 4 N N bytes a head" if method == "standard" else "lse: 4 N bytes a head"
        axes[0].plot(n, values, ":", color=METHODS[method][0], label=name)
    _logarithmic(axes[0], n)
    tidy(axes[0], title="peak memory of a forward over its inputs and output", x="N", y="bytes")
    axes[0].legend(frameon=False, fontsize=9)
    return figure


def _flash_with_lse(n_q, n_k, d, **sizes):
    return traffic.flash_attention(n_q, n_k, d, block_q=64, block_k=64, return_lse=True, **sizes)


def draw_times(forward, both):
    """Milliseconds against the length: the forward alone, one of a train of forwards, forward and backward alone."""
    figure, axes = _picture(3.4, 3, _shape_of(forward, "standard-h100"), bottom=0.23, wspace=0.16, sharey=True)
    panels = (
        (forward, "ms", "forward"),
        (forward, "train_ms", "forward, in a train of calls"),
        (both, "ms", "both passes"),
    )
    for panel, (rows, key, title) in zip(axes, panels, strict=True):
        for method, (colour, marker) in METHODS.items():
            n, ms = by_length(rows, method, key)
            panel.plot(n, ms, marker=marker, markersize=5, color=colour, label=NAMES[method])
        _logarithmic(panel, [row["n"] for row in rows])
        tidy(panel, title=title, x="N")
    axes[0].set_ylabel("milliseconds", fontsize=9.5, color=INK)
    axes[0].legend(frameon=False, fontsize=9)
    return figure


def _shape_of(rows, name):
    row = rows[0]
    return f"d = {row['head_dim']}, {row['heads']} heads, batch {row['batch']}, fp16; {records.provenance(name)}"


def _logarithmic(axes, n):
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted(set(map(int, n)))[:: 2 if len(set(n)) > 6 else 1]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=9)
    axes.minorticks_off()


def faster_from(rows, key="ms", method="flash", than="standard"):
    """[(n, how many times as fast `method` is as `than`)] and the length from which on it is never slower, or None."""
    fast, slow = (dict(zip(*by_length(rows, name, key), strict=True)) for name in (method, than))
    ratios = [(n, slow[n] / fast[n]) for n in sorted(fast.keys() & slow.keys())]
    from_n = None
    for n, ratio in reversed(ratios):
        if ratio < 1:
            break
        from_n = n
    return ratios, from_n


# Bytes that programs request by the closed form, and bytes that the hardware counted: the record dram-h100.


@dataclass(frozen=True)
class Moved:
    """Bytes of one call, read and written: asked for by the closed form; counted where they leave and reach the
    multiprocessors, at L2, and at DRAM."""

    method: str
    n: int
    asked_bytes: int
    sm_bytes: float
    l2_bytes: float
    dram_bytes: float


def moved(rows):
    """A Moved for each row of the record dram-h100, all of the forward."""
    table = []
    for row in sorted(rows, key=lambda row: (row["method"], row["n"])):
        sizes = {"heads": row["heads"], "batch": row["batch"]}
        n, d = row["n"], row["head_dim"]
        if row["method"] == "standard":
            asked = traffic.standard_attention(n, n, d, **sizes)
        else:
            asked = traffic.flash_attention(n, n, d, block_q=row["block_q"], block_k=row["block_k"], **sizes)
        counted = (row[f"{level}_read_bytes"] + row[f"{level}_write_bytes"] for level in ("sm", "l2", "dram"))
        table.append(Moved(row["method"], n, asked.total_bytes, *counted))
    return table


def draw_dram(rows):
    """Bytes against the length: by the closed form (dotted), counted at three places, and Q, K, V, O once."""
    table, sizes = moved(rows), {key: rows[0][key] for key in ("heads", "batch")}
    figure, (axes,) = _picture(4.2, 1, _shape_of(rows, "dram-h100"), bottom=0.19)
    figure.subplots_adjust(right=0.72)
    for method in ("standard", "flash"):
        colour, marker = METHODS[method]
        calls = [call for call in table if call.method == method]
        n = [call.n for call in calls]
        axes.plot(n, [call.asked_bytes for call in calls], ":", color=colour, label=f"{NAMES[method]}: closed form")
        axes.plot(n, [call.sm_bytes for call in calls], "+", markersize=9, color=colour, label="at the multiprocessors")
        axes.plot(n, [call.l2_bytes for call in calls], "x", color=colour, label="at L2")
        axes.plot(n, [call.dram_bytes for call in calls], marker=marker, color=colour, label="at DRAM")
    d = rows[0]["head_dim"]
    once = [traffic.flash_attention(x, x, d, block_q=x, block_k=x, **sizes).total_bytes for x in n]
    axes.plot(n, once, "--", color=GREY, label="Q, K, V, O once")
    axes.axhline(GPUS["H100"].l2_bytes, color=GREEN, linewidth=1, label="the size of the H100's L2")
    _logarithmic(axes, n)
    tidy(axes, title="bytes of one forward, all heads, read and written", x="N", y="bytes")
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1.02))
    return figure


# Block sizes, predicted and measured: the record sweep-h100.


def sweep_table(rows):
    """[(block_q, block_k, predicted TFLOP/s, measured)], the best of all warps and stages, of rows of one shape.

    Predicted is the H100's roof at the bytes asked for. Measured is None where no configuration fitted.
    """
    gpu, best = GPUS["H100"], {}
    for row in rows:
        blocks = row["block_q"], row["block_k"]
        best[blocks] = max(best.get(blocks) or 0, row.get("tflops") or 0) or None
    table = []
    for (block_q, block_k), measured in sorted(best.items()):
        n, d, causal = rows[0]["n"], rows[0]["head_dim"], rows[0]["causal"]
        asked = traffic.flash_attention(n, n, d, block_q=block_q, block_k=block_k, causal=causal)
        flops = traffic.attention_flops(n, n, d) / (2 if causal else 1)
        memory_tflops = flops / asked.total_bytes * gpu.hbm_bytes_per_s / 1e12
        table.append((block_q, block_k, min(memory_tflops, gpu.fp16_tensor_tflops), measured))
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
    caption = _shape_of(rows, "sweep-h100")
    caption = f"N = {rows[0]['n']:,}, {'causal' if rows[0]['causal'] else 'full'}, {caption}"
    figure, (left, middle, right) = _picture(3.6, 3, caption, bottom=0.22, left=0.06, wspace=0.3)
    sizes_q, sizes_k = (sorted({row[i] for row in table}) for i in (0, 1))
    for axes, column, title in ((left, 2, "predicted, TFLOP/s"), (middle, 3, "measured, TFLOP/s")):
        values = {row[:2]: row[column] for row in table}
        grid = np.array([[values.get((q, k)) or np.nan for k in sizes_k] for q in sizes_q])
        axes.imshow(grid, cmap="Blues", vmin=0, vmax=1.6 * np.nanmax(grid), aspect="auto", origin="lower")
        for (i, j), value in np.ndenumerate(grid):
            text = "-" if np.isnan(value) else f"{value:.0f}"
            axes.text(j, i, text, ha="center", va="center", fontsize=9, color=INK)
        axes.set_xticks(range(len(sizes_k)), sizes_k)
        axes.set_yticks(range(len(sizes_q)), sizes_q)
        tidy(axes, title=title, x="B_c", y="B_r" if axes is left else None)
        axes.spines[:].set_visible(False)
    colours = dict(zip(sizes_q, (PALE, GREY, PURPLE, BLUE, GREEN), strict=False))
    for block_q in sizes_q:
        pairs = [row[2:] for row in table if row[0] == block_q and row[3]]
        right.plot(*zip(*pairs, strict=True), "o", color=colours[block_q], label=f"B_r = {block_q}")
    top = 1.08 * max(max(row[2], row[3] or 0) for row in table)
    right.plot([0, top], [0, top], ":", color=GREY, linewidth=1)
    tidy(right, title="measured against predicted", x="predicted, TFLOP/s")
    right.legend(frameon=False, fontsize=8)
    return figure


# Ours beside PyTorch's: the record attention-h100.


def draw_ratios(rows):
    """How many times as fast as each of PyTorch's, for every shape: forward and backward."""
    shapes = sorted({(row["head_dim"], row["causal"], row["n"]) for row in rows})
    labels = [f"d={d} {'causal' if causal else 'full'} {n // 1024}k" for d, causal, n in shapes]
    figure, axes = _picture(
        3.9, 2, records.provenance("attention-h100"), bottom=0.2, left=0.14, wspace=0.06, sharey=True
    )
    for panel, which in zip(axes, ("forward", "backward"), strict=True):
        ratios = {shape: {} for shape in shapes}
        for row in rows:
            if row["pass"] == which:
                tflops = row["tflops"]
                of = ratios[row["head_dim"], row["causal"], row["n"]]
                of.update({peer: tflops["ours"] / tflops[peer] for peer in tflops if peer != "ours"})
        for peer, name, colour, marker in (
            ("sdpa_flash", "over FlashAttention-2", ORANGE, "s"),
            ("sdpa_cudnn", "over cuDNN", GREEN, "^"),
            ("flex", "over FlexAttention", PURPLE, "D"),
        ):
            points = [(ratios[shape][peer], i) for i, shape in enumerate(shapes) if peer in ratios[shape]]
            panel.plot([x for x, _ in points], [y for _, y in points], marker, color=colour, label=name)
        panel.axvline(1, color=GREY, linewidth=0.8)
        panel.set_yticks(range(len(shapes)), labels)
        tidy(panel, title=which, x="times as fast")
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=9, ncols=3, loc="lower left")
    return figure


# Figure 2 of the FlashAttention paper (Dao et al., 2022): GPT-2 medium, N = 1024, d = 64, 16 heads, batch 64, forward
# and backward, on an A100: standard, FlashAttention.
PAPER = {"GFLOPs": (66.6, 75.2), "HBM, GB": (40.3, 4.4), "time, ms": (41.7, 7.3)}
FIGURE_2 = {"n": 1024, "head_dim": 64, "heads": 16, "batch": 64, "pass": "both"}


def figure_2(both, dram):
    """{name: (the paper's ratio standard / flash, ours)} from the rows at the shape FIGURE_2.

    both: of standard-h100, dram: of dram-h100, forward and backward either. FLOPs are counted: six
    products against the nine that the course's forward and two-pass backward execute.
    """
    n, d = FIGURE_2["n"], FIGURE_2["head_dim"]
    product = traffic.attention_flops(n, n, d) / 2
    executed = 2 * product + traffic.flash_attention_backward(n, n, d, block_q=64, block_k=64).flops
    ms = {row["method"]: row["ms"] for row in both}
    seen = {row["method"]: row["dram_read_bytes"] + row["dram_write_bytes"] for row in dram}
    ours = (6 * product / executed, seen["standard"] / seen["flash"], ms["standard"] / ms["flash"])
    papers = (standard / flash for standard, flash in PAPER.values())
    return dict(zip(PAPER, zip(papers, ours, strict=True), strict=True))


def draw_figure_2(ratios):
    """What `figure_2` returned, as bars: how many times as much standard attention takes."""
    caption = f"forward and backward; the paper: A100; here: {records.provenance('standard-h100')}"
    figure, (axes,) = _picture(2.9, 1, caption, bottom=0.2, left=0.06)
    for place, (label, colour) in enumerate((("the paper", GREY), ("here", BLUE))):
        heights = [pair[place] for pair in ratios.values()]
        at = np.arange(len(ratios)) + 0.38 * (place - 0.5)
        axes.bar(at, heights, width=0.36, color=colour, label=label)
        for x, height in zip(at, heights, strict=True):
            axes.text(x, height + 0.15, f"{height:.2f}", ha="center", fontsize=9, color=INK)
    axes.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(ratios)), ("FLOPs", "bytes of HBM", "time"))
    tidy(axes, title="standard attention over FlashAttention, GPT-2 medium's shape")
    axes.legend(frameon=False, fontsize=9)
    return figure


def draw_timings(ms):
    """Milliseconds of calls in the order in which they ran, with their mean and median."""
    figure = Still(2.5)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.075, right=0.985, bottom=0.2, top=0.86)
    axes.plot(range(1, len(ms) + 1), ms, "o", markersize=4, color=BLUE)
    axes.axhline(np.mean(ms), color=VERMILLION, linewidth=1.4, label=f"mean {np.mean(ms):.2f} ms")
    axes.axhline(np.median(ms), color=GREEN, linewidth=1.4, linestyle="--", label=f"median {np.median(ms):.2f} ms")
    axes.set_ylim(0, 1.1 * max(ms))
    tidy(axes, title="one function, timed again and again", x="call", y="milliseconds")
    axes.legend(frameon=False, fontsize=9)
    return figure
