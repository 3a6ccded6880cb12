"""Of lessons 05 (after its exercise), 06, 08 and the README: a query meets its keys, and the lines that do it light up.

The numbers are those of `online_softmax.run`, the lines those of the reference or the kernel that a lesson is about.
"""

import re
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from course_lib.reference import example, scores

from . import online_softmax
from .explorer import Explorer, slider
from .svg import Page, Panel, cards
from .words import number, vector

KEYS = (0, 1, 2, 0, 1, 2, 3)  # the cat sat, the cat sat down: tokens of the course's sentence; the last one asks
MS = 900  # of a line that is played
# What the lines of a round do, in their order. What a source has no line for happens in the next one that it has.
PHASES = {
    "start": "The query of <b>down</b> has met no key yet.",
    "load": "The keys and values of <b>{names}</b> arrive in fast memory. All others stay where they are.",
    "scores": "<b>{names}</b>: the query's dot product with a key is the key's score.",
    "m": "m is the largest score so far, {m:.3g}.",
    "alpha": "All that was collected is measured from {m_old:.3g} and has to shrink by alpha, "
    "{base}^({m_old:.3g} - {m:.3g}) = {alpha:.3g}.",
    "p": "Each new key's weight is measured from m, so that none is above 1.",
    "l": "l, the sum of all weights, is the old sum times alpha, and the new weights.",
    "rescale": "acc, the weighted sum of the values, shrinks by alpha.",
    "acc": "acc, the weighted sum of the values, has shrunk by alpha, {alpha:.3g}, and takes in the new ones.",
    "end": "acc / l is the answer. Each key was read once, and no score is left.",
}
RANK = {phase: rank for rank, phase in enumerate(PHASES)}
# What the lines shown leave out: comments, masks, most digits, axes, and the care for queries that see no key.
SHORTER = (
    (r" *#.*", ""), (r", mask=.*\)$", ", \u2026)"), (r"(\d\.\d\d)\d{9,}", "\\1\u2026"), (r"\b(shift|m_ref)\b", "m_new"),
    (r'\[(\.\.\.|:), None\]|, input_precision="ieee"|, copy=False|, initial=-np.inf', ""),
)  # fmt: skip
# Keys of a round; what scores are multiplied by; the power that goes with it; file, function, and of each of its lines
# that are shown, the phase and how it begins.
SOURCES = {
    "stream": (
        1, 1, "e", "reference/softmax.py", "online_softmax_update",
        "scores: def online; m: m_new =; alpha: alpha =; p: P =; l: l_new =; acc: acc_new =; end: return",
    ),
    "tiles": (
        2, 1, "e", "reference/tiled.py", "_q_outer",
        "start: Q_i =; start: m_i =; start: l_i =; start: acc =; load: for j in; load: K_j, V_j =; scores: S_ij =; "
        "acc: m_i, l_i, acc =; end: machine.store(O",
    ),
    "kernel": (
        2, np.log2(np.e), "2", "kernels/plain_forward.py", "flash_forward",
        "start: q =; start: m_i = tl; start: l_i = tl; start: acc = tl; load: for start_n; load: k =; load: v =; "
        "scores: scores = tl.dot; scores: scores = tl.where; m: m_new =; alpha: alpha =; p: p =; l: l_i = l_i; "
        "rescale: acc = acc; acc: acc +=; end: o =; end: tl.store(o_ptrs",
    ),
}  # fmt: skip


@cache
def code(name):
    """[(phase, line)] of one of SOURCES, as the file has them but for what SHORTER leaves out."""
    *_, path, function, lines = SOURCES[name]
    text = (Path(example.__file__).parents[1] / path).read_text(encoding="utf-8")
    text = re.search(rf"^def {function}\(.*?(?=\n\n\n)", text, re.DOTALL | re.MULTILINE)[0]
    found = []
    for phase, begins in (line.split(": ") for line in lines.split("; ")):
        (line,) = re.findall(rf"^ *{re.escape(begins)}.*", text, re.MULTILINE)
        for pattern, short in SHORTER:
            line = re.sub(pattern, short, line)
        found.append((phase, line))
    return found


@cache
def moments(name):
    """One of SOURCES, phase by phase: a tuple of namespaces.

    Each has phase; keys: of its round; m, alpha, l, acc, as they are after it; weights: [n], what each key counts in
    acc, or will as it joins it; before: those when the round began; scores: [n], nan where not known; said: a sentence.
    """
    block, unit, base, *_ = SOURCES[name]
    s, places, found = scores(example.Q[3:], example.K[list(KEYS)], 1.0)[0], np.arange(len(KEYS)), []
    steps = online_softmax.run(s, example.V[list(KEYS)], block=block).steps
    here = [phase for phase in PHASES if phase in dict(code(name)) and phase not in ("start", "end")]
    rounds = [(phase, old, new) for old, new in pairwise(steps) for phase in here]
    for phase, old, new in [("start", steps[0], steps[0]), *rounds, ("end", steps[-1], steps[-1])]:
        at = RANK[phase]
        m, alpha, l, acc, seen = (new if at >= RANK[of] else old for of in ("m", "alpha", "l", "acc", "scores"))
        shrunk = new.alpha if phase == "rescale" else 1
        arriving = np.isin(places, new.keys) & (RANK["p"] <= at < RANK["acc"])
        names = ", ".join(example.TOKENS[KEYS[key]] for key in new.keys)
        found.append(SimpleNamespace(
            phase=phase, keys=new.keys, m=unit * m.m, alpha=alpha.alpha, l=l.l, acc=shrunk * acc.acc,
            weights=shrunk * acc.weights + arriving * new.weights, before=old.weights,
            scores=np.where(places <= max(seen.keys, default=-1), unit * s, np.nan),
            said=PHASES[phase].format(names=names, base=base, m_old=unit * old.m, m=unit * m.m, alpha=new.alpha),
        ))  # fmt: skip
    return tuple(found)


def picture(name, now):
    """What each key counts, those of the round shaded, with tokens and scores: a Panel as wide as a phone has room."""
    panel = Panel(
        f"Weights, {SOURCES[name][2]}^(score - m); dashed: before", 330, 210, (-0.5, len(KEYS) - 0.5), (0, 1.1),
        y_ticks=(0, 0.5, 1), grid="y", margins=(44, 2, 6, 44),
    )  # fmt: skip
    for i, (weight, before, score) in enumerate(zip(now.weights, now.before, now.scores, strict=True)):
        if i in now.keys and now.phase != "end":
            panel.rect((i - 0.5, i + 0.5), panel.ends["y"], "ground")
        panel.bar(i, weight, f"bar {'P' if before or now.phase in ('acc', 'end') else 'now'}")
        panel.bar(i, before, "outline ink dashed")
        panel.text(i, 0, example.TOKENS[KEYS[i]], "middle", down=16)
        panel.text(i, 0, "" if np.isnan(score) else f"{score:.3g}", "soft middle", down=34)
    panel.element("text", "soft", "score", x=2, y=panel.bottom + 34)
    return panel


def state(now):
    """The numbers that the loop carries, and at its end the answer: name -> text."""
    out = vector(now.acc / now.l, number) if now.phase == "end" else "\u2013"
    return {
        "m, largest score": number(now.m), "alpha": number(now.alpha), "l, sum of weights": number(now.l),
        "acc, weighted sum": vector(now.acc, number), "acc / l": out,
    }  # fmt: skip


def page(name, step):
    """A moment: the picture, the lines with those that have just run, and the numbers with those that have changed."""
    every, (*_, path, function, _) = moments(name), SOURCES[name]
    now, before, lines = state(every[step]), state(every[max(step - 1, 0)]), code(name)
    indent = [len(line) - len(line.lstrip()) for _, line in lines]
    shown = "".join(
        f'<div style="padding-left:{1.5 + 0.6 * (left - min(indent))}em"'
        f"{' class=lit aria-current=true' * (phase == every[step].phase)}>{escape(line.strip())}</div>"
        for left, (phase, line) in zip(indent, lines, strict=True)
    )
    where = f"<small>{function} in course_lib/{path}, shortened</small>"
    numbers = cards(*((now[of], of, "lit" if now[of] != before[of] else "") for of in now))
    return Page(
        "A query meets seven keys. Bars show what each key counts, beside the lines of code that have just run and the "
        f"numbers that they change: {', '.join(f'{of} {text}' for of, text in now.items())}.",
        (picture(name, every[step]), f'<div class="code">{shown}{where}</div>'), (numbers,), text=every[step].said,
    )  # fmt: skip


def _explorer(name, step):
    """The function that makes the explorer of one of SOURCES, which begins at a step."""

    def explore():
        last = len(moments(name)) - 1
        controls = {"step": slider("step", range(last + 1), step, play=MS)}
        return Explorer(lambda step: page(name, step), controls, ends={"step": lambda step: last})

    return explore


# Of lessons 05, 06 and 08.
explore_stream, explore_tiles, explore_kernel = _explorer("stream", 9), _explorer("tiles", 6), _explorer("kernel", 15)
