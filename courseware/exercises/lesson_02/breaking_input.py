"""Ordinary logits of which the naive softmax makes zeros."""

import numpy as np

from course_lib import reference
from course_lib.reference import formats
from courseware.checks import Checks, Exercise, show, single_finding


def breaking_input(dtype):
    """Finite logits whose true softmax is harmless, but for which the naive formula returns nothing but zeros.

    dtype: "float16", "bfloat16" or "float32". (NumPy has no bfloat16; its numbers fit into a float32.)
    Returns x: an array of n floats, n at least 4, no two of them equal, all numbers that the format holds. Every
        weight of the true softmax of x is at least 0.01. In exp(x) / sum(exp(x)), with each exp, the sum (once,
        at its end) and each quotient rounded to the format, every weight is 0: none is NaN.

    >>> x = breaking_input("float16")
    >>> print(x.ndim, np.isfinite(x).all())
    1 True
    """
    logit = {"float16": 11.0, "bfloat16": 88.5, "float32": 88.5}[dtype]
    return np.array([logit, logit - 0.5, logit - 1, logit - 1.5])


def on_logits(judge):
    """A test that hands (format, the logits that came back) to judge, or says that they are no logits."""

    def test(returned, dtype):
        x = np.asarray(returned) if isinstance(returned, np.ndarray | list | tuple) else np.zeros(())
        if x.dtype.kind not in "fiu" or x.ndim != 1 or len(x) < 4:
            text = f"the answer returned {show(returned)}, not an array of four floats or more, of shape (n,)"
            return single_finding("type", text)
        return judge(formats.FORMATS[dtype], x.astype(np.float64))

    return test


def are_finite_and_differ(fmt, x):
    if not np.isfinite(x).all():
        return single_finding("infinite", f"x holds {show(x[~np.isfinite(x)][0])}, which is no finite logit", show(x))
    logits, times = np.unique(x, return_counts=True)
    if times.max() == 1:
        return None
    logit = logits[times.argmax()]
    text = f"the logit {logit!s} is there {times.max()} times; no two may be equal"
    if fmt.holds(logit) and abs(logit) >= 1:
        text += f"\n(There the numbers of {fmt.name} are {fmt.gap(logit):.10g} apart: closer logits can become equal.)"
    return single_finding("equal", text, show(x))


def are_held(fmt, x):
    held = fmt.holds(x)
    if held.all():
        return None
    logit = float(x[~held][0])
    text = f"{fmt.name} does not hold {logit!r}; it would become {fmt.round(logit):.10g}"
    return single_finding("not held", text, show(x))


def is_harmless(fmt, x):
    weights = reference.stable_softmax(x)
    if weights.min() >= 0.01:
        return None
    why = f"the logit {show(x.min())} lies {x.max() - x.min():.3g} below the largest"
    if len(x) > 100:
        why = f"{len(x)} weights add up to 1, so they cannot all be 0.01"
    elif x.max() - x.min() < np.log(50):  # two such logits alone would both have 0.01
        why += f", and there are {len(x)} logits to share a total of 1"
    text = f"the true softmax has a weight of {weights.min():.3g}, below 0.01: {why}"
    return single_finding("spread", text, show(x))


def is_broken(fmt, x):
    exp_x, total, weights = formats.naive_softmax_steps(x, fmt)
    if np.isnan(weights).any():
        why = "exp itself overflows" if np.isinf(exp_x).any() else "every exp vanishes"
        text = f"in {fmt.name} {why}, and the weights are {show(weights)}: they have to be 0"
        return single_finding("nan weight", text + _meant_for(fmt, x), show(x))
    if (weights > 0).any():
        text = f"in {fmt.name} the sum of exp(x) is {show(total[0])}, and the naive weights are {show(weights)}, not 0"
        text += ": the sum is finite" + _meant_for(fmt, x)
        return single_finding("survives", text, show(x))
    return None


def _meant_for(fmt, x):
    """What to ask where the logits are right for another format."""
    for other in reversed(formats.FORMATS.values()):
        if other.holds(x).all() and not formats.naive_softmax_steps(x, other)[2].any():
            return f".\nIn {other.name} they would be 0: does your code tell the string {fmt.name!r} apart?"
    return ""


EACH_DTYPE = [{"dtype": name} for name in formats.FORMATS]
check = Checks(breaking_input, on_logits(are_finite_and_differ))

check("four logits or more, all finite, no two of them equal", EACH_DTYPE)
check("the format holds each logit", EACH_DTYPE, test=on_logits(are_held))
check("every weight of the true softmax is at least 0.01", EACH_DTYPE, test=on_logits(is_harmless))
check("every weight of the naive softmax is 0 in the format", EACH_DTYPE, test=on_logits(is_broken))

EXERCISE = Exercise(__file__, breaking_input, check, points=2, minutes=10, difficulty="medium")
