"""Lesson 10's tables and pictures: what the records in course_lib/data say, beside what was predicted.

Each table is a function of rows as `course_lib.measure.records` hands them out, and each picture one of a table.
"""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from course_lib import traffic
from course_lib.hardware import GPUS
from course_lib.measure import records

from .drawing import curves, log_axes, shaded
from .figures import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, VERMILLION, legend, panel, panels, tidy
from .roofline import roof_tflops

METHODS = {"standard": (VERMILLION, "s"), "flash": (BLUE, "o"), "sdpa_flash": (ORANGE, "^")}
NAMES = {"standard": "standard, in PyTorch", "flash": "this course", "sdpa_flash": "PyTorch's FlashAttention-2"}


def growth(n, values):
    """Slope of log(values) against log(n): 1 is linear, 2 quadratic; 0 if the values are 0 and nothing grows."""
    pairs = [(x, y) for x, y in zip(n, values, strict=True) if y > 0]
    if len(pairs) < 2:
        return 0.0
    x, y = np.log(np.array(pairs, dtype=np.float64)).T
    return float(np.polyfit(x, y, 1)[0])


# The worklog.


def verdict(predicted, measured):
    """A predicted gain against the clock. Within 5 % is as predicted; a gain under 2 % either way is no change."""
    if measured is None:
        return "where it begins"
    if 1 / 1.05 <= measured / predicted <= 1.05:
        return "as predicted"
    if abs(measured - 1) < 0.02:
        return "no change, predicted otherwise"
    if abs(predicted - 1) >= 0.02 and (measured > 1) != (predicted > 1):
        return "the other way"
    return "more than predicted" if measured > predicted else "less than predicted"


def steps(rungs, rows, causal):
    """The worklog of one mask: a namespace for each rung, in the order of `rungs`.

    rungs: of kernels.ladder, with name, because, kept, builds_on, predicted_gain, a number for each of "full" and
    "causal", and timed_before. rows: of the record ladder-h100. Each namespace has name, because, kept, tflops;
    predicted and measured, its speed relative to the rung that it builds on, None for the first; verdict; and blind:
    it was predicted before anything like it had been timed.
    """
    mask = "causal" if causal else "full"
    tflops = {row["rung"]: row["tflops"] for row in rows if row["causal"] == causal}
    worklog = []
    for rung in rungs:
        step = SimpleNamespace(name=rung.name, because=rung.because, kept=rung.kept, tflops=tflops[rung.name])
        step.predicted = step.measured = None
        if rung.builds_on is not None:
            step.predicted, step.measured = rung.predicted_gain[mask], step.tflops / tflops[rung.builds_on]
        step.verdict, step.blind = verdict(step.predicted, step.measured), mask not in rung.timed_before
        worklog.append(step)
    return worklog


def draw_worklog(full, causal):
    """Two lists of Step: TFLOP/s as bars, and the predicted gain (open) against the measured one (filled)."""
    names, row = [step.name for step in full], records.rows("ladder-h100")[0]
    note = f"grey: rejected; N = {row['n']:,}, {_shape_of([row], 'ladder-h100')}"
    speeds = "; ".join(f"{step.name}: {step.tflops:.0f}" for step in full)
    place = {"left": 0.2, "wspace": 0.05, "alt": f"TFLOP/s of each rung, full: {speeds}."}
    figure, (bars, gains) = panels(1.3 + 0.27 * len(names), 1, 1, note=note, sharey=True, **place)
    for worklog, offset, colour, name in ((full, -0.19, BLUE, "full"), (causal, 0.19, ORANGE, "causal")):
        places = np.arange(len(names)) + offset
        shades = [colour if step.kept else PALE for step in worklog]
        bars.barh(places, [step.tflops for step in worklog], height=0.36, color=shades, label=name)
        for place, step in zip(places, worklog, strict=True):
            if step.measured:
                style = {"color": colour if step.kept else GREY, "markersize": 6}
                gains.plot([step.predicted, step.measured], [place, place], "o-", linewidth=1, **style)
                gains.plot(step.predicted, place, "o", markerfacecolor="white", **style)
    bars.set_yticks(range(len(names)), names)
    bars.margins(y=0.01)
    bars.invert_yaxis()
    tidy(bars, title="speed", x="TFLOP/s")
    legend(bars)
    gains.set_xscale("log", base=2)
    low, high = gains.get_xlim()
    ticks = (0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4)
    log_axes(gains, [tick for tick in ticks if low < tick < high], y_base=None)
    gains.axvline(1, color=GREY, linewidth=0.8)
    tidy(gains, title="gain: open predicted, filled measured", x="times as fast as the rung that it builds on")
    return figure


# Memory and time against the length: the record standard-h100.


def by_length(rows, method, key):
    """(lengths, values of `key`) of a method's rows, in the order of the lengths."""
    pairs = sorted((row["n"], row[key]) for row in rows if row["method"] == method)
    return [n for n, _ in pairs], [value for _, value in pairs]


def draw_memory(rows):
    """Peak bytes over inputs and outputs, measured, with the closed forms for S and P, and for lse."""
    title, note = "peak memory of a forward over its inputs and output", _shape_of(rows, "standard-h100")
    alt = f"Peak bytes against N. {_ends(rows, 'peak_bytes', ',.0f', 'bytes')}."
    figure, axes = panel(3.4, note=note, alt=alt, title=title, x="N", y="bytes")
    for method, (colour, marker) in METHODS.items():
        n, peak_bytes = by_length(rows, method, "peak_bytes")
        if any(peak_bytes):
            axes.plot(n, peak_bytes, marker, color=colour, label=f"{NAMES[method]}, measured")
    n, d, heads = sorted({row["n"] for row in rows}), rows[0]["head_dim"], rows[0]["heads"]
    flash = {"block_q": 64, "block_k": 64, "return_lse": True, "heads": heads}
    forms = {
        "S and P: 4 N N bytes a head": [traffic.standard_attention(x, x, d, heads=heads).peak_bytes for x in n],
        "lse: 4 N bytes a head": [traffic.flash_attention(x, x, d, **flash).peak_bytes for x in n],
    }
    curves(axes, n, forms, ((METHODS["standard"][0], ":"), (METHODS["flash"][0], ":")))
    _log_lengths(axes, n)
    legend(axes)
    return figure


def _ends(rows, key, write, unit):
    """What each method's values of `key` come to from the shortest to the longest length, in words."""
    ends = []
    for method in METHODS:
        n, values = by_length(rows, method, key)
        ends.append(f"{NAMES[method]}: {values[0]:{write}} {unit} at N = {n[0]:,}, {values[-1]:{write}} at {n[-1]:,}")
    return "; ".join(ends)


def draw_times(forward, both):
    """Milliseconds against the length: the forward alone, one of back-to-back forwards, forward and backward alone."""
    titles = "forward", "forward, in back-to-back calls", "both passes"
    timed = (forward, "ms"), (forward, "train_ms"), (both, "ms")
    note = _shape_of(forward, "standard-h100")
    alt = ". ".join(f"{title}: {_ends(*of, '.3g', 'ms')}" for title, of in zip(titles, timed, strict=True))
    figure, every = panels(3.4, 1, 1, 1, note=note, alt=f"{alt}.", wspace=0.16, sharey=True)
    for axes, title, (rows, key) in zip(every, titles, timed, strict=True):
        tidy(axes, title=title, x="N", y="milliseconds" if axes is every[0] else None)
        for method, (colour, marker) in METHODS.items():
            n, ms = by_length(rows, method, key)
            axes.plot(n, ms, marker=marker, markersize=5, color=colour, label=NAMES[method])
        _log_lengths(axes, [row["n"] for row in rows])
    every[0].margins(y=0.25)  # for the legend
    legend(every[0], loc="upper left")
    return figure


def _shape_of(rows, name):
    row = rows[0]
    return f"d = {row['head_dim']}, {row['heads']} heads, batch {row['batch']}, fp16; {records.provenance(name)}"


def _log_lengths(axes, n):
    n = sorted(set(n))
    log_axes(axes, n[:: 2 if len(n) > 6 else 1])


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


class Moved(NamedTuple):
    """Bytes of one call, read and written: asked_bytes are requested by the closed form, the others counted where they
    leave and reach the multiprocessors, at L2, and at DRAM."""

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
        shape = {key: row[key] for key in ("heads", "batch", "block_q", "block_k") if key in row}
        form = traffic.standard_attention if row["method"] == "standard" else traffic.flash_attention
        requested = form(row["n"], row["n"], row["head_dim"], **shape)
        counted = (row[f"{level}_read_bytes"] + row[f"{level}_write_bytes"] for level in ("sm", "l2", "dram"))
        table.append(Moved(row["method"], row["n"], requested.total_bytes, *counted))
    return table


def draw_dram(rows):
    """Bytes against the length: by the closed form (dotted), counted at three places, and Q, K, V, O once."""
    title, note = "bytes of one forward, all heads, read and written", _shape_of(rows, "dram-h100")
    last = {call.method: call for call in moved(rows)}.values()
    ends = [
        f"{NAMES[call.method]}: {call.asked_bytes / 1e6:,.0f} MB in closed form, {call.dram_bytes / 1e6:,.0f} at DRAM"
        for call in last
    ]
    alt = f"Bytes against N, by the closed form and counted. At the longest, {'; '.join(ends)}."
    figure, axes = panel(4.2, right=0.7, note=note, alt=alt, title=title, x="N", y="bytes")
    for method in ("standard", "flash"):
        colour, marker = METHODS[method]
        calls = [call for call in moved(rows) if call.method == method]
        n = [call.n for call in calls]
        for what, style, name in (
            ("asked_bytes", {"linestyle": ":"}, f"{NAMES[method]}: closed form"),
            ("sm_bytes", {"linestyle": "", "marker": "+", "markersize": 9}, "at the multiprocessors"),
            ("l2_bytes", {"linestyle": "", "marker": "x"}, "at L2"),
            ("dram_bytes", {"marker": marker}, "at DRAM"),
        ):
            axes.plot(n, [getattr(call, what) for call in calls], color=colour, label=name, **style)
    d, sizes = rows[0]["head_dim"], {key: rows[0][key] for key in ("heads", "batch")}
    once = [traffic.flash_attention(x, x, d, block_q=x, block_k=x, **sizes).total_bytes for x in n]
    axes.plot(n, once, "--", color=GREY, label="Q, K, V, O once")
    axes.axhline(GPUS["H100"].l2_bytes, color=GREEN, linewidth=1, label="the size of the H100's L2")
    _log_lengths(axes, n)
    legend(axes, loc="upper left", bbox_to_anchor=(1.01, 1.02))
    return figure


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
    note = f"N = {rows[0]['n']:,}, {mask}, {_shape_of(rows, 'sweep-h100')}"
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
        right.plot(*zip(*pairs, strict=True), "o", color=colour, label=f"B_r = {block_q}")
    top = 1.08 * max(max(row[2], row[3] or 0) for row in table)
    right.plot([0, top], [0, top], ":", color=GREY, linewidth=1)
    tidy(right, title="measured against predicted", x="predicted, TFLOP/s")
    legend(right, loc="lower right", bbox_to_anchor=(0.94, 0))
    return figure


# Ours beside PyTorch's: the record attention-h100.


def draw_ratios(rows):
    """How many times as fast as each of PyTorch's, for every shape: forward and backward."""
    shapes = sorted(set(map(_shape, rows)))
    labels = [f"d={d} {'causal' if causal else 'full'} {n // 1024}k" for d, causal, n in shapes]
    note = records.provenance("attention-h100")
    figure, every = panels(4.1, 1, 1, left=0.14, below=1, note=note, wspace=0.06, sharey=True)
    peers = ("sdpa_flash", "FlashAttention-2", ORANGE, "s"), ("sdpa_cudnn", "cuDNN", GREEN, "^")
    peers += (("flex", "FlexAttention", PURPLE, "D"),)
    spans = []
    for axes, which in zip(every, ("forward", "backward"), strict=True):
        tidy(axes, title=which, x="times as fast")
        for peer, name, colour, marker in peers:
            shown = [row for row in rows if row["pass"] == which and peer in row["tflops"]]
            ratios = [row["tflops"]["ours"] / row["tflops"][peer] for row in shown]
            places = [shapes.index(_shape(row)) for row in shown]
            axes.plot(ratios, places, marker, color=colour, label=f"over {name}")
            spans += [f"{which}, over {name}: {min(ratios):.2f} to {max(ratios):.2f}"] if ratios else []
        axes.axvline(1, color=GREY, linewidth=0.8)
        axes.set_yticks(range(len(shapes)), labels)
    figure.alt = f"How many times as fast this course is, over {len(shapes)} shapes. {'; '.join(spans)}."
    every[0].invert_yaxis()
    legend(figure, handles=every[0].get_lines()[:3], ncols=3, loc="lower left", bbox_to_anchor=(0.13, 0.05))
    return figure


def _shape(row):
    return row["head_dim"], row["causal"], row["n"]


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
    note = f"forward and backward; the paper: A100; here: {records.provenance('standard-h100')}"
    title = "standard attention over FlashAttention, GPT-2 medium's shape"
    pairs = [f"{name}: {papers:.2f} in the paper, {ours:.2f} here" for name, (papers, ours) in ratios.items()]
    alt = f"How many times as much standard attention takes. {'; '.join(pairs)}."
    figure, axes = panel(2.9, left=0.06, below=0.6, note=note, alt=alt, title=title)
    for place, (name, colour) in enumerate((("the paper", GREY), ("here", BLUE))):
        at = np.arange(len(ratios)) + 0.38 * (place - 0.5)
        drawn = axes.bar(at, [pair[place] for pair in ratios.values()], width=0.36, color=colour, label=name)
        axes.bar_label(drawn, fmt="%.2f", padding=2, fontsize=9, color=INK)
    axes.margins(y=0.15)
    axes.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(ratios)), ("FLOPs", "bytes of HBM", "time"))
    legend(axes)
    return figure


def draw_timings(ms):
    """Milliseconds of calls in the order in which they ran, with their mean and median."""
    alt = f"{len(ms)} timings of a function: mean {np.mean(ms):.2f} ms, median {np.median(ms):.2f}, most {max(ms):.2f}."
    figure, axes = panel(2.5, alt=alt, title="one function, timed again and again", x="call", y="milliseconds")
    axes.plot(range(1, len(ms) + 1), ms, "o", markersize=4, color=BLUE)
    axes.axhline(np.mean(ms), color=VERMILLION, linewidth=1.4, label=f"mean {np.mean(ms):.2f} ms")
    axes.axhline(np.median(ms), color=GREEN, linewidth=1.4, linestyle="--", label=f"median {np.median(ms):.2f} ms")
    axes.set_ylim(0, 1.1 * max(ms))
    legend(axes)
    return figure
