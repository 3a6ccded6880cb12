"""Lesson 03's explorer: softmax step by step, naive, stable and through log-sum-exp, in a chosen dtype.

`run` is the model: every intermediate of a method, computed as `course_lib.reference` computes it.
"""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from course_lib.reference import example, stable_softmax
from course_lib.reference.softmax import log_sum_exp_of_state

from .explorer import Explorer, buttons, menu, slider
from .float_formats import sentence_logits
from .svg import Page, Panel
from .words import significant, table, vector

METHODS = ("naive", "stable", "log-sum-exp")
DTYPES = ("float16", "float32", "float64")
AT_LEAST_FLOAT32, AS_STORED = "float32 or better", "the logits' own dtype"


class Step(NamedTuple):
    """One line of a method."""

    name: str
    formula: str
    value: np.ndarray  # [n] or a number, in the dtype that it was computed in
    place: str  # in the picture: "exponents" that exp is given, "terms" that it returned, "softmax", a "line"


def run(base, *, names=None, spread=1.0, shift=0.0, dtype="float32", method="stable", arithmetic=None, taken=None):
    """Every step of a softmax of the logits spread * base + shift, rounded to dtype.

    base: [n] float64, -inf where masked. names: [n] labels (None: 1 to n). method: one of METHODS.
    arithmetic: AT_LEAST_FLOAT32 (the default; what `reference.stable_softmax` does) or AS_STORED. The softmax
    is rounded to dtype at the end. taken: how many steps have been taken (None: all).

    Returns a namespace: names; logits, [n], in dtype; exact, [n], their softmax in float64; method; steps, all of them;
    seen, the steps taken; last, place -> the last step taken there.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # overflow and 0/0 are the subject
        logits = (spread * base + shift).astype(dtype)
        exact = stable_softmax(logits.astype(np.float64))
        work = logits.dtype if arithmetic == AS_STORED else np.promote_types(logits.dtype, np.float32)
        steps = _steps(method, logits.astype(work), logits.dtype)
    names, seen = names or [str(i + 1) for i in range(len(base))], steps[:taken]
    last = {step.place: step for step in seen}
    return SimpleNamespace(names=names, logits=logits, exact=exact, method=method, steps=steps, seen=seen, last=last)


def _steps(method, x, dtype):
    """Every Step of a method on x, in x's dtype but for the softmax, which is in `dtype`."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    steps = [Step("x", "the logits", x, "exponents")]
    if method == "naive":
        terms, formula = np.exp(x), "exp(x)"
    else:
        m = x.max()
        # Subtracting 0 where nothing is visible, as the library does: -inf - -inf would be NaN.
        exponents = x - (m if m > -np.inf else zero)
        terms, formula = np.exp(exponents), "exp(x - m)"
        steps.append(Step("m", "the largest of x", m, "line"))
        steps.append(Step("x - m", "0 in place of m if that is -inf", exponents, "exponents"))
    l = terms.sum(dtype=x.dtype)
    steps += [Step("terms", formula, terms, "terms"), Step("l", "sum of the terms", l, "line")]
    if method == "naive":
        softmax, formula = terms / l, "terms / l"
    elif method == "stable":
        softmax, formula = terms / (l if l > 0 else one), "terms / l, 1 in place of l if that is 0"
    else:
        lse = log_sum_exp_of_state(m, l)
        exponents = x - (lse if lse > -np.inf else zero)
        softmax, formula = np.exp(exponents), "exp(x - lse)"
        steps.append(Step("lse", "m + log(l)", lse, "line"))
        steps.append(Step("x - lse", "0 in place of lse if that is -inf", exponents, "exponents"))
    return *steps, Step("softmax", formula, softmax.astype(dtype), "softmax")


def _written(x):
    """A number or a vector."""
    # Of float16's numbers near 1000, which are 0.5 apart, four digits would hide one in two.
    return vector(x, _written) if np.ndim(x) else significant(x, 5)


def limits(dtype):
    """The exponents between which exp is finite and not 0 in `dtype`: (lowest, highest), floats."""
    info = np.finfo(dtype)
    # Half of the smallest number is where rounding to 0 begins.
    low = np.log(np.float64(info.smallest_subnormal)) - np.log(2)
    return float(low), float(np.log(np.float64(info.max)))


def page(row, **settings):
    """What exp is given, what it returns, and the softmax, and the steps taken so far as a table.

    A panel stays empty until its step is taken.
    """
    base, names = rows()[row]
    model = run(base, names=names, **settings)
    numbers = {step.name: step.value for step in model.seen}
    found = [f"{name} = {_written(numbers[name])}" for name in ("l", "lse") if name in numbers]
    terms = _bars(f"Terms: what exp returns. {'   '.join(found)}", model, model.last.get("terms"), "Q")
    softmax = _bars("Softmax; outlines: exact, in float64", model, model.last.get("softmax"), "good", model.exact)
    text = f"<b>Step {len(model.seen)} of {len(model.steps)}</b> ({model.method})"
    text += table([(step.name, step.formula, str(step.value.dtype), _written(step.value)) for step in model.seen])
    if len(model.seen) == len(model.steps):
        error = np.abs(model.steps[-1].value.astype(np.float64) - model.exact).max()
        verdict = f"Largest error: {error:.1e}." if np.isfinite(error) else "Not finite."
        text += f"Exact, in float64: {vector(model.exact)}. {verdict}"
    what = "What exp is given, what it returns, and the softmax."
    return Page(what, (_exponents(model), terms, softmax), text=text)


def _exponents(model):
    step, line = model.last["exponents"], model.last.get("line")
    low, high = limits(step.value.dtype)
    title = f"{step.name}: what exp is given. {step.value.dtype}: inf above {high:.1f}, 0 below {low:.1f}"
    panel = _bars(title, model, step, ["Q" if low <= value <= high else "bad" for value in step.value])
    if line is not None and line.name in ("m", "lse") and step.name == "x":
        panel.level(line.value if np.isfinite(line.value) else 0, "K", tip=f"{line.name} = {_written(line.value)}")
    panel.level(0, "soft thin")
    for edge, what in ((low, "0 below"), (high, "inf above")):
        if panel.ends["y"][0] <= edge <= panel.ends["y"][1]:
            panel.level(edge, "bad dashed", tip=f"exp is {what} {edge:.1f}")
    return panel


def _bars(title, model, step, css, exact=()):
    """Finite values of a step as bars; the others, and what is exactly 0, as words. No bar if step is None."""
    heights = np.zeros(0) if step is None else np.where(np.isfinite(step.value), step.value, 0).astype(np.float64)
    low, high = min([0, *heights]), max([0, *heights, *exact]) or 1
    room = 0.12 * (high - low)
    ticks = [(tick, f"{tick:.3g}".replace("e+0", "e").replace("e+", "e")) for tick in (low, (low + high) / 2, high)]
    panel = Panel(
        title, 300, 230, (-0.7, len(model.names) - 0.3), (low - room * (low < 0), high + room), grid="y",
        x_ticks=list(enumerate(model.names)), y_ticks=ticks, margins=(60, 4, 10, 24),
    )  # fmt: skip
    for i, height in enumerate(heights):
        tip = f"{step.name} of {model.names[i]}: {_written(step.value[i])}"
        panel.bar(i, height, f"bar {css if isinstance(css, str) else css[i]}", tip=tip)
        if height == 0:
            word = str(step.value[i]).removesuffix(".0").replace("nan", "NaN")
            small, up = (" small", 11 * (i % 2)) if len(heights) > 8 else ("", 0)  # neighbours at two heights
            panel.text(i, 0, word, f"middle {'ink' if word == '0' else 'bad'}{small}", down=-3 - up)
    for i, height in enumerate(exact):
        panel.bar(i, height, "outline ink dashed")
    return panel


def rows():
    """The rows one can choose from: name -> (base logits [n], names [n])."""
    sentence = sentence_logits()
    hidden = np.array([False, True, False, True])
    return {
        "the sentence": (sentence, example.TOKENS),
        "two of its tokens masked": (np.where(hidden, -np.inf, sentence), example.TOKENS),
        "all of it masked": (np.full(4, -np.inf), example.TOKENS),
        "12 random logits": (np.random.default_rng(9).normal(0, 2, 12).round(1), None),
    }


def explore():
    """The explorer: the row, its spread and shift, dtype, arithmetic, method, step."""
    controls = {
        "row": menu("logits", list(rows())), "dtype": menu("stored in", DTYPES, "float32"),
        "spread": slider("times", range(1, 41)), "shift": slider("plus", range(-1000, 1001, 10), 90),
        "method": buttons("method", METHODS, "stable"),
        "arithmetic": menu("computed in", (AT_LEAST_FLOAT32, AS_STORED)),
        "taken": slider("step", range(1, 9), 6, play=True),
    }  # fmt: skip
    ends = {"taken": lambda row, **settings: len(run(rows()[row][0], **settings).steps)}
    # What the lesson asks for: whole methods at many settings, and every step at those of the start.
    whole = {
        "row": rows(), "dtype": DTYPES[:2], "spread": (1, 10), "shift": (-130, *range(0, 101, 10), 1000),
        "method": METHODS, "arithmetic": (AT_LEAST_FLOAT32, AS_STORED), "taken": (8,),
    }  # fmt: skip
    stepwise = {"row": rows(), "method": METHODS, "taken": range(1, 9)}
    return Explorer(page, controls, ends=ends, written=[whole, stepwise])
