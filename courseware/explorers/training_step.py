"""Lesson 17's explorer: a training step's time and memory by part, as the measured step of `training-h200` scales.

What one shape took on a GPU is scaled to others: matrices and attention by their FLOPs, attention at the speed of the
nearest measured context, everything else by its elements.
"""

from functools import cache
from types import SimpleNamespace

from course_lib import traffic
from courseware.bench import records

from .explorer import Explorer, buttons, menu, slider
from .svg import Page, Panel
from .words import table

RECORD, HEAD_DIM, PARAMETER_BYTES = "training-h200", 128, 16  # fp32, with its gradient and AdamW's two moments
H200_BYTES = 141 * 2**30  # its vendor's 141 GB, as `hardware` has those of others
METHODS = {
    "flash_attention": "ours", "lessons 08 and 09": "plain", "PyTorch, FlashAttention-2": "sdpa_flash",
    "PyTorch, cuDNN": "sdpa_cudnn", "matrices of scores": "eager",
}  # fmt: skip
LENGTHS = {f"{2**k // 1024}k": 2**k for k in range(10, 16)}
START = {"n": 8192, "width": 1024, "layers": 8, "method": "ours"}
TIME = {"matrix products": "Q", "everything else": "grey", "attention": "S"}
MEMORY = {"parameters": "K", "activations": "grey", "for attention": "S"}


def flops(n, width, layers, tokens):
    """(matrices, attention) of a step. Heads of HEAD_DIM, four of which share keys and values."""
    heads = width // HEAD_DIM
    how = {"width": width, "heads": heads, "kv_heads": max(1, heads // 4), "head_dim": HEAD_DIM, "hidden": 4 * width}
    return [layers * tokens * x for x in traffic.training_flops(n, **how)]


def measured(method):
    """Rows of the record's steps, n -> row; what failed has no time."""
    return {row["n"]: row for row in records.rows(RECORD, kind="step", method=method) if "ms" in row}


@cache
def evaluate(**chosen):
    """A step with settings, those of START where nothing else is chosen, as a namespace: ms and n_bytes by part."""
    s = SimpleNamespace(**START | chosen)
    (model,) = records.rows(RECORD, kind="model")
    rest, steps = measured("values"), measured(s.method)
    at = min(steps, key=lambda n: abs(n - s.n))
    base = rest[at]
    ratio = s.layers * s.width / (model["n_layers"] * model["width"])
    shapes = (s.n, s.width, s.layers), (at, model["width"], model["n_layers"])
    matrices, attention = zip(*(flops(*shape, model["tokens"]) for shape in shapes), strict=True)
    ms = [
        base["matmul_ms"] * matrices[0] / matrices[1],
        (base["ms"] - base["matmul_ms"]) * ratio,
        (steps[at]["ms"] - base["ms"]) * attention[0] / attention[1],
    ]
    parameters = PARAMETER_BYTES * matrices[0] / (6 * model["tokens"])
    activations = (base["peak_bytes"] - PARAMETER_BYTES * model["weights"]) * ratio
    # What attention keeps grows with the tokens, and where there are matrices of scores with the pairs, too.
    low, high = (steps[n]["peak_bytes"] - rest[n]["peak_bytes"] for n in (min(steps), max(steps)))
    by_pair = (high - low) / (max(steps) - min(steps))
    n_bytes = [parameters, activations, (low + by_pair * (s.n - min(steps))) * ratio]
    return SimpleNamespace(settings=s, ms=ms, n_bytes=n_bytes, tokens=model["tokens"])


def stacked(title, of_length, meanings, unit, limit=None):
    """A panel with a bar of parts for each context."""
    most = max(map(sum, of_length.values()))
    step = next(x for k in range(9) for x in (10**k, 2 * 10**k, 5 * 10**k) if 5 * x >= most)
    panel = Panel(
        f"{title} ({unit})", 368, 290, (-0.6, len(LENGTHS) - 0.4), (0, 1.06 * max(most, step)), grid="y",
        x_ticks=[(i, name) for i, name in enumerate(LENGTHS)], x_label="tokens of a sequence",
        y_ticks=[step * i for i in range(6) if step * i <= 1.06 * most], margins=(52, 8, 30, 36),
    )  # fmt: skip
    panel.legend(meanings, left=4)
    for place, (name, n) in enumerate(LENGTHS.items()):
        parts, base = of_length[n], 0.0
        for (part, css), size in zip(meanings.items(), parts, strict=True):
            tip = f"{name}, {part}: {size:,.4g} {unit}"
            panel.rect((place - 0.36, place + 0.36), (base, base + size), f"bar {css}", tip=tip, choose={"n": n})
            base += size
    if limit and limit < 1.06 * most:
        panel.level(limit, "bad", tip=f"memory of the GPU: {limit:,.0f} {unit}")
    return panel


def draw(model):
    """Time and memory of every context, and the chosen one in numbers."""
    s = model.settings
    every = {n: evaluate(**vars(s) | {"n": n}) for n in LENGTHS.values()}
    ms = {n: each.ms for n, each in every.items()}
    gb = {n: [x / 1e9 for x in each.n_bytes] for n, each in every.items()}
    said = ", ".join(f"{name} {sum(ms[n]):,.0f} ms and {sum(gb[n]):,.0f} GB" for name, n in LENGTHS.items())
    panels = stacked("time of a step", ms, TIME, "ms"), stacked("memory", gb, MEMORY, "GB", H200_BYTES / 1e9)
    total, by_flops = sum(model.ms), flops(s.n, s.width, s.layers, model.tokens)
    share = by_flops[1] / sum(by_flops)
    text = table([
        ("a step", f"{total:,.0f} ms, {model.tokens / total:,.1f} thousand tokens a second"),
        ("attention", f"{model.ms[2]:,.0f} ms, {model.ms[2] / total:.0%} of the time; {share:.0%} of the FLOPs"),
        ("if attention took no time", f"the step would be {total / (total - model.ms[2]):.2f} times as fast"),
        ("memory", f"{sum(model.n_bytes) / 1e9:,.0f} GB"),
    ])  # fmt: skip
    return Page(f"A step by the context: {said}.", panels, text=text)


def explore():
    """The explorer: context, width, depth, and which attention."""
    controls = {
        "n": slider("context", LENGTHS), "width": buttons("width", (512, 1024, 2048, 4096)),
        "layers": slider("layers", (4, 8, 16, 32)), "method": menu("attention", METHODS),
    }  # fmt: skip
    return Explorer(lambda **chosen: draw(evaluate(**chosen)), controls, start=START)
