"""Lesson 10's explorer: the roofline of a GPU, and where measured calls stand under it, or above it.

`evaluate` is the model: FLOPs and bytes from `traffic`, peaks from `hardware`, rates and counted bytes from the
records. `draw` shows it, `explore` is the widget. Rates and FLOPs follow the records: 4 N N d a head, half if causal.
"""

from dataclasses import dataclass, replace
from types import SimpleNamespace

from course_lib import traffic
from course_lib.hardware import GPUS
from course_lib.measure import records

from .drawing import log_axes
from .figures import BLUE, GREEN, GREY, INK, ON_WHITE, ORANGE, PURPLE, VERMILLION, label, legend, panel
from .shell import Explorer, buttons, choice, menu, tick
from .spots import spot
from .words import plain

# FlashAttention-3 (Shah et al., 2024), section 3.1: an H100 SXM5's special functions, exp2 among them, by 16 for each
# SM and clock. Other GPUs' are left out.
EXP_PER_S = {"H100": 3.9e12}

REQUESTED, ONCE, DRAM = "requested", "each once", "counted at DRAM"
COUNTED = (REQUESTED, ONCE, DRAM)
LENGTHS = (1024, 4096, 16384)
HEAD_DIMS = (64, 128)
BLOCKS = (16, 32, 64, 128, 256)
CALLS = {
    "ours": ("this course", BLUE, "o"),
    "sdpa_flash": ("PyTorch, FlashAttention-2", ORANGE, "s"),
    "sdpa_cudnn": ("PyTorch, cuDNN", GREEN, "^"),
}


@dataclass(frozen=True)
class Settings:
    """gpu: a key of hardware.GPUS. counted: which bytes, one of COUNTED. block_q: rows of a query tile, on which only
    the requested bytes depend."""

    gpu: str = "H100"
    d: int = 128
    n: int = 4096
    causal: bool = False
    counted: str = REQUESTED
    block_q: int = 128


def roof_tflops(gpu, intensity, peak_tflops=None):
    """The most that a GPU reaches at `intensity` FLOPs per byte. peak_tflops: by default that of fp16 tensor cores."""
    return min(peak_tflops or gpu.fp16_tensor_tflops, intensity * gpu.hbm_bytes_per_s / 1e12)


def draw_roof(axes, gpu, intensities, peak_tflops):
    """The roof of a GPU over a range of intensities, (lowest, highest), on logarithmic axes that tick powers of ten."""
    low, high = intensities
    corners = (low, 1e12 * peak_tflops / gpu.hbm_bytes_per_s, high)
    axes.plot(corners, [roof_tflops(gpu, x, peak_tflops) for x in corners], color=INK, linewidth=1.6)
    log_axes(axes, [tick for tick in (1, 10, 100, 1000, 10_000) if low <= tick <= high])
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xlim(low, high)


def evaluate(settings):
    """Of one head, as a namespace: settings, gpu, flops; n_bytes and intensity by the settings' way of counting, None
    if no counter was read at this shape; intensities, those of all COUNTED; measured, TFLOP/s of the record
    attention-h100 for each of CALLS, empty on another GPU; and exp_roof_tflops, the rate at which products and
    exponentials take turns, None where that of the exponentials is not known."""
    s, gpu = settings, GPUS[settings.gpu]
    model = SimpleNamespace(settings=s, gpu=gpu, measured={}, exp_roof_tflops=None)
    model.flops = traffic.attention_flops(s.n, s.n, s.d) // (2 if s.causal else 1)
    counts = {counted: counted_bytes(replace(s, counted=counted)) for counted in COUNTED}
    model.intensities = {counted: n_bytes and model.flops / n_bytes for counted, n_bytes in counts.items()}
    model.n_bytes, model.intensity = counts[s.counted], model.intensities[s.counted]
    if s.gpu == "H100":
        shape = {"pass": "forward", "n": s.n, "head_dim": s.d, "causal": s.causal}
        for row in records.rows("attention-h100", **shape):
            model.measured = {call: row["tflops"][call] for call in CALLS if call in row["tflops"]}
    if s.gpu in EXP_PER_S:
        # One exponential a score, for the 4 d FLOPs of its two products.
        model.exp_roof_tflops = 4 * s.d / (4 * s.d / gpu.fp16_tensor_tflops + 1e12 / EXP_PER_S[s.gpu])
    return model


def counted_bytes(settings):
    """Bytes of one head by the settings' way of counting, None if no counter was read at this shape."""
    s = settings
    if s.counted == DRAM:
        shape = {"pass": "forward", "n": s.n, "head_dim": s.d, "causal": s.causal, "batch": 1, "heads": 16}
        for row in records.rows("dram-h100", method="flash", **shape) if s.gpu == "H100" else ():
            return (row["dram_read_bytes"] + row["dram_write_bytes"]) / row["heads"]
        return None
    rows = s.block_q if s.counted == REQUESTED else s.n
    return traffic.flash_attention(s.n, s.n, s.d, block_q=rows, block_k=64, causal=s.causal).total_bytes


def describe(model):
    """The model in words and numbers, as HTML."""
    s = model.settings
    mask = "causal" if s.causal else "full"
    text = f"<b>N = {s.n:,}, d = {s.d}, {mask}</b>, one head: {model.flops:,} FLOPs. "
    if model.n_bytes is None:
        return text + "At this shape no counter was read, so that its traffic is not known."
    how = f" with {s.block_q} queries a tile" if s.counted == REQUESTED else ""
    roof, ridge = roof_tflops(model.gpu, model.intensity), model.gpu.ridge_flops_per_byte
    binds = "memory" if model.intensity < ridge else "arithmetic"
    text += (
        f"Bytes {s.counted}{how}: {model.n_bytes:,.0f}; {model.intensity:,.1f} FLOPs a byte, the ridge of the {s.gpu} "
        f"is at {ridge:.0f}. <b>The {binds} binds</b>: at most {roof:,.0f} TFLOP/s.<br>"
    )
    if not model.measured:
        return text + f"On the {s.gpu} nothing is measured here."
    parts = [f"{CALLS[call][0]} {tflops:.0f} TFLOP/s" for call, tflops in model.measured.items()]
    text += f"Measured: {'; '.join(parts)}."
    if above := [CALLS[call][0] for call, tflops in model.measured.items() if tflops > roof]:
        text += f" <b>Faster than HBM delivers these bytes:</b> {'; '.join(above)}. So part of them came from a cache."
    return text


def draw(model):
    """The roof, the rates that were measured as levels, and where each way of counting bytes meets the roof.

    A level does not move with the settings' bytes: only the place on it does where the call is thought to be.
    """
    s, gpu = model.settings, model.gpu
    shape = f"N = {s.n:,}, d = {s.d}, {'causal' if s.causal else 'full'}"
    title = f"{s.gpu}, fp16, forward: {shape}; bytes {s.counted}"
    note = records.provenance("attention-h100") if model.measured else None
    alt = f"A roofline with measured rates as levels, and FLOPs per byte as vertical lines. {plain(describe(model))}"
    figure, axes = panel(4.2, below=0.75, note=note, alt=alt, title=title, x="FLOPs per byte", y="TFLOP/s")
    low, high, bottom, top, peak = 10, 20_000, 20, 3200, gpu.fp16_tensor_tflops
    draw_roof(axes, gpu, (low, high), peak)
    axes.set_ylim(bottom, top)
    above = {"ha": "right", "va": "bottom"}
    limits = f"memory: {gpu.hbm_bytes_per_s / 1e9:,.0f} GB/s; tensor cores: {peak:g} TFLOP/s"
    label(axes, high, 1.06 * peak, limits, **above)
    if model.exp_roof_tflops:
        dotted = {"color": PURPLE, "linestyle": ":", "linewidth": 2, "zorder": 3}  # over a level that is as high
        axes.hlines(model.exp_roof_tflops, gpu.ridge_flops_per_byte, high, **dotted)
        text = f"products and exponentials in turns: {model.exp_roof_tflops:.0f}"
        label(axes, high, 1.06 * model.exp_roof_tflops, text, color=PURPLE, **above)
    for call, tflops in model.measured.items():
        name, colour, _ = CALLS[call]
        axes.axhline(tflops, color=colour, linewidth=1.4, label=f"{name}: {tflops:.0f} TFLOP/s")
    if model.measured:
        legend(axes, loc="upper left")
    for line, (counted, intensity) in enumerate(model.intensities.items()):
        if intensity:
            chosen = counted == s.counted
            colour, reach = VERMILLION if chosen else GREY, roof_tflops(gpu, intensity)
            axes.vlines(intensity, bottom, reach, color=colour, linewidth=1.8 if chosen else 1, linestyle="--")
            axes.plot(intensity, reach, "_", markersize=16, markeredgewidth=2, color=colour)
            side, place = ("left", 1.05) if intensity < 3000 else ("right", 1 / 1.05)
            label(axes, place * intensity, 24 * 1.35**line, counted, color=colour, ha=side, **ON_WHITE)
            at = f"{intensity:,.1f} FLOPs a byte, bytes {counted}"
            spot(axes, intensity, reach, f"The roof of the {s.gpu} at {at}: {reach:,.0f} TFLOP/s")
            # A counter was read for this course's kernel only.
            calls = ["ours"] if counted == DRAM else CALLS
            for call in model.measured.keys() & calls if chosen else ():
                (name, colour, marker), tflops = CALLS[call], model.measured[call]
                axes.plot(intensity, tflops, marker, markersize=8, color=colour)
                spot(axes, intensity, tflops, f"{name}, {shape}: {tflops:.0f} TFLOP/s measured, at {at}")
    if not model.intensity:
        label(axes, 450, 100, "no counter was read at this shape", color=GREY, size=10)
    return figure


def explore():
    """The explorer as a widget: GPU, shape, mask, which bytes are counted, rows of a query tile."""
    start = Settings()
    lengths = [(f"{n:,}", n) for n in LENGTHS]
    return Explorer(
        lambda **chosen: evaluate(Settings(**chosen)), describe, draw,
        {"n": choice("N", lengths, start.n), "d": choice("d", HEAD_DIMS, start.d)},
        {"block_q": choice("B_r", BLOCKS, start.block_q), "counted": buttons("bytes", COUNTED, start.counted)},
        {"gpu": menu("GPU", GPUS, start.gpu), "causal": tick("causal", start.causal)},
    )  # fmt: skip
