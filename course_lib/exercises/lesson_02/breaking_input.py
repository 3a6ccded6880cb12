"""Ordinary logits on which the naive softmax is not finite."""

import numpy as np

from course_lib import reference
from course_lib.grading import Checks, Exercise, show, single_finding
from course_lib.reference import formats


def breaking_input(dtype):
    """Finite logits with a harmless softmax that the naive formula cannot compute in this format.

    dtype: "float16", "bfloat16" or "float32".
    Returns x: [n] floats, n at least 2, all of them numbers that the format holds. Every weight of the true
        softmax of x is at least 0.01; in exp(x) / sum(exp(x)), with each step rounded to the format, at least
        one is not finite.

    >>> x = breaking_input("float16")
    >>> print(x.ndim, np.isfinite(x).all())
    1 True
    """
    logit = {"float16": 12.0, "bfloat16": 89.0, "float32": 89.0}[dtype]
    return np.array([logit, logit])


def on_logits(judge):
    """A test that hands (format, the logits that came back) to judge, or says that they are no logits."""

    def test(returned, dtype):
        try:
            x = np.asarray(returned, dtype=np.float64)
        except (TypeError, ValueError):
            return single_finding("type", f"the answer returned {show(returned)}, not an array of floats")
        if x.ndim != 1 or len(x) < 2:
            return single_finding("type", f"x has shape {x.shape}, not (n,) with n at least 2", show(returned))
        return judge(formats.FORMATS[dtype], x)

    return test


def are_finite(fmt, x):
    if np.isfinite(x).all():
        return None
    return single_finding("infinite", f"x holds {show(x[~np.isfinite(x)][0])}, which is no finite logit", show(x))


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
    return single_finding("spread", f"the true softmax has a weight of {weights.min():.3g}, below 0.01", show(x))


def is_broken(fmt, x):
    exp_x, total, weights = formats.naive_softmax_steps(x, fmt)
    if not np.isfinite(weights).all():
        return None
    if np.isinf(total).all():
        text = f"in {fmt.name} only the sum overflows: the weights are {show(weights)}, wrong and finite"
        return single_finding("zero", text, show(x))
    return single_finding("finite", f"in {fmt.name} the naive weights are {show(weights)}, all finite", show(x))


EACH_DTYPE = [{"dtype": name} for name in formats.FORMATS]
check = Checks(breaking_input, on_logits(are_finite))

check("two logits or more, all finite", EACH_DTYPE)
check("the format holds each logit", EACH_DTYPE, test=on_logits(are_held))
check("every weight of the true softmax is at least 0.01", EACH_DTYPE, test=on_logits(is_harmless))
check("the naive softmax is not finite in the format", EACH_DTYPE, test=on_logits(is_broken))

EXERCISE = Exercise(__file__, breaking_input, check, points=2, minutes=10, difficulty="medium")
