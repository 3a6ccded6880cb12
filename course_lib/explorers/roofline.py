"""Lesson 10's explorer: the roofline of a GPU, and where measured calls stand under it, or above it.

`evaluate` is the model: FLOPs and bytes from `traffic`, peaks from `hardware`, rates and counted bytes from the
records. `draw` shows it, `explore` is the widget. Rates and FLOPs follow the records: 4 N N d a head, half if causal.
"""

from dataclasses import dataclass
from math import log10

from course_lib import traffic
from course_lib.hardware import GPUS
from course_lib.measure import records

from .figures import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, VERMILLION, Panel, Picture, png, tidy

# FlashAttention-3 (Shah et al., 2024), section 3.1: an H100 SXM5's special functions, exp2 among them, by 16 for each
# SM and clock. Other GPUs' are left out.
EXP_PER_S = {"H100": 3.9e12}

ASKED, ONCE, DRAM = "asked for", "each once", "counted at DRAM"
COUNTED = (ASKED, ONCE, DRAM)
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
    """gpu: a key of hardware.GPUS. counted: which bytes, one of COUNTED. block_q: rows of a query tile, of which only
    the bytes asked for depend."""

    gpu: str = "H100"
    d: int = 128
    n: int = 4096
    causal: bool = False
    counted: str = ASKED
    block_q: int = 128


@dataclass(frozen=True)
class Model:
    """flops, n_bytes: of one head; n_bytes None if no counter was read at this shape. measured: a key of CALLS ->
    TFLOP/s of the record attention-h100, empty on another GPU. exp_roof_tflops: the rate at which products and
    exponentials take turns, None where the rate of the exponentials is not known."""

    settings: Settings
    flops: int
    n_bytes: float | None
    measured: dict
    exp_roof_tflops: float | None

    @property
    def gpu(self):
        return GPUS[self.settings.gpu]

    @property
    def intensity(self):
        return self.flops / self.n_bytes if self.n_bytes else None

    def roof_tflops(self, intensity):
        return min(self.gpu.fp16_tensor_tflops, intensity * self.gpu.hbm_bytes_per_s / 1e12)

    @property
    def binds(self):
        """What limits a call of this intensity, were nothing else in its way."""
        return "memory" if self.intensity < self.gpu.ridge_flops_per_byte else "arithmetic"


def evaluate(settings):
    """The Model of `settings`."""
    s = settings
    gpu = GPUS[s.gpu]
    flops = traffic.attention_flops(s.n, s.n, s.d) // (2 if s.causal else 1)
    rates = {}
    if s.gpu == "H100":
        shape = {"pass": "forward", "n": s.n, "head_dim": s.d, "causal": s.causal}
        for row in records.rows("attention-h100", **shape):
            rates = {call: row["tflops"][call] for call in CALLS if call in row["tflops"]}
    exp_roof = None
    if s.gpu in EXP_PER_S:
        # One exponential a score, for the 4 d FLOPs of its two products.
        exp_roof = 4 * s.d / (4 * s.d / gpu.fp16_tensor_tflops + 1e12 / EXP_PER_S[s.gpu])
    return Model(s, flops, counted_bytes(s), rates, exp_roof)


def counted_bytes(settings):
    """Bytes of one head by the settings' way of counting, None if no counter was read at this shape."""
    s = settings
    if s.counted == DRAM:
        shape = {
            "method": "flash",
            "pass": "forward",
            "n": s.n,
            "head_dim": s.d,
            "causal": s.causal,
            "batch": 1,
            "heads": 16,
        }
        for row in records.rows("dram-h100", **shape) if s.gpu == "H100" else ():
            return (row["dram_read_bytes"] + row["dram_write_bytes"]) / row["heads"]
        return None
    rows = s.block_q if s.counted == ASKED else s.n
    return traffic.flash_attention(s.n, s.n, s.d, block_q=rows, block_k=64, causal=s.causal).total_bytes


def describe(model):
    """The model in words and numbers, as HTML."""
    s = model.settings
    mask = "causal" if s.causal else "full"
    text = f"<b>N = {s.n:,}, d = {s.d}, {mask}</b>, one head: {model.flops:,} FLOPs. "
    if model.n_bytes is None:
        return text + "At this shape no counter was read, so that there is no point to draw."
    how = f" with {s.block_q} queries a tile" if s.counted == ASKED else ""
    roof = model.roof_tflops(model.intensity)
    text += (
        f"Bytes {s.counted}{how}: {model.n_bytes:,.0f}; {model.intensity:,.1f} FLOPs a byte, the ridge of the {s.gpu} "
        f"is at {model.gpu.ridge_flops_per_byte:.0f}. <b>The {model.binds} binds</b>: at most {roof:,.0f} TFLOP/s.<br>"
    )
    if not model.measured:
        return text + f"On the {s.gpu} nothing is measured here."
    parts = [
        f"{CALLS[call][0]} {tflops:.0f} TFLOP/s ({tflops / roof:.0%} of the roof)"
        for call, tflops in model.measured.items()
    ]
    text += f"Measured: {'; '.join(parts)}."
    if max(model.measured.values()) > roof:
        text += " <b>Above the roof:</b> some of these bytes never came from HBM."
    return text


def draw(model):
    """Roof, the intensity of the settings, and every measured call at it. Returns a figure.

    In powers of ten, for a Panel draws linear scales.
    """
    s = model.settings
    figure = Picture(4.2)
    axes = figure.add_axes((0.075, 0.15, 0.9, 0.755), axes_class=Panel)
    low, high, bottom, top = 1, 4.3, 1.3, 3.5
    ridge, peak = model.gpu.ridge_flops_per_byte, model.gpu.fp16_tensor_tflops
    roof = [(log10(x), log10(model.roof_tflops(x))) for x in (10**low, ridge, 10**high)]
    axes.plot(*zip(*roof, strict=True), color=INK, linewidth=1.8)
    axes.text(high, log10(peak) + 0.05, f"tensor cores: {peak:g} TFLOP/s", ha="right", fontsize=9, color=INK)
    name = f"memory: {model.gpu.hbm_bytes_per_s / 1e9:,.0f} GB/s"
    axes.text(low + 0.04, log10(model.roof_tflops(10 ** (low + 0.55))) + 0.05, name, fontsize=9, color=INK)
    if model.exp_roof_tflops:
        axes.plot([log10(ridge), high], [log10(model.exp_roof_tflops)] * 2, ":", color=PURPLE, linewidth=1.4)
        text = f"products and exponentials in turns, d = {s.d}: {model.exp_roof_tflops:.0f}"
        axes.text(high, log10(model.exp_roof_tflops) + 0.04, text, ha="right", fontsize=9, color=PURPLE)
    if model.measured:
        figure.text(0.975, 0.015, records.provenance("attention-h100"), ha="right", fontsize=8.5, color=INK)
    if model.n_bytes:
        at, reach = log10(model.intensity), log10(model.roof_tflops(model.intensity))
        axes.plot([at, at], [bottom, reach], color=VERMILLION, linewidth=1.2, linestyle="--")
        axes.plot(at, reach, "_", markersize=16, markeredgewidth=2, color=VERMILLION)
        # Names in the corner, each behind its mark: a legend would take a quarter of the redraw.
        for line, (call, tflops) in enumerate(model.measured.items()):
            label, colour, marker = CALLS[call]
            x, y = 3.05 if at < 2.9 else 2.15, 1.85 - 0.16 * line
            axes.plot([at, x], [log10(tflops), y], marker, markersize=10 - line, color=colour)
            axes.text(x + 0.06, y, f"{label}: {tflops:.0f} TFLOP/s", va="center", fontsize=9, color=INK)
    else:
        axes.text((low + high) / 2, 2, "no counter was read at this shape", ha="center", fontsize=10, color=GREY)
    axes.set_xlim(low, high)
    axes.set_ylim(bottom, top)
    axes.set_xticks((1, 2, 3, 4), ("10", "100", "1,000", "10,000"))
    axes.set_yticks([log10(t) for t in (30, 100, 300, 1000, 3000)], ("30", "100", "300", "1,000", "3,000"))
    mask = "causal" if s.causal else "full"
    title = f"{s.gpu}, fp16, forward: N = {s.n:,}, d = {s.d}, {mask}; bytes {s.counted}"
    tidy(axes, title=title, x="FLOPs per byte", y="TFLOP/s")
    return figure


def explore():
    """The explorer as an ipywidgets box: GPU, shape, mask, which bytes are counted, rows of a query tile."""
    import ipywidgets as widgets

    start = Settings()
    wide = {"description_width": "70px"}

    def slider(options, value, name):
        return widgets.SelectionSlider(options=options, value=value, description=name, style=wide)

    controls = {
        "n": slider([(f"{n:,}", n) for n in LENGTHS], start.n, "N"),
        "d": slider(HEAD_DIMS, start.d, "d"),
        "block_q": slider(BLOCKS, start.block_q, "B_r"),
        "counted": widgets.ToggleButtons(options=COUNTED, value=start.counted, description="bytes", style=wide),
        "causal": widgets.Checkbox(start.causal, description="causal", indent=False),
        "gpu": widgets.Dropdown(options=list(GPUS), value=start.gpu, description="GPU", style=wide),
    }
    text, image = widgets.HTML(), widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))

    def redraw(_change=None):
        model = evaluate(Settings(**{name: control.value for name, control in controls.items()}))
        text.value = describe(model)
        image.value = png(draw(model))

    for control in controls.values():
        control.observe(redraw, names="value")
    redraw()
    c = controls
    rows = [[c["n"], c["d"], c["block_q"]], [c["counted"]], [c["gpu"], c["causal"]]]
    return widgets.VBox([*map(widgets.HBox, rows), text, image])
