"""Lesson 04's explorer: what standard attention holds in memory and moves through it, and whether it fits.

`run` is the model: bytes and FLOPs come from `course_lib.traffic`, the GPU's figures from `course_lib.hardware`.
"""

from bisect import bisect_right
from types import SimpleNamespace

from course_lib import traffic
from course_lib.hardware import GIB, GPUS, KIB, MIB

from .explorer import Explorer, buttons, menu, slider
from .svg import Page, Panel
from .words import in_units

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
    return {
        name: {(tensor, way): by_tensor[tensor][way == "written"] for tensor, way in moves}
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
    model.moved = moved = traffic.standard_attention(n, n, d, dtype_bytes=dtype_bytes, heads=heads)
    model.matrix_bytes, model.capacity_bytes = moved.by_tensor["S"].write_bytes, of.hbm_bytes
    model.held_bytes = held_bytes(n, d, heads, dtype_bytes)
    model.fits = model.held_bytes <= of.hbm_bytes
    model.longest = longest_that_fits(d, heads, dtype_bytes, of.hbm_bytes)
    # Tensor cores for fp16, ordinary arithmetic for fp32.
    flops_per_s = 1e12 * (of.fp16_tensor_tflops if dtype == "fp16" else of.fp32_tflops)
    model.memory_s, model.arithmetic_s = moved.total_bytes / of.hbm_bytes_per_s, moved.flops / flops_per_s
    model.intensity, model.ridge = moved.arithmetic_intensity, flops_per_s / of.hbm_bytes_per_s
    model.memory_bound = model.intensity < model.ridge
    return model


def size(n_bytes):
    """Bytes in words, in powers of two: 2.00 MiB."""
    units = ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)
    return in_units(n_bytes, units, ",.2f") if n_bytes >= KIB else f"{n_bytes} bytes"


def page(**settings):
    """Memory held at every length, bytes moved by pass, paler what is written, and times at the vendor's peaks."""
    model = run(**settings)
    held = Panel(
        f"Held on one {model.gpu} (dot: this N)", 300, 230, (LENGTHS[0], LENGTHS[-1]), (2**17, 2**45), log="xy",
        x_ticks=[(256, "256"), (2048, "2k"), (16_384, "16k"), (131_072, "128k")], x_label="N",
        y_ticks=[(MIB, "1 MiB"), (GIB, "1 GiB"), (1024 * GIB, "1 TiB")],
    )  # fmt: skip
    line = [(n, held_bytes(n, model.d, model.heads, DTYPE_BYTES[model.dtype])) for n in LENGTHS]
    held.line(line, "Q")
    held.level(model.capacity_bytes, "bad dashed", tip=f"the memory of one {model.gpu}: {size(model.capacity_bytes)}")
    held.text(LENGTHS[0], model.capacity_bytes, "its memory", "bad", right=4, down=-5)
    for n, n_bytes in line:
        look = ("ink", 7) if n == model.n else ("Q", 3)
        held.dot(n, n_bytes, *look, tip=f"N = {n:,}: {size(n_bytes)}", choose={"n": n})

    total = model.moved.total_bytes
    requested = in_units(total, (("GB", 1e9), ("MB", 1e6)), ",.1f")  # in powers of ten, as bandwidths are stated
    passes = by_pass(model.moved.by_tensor).values()
    bars = {
        name: ([(f"{tensor} {way}", n_bytes / total, f"{tensor}{' pale' * (way == 'written')}")
                for (tensor, way), n_bytes in moves.items()], f"{sum(moves.values()) / total:.0%}")
        for name, moves in zip(("S = QK'", "softmax", "O = PV"), passes, strict=True)
    }  # fmt: skip
    moved = Panel(f"Requested: {requested}, as shares", 330, 230, (0, 0.62), (2.5, -0.5), margins=(60, 40, 10, 24))
    moved.stacked(bars)
    ms = {"bytes": 1e3 * model.memory_s, "FLOPs": 1e3 * model.arithmetic_s}
    times = Panel(
        "Time at the peaks", 190, 230, (-0.6, 1.6), (0, 1.15 * max(ms.values())), x_ticks=list(enumerate(ms)), grid="",
        margins=(20, 10, 10, 24),
    )  # fmt: skip
    for i, (name, value) in enumerate(ms.items()):
        times.bar(i, value, f"bar {'QO'[i]}", width=0.6, tip=f"{name}: {value:,.3f} ms")
        times.text(i, value, f"{value:,.3g} ms", "middle", down=-5)
    verdict, bound = "fits" if model.fits else "does not fit", "memory" if model.memory_bound else "arithmetic"
    text = (
        f"<b>N = {model.n:,}, d = {model.d}, {model.heads} heads, {model.dtype}.</b> S over all heads: "
        f"{size(model.matrix_bytes)}. With P, Q, K, V and O: {size(model.held_bytes)}, which <b>{verdict}</b> in the "
        f"{size(model.capacity_bytes)} of one {model.gpu}; the longest that fits is N = {model.longest:,}.<br>"
        f"Bytes requested: {requested}. FLOPs per byte: {model.intensity:.1f}; ridge: {model.ridge:.1f}. At "
        f"the vendor's peaks the bytes take {ms['bytes']:,.3f} ms and the products {ms['FLOPs']:,.3f} ms: bound by "
        f"<b>{bound}</b>."
    )
    return Page("Memory held against N, bytes by pass, and times at the peaks.", (held, moved, times), text=text)


def explore():
    """The explorer: N, head dim, heads, dtype, GPU."""
    controls = {
        "n": slider("N", LENGTHS, 32_768, play=True), "d": slider("d", HEAD_DIMS, 64),
        "heads": slider("heads", HEADS, 16), "gpu": menu("GPU", list(GPUS), "A100"),
        "dtype": buttons("dtype", list(DTYPE_BYTES)),
    }  # fmt: skip
    written = {"n": LENGTHS, "heads": (1, 16, 64), "gpu": ("T4", "A100", "H100"), "dtype": DTYPE_BYTES}
    return Explorer(page, controls, written=written)
