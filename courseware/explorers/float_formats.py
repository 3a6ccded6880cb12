"""Lesson 02's explorer: logits on the number line of each format, and the softmax that comes out.

`run` is the model: one set of logits in each format, each step as `course_lib.reference.formats` rounds it.
`draw` shows it, `describe` says it, `explore` is the widget. `draw_digits` and `draw_broken_rows` are the
lesson's other pictures, `broken_rows` the count behind the second.
"""

from types import SimpleNamespace

import numpy as np

from course_lib.reference import example, scores, stable_softmax
from course_lib.reference.formats import FORMATS, largest_exp_input, naive_softmax_steps, smallest_exp_input

from .figures import BLUE, GREEN, GREY, INK, ORANGE, PALE, VERMILLION, label, legend, panel, panels, tidy
from .shell import Explorer, slider
from .words import plain, significant, vector

LINE_END = 130  # of the number lines, in logits either way; the controls reach 120
COLOURS = dict(zip(FORMATS, (BLUE, ORANGE, GREEN), strict=True))
NAN_OVERFLOW = "NaN: exp overflows"
NAN_UNDERFLOW = "NaN: every exp is 0"
ZEROS = "all 0: sum overflows"
LOST = "some weights are 0"
DIGITS = "some digits lost"
ORDINARY = "all in range"


def run(logits, *, names=example.TOKENS):
    """The logits [n] in each of the three formats, rounded to it first. Returns a namespace.

    It has logits: [n], before rounding; names: [n]; true: [n], their softmax in float64; rows: one a format.
    """
    logits = np.asarray(logits, dtype=np.float64)
    rows = [naive_softmax_in(number_format, logits) for number_format in FORMATS.values()]
    return SimpleNamespace(logits=logits, names=names, true=stable_softmax(logits), rows=rows)


def naive_softmax_in(number_format, logits):
    """The naive softmax of logits, [n], in one format, as a namespace.

    It has number_format; logits, exp_x, weights: [n], numbers of the format; total: their sum; verdict; zones: three
    logits, at the borders between where exp is 0, has lost digits (is subnormal), is safe, is infinite: the first that
    is not 0, the first with all its digits, the last that is finite.
    """
    row = SimpleNamespace(number_format=number_format, logits=number_format.round(logits))
    row.exp_x, (row.total,), row.weights = naive_softmax_steps(logits, number_format)
    begins = [smallest_exp_input(number_format, least) for least in (None, number_format.smallest_normal)]
    row.zones = *begins, largest_exp_input(number_format)
    if np.isinf(row.exp_x).any():
        row.verdict = NAN_OVERFLOW
    elif row.total == 0:
        row.verdict = NAN_UNDERFLOW
    elif np.isinf(row.total):
        row.verdict = ZEROS
    elif (row.weights == 0).any():
        row.verdict = LOST
    else:
        row.verdict = DIGITS if (row.exp_x < number_format.smallest_normal).any() else ORDINARY
    return row


def describe(model):
    """The steps of each format in numbers, to four digits, and the verdict, as HTML."""
    lines = [f"True softmax of {vector(model.logits)}: {vector(model.true)}."]
    for row in model.rows:
        steps = f"exp {vector(row.exp_x)}, sum {significant(row.total)}, weights {vector(row.weights)}"
        lines.append(f"<b>{row.number_format.name}</b>: {steps}. <b>{row.verdict}.</b>")
    return "<br>".join(lines)


def draw(model):
    """Left, the logits on each format's number line; right, the weights that each format returns."""
    alt = f"Logits on the number line of each format, and the weights that it returns. {plain(describe(model))}"
    figure, (lines, weights) = panels(3.8, 1.75, 1, left=0.085, wspace=0.16, alt=alt)
    _draw_lines(lines, model)
    _draw_weights(weights, model)
    return figure


def _draw_lines(axes, model):
    tidy(axes, title="what exp makes of a logit, and the logits (dots)", x="logit")
    axes.set(xlim=(-LINE_END, LINE_END), ylim=(-2.6, 1), xticks=range(-120, 121, 40))
    axes.set_yticks([0, -1, -2], FORMATS)
    faces, words = (PALE, "#F7DFA8", "#BFE3D6", "#F3C3A6"), ("0", "", "safe", "inf")
    for y, row in zip((0, -1, -2), model.rows, strict=True):
        edges = np.array([-LINE_END, *row.zones, LINE_END])
        axes.barh(y, np.diff(edges), left=edges[:-1], height=0.58, color=faces)
        for middle, word in zip((edges[:-1] + edges[1:]) / 2, words, strict=True):
            label(axes, middle, y - 0.19, word, size=8)
        for place, side in zip(row.zones, ("right", "left", "left"), strict=True):
            label(axes, place, y - 0.33, f"{place:.2f}", size=8, ha=side, va="top")
        colours = [_colour(exp_x, row.number_format) for exp_x in row.exp_x]
        # In steps, so that logits which lie close do not cover each other.
        heights = y - 0.08 + 0.1 * (np.arange(len(row.logits)) % 4)
        axes.scatter(row.logits, heights, s=30, color=colours, edgecolors="white", linewidths=0.5, zorder=3)
    for step, (name, logit) in enumerate(zip(model.names, model.logits, strict=True)):
        height = 0.4 + 0.14 * (step % 4)
        axes.plot([logit, logit], [0.12, height - 0.04], color=GREY, linewidth=0.7)
        label(axes, logit, height, name, size=8)


def _colour(exp_x, number_format):
    if np.isinf(exp_x):
        return VERMILLION
    if exp_x == 0:
        return GREY
    return BLUE if exp_x >= number_format.smallest_normal else ORANGE


def _draw_weights(axes, model):
    tidy(axes, title="weights (outlines: the true softmax)")
    n = len(model.names)
    axes.set(xlim=(-1.2, 3 * n + 3), ylim=(0, 1.25), yticks=(0, 0.5, 1))
    for row, left in zip(model.rows, (n + 1.5) * np.arange(3), strict=True):
        x, broken = left + np.arange(n), np.isnan(row.weights)
        axes.bar(x, np.where(broken, 0, row.weights), width=0.8, color=BLUE)
        axes.bar(x, model.true, width=0.8, facecolor="none", edgecolor=INK, linewidth=0.9)
        for place, top in zip(x[broken], model.true[broken], strict=True):
            label(axes, place, top + 0.02, "NaN", color=VERMILLION, size=8, va="bottom")
        gone = row.weights == 0
        for place, top in zip(x[gone], model.true[gone], strict=True):
            label(axes, place, top + 0.02, "0", color=VERMILLION, size=8, va="bottom")
        colour = INK if row.verdict == ORDINARY else VERMILLION
        label(axes, x.mean(), 1.2, row.verdict.replace(": ", ":\n"), color=colour, size=8, va="top")
    axes.set_xticks((n + 1.5) * np.arange(3) + (n - 1) / 2, FORMATS)


def draw_digits():
    """How many significant bits a number of each format has, at every size that the format holds."""
    formats = "; ".join(f"{name} up to {one.largest:.5g}" for name, one in FORMATS.items())
    alt = f"Significant bits against the size of a number, falling off near the smallest ones. {formats}."
    figure, axes = panel(3.4, alt=alt, title="what each format can hold", x="size of the number", y="significant bits")
    axes.set_xscale("log", base=2)
    for name, number_format in FORMATS.items():
        exponents = np.arange(round(np.log2(number_format.smallest)), number_format.largest_exponent + 1)
        x = np.ldexp(1.0, exponents)
        digits = np.log2(x / number_format.gap(x)) + 1
        axes.plot(x, digits, color=COLOURS[name], linewidth=2)
        axes.vlines(number_format.largest, 0, digits[-1], color=COLOURS[name], linewidth=2)
        place = 1 if number_format.largest_exponent < 100 else 2.0**70
        words = f"{name}: up to {number_format.largest:.5g}"
        label(axes, place, digits[-1] + 0.5, words, color=COLOURS[name], size=9.5, va="bottom")
    axes.set(ylim=(0, 27), yticks=(1, 8, 11, 24))
    axes.set_xticks([2.0**e for e in (-149, -126, -100, -75, -50, -24, 0, 15, 50, 75, 100, 127)])
    return figure


def broken_rows(sizes, *, n=256, d=64, scale=1.0, seed=0):
    """In how many rows of a score matrix the naive softmax is not right, format by format.

    Queries and keys [n, d] are normal with standard deviation `size`, for each of sizes: [k]; their scores
    are scale * Q K^T. Returns name of a format -> (NaN, zero): [k] each, the fraction of rows with a NaN, and
    of those without one whose weights are all 0.
    """
    rng = np.random.default_rng(seed)
    Q, K = rng.normal(size=(n, d)), rng.normal(size=(n, d))
    found = {name: ([], []) for name in FORMATS}
    for size in sizes:
        S = scores(size * Q, size * K, scale)
        for name, number_format in FORMATS.items():
            _, _, weights = naive_softmax_steps(S, number_format)
            nan = np.isnan(weights).any(axis=1)
            found[name][0].append(nan.mean())
            found[name][1].append((~nan & (weights == 0).all(axis=1)).mean())
    return {name: tuple(np.array(kind) for kind in kinds) for name, kinds in found.items()}


def draw_broken_rows(sizes, found, title):
    """What `broken_rows` found: rows with a NaN as lines, rows of zeros as dotted lines."""
    halves = [
        f"{name} from {sizes[nan >= 0.5][0]:g} on" if nan.max() >= 0.5 else f"{name} nowhere"
        for name, (nan, _) in found.items()
    ]
    alt = f"{title}: half of the rows or more are NaN in {', '.join(halves)}, by the size of the entries."
    figure, axes = panel(
        3.0, alt=alt, title=title, x="standard deviation of the entries of Q and K", y="fraction of rows"
    )
    # bfloat16 and float32 all but coincide: the one thick, the other thin on top of it.
    for (name, (nan, zero)), width in zip(found.items(), (2, 5, 1.5), strict=True):
        axes.plot(sizes, nan, color=COLOURS[name], linewidth=width, label=f"{name}: NaN")
        if zero.max() > 0.02:
            axes.plot(sizes, zero, ":", color=COLOURS[name], linewidth=width, label=f"{name}: all 0")
    axes.set_ylim(-0.04, 1.08)
    legend(axes, loc="center right")
    return figure


def sentence_logits():
    """The four scores of the sentence's last query, unscaled: 1, 2, 3, 4."""
    return scores(example.Q[3:], example.K, 1.0)[0]


def explore():
    """The explorer as a widget: one slider a token, and one that shifts all four."""

    def model_of(shift, **logits):
        return run([logit + shift for logit in logits.values()])

    starts = zip(example.TOKENS, sentence_logits(), strict=True)
    logits = {name: slider(name, -20, 20, logit, 0.25) for name, logit in starts}
    first, second, third, fourth = logits
    return Explorer(
        model_of, describe, draw,
        {first: logits[first], second: logits[second]}, {third: logits[third], fourth: logits[fourth]},
        {"shift": slider("shift all", -100, 100, 8, 0.25)},
    )  # fmt: skip
