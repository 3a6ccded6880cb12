"""Lesson 10's explorer: the roofline of a GPU, and where measured calls stand under it, or above it.

`evaluate` is the model: FLOPs and bytes from `traffic`, peaks from `hardware`, rates and counted bytes from the
records. `draw` shows it, `explore` is the explorer. Rates and FLOPs follow the records: 4 N N d a head, half if causal.
"""

from types import SimpleNamespace

from course_lib import traffic
from course_lib.hardware import GPUS
from courseware.bench import records

from .explorer import Explorer, buttons, menu, slider, tick
from .svg import Page, Panel

# FlashAttention-3 (Shah et al., 2024), section 3.1: an H100 SXM5's special functions, exp2 among them, by 16 for each
# SM and clock. Other GPUs' are left out.
EXP_PER_S = {"H100": 3.9e12}

REQUESTED, ONCE, DRAM = "requested", "each once", "counted at DRAM"
COUNTED = (REQUESTED, ONCE, DRAM)
LENGTHS = (1024, 4096, 16384)
HEAD_DIMS = (64, 128)
BLOCKS = (16, 32, 64, 128, 256)
# Of the record attention-h100: its names for calls, and what pictures call them.
NAMES = {
    "ours": "this course", "sdpa_flash": "PyTorch, FlashAttention-2", "sdpa_cudnn": "PyTorch, cuDNN",
    "flex": "PyTorch, FlexAttention",
}  # fmt: skip
CALLS = {"ours": "Q", "sdpa_flash": "K", "sdpa_cudnn": "V"}  # of NAMES, with the class of each in the drawing


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
    counts = {
        way: traffic.flash_attention(n, n, d, block_q=rows, block_k=64, causal=causal).total_bytes
        for way, rows in ((REQUESTED, block_q), (ONCE, n))
    } | {DRAM: None}
    model.measured, model.exp_roof_tflops = {}, None
    shape = {"pass": "forward", "n": n, "head_dim": d, "causal": causal}
    if gpu == "H100":
        for row in records.rows("dram-h100", method="flash", batch=1, heads=16, **shape):
            counts[DRAM] = (row["dram_read_bytes"] + row["dram_write_bytes"]) / row["heads"]
        for row in records.rows("attention-h100", **shape):
            model.measured = {call: row["tflops"][call] for call in CALLS if call in row["tflops"]}
    model.intensities = {way: n_bytes and model.flops / n_bytes for way, n_bytes in counts.items()}
    model.n_bytes, model.intensity = counts[counted], model.intensities[counted]
    if gpu in EXP_PER_S:
        # One exponential a score, for the 4 d FLOPs of its two products.
        model.exp_roof_tflops = 4 * d / (4 * d / model.gpu.fp16_tensor_tflops + 1e12 / EXP_PER_S[gpu])
    return model


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
    rates = {NAMES[call]: tflops for call, tflops in model.measured.items()}
    text += f"Measured: {'; '.join(f'{name} {tflops:.0f} TFLOP/s' for name, tflops in rates.items())}."
    if above := [name for name, tflops in rates.items() if tflops > roof]:
        text += f" <b>Faster than HBM delivers these bytes:</b> {'; '.join(above)}. So part of them came from a cache."
    return f"{text} <small>{records.provenance('attention-h100')}</small>"


def draw(model):
    """The roof, the rates that were measured as levels, and where each way of counting bytes meets the roof: a Page.

    A level does not move with the settings' bytes: only the place on it does where the call is thought to be.
    """
    gpu, low, high, bottom, top = model.gpu, 10, 20_000, 3, 3200
    shape = f"N = {model.n:,}, d = {model.d}, {'causal' if model.causal else 'full'}"
    panel = Panel(
        f"{model.name}, fp16, forward: {shape}; bytes {model.counted}", 700, 380, (low, high), (bottom, top), log="xy",
        x_ticks=(10, 100, 1000, 10_000), y_ticks=(10, 100, 1000), x_label="FLOPs per byte", y_label="TFLOP/s",
        margins=(60, 12, 26, 38),
    )  # fmt: skip
    limits = f"memory: {gpu.hbm_bytes_per_s / 1e9:,.0f} GB/s; tensor cores: {gpu.fp16_tensor_tflops:g} TFLOP/s"
    panel.line([(x, roof_tflops(gpu, x)) for x in (low, gpu.ridge_flops_per_byte, high)], "ink")
    legend = {}
    for call, tflops in model.measured.items():
        legend[f"{NAMES[call]}: {tflops:.0f} TFLOP/s"] = CALLS[call]
        panel.level(tflops, CALLS[call])
    panel.legend(legend, left=4)
    if model.exp_roof_tflops:  # over a level that is as high
        panel.line([(x, model.exp_roof_tflops) for x in (gpu.ridge_flops_per_byte, high)], "O dotted")
    for place, (counted, intensity) in enumerate(model.intensities.items()):
        if not intensity:
            continue
        chosen, reach = counted == model.counted, roof_tflops(gpu, intensity)
        css, at = "bad" if chosen else "grey", f"{intensity:,.1f} FLOPs a byte, bytes {counted}"
        panel.line([(intensity, bottom), (intensity, reach)], f"dashed {css} {'' if chosen else 'thin'}")
        side, right = ("end", -5) if intensity > 3000 or counted == ONCE else ("", 5)
        panel.text(intensity, 1.3 * bottom * 1.5**place, counted, f"halo {css} {side}", right=right)
        roof = f"The roof of the {model.name} at {at}: {reach:,.0f} TFLOP/s"
        panel.dot(intensity, reach, css, 4, tip=roof, choose={"counted": counted})
        # A counter was read for this course's kernel only.
        for call in sorted(model.measured.keys() & (["ours"] if counted == DRAM else CALLS)) if chosen else ():
            tflops = model.measured[call]
            tip = f"{NAMES[call]}, {shape}: {tflops:.0f} TFLOP/s measured, at {at}"
            panel.dot(intensity, tflops, CALLS[call], 6, tip=tip)
    # After the vertical lines, which would cross them.
    panel.text(high, gpu.fp16_tensor_tflops, limits, "halo end", down=-8)
    if model.exp_roof_tflops:
        text = f"products and exponentials in turns: {model.exp_roof_tflops:.0f}"
        panel.text(high, model.exp_roof_tflops, text, "O halo end", down=-5)
    if not model.intensity:
        panel.text(450, 20, "no counter was read at this shape", "soft middle")
    what = "A roofline with measured rates as levels, and FLOPs per byte as vertical lines."
    return Page(what, (panel,), text=describe(model))


def explore():
    """The explorer: GPU, shape, mask, which bytes are counted, rows of a query tile."""
    controls = {
        "n": slider("N", LENGTHS, 4096), "d": buttons("d", HEAD_DIMS, 128),
        "block_q": slider("B_r", BLOCKS, 128, play=True), "counted": buttons("bytes", COUNTED),
        "gpu": menu("GPU", list(GPUS), "H100"), "causal": tick("causal"),
    }  # fmt: skip
    # A page without a kernel has all shapes on the H100, and the shapes of the start on the others.
    shapes = {"d": HEAD_DIMS, "n": LENGTHS, "causal": (False, True)}, {"d": HEAD_DIMS, "gpu": GPUS}
    ways = {"block_q": BLOCKS}, {"counted": (ONCE, DRAM)}
    written = [shape | way for shape in shapes for way in ways]
    return Explorer(lambda **settings: draw(evaluate(**settings)), controls, written=written)
