"""Lesson 10's tables and pictures, and lesson 11's last: what the records in courseware/data say.

Each table is a function of rows as `courseware.bench.records` hands them out, and each picture one of a table.
"""

from typing import NamedTuple

import numpy as np

from course_lib import traffic
from course_lib.hardware import GPUS
from courseware.bench import records
from courseware.explorers import roofline
from courseware.explorers.svg import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILLION

from .base import INK, legend, log_axes, panel, panels, tidy

METHODS = {"standard": (VERMILLION, "s"), "flash": (BLUE, "o"), "sdpa_flash": (ORANGE, "^")}
# Of the record attention-h100: how pictures name and mark a call.
LOOKS = {"ours": (BLUE, "o"), "sdpa_flash": (ORANGE, "s"), "sdpa_cudnn": (GREEN, "^"), "flex": (PURPLE, "D")}
PEERS = {call: (name, *LOOKS[call]) for call, name in roofline.NAMES.items()}
NAMES = {"standard": "standard, in PyTorch", "flash": "this course", "sdpa_flash": "PyTorch's FlashAttention-2"}


def growth(n, values):
    """Slope of log(values) against log(n): 1 is linear, 2 quadratic; 0 if the values are 0 and nothing grows."""
    pairs = [(x, y) for x, y in zip(n, values, strict=True) if y > 0]
    if len(pairs) < 2:
        return 0.0
    x, y = np.log(np.array(pairs, dtype=np.float64)).T
    return float(np.polyfit(x, y, 1)[0])


# Memory and time against the length: the record standard-h100.


def by_length(rows, method, key):
    """(lengths, values of `key`) of a method's rows, in the order of the lengths."""
    pairs = sorted((row["n"], row[key]) for row in rows if row["method"] == method)
    return [n for n, _ in pairs], [value for _, value in pairs]


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
    note = shape_of(forward, "standard-h100")
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


def shape_of(rows, name):
    """Shape and provenance of a record's rows, for a caption."""
    row = rows[0]
    return f"d = {row['head_dim']}, {row['heads']} heads, batch {row['batch']}, fp16; {records.provenance(name)}"


def _log_lengths(axes, n):
    n = sorted(set(n))
    log_axes(axes, n[:: 2 if len(n) > 6 else 1])


def faster_from(rows, key="ms", than="standard"):
    """[(n, how many times as fast flash is as `than`)] and the length from which on it is never slower, or None."""
    fast, slow = (dict(zip(*by_length(rows, method, key), strict=True)) for method in ("flash", than))
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
    """Bytes against the length: by the closed form (dotted), counted at three places, and Q, K, V, O once.

    A colour is a method and a marker a place, so that the legend names each of them once.
    """
    title, note = "bytes of one forward, all heads, read and written", shape_of(rows, "dram-h100")
    last = {call.method: call for call in moved(rows)}.values()
    ends = [
        f"{NAMES[call.method]}: {call.asked_bytes / 1e6:,.0f} MB in closed form, {call.dram_bytes / 1e6:,.0f} at DRAM"
        for call in last
    ]
    alt = f"Bytes against N, by the closed form and counted. At the longest, {'; '.join(ends)}."
    figure, axes = panel(4.2, right=0.7, note=note, alt=alt, title=title, x="N", y="bytes")
    places = {
        "closed form": ("asked_bytes", {"linestyle": ":"}),
        "counted at the multiprocessors": ("sm_bytes", {"linestyle": "", "marker": "+", "markersize": 9}),
        "counted at L2": ("l2_bytes", {"linestyle": "", "marker": "x"}),
        "counted at DRAM": ("dram_bytes", {"marker": "o", "markersize": 5}),
    }
    for method in ("standard", "flash"):
        colour, _ = METHODS[method]
        axes.plot([], [], color=colour, linewidth=5, label=NAMES[method])
        calls = [call for call in moved(rows) if call.method == method]
        n = [call.n for call in calls]
        for what, style in places.values():
            axes.plot(n, [getattr(call, what) for call in calls], color=colour, **style)
    for name, (_, style) in places.items():
        axes.plot([], [], color=INK, label=name, **style)
    d, sizes = rows[0]["head_dim"], {key: rows[0][key] for key in ("heads", "batch")}
    once = [traffic.flash_attention(x, x, d, block_q=x, block_k=x, **sizes).total_bytes for x in n]
    axes.plot(n, once, "--", color=GREY, label="Q, K, V, O once")
    axes.axhline(GPUS["H100"].l2_bytes, color=GREEN, linewidth=1, label="the size of the H100's L2")
    _log_lengths(axes, n)
    legend(axes, loc="upper left", bbox_to_anchor=(1.01, 1.02))
    return figure


# Ours beside PyTorch's: the record attention-h100.


def draw_ratios(rows):
    """How many times as fast as each of PyTorch's, for every shape: forward and backward."""
    shapes = sorted(set(map(_shape, rows)))
    labels = [f"d={d} {'causal' if causal else 'full'} {n // 1024}k" for d, causal, n in shapes]
    note = records.provenance("attention-h100")
    figure, every = panels(4.1, 1, 1, left=0.14, below=1, note=note, wspace=0.06, sharey=True)
    peers = [(peer, name.removeprefix("PyTorch, "), *look) for peer, (name, *look) in PEERS.items() if peer != "ours"]
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
GPT2_MEDIUM = {"n": 1024, "head_dim": 64, "heads": 16, "batch": 64, "pass": "both"}


def standard_over_flash(both, dram):
    """{name: (the paper's ratio standard / flash, ours)} from the rows at the shape GPT2_MEDIUM.

    both: of standard-h100, dram: of dram-h100, forward and backward either. FLOPs are counted: six
    products against the nine that the course's forward and two-pass backward execute.
    """
    n, d = GPT2_MEDIUM["n"], GPT2_MEDIUM["head_dim"]
    product = traffic.attention_flops(n, n, d) / 2
    executed = 2 * product + traffic.flash_attention_backward(n, n, d, block_q=64, block_k=64).flops
    ms = {row["method"]: row["ms"] for row in both}
    seen = {row["method"]: row["dram_read_bytes"] + row["dram_write_bytes"] for row in dram}
    ours = (6 * product / executed, seen["standard"] / seen["flash"], ms["standard"] / ms["flash"])
    papers = (standard / flash for standard, flash in PAPER.values())
    return dict(zip(PAPER, zip(papers, ours, strict=True), strict=True))
