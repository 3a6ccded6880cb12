"""Ordinary logits on which the naive softmax is not finite."""

import numpy as np

from course_lib import reference
from course_lib.grading.diagnosis import show
from course_lib.grading.exercise import Checks, Exercise, Slip, single_finding
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

    def test(answer, dtype):
        returned = answer(dtype)
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


LOGITS = '{"float16": 12.0, "bfloat16": 89.0, "float32": 89.0}'
EACH_DTYPE = tuple({"dtype": name} for name in formats.FORMATS)
check = Checks(breaking_input, on_logits(are_finite))

check("two logits or more, all finite", [*EACH_DTYPE]).catches(
    Slip("a logit is infinite", {"np.array([logit, logit])": "np.array([np.inf, logit])"})
)
check("the format holds each logit", [*EACH_DTYPE], test=on_logits(are_held)).catches(
    Slip(
        "the logit is just above the logarithm of the largest number",
        {LOGITS: '{"float16": 11.09375, "bfloat16": 88.73, "float32": 89.0}'},
    ),
    Slip("the logit is beyond float16 itself", {'"float16": 12.0': '"float16": 1e5'}),
)
check("every weight of the true softmax is at least 0.01", [*EACH_DTYPE], test=on_logits(is_harmless)).catches(
    Slip("one logit is large and one small", {"[logit, logit]": "[logit, 0.0]"})
)
check("the naive softmax is not finite in the format", [*EACH_DTYPE], test=on_logits(is_broken)).catches(
    Slip("only the sum overflows", {LOGITS: '{"float16": 11.0, "bfloat16": 88.5, "float32": 88.5}'}),
    Slip("float16's limit serves bfloat16", {'"bfloat16": 89.0': '"bfloat16": 12.0'}),
)

EXERCISE = Exercise(__file__, breaking_input, check, points=2, minutes=10, difficulty="medium")
