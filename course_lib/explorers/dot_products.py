"""Lesson 01's explorers: two vectors to turn and stretch; scores, their scale and their softmax.

`pair` and `crowd` are the models: every number comes from `course_lib.reference`. `draw_pair` and
`draw_crowd` show one setting of each; `draw_scores`, `draw_growth`, `draw_entropy` and `draw_roofline` are
the lesson's other figures. `explore_pair` and `explore_crowd` are the widgets.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from course_lib.reference import cosine_similarity, dot, entropy, scores, stable_softmax

from .figures import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, VERMILLION, Picture, png, tidy

# d of the crowd: powers of two. The scales by name, as the factor that multiplies a dot product.
DIMENSIONS = tuple(2**i for i in range(11))
NONE, ROOT, INVERSE = "1 (no scale)", "1/sqrt(d)", "1/d"
SCALES = (NONE, ROOT, INVERSE)
N_QUERIES = N_KEYS = 64


@dataclass(frozen=True)
class Pair:
    """Two vectors of the plane, and what the dot product says of them.

    a, b: [2]; products: [2], a[i] b[i]; dot: their sum; length_a, length_b; cosine: 0 if a length is 0;
    degrees: the angle between them, None if a length is 0; foot: [2], the point of a's line nearest to b.
    """

    a: np.ndarray
    b: np.ndarray
    products: np.ndarray
    dot: float
    length_a: float
    length_b: float
    cosine: float
    degrees: float | None
    foot: np.ndarray


def pair(a, b):
    """a, b: [2], float64. Returns a Pair."""
    length_a, length_b = (float(np.sqrt(dot(v, v))) for v in (a, b))
    cosine = float(cosine_similarity(a, b))
    has_angle = length_a > 0 and length_b > 0
    degrees = float(np.degrees(np.arccos(cosine))) if has_angle else None
    foot = length_b * cosine * a / length_a if has_angle else np.zeros(2)
    return Pair(a, b, a * b, float(dot(a, b)), length_a, length_b, cosine, degrees, foot)


def turned(degrees, length):
    """The vector of this length at this angle from the first axis, counted against the clock. Returns [2]."""
    angle = np.radians(degrees)
    return length * np.array([np.cos(angle), np.sin(angle)])


def describe_pair(model):
    """The pair in words and numbers, as HTML: every number is the model's, to three decimals."""
    a_1, a_2, b_1, b_2 = (_number(x) for x in (*model.a, *model.b))
    angle = "no angle" if model.degrees is None else f"angle {model.degrees:.1f} degrees"
    return (
        f"<b>a . b</b> = ({a_1})({b_1}) + ({a_2})({b_2}) = <b>{_number(model.dot)}</b>.<br>"
        f"The same from lengths and angle: |a| |b| cos = {_number(model.length_a)} x "
        f"{_number(model.length_b)} x {_number(model.cosine)}; {angle}."
    )


def _number(x, digits=3):
    """x to `digits` decimals, and 0 without a sign: the cosine of a right angle is a little off 0."""
    return f"{round(x, digits) + 0.0:.{digits}f}"


def draw_pair(model):
    """Two panels: the vectors with b's shadow on a, and the products that add up to the dot product."""
    figure = Picture(3.4)
    plane, sums = figure.panels(1, 1.25)
    figure.subplots_adjust(left=0.05, right=0.985, bottom=0.1, top=0.88, wspace=0.14)

    tidy(plane, title="a and b; green: b's shadow on a's line")
    plane.set_aspect("equal")
    plane.set_xlim(-3.7, 3.7)
    plane.set_ylim(-3.7, 3.7)
    plane.axhline(0, color=PALE, linewidth=0.8, zorder=0)
    plane.axvline(0, color=PALE, linewidth=0.8, zorder=0)
    plane.plot(*np.transpose([model.b, model.foot]), color=GREY, linestyle=":", linewidth=1.2)
    plane.plot(*np.transpose([np.zeros(2), model.foot]), color=GREEN, linewidth=6, alpha=0.55, zorder=1)
    for vector, colour, name in ((model.a, BLUE, "a"), (model.b, ORANGE, "b")):
        if vector.any():
            arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 2.2, "shrinkA": 0, "shrinkB": 0}
            plane.annotate("", vector, (0, 0), arrowprops=arrow)
        out = vector / max(np.abs(vector).max(), 1e-9) * 0.35
        plane.text(*(vector + out), name, color=INK, fontsize=11, ha="center", va="center")
    plane.set_xticks((-2, 0, 2))
    plane.set_yticks((-2, 0, 2))

    tidy(sums, title="a . b: the products and their sum")
    bars = (*model.products, model.dot)
    sums.bar(range(3), bars, width=0.6, color=(PURPLE, PURPLE, GREEN if model.dot >= 0 else VERMILLION))
    sums.axhline(0, color=GREY, linewidth=0.8)
    size = max(np.abs(bars).max(), 1)
    sums.set_ylim(-1.25 * size if min(bars) < 0 else 0, 1.25 * size if max(bars) > 0 else 0.2 * size)
    for i, height in enumerate(bars):
        above = height >= 0
        place = height + (0.03 if above else -0.05) * size
        sums.text(i, place, _number(height, 2), ha="center", va="bottom" if above else "top", color=INK)
    sums.set_xticks(range(3), ("first product", "second product", "sum"))
    sums.locator_params(axis="y", nbins=4)
    return figure


@dataclass(frozen=True)
class Crowd:
    """Random queries and keys with normal entries, and the softmax of their scores.

    d; scale: one of SCALES; factor: what it multiplies the dot products by. scores: [n_q, n_k].
    spread: the standard deviation of all scores. weights: [n_q, n_k], each row a softmax.
    entropy: the mean over queries, in nats. effective_keys: its exponential. largest: the largest weight,
    mean over queries.
    """

    d: int
    scale: str
    factor: float
    scores: np.ndarray
    spread: float
    weights: np.ndarray
    entropy: float
    effective_keys: float
    largest: float


@cache
def _entries():
    """Queries [64, 1024] and keys [64, 1024]; a crowd of dimension d takes their first d columns."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(N_QUERIES, DIMENSIONS[-1])), rng.normal(size=(N_KEYS, DIMENSIONS[-1]))


@cache
def crowd(d, scale=ROOT):
    """64 queries and 64 keys with d independent normal entries each, always the same. Returns a Crowd."""
    Q, K = (entries[:, :d] for entries in _entries())
    factor = {NONE: 1.0, ROOT: 1 / np.sqrt(d), INVERSE: 1 / d}[scale]
    S = scores(Q, K, factor)
    P = stable_softmax(S)
    H = float(entropy(P).mean())
    largest = float(P.max(axis=1).mean())
    return Crowd(d, scale, float(factor), S, float(S.std()), P, H, float(np.exp(H)), largest)


def describe_crowd(model):
    """The crowd in words and numbers, as HTML: every number is the model's, to three decimals."""
    return (
        f"<b>d = {model.d}, scale {model.scale}</b>, a factor of {model.factor:.4f}. "
        f"The scores spread by {model.spread:.3f}.<br>"
        f"Entropy of the softmax: {model.entropy:.3f} nats of at most {np.log(N_KEYS):.3f}; as even as over "
        f"{model.effective_keys:.3f} of {N_KEYS} keys. Largest weight, on average: {model.largest:.3f}."
    )


def draw_crowd(model):
    """Three panels: the histogram of the scores, one query's weights, the entropy at every d."""
    figure = Picture(3.2)
    histogram, weights, curve = figure.panels(1, 1, 1)
    figure.subplots_adjust(left=0.06, right=0.985, bottom=0.16, top=0.87, wspace=0.28)

    tidy(histogram, title=f"{model.scores.size} scores; lines: spread {model.spread:.2f}", x="score", y="count")
    edge = np.abs(model.scores).max()
    counts, edges = np.histogram(model.scores, bins=40, range=(-edge, edge))
    histogram.stairs(counts, edges, fill=True, color=BLUE)
    histogram.vlines((-model.spread, model.spread), 0, 1.1 * counts.max(), color=ORANGE, linewidth=2)
    histogram.locator_params(nbins=4)

    tidy(weights, title="first query's weights, sorted", x="keys, heaviest first", y="softmax weight")
    weights.stairs(np.sort(model.weights[0])[::-1], fill=True, color=BLUE)
    weights.set_ylim(0, 1.05)
    weights.set_xticks((0, 32, 64))
    weights.set_yticks((0, 0.5, 1))

    _draw_entropy_curves(curve)
    curve.set_title("entropy (dot: this setting)", loc="left", y=1.03, fontsize=10.5, color=INK)
    curve.plot(np.log2(model.d), model.entropy, marker="o", markersize=9, color=INK)
    return figure


def _draw_entropy_curves(axes):
    """Mean entropy against d, on a linear axis of log2(d): matplotlib's own logarithmic axes are slow."""
    tidy(axes, x="d", y="nats")
    styles = ((NONE, VERMILLION, "-"), (ROOT, GREEN, "-"), (INVERSE, PURPLE, "--"))
    at = np.log2(DIMENSIONS)
    for scale, colour, line in styles:
        values = [crowd(d, scale).entropy for d in DIMENSIONS]
        axes.plot(at, values, color=colour, linestyle=line, linewidth=1.8, label=f"scale {scale}")
    axes.axhline(np.log(N_KEYS), color=GREY, linewidth=0.8, linestyle=":")
    axes.set_ylim(0, 1.12 * np.log(N_KEYS))
    axes.set_xticks(at[::2], DIMENSIONS[::2])
    axes.set_yticks(range(5))


def draw_scores(S, queries, keys, title):
    """The matrix of scores as numbers on a ground that darkens with them.

    S: [n_q, n_k]; queries: [n_q], keys: [n_k] names. Returns a figure.
    """
    figure = Picture(2.9, 4.8)
    axes = figure.add_axes((0.2, 0.05, 0.75, 0.7))
    axes.imshow(S, cmap="Blues", vmin=min(S.min(), 0), vmax=1.6 * np.abs(S).max(), aspect="auto")
    for i, j in np.ndindex(S.shape):
        axes.text(j, i, f"{S[i, j]:.3g}", ha="center", va="center", fontsize=11, color=INK)
    axes.set_xticks(range(len(keys)), keys)
    axes.set_yticks(range(len(queries)), queries)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=INK, labelsize=10)
    axes.spines[:].set_visible(False)
    axes.set_ylabel("queries", fontsize=9.5, color=INK)
    figure.text(0.02, 0.93, title, fontsize=10.5, color=INK)
    return figure


def draw_growth(dimensions, spreads, cosines):
    """How dot products and cosines of random vectors spread, measured (dots) and as derived (lines).

    dimensions: [n]; spreads, cosines: [n], standard deviations. Returns a figure.
    """
    figure = Picture(3.0)
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.075, right=0.985, bottom=0.17, top=0.87, wspace=0.22)
    tidy(left, title="spread of the dot products", x="d", y="standard deviation")
    left.plot(dimensions, np.sqrt(dimensions), color=GREY, label=r"$\sqrt{d}$")
    left.plot(dimensions, spreads, "o", color=BLUE, label="measured")
    tidy(right, title="spread of the cosines", x="d", y="standard deviation")
    right.plot(dimensions, 1 / np.sqrt(dimensions), color=GREY, label=r"$1/\sqrt{d}$")
    right.plot(dimensions, cosines, "o", color=ORANGE, label="measured")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.legend(frameon=False, fontsize=9)
    return figure


def draw_entropy():
    """The mean entropy of 64 weights against d, for three scales. Returns a figure."""
    figure = Picture(3.4)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.075, right=0.985, bottom=0.15, top=0.88)
    _draw_entropy_curves(axes)
    title = "entropy of a softmax over 64 keys (dotted: 64 equal weights)"
    axes.set_title(title, loc="left", y=1.03, fontsize=10.5, color=INK)
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    return figure


def draw_roofline(gpus, points):
    """What a GPU can reach at each arithmetic intensity, and where some computations stand.

    gpus: name -> GPU of `course_lib.hardware`. points: name -> FLOPs per byte, a dotted line up to the
    highest roof. Returns a figure.
    """
    figure = Picture(3.8)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.075, right=0.985, bottom=0.14, top=0.89)
    title = "rooflines: the most that memory and tensor cores allow (fp16, vendors' peaks)"
    tidy(axes, title=title, x="arithmetic intensity, FLOPs per byte of HBM traffic", y="TFLOP/s")
    intensity = 2.0 ** np.arange(-3, 13.25, 0.25)
    for (name, gpu), (colour, line) in zip(gpus.items(), ((BLUE, "-"), (GREEN, "--"), (PURPLE, "-.")), strict=False):
        memory_tflops = intensity * gpu.hbm_bytes_per_s / 1e12
        reach = np.minimum(memory_tflops, gpu.fp16_tensor_tflops)
        label = f"{name}: ridge at {gpu.ridge_flops_per_byte:.0f}"
        axes.plot(intensity, reach, color=colour, linestyle=line, linewidth=1.8, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.set_xticks(4.0 ** np.arange(-1, 7), ("1/4", "1", "4", "16", "64", "256", "1024", "4096"))
    axes.set_ylim(0.02, 4000)
    roof = max(gpus.values(), key=lambda gpu: gpu.fp16_tensor_tflops)
    for i, (name, at) in enumerate(points.items()):
        top = min(at * roof.hbm_bytes_per_s / 1e12, roof.fp16_tensor_tflops)
        axes.vlines(at, 0, top, color=VERMILLION, linewidth=1.2, linestyle=":")
        side, place = ("left", at * 1.08) if at < 16 else ("right", at / 1.08)
        axes.text(place, 0.03 * 2.6**i, f"{name}: {at:.4g}", ha=side, fontsize=9, color=INK)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def explore_pair():
    """The first explorer as an ipywidgets box: angle and length of each of two vectors."""
    import ipywidgets as widgets

    wide = {"description_width": "110px"}

    def slider(kind, value, low, high, step, name):
        return kind(value, min=low, max=high, step=step, description=name, style=wide)

    turn_a = slider(widgets.IntSlider, 60, -180, 180, 5, "turn a (degrees)")
    turn_b = slider(widgets.IntSlider, 25, -180, 180, 5, "turn b (degrees)")
    stretch_a = slider(widgets.FloatSlider, 2.0, 0, 3, 0.25, "length of a")
    stretch_b = slider(widgets.FloatSlider, 2.0, 0, 3, 0.25, "length of b")
    text, image = widgets.HTML(), widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))

    def redraw(_change=None):
        model = pair(turned(turn_a.value, stretch_a.value), turned(turn_b.value, stretch_b.value))
        text.value = describe_pair(model)
        image.value = png(draw_pair(model))

    for control in (turn_a, turn_b, stretch_a, stretch_b):
        control.observe(redraw, names="value")
    redraw()
    a, b = widgets.HBox([turn_a, stretch_a]), widgets.HBox([turn_b, stretch_b])
    return widgets.VBox([a, b, text, image])


def explore_crowd():
    """The second explorer as an ipywidgets box: the dimension and the scale of random scores."""
    import ipywidgets as widgets

    wide = {"description_width": "110px"}
    d = widgets.SelectionSlider(options=DIMENSIONS, value=64, description="d", style=wide)
    scale = widgets.ToggleButtons(
        options=SCALES, value=ROOT, description="scale", style=wide | {"button_width": "auto"}
    )
    text, image = widgets.HTML(), widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))

    def redraw(_change=None):
        model = crowd(d.value, scale.value)
        text.value = describe_crowd(model)
        image.value = png(draw_crowd(model))

    for control in (d, scale):
        control.observe(redraw, names="value")
    redraw()
    return widgets.VBox([d, scale, text, image])
