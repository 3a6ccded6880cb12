"""Lesson 01's explorers: two vectors to drag; scores, their scale and their softmax.

`pair` and `crowd` are the models: every number comes from `course_lib.reference`. pair.js draws `pair_state`, and
`draw_crowd` a crowd; `draw_spreads` and `draw_roofline` are the lesson's other figures.
`explore_pair` and `explore_crowd` are the widgets.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np

from course_lib.reference import cosine_similarity, dot, entropy, example, scores, stable_softmax

from .drawing import log_axes
from .figures import BLUE, GREEN, GREY, INK, ON_WHITE, ORANGE, PURPLE, VERMILLION, label, legend, panel, panels, tidy
from .roofline import roof_tflops
from .shell import Explorer, buttons, choice
from .svg_explorer import SvgExplorer, axis
from .words import number, plain

# d of the crowd: powers of two. The scales by name, as the factor that multiplies a dot product.
DIMENSIONS = tuple(2**i for i in range(11))
NONE, ROOT, INVERSE = "1 (no scale)", "1/sqrt(d)", "1/d"
SCALES = (NONE, ROOT, INVERSE)
N_QUERIES = N_KEYS = 64
# The histogram's axis is the same for every crowd, so that a wider spread looks wider.
SCORES_END, MAX_BIN_SHARE = 40, 0.55


def pair(a, b):
    """What the dot product says of two vectors of the plane, a and b: [2], float64. Returns a namespace.

    It has a and b; products: [2], a[i] b[i]; dot: their sum; length_a, length_b; cosine: 0 if a length is 0;
    degrees: the angle between them, None if a length is 0; foot: [2], the point of a's line nearest to b.
    """
    model = SimpleNamespace(a=a, b=b, products=a * b, dot=float(dot(a, b)), degrees=None, foot=np.zeros(2))
    model.length_a, model.length_b = (float(np.sqrt(dot(v, v))) for v in (a, b))
    model.cosine = float(cosine_similarity(a, b))
    if model.length_a > 0 and model.length_b > 0:
        model.degrees = float(np.degrees(np.arccos(model.cosine)))
        model.foot = model.length_b * model.cosine * a / model.length_a
    return model


def pair_state(a, b, step):
    """What pair.js draws for the tips a and b, [x, y], which are dragged in steps of `step`."""
    model = pair(np.array(a, float), np.array(b, float))
    shadow = model.length_b * model.cosine
    angle = ["none", "none"] if model.degrees is None else [number(model.cosine, 3), f"{model.degrees:.1f}\u00b0"]
    values = [*model.products.tolist(), model.dot]
    return {
        "a": a, "b": b, "foot": model.foot.round(3).tolist(), "values": values,
        "numbers": [*(number(x, 3) for x in (model.length_b, model.length_a, shadow, model.dot)), *angle],
        "texts": [number(x) for x in values], "kinds": ["term", "term", "plus" if model.dot >= 0 else "minus"],
        "names": ["first product", "second product", "sum, a \u00b7 b"],
        "cards": ["length |b|", "length |a|", "shadow of b", "|a| \u00d7 shadow, a \u00b7 b", "cosine", "angle"],
        "plane": axis(-4.4, 4.4, range(-4, 5, 2)) | {"limit": 4, "step": step},
        "area": [round(model.length_a, 3), round(shadow, 3)], "sides": [axis(0, 6, (0, 2, 4)), axis(-6, 6, (-4, 0, 4))],
        "sums": axis(-32, 32, range(-30, 31, 10)),
    }  # fmt: skip


@cache
def _entries():
    """Queries [64, 1024] and keys [64, 1024]; a crowd of dimension d takes their first d columns."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(N_QUERIES, DIMENSIONS[-1])), rng.normal(size=(N_KEYS, DIMENSIONS[-1]))


@cache
def crowd(d, scale=ROOT):
    """64 queries and 64 keys with d independent normal entries each, always the same. Returns a namespace.

    It has d; scale: one of SCALES; factor: what it multiplies the dot products by; scores: [n_q, n_k]; spread: their
    standard deviation; weights: [n_q, n_k], each row a softmax; entropy: its mean over queries, in nats;
    effective_keys: the exponential of that; largest: the largest weight, mean over queries.
    """
    Q, K = (entries[:, :d] for entries in _entries())
    model = SimpleNamespace(d=d, scale=scale)
    model.factor = {NONE: 1.0, ROOT: float(1 / np.sqrt(d)), INVERSE: 1 / d}[scale]
    model.scores = scores(Q, K, model.factor)
    model.spread = float(model.scores.std())
    model.weights = stable_softmax(model.scores)
    model.entropy = float(entropy(model.weights).mean())
    model.effective_keys = float(np.exp(model.entropy))
    model.largest = float(model.weights.max(axis=1).mean())
    return model


def describe_crowd(model):
    """The crowd in words and numbers, as HTML: every number is the model's, to three decimals."""
    return (
        f"<b>d = {model.d}, scale {model.scale}</b>, a factor of {model.factor:.4f}. "
        f"The scores spread by {model.spread:.3f}.<br>"
        f"Entropy of the softmax: {model.entropy:.3f} nats of at most {np.log(N_KEYS):.3f}; effectively "
        f"{model.effective_keys:.3f} of {N_KEYS} keys. Largest weight, on average: {model.largest:.3f}."
    )


def draw_crowd(model):
    """Three panels: the histogram of the scores, one query's weights, the entropy at every d."""
    panes = "A histogram of the scores, one query's weights, and the entropy against d."
    alt = f"{panes} {plain(describe_crowd(model))}"
    outside = np.mean(np.abs(model.scores) > SCORES_END)
    figure, (histogram, weights, curve) = panels(3.2, 1, 1, 1, left=0.06, wspace=0.28, alt=alt)
    farther = f", {outside:.0%} outside" if outside else ""
    tidy(histogram, title=f"scores; lines: spread {model.spread:.2f}{farther}", x="score", y="share of the scores")
    counts, edges = np.histogram(model.scores, bins=2 * SCORES_END, range=(-SCORES_END, SCORES_END))
    histogram.stairs(counts / model.scores.size, edges, fill=True, color=BLUE)
    histogram.vlines((-model.spread, model.spread), 0, MAX_BIN_SHARE, color=ORANGE, linewidth=2)
    histogram.set(
        xlim=(-SCORES_END, SCORES_END), ylim=(0, MAX_BIN_SHARE), xticks=range(-40, 41, 20), yticks=(0, 0.25, 0.5)
    )

    tidy(weights, title="first query's weights, sorted", x="keys, heaviest first", y="softmax weight")
    weights.stairs(np.sort(model.weights[0])[::-1], fill=True, color=BLUE)
    weights.set(ylim=(0, 1.05), xticks=(0, 32, 64), yticks=(0, 0.5, 1))

    tidy(curve, title="mean entropy (dot: this setting)", x="d", y="nats")
    for scale, colour, line, place in (
        (NONE, VERMILLION, "-", (3, 1.4)), (ROOT, GREEN, "-", (200, 3.35)), (INVERSE, PURPLE, "--", (500, 4.4))
    ):  # fmt: skip
        values = [crowd(d, scale).entropy for d in DIMENSIONS]
        curve.plot(DIMENSIONS, values, color=colour, linestyle=line, linewidth=1.8)
        label(curve, *place, scale, color=colour)
    curve.axhline(np.log(N_KEYS), color=GREY, linewidth=0.8, linestyle=":")
    log_axes(curve, DIMENSIONS[::2], DIMENSIONS[::2], y_base=None)
    curve.set(ylim=(0, 1.12 * np.log(N_KEYS)), yticks=range(5))
    curve.plot(model.d, model.entropy, marker="o", markersize=9, color=INK)
    return figure


def draw_spreads(dimensions, spreads, cosines):
    """How dot products and cosines of random vectors spread, measured (dots) and as derived (lines).

    dimensions: [n]; spreads, cosines: [n], standard deviations.
    """
    first, last = dimensions[0], dimensions[-1]
    alt = (
        f"From d = {first} to {last} the spread of dot products grows from {spreads[0]:.2f} to {spreads[-1]:.2f} "
        f"along sqrt(d); that of cosines falls from {cosines[0]:.2f} to {cosines[-1]:.3f}, along 1/sqrt(d)."
    )
    figure, (left, right) = panels(3.0, 1, 1, alt=alt)
    for axes, what, measured, derived, formula, colour in (
        (left, "dot products", spreads, np.sqrt(dimensions), r"$\sqrt{d}$", BLUE),
        (right, "cosines", cosines, 1 / np.sqrt(dimensions), r"$1/\sqrt{d}$", ORANGE),
    ):
        tidy(axes, title=f"spread of the {what}", x="d", y="standard deviation")
        axes.plot(dimensions, derived, color=GREY, label=formula)
        axes.plot(dimensions, measured, "o", color=colour, label="measured")
        log_axes(axes, dimensions, y_base=2)
        legend(axes)
    return figure


def draw_roofline(gpus, points):
    """What a GPU can reach at each arithmetic intensity, and where some computations stand.

    gpus: name -> GPU of `course_lib.hardware`. points: name -> FLOPs per byte, a dotted line up to the highest roof.
    """
    ridges = ", ".join(f"{name} at {gpu.ridge_flops_per_byte:.0f}" for name, gpu in gpus.items())
    places = ", ".join(f"{name} at {at:.4g}" for name, at in points.items())
    alt = f"Rooflines with their ridges in FLOPs per byte: {ridges}. Lines up to the highest roof: {places}."
    title = "rooflines: the most that memory and arithmetic allow (fp16, vendors' peaks)"
    x = "arithmetic intensity, FLOPs per byte of HBM traffic"
    figure, axes = panel(3.8, alt=alt, title=title, x=x, y="TFLOP/s")
    intensity = 2.0 ** np.arange(-3, 13.25, 0.25)
    for (name, gpu), (colour, line) in zip(gpus.items(), ((BLUE, "-"), (GREEN, "--"), (PURPLE, "-.")), strict=False):
        reach = [roof_tflops(gpu, x) for x in intensity]
        ridge = f"{name}: ridge at {gpu.ridge_flops_per_byte:.0f}"
        axes.plot(intensity, reach, color=colour, linestyle=line, linewidth=1.8, label=ridge)
    log_axes(axes, 4.0 ** np.arange(-1, 7), ("1/4", "1", "4", "16", "64", "256", "1024", "4096"))
    axes.set_ylim(0.02, 4000)
    highest = max(gpus.values(), key=lambda gpu: gpu.fp16_tensor_tflops)
    for i, (name, at) in enumerate(points.items()):
        axes.vlines(at, 0, roof_tflops(highest, at), color=VERMILLION, linewidth=1.2, linestyle=":")
        side, place = ("left", at * 1.08) if at < 16 else ("right", at / 1.08)
        label(axes, place, 0.03 * 2.6**i, f"{name}: {at:.4g}", ha=side, va="baseline", **ON_WHITE)
    legend(axes, loc="upper left")
    return figure


def explore_pair():
    """The first explorer: two vectors whose tips are dragged, at first a query and a key of the course's sentence."""
    start = {"a": example.Q[3].tolist(), "b": example.K[3].tolist(), "step": 0.25}
    tips = [[float(x), float(y)] for x in range(-3, 4) for y in range(-3, 4)]
    grid = [{"a": a, "b": b, "step": 1} for a in tips for b in tips]
    alt = (
        "Arrows a = (1, 2) and b = (2, 1). The shadow of b on a's line is 1.789 long and a is 2.236; the dot product 4 "
        "is the product of both, drawn as an area, and the sum of the products 2 and 2, drawn as bars."
    )
    return SvgExplorer("pair", pair_state, start, grid=grid, alt=alt)


def explore_crowd():
    """The second explorer as a widget: the dimension and the scale of random scores."""
    controls = {"d": choice("d", DIMENSIONS, 64)}, {"scale": buttons("scale", SCALES, NONE)}
    return Explorer(crowd, describe_crowd, draw_crowd, *controls, play="d")
