"""Log-sum-exp without overflow."""

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from courseware.checks import Checks, Exercise, ExpectedOutput, agrees, exact_and_plain

from ..common.generators import LARGE_SCORES, MASKED_SCORES, NUMBERS
from ..common.precision import keeps_float64
from .inputs import EACH_DTYPE, HALF, HALVES, SHORT_HALVES, case, index_of, keeps_promises, logits


def logsumexp(x, axis=-1):
    """log(sum(exp(x))) along an axis, natural logarithm, with no overflow on the way.

    x: float16, float32 or float64, any shape. axis: which one is summed over, of length at least 1. Each entry is
        finite or -inf, and -inf adds nothing to the sum.
    Returns x's shape without `axis`, in float32, or in float64 for float64. Every step on the way is in that
        dtype or a wider one. Where every entry is -inf, the result is -inf, the logarithm of an empty sum. x is
        not modified.

    >>> print(logsumexp(np.array([1.0, 2.0, 3.0, 4.0])).round(4))
    4.4402
    """
    s = x.astype(np.promote_types(x.dtype, np.float32))
    m = s.max(axis=axis, keepdims=True)
    shift = np.where(m == -np.inf, 0, m)  # finite, so that -inf - shift is -inf and never NaN
    l = np.exp(s - shift).sum(axis=axis)
    with np.errstate(divide="ignore"):  # log(0) is -inf, as it should be
        return shift.squeeze(axis) + np.log(l)


def lse(x, axis=-1, c=0.0):
    """Of x + c, by the law that adding c adds c."""
    exact, plain = exact_and_plain(lambda x: reference.logsumexp(x, axis), x)
    m = x.max(axis=axis)
    # An error in l is relative to l, so absolute in log(l): terms of size 1 beside those of m's size.
    terms = 1.0 + np.where(m == -np.inf, 0.0, abs(m)) + abs(c)
    return [ExpectedOutput("logsumexp", exact + c, plain + c, terms, index_of(exact))]


def half_lse(x, **_):
    exact = reference.logsumexp(x.astype(np.float64))
    # In float32 the terms may be added one after another, too.
    plain = np.logaddexp.reduce(x.astype(np.float32))
    return [ExpectedOutput("logsumexp", exact, np.float64(plain), exact)]


check = Checks("logsumexp(x)", agrees(lse))

check("a row gives the logarithm of the sum of exp(x)", [case([1, 2, 3, 4]), case([3]), logits(dimensions=(1, 1))])
check(
    "adding c to every logit adds c to the result, 1000 and -1000 included",
    [case([0, 1], c=1000.0), st.builds(case, st.lists(NUMBERS, min_size=1, max_size=3), c=LARGE_SCORES)],
    call="logsumexp(x + c)",
)
check("one logit, or two, far above the others", [case([2000, 0, 2000, 0]), case([1999, -1000, 2000])])
check(
    "any axis of any array; the result no longer has it",
    [case([[0, 1, 0], [1000, 1001, 1000]], axis=-1), logits(dimensions=(1, 3), with_axis=True)],
    call="logsumexp(x, axis)",
)
check(
    "entries of -inf add nothing, and nothing but -inf gives -inf",
    [case([[-np.inf, -np.inf], [1, -np.inf]]), case([-1000, -1001, -np.inf]), logits(of=MASKED_SCORES)],
)
check(
    "float16 logits give a result that is right in float32",
    [*SHORT_HALVES, *HALVES],
    call=f"{HALF}\nlogsumexp(x)",
    test=agrees(half_lse),
)
check("float64 logits keep their digits", [case([0.1, 0.7, 1.3])], test=keeps_float64(lse))
check(
    "x is not modified; the result is float64 for float64, otherwise float32",
    EACH_DTYPE,
    calls=keeps_promises(lambda dtype: np.promote_types(dtype, np.float32)),
)

EXERCISE = Exercise(__file__, logsumexp, check, points=2, minutes=10, difficulty="medium")
