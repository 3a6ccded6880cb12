"""Lesson 01's explorers: two vectors to drag; scores, their scale and their softmax.

`pair` and `crowd` are the models: every number comes from `course_lib.reference`.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np

from course_lib.reference import cosine_similarity, dot, entropy, example, scores, stable_softmax

from .explorer import Explorer, buttons, slider
from .svg import Page, Panel, cards
from .words import number, vector

# d of the crowd: powers of two. The scales by name, as the factor that multiplies a dot product.
DIMENSIONS = tuple(2**i for i in range(11))
NONE, ROOT, INVERSE = "1 (no scale)", "1/sqrt(d)", "1/d"
SCALES = (NONE, ROOT, INVERSE)
N_KEYS = 64  # and queries
PLANE_END = 4  # of the plane in which tips are dragged
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
    if model.length_a and model.length_b:
        model.degrees = float(np.degrees(np.arccos(model.cosine)))
        model.foot = model.length_b * model.cosine * a / model.length_a
    return model


def pair_page(a, b):
    """Two vectors, [x, y] each: the shadow of b on a's line, the products with their sum, and the same as an area."""
    model = pair(np.array(a, float), np.array(b, float))
    shadow, sign = model.length_b * model.cosine, "good" if model.dot >= 0 else "bad"
    ends, ticks = (-PLANE_END - 0.4, PLANE_END + 0.4), range(-PLANE_END, PLANE_END + 1, 2)
    plane = Panel(
        "Drag the tips. Green: b's shadow on a's line", 320, 316, ends, ends, x_ticks=ticks, y_ticks=ticks,
        x_label="first component", y_label="second component",
    )  # fmt: skip
    plane.line([(0, 0), model.foot], "good wide")
    plane.line([b, model.foot], "soft dotted")
    for name, tip, css in (("a", a, "Q"), ("b", b, "K")):
        plane.line([(0, 0), tip], f"{css} thick")
        plane.text(*tip, name, f"{css} middle big", down=-14)
        right, up = ([name, axis, -PLANE_END, PLANE_END, 0.25] for axis in (0, 1))
        plane.handle(*tip, css, f"tip of {name}", vector(tip, "{:g}".format), right=right, up=up, radius=11)

    terms = [*model.products.tolist(), model.dot]
    reach = max(4, *map(abs, terms)) * 1.15
    sums = Panel(
        "a \u00b7 b: the products and their sum", 300, 130, (-reach, reach), (2.5, -0.5), margins=(100, 40, 6, 22),
        x_ticks=(-round(reach / 1.15), 0, round(reach / 1.15)),
    )  # fmt: skip
    for y, (name, term) in enumerate(zip(("first product", "second product", "sum, a \u00b7 b"), terms, strict=True)):
        sums.element("text", "end", name, x=93, y=sums.y(y) + 4)
        sums.rect((0, term), (y - 0.36, y + 0.36), f"bar {sign if y == 2 else 'O'}", tip=f"{name}: {number(term)}")
        sums.text(max(term, 0), y, number(term), "", right=5)
    sums.upright(0, "soft thin")
    area = Panel(
        "The same as an area: |a| times the shadow", 300, 160, (0, 6), (-6, 6), x_ticks=(0, 2, 4), y_ticks=(-4, 0, 4),
        x_label="length of a", y_label="shadow of b",
    )  # fmt: skip
    area.rect((0, model.length_a), (0, shadow), f"bar {sign}", tip=f"|a| times the shadow: {number(model.dot, 3)}")
    area.level(0, "soft thin")
    angle = ("none", "none") if model.degrees is None else (number(model.cosine, 3), f"{model.degrees:.1f}\u00b0")
    lengths = (number(x, 3) for x in (model.length_b, model.length_a, shadow, model.dot))
    said = "length |b|", "length |a|", "shadow of b", "|a| \u00d7 shadow, a \u00b7 b", "cosine", "angle"
    numbers = list(zip((*lengths, *angle), said, strict=True))
    return Page(
        f"Arrows a = {vector(a)} and b = {vector(b)}, the shadow of b on a's line, the products as bars, and the dot "
        f"product as an area. {'; '.join(f'{name}: {value}' for value, name in numbers)}.",
        (plane, [sums, area], cards(*numbers)),
    )  # fmt: skip


@cache
def crowd(d, scale=ROOT):
    """64 queries and 64 keys with d independent normal entries each: the first of the same 1024. Returns a namespace.

    scale: one of SCALES. It has factor: what that multiplies the dot products by; scores: [n_q, n_k]; spread: their
    standard deviation; weights: [n_q, n_k], each row a softmax; entropy: its mean over queries, in nats;
    effective_keys: the exponential of that; largest: the largest weight, mean over queries.
    """
    Q, K = np.random.default_rng(1).normal(size=(2, N_KEYS, DIMENSIONS[-1]))[:, :, :d]
    model = SimpleNamespace(factor={NONE: 1.0, ROOT: float(1 / np.sqrt(d)), INVERSE: 1 / d}[scale])
    model.scores = scores(Q, K, model.factor)
    model.spread = float(model.scores.std())
    model.weights = stable_softmax(model.scores)
    model.entropy = float(entropy(model.weights).mean())
    model.effective_keys = float(np.exp(model.entropy))
    model.largest = float(model.weights.max(axis=1).mean())
    return model


def crowd_page(d, scale):
    """The histogram of the scores, one query's weights, the entropy at every d, of a `crowd`."""
    model = crowd(d, scale)
    counts, edges = np.histogram(model.scores, bins=2 * SCORES_END, range=(-SCORES_END, SCORES_END))
    outside = np.mean(np.abs(model.scores) > SCORES_END)
    farther = f", {outside:.0%} outside" if outside else ""
    histogram = Panel(
        f"Scores; lines: spread {model.spread:.2f}{farther}", 300, 240, (-SCORES_END, SCORES_END), (0, MAX_BIN_SHARE),
        x_ticks=range(-40, 41, 20), y_ticks=(0, 0.25, 0.5), x_label="score", y_label="share of the scores",
    )  # fmt: skip
    for left, share in zip(edges[:-1], counts / model.scores.size, strict=True):
        if share:
            tip = f"{share:.1%} of the scores from {left:g} to {left + 1:g}"
            histogram.rect((left, left + 1), (0, min(share, MAX_BIN_SHARE)), "bar Q", tip=tip)
    for place in (-model.spread, model.spread):
        histogram.upright(place, "K")
    weights = Panel(
        "First query's weights, sorted", 300, 240, (0, N_KEYS), (0, 1.05), x_ticks=(0, 32, 64), y_ticks=(0, 0.5, 1),
        x_label="keys, heaviest first", y_label="softmax weight",
    )  # fmt: skip
    for i, weight in enumerate(np.sort(model.weights[0])[::-1]):
        weights.rect((i, i + 1), (0, weight), "bar Q", tip=f"key {i + 1}: {weight:.3f}")
    most = np.log(N_KEYS)
    entropies = Panel(
        "Mean entropy (dot: this setting)", 300, 240, (1, DIMENSIONS[-1]), (0, 1.12 * most), log="x",
        x_ticks=DIMENSIONS[::2], y_ticks=range(5), x_label="d", y_label="nats",
    )  # fmt: skip
    entropies.level(most, "soft dotted thin")
    for name, css, place in ((NONE, "bad", (3, 1.4)), (ROOT, "good", (200, 3.35)), (INVERSE, "O dashed", (500, 4.4))):
        curve = [(at, crowd(at, name).entropy) for at in DIMENSIONS]
        entropies.line(curve, css)
        entropies.text(*place, name, f"{css} middle")
        for at, nats in curve:
            look = ("ink", 7) if (at, name) == (d, scale) else (css, 3)
            tip = f"d = {at}, scale {name}: {nats:.3f} nats"
            entropies.dot(at, nats, *look, tip=tip, choose={"d": at, "scale": name})
    text = (
        f"<b>d = {d}, scale {scale}</b>, a factor of {model.factor:.4f}. The scores spread by {model.spread:.3f}.<br>"
        f"Entropy of the softmax: {model.entropy:.3f} nats of at most {most:.3f}; effectively "
        f"{model.effective_keys:.3f} of {N_KEYS} keys. Largest weight, on average: {model.largest:.3f}."
    )
    what = "A histogram of the scores, one query's weights, and the entropy against d."
    return Page(what, (histogram, weights, entropies), text=text)


def explore_pair():
    """The first explorer: two vectors whose tips are dragged, at first a query and a key of the course's sentence."""
    start = {"a": example.Q[3].tolist(), "b": example.K[3].tolist()}
    tips = [[float(x), float(y)] for x in range(-3, 4) for y in range(-3, 4)]
    return Explorer(pair_page, {}, start=start, written={"a": tips, "b": tips})


def explore_crowd():
    """The second explorer: the dimension and the scale of random scores."""
    controls = {"d": slider("d", DIMENSIONS, 64, play=True), "scale": buttons("scale", SCALES)}
    return Explorer(crowd_page, controls)
