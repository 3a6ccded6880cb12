"""Lesson 02's explorer: logits on the number line of each format, and the softmax that comes out.

`run` is the model: one set of logits in each format, each step as `course_lib.reference.formats` rounds it.
"""

from types import SimpleNamespace

import numpy as np

from course_lib.reference import example, scores, stable_softmax
from course_lib.reference.formats import FORMATS, largest_exp_input, naive_softmax_steps, smallest_exp_input

from .explorer import Explorer, slider
from .svg import Page, Panel
from .words import significant, vector

LINE_END = 130  # of the number lines, in logits either way; the controls reach 120
NAN_OVERFLOW = "NaN: exp overflows"
NAN_UNDERFLOW = "NaN: every exp is 0"
ZEROS = "all 0: sum overflows"
LOST = "some weights are 0"
DIGITS = "some digits lost"
ORDINARY = "all in range"
# What exp makes of the logits between two borders -> how it is drawn.
ZONES = {"0": "skipped", "digits lost": "K pale", "safe": "good pale", "inf": "bad pale"}
DOTS = ("grey", "K", "Q", "bad")  # logits in these


def run(logits):
    """The naive softmax of the sentence's logits, [n], rounded to each of the three formats first, as a namespace.

    It has logits: [n], before rounding; true: [n], their softmax in float64; rows: one a format. A row has
    number_format; logits, exp_x, weights: [n], numbers of the format; total: their sum; verdict; zones: three logits,
    at the borders between where exp is 0, has lost digits (is subnormal), is safe, is infinite: the first that is not
    0, the first with all its digits, the last that is finite.
    """
    model = SimpleNamespace(logits=np.asarray(logits, dtype=np.float64), rows=[])
    model.true = stable_softmax(model.logits)
    for number_format in FORMATS.values():
        row = SimpleNamespace(number_format=number_format, logits=number_format.round(model.logits))
        row.exp_x, (row.total,), row.weights = naive_softmax_steps(model.logits, number_format)
        begins = [smallest_exp_input(number_format, least) for least in (None, number_format.smallest_normal)]
        row.zones = *begins, largest_exp_input(number_format)
        verdicts = {
            NAN_OVERFLOW: np.isinf(row.exp_x).any(), NAN_UNDERFLOW: row.total == 0, ZEROS: np.isinf(row.total),
            LOST: (row.weights == 0).any(), DIGITS: (row.exp_x < number_format.smallest_normal).any(), ORDINARY: True,
        }  # fmt: skip
        row.verdict = next(verdict for verdict, applies in verdicts.items() if applies)
        model.rows.append(row)
    return model


def page(shift, **logits):
    """Left, the logits plus `shift` on each format's number line; right, the weights that each format returns."""
    model = run([logit + shift for logit in logits.values()])
    text = [f"True softmax of {vector(model.logits)}: {vector(model.true)}."]
    for row in model.rows:
        steps = f"exp {vector(row.exp_x)}, sum {significant(row.total)}, weights {vector(row.weights)}"
        text.append(f"<b>{row.number_format.name}</b>: {steps}. <b>{row.verdict}.</b>")
    what = "Logits on the number line of each format, and the weights that it returns."
    return Page(what, (_lines(model), _weights(model)), text="<br>".join(text))


def _lines(model):
    panel = Panel(
        "What exp makes of a logit, and the logits (dots)", 560, 280, (-LINE_END, LINE_END), (2.7, -1.5), grid="",
        x_ticks=range(-120, 121, 40), y_ticks=list(enumerate(FORMATS)), x_label="logit", margins=(60, 16, 10, 36),
    )  # fmt: skip
    for y, row in enumerate(model.rows):
        edges = [-LINE_END, *row.zones, LINE_END]
        for low, high, css, word in zip(edges, edges[1:], ZONES.values(), ZONES, strict=False):
            tip = f"{row.number_format.name}, logits from {low:.2f} to {high:.2f}: {word}"
            panel.rect((low, high), (y - 0.29, y + 0.29), css, tip=tip)
            panel.text((low + high) / 2, y + 0.19, word if high - low > 8 * len(word) else "", "middle small")
        for place, css in zip(row.zones, ("end small", "small", "small"), strict=True):
            panel.text(place, y + 0.29, f"{place:.2f}", css, down=11)
        for i, (logit, exp_x) in enumerate(zip(row.logits, row.exp_x, strict=True)):
            # In steps, so that logits which lie close do not cover each other.
            tip = f"{example.TOKENS[i]} in {row.number_format.name}: {significant(logit)}, exp {significant(exp_x)}"
            exceeded = exp_x > 0, exp_x >= row.number_format.smallest_normal, exp_x == np.inf
            panel.dot(logit, y + 0.02 - 0.08 * i, DOTS[sum(exceeded)], 4, tip=tip)
    for i, logit in enumerate(model.logits):
        panel.line([(logit, -0.12), (logit, -0.44 - 0.26 * i)], "soft thin")
    for i, logit in enumerate(model.logits):
        panel.text(logit, -0.5 - 0.26 * i, example.TOKENS[i], "halo middle small")
    return panel


def _weights(model):
    n = len(model.logits)
    middles = [(n + 1.5) * i + (n - 1) / 2 for i in range(3)]
    panel = Panel(
        "Weights (outlines: the true softmax)", 364, 280, (-1, 3 * n + 3), (0, 1.3), y_ticks=(0, 0.5, 1), grid="y",
        x_ticks=list(zip(middles, FORMATS, strict=True)),
    )  # fmt: skip
    for row, middle in zip(model.rows, middles, strict=True):
        for i, (weight, true) in enumerate(zip(row.weights, model.true, strict=True)):
            x = middle - (n - 1) / 2 + i
            tip = f"{example.TOKENS[i]} in {row.number_format.name}: {significant(weight)}, truly {significant(true)}"
            panel.bar(x, 0 if np.isnan(weight) else weight, "bar Q", width=0.8, tip=tip)
            panel.bar(x, true, "outline ink", width=0.8)
            if not weight > 0:
                # Neighbours at two heights: side by side there is no room for "NaN".
                word, up = ("NaN", 11 * (i % 2)) if np.isnan(weight) else ("0", 0)
                panel.text(x, true, word, "bad middle small", down=-3 - up)
        css = "" if row.verdict == ORDINARY else "bad"
        for line, words in enumerate(row.verdict.split(": ")):
            panel.text(middle, 1.27, words, f"{css} middle small", down=6 + 12 * line)
    return panel


def sentence_logits():
    """The four scores of the sentence's last query, unscaled: 1, 2, 3, 4."""
    return scores(example.Q[3:], example.K, 1.0)[0]


def explore():
    """The explorer: one slider a token, and one that shifts all four."""
    start, values = dict(zip(example.TOKENS, sentence_logits().tolist(), strict=True)), np.arange(-20, 20.25, 0.25)
    controls = {name: slider(name, values.tolist(), logit) for name, logit in start.items()}
    controls["shift"] = slider("shift all", np.arange(-100, 100.25, 0.25).tolist(), 8, play=True)
    written = {name: sorted({-20, start[name], 20}) for name in (example.TOKENS[0], example.TOKENS[-1])}
    shifts = sorted({*range(-100, 101, 10), *range(-24, 13), *np.arange(84, 89, 0.25).tolist()})
    return Explorer(page, controls, written=written | {"shift": shifts})
