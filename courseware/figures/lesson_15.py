"""Lesson 15's pictures beside its explorer: key tiles dealt out to programs, the ladder, and the kernel's peers."""

import itertools

from course_lib.hardware import GPUS
from course_lib.kernels.hopper.forward import CONFIGS, ROWS
from courseware.bench import records
from courseware.bench.hopper_ladder import rungs
from courseware.bench.hopper_timing import TENSOR_CORES
from courseware.explorers.svg import BLUE, GREEN, GREY, ORANGE, VERMILLION
from courseware.simulators import sm_simulator

from .base import INK, PALE, label, legend, panel, panels, tidy

# Of the kernel with d = 128: query rows of a program, keys of a tile.
BLOCK_M, BLOCK_N = CONFIGS[128].groups * ROWS.value, CONFIGS[128].block_n
SIMULATED = sm_simulator.RUNGS[:3]  # with two groups, as the rungs that were measured
RECORD, BACKWARD_RECORD, COUNTERS = "hopper-h200", "hopper-backward-h200", "hopper-counters-h200"
PEERS = {
    "sdpa_flash": ("FlashAttention-2", GREY, "s"), "portable": ("portable kernel", ORANGE, "D"),
    "sdpa_cudnn": ("cuDNN", GREEN, "^"), "ours": ("this lesson's kernel", BLUE, "o"),
}  # fmt: skip


def key_tiles_of_programs(n, heads, n_programs, paired):
    """How many tiles of keys each program visits under a causal mask, in the order of `hopper_forward.query_tile`.

    n: length, a multiple of the tiles. heads: of all sequences.
    """
    of_head = n // BLOCK_M
    n_tiles = of_head * heads
    visited = [0] * n_programs
    for tile in range(n_tiles):
        turn = min(tile, n_tiles - 1 - tile) if paired else tile
        visited[turn % n_programs] += (tile % of_head + 1) * BLOCK_M // BLOCK_N
    return visited


def draw_shares(named):
    """Key tiles of every program as bars, the programs with the most first. named: title -> tiles of each program."""
    said = [f"{title}: most {max(x):,}, on average {sum(x) / len(x):,.0f}" for title, x in named.items()]
    figure, every = panels(2.5, *[1] * len(named), alt=f"Key tiles of each program. {'; '.join(said)}.", sharey=True)
    for axes, (title, visited) in zip(every, named.items(), strict=True):
        mean = sum(visited) / len(visited)
        axes.bar(range(len(visited)), sorted(visited, reverse=True), width=1, color=BLUE)
        axes.axhline(mean, color=VERMILLION, linewidth=1.4)
        label(axes, len(visited), 1.08 * max(visited), f"most {max(visited) / mean:.2f} times the mean", ha="right")
        tidy(axes, title=title, x="programs", y="tiles of keys" if axes is every[0] else None)
        axes.set_ylim(0, 1.2 * max(map(max, named.values())))
    return figure


def speeds(n, head_dim=128):
    """{rung: (TFLOP/s without a mask, causal)} of the record."""
    found = {}
    for name in rungs():
        both = [records.rows(RECORD, rung=name, n=n, head_dim=head_dim, causal=causal) for causal in (False, True)]
        if all(both):
            found[name] = tuple(row["tflops"] for (row,) in both)
    return found


def tensor_share(rung, head_dim, n=4096):
    """In which part of its cycles a multiprocessor's tensor cores are busy, by the GPU's counters, without a mask."""
    (row,) = records.rows(COUNTERS, rung=rung, n=n, head_dim=head_dim, causal=False)
    return row["busy_tensor_cores"] / TENSOR_CORES


def programs(rung, head_dim):
    """How many programs of a rung shared memory, registers and warps of a multiprocessor leave room for."""
    (row,) = records.rows("hopper-rungs", rung=rung, head_dim=head_dim)
    used = {key: row[key] for key in ("shared_bytes", "registers", "num_warps")}
    return min(GPUS["H100"].resident_blocks(**used).values())


def simulated(rung, head_dim, n=4096):
    """The simulator's Prediction for a rung, with as many programs as share a multiprocessor."""
    return sm_simulator.predict(rung, head_dim, key_tiles=n // BLOCK_N, programs=programs(rung, head_dim))


def draw_ladder(n, head_dim=128):
    """The kept rungs as they were measured, and what the simulator says of those that it knows. Returns a figure."""
    measured = {name: both for name, both in speeds(n, head_dim).items() if rungs()[name].kept}
    peak = GPUS["H100"].fp16_tensor_tflops
    ticks = {name: simulated(name, head_dim, n).tflops for name in measured if name in SIMULATED}
    said = [
        f"{name}: {full:.0f} full, {causal:.0f} causal"
        + (f", simulated {ticks[name]:.0f} full" if name in ticks else "")
        for name, (full, causal) in measured.items()
    ]
    figure, axes = panel(
        1.6 + 0.36 * len(measured), title="", left=0.17, above=0.5, x="TFLOP/s",
        note=f"N = {n:,}, d = {head_dim}, fp16; {records.provenance(RECORD)}",
        alt=f"TFLOP/s of each rung. {'; '.join(said)}. Peak: {peak:.0f}.",
    )  # fmt: skip
    for place, colour, marker, name in ((0, BLUE, "o", "no mask"), (1, ORANGE, "D", "causal")):
        axes.plot([both[place] for both in measured.values()], range(len(measured)), marker, color=colour, label=name)
        for y, both in enumerate(measured.values()):
            above = -0.34 if place == 0 else 0.36
            label(axes, both[place], y + above, f"{both[place]:.0f}", size=8, color=INK)
    places = [list(measured).index(name) for name in ticks]
    axes.plot(list(ticks.values()), places, "|", color=INK, markersize=13, label="simulated, no mask")
    axes.axvline(peak, color=GREY, linestyle=":", label="tensor cores' peak")
    axes.set(xlim=(0, 1.03 * peak), ylim=(len(measured) - 0.4, -0.6))
    axes.set_yticks(range(len(measured)), list(measured))
    legend(figure, ncols=4, loc="upper left", bbox_to_anchor=(0.16, 1.0))
    return figure


def draw_peers(dtype="float16"):
    """This lesson's kernel, the portable one, and PyTorch's two, at every shape of the record. Returns a figure."""
    rows = sorted(records.rows(RECORD, dtype=dtype), key=lambda row: (row["head_dim"], row["causal"], row["n"]))
    shapes = [f"d={row['head_dim']} {'causal' if row['causal'] else 'full'} {row['n'] // 1024}k" for row in rows]
    said = [
        f"{shape}: " + ", ".join(f"{name} {row['tflops'][peer]:.0f}" for peer, (name, *_) in PEERS.items())
        for shape, row in zip(shapes, rows, strict=True)
    ]
    figure, axes = panel(
        1.5 + 0.24 * len(rows), title="", left=0.14, above=0.5, x="TFLOP/s",
        note=f"forward, {dtype}, 16,384 tokens; {records.provenance(RECORD)}", alt=f"TFLOP/s. {'; '.join(said)}.",
    )  # fmt: skip
    places = range(len(rows))
    axes.hlines(places, 0, [max(row["tflops"].values()) for row in rows], color=PALE, linewidth=0.8, zorder=0)
    for peer, (name, colour, marker) in PEERS.items():
        axes.plot([row["tflops"][peer] for row in rows], places, marker, color=colour, label=name)
    axes.set(xlim=(0, None), ylim=(len(rows) - 0.4, -0.6))
    axes.set_yticks(places, shapes)
    legend(figure, ncols=4, loc="upper left", bbox_to_anchor=(0.13, 1.0))
    return figure


def compared(record=RECORD):
    """Rows of a table: how many times as fast this lesson's kernel was as each of the others, and its error."""
    rows = []
    for head_dim, dtype in itertools.product((64, 128), ("float16", "bfloat16")):
        found = records.rows(record, head_dim=head_dim, dtype=dtype)
        others = [name for name in (*PEERS, "seven products") if name != "ours" and name in found[0]["tflops"]]
        over = [[row["tflops"]["ours"] / row["tflops"][peer] for row in found] for peer in others]
        worst = max(row["relative_error"]["ours"] / row["relative_error"]["sdpa_cudnn"] for row in found)
        rows.append((head_dim, dtype, *(f"{min(x):.2f} to {max(x):.2f}" for x in over), f"{worst:.2f}"))
    return rows
