"""Lesson 06's explorer: what a choice of tile sizes costs, from the grid of tiles to the programs on a GPU.

`evaluate` is the model: bytes and FLOPs from `traffic`, the peak of SRAM from a run on the memory `machine`, what the
compiler uses from the record `course_lib/data/resources.json`, what an H100 reached with these tiles from
`course_lib/data/sweep-h100.json` where there is one. `draw` shows it, `explore` is the widget, and `compile_now` fills
a row that the record lacks.
"""

import importlib.metadata
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from html import escape
from math import ceil, log10
from pathlib import Path

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D

from course_lib import traffic
from course_lib.hardware import GPUS
from course_lib.machine import Machine
from course_lib.measure import records
from course_lib.reference.tiled import tiled_attention_on_machine

from .figures import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, VERMILLION, Panel, Picture, png, tidy
from .tile_grid import TileGrid, draw_tile_grid, tile_grid

RECORD = Path(__file__).parents[1] / "data" / "resources.json"
RECORD_COMMAND = "python -m course_lib.measure.resources --record course_lib/data/resources.json"
SWEEP, SWEPT_GPU = "sweep-h100", "H100"

BLOCKS = (16, 32, 64, 128)
LENGTHS = (100, 512, 1000, 1024, 4095, 4096, 16384, 131072)
HEAD_DIMS = (32, 64, 128)
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
ORDERS = {"queries outermost (FA2)": "q_outer", "keys outermost (FA1)": "kv_outer"}
HEADS = (1, 8, 32, 64, 256, 1024)
# Of a larger grid only the corner with the first tiles is drawn.
MAX_DRAWN_TILES = 64
MAX_NUMBERED_TILES = 25
MAX_DRAWN_WAVES = 10

COLOURS = {"Q": BLUE, "K": ORANGE, "V": GREEN, "S": VERMILLION, "P": PURPLE, "O": GREY, "l": INK, "m": INK}


@dataclass(frozen=True)
class Settings:
    """What the controls set. n: queries and keys of a head; dtype: a key of DTYPES; order: "q_outer" or "kv_outer";
    gpu: a key of hardware.GPUS; heads: heads times batch."""

    block_q: int = 64
    block_k: int = 64
    n: int = 1024
    d: int = 64
    dtype: str = "fp16"
    causal: bool = False
    order: str = "q_outer"
    gpu: str = "H100"
    heads: int = 32

    @property
    def dtype_bytes(self):
        return 4 if self.dtype == "fp32" else 2

    @property
    def swept(self):
        """What a sweep's rows are found by: dtype, head_dim, causal, block_q, block_k."""
        return DTYPES[self.dtype], self.d, self.causal, self.block_q, self.block_k

    @property
    def row(self):
        """The record's columns arch to block_k."""
        major, minor = GPUS[self.gpu].compute_capability
        return 10 * major + minor, DTYPES[self.dtype], self.d, self.causal, self.block_q, self.block_k


@dataclass(frozen=True)
class Compiled:
    """One row of the record: what the compiler used for the Triton kernel, whose queries are outermost."""

    num_warps: int
    num_stages: int
    shared_bytes: int
    tensor_memory_columns: int
    registers: int
    stack_bytes: int
    tensor_cores: bool
    triton: str  # the version that compiled it

    @property
    def register_bytes(self):
        """Of all threads of a program."""
        return 4 * self.registers * 32 * self.num_warps


@dataclass(frozen=True)
class Measured:
    """The fastest of the `tried` configurations that a sweep ran with the same tiles, or if none ran, the first.

    row: the sweep's, with its own n and heads. counted: traffic of that shape. source: GPU, versions, date.
    """

    row: dict
    tried: int
    source: str
    counted: traffic.Traffic

    @property
    def failed(self):
        return "error" in self.row


@dataclass(frozen=True)
class SRAM:
    """Peak of the course's reference code on the memory machine: bytes of loaded tiles, and of what it computed."""

    loaded_bytes: int
    computed_bytes: int

    @property
    def peak_bytes(self):
        return self.loaded_bytes + self.computed_bytes


@dataclass(frozen=True)
class Model:
    """All that is shown.

    grid: the tile grid, or its first corner. tiles: (query tiles, key tiles) of the whole grid. flash, standard:
    Traffic of all heads. once_bytes: Q, K, V read and O written once. bound_bytes: n^2 d^2 / M elements, None where
    the theorem does not speak. four_tiles_bytes: name -> bytes of the tiles of lesson 06's formula. programs: of all
    heads. compiled: None if not recorded, or not for this order. limits: what ends the SM's room -> programs, None
    with compiled, or if one program alone has not enough room. measured: None if no sweep has these tiles on this GPU.
    """

    settings: Settings
    grid: TileGrid
    tiles: tuple
    flash: traffic.Traffic
    standard: traffic.Traffic
    once_bytes: int
    bound_bytes: float | None
    four_tiles_bytes: dict
    sram: SRAM
    programs: int
    compiled: Compiled | None
    limits: dict | None
    measured: Measured | None

    @property
    def gpu(self):
        return GPUS[self.settings.gpu]

    @property
    def budget_bytes(self):
        return self.gpu.shared_bytes_per_block

    @property
    def is_window(self):
        return self.grid.visit_number.shape != self.tiles

    @property
    def peak_tflops(self):
        """The GPU's for matmuls of this dtype: bf16 has no tensor cores before compute capability 8.0."""
        tensor = self.settings.dtype == "fp16" or (
            self.settings.dtype == "bf16" and self.gpu.compute_capability >= (8, 0)
        )
        return self.gpu.fp16_tensor_tflops if tensor else self.gpu.fp32_tflops

    def roof_tflops(self, intensity):
        """The most that the GPU reaches at `intensity` FLOPs per byte."""
        return min(self.peak_tflops, intensity * self.gpu.hbm_bytes_per_s / 1e12)

    def least_ms(self, counted):
        """Time at the roof of a Traffic, were every byte to come from HBM."""
        return counted.flops / self.roof_tflops(counted.arithmetic_intensity) / 1e9

    @property
    def allowed_tflops(self):
        """Of the measured shape, at the roof, by the measurement's count of FLOPs: a causal call's are half of all."""
        row = self.measured.row
        return row["tflops"] * row["ms"] / self.least_ms(self.measured.counted)

    @cached_property
    def per_sm(self):
        return min(self.limits.values()) if self.limits else None

    @property
    def at_a_time(self):
        return self.per_sm * self.gpu.sms if self.limits else None

    @property
    def waves(self):
        return ceil(self.programs / self.at_a_time) if self.limits else None

    @property
    def last_wave(self):
        """Programs in it."""
        return self.programs - (self.waves - 1) * self.at_a_time if self.limits else None


def evaluate(settings, record=None, sweep=None):
    """The Model of `settings`. record, sweep: where to look, as `recorded` and `swept` give them (None: the committed
    ones)."""
    s = settings
    sizes = {"dtype_bytes": s.dtype_bytes, "causal": s.causal, "heads": s.heads}
    flash = traffic.flash_attention(s.n, s.n, s.d, block_q=s.block_q, block_k=s.block_k, order=s.order, **sizes)
    once = traffic.flash_attention(s.n, s.n, s.d, block_q=s.n, block_k=s.n, **sizes)
    sram_elems = GPUS[s.gpu].shared_bytes_per_block // s.dtype_bytes
    bound_bytes = None
    if sram_elems <= s.n * s.d:
        bound_bytes = traffic.lower_bound_elems(s.n, s.d, sram_elems) * s.dtype_bytes * s.heads
    tiles = -(-s.n // s.block_q), -(-s.n // s.block_k)
    drawn = min(s.n, MAX_DRAWN_TILES * min(s.block_q, s.block_k))
    elems = {"Q": s.block_q * s.d, "K": s.block_k * s.d, "V": s.block_k * s.d, "S": s.block_q * s.block_k}

    gpu, compiled, limits = GPUS[s.gpu], None, None
    measured = None
    if s.order == "q_outer":
        compiled = (recorded() if record is None else record).get(s.row)
        if s.gpu == SWEPT_GPU:
            measured = (swept() if sweep is None else sweep).get(s.swept)
    if compiled:
        limits = gpu.resident_blocks(
            shared_bytes=compiled.shared_bytes,
            registers=compiled.registers,
            num_warps=compiled.num_warps,
            tensor_memory_columns=compiled.tensor_memory_columns,
        )
        if compiled.shared_bytes > gpu.shared_bytes_per_block or not min(limits.values()):
            limits = None
    return Model(
        settings=s,
        grid=tile_grid(drawn, drawn, s.block_q, s.block_k, s.causal, s.order),
        tiles=tiles,
        flash=flash,
        standard=traffic.standard_attention(s.n, s.n, s.d, **sizes),
        once_bytes=once.total_bytes,
        bound_bytes=bound_bytes,
        four_tiles_bytes={name: count * s.dtype_bytes for name, count in elems.items()},
        sram=machine_sram(s.n, s.block_q, s.block_k, s.d, s.dtype_bytes, s.causal, s.order),
        # FA2 makes a program of each query tile of each head, FA1 one of each head.
        programs=s.heads * (tiles[0] if s.order == "q_outer" else 1),
        compiled=compiled,
        limits=limits,
        measured=measured,
    )


@lru_cache(maxsize=256)
def machine_sram(n, block_q, block_k, d, dtype_bytes, causal, order):
    """Peak of SRAM of `reference.tiled` on the memory machine, for one head.

    Every visit needs what the first one needs, so that one tile of queries and one of keys tell.
    """
    rows = {"Q": min(n, block_q), "K": min(n, block_k), "V": min(n, block_k), "O": min(n, block_q)}
    machine, dtype = Machine(), np.float16 if dtype_bytes == 2 else np.float32
    handles = [machine.hbm(np.zeros((count, d), dtype), name) for name, count in rows.items()]
    kept = {name: machine.hbm(np.zeros(rows["Q"], np.float32), name) for name in "lm"} if order == "kv_outer" else {}
    tiled_attention_on_machine(machine, *handles, block_q=block_q, block_k=block_k, causal=causal, order=order, **kept)
    report = machine.report()
    loaded_bytes = sum(n_bytes for name, n_bytes in report.peak_holders if name.split("[")[0] in (*"QKVOlm",))
    return SRAM(loaded_bytes, report.peak_sram_bytes - loaded_bytes)


@lru_cache(maxsize=1)
def recorded():
    """The committed record's rows: Settings.row -> Compiled."""
    record = json.loads(RECORD.read_text())
    return {tuple(row[:6]): Compiled(*row[6:], record["triton"]) for row in record["rows"]}


@lru_cache(maxsize=1)
def swept():
    """The committed sweep of block sizes: Settings.swept -> Measured; empty where none is committed."""
    sweep, tried = records.record(SWEEP), {}
    for row in sweep["rows"] if sweep else ():
        same = tuple(row[column] for column in ("dtype", "head_dim", "causal", "block_q", "block_k"))
        tried.setdefault(same, []).append(row)
    return {same: _fastest(rows, records.provenance(SWEEP)) for same, rows in tried.items()}


def _fastest(rows, source):
    """The Measured of rows with the same tiles, head_dim and mask."""
    row = max(rows, key=lambda row: row.get("tflops", 0))
    counted = traffic.flash_attention(
        row["n"], row["n"], row["head_dim"], block_q=row["block_q"], block_k=row["block_k"], causal=row["causal"],
        dtype_bytes=4 if row["dtype"] == "float32" else 2, heads=row["heads"], batch=row["batch"],
    )  # fmt: skip
    return Measured(row, len(rows), source, counted)


def compile_now(settings):
    """What the installed compiler uses for `settings`, whatever is recorded: {Settings.row: Compiled}.

    Takes some seconds, most of them to start the compiler; no GPU needed. Raises RuntimeError with its message if it
    fails, ImportError where there is no Triton.
    """
    from course_lib.measure.resources import Request, chosen_config, forward_resources

    arch, dtype, d, causal, block_q, block_k = settings.row
    config = chosen_config(arch, dtype, d, causal, block_q, block_k)
    (used,) = forward_resources([Request(d, arch, dtype, causal, config)])
    return {
        settings.row: Compiled(
            *config[2:], used.shared_bytes, used.tensor_memory_columns, used.registers, used.stack_bytes,
            used.tensor_cores, importlib.metadata.version("triton"),
        )
    }  # fmt: skip


def describe(model, step=None):
    """The model in words, as HTML: a line for each panel, one for the compiler, and one for what was measured if
    anything was. step: as in `draw`."""
    lines = {
        "Tiles": _describe_tiles(model, step),
        "SRAM": _describe_sram(model),
        "Bytes": _describe_bytes(model),
        "Roofline": _describe_roofline(model),
        "Programs": _describe_programs(model),
        "Compiler": _describe_compiler(model),
    }
    if model.measured:
        lines["Measured"] = _describe_measured(model)
    return "<br>".join(f"<b>{title}.</b> {text}" for title, text in lines.items())


def _describe_tiles(model, step):
    s, grid = model.settings, model.grid
    visits = model.flash.flops // (4 * s.d * s.heads)
    text = (
        f"{model.tiles[0]:,} x {model.tiles[1]:,} tiles of {s.block_q} queries x {s.block_k} keys; "
        f"{visits:,} of {s.n**2:,} scores are computed. "
    )
    if model.is_window:
        text += "Drawn: the first {:,} x {:,} tiles. ".format(*grid.visit_number.shape)
    if step is None or step >= grid.n_visits:
        return text + f"All {grid.n_visits:,} visits of the picture done."
    if step <= 0:
        return text + "Nothing visited yet."
    i, j = grid.visits[step - 1]
    (q, q_end), (k, k_end) = grid.query_rows(i), grid.key_rows(j)
    return text + f"Visit {step:,} of {grid.n_visits:,}: queries {q} to {q_end - 1} meet keys {k} to {k_end - 1}."


def _describe_sram(model):
    total = sum(model.four_tiles_bytes.values())
    four = ", ".join(f"{name} {count:,}" for name, count in model.four_tiles_bytes.items())
    verdict = "fits in" if total <= model.budget_bytes else "does not fit in"
    return (
        f"Four tiles in {model.settings.dtype}: {four}; {total:,} bytes, which {verdict} the {model.budget_bytes:,} "
        f"that one program can have. With fp32 statistics, accumulator and temporaries, our NumPy code "
        f"peaks at {model.sram.peak_bytes:,} on the memory machine."
    )


def _describe_bytes(model):
    ratio = model.flash.total_bytes / model.standard.total_bytes
    bound = "n/a, all of K fits in SRAM" if model.bound_bytes is None else f"{model.bound_bytes:,.0f}"
    return (
        f"This choice requests {model.flash.total_bytes:,}, standard attention for {model.standard.total_bytes:,} "
        f"(ratio {ratio:.3f}); Q, K, V, O once: {model.once_bytes:,}; N&sup2;d&sup2;/M: {bound}. "
        "Before any cache, all heads."
    )


def _describe_roofline(model):
    parts = []
    for name, counted in (("this choice", model.flash), ("standard", model.standard)):
        intensity = counted.arithmetic_intensity
        parts.append(
            f"{name} {intensity:.2f} FLOP per byte, at most {model.roof_tflops(intensity):.2f} TFLOP/s, "
            f"at least {_milliseconds(model.least_ms(counted))}"
        )
    roofs = f"Peak {model.peak_tflops:g} TFLOP/s, {model.gpu.hbm_bytes_per_s / 1e9:,.0f} GB/s."
    return f"Without a cache: {'; '.join(parts)}. {roofs}"


def _milliseconds(ms):
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def _describe_programs(model):
    s = model.settings
    what = "one for each query tile of each head" if s.order == "q_outer" else "one for each head"
    text = f"{model.programs:,} ({what}) on {model.gpu.sms} SMs. "
    if model.limits:
        limiting = " and ".join(name for name, count in model.limits.items() if count == model.per_sm)
        share = model.last_wave / model.at_a_time
        return text + (
            f"{model.per_sm} fit on one SM (limit: {limiting}), {model.at_a_time:,} at a time: "
            f"{model.waves:,} wave{'s' * (model.waves > 1)}, the last with {model.last_wave:,} programs ({share:.0%})."
        )
    if s.order == "kv_outer":
        idle = max(model.gpu.sms - model.programs, 0)
        return text + f"At least {idle} SMs have nothing to do, however many fit on one."
    if model.compiled:
        return text + "None fits on an SM."
    return text + "How many fit on one SM is not recorded."


def _describe_compiler(model):
    used = model.compiled
    if used is None:
        if model.settings.order == "kv_outer":
            return "Our fast Triton kernel has queries outermost; for this order nothing is recorded."
        return f"Not recorded for this choice. To record it: <code>{RECORD_COMMAND}</code>"
    if used.shared_bytes > model.budget_bytes:
        room = f"does not fit: needs {used.shared_bytes:,} bytes of shared memory, there are {model.budget_bytes:,}"
    else:
        room = f"{used.shared_bytes:,} bytes of shared memory"
    # A division's subroutine takes up to 24 bytes; what is more than that was spilled.
    spills = f"{used.stack_bytes:,} bytes of stack a thread" if used.stack_bytes else "nothing spilled"
    tensor_memory = f", {used.tensor_memory_columns} columns of tensor memory" if used.tensor_memory_columns else ""
    return (
        f"By Triton {used.triton}: {used.num_warps} warps, {room}{tensor_memory}, {used.registers} registers a thread "
        f"({used.register_bytes:,} bytes a program), {spills}; tensor cores "
        f"{'used' if used.tensor_cores else 'not used'}."
    )


def _describe_measured(model):
    measured, row = model.measured, model.measured.row
    shape = f"N = {row['n']:,}, {row['heads'] * row['batch']:,} heads"
    tried = f"of {measured.tried} configuration{'s' * (measured.tried > 1)} with these tiles"
    if measured.failed:
        return f"{shape}: none {tried} ran, {escape(row['error'])} ({measured.source})."
    how = f"{row['num_warps']} warps, {row['num_stages']} stages{', tiles by descriptor' * row['tma']}"
    return (
        f"{row['tflops']:.1f} TFLOP/s, {shape}, the fastest {tried} ({how}); the model, which has no cache, allows "
        f"{model.allowed_tflops:.1f} ({measured.source})."
    )


def draw(model, step=None):
    """Tile grid after `step` visits (None: all), roofline, SRAM, bytes, waves. Returns a figure.

    Bars are drawn straight into the figure, as one collection: axes and ticks cost a redraw most of its time.
    """
    figure = Picture(7.2)
    _draw_grid(figure.add_axes((0.07, 0.535, 0.35, 0.42), axes_class=Panel), model, step)
    _draw_roofline(figure.add_axes((0.52, 0.535, 0.45, 0.42), axes_class=Panel), model)
    rectangles = [*_sram_bars(figure, model), *_bytes_bars(figure, model), *_wave_bars(figure, model)]
    figure.add_artist(
        PolyCollection(
            [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h, _ in rectangles],
            facecolors=[colour for *_, colour in rectangles],
            edgecolors="white",
            linewidths=0.5,
            transform=figure.transFigure,
        )
    )
    return figure


def _draw_grid(axes, model, step):
    draw_tile_grid(axes, model.grid, step, MAX_NUMBERED_TILES)
    title = "tiles: blue visited, grey skipped"
    if model.is_window:
        title = "the first {} x {} of {:,} x {:,} tiles".format(*model.grid.visit_number.shape, *model.tiles)
    axes.set_title(title, loc="left", y=1.02, fontsize=10.5, color=INK)


def _draw_roofline(axes, model):
    """In powers of ten on plain axes, whose ticks are cheaper than those of logarithmic ones."""
    tidy(axes, title=f"roofline of the {model.settings.gpu}, {model.settings.dtype}")
    low, high, bottom, top = 0, 3, -1, 3.9
    ridge = model.peak_tflops * 1e12 / model.gpu.hbm_bytes_per_s
    roof = [log10(model.roof_tflops(intensity)) for intensity in (1, ridge, 1000)]
    axes.plot([low, log10(ridge), high], roof, color=INK, linewidth=1.6)
    axes.text(high, roof[-1] + 0.12, f"{model.peak_tflops:g} TFLOP/s", ha="right", fontsize=9, color=INK)
    points = (("standard", model.standard, VERMILLION, "s"), ("this choice", model.flash, BLUE, "o"))
    for (name, counted, colour, marker), height in zip(points, (0.93, 0.86), strict=True):
        intensity = counted.arithmetic_intensity
        tflops = model.roof_tflops(intensity)
        dashed = {"linewidth": 1, "linestyle": "--", "marker": marker, "markersize": 9, "markevery": [0]}
        axes.plot([log10(intensity)] * 2, [log10(tflops), bottom], color=colour, **dashed)
        text = f"{name}: {intensity:.3g} FLOP/byte, at most {tflops:.3g} TFLOP/s"
        axes.text(0.02, height, text, transform=axes.transAxes, fontsize=9, color=colour)
    if model.measured and not model.measured.failed:
        row, intensity = model.measured.row, model.measured.counted.arithmetic_intensity
        axes.plot(log10(intensity), log10(row["tflops"]), "D", markersize=8, color=GREEN)
        text = f"measured, N = {row['n']:,}: {row['tflops']:.3g} TFLOP/s"
        axes.text(0.02, 0.79, text, transform=axes.transAxes, fontsize=9, color=GREEN)
    axes.set_xlim(low, high)
    axes.set_ylim(bottom, top)
    axes.set_xticks(range(low, high + 1), ["1", "10", "100", "1,000"])
    axes.set_yticks(range(bottom, 4), ["0.1", "1", "10", "100", "1,000"])
    axes.set_xlabel("FLOPs per byte asked for", fontsize=9.5, color=INK)
    axes.set_ylabel("TFLOP/s", fontsize=9.5, color=INK)


@dataclass(frozen=True)
class _Bar:
    """parts: (label, length, colour) end to end. budget: where a line is drawn, or None."""

    name: str
    parts: list
    note: str
    colour: str = INK
    budget: int | None = None

    @property
    def length(self):
        return sum(length for _, length, _ in self.parts)


def _bars(figure, title, bars, left, right, top):
    """Rectangles (x, y, width, height, colour) of horizontal bars between two x of the figure; texts are drawn."""
    figure.text(left, top, title, fontsize=10.5, color=INK)
    scale = (right - left) / max(max(bar.length, bar.budget or 0) for bar in bars)
    height, rectangles, lines = 0.026, [], []
    for line, bar in enumerate(bars, start=1):
        y, x = top - 0.012 - 0.037 * line, left
        middle = {"va": "center_baseline", "fontsize": 9}
        figure.text(left - 0.008, y + height / 2, bar.name, ha="right", color=INK, **middle)
        for label, length, colour in bar.parts:
            width = length * scale
            rectangles.append((x, y, width, height, colour))
            if label and width > 0.006 + 0.008 * len(label):
                figure.text(x + width / 2, y + height / 2, label, ha="center", color="white", **middle)
            x += width
        if bar.budget:
            x = max(x, left + bar.budget * scale)
            lines.append([(left + bar.budget * scale, y - 0.004), (left + bar.budget * scale, y + height + 0.004)])
        figure.text(x + 0.007, y + height / 2, bar.note, color=bar.colour, **middle)
    figure.add_artist(LineCollection(lines, colors=INK, linewidths=1.8, transform=figure.transFigure))
    return rectangles


def _sram_bars(figure, model):
    sram, used, room = model.sram, model.compiled, model.budget_bytes
    four = [(name, count, COLOURS[name]) for name, count in model.four_tiles_bytes.items()]
    numpy_parts = [("loaded", sram.loaded_bytes, BLUE), ("computed, fp32", sram.computed_bytes, GREY)]
    shared = [("", used.shared_bytes, PURPLE)] if used else []
    registers = [("", used.register_bytes, GREEN)] if used else []
    bars = []
    for name, parts, budget in (
        ("four tiles", four, room),
        ("NumPy, machine", numpy_parts, room),
        ("Triton, shared", shared, room),
        ("Triton, registers", registers, 4 * model.gpu.registers_per_sm),
    ):
        length = sum(length for _, length, _ in parts)
        colour, note = INK, f"{length / 1024:,.1f} of {budget / 1024:,.0f}"
        if not parts:
            colour, note = GREY, "not recorded" if model.settings.order == "q_outer" else "not for this order"
        elif length > budget:
            colour, note = VERMILLION, f"{length / 1024:,.1f}, does not fit in {budget / 1024:,.0f}"
        elif parts == registers and used.stack_bytes:
            colour, note = VERMILLION, f"{note}; stack: {used.stack_bytes:,} bytes a thread"
        bars.append(_Bar(name, parts, note, colour, budget))
    title = f"KiB of one program; lines: what a program can have on the {model.settings.gpu}"
    return _bars(figure, title, bars, 0.15, 0.68, 0.425)


def _bytes_bars(figure, model):
    bars = []
    for name, counted in (("standard", model.standard), ("this choice", model.flash)):
        parts = [(tensor, sum(moved), COLOURS[tensor]) for tensor, moved in counted.by_tensor.items()]
        bars.append(_Bar(name, parts, _in_units(counted.total_bytes)))
    bars.append(_Bar("Q, K, V, O once", [("", model.once_bytes, GREY)], _in_units(model.once_bytes)))
    bound = [("", model.bound_bytes, INK)] if model.bound_bytes else []
    note = _in_units(model.bound_bytes) if model.bound_bytes else "no bound: K fits in SRAM"
    bars.append(_Bar("bound N\u00b2d\u00b2/M", bound, note))
    for index, (name, colour) in enumerate(COLOURS.items()):
        figure.text(0.40 + 0.017 * index, 0.19, name, fontsize=10.5, fontweight="bold", color=colour)
    return _bars(figure, "bytes asked for, all heads", bars, 0.15, 0.52, 0.19)


def _wave_bars(figure, model):
    left, right, bottom, height = 0.72, 0.985, 0.06, 0.095
    figure.text(0.66, 0.19, f"{model.programs:,} programs on {model.gpu.sms} SMs", fontsize=10.5, color=INK)
    small = {"fontsize": 9, "color": INK}
    if not model.limits:
        why = "for this order" if model.settings.order == "kv_outer" else "for this choice"
        why = f"waves: not recorded\n{why}" if model.compiled is None else "none fits on an SM"
        figure.text(left, bottom + height, why, va="top", **small)
        return []
    shown = min(model.waves, MAX_DRAWN_WAVES)
    counts = [model.at_a_time] * (shown - 1) + [model.last_wave]
    pitch = (right - left) / max(shown, 4)
    figure.add_artist(Line2D([left, right], [bottom + height] * 2, color=INK, linewidth=1.2, linestyle="--"))
    figure.text(left - 0.007, bottom + height, f"{model.at_a_time:,}", ha="right", va="center", **small)
    first = model.waves - shown + 1
    ticks = {0: f"wave {first:,}", shown - 1: f"{model.waves:,}" if shown > 1 else "wave 1"}
    for index, name in ticks.items():
        figure.text(left + (index + 0.5) * pitch, bottom - 0.01, name, ha="center", va="top", **small)
    return [
        (left + (index + 0.1) * pitch, bottom, 0.8 * pitch, height * count / model.at_a_time, colour)
        for index, count in enumerate(counts)
        for colour in [ORANGE if index == shown - 1 else BLUE]
    ]


def _in_units(n_bytes):
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes / 1e3:.3g} kB"


def explore():
    """The explorer as an ipywidgets box: tile sizes, shape, dtype, mask, order, GPU, and the visits one by one."""
    import ipywidgets as widgets

    wide = {"description_width": "95px"}
    start = Settings()

    def width(px):
        return widgets.Layout(width=f"{px}px")

    def menu(options, value, name):
        return widgets.Dropdown(options=options, value=value, description=name, style=wide, layout=width(215))

    def sizes(value, name):
        return widgets.SelectionSlider(options=BLOCKS, value=value, description=name, style=wide, layout=width(300))

    lengths = [(f"{n:,}", n) for n in LENGTHS]
    controls = {
        "block_q": sizes(start.block_q, "B_r"),
        "block_k": sizes(start.block_k, "B_c"),
        "n": menu(lengths, start.n, "N"),
        "d": menu(HEAD_DIMS, start.d, "d"),
        "dtype": menu(list(DTYPES), start.dtype, "dtype"),
        "causal": widgets.Checkbox(start.causal, description="causal", indent=False, layout=width(90)),
        "order": widgets.ToggleButtons(options=ORDERS, value=start.order, style={"button_width": "180px"}),
        "gpu": menu(list(GPUS), start.gpu, "GPU"),
        "heads": menu(HEADS, start.heads, "heads x batch"),
    }
    # At its own size: stretched over a wide page, its text would blur.
    text, image = widgets.HTML(), widgets.Image(format="png")
    image.layout = widgets.Layout(max_width="100%", align_self="flex-start")
    compiler = widgets.Button(description="compile it now", layout=widgets.Layout(display="none"))
    visits = widgets.HBox()
    record = dict(recorded())
    model = None

    def visits_up_to(end):
        """Slider and play button from 0 to `end`: the End key of a slider drawn goes to the end it had then."""
        slider, play = visits.children or (None, None)
        if slider and slider.max == end:
            return
        at_the_end = slider is None or slider.value == slider.max
        value = end if at_the_end else min(slider.value, end)
        for old in visits.children:
            old.close()
        slider = widgets.IntSlider(value, 0, end, description="visits", style=wide, layout=width(420))
        # About 60 pictures, however many the visits.
        play = widgets.Play(value=value, min=0, max=end, step=ceil(end / 60), interval=250, show_repeat=False)
        widgets.link((slider, "value"), (play, "value"))
        slider.observe(redraw, names="value")
        visits.children = slider, play

    def redraw(_change=None):
        step = visits.children[0].value
        text.value = describe(model, step)
        image.value = png(draw(model, step))

    def choose(_change=None):
        nonlocal model
        model = evaluate(Settings(**{name: control.value for name, control in controls.items()}), record)
        missing = model.compiled is None and model.settings.order == "q_outer"
        compiler.layout.display = None if missing else "none"
        visits_up_to(model.grid.n_visits)
        redraw()

    def compile_missing(_button):
        compiler.disabled = True
        try:
            record.update(compile_now(model.settings))
            choose()
        except (ImportError, RuntimeError) as error:
            text.value += f"<br>{escape(str(error))}"
        finally:
            compiler.disabled = False

    for control in controls.values():
        control.observe(choose, names="value")
    compiler.on_click(compile_missing)
    choose()
    c = controls
    return widgets.VBox(
        [
            widgets.HBox([c["block_q"], c["block_k"], c["gpu"]]),
            widgets.HBox([c["n"], c["d"], c["dtype"], c["heads"]]),
            widgets.HBox([c["order"], c["causal"]]),
            visits,
            text,
            compiler,
            image,
        ]
    )
