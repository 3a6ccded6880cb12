"""Lesson 04's explorer: what standard attention holds in memory and moves through it, and whether it fits.

`run` is the model: bytes and FLOPs come from `course_lib.traffic`, the GPU's figures from
`course_lib.hardware`. `draw` shows one setting; `draw_weights`, `draw_masks`, `draw_matrix`, `draw_passes` and
`draw_on_chip` are the lesson's other figures. `explore` is the widget.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.colors import to_rgba

from course_lib import traffic
from course_lib.hardware import GIB, GPUS, KIB, MIB

from .figures import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, VERMILLION, Picture, png, tidy

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
COLOURS = {"Q": GREY, "K": GREY, "V": GREY, "O": GREEN, "S": BLUE, "P": ORANGE}


@dataclass(frozen=True)
class AttentionMemory:
    """Standard attention of `heads` heads over n tokens on one GPU.

    matrix_bytes: S, over all heads. held_bytes: Q, K, V, O, S and P at once. by_pass: pass -> bytes by (tensor,
    "read" or "written"). memory_s, arithmetic_s: what the moved bytes take at the vendor's bandwidth, and the
    two products' FLOPs at its peak for the dtype. ridge: FLOPs per byte at which the two would be equal.
    """

    n: int
    d: int
    heads: int
    dtype: str
    gpu: str
    matrix_bytes: int
    held_bytes: int
    capacity_bytes: int
    by_pass: dict
    total_bytes: int
    flops: int
    intensity: float
    ridge: float
    memory_s: float
    arithmetic_s: float
    longest: int  # the longest sequence that fits

    @property
    def fits(self):
        return self.held_bytes <= self.capacity_bytes

    @property
    def memory_bound(self):
        return self.intensity < self.ridge


def by_pass(by_tensor):
    """Bytes of each pass by tensor and direction, from those of each tensor: traffic's or a machine report's.

    Returns pass -> {(tensor, "read" or "written"): bytes}. No tensor is read, or written, by two passes.
    """
    return {
        name: {
            (tensor, way): by_tensor[tensor].read_bytes if way == "read" else by_tensor[tensor].write_bytes
            for tensor, way in moves
        }
        for name, moves in PASSES.items()
    }


def held_bytes(n, d, heads, dtype_bytes):
    """HBM that standard attention needs at once: the inputs and the output, and with them S and P."""
    moved = traffic.standard_attention(n, n, d, dtype_bytes=dtype_bytes, heads=heads)
    inputs_and_output = sum(moved.by_tensor[name].read_bytes for name in "QKV") + moved.by_tensor["O"].write_bytes
    return moved.peak_bytes + inputs_and_output


def longest_that_fits(d, heads, dtype_bytes, capacity_bytes):
    """The largest n whose `held_bytes` are within capacity_bytes, by bisection; 0 if not even one token is."""
    fits, too_long = 0, 1
    while held_bytes(too_long, d, heads, dtype_bytes) <= capacity_bytes:
        fits, too_long = too_long, 2 * too_long
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if held_bytes(middle, d, heads, dtype_bytes) <= capacity_bytes:
            fits = middle
        else:
            too_long = middle
    return fits


def peak_flops_per_s(gpu, dtype):
    """The vendor's peak: tensor cores for fp16, ordinary arithmetic for fp32."""
    return 1e12 * (gpu.fp16_tensor_tflops if dtype == "fp16" else gpu.fp32_tflops)


def run(n, d=64, heads=16, dtype="fp16", gpu="A100"):
    """n: tokens; dtype: of DTYPE_BYTES; gpu: of `hardware.GPUS`. Returns an AttentionMemory."""
    dtype_bytes, specification = DTYPE_BYTES[dtype], GPUS[gpu]
    moved = traffic.standard_attention(n, n, d, dtype_bytes=dtype_bytes, heads=heads)
    peak = peak_flops_per_s(specification, dtype)
    return AttentionMemory(
        n=n,
        d=d,
        heads=heads,
        dtype=dtype,
        gpu=gpu,
        matrix_bytes=moved.by_tensor["S"].write_bytes,
        held_bytes=held_bytes(n, d, heads, dtype_bytes),
        capacity_bytes=specification.hbm_bytes,
        by_pass=by_pass(moved.by_tensor),
        total_bytes=moved.total_bytes,
        flops=moved.flops,
        intensity=moved.arithmetic_intensity,
        ridge=peak / specification.hbm_bytes_per_s,
        memory_s=moved.total_bytes / specification.hbm_bytes_per_s,
        arithmetic_s=moved.flops / peak,
        longest=longest_that_fits(d, heads, dtype_bytes, specification.hbm_bytes),
    )


def size(n_bytes):
    """Bytes in words, in powers of two: 2.00 MiB."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:,.2f} {unit}"
    return f"{n_bytes} bytes"


def describe(model):
    """The setting in words and numbers, as HTML: every number is the model's."""
    verdict = "fits" if model.fits else "does not fit"
    bound = "memory" if model.memory_bound else "arithmetic"
    return (
        f"<b>N = {model.n:,}, d = {model.d}, {model.heads} heads, {model.dtype}.</b> S over all heads: "
        f"{size(model.matrix_bytes)}. With P, Q, K, V and O: {size(model.held_bytes)}, which <b>{verdict}</b> in the "
        f"{size(model.capacity_bytes)} of one {model.gpu}; the longest that fits is N = {model.longest:,}.<br>"
        f"Bytes asked for: {model.total_bytes / 1e6:,.1f} MB. FLOPs per byte: {model.intensity:.1f}; ridge: "
        f"{model.ridge:.1f}. At the vendor's peaks the bytes take {1e3 * model.memory_s:,.3f} ms and the products "
        f"{1e3 * model.arithmetic_s:,.3f} ms: bound by <b>{bound}</b>."
    )


def draw(model):
    """Three panels: memory held at every length, bytes moved by pass, time for bytes and for arithmetic."""
    figure = Picture(3.3)
    held, moved, times = figure.panels(1.15, 1.15, 0.8)
    figure.subplots_adjust(left=0.065, right=0.985, bottom=0.17, top=0.87, wspace=0.28)

    # Linear axes of logarithms: matplotlib's own logarithmic axes are slow.
    tidy(held, title=f"held on one {model.gpu} (dot: this N)", x="N")
    at = np.log2(LENGTHS)
    dtype_bytes = DTYPE_BYTES[model.dtype]
    line = [held_bytes(n, model.d, model.heads, dtype_bytes) for n in LENGTHS]
    held.plot(at, np.log2(line), color=BLUE, linewidth=1.8)
    held.axhline(np.log2(model.capacity_bytes), color=VERMILLION, linewidth=1.4, linestyle="--")
    held.text(at[0], np.log2(model.capacity_bytes) + 0.4, "its memory", fontsize=9, color=VERMILLION)
    held.plot(np.log2(model.n), np.log2(model.held_bytes), "o", markersize=9, color=INK)
    held.set_xticks((8, 11, 14, 17), ("256", "2k", "16k", "128k"))
    held.set_yticks((20, 30, 40), ("1 MiB", "1 GiB", "1 TiB"))
    held.set_ylim(17, 45)

    tidy(moved, title=f"moved: {model.total_bytes / 1e6:,.0f} MB asked for", y="share of the bytes")
    _draw_stacks(moved, model.by_pass, model.total_bytes)
    moved.set_ylim(0, 0.62)
    moved.set_yticks((0, 0.25, 0.5))

    tidy(times, title="time at the peaks", y="ms")
    bars = 1e3 * model.memory_s, 1e3 * model.arithmetic_s
    times.bars((0, 1), bars, width=0.6, facecolors=(BLUE, PURPLE))
    times.set_xticks((0, 1), ("bytes", "FLOPs"))
    times.set_xlim(-0.4, 1.4)
    times.set_ylim(0, 1.05 * max(bars))
    times.locator_params(axis="y", nbins=3)
    return figure


def _draw_stacks(axes, passes, unit_bytes):
    """In a Panel, a stacked bar for each pass, by tensor, paler what is written. Labels stand where there is room."""
    tallest = max(sum(moves.values()) for moves in passes.values()) / unit_bytes
    parts, faces = [], []
    for x, moves in enumerate(passes.values()):
        bottom = 0
        for (tensor, way), n_bytes in moves.items():
            height = n_bytes / unit_bytes
            alpha = 0.45 if way == "written" else 0.9
            parts.append((x, bottom, height))
            faces.append(to_rgba(COLOURS[tensor], alpha))
            if height > 0.07 * tallest:
                ink = "white" if (tensor, way) == ("S", "read") else INK
                label = f"{tensor} {way}"
                axes.text(x, bottom + height / 2, label, ha="center", va="center", fontsize=9, color=ink)
            bottom += height
    x, bottoms, heights = np.transpose(parts)
    axes.bars(x, heights, bottom=bottoms, width=0.72, facecolors=faces)
    axes.set_xlim(-0.5, len(passes) - 0.5)
    axes.set_xticks(range(len(passes)), ("S = QK'", "softmax", "O = PV"))


def draw_weights(S, P, O, tokens):
    """Scores, weights and output of a few tokens as numbers on a ground that darkens with them.

    S, P: [n, n], S with -inf where hidden; O: [n, d]; tokens: [n]. Returns a figure.
    """
    figure = Picture(3.0)
    panels = figure.subplots(1, 3, width_ratios=(2, 2, 1.1))
    figure.subplots_adjust(left=0.06, right=0.985, bottom=0.04, top=0.76, wspace=0.22)
    titles = "S: scores, scaled", "P: weights, each row adds up to 1", "O = P V: output"
    for axes, matrix, title in zip(panels, (S, P, O), titles, strict=True):
        _draw_matrix(axes, matrix)
        axes.set_title(title, loc="left", y=1.14, fontsize=10.5, color=INK)
        axes.set_yticks(range(len(tokens)), tokens)
        columns = tokens if matrix.shape[1] == len(tokens) else [f"O{j}" for j in range(matrix.shape[1])]
        axes.set_xticks(range(matrix.shape[1]), columns)
    return figure


def _draw_matrix(axes, matrix):
    shown = np.where(np.isfinite(matrix), matrix, 0)
    axes.imshow(shown, cmap="Blues", vmin=min(shown.min(), 0), vmax=1.6 * max(abs(shown).max(), 1e-9), aspect="auto")
    for i, j in np.ndindex(matrix.shape):
        text = f"{matrix[i, j]:.2f}" if np.isfinite(matrix[i, j]) else "-inf"
        axes.text(j, i, text, ha="center", va="center", fontsize=10, color=INK)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=INK, labelsize=9.5)
    axes.spines[:].set_visible(False)


def draw_masks(masks):
    """Which query (row) sees which key (column). masks: title -> [n_q, n_k] of bool. Returns a figure."""
    figure = Picture(2.6)
    panels = figure.subplots(1, len(masks))
    figure.subplots_adjust(left=0.05, right=0.985, bottom=0.05, top=0.74, wspace=0.3)
    for axes, (title, mask) in zip(panels, masks.items(), strict=True):
        axes.pcolormesh(mask, cmap="Blues", vmin=0, vmax=1.4, edgecolors=GREY, linewidth=0.8)
        axes.invert_yaxis()
        axes.set_aspect("equal")
        axes.set_title(title, loc="left", pad=10, fontsize=10.5, color=INK)
        axes.set_xticks(np.arange(mask.shape[1]) + 0.5, range(mask.shape[1]))
        axes.set_yticks(np.arange(mask.shape[0]) + 0.5, range(mask.shape[0]))
        axes.xaxis.tick_top()
        axes.tick_params(length=0, colors=INK, labelsize=9)
        axes.spines[:].set_visible(False)
    panels[0].set_ylabel("query", fontsize=9.5, color=INK)
    panels[0].set_xlabel("key", fontsize=9.5, color=INK)
    panels[0].xaxis.set_label_position("top")
    return figure


def draw_matrix(heads, gpus):
    """What S and P take against N, in both dtypes, and the memory of some GPUs. Returns a figure."""
    figure = Picture(3.6)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.08, right=0.985, bottom=0.15, top=0.89)
    tidy(axes, title=f"S and P of {heads} heads, held at once", x="N, tokens", y="GiB")
    lengths = np.array(LENGTHS)
    for (dtype, dtype_bytes), (colour, style) in zip(DTYPE_BYTES.items(), ((BLUE, "-"), (ORANGE, "--")), strict=True):
        held = [
            traffic.standard_attention(n, n, 64, dtype_bytes=dtype_bytes, heads=heads).peak_bytes / GIB for n in LENGTHS
        ]
        axes.plot(lengths, held, color=colour, linestyle=style, marker="o", markersize=4, label=dtype)
    for name, gpu in gpus.items():
        axes.axhline(gpu.hbm_bytes / GIB, color=VERMILLION, linewidth=0.9, linestyle=":")
        label = f"{name}: {gpu.hbm_bytes / GIB:.0f} GiB"
        axes.text(lengths[0], gpu.hbm_bytes / GIB * 1.12, label, fontsize=9, color=VERMILLION)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks((256, 2048, 32_768, 100_000), ("256", "2k", "32k", "100k"))
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def draw_passes(counted, stated):
    """Bytes of each pass by tensor: counted by the machine (bars) and from the closed form (black lines).

    counted, stated: pass -> {(tensor, "read" or "written"): bytes}, as `by_pass` makes them. Returns a figure.
    """
    figure = Picture(3.8)
    (axes,) = figure.panels(1)
    figure.subplots_adjust(left=0.08, right=0.985, bottom=0.1, top=0.89)
    tidy(axes, title="bytes between HBM and SRAM, counted; paler: written; lines: the closed form", y="MB")
    _draw_stacks(axes, counted, 1e6)
    for x, moves in enumerate(stated.values()):
        tops = np.cumsum(list(moves.values())) / 1e6
        axes.hlines(tops, x - 0.42, x + 0.42, color=INK, linewidth=1.6)
        axes.text(x, tops[-1] * 1.02, f"{tops[-1]:.2f} MB", ha="center", va="bottom", fontsize=9.5, color=INK)
    axes.set_ylim(0, 1.15 * max(sum(moves.values()) for moves in stated.values()) / 1e6)
    axes.set_xticks(range(len(PASSES)), ("first pass: S = Q K'", "second: P = softmax(S)", "third: O = P V"))
    return figure


def draw_on_chip(gpus):
    """Shared memory of all SMs, and what one program can have of it, on a logarithmic axis. Returns a figure."""
    figure = Picture(3.0)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.1, right=0.985, bottom=0.18, top=0.88)
    tidy(axes, title="shared memory of the whole GPU, and of one program", x="KiB")
    for y, gpu in enumerate(gpus.values()):
        total, share = gpu.sms * gpu.shared_bytes_per_sm / KIB, gpu.shared_bytes_per_block / KIB
        axes.barh(y, total, height=0.7, color=PALE, label="all SMs together" if y == 0 else None)
        axes.barh(y, share, height=0.4, color=BLUE, label="one program" if y == 0 else None)
        axes.text(total * 1.1, y, f"{total:,.0f}", va="center", fontsize=9, color=INK)
        axes.text(share * 1.1, y, f"{share:.0f}", va="center", fontsize=9, color=INK)
    axes.set_xscale("log")
    axes.set_xlim(10, 120_000)
    axes.set_yticks(range(len(gpus)), list(gpus))
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=9, loc="lower right", ncols=2, bbox_to_anchor=(1, 1))
    return figure


def explore():
    """The explorer as an ipywidgets box: N, head dim, heads, dtype, GPU."""
    import ipywidgets as widgets

    wide = {"description_width": "70px"}
    n = widgets.SelectionSlider(options=LENGTHS, value=2048, description="N", style=wide)
    d = widgets.SelectionSlider(options=HEAD_DIMS, value=64, description="d", style=wide)
    heads = widgets.SelectionSlider(options=HEADS, value=16, description="heads", style=wide)
    dtype = widgets.ToggleButtons(
        options=list(DTYPE_BYTES), value="fp16", description="dtype", style=wide | {"button_width": "auto"}
    )
    gpu = widgets.Dropdown(options=list(GPUS), value="A100", description="GPU", style=wide)
    text, image = widgets.HTML(), widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))

    def redraw(_change=None):
        model = run(n.value, d.value, heads.value, dtype.value, gpu.value)
        text.value = describe(model)
        image.value = png(draw(model))

    for control in (n, d, heads, dtype, gpu):
        control.observe(redraw, names="value")
    redraw()
    return widgets.VBox([widgets.HBox([n, d, heads]), gpu, dtype, text, image])
