"""Lesson 03's explorer: softmax step by step, naive, stable and through log-sum-exp, in a chosen dtype.

`run` is the model: every intermediate of a method, computed as `course_lib.reference` computes it. `draw`
shows the steps taken so far, `describe` says them in numbers. `explore` is the widget. `draw_shifts`
is the lesson's other figure; `count_passes` counts the bytes of a softmax of several passes.
"""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from course_lib.machine import Machine
from course_lib.reference import example, stable_softmax
from course_lib.reference.softmax import log_sum_exp_of_state

from .drawing import curves, names_below
from .figures import BLUE, GREEN, GREY, INK, ORANGE, VERMILLION, label, legend, panel, panels, tidy
from .float_formats import sentence_logits
from .shell import Explorer, buttons, menu, slider
from .words import plain, significant, table, vector

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
    is rounded to dtype at the end. taken: how many steps have been taken (None: all), clamped to what there is.

    Returns a namespace: names; logits, [n], in dtype; exact, [n], their softmax in float64; method; steps, all of them;
    taken; seen, the steps taken; last, place -> the last step taken there.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # overflow and 0/0 are the subject
        logits = (spread * base + shift).astype(dtype)
        exact = stable_softmax(logits.astype(np.float64))
        work = logits.dtype if arithmetic == AS_STORED else np.promote_types(logits.dtype, np.float32)
        steps = _steps(method, logits.astype(work), logits.dtype)
    taken = len(steps) if taken is None else int(np.clip(taken, 1, len(steps)))
    names, seen = names or [str(i + 1) for i in range(len(base))], steps[:taken]
    return SimpleNamespace(
        names=names, logits=logits, exact=exact, method=method, steps=steps, taken=taken, seen=seen,
        last={step.place: step for step in seen},
    )  # fmt: skip


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


def describe(model):
    """The steps taken so far as an HTML table: every number is the model's, to five digits."""
    text = f"<b>Step {model.taken} of {len(model.steps)}</b> ({model.method})"
    text += table([(step.name, step.formula, str(step.value.dtype), _numbers(step.value)) for step in model.seen])
    if model.taken == len(model.steps):
        error = np.abs(model.steps[-1].value.astype(np.float64) - model.exact).max()
        verdict = f"Largest error: {error:.1e}." if np.isfinite(error) else "Not finite."
        text += f"Exact, in float64: {vector(model.exact)}. {verdict}"
    return text


def _numbers(value):
    return vector(value, _written) if np.ndim(value) else _written(value)


def _written(x):
    return significant(x, 5)  # of float16's numbers near 1000, which are 0.5 apart, four digits would hide one in two


def limits(dtype):
    """The exponents between which exp is finite and not 0 in `dtype`: (lowest, highest), floats."""
    info = np.finfo(dtype)
    # Half of the smallest number is where rounding to 0 begins.
    low = np.log(np.float64(info.smallest_subnormal)) - np.log(2)
    return float(low), float(np.log(np.float64(info.max)))


def draw(model):
    """Three panels: what exp is given, what it returns, the softmax; a panel stays empty until it is reached."""
    alt = f"What exp is given, what it returns, and the softmax. {plain(describe(model))}"
    figure, (exponents, terms, softmax) = panels(3.4, 1, 1, 1, left=0.055, above=0.61, alt=alt)
    _draw_exponents(exponents, model)

    numbers = {step.name: step.value for step in model.seen}
    found = [f"{name} = {_written(numbers[name])}" for name in ("l", "lse") if name in numbers]
    tidy(terms, title="terms: what exp returns\n" + "   ".join(found))
    _draw_values(terms, model.last.get("terms"), BLUE)

    tidy(softmax, title="softmax\ndashed: exact, in float64")
    outline = {"facecolor": "none", "edgecolor": INK, "linestyle": "--", "zorder": 3}
    softmax.bar(range(len(model.exact)), model.exact, width=0.7, **outline)
    _draw_values(softmax, model.last.get("softmax"), GREEN)
    for axes in (terms, softmax):
        axes.set_ylim(0, 1.12 * axes.dataLim.ymax if 0 < axes.dataLim.ymax < np.inf else 1.1)
    for axes in (exponents, terms, softmax):
        names_below(axes, model.names)
        axes.locator_params(axis="y", nbins=4)
    return figure


def _draw_exponents(axes, model):
    step, line = model.last["exponents"], model.last.get("line")
    low, high = limits(step.value.dtype)
    tidy(axes, title=f"{step.name}: what exp is given\n{step.value.dtype}: inf above {high:.1f}, 0 below {low:.1f}")
    _draw_values(axes, step, [BLUE if low <= value <= high else VERMILLION for value in step.value])
    if line is not None and line.name in ("m", "lse") and step.name == "x":
        axes.axhline(line.value if np.isfinite(line.value) else 0, color=ORANGE, linewidth=2)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.use_sticky_edges = False  # room for words where a bar would end at 0
    axes.margins(y=0.12)
    view = axes.get_ylim()
    for edge in (low, high):
        axes.axhline(edge, color=VERMILLION, linewidth=1.2, linestyle="--")
    axes.set_ylim(view)  # which holds an edge only if the exponents come near it


def _draw_values(axes, step, colour):
    """Finite values of a step as bars; the others, and what is exactly 0, as words. Nothing if step is None."""
    if step is None:
        return
    heights = np.where(np.isfinite(step.value), step.value, 0).astype(np.float64)
    axes.bar(range(len(heights)), heights, width=0.7, color=colour)
    for i in np.flatnonzero(heights == 0):
        word = str(step.value[i]).removesuffix(".0").replace("nan", "NaN")
        upright = {"rotation": 90} if len(heights) > 8 else {}
        label(axes, i, 0, f" {word}", va="bottom", color=VERMILLION if word != "0" else INK, **upright)


def softmax_shifted_by(x, c):
    """exp(x - c) / sum(exp(x - c)), every step in x's dtype. x: [n]; c: a number. Returns [n], x's dtype."""
    with np.errstate(over="ignore", invalid="ignore"):
        terms = np.exp(x - x.dtype.type(c))
        return terms / terms.sum(dtype=x.dtype)


def shift_errors(x, shifts):
    """Largest absolute error of softmax_shifted_by(x, c) for each c, against float64; NaN if not finite."""
    exact = stable_softmax(x.astype(np.float64))
    return np.array([np.abs(softmax_shifted_by(x, c).astype(np.float64) - exact).max() for c in shifts])


def draw_shifts(rows, shifts):
    """The error of the softmax against the constant subtracted, one line for each row of logits.

    rows: name -> x [n]; shifts: [k]. A line ends where the result is not finite. The triangle is the row's maximum.
    """
    title = "any shift gives the same softmax, until exp runs out of range"
    found = {name: shift_errors(x, shifts) for name, x in rows.items()}
    ranges = [
        f"{name}, finite from {shifts[finite].min():g} to {shifts[finite].max():g}"
        for name, errors in found.items()
        for finite in [np.isfinite(errors)]
    ]
    alt = f"The largest error of a weight against the constant subtracted: {'; '.join(ranges)}."
    figure, axes = panel(
        3.2, left=0.085, alt=alt, title=title, x="constant c subtracted", y="largest error of a weight"
    )
    axes.set_yscale("log")
    styles = (BLUE, "-"), (VERMILLION, "--"), (GREEN, "-.")
    curves(axes, shifts, found, styles, linewidth=1.8)
    for x, (colour, _) in zip(rows.values(), styles, strict=False):
        axes.plot(float(x.max()), shift_errors(x, [x.max()])[0], marker="v", markersize=9, color=colour)
    legend(axes, loc="center right")
    return figure


def count_passes(algorithm, x, tile, sram_bytes):
    """Run a softmax of one row on the memory machine, tile by tile, and count.

    algorithm(machine, X, P, tiles) stores the softmax of X in P, both [n] in HBM; tiles are the (start, stop)
    pairs of its tiles of at most `tile` entries. x: [n]. Returns (softmax [n], the machine's Report).
    """
    machine, p = Machine(sram_bytes), np.empty_like(x)
    X, P = machine.hbm(x, "x"), machine.hbm(p, "softmax")
    tiles = [(start, min(start + tile, len(x))) for start in range(0, len(x), tile)]
    algorithm(machine, X, P, tiles)
    return p, machine.report()


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
    """The explorer as a widget: the row, its spread and shift, dtype, arithmetic, method, step."""
    choices = rows()

    def model_of(row, **chosen):
        base, names = choices[row]
        return run(base, names=names, **chosen)

    arithmetics = (AT_LEAST_FLOAT32, AS_STORED)
    return Explorer(
        model_of, describe, draw,
        {"row": menu("logits", choices, "the sentence"), "dtype": menu("stored in", DTYPES, "float32")},
        {"spread": slider("times", 1, 40, 1), "shift": slider("plus", -1000, 1000, 90, 10)},
        {"method": buttons("method", METHODS, "stable")},
        {"taken": slider("step", 1, 6, 6), "arithmetic": menu("computed in", arithmetics, AT_LEAST_FLOAT32)},
        ends={"taken": lambda **chosen: len(model_of(**chosen).steps)},
    )  # fmt: skip
