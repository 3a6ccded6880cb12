"""Lesson 06's explorer: what a choice of tile sizes costs, from the grid of tiles to the programs on a GPU.

`evaluate` is the model: bytes and FLOPs from `traffic`, the peak of SRAM from a run on the memory `machine`, what the
compiler uses from the record `course_lib/data/resources.json`, what an H100 reached with these tiles from
`course_lib/data/sweep-h100.json` where there is one. `draw` shows it, `explore` is the widget, and `compile_now` fills
a row that the record lacks.
"""

import importlib.metadata
import json
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import ipywidgets as widgets
import numpy as np

from course_lib import traffic
from course_lib.hardware import GPUS
from course_lib.machine import Machine
from course_lib.measure import records

from .drawing import stacked
from .figures import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, TENSOR_COLOURS, VERMILLION, Picture, corner, label, tidy
from .roofline import draw_roof, roof_tflops
from .shell import Explorer, buttons, choice, menu, slider, tick
from .tile_grid import draw_tile_grid, tile_grid
from .tiled_attention import run_on
from .words import in_units, plain, table

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

UNITS = ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)


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
        return 10 * major + minor, *self.swept


class Compiled(NamedTuple):
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


class Measured(NamedTuple):
    """The fastest of the `tried` configurations that a sweep ran with the same tiles, or if none ran, the first."""

    row: dict  # the sweep's, with its own n and heads
    tried: int
    counted: traffic.Traffic  # of the row's shape


def evaluate(settings, record=None, sweep=None):
    """All that is shown for `settings`, as a namespace.

    record, sweep: where to look, as `recorded` and `swept` give them (None: the committed ones). The namespace has
    settings, gpu, compiled (None if not recorded, or not for this order), measured (None if no sweep has these tiles
    on this GPU), what this function computes, and if a program fits on an SM what `_occupancy` does.
    """
    s, gpu = settings, GPUS[settings.gpu]
    sizes = {"dtype_bytes": s.dtype_bytes, "causal": s.causal, "heads": s.heads}
    model = SimpleNamespace(settings=s, gpu=gpu, compiled=None, measured=None, limits=None)
    if s.order == "q_outer":
        model.compiled = (recorded() if record is None else record).get(s.row)
        if s.gpu == SWEPT_GPU:
            model.measured = (swept() if sweep is None else sweep).get(s.swept)

    drawn = min(s.n, MAX_DRAWN_TILES * min(s.block_q, s.block_k))
    model.grid = tile_grid(drawn, drawn, s.block_q, s.block_k, s.causal, s.order)
    model.tiles = ceil(s.n / s.block_q), ceil(s.n / s.block_k)  # of the whole grid, of which a corner may be drawn
    model.is_window = model.grid.visit_number.shape != model.tiles

    model.standard = traffic.standard_attention(s.n, s.n, s.d, **sizes)
    model.flash = traffic.flash_attention(s.n, s.n, s.d, block_q=s.block_q, block_k=s.block_k, order=s.order, **sizes)
    model.once_bytes = traffic.flash_attention(s.n, s.n, s.d, block_q=s.n, block_k=s.n, **sizes).total_bytes
    # n^2 d^2 / M elements; None where the theorem does not speak.
    sram_elems, model.bound_bytes = gpu.shared_bytes_per_block // s.dtype_bytes, None
    if sram_elems <= s.n * s.d:
        model.bound_bytes = traffic.lower_bound_elems(s.n, s.d, sram_elems) * s.dtype_bytes * s.heads

    # The tiles of lesson 06's formula, and what the course's reference code holds.
    elems = {"Q": s.block_q * s.d, "K": s.block_k * s.d, "V": s.block_k * s.d, "S": s.block_q * s.block_k}
    model.four_tiles_bytes = {name: count * s.dtype_bytes for name, count in elems.items()}
    model.sram = machine_sram(s.n, s.block_q, s.block_k, s.d, s.dtype_bytes, s.causal, s.order)

    # bf16 has no tensor cores before compute capability 8.0.
    has_tensor_cores = {"fp16": True, "bf16": gpu.compute_capability >= (8, 0), "fp32": False}[s.dtype]
    model.peak_tflops = gpu.fp16_tensor_tflops if has_tensor_cores else gpu.fp32_tflops
    # FA2 makes a program of each query tile of each head, FA1 one of each head.
    model.programs = s.heads * (model.tiles[0] if s.order == "q_outer" else 1)
    if model.compiled and model.compiled.shared_bytes <= gpu.shared_bytes_per_block:
        _occupancy(model)
    return model


def _occupancy(model):
    """Adds limits, resource -> programs that it allows on an SM, and how many run at a time, if that is any at all."""
    names = "shared_bytes", "registers", "num_warps", "tensor_memory_columns"
    limits = model.gpu.resident_blocks(**{name: getattr(model.compiled, name) for name in names})
    if per_sm := min(limits.values()):
        model.limits, model.per_sm, model.at_a_time = limits, per_sm, per_sm * model.gpu.sms
        model.waves = ceil(model.programs / model.at_a_time)
        model.last_wave = model.programs - (model.waves - 1) * model.at_a_time  # programs in it


def at_the_roof(model, counted):
    """(TFLOP/s, ms) that the GPU reaches at best with a Traffic, were every byte to come from HBM."""
    tflops = roof_tflops(model.gpu, counted.arithmetic_intensity, model.peak_tflops)
    return tflops, counted.flops / tflops / 1e9


@lru_cache(maxsize=256)
def machine_sram(n, block_q, block_k, d, dtype_bytes, causal, order):
    """Peak of SRAM of `reference.tiled` on the memory machine, for one head: bytes of loaded tiles, and of results.

    Every visit needs what the first one needs, so that one tile of queries and one of keys tell.
    """
    options = {"block_q": block_q, "block_k": block_k, "causal": causal, "order": order}
    dtype = np.float16 if dtype_bytes == 2 else np.float32
    report = run_on(Machine(), min(n, block_q), min(n, block_k), d, dtype, **options)
    loaded_bytes = sum(n_bytes for name, n_bytes in report.peak_holders if name.split("[")[0] in (*"QKVOlm",))
    return {"loaded": loaded_bytes, "computed, fp32": report.peak_sram_bytes - loaded_bytes}


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
    fastest = {}
    for same, rows in tried.items():
        row = max(rows, key=lambda row: row.get("tflops", 0))
        shape = {name: row[name] for name in ("block_q", "block_k", "causal", "heads", "batch")}
        shape["dtype_bytes"] = 4 if row["dtype"] == "float32" else 2
        fastest[same] = Measured(row, len(rows), traffic.flash_attention(row["n"], row["n"], row["head_dim"], **shape))
    return fastest


def compile_now(settings):
    """What the installed compiler uses for `settings`, whatever is recorded: {Settings.row: Compiled}.

    Takes some seconds, most of them to start the compiler; no GPU needed. Raises RuntimeError with its message if it
    fails, ImportError where there is no Triton.
    """
    from course_lib.measure.resources import Request, chosen_config, forward_resources

    arch, dtype, d, causal, *blocks = settings.row
    config = chosen_config(arch, dtype, d, causal, *blocks)
    (used,) = forward_resources([Request(d, arch, dtype, causal, config)])
    numbers = [getattr(used, name) for name in Compiled._fields[2:-1]]
    return {settings.row: Compiled(*config[2:], *numbers, importlib.metadata.version("triton"))}


def describe(model, step=None):
    """The model in words, as HTML: a row for each panel, one for the compiler, and one for what was measured if
    anything was. step: as in `draw`."""
    parts = [_describe_sram, _describe_bytes, _describe_roofline, _describe_programs, _describe_compiler]
    texts = [_describe_tiles(model, step), *(part(model) for part in parts)]
    if model.measured:
        texts.append(_describe_measured(model))
    names = "Tiles", "SRAM", "Bytes", "Roofline", "Programs", "Compiler", "Measured"
    return table(zip(names, texts, strict=False))


def _describe_tiles(model, step):
    s, grid = model.settings, model.grid
    text = (
        f"{model.tiles[0]:,} x {model.tiles[1]:,} tiles of {s.block_q} queries x {s.block_k} keys; "
        f"{model.flash.flops // (4 * s.d * s.heads):,} of {s.n**2:,} scores are computed. "
    )
    if model.is_window:
        text += "Drawn: the first {:,} x {:,} tiles. ".format(*grid.visit_number.shape)
    if step is None or step >= grid.n_visits:
        return text + f"All {grid.n_visits:,} visits of the picture done."
    if step <= 0:
        return text + "Nothing visited yet."
    return text + f"Visit {step:,} of {grid.n_visits:,}: {' meet '.join(grid.rows_of(step))}."


def _describe_sram(model):
    total, budget = sum(model.four_tiles_bytes.values()), model.gpu.shared_bytes_per_block
    four = ", ".join(f"{name} {count:,}" for name, count in model.four_tiles_bytes.items())
    return (
        f"Four tiles in {model.settings.dtype}: {four}; {total:,} bytes, which "
        f"{'fits in' if total <= budget else 'does not fit in'} the {budget:,} that one program can have. With fp32 "
        f"statistics, accumulator and temporaries, our NumPy code peaks at {sum(model.sram.values()):,} on the memory "
        "machine."
    )


def _describe_bytes(model):
    bound = "n/a, all of K fits in SRAM" if model.bound_bytes is None else f"{model.bound_bytes:,.0f}"
    return (
        f"This choice requests {model.flash.total_bytes:,}, standard attention {model.standard.total_bytes:,} "
        f"(ratio {model.flash.total_bytes / model.standard.total_bytes:.3f}); Q, K, V, O once: {model.once_bytes:,}; "
        f"N&sup2;d&sup2;/M: {bound}. Before any cache, all heads."
    )


def _describe_roofline(model):
    parts = []
    for name, counted in (("this choice", model.flash), ("standard", model.standard)):
        tflops, ms = at_the_roof(model, counted)
        parts.append(
            f"{name} {counted.arithmetic_intensity:.2f} FLOP per byte, at most {tflops:.2f} TFLOP/s, at least "
            f"{f'{ms:,.0f}' if ms >= 100 else f'{ms:.3g}'} ms"
        )
    roofs = f"Peak {model.peak_tflops:g} TFLOP/s, {model.gpu.hbm_bytes_per_s / 1e9:,.0f} GB/s."
    return f"Without a cache: {'; '.join(parts)}. {roofs}"


def _describe_programs(model):
    what = "one for each query tile of each head" if model.settings.order == "q_outer" else "one for each head"
    text = f"{model.programs:,} ({what}) on {model.gpu.sms} SMs. "
    if model.limits:
        limiting = " and ".join(name for name, count in model.limits.items() if count == model.per_sm)
        return text + (
            f"{model.per_sm} fit on one SM (limit: {limiting}), {model.at_a_time:,} at a time: "
            f"{model.waves:,} wave{'s' * (model.waves > 1)}, the last with {model.last_wave:,} programs "
            f"({model.last_wave / model.at_a_time:.0%})."
        )
    if model.settings.order == "kv_outer":
        idle = max(model.gpu.sms - model.programs, 0)
        return text + f"At least {idle} SMs have nothing to do, however many fit on one."
    return text + ("None fits on an SM." if model.compiled else "How many fit on one SM is not recorded.")


def _describe_compiler(model):
    used, budget = model.compiled, model.gpu.shared_bytes_per_block
    if used is None:
        if model.settings.order == "kv_outer":
            return "Our fast Triton kernel has queries outermost; for this order nothing is recorded."
        return f"Not recorded for this choice. To record it: <code>{RECORD_COMMAND}</code>"
    room = f"{used.shared_bytes:,} bytes of shared memory"
    room = room if used.shared_bytes <= budget else f"does not fit: needs {room}, there are {budget:,}"
    if used.tensor_memory_columns:
        room += f", {used.tensor_memory_columns} columns of tensor memory"
    # A division's subroutine takes up to 24 bytes; what is more than that was spilled.
    spills = f"{used.stack_bytes:,} bytes of stack a thread" if used.stack_bytes else "nothing spilled"
    return (
        f"By Triton {used.triton}: {used.num_warps} warps, {room}, {used.registers} registers a thread "
        f"({used.register_bytes:,} bytes a program), {spills}; tensor cores "
        f"{'used' if used.tensor_cores else 'not used'}."
    )


def _describe_measured(model):
    row, tried = model.measured.row, model.measured.tried
    shape = f"N = {row['n']:,}, {row['heads'] * row['batch']:,} heads"
    tried = f"of {tried} configuration{'s' * (tried > 1)} with these tiles"
    if "error" in row:
        return f"{shape}: none {tried} ran, {escape(row['error'])} ({records.provenance(SWEEP)})."
    # By the measurement's count of FLOPs, of which a causal call has half of all.
    allowed = row["tflops"] * row["ms"] / at_the_roof(model, model.measured.counted)[1]
    how = f"{row['num_warps']} warps, {row['num_stages']} stages{', tiles by descriptor' * row['tma']}"
    return (
        f"{row['tflops']:.1f} TFLOP/s, {shape}, the fastest {tried} ({how}); the model, which has no cache, allows "
        f"{allowed:.1f} ({records.provenance(SWEEP)})."
    )


def draw(model, step=None):
    """Tile grid after `step` visits (None: all), roofline, SRAM, bytes, waves. Returns a figure."""
    figure = Picture(7.2, alt=f"Tiles, roofline, SRAM, bytes and waves of a choice. {plain(describe(model, step))}")
    grid = figure.add_axes((0.07, 0.555, 0.35, 0.39))
    draw_tile_grid(grid, model.grid, step, MAX_NUMBERED_TILES)
    title = "the first {} x {} of {:,} x {:,} tiles".format(*model.grid.visit_number.shape, *model.tiles)
    tidy(grid, title=title if model.is_window else "tiles: blue visited, grey skipped")
    _draw_roofline(figure.add_axes((0.52, 0.555, 0.45, 0.39)), model)
    _draw_sram(figure.add_axes((0.15, 0.265, 0.83, 0.165)), model)
    _draw_bytes(figure.add_axes((0.15, 0.02, 0.49, 0.165)), model)
    _draw_waves(figure.add_axes((0.72, 0.055, 0.26, 0.13)), model)
    return figure


def _draw_roofline(axes, model):
    title = f"roofline of the {model.settings.gpu}, {model.settings.dtype}"
    tidy(axes, title=title, x="FLOPs per byte requested", y="TFLOP/s")
    draw_roof(axes, model.gpu, (1, 1000), model.peak_tflops)
    axes.set_ylim(0.1, 8000)
    label(axes, 1000, 1.25 * model.peak_tflops, f"{model.peak_tflops:g} TFLOP/s", ha="right", va="bottom")
    points = ("standard", model.standard, VERMILLION, "s"), ("this choice", model.flash, BLUE, "o")
    for line, (name, counted, colour, marker) in enumerate(points):
        intensity, (tflops, _) = counted.arithmetic_intensity, at_the_roof(model, counted)
        axes.vlines(intensity, 0, tflops, color=colour, linewidth=1, linestyle="--")
        axes.plot(intensity, tflops, marker, markersize=9, color=colour)
        corner(axes, f"{name}: {intensity:.3g} FLOP/byte, at most {tflops:.3g} TFLOP/s", line=line, color=colour)
    if model.measured and "error" not in model.measured.row:
        row = model.measured.row
        axes.plot(model.measured.counted.arithmetic_intensity, row["tflops"], "D", markersize=8, color=GREEN)
        corner(axes, f"measured, N = {row['n']:,}: {row['tflops']:.3g} TFLOP/s", line=2, color=GREEN)


def _draw_sram(axes, model):
    used, room = model.compiled, model.gpu.shared_bytes_per_block
    tidy(axes, title=f"KiB of one program; lines: what a program can have on the {model.settings.gpu}")
    bars = {
        "four tiles": [(name, count, TENSOR_COLOURS[name]) for name, count in model.four_tiles_bytes.items()],
        "NumPy, machine": list(zip(model.sram, model.sram.values(), (BLUE, GREY), strict=True)),
        "Triton, shared": [("", used.shared_bytes, PURPLE)] if used else [],
        "Triton, registers": [("", used.register_bytes, GREEN)] if used else [],
    }
    budgets = [room, room, room, 4 * model.gpu.registers_per_sm]
    lengths = [sum(length for _, length, _ in parts) for parts in bars.values()]
    notes = []
    for length, budget in zip(lengths, budgets, strict=True):
        fits, verb = (True, "of") if length <= budget else (False, "does not fit in")
        notes.append((f"{length / 1024:,.1f} {verb} {budget / 1024:,.0f}", INK if fits else VERMILLION))
    if not used:
        notes[2:] = [("not recorded" if model.settings.order == "q_outer" else "not for this order", GREY)] * 2
    elif used.stack_bytes and lengths[3] <= budgets[3]:
        notes[3] = f"{notes[3][0]}; stack: {used.stack_bytes:,} bytes a thread", VERMILLION
    stacked(axes, bars, notes, end=1.5 * max(lengths + budgets), behind=budgets, scale=False)
    axes.vlines(budgets, np.arange(4) - 0.42, np.arange(4) + 0.42, color=INK, linewidth=1.8)


def _draw_bytes(axes, model):
    tidy(axes, title="bytes requested, all heads")
    bars = {
        name: [(tensor, sum(moved), TENSOR_COLOURS[tensor]) for tensor, moved in counted.by_tensor.items()]
        for name, counted in (("standard", model.standard), ("this choice", model.flash))
    }
    bars["Q, K, V, O once"] = [("", model.once_bytes, GREY)]
    bars["bound N\u00b2d\u00b2/M"] = [("", model.bound_bytes or 0, INK)]
    totals = model.standard.total_bytes, model.flash.total_bytes, model.once_bytes, model.bound_bytes
    notes = ["no bound: K fits in SRAM" if total is None else in_units(total, UNITS, ".3g") for total in totals]
    stacked(axes, bars, notes, room=1.3, scale=False)


def _draw_waves(axes, model):
    tidy(axes, title=f"{model.programs:,} programs on {model.gpu.sms} SMs")
    axes.set_yticks([])
    if not model.limits:
        axes.set_xticks([])
        why = "for this order" if model.settings.order == "kv_outer" else "for this choice"
        corner(axes, "none fits on an SM" if model.compiled else f"waves: not recorded\n{why}")
        return
    shown = min(model.waves, MAX_DRAWN_WAVES)
    first = model.waves - shown + 1
    heights = [model.at_a_time] * (shown - 1) + [model.last_wave]
    axes.bar(range(shown), heights, width=0.8, color=[BLUE] * (shown - 1) + [ORANGE])
    axes.axhline(model.at_a_time, color=INK, linewidth=1.2, linestyle="--")
    axes.set_yticks([model.at_a_time], [f"{model.at_a_time:,}"])
    axes.set_xticks([0, shown - 1][: model.waves], [f"wave {first:,}", f"{model.waves:,}"][: model.waves])
    axes.set(xlim=(-0.5, max(shown, 4) - 0.5), ylim=(0, 1.1 * model.at_a_time))


def explore():
    """The explorer as a widget: tile sizes, shape, dtype, mask, order, GPU, and the visits one by one."""
    start, record = Settings(), dict(recorded())
    button = widgets.Button(description="compile it now")

    def model_of(**chosen):
        model = evaluate(Settings(**chosen), record)
        missing = model.compiled is None and model.settings.order == "q_outer"
        button.layout.display = None if missing else "none"
        return model

    def compile_missing(_button):
        button.disabled = True
        try:
            record.update(compile_now(Settings(**{k: v for k, v in explorer.values.items() if k != "visits"})))
            explorer.redraw()
        except (ImportError, RuntimeError) as error:
            explorer.text.value += escape(str(error))
        finally:
            button.disabled = False

    lengths = [(f"{n:,}", n) for n in LENGTHS]
    n_visits = evaluate(start).grid.n_visits
    explorer = Explorer(
        model_of, describe, draw,
        {"block_q": choice("B_r", BLOCKS, start.block_q), "block_k": choice("B_c", BLOCKS, start.block_k)},
        {"gpu": menu("GPU", GPUS, start.gpu), "n": menu("N", lengths, start.n), "d": menu("d", HEAD_DIMS, start.d)},
        {"dtype": menu("dtype", DTYPES, start.dtype), "heads": menu("heads x batch", HEADS, start.heads)},
        {"order": buttons("loops", ORDERS.items(), start.order), "causal": tick("causal", start.causal)},
        {"visits": slider("visits", 0, n_visits, n_visits)},
        step="visits", ends={"visits": lambda visits, **chosen: evaluate(Settings(**chosen)).grid.n_visits},
        play="visits",
    )  # fmt: skip
    button.on_click(compile_missing)
    explorer.children = *explorer.children, button
    return explorer
