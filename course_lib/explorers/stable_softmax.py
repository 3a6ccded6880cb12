"""Lesson 03's explorer: softmax step by step, naive, stable and through log-sum-exp, in a chosen dtype.

`run` is the model: every intermediate of a method, computed as `course_lib.reference` computes it. `draw`
shows the steps taken so far, `describe` says them in numbers. `explore` is the widget. `draw_shifts`,
`draw_passes` and `draw_sums` are the lesson's other figures; `count_passes` counts what the second one shows.
"""

from dataclasses import dataclass

import numpy as np

from course_lib.machine import Machine
from course_lib.reference import example, scores, stable_softmax
from course_lib.reference.softmax import log_sum_exp_of_state

from .figures import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, VERMILLION, Picture, png, tidy

METHODS = ("naive", "stable", "log-sum-exp")
DTYPES = ("float16", "float32", "float64")
AT_LEAST_FLOAT32, AS_STORED = "float32 or better", "the logits' own dtype"


@dataclass(frozen=True)
class Step:
    """One line of a method. value: [n] or a number, in the dtype that it was computed in.

    place: what it is in the picture: "exponents" that exp is given, "terms" that it returned, "softmax", or
    "line" for a number.
    """

    name: str
    formula: str
    value: np.ndarray
    place: str


@dataclass(frozen=True)
class Run:
    """A method's steps on one row of logits, of which `taken` have been taken.

    logits: [n], in the dtype they are stored in. exact: [n], the softmax of these logits in float64.
    """

    names: tuple
    logits: np.ndarray
    method: str
    steps: tuple
    taken: int
    exact: np.ndarray

    @property
    def seen(self):
        return self.steps[: self.taken]

    def last(self, place):
        """The last step taken at a place of the picture, or None."""
        return next((step for step in reversed(self.seen) if step.place == place), None)


def run(base, *, names=None, spread=1.0, shift=0.0, dtype="float32", method="stable", arithmetic=None, taken=None):
    """Every step of a softmax of the logits spread * base + shift, rounded to dtype.

    base: [n] float64, -inf where masked. names: [n] labels (None: 1 to n). method: one of METHODS.
    arithmetic: AT_LEAST_FLOAT32 (the default; what `reference.stable_softmax` does) or AS_STORED. The softmax
    is rounded to dtype at the end. taken: how many steps have been taken (None: all), clamped to what there
    is. Returns a Run.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # overflow and 0/0 are the subject
        logits = (spread * base + shift).astype(dtype)
        exact = stable_softmax(logits.astype(np.float64))
        work = logits.dtype if arithmetic == AS_STORED else np.promote_types(logits.dtype, np.float32)
        steps = _STEPS[method](logits.astype(work), logits.dtype)
    taken = len(steps) if taken is None else int(np.clip(taken, 1, len(steps)))
    names = tuple(names) if names is not None else tuple(str(i + 1) for i in range(len(base)))
    return Run(names, logits, method, steps, taken, exact)


def _naive_steps(x, dtype):
    terms = np.exp(x)
    l = terms.sum(dtype=x.dtype)
    return (
        Step("x", "the logits", x, "exponents"),
        Step("terms", "exp(x)", terms, "terms"),
        Step("l", "sum of the terms", l, "line"),
        Step("softmax", "terms / l", (terms / l).astype(dtype), "softmax"),
    )


def _first_stable_steps(x):
    m = x.max()
    # Subtracting 0 where nothing is visible, as the library does: -inf - -inf would be NaN.
    exponents = x - (m if m > -np.inf else x.dtype.type(0))
    terms = np.exp(exponents)
    return (
        Step("x", "the logits", x, "exponents"),
        Step("m", "the largest of x", m, "line"),
        Step("x - m", "0 in place of m if that is -inf", exponents, "exponents"),
        Step("terms", "exp(x - m)", terms, "terms"),
        Step("l", "sum of the terms", terms.sum(dtype=x.dtype), "line"),
    )


def _stable_steps(x, dtype):
    *steps, terms, l = _first_stable_steps(x)
    divisor = l.value if l.value > 0 else x.dtype.type(1)
    softmax = (terms.value / divisor).astype(dtype)
    return (*steps, terms, l, Step("softmax", "terms / l, 1 in place of l if that is 0", softmax, "softmax"))


def _lse_steps(x, dtype):
    steps = _first_stable_steps(x)
    lse = log_sum_exp_of_state(steps[1].value, steps[-1].value)
    exponents = x - (lse if lse > -np.inf else x.dtype.type(0))
    return (
        *steps,
        Step("lse", "m + log(l)", lse, "line"),
        Step("x - lse", "0 in place of lse if that is -inf", exponents, "exponents"),
        Step("softmax", "exp(x - lse)", np.exp(exponents).astype(dtype), "softmax"),
    )


_STEPS = dict(zip(METHODS, (_naive_steps, _stable_steps, _lse_steps), strict=True))


def describe(model):
    """The steps taken so far as an HTML table: every number is the model's, to four digits."""
    rows = "".join(
        f"<tr><td><b>{step.name}</b></td><td>&emsp;{step.formula}</td><td>&emsp;{step.value.dtype}&emsp;</td>"
        f"<td>{_numbers(step.value)}</td></tr>"
        for step in model.seen
    )
    text = f"<b>Step {model.taken} of {len(model.steps)}</b> ({model.method})<table>{rows}</table>"
    if model.taken == len(model.steps):
        text += f"Exact, in float64: {_numbers(model.exact)}. {_verdict(model)}"
    return text


def _verdict(model):
    error = _error(model)
    return "Not finite." if not np.isfinite(error) else f"Largest error: {error:.1e}."


def _error(model):
    return float(np.abs(model.steps[-1].value.astype(np.float64) - model.exact).max())


def _numbers(value):
    if np.ndim(value):
        return "(" + ", ".join(map(_numbers, value)) + ")"
    return f"{float(value):.4g}"


def draw(model):
    """Three panels: what exp is given, what it returns, the softmax; a panel stays empty until it is reached."""
    figure = Picture(3.4)
    panels = figure.panels(1, 1, 1)
    figure.subplots_adjust(left=0.055, right=0.985, bottom=0.15, top=0.82, wspace=0.24)
    for axes, place in zip(panels, ("exponents", "terms", "softmax"), strict=True):
        step = model.last(place)
        _PANELS[place](axes, model, step)
        axes.set_xticks(range(len(model.names)), model.names)
        axes.set_xlim(-0.7, len(model.names) - 0.3)
    return figure


def limits(dtype):
    """The exponents between which exp is finite and not 0 in `dtype`: (lowest, highest), floats."""
    info = np.finfo(dtype)
    # Half of the smallest number is where rounding to 0 begins.
    low = np.log(np.float64(info.smallest_subnormal)) - np.log(2)
    return float(low), float(np.log(np.float64(info.max)))


def _bars(axes, values, colour):
    """Finite values as bars; the others, and what is exactly 0, as words."""
    finite = np.isfinite(values)
    heights = np.where(finite, values, 0).astype(np.float64)
    axes.bars(range(len(values)), heights, facecolors=colour)
    for i in np.flatnonzero(heights == 0):
        word = "NaN" if np.isnan(values[i]) else f"{values[i]:g}"
        axes.text(i, 0, word, ha="center", va="bottom", fontsize=9, color=INK if finite[i] else VERMILLION)


def _draw_exponents(axes, model, step):
    low, high = limits(step.value.dtype)
    title = f"{step.name}: what exp is given"
    tidy(axes, title=f"{title}\n{step.value.dtype}: inf above {high:.1f}, 0 below {low:.1f}")
    values = step.value
    inside = (values <= high) & (values >= low)
    _bars(axes, values, [BLUE if ok else VERMILLION for ok in inside])
    line = model.last("line")
    shown = [value for value in values if np.isfinite(value)] + [0.0]
    if line is not None and line.name in ("m", "lse") and step.name == "x":
        axes.axhline(line.value if np.isfinite(line.value) else 0, color=ORANGE, linewidth=2)
        shown += [line.value] if np.isfinite(line.value) else []
    bottom, top = float(min(shown)), float(max(shown))
    margin = 0.12 * (top - bottom) or 1.0
    axes.set_ylim(bottom - margin, top + margin)
    edges = [edge for edge in (low, high) if bottom - margin < edge < top + margin]
    axes.hlines(edges, -0.7, len(values) - 0.3, color=VERMILLION, linewidth=1.2, linestyle="--")
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.locator_params(axis="y", nbins=4)


def _draw_terms(axes, model, step):
    numbers = {each.name: each.value for each in model.seen}
    found = "".join(f"   {name} = {_numbers(numbers[name])}" for name in ("l", "lse") if name in numbers)
    tidy(axes, title=f"terms: what exp returns\n{found.strip()}")
    axes.set_ylim(0, 1.1)
    if step is not None:
        _bars(axes, step.value, BLUE)
        finite = step.value[np.isfinite(step.value)].astype(np.float64)
        axes.set_ylim(0, 1.1 * (finite.max(initial=0.0) or 1.0))
    axes.locator_params(axis="y", nbins=4)


def _draw_softmax(axes, model, step):
    tidy(axes, title="softmax\ndashed: exact, in float64")
    outlines = {"facecolors": "none", "edgecolors": INK, "linestyles": "--", "linewidths": 1.1}
    axes.bars(range(len(model.exact)), model.exact, **outlines)
    top = float(model.exact.max())
    if step is not None:
        _bars(axes, step.value, GREEN)
        finite = step.value[np.isfinite(step.value)].astype(np.float64)
        top = max(top, finite.max(initial=0.0))
    axes.set_ylim(0, 1.15 * (top or 1.0))
    axes.locator_params(axis="y", nbins=4)


_PANELS = {"exponents": _draw_exponents, "terms": _draw_terms, "softmax": _draw_softmax}


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

    rows: name -> x [n]; shifts: [k]. A line ends where the result is not finite. The triangle is the row's
    maximum. Returns a figure.
    """
    figure = Picture(3.2)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.085, right=0.985, bottom=0.17, top=0.89)
    tidy(axes, title="any shift gives the same softmax, until exp runs out of range", x="constant c subtracted")
    axes.set_ylabel("largest error of a weight", fontsize=9.5, color=INK)
    axes.set_yscale("log")
    styles = ((BLUE, "-"), (VERMILLION, "--"), (GREEN, "-."))
    for (name, x), (colour, style) in zip(rows.items(), styles, strict=False):
        errors = shift_errors(x, shifts)
        axes.plot(shifts, errors, color=colour, linestyle=style, linewidth=1.8, label=name)
        at_max = shift_errors(x, [x.max()])[0]
        axes.plot(float(x.max()), at_max, marker="v", markersize=9, color=colour)
    axes.legend(frameon=False, fontsize=9, loc="center right")
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


def draw_passes(traffic, row_bytes):
    """Bytes read and written by each version, in rows' worth. traffic: name -> (read_bytes, write_bytes)."""
    figure = Picture(3.0)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.3, right=0.985, bottom=0.18, top=0.89)
    tidy(axes, title="bytes moved between HBM and SRAM", x="bytes moved, over the bytes of x")
    for i, (read_bytes, write_bytes) in enumerate(traffic.values()):
        read, write = read_bytes / row_bytes, write_bytes / row_bytes
        axes.barh(i, read, color=BLUE, height=0.6, label="read" if i == 0 else None)
        axes.barh(i, write, left=read, color=ORANGE, height=0.6, label="written" if i == 0 else None)
        axes.text(read + write + 0.08, i, f"{read + write:.3g}", va="center", fontsize=9.5, color=INK)
    axes.set_yticks(range(len(traffic)), list(traffic))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(sum(pair) for pair in traffic.values()) / row_bytes)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def draw_sums(n, sums):
    """What a running sum of ones has come to against the ones added. n: [k]; sums: name -> [k]. A figure."""
    figure = Picture(3.0)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.085, right=0.985, bottom=0.18, top=0.89)
    tidy(axes, title="a sum of ones, added one after another", x="ones added", y="the sum")
    styles = ((VERMILLION, "-"), (PURPLE, "-"), (BLUE, "--"))
    for (name, values), (colour, style) in zip(sums.items(), styles, strict=False):
        axes.plot(n, values, color=colour, linestyle=style, linewidth=1.8, label=name)
    axes.legend(frameon=False, fontsize=9)
    return figure


def rows():
    """The rows one can choose from: name -> (base logits [n], names [n])."""
    sentence = scores(example.Q[3:], example.K, 1.0)[0]
    hidden = np.array([False, True, False, True])
    return {
        "the sentence": (sentence, example.TOKENS),
        "two of its tokens masked": (np.where(hidden, -np.inf, sentence), example.TOKENS),
        "all of it masked": (np.full(4, -np.inf), example.TOKENS),
        "12 random logits": (np.random.default_rng(9).normal(0, 2, 12).round(1), None),
    }


def explore():
    """The explorer as an ipywidgets box: the row, its spread and shift, dtype, arithmetic, method, step."""
    import ipywidgets as widgets

    choices = rows()
    wide = {"description_width": "90px"}
    row = widgets.Dropdown(options=list(choices), description="logits", style=wide)
    dtype = widgets.Dropdown(options=DTYPES, value="float32", description="stored in", style=wide)
    spread = widgets.IntSlider(1, 1, 40, description="times", style=wide)
    shift = widgets.IntSlider(0, -1000, 1000, step=10, description="plus", style=wide)
    arithmetic = widgets.Dropdown(options=(AT_LEAST_FLOAT32, AS_STORED), description="computed in", style=wide)
    method = widgets.ToggleButtons(
        options=METHODS, value="naive", description="method", style=wide | {"button_width": "auto"}
    )
    taken = widgets.IntSlider(4, 1, 4, description="step", style=wide)
    text, image = widgets.HTML(), widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))

    def redraw(_change=None):
        base, names = choices[row.value]
        model = run(
            base,
            names=names,
            spread=spread.value,
            shift=shift.value,
            dtype=dtype.value,
            method=method.value,
            arithmetic=arithmetic.value,
            taken=taken.value,
        )
        taken.max = len(model.steps)  # lowering a slider's max clamps its value
        text.value = describe(model)
        image.value = png(draw(model))

    for control in (row, dtype, spread, shift, arithmetic, method, taken):
        control.observe(redraw, names="value")
    redraw()
    return widgets.VBox(
        [widgets.HBox([row, dtype]), widgets.HBox([spread, shift]), method, widgets.HBox([taken, arithmetic]),
         text, image]
    )  # fmt: skip
