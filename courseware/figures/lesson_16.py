"""Lesson 16's pictures beside its explorer: who computes what at which step, transfers beside arithmetic, and what was
measured on several GPUs."""

import numpy as np
from matplotlib.patches import Polygon, Rectangle

from courseware.bench import records
from courseware.explorers.svg import BLUE, GREEN, GREY, ORANGE, VERMILLION
from courseware.simulators import ring

from .base import INK, PALE, bare, label, legend, panels, tidy

RECORD = "ring-h200-x2"
METHODS = {
    "ring": "ring",
    "all_gather": "all-gather",
    "ulysses": "Ulysses",
    "context_parallel, sdpa_cudnn, allgather": "torch, cuDNN, all-gather",
    "context_parallel, sdpa_cudnn, alltoall": "torch, cuDNN, step by step",
    "context_parallel, sdpa_flash, allgather": "torch, flash, all-gather",
    "context_parallel, sdpa_flash, alltoall": "torch, flash, step by step",
}


def draw_steps(ranks):
    """What each rank computes at each step, contiguous and in zigzag order: a square of queries by keys. A figure."""
    orders = {"contiguous shards": False, "zigzag shards": True}
    said, n = [], ranks * 2**16
    for title, zigzag in orders.items():
        squares = ring.visible_pairs(n, ranks, zigzag) / (n // ranks) ** 2
        said += [f"{title}, rank {rank}: {', '.join(f'{x:.2g}' for x in of)}" for rank, of in enumerate(squares)]
    figure, every = panels(
        3.7, 1, 1, above=0.75, below=0.2, left=0.07, wspace=0.12,
        alt=f"Parts of a square that each rank computes, step by step. {'; '.join(said)}.",
    )  # fmt: skip
    for axes, (title, zigzag) in zip(every, orders.items(), strict=True):
        for rank, step in np.ndindex(ranks, ranks):
            source = (rank - step) % ranks
            for i, q in enumerate(ring.chunks_of(rank, ranks, zigzag)):
                for j, k in enumerate(ring.chunks_of(source, ranks, zigzag)):
                    x, y = step + 0.14 + 0.36 * j, rank + 0.14 + 0.36 * i
                    axes.add_patch(Rectangle((x, y), 0.36, 0.36, color=BLUE if k < q else PALE, linewidth=0))
                    if k == q:
                        axes.add_patch(Polygon([(x, y), (x, y + 0.36), (x + 0.36, y + 0.36)], color=BLUE, linewidth=0))
            axes.add_patch(Rectangle((step + 0.14, rank + 0.14), 0.72, 0.72, fill=False, color="white", linewidth=1))
            label(axes, step + 0.5, rank + 0.94, f"keys of {source}", size=8)
        axes.set(xlim=(0, ranks), ylim=(ranks + 0.05, 0.05), aspect="equal")
        axes.set_xticks(np.arange(ranks) + 0.5, [f"step {step}" for step in range(ranks)])
        axes.set_yticks(np.arange(ranks) + 0.5, [f"rank {rank}" for rank in range(ranks)])
        axes.xaxis.tick_top()
        bare(axes)
        axes.set_title(title, loc="left", y=1.08, fontsize=10.5, color=INK)
    return figure


def draw_race(flops_per_s, links, heads=16, head_dim=128, measured=()):
    """Milliseconds of a step's arithmetic and of a transfer against the rows of a rank, zigzag shards, bf16.

    links: name -> bytes per second. measured: (rows of a rank, ms) of transfers on a GPU, drawn as diamonds.
    """
    rows = 2.0 ** np.arange(9, 18.1, 0.25)
    compute = 1e3 * 4 * head_dim * heads * rows**2 / 2 / flops_per_s
    sent_bytes = 2 * heads * rows * head_dim * 2
    meets = {name: 2 * flops_per_s / rate for name, rate in links.items()}
    said = [f"{name}: as long as the arithmetic at {at:,.0f} rows" for name, at in meets.items()]
    said += [f"measured at {at:,} rows: {ms:.3g} ms" for at, ms in measured]
    figure, (axes,) = panels(3.3, alt=f"Time of a step and of a transfer against rows of a rank. {'; '.join(said)}.")
    tidy(axes, x="rows of a rank", y="ms")
    axes.plot(rows, compute, color=BLUE, linewidth=2, label="arithmetic of a step")
    for (name, rate), colour in zip(links.items(), (ORANGE, VERMILLION, GREY), strict=False):
        axes.plot(rows, 1e3 * sent_bytes / rate, color=colour, label=name)
        axes.plot([meets[name]], [1e3 * 4 * heads * head_dim * meets[name] / rate], "o", color=colour, markersize=6)
    if measured:
        axes.plot(*zip(*measured, strict=True), "D", color=GREEN, label="K and V of a rank, measured")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = 2 ** np.arange(9, 19, 2)
    axes.set_xticks(ticks, [f"{tick / 1024:g}k" if tick >= 1024 else f"{tick}" for tick in ticks])
    legend(axes, loc="upper left")
    return figure


def measured(which):
    """Rows of a table: a shape, one GPU's ms, and how many times as fast each of METHODS is.

    which: "forward" or "backward". Of what failed, or was not measured, nothing.
    """
    found = {}
    for row in records.rows(RECORD, kind="time"):
        found.setdefault((row["n"], row["heads"], row["kv_heads"]), {})[row["method"]] = row
    rows = []
    for (n, heads, kv_heads), of in sorted(found.items(), key=lambda item: (item[0][1], item[0][0])):
        times = [of.get(name, {}).get("times_one_gpu", {}).get(which) for name in METHODS]
        heads = f"{heads}" if heads == kv_heads else f"{heads} over {kv_heads}"
        rows.append((f"{n // 1024}k", heads, of["one_gpu"]["ms"][which], *(x and f"{x:.2f}" for x in times)))
    return rows


def times_one_gpu(n, which="forward", method="ring", heads=16):
    """How many times as fast as one GPU a method was."""
    (row,) = records.rows(RECORD, kind="time", n=n, method=method, heads=heads)
    return row["times_one_gpu"][which]


def transfers():
    """[(rows of a rank, ms, GB/s)] of K and V on their way to the next rank, alone, with as many heads of K as of Q."""
    gpus, rows = records.record(RECORD)["gpus"], records.rows(RECORD, kind="rotation", heads=16)
    return [(row["n"] // gpus, row["ms"], row["gb_per_s"]) for row in rows if "ms" in row]


def peak_mb(n, heads=16):
    """Rows of a table: MB that a GPU held in the forward, beside inputs and results, by method."""
    rows = {row["method"]: row for row in records.rows(RECORD, kind="time", n=n, heads=heads) if "peak_bytes" in row}
    named = {"one_gpu": "one GPU, the whole sequence"} | METHODS
    return [(named[name], rows[name]["peak_bytes"]["forward"] / 1e6) for name in named if name in rows]


def spans_of(which, n):
    """{(rank, "kernels" or "transfers"): [(ms from the start, ms)]} of one pass, by PyTorch's profiler.

    A pass begins after a barrier, which is an all-reduce.
    """
    spans = records.rows(RECORD, kind="span", n=n, **{"pass": which})
    begin_us, found = {span["rank"]: span["start_us"] for span in spans if "AllReduce" in span["name"]}, {}
    spans = [span for span in spans if span["start_us"] > begin_us[span["rank"]]]
    first_us = min(span["start_us"] for span in spans)
    for span in spans:
        lane = "transfers" if span["name"].startswith("nccl") else "kernels"
        begin_ms = (span["start_us"] - first_us) / 1e3
        found.setdefault((span["rank"], lane), []).append((begin_ms, span["us"] / 1e3))
    return dict(sorted(found.items()))


def draw_spans(which, n):
    """What the GPUs did during one pass: a lane for the kernels and one for the transfers of each. A figure."""
    lanes, said = spans_of(which, n), []
    figure, (axes,) = panels(0.9 + 0.36 * len(lanes), left=0.14, note=records.provenance(RECORD), alt="")
    for place, ((rank, lane), spans) in enumerate(lanes.items()):
        axes.broken_barh(spans, (place + 0.1, 0.8), facecolor=ORANGE if lane == "transfers" else BLUE)
        said.append(f"rank {rank}, {lane}: {sum(ms for _, ms in spans):.3g} ms")
    axes.set_yticks([place + 0.5 for place in range(len(lanes))], [f"rank {rank}: {lane}" for rank, lane in lanes])
    axes.set_ylim(len(lanes), 0)
    tidy(axes, x="ms")
    figure.alt = f"Timeline of the {which} pass, {n:,} tokens. {'; '.join(said)}."
    return figure
