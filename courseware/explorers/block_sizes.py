"""Lesson 06's explorer: what a choice of tile sizes costs, from the grid of tiles to the programs on a GPU.

`evaluate` is the model: bytes and FLOPs from `traffic`, the peak of SRAM from a run on the memory `machine`, what the
compiler uses from the record `courseware/data/resources.json`, what an H100 reached with these tiles from
`courseware/data/sweep-h100.json` where there is one. block_sizes.js draws `block_sizes_state`; `explore` is the widget.
"""

from dataclasses import asdict, dataclass
from functools import lru_cache
from html import escape
from itertools import product
from math import ceil, log10
from types import SimpleNamespace

import numpy as np

from course_lib import traffic
from course_lib.hardware import GPUS
from course_lib.machine import Machine
from courseware.bench import records

from .roofline import roof_tflops
from .svg_explorer import SvgExplorer, axis, choices
from .tiled_attention import KINDS, race_state, run, run_on
from .words import in_units, table

SWEEP, SWEPT_GPU = "sweep-h100", "H100"

BLOCKS = (16, 32, 64, 128)
LENGTHS = (100, 512, 1000, 1024, 4095, 4096, 16384, 131072)
HEAD_DIMS = (32, 64, 128)
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
ORDERS = {"queries outermost (FA2)": "q_outer", "keys outermost (FA1)": "kv_outer"}
HEADS = (1, 8, 32, 64, 256, 1024)
# Of a larger grid only the corner with the first tiles is drawn.
MAX_DRAWN_TILES = 16
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


def evaluate(settings, record=None, sweep=None):
    """All that is shown for `settings`, as a namespace.

    record, sweep: where to look, as `recorded` and `swept` give them (None: the committed ones). The namespace has
    settings, gpu, compiled (None with keys outermost: the Triton kernel has queries outermost), measured (None if no
    sweep has these tiles on this GPU), what this function computes, and if a program fits on an SM what `_occupancy`
    does.
    """
    s, gpu = settings, GPUS[settings.gpu]
    sizes = {"dtype_bytes": s.dtype_bytes, "causal": s.causal, "heads": s.heads}
    model = SimpleNamespace(settings=s, gpu=gpu, compiled=None, measured=None, limits=None)
    if s.order == "q_outer":
        model.compiled = (recorded() if record is None else record)[s.row]
        if s.gpu == SWEPT_GPU:
            model.measured = (swept() if sweep is None else sweep).get(s.swept)

    model.tiles = ceil(s.n / s.block_q), ceil(s.n / s.block_k)
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
    """The committed record's rows: Settings.row -> what `compiled` makes of the row."""
    record = records.record("resources")
    rows = (dict(zip(record["columns"], row, strict=True)) for row in record["rows"])
    return {tuple(row.values())[:6]: compiled(record["triton"], row) for row in rows}


def compiled(triton, row):
    """The columns of a record's row as a namespace, with Triton's version, and register_bytes of a whole program."""
    return SimpleNamespace(**row, triton=triton, register_bytes=4 * row["registers"] * 32 * row["num_warps"])


@lru_cache(maxsize=1)
def swept():
    """The committed sweep of block sizes: Settings.swept -> namespace; empty where none is committed.

    row: the fastest of the `tried` configurations that the sweep ran with these tiles, with its own n and heads, or if
    none ran, the first. counted: the Traffic of the row's shape.
    """
    tried, fastest = {}, {}
    for row in records.rows(SWEEP):
        same = tuple(row[column] for column in ("dtype", "head_dim", "causal", "block_q", "block_k"))
        tried.setdefault(same, []).append(row)
    for same, rows in tried.items():
        row = max(rows, key=lambda row: row.get("tflops", 0))
        shape = {name: row[name] for name in ("block_q", "block_k", "causal", "heads", "batch")}
        shape["dtype_bytes"] = 4 if row["dtype"] == "float32" else 2
        counted = traffic.flash_attention(row["n"], row["n"], row["head_dim"], **shape)
        fastest[same] = SimpleNamespace(row=row, tried=len(rows), counted=counted)
    return fastest


def describe(model):
    """What no panel says, as HTML: exact bytes, times, programs, the compiler, and what was measured, if anything."""
    parts = {
        "Bytes": _describe_bytes, "Roofline": _describe_roofline, "Programs": _describe_programs,
        "Compiler": _describe_compiler,
    } | ({"Measured": _describe_measured} if model.measured else {})  # fmt: skip
    return table((name, part(model)) for name, part in parts.items())


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
    return text + "None fits on an SM."


def _describe_compiler(model):
    used, budget = model.compiled, model.gpu.shared_bytes_per_block
    if used is None:
        return "Our fast Triton kernel has queries outermost; for this order nothing is recorded."
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


def block_sizes_state(full, **chosen):
    """What block_sizes.js draws for Settings(**chosen). full: with all numbers in words, and as many tiles as a page
    with a kernel draws; without, what one without a kernel can hold of many settings."""
    model = evaluate(Settings(**chosen))
    s, tiles = model.settings, MAX_DRAWN_TILES if full else 8
    drawn = min(s.n, tiles * min(s.block_q, s.block_k))
    sizes = {"block_q": s.block_q, "block_k": s.block_k, "causal": s.causal}
    # One number a row tells what a row takes, since every byte belongs to a row.
    runs = {order: run(drawn, drawn, order=order, d=1, **sizes) for order in ORDERS.values()}
    return race_state(runs, s.order, row_bytes=s.d * s.dtype_bytes) | {
        "opens": runs[s.order].grid.n_visits, "note": _note(model, drawn), "headline": _headline(model),
        "sram": _sram_rows(model), "bytes": _byte_rows(model), "roof": _roof(model), "waves": _waves(model),
        "details": describe(model) if full else None,
    }  # fmt: skip


def _note(model, drawn):
    """Which tiles are drawn."""
    shown = [ceil(drawn / block) for block in (model.settings.block_q, model.settings.block_k)]
    if shown == list(model.tiles):
        return "Drawn: all tiles of one head."
    return "Drawn: the first {} x {} of {:,} x {:,} tiles of one head.".format(*shown, *model.tiles)


def _headline(model):
    """The four numbers that matter: (number, what it is of, whether it is too large)."""
    total, budget = sum(model.four_tiles_bytes.values()), model.gpu.shared_bytes_per_block
    ratio = model.flash.total_bytes / model.standard.total_bytes
    standard = in_units(model.standard.total_bytes, UNITS, ".3g")
    fits = f"{model.per_sm} on an SM" if model.limits else "none fits" if model.compiled else "not recorded"
    waves = f", {model.waves:,} wave{'s' * (model.waves > 1)}" if model.limits else ""
    return [
        (in_units(model.flash.total_bytes, UNITS, ".3g"), f"requested by {model.settings.heads:,} heads", False),
        (f"{ratio:.2f} \u00d7", f"standard attention's {standard}", ratio > 1),
        (f"{total / 1024:,.4g} of {budget / 1024:,.0f} KiB", "SRAM, four tiles", total > budget),
        (fits, f"of {model.programs:,} programs{waves}", not model.limits and bool(model.compiled)),
    ]


def _sram_rows(model):
    """KiB that one program has in SRAM and registers, each beside what there is on the GPU."""
    used, room = model.compiled, model.gpu.shared_bytes_per_block
    bars = [
        ("four tiles", [(name, n_bytes, name) for name, n_bytes in model.four_tiles_bytes.items()], room),
        ("NumPy, machine", list(zip(model.sram, model.sram.values(), ("grey", "grey pale"), strict=True)), room),
        ("Triton, shared", [("", used.shared_bytes, "grey")] if used else [], room),
        ("Triton, registers", [("", used.register_bytes, "grey")] if used else [], 4 * model.gpu.registers_per_sm),
    ]
    rows, end = [], 0
    for name, parts, budget in bars:
        kib = sum(n_bytes for _, n_bytes, _ in parts) / 1024
        note = f"{kib:,.1f} of {budget / 1024:,.0f}"
        if not parts:
            note = "not for this order"
        elif name == "Triton, registers" and used.stack_bytes:
            note += f", spills {used.stack_bytes:,}"
        parts = [(label, round(n_bytes / 1024, 2), kind) for label, n_bytes, kind in parts]
        rows.append({"name": name, "parts": parts, "note": note, "mark": budget / 1024, "over": kib > budget / 1024})
        end = max(end, kib, budget / 1024)
    title = f"KiB of one program; lines: what it can have on the {model.settings.gpu}"
    return {"title": title, "rows": rows, "end": end}


def _byte_rows(model):
    """Megabytes of all heads beside standard attention's, each tensor once, and the lower bound."""
    bars = {
        name: [(tensor, sum(moved) / 1e6, KINDS[tensor]) for tensor, moved in counted.by_tensor.items()]
        for name, counted in (("standard", model.standard), ("this choice", model.flash))
    }
    bars["Q, K, V, O once"] = [("", model.once_bytes / 1e6, "grey")]
    bars["N\u00b2d\u00b2/M"] = [("", model.bound_bytes / 1e6, "mark")] if model.bound_bytes else []
    rows = []
    for name, parts in bars.items():
        note = in_units(1e6 * sum(size for _, size, _ in parts), UNITS, ".3g") if parts else "K fits in SRAM"
        parts = [(label, float(f"{size:.4g}"), kind) for label, size, kind in parts]
        rows.append({"name": name, "note": note, "parts": parts})
    end = max(sum(size for _, size, _ in row["parts"]) for row in rows)
    return {"title": "Bytes requested, all heads, before any cache", "rows": rows, "end": end}


def _roof(model):
    """The roof and the points under it, as powers of ten."""
    drawn = []
    for name, counted, kind in (("standard", model.standard, "standard"), ("this choice", model.flash, "choice")):
        tflops, intensity = at_the_roof(model, counted)[0], counted.arithmetic_intensity
        drawn.append((log10(intensity), log10(tflops), f"{name}: {intensity:.3g}, at most {tflops:.3g} TFLOP/s", kind))
    corners = 1, 1e12 * model.peak_tflops / model.gpu.hbm_bytes_per_s, 1000
    return {
        "title": f"Roofline of the {model.settings.gpu}, {model.settings.dtype}",
        "x": axis(0, 3, ()) | {"ticks": [(x, f"{10**x:,}") for x in range(4)]},
        "y": axis(-0.5, 4.6, ()) | {"ticks": [(y, f"{10**y:,}") for y in range(4)]},
        "line": [(log10(x), log10(roof_tflops(model.gpu, x, model.peak_tflops))) for x in corners],
        "points": [tuple(round(x, 3) if isinstance(x, float) else x for x in point) for point in drawn],
    }  # fmt: skip


def _waves(model):
    """The last waves of programs, as shares of what runs at a time."""
    title, y = f"{model.programs:,} programs on {model.gpu.sms} SMs", axis(0, 1.1, ()) | {"ticks": [(1, "full")]}
    if not model.limits:
        why = "none fits on an SM" if model.compiled else "waves: not recorded"
        return {"title": f"{title}: {why}", "heights": [], "ticks": [], "y": y}
    shown = min(model.waves, MAX_DRAWN_WAVES)
    heights = [1] * (shown - 1) + [round(model.last_wave / model.at_a_time, 3)]
    ticks = {0: f"wave {model.waves - shown + 1:,}", shown - 1: f"{model.waves:,}" if shown > 1 else "wave 1"}
    title = f"{title}, {model.at_a_time:,} at a time"
    return {"title": title, "heights": heights, "ticks": list(ticks.items()), "y": y}


def explore():
    """The explorer: tile sizes, shape, dtype, mask, order and GPU, and the visits one by one."""
    start = asdict(Settings()) | {"full": True}
    controls = [
        choices("slider", "block_q", "B_r", BLOCKS),
        choices("slider", "block_k", "B_c", BLOCKS),
        choices("menu", "n", "N", LENGTHS),
        choices("menu", "d", "d", HEAD_DIMS),
        choices("menu", "dtype", "dtype", {name: name for name in DTYPES}),
        choices("menu", "heads", "heads x batch", HEADS),
        choices("menu", "gpu", "GPU", {name: name for name in GPUS}),
        choices("buttons", "order", "loops", ORDERS),
        choices("tick", "causal", "causal", (False, True)),
    ]
    grid = [
        start | {"block_q": q, "block_k": k, "n": n, "causal": causal, "order": order, "gpu": gpu, "full": False}
        for q, k, n, causal, order, gpu in product(
            BLOCKS, BLOCKS, (1024, 4096), (False, True), ORDERS.values(), ("T4", "H100")
        )
    ]
    alt = (
        "For 1,024 queries and keys in tiles of 64 x 64 on an H100: 143 MB requested, half of standard attention's 285 "
        "MB; 32 of 227 KiB of SRAM. Below, two grids of tiles: when the loop with queries outermost has visited all of "
        "its tiles, the same bytes have taken the one with keys outermost less than two thirds of the way. Then bars "
        "of SRAM and bytes by tensor, the roofline with this choice right of standard attention, and the waves."
    )
    return SvgExplorer("block_sizes", block_sizes_state, start, controls=controls, grid=grid, alt=alt)
