"""Lesson 04's explorer: what standard attention holds in memory and moves through it, and whether it fits.

`run` is the model: bytes and FLOPs come from `course_lib.traffic`, the GPU's figures from
`course_lib.hardware`. `draw` shows one setting, `draw_masks` who sees whom. `explore` is the widget.
"""

from bisect import bisect_right
from types import SimpleNamespace

import numpy as np

from course_lib import traffic
from course_lib.hardware import GIB, GPUS, KIB, MIB

from .drawing import bare, cells, log_axes, names_below, pale, stacked
from .figures import BLUE, GREY, INK, PURPLE, TENSOR_COLOURS, VERMILLION, label, panels, tidy
from .shell import Explorer, buttons, choice, menu
from .words import in_units, plain

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 100_000, 131_072)
HEAD_DIMS = (32, 64, 128, 256)
HEADS = (1, 8, 16, 32, 64)
DTYPE_BYTES = {"fp16": 2, "fp32": 4}

# The three passes of standard attention (FA1 Alg. 0), and what each reads and writes.
PASSES = {
    "S = Q K^T": (("Q", "read"), ("K", "read"), ("S", "written")),
    "P = softmax(S)": (("S", "read"), ("P", "written")),
    "O = P V": (("P", "read"), ("V", "read"), ("O", "written")),
}


def by_pass(by_tensor):
    """Bytes of each pass by tensor and direction, from those of each tensor: traffic's or a machine report's.

    Returns pass -> {(tensor, "read" or "written"): bytes}. No tensor is read, or written, by two passes.
    """
    field = {"read": "read_bytes", "written": "write_bytes"}
    return {
        name: {(tensor, way): getattr(by_tensor[tensor], field[way]) for tensor, way in moves}
        for name, moves in PASSES.items()
    }


def held_bytes(n, d, heads, dtype_bytes):
    """HBM that standard attention needs at once: the inputs and the output, and with them S and P."""
    moved = traffic.standard_attention(n, n, d, dtype_bytes=dtype_bytes, heads=heads)
    inputs_and_output = sum(moved.by_tensor[name].read_bytes for name in "QKV") + moved.by_tensor["O"].write_bytes
    return moved.peak_bytes + inputs_and_output


def longest_that_fits(d, heads, dtype_bytes, capacity_bytes):
    """The largest n, up to 2^40, whose `held_bytes` are within capacity_bytes; 0 if not even one token is."""
    lengths = range(1, 2**40 + 1)
    return bisect_right(lengths, capacity_bytes, key=lambda n: held_bytes(n, d, heads, dtype_bytes))


def run(n, d=64, heads=16, dtype="fp16", gpu="A100"):
    """Standard attention of `heads` heads over n tokens on one GPU, as a namespace.

    dtype: of DTYPE_BYTES; gpu: of `hardware.GPUS`. The namespace has the arguments and, over all heads: moved, a
    Traffic; matrix_bytes of S; held_bytes of Q, K, V, O, S and P at once; longest, the longest sequence that fits;
    memory_s and arithmetic_s, what the moved bytes take at the vendor's bandwidth, and the two products at its peak for
    the dtype; ridge, the FLOPs per byte at which the two would be equal.
    """
    model = SimpleNamespace(n=n, d=d, heads=heads, dtype=dtype, gpu=gpu)
    of, dtype_bytes = GPUS[gpu], DTYPE_BYTES[dtype]
    model.moved = traffic.standard_attention(n, n, d, dtype_bytes=dtype_bytes, heads=heads)
    model.matrix_bytes = model.moved.by_tensor["S"].write_bytes
    model.held_bytes, model.capacity_bytes = held_bytes(n, d, heads, dtype_bytes), of.hbm_bytes
    model.fits = model.held_bytes <= model.capacity_bytes
    model.longest = longest_that_fits(d, heads, dtype_bytes, of.hbm_bytes)
    # Tensor cores for fp16, ordinary arithmetic for fp32.
    flops_per_s = 1e12 * (of.fp16_tensor_tflops if dtype == "fp16" else of.fp32_tflops)
    model.memory_s = model.moved.total_bytes / of.hbm_bytes_per_s
    model.arithmetic_s = model.moved.flops / flops_per_s
    model.intensity, model.ridge = model.moved.arithmetic_intensity, flops_per_s / of.hbm_bytes_per_s
    model.memory_bound = model.intensity < model.ridge
    return model


def size(n_bytes):
    """Bytes in words, in powers of two: 2.00 MiB."""
    units = ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)
    return in_units(n_bytes, units, ",.2f") if n_bytes >= KIB else f"{n_bytes} bytes"


def traffic_size(n_bytes):
    """Bytes that move, in powers of ten, as bandwidths are stated: 2.0 MB."""
    return in_units(n_bytes, (("GB", 1e9), ("MB", 1e6)), ",.1f")


def describe(model):
    """The setting in words and numbers, as HTML: every number is the model's."""
    verdict = "fits" if model.fits else "does not fit"
    bound = "memory" if model.memory_bound else "arithmetic"
    return (
        f"<b>N = {model.n:,}, d = {model.d}, {model.heads} heads, {model.dtype}.</b> S over all heads: "
        f"{size(model.matrix_bytes)}. With P, Q, K, V and O: {size(model.held_bytes)}, which <b>{verdict}</b> in the "
        f"{size(model.capacity_bytes)} of one {model.gpu}; the longest that fits is N = {model.longest:,}.<br>"
        f"Bytes requested: {traffic_size(model.moved.total_bytes)}. FLOPs per byte: {model.intensity:.1f}; ridge: "
        f"{model.ridge:.1f}. At the vendor's peaks the bytes take {1e3 * model.memory_s:,.3f} ms and the products "
        f"{1e3 * model.arithmetic_s:,.3f} ms: bound by <b>{bound}</b>."
    )


def draw(model):
    """Three panels: memory held at every length, bytes moved by pass, paler what is written, and times."""
    alt = f"Memory held against N, bytes by pass, and times at the peaks. {plain(describe(model))}"
    figure, (held, moved, times) = panels(3.3, 1.1, 1.25, 0.75, left=0.065, wspace=0.3, alt=alt)
    tidy(held, title=f"held on one {model.gpu} (dot: this N)", x="N")
    line = [held_bytes(n, model.d, model.heads, DTYPE_BYTES[model.dtype]) for n in LENGTHS]
    held.plot(LENGTHS, line, color=BLUE, linewidth=1.8)
    held.axhline(model.capacity_bytes, color=VERMILLION, linewidth=1.4, linestyle="--")
    label(held, LENGTHS[0], 1.3 * model.capacity_bytes, "its memory", color=VERMILLION, ha="left", va="bottom")
    held.plot(model.n, model.held_bytes, "o", markersize=9, color=INK)
    log_axes(held, (256, 2048, 16_384, 131_072), ("256", "2k", "16k", "128k"), y_base=2)
    held.set_yticks((MIB, GIB, 1024 * GIB), ("1 MiB", "1 GiB", "1 TiB"))
    held.set_ylim(2**17, 2**45)

    tidy(moved, title=f"requested: {traffic_size(model.moved.total_bytes)}", x="share of the bytes")
    passes = by_pass(model.moved.by_tensor).values()
    bars = {
        name: [
            (f"{tensor} {way}", n_bytes / model.moved.total_bytes, pale(colour) if way == "written" else colour)
            for (tensor, way), n_bytes in moves.items()
            for colour in [TENSOR_COLOURS[tensor]]
        ]
        for name, moves in zip(("S = QK'", "softmax", "O = PV"), passes, strict=True)
    }
    stacked(moved, bars, [""] * len(bars), end=0.6)

    tidy(times, title="time at the peaks", y="ms")
    times.bar(range(2), (1e3 * model.memory_s, 1e3 * model.arithmetic_s), width=0.6, color=(BLUE, PURPLE))
    names_below(times, ("bytes", "FLOPs"))
    times.locator_params(axis="y", nbins=3)
    return figure


def draw_masks(masks):
    """Which query (row) sees which key (column). masks: title -> [n_q, n_k] of bool."""
    seen = "; ".join(f"{title}: {', '.join(map(str, mask.sum(1)))}" for title, mask in masks.items())
    alt = f"Grids of queries by keys, filled where a query sees a key. Keys that each query sees, of {seen}."
    figure, every = panels(2.6, *[1] * len(masks), left=0.05, below=0.13, above=0.68, wspace=0.3, alt=alt)
    for axes, (title, mask) in zip(every, masks.items(), strict=True):
        cells(axes, mask, ("white", BLUE), edgecolors=GREY, linewidth=0.8)
        axes.invert_yaxis()
        axes.set_aspect("equal")
        axes.set_title(title, loc="left", pad=10, fontsize=10.5, color=INK)
        axes.set_xticks(np.arange(mask.shape[1]) + 0.5, range(mask.shape[1]))
        axes.set_yticks(np.arange(mask.shape[0]) + 0.5, range(mask.shape[0]))
        axes.xaxis.tick_top()
        bare(axes)
    tidy(every[0], x="key", y="query")
    every[0].xaxis.set_label_position("top")
    return figure


def explore():
    """The explorer as a widget: N, head dim, heads, dtype, GPU."""
    return Explorer(
        run, describe, draw,
        {"n": choice("N", LENGTHS, 32_768), "d": choice("d", HEAD_DIMS, 64)},
        {"heads": choice("heads", HEADS, 16), "gpu": menu("GPU", GPUS, "A100")},
        {"dtype": buttons("dtype", DTYPE_BYTES, "fp16")},
    )  # fmt: skip
