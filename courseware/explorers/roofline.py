"""Lesson 10's explorer: the roofline of a GPU, and where measured calls stand under it, or above it.

`evaluate` is the model: FLOPs and bytes from `traffic`, peaks from `hardware`, rates and counted bytes from the
records. `draw` shows it, `explore` is the widget. Rates and FLOPs follow the records: 4 N N d a head, half if causal.
"""

from types import SimpleNamespace

from course_lib import traffic
from course_lib.hardware import GPUS
from courseware.bench import records

from .drawing import log_axes
from .figures import GREY, INK, ON_WHITE, PURPLE, VERMILLION, label, legend, panel
from .measured import PEERS
from .shell import Explorer, buttons, choice, menu, tick
from .tooltips import tooltip
from .words import plain

# FlashAttention-3 (Shah et al., 2024), section 3.1: an H100 SXM5's special functions, exp2 among them, by 16 for each
# SM and clock. Other GPUs' are left out.
EXP_PER_S = {"H100": 3.9e12}

REQUESTED, ONCE, DRAM = "requested", "each once", "counted at DRAM"
COUNTED = (REQUESTED, ONCE, DRAM)
LENGTHS = (1024, 4096, 16384)
HEAD_DIMS = (64, 128)
BLOCKS = (16, 32, 64, 128, 256)
CALLS = {call: PEERS[call] for call in ("ours", "sdpa_flash", "sdpa_cudnn")}


def roof_tflops(gpu, intensity, peak_tflops=None):
    """The most that a GPU reaches at `intensity` FLOPs per byte. peak_tflops: by default that of fp16 tensor cores."""
    return min(peak_tflops or gpu.fp16_tensor_tflops, intensity * gpu.hbm_bytes_per_s / 1e12)


def evaluate(*, gpu="H100", d=128, n=4096, causal=False, counted=REQUESTED, block_q=128):
    """One head's call under the roof of a GPU, as a namespace.

    gpu: a key of hardware.GPUS. counted: which bytes, one of COUNTED; only those requested depend on block_q, the rows
    of a query tile. The namespace has the arguments, with the GPU itself for its name; flops; n_bytes and intensity by
    this way of counting, None if no counter was read at this shape; intensities, those of all COUNTED; measured,
    TFLOP/s of the record attention-h100 for each of CALLS, empty on another GPU; and exp_roof_tflops, the rate at which
    products and exponentials take turns, None where that of the exponentials is not known.
    """
    model = SimpleNamespace(name=gpu, gpu=GPUS[gpu], d=d, n=n, causal=causal, counted=counted, block_q=block_q)
    model.flops = traffic.attention_flops(n, n, d) // (2 if causal else 1)
    counts = {way: counted_bytes(way, gpu, d, n, causal, block_q) for way in COUNTED}
    model.intensities = {way: n_bytes and model.flops / n_bytes for way, n_bytes in counts.items()}
    model.n_bytes, model.intensity = counts[counted], model.intensities[counted]
    model.measured, model.exp_roof_tflops = {}, None
    if gpu == "H100":
        for row in records.rows("attention-h100", **{"pass": "forward", "n": n, "head_dim": d, "causal": causal}):
            model.measured = {call: row["tflops"][call] for call in CALLS if call in row["tflops"]}
    if gpu in EXP_PER_S:
        # One exponential a score, for the 4 d FLOPs of its two products.
        model.exp_roof_tflops = 4 * d / (4 * d / model.gpu.fp16_tensor_tflops + 1e12 / EXP_PER_S[gpu])
    return model


def counted_bytes(counted, gpu, d, n, causal, block_q):
    """Bytes of one head by one of COUNTED, None if no counter was read at this shape."""
    if counted == DRAM:
        shape = {"pass": "forward", "n": n, "head_dim": d, "causal": causal, "batch": 1, "heads": 16}
        for row in records.rows("dram-h100", method="flash", **shape) if gpu == "H100" else ():
            return (row["dram_read_bytes"] + row["dram_write_bytes"]) / row["heads"]
        return None
    rows = block_q if counted == REQUESTED else n
    return traffic.flash_attention(n, n, d, block_q=rows, block_k=64, causal=causal).total_bytes


def describe(model):
    """The model in words and numbers, as HTML."""
    mask = "causal" if model.causal else "full"
    text = f"<b>N = {model.n:,}, d = {model.d}, {mask}</b>, one head: {model.flops:,} FLOPs. "
    if model.n_bytes is None:
        return text + "At this shape no counter was read, so that its traffic is not known."
    how = f" with {model.block_q} queries a tile" if model.counted == REQUESTED else ""
    roof, ridge = roof_tflops(model.gpu, model.intensity), model.gpu.ridge_flops_per_byte
    binds = "memory" if model.intensity < ridge else "arithmetic"
    text += (
        f"Bytes {model.counted}{how}: {model.n_bytes:,.0f}; {model.intensity:,.1f} FLOPs a byte, the ridge of the "
        f"{model.name} is at {ridge:.0f}. <b>The {binds} binds</b>: at most {roof:,.0f} TFLOP/s.<br>"
    )
    if not model.measured:
        return text + f"On the {model.name} nothing is measured here."
    parts = [f"{CALLS[call][0]} {tflops:.0f} TFLOP/s" for call, tflops in model.measured.items()]
    text += f"Measured: {'; '.join(parts)}."
    if above := [CALLS[call][0] for call, tflops in model.measured.items() if tflops > roof]:
        text += f" <b>Faster than HBM delivers these bytes:</b> {'; '.join(above)}. So part of them came from a cache."
    return text


def draw(model):
    """The roof, the rates that were measured as levels, and where each way of counting bytes meets the roof.

    A level does not move with the settings' bytes: only the place on it does where the call is thought to be.
    """
    gpu = model.gpu
    shape = f"N = {model.n:,}, d = {model.d}, {'causal' if model.causal else 'full'}"
    title = f"{model.name}, fp16, forward: {shape}; bytes {model.counted}"
    note = records.provenance("attention-h100") if model.measured else None
    alt = f"A roofline with measured rates as levels, and FLOPs per byte as vertical lines. {plain(describe(model))}"
    figure, axes = panel(4.2, below=0.75, note=note, alt=alt, title=title, x="FLOPs per byte", y="TFLOP/s")
    low, high, bottom, top, peak = 10, 20_000, 20, 3200, gpu.fp16_tensor_tflops
    corners = low, gpu.ridge_flops_per_byte, high
    axes.plot(corners, [roof_tflops(gpu, x) for x in corners], color=INK, linewidth=1.6)
    log_axes(axes, (10, 100, 1000, 10_000))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xlim(low, high)
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
            chosen = counted == model.counted
            colour, reach = VERMILLION if chosen else GREY, roof_tflops(gpu, intensity)
            axes.vlines(intensity, bottom, reach, color=colour, linewidth=1.8 if chosen else 1, linestyle="--")
            axes.plot(intensity, reach, "_", markersize=16, markeredgewidth=2, color=colour)
            side, place = ("left", 1.05) if intensity < 3000 else ("right", 1 / 1.05)
            label(axes, place * intensity, 24 * 1.35**line, counted, color=colour, ha=side, **ON_WHITE)
            at = f"{intensity:,.1f} FLOPs a byte, bytes {counted}"
            tooltip(axes, intensity, reach, f"The roof of the {model.name} at {at}: {reach:,.0f} TFLOP/s")
            # A counter was read for this course's kernel only.
            calls = ["ours"] if counted == DRAM else CALLS
            for call in model.measured.keys() & calls if chosen else ():
                (name, colour, marker), tflops = CALLS[call], model.measured[call]
                axes.plot(intensity, tflops, marker, markersize=8, color=colour)
                tooltip(axes, intensity, tflops, f"{name}, {shape}: {tflops:.0f} TFLOP/s measured, at {at}")
    if not model.intensity:
        label(axes, 450, 100, "no counter was read at this shape", color=GREY, size=10)
    return figure


def explore():
    """The explorer as a widget: GPU, shape, mask, which bytes are counted, rows of a query tile."""
    lengths = [(f"{n:,}", n) for n in LENGTHS]
    return Explorer(
        evaluate, describe, draw,
        {"n": choice("N", lengths, 4096), "d": choice("d", HEAD_DIMS, 128)},
        {"block_q": choice("B_r", BLOCKS, 128), "counted": buttons("bytes", COUNTED, REQUESTED)},
        {"gpu": menu("GPU", GPUS, "H100"), "causal": tick("causal", False)},
    )  # fmt: skip
