"""Lesson 06's explorer: what a choice of tile sizes costs, from the grid of tiles to the programs on a GPU.

`evaluate` is the model: bytes and FLOPs from `traffic`, what the compiler uses from the record
`courseware/data/resources.json`. `page` shows it beside a run of the first tiles on the memory machine, visit by visit.
"""

from functools import cache
from math import ceil
from types import SimpleNamespace

from course_lib import traffic
from course_lib.hardware import GPUS
from courseware.bench import records

from .explorer import Explorer, buttons, menu, slider, tick
from .roofline import roof_tflops
from .svg import Page, Panel, cards
from .tile_grid import bars_panel, parts_of, race_panels, run
from .words import in_units

BLOCKS = (16, 32, 64, 128)
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
ORDERS = {"queries outermost (FA2)": "q_outer", "keys outermost (FA1)": "kv_outer"}
# Of a larger grid only the corner with the first tiles is drawn.
MAX_DRAWN_TILES = 8

UNITS = ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)
# n: queries and keys of a head; order: "q_outer" or "kv_outer"; heads: heads times batch.
START = {
    "block_q": 64, "block_k": 64, "n": 1024, "d": 64, "dtype": "fp16", "causal": False, "order": "q_outer",
    "gpu": "H100", "heads": 32,
}  # fmt: skip


def evaluate(**chosen):
    """All that is computed for settings, those of START where nothing else is chosen, as a namespace.

    It has settings, gpu, compiled (a row of `recorded`, None with keys outermost: the Triton kernel has queries
    outermost), what this function computes, and limits: resource -> programs that it allows on an SM, None if that is
    not recorded or none fits. If some fit: per_sm, at_a_time, waves, and last_wave, the programs in it.
    """
    s = SimpleNamespace(**START | chosen)
    gpu, dtype_bytes = GPUS[s.gpu], 4 if s.dtype == "fp32" else 2
    sizes = {"dtype_bytes": dtype_bytes, "causal": s.causal, "heads": s.heads}
    model = SimpleNamespace(settings=s, gpu=gpu, compiled=None, limits=None)
    model.standard = traffic.standard_attention(s.n, s.n, s.d, **sizes)
    model.flash = traffic.flash_attention(s.n, s.n, s.d, block_q=s.block_q, block_k=s.block_k, order=s.order, **sizes)
    model.once_bytes = traffic.flash_attention(s.n, s.n, s.d, block_q=s.n, block_k=s.n, **sizes).total_bytes
    # n^2 d^2 / M elements; None where the theorem does not speak.
    sram_elems, model.bound_bytes = gpu.shared_bytes_per_block // dtype_bytes, None
    if sram_elems <= s.n * s.d:
        model.bound_bytes = traffic.lower_bound_elems(s.n, s.d, sram_elems) * dtype_bytes * s.heads
    # The tiles of lesson 06's formula.
    elems = {"Q": s.block_q * s.d, "K": s.block_k * s.d, "V": s.block_k * s.d, "S": s.block_q * s.block_k}
    model.four_tiles_bytes = {name: count * dtype_bytes for name, count in elems.items()}
    # bf16 has no tensor cores before compute capability 8.0.
    has_tensor_cores = {"fp16": True, "bf16": gpu.compute_capability >= (8, 0), "fp32": False}[s.dtype]
    model.peak_tflops = gpu.fp16_tensor_tflops if has_tensor_cores else gpu.fp32_tflops

    model.programs = s.heads  # of FA1; FA2 makes one of each query tile of each head
    if s.order == "q_outer":
        model.programs *= ceil(s.n / s.block_q)
        major, minor = gpu.compute_capability
        key = 10 * major + minor, DTYPES[s.dtype], s.d, s.causal, s.block_q, s.block_k
        model.compiled = used = SimpleNamespace(**recorded()[key])
        model.register_bytes = 4 * used.registers * 32 * used.num_warps  # of a whole program
        names = "shared_bytes", "registers", "num_warps", "tensor_memory_columns"
        limits = gpu.resident_blocks(**{name: getattr(used, name) for name in names})
        if used.shared_bytes <= gpu.shared_bytes_per_block and (per_sm := min(limits.values())):
            model.limits, model.per_sm, model.at_a_time = limits, per_sm, per_sm * gpu.sms
            model.waves = ceil(model.programs / model.at_a_time)
            model.last_wave = model.programs - (model.waves - 1) * model.at_a_time
    return model


@cache
def recorded():
    """What the compiler used: columns arch to block_k of the committed record -> all columns, and Triton's version."""
    record = records.record("resources")
    rows = (dict(zip(record["columns"], row, strict=True)) for row in record["rows"])
    return {tuple(row.values())[:6]: row | {"triton": record["triton"]} for row in rows}


def describe(model):
    """What no panel says, in words: what limits the programs on an SM, and how the compiler made them."""
    used, gpu = model.compiled, model.gpu
    if used is None:
        return (
            f"There is one program for each head: at least {max(gpu.sms - model.programs, 0)} of {gpu.sms} SMs have "
            "nothing to do. Our Triton kernel has queries outermost, so that for this order nothing is recorded."
        )
    limit = "None fits on an SM"
    if model.limits:
        binding = (name for name, count in model.limits.items() if count == model.per_sm)
        limit = f"The limit on an SM: {' and '.join(binding)}. So {model.at_a_time:,} run at a time on {gpu.sms} SMs, "
        limit += f"and the last wave has {model.last_wave:,} ({model.last_wave / model.at_a_time:.0%} of that)"
    columns = f", {used.tensor_memory_columns} columns of tensor memory" * bool(used.tensor_memory_columns)
    # A division's subroutine takes up to 24 bytes; what is more than that was spilled.
    spills = f"{used.stack_bytes:,} bytes of stack a thread" if used.stack_bytes else "nothing spilled"
    return (
        f"There is one program for each query tile of each head. {limit}. Triton {used.triton} gave them "
        f"{used.num_warps} warps, {used.shared_bytes:,} of {gpu.shared_bytes_per_block:,} bytes of shared memory"
        f"{columns}, {used.registers} registers a thread ({model.register_bytes:,} bytes a program), {spills}; tensor "
        f"cores {'not ' * (not used.tensor_cores)}used."
    )


def runs_of(s):
    """order -> `tile_grid.run` of the first tiles of one head, at most MAX_DRAWN_TILES in a row or column."""
    n = min(s.n, MAX_DRAWN_TILES * min(s.block_q, s.block_k))
    sizes = {"block_q": s.block_q, "block_k": s.block_k, "causal": s.causal, "d": s.d}
    dtype = "float32" if s.dtype == "fp32" else "float16"  # NumPy has no bfloat16; it is as large as float16
    return {order: run(n, n, order=order, dtype=dtype, **sizes) for order in ORDERS.values()}


def page(visit, **chosen):
    """What the settings cost, and both loops when the chosen one has made `visit` visits."""
    model = evaluate(**chosen)
    s, runs = model.settings, runs_of(model.settings)
    grids, moved, said = race_panels(runs, s.order, visit)
    shown, tiles = runs[s.order].grid.visit_number.shape, (ceil(s.n / s.block_q), ceil(s.n / s.block_k))
    drawn = "all" if shown == tiles else "the first {} x {} of {:,} x {:,}".format(*shown, *tiles)
    headline = _headline(model)
    what = ", ".join(f"{number} {name}" for number, name, *_ in headline)
    fold = "<details><summary>On the GPU: what the compiler used, and waves of programs</summary>"
    return Page(
        f"{s.n:,} queries and keys in tiles of {s.block_q} x {s.block_k} on the {s.gpu}: {what}. Two grids of tiles, "
        "one for each order of the loops, bars of SRAM and bytes by tensor, and the roofline.",
        (cards(*headline),), (*grids, moved),
        ([bytes_panel(model), sram_panel(model, runs[s.order])], roof_panel(model)),
        (f"{fold}{describe(model)}</details>",),
        text=f"{said} Drawn: {drawn} tiles of one head.",
    )  # fmt: skip


def _headline(model):
    """The four numbers that matter, as of `cards`; "bad" what is too large."""
    total, budget = sum(model.four_tiles_bytes.values()), model.gpu.shared_bytes_per_block
    ratio = model.flash.total_bytes / model.standard.total_bytes
    standard = in_units(model.standard.total_bytes, UNITS, ".3g")
    fits = f"{model.per_sm} on an SM" if model.limits else "none fits" if model.compiled else "not recorded"
    waves = f", {model.waves:,} wave{'s' * (model.waves > 1)}" if model.limits else ""
    return [
        (in_units(model.flash.total_bytes, UNITS, ".3g"), f"requested by {model.settings.heads:,} heads"),
        (f"{ratio:.2f} \u00d7", f"standard attention's {standard}", "bad" if ratio > 1 else ""),
        (f"{total / 1024:,.4g} of {budget / 1024:,.0f} KiB", "SRAM, four tiles", "bad" if total > budget else ""),
        (fits, f"of {model.programs:,} programs{waves}", "bad" if model.compiled and not model.limits else ""),
    ]


def sram_panel(model, run):
    """KiB of SRAM that the four tiles take, and the NumPy program at its peak, beside what a program can have."""
    room, bars = model.gpu.shared_bytes_per_block / 1024, {}
    for name, held in (("four tiles", model.four_tiles_bytes), ("NumPy, machine", run.held)):
        bars[name] = parts_of(held, 1024), f"{sum(held.values()) / 1024:,.1f} of {room:,.0f}", room
    return bars_panel(f"One program's KiB of SRAM; line: the {model.settings.gpu}'s", 330, bars, unit="KiB")


def bytes_panel(model):
    """Megabytes of all heads beside standard attention's, each tensor once, and the lower bound."""
    rows = {
        name: {tensor: sum(moved) for tensor, moved in counted.by_tensor.items()}
        for name, counted in (("standard", model.standard), ("this choice", model.flash))
    }
    rows["Q, K, V, O once"] = {"": model.once_bytes}
    rows["N\u00b2d\u00b2/M"] = {"": model.bound_bytes} if model.bound_bytes else {}
    bars = {
        name: (parts_of(row, 1e6), in_units(sum(row.values()), UNITS, ".3g") if row else "K fits in SRAM")
        for name, row in rows.items()
    }
    return bars_panel("Bytes requested, all heads, before any cache", 330, bars, right=70, unit="MB")


def roof_panel(model):
    """The roof, and under it this choice and standard attention."""
    ridge, powers = 1e12 * model.peak_tflops / model.gpu.hbm_bytes_per_s, (1, 10, 100, 1000)
    panel = Panel(
        f"Roofline of the {model.settings.gpu}, {model.settings.dtype}", 340, 172, x=(1, 1000), y=(0.3, 40_000),
        log="xy", x_ticks=powers, y_ticks=powers, x_label="FLOPs per byte requested", y_label="TFLOP/s",
        margins=(56, 16, 6, 34),
    )  # fmt: skip
    panel.line([(x, roof_tflops(model.gpu, x, model.peak_tflops)) for x in (1, ridge, 1000)], "ink")
    for i, (name, counted, css) in enumerate((("standard", model.standard, "S"), ("this choice", model.flash, "Q"))):
        intensity = counted.arithmetic_intensity
        tflops = roof_tflops(model.gpu, intensity, model.peak_tflops)
        said = f"{name}: {intensity:.3g}, at most {tflops:.3g} TFLOP/s"
        panel.dot(intensity, tflops, css, 6, tip=said)
        panel.legend({said: css}, top=panel.top + 12 + 16 * i)
    return panel


def explore():
    """The explorer: tile sizes, shape, dtype, mask, order and GPU, and the visits one by one."""
    last = MAX_DRAWN_TILES**2
    controls = {
        "block_q": slider("B_r", BLOCKS), "block_k": slider("B_c", BLOCKS),
        "n": menu("N", (100, 512, 1000, 1024, 4095, 4096, 16384, 131072)), "d": menu("d", (32, 64, 128)),
        "dtype": menu("dtype", list(DTYPES)), "heads": menu("heads x batch", (1, 8, 32, 64, 256, 1024)),
        "gpu": menu("GPU", list(GPUS)), "order": buttons("loops", ORDERS), "causal": tick("causal"),
        "visit": slider("visits", range(last + 1), last, play=True),
    }  # fmt: skip
    ends = {"visit": lambda visit, **chosen: runs_of(SimpleNamespace(**chosen))[chosen["order"]].grid.n_visits}
    # A page without a kernel plays what is shown at first; of the other settings it has the last visit.
    every = {
        "block_q": BLOCKS, "block_k": BLOCKS, "causal": (False, True), "order": ORDERS.values(), "gpu": ("H100", "T4"),
        "n": (1024, 4096),
    }  # fmt: skip
    return Explorer(page, controls, start=START, ends=ends, written=({"visit": range(last)}, every))
