"""Lesson 03, stable softmax: the exercises' answers, hints, properties and plausible wrong answers.

The convention for a row in which nothing is visible, weights 0 and log-sum-exp -inf, is that of
`course_lib.reference`, whose functions are the oracle here.
"""

import numpy as np

from course_lib import reference
from course_lib.grading.checking import agrees, arrays, numbers
from course_lib.grading.diagnosis import compare, exact_and_plain
from course_lib.grading.exercise import (
    Evidence,
    Exercise,
    Finding,
    Part,
    Property,
    Variant,
    WrongAnswer,
    caught_by,
    option,
)

LESSON = "03"
TITLE = "Stable softmax"

NOT_DIVIDED = "the terms exp(x - m) are not divided by their sum"
MAX_FORGOTTEN = "the maximum is subtracted and never added back"
NOT_RENORMALISED = "hidden weights are set to 0 after the softmax, so that the rest no longer add up to 1"
MASK_INVERTED = "True is taken for hidden"
VANISHED = "every visible term has vanished"
UNIFORM = "a row with nothing visible is spread evenly over its hidden entries"

SHARED_MISTAKES = {
    "precision": "The sum loses digits, or overflows. float16 holds about 3 decimal digits and nothing above "
    "65504: convert to float32 before the first subtraction, and sum there.",
    "error": "Run the call above in a cell of its own and look at the shapes on the line that is shown. "
    "keepdims=True leaves an axis of length 1 where a maximum or a sum was taken.",
    "format": "Compare the docstring's Returns with your return statement.",
    "endless": "Which line changes what the loop waits for? No loop is needed here: NumPy takes the maximum "
    "and the sum along an axis by itself.",
    "modified": "x -= ..., x[mask] = ... and out=x write into the caller's array. Make a new one.",
    "dtype": "Which dtype does the docstring promise, and which does your last line have?",
}
SHARED_HINTS = {
    ": precision": "precision",
    ": exception": "error",
    ": shape": "error",
    ": none": "format",
    ": type": "format",
    ": timeout": "endless",
}


def contract(name, call, cases, wanted):
    """Property: the arguments are the same after the call, and the result has dtype wanted(x.dtype)."""

    def test(answer, **inputs):
        returned = np.asarray(answer(*inputs.values()))
        if answer.modified:
            changed = " and ".join(list(inputs)[i] for i in answer.modified)
            return Evidence((Finding("", "modified", f"the call changed its argument {changed} in place"),))
        expected = wanted(inputs["x"].dtype)
        if returned.dtype != expected:
            text = f"the result has dtype {returned.dtype} for x of dtype {inputs['x'].dtype}"
            return Evidence((Finding("", "dtype", text),), str(returned.dtype), str(expected))
        return None

    return Property(name, call, test, cases, hints={": modified": "modified", ": dtype": "dtype"})


def case(x, **others):
    return {"x": np.array(x, dtype=np.float64), **others}


def draw_x(*, dimensions=(1, 2), of=None, offsets=None, with_axis=False):
    """Arrays x of 1 to 3 entries an axis. offsets: strategy of a number added to each row by itself."""

    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(draw):
            n_dimensions = draw(st.integers(*dimensions))
            shape = [draw(st.integers(1, 3)) for _ in range(n_dimensions)]
            x = arrays(draw, *shape, of=of() if of else None)
            if offsets:
                x = x + arrays(draw, *shape[:-1], 1, of=offsets())
            axis = {"axis": draw(st.integers(-n_dimensions, n_dimensions - 1))} if with_axis else {}
            return {"x": x} | axis

        return inputs()

    return draw


def high():
    from hypothesis import strategies as st

    return st.integers(3, 8).map(lambda i: i * 250.0)


def low():
    return high().map(lambda offset: -offset)


def far_apart():
    from hypothesis import strategies as st

    return st.sampled_from([0.0, 1000.0, -1000.0])


def with_masked():
    from hypothesis import strategies as st

    return st.sampled_from([-np.inf, 0.0, 1.0, 2.0, -np.inf])


def index_of(x):
    return "entry" if np.ndim(x) == 1 else "row"


HALF_ROW = np.random.default_rng(3).normal(0, 3, 3000).astype(np.float16)
HALF_ZEROS = np.zeros(70_000, np.float16)  # more terms of exp(0) = 1 than float16's largest number


def stable_softmax(x, axis=-1):
    """Softmax along an axis, with the largest entry of each slice subtracted before the exponential.

    x: float16, float32 or float64, any shape. An entry may be -inf, and then gets 0; every slice along `axis`
        has at least one that is finite.
    axis: the axis along which the results add up to 1.
    Returns an array of x's shape and dtype. What is computed on the way is float32, for float64 float64, and
        rounded to x's dtype at the end. x is not modified.

    >>> print(stable_softmax(np.array([1.0, 2.0, 3.0, 4.0])).round(4))
    [0.0321 0.0871 0.2369 0.6439]
    """
    s = x.astype(np.promote_types(x.dtype, np.float32))
    p = np.exp(s - s.max(axis=axis, keepdims=True))
    return (p / p.sum(axis=axis, keepdims=True)).astype(x.dtype)


def softmax_parts(x, axis=-1):
    exact, plain = exact_and_plain(lambda x: reference.stable_softmax(x, axis), x)

    def readings():
        return {NOT_DIVIDED: np.exp(x - x.max(axis=axis, keepdims=True))}

    return [Part("softmax", exact, plain, exact, readings, index_of(x))]


def half_softmax_parts(x):
    """float16's own rounding of the result counts as plain: the answer has to round there too."""
    exact = reference.stable_softmax(x.astype(np.float64))
    return [Part("softmax", exact, exact.astype(np.float16).astype(np.float64), exact, index=index_of(x))]


SOFTMAX_CALL = "stable_softmax(x)"

SOFTMAX = Exercise(
    id="03.stable_softmax",
    title="Softmax that cannot overflow",
    points=2,
    minutes=10,
    difficulty="easy",
    answer=stable_softmax,
    hints=(
        "exp(1000) is infinite and exp(-1000) is 0. Which number can you subtract from both of 1000 and 999, "
        "and which from both of -1000 and -1001, so that the softmax stays and the exponentials behave?",
        "Subtract the maximum of each slice along `axis`. keepdims=True keeps the axis, so that the maxima "
        "line up with the entries that they belong to; the sums need it too.",
        "s = x in float32 or better; p = exp(s - s.max(axis=axis, keepdims=True)); divide p by p.sum(axis="
        "axis, keepdims=True); convert back to x.dtype.",
    ),
    reasoning="exp(x - m) = exp(x) / exp(m), and a factor common to all terms cancels in the quotient: any m "
    "gives the same softmax in real arithmetic. With m the largest entry no exponent is above 0, so no term "
    "overflows; and one exponent is 0, so the sum is at least 1 and the quotient is never 0/0. Each slice "
    "needs its own maximum, since one slice's maximum may make every term of another vanish. It is all "
    "done in float32, because float16 rounds every term, and a sum of thousands of them again and again.",
    properties=(
        Property(
            "each row gives exp(x) over the sum of exp(x)",
            SOFTMAX_CALL,
            agrees(softmax_parts),
            (case([1, 2, 3, 4]), case([3]), case([[0, 1, 2], [2, 0, 0]]), case([[0, 1], [2, 4]])),
            draw_x(),
            {f"softmax: {NOT_DIVIDED}": "divide", "": "rows", ": exception": "rows", ": shape": "rows"},
        ),
        Property(
            "logits near 1000 do not overflow",
            SOFTMAX_CALL,
            agrees(softmax_parts),
            (case([1000, 999]),),
            draw_x(dimensions=(1, 1), of=numbers, offsets=high),
            {"": "not_shifted"},
        ),
        Property(
            "logits near -1000 do not vanish",
            SOFTMAX_CALL,
            agrees(softmax_parts),
            (case([-1000, -1001]),),
            draw_x(dimensions=(1, 1), of=numbers, offsets=low),
            {"": "vanish"},
        ),
        Property(
            "rows that lie 1000 apart are each right",
            SOFTMAX_CALL,
            agrees(softmax_parts),
            (case([[0, 1], [1000, 1001]]),),
            draw_x(dimensions=(2, 2), of=numbers, offsets=far_apart),
            {"": "own_max"},
        ),
        Property(
            "any axis of any array can be the one that adds up to 1",
            "stable_softmax(x, axis)",
            agrees(softmax_parts),
            (
                case([[0, 1], [2, 4]], axis=0),
                case([[[0, 1, 3], [2, 0, 1]]], axis=1),
                case([[[0, 1, 3], [2, 0, 1]]], axis=-3),
            ),
            draw_x(dimensions=(1, 3), with_axis=True),
            {"": "axis", ": exception": "axis", ": shape": "axis"},
        ),
        Property(
            "an entry of -inf gets 0, and the others share the 1",
            SOFTMAX_CALL,
            agrees(softmax_parts),
            (case([0, -np.inf]), case([[-np.inf, 1, 2], [0, -np.inf, -np.inf]])),
            hints={"": "masked"},
        ),
        Property(
            "float16 logits are added up in float32",
            SOFTMAX_CALL,
            agrees(half_softmax_parts),
            ({"x": HALF_ROW}, {"x": HALF_ZEROS}),
            hints={"": "precision"},
        ),
        contract(
            "x is not modified, and its dtype comes back",
            SOFTMAX_CALL,
            ({"x": np.array([[1, 2]], np.float64)}, {"x": np.array([1, 2], np.float16)}),
            lambda dtype: dtype,
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "divide": "One line is missing: the terms have to be divided by their sum.",
        "rows": "Each row adds up to 1 by itself. Take maximum and sum along the axis, and keep that axis "
        "(keepdims=True) so that row i meets maximum i and not maximum j.",
        "not_shifted": "exp overflows beyond 88.7 in float32 and 709 in float64. What is the largest "
        "exponent that your exp sees here, and what would it be after subtracting the maximum?",
        "vanish": "Every exponential is 0 here, and 0/0 is NaN. What you subtract must bring the largest "
        "exponent to 0 exactly: the largest entry does, the largest absolute value does not.",
        "own_max": "One maximum for the whole array leaves a row that lies far below it with nothing but "
        "zeros. Each slice needs its own.",
        "axis": "Does `axis` reach every maximum and every sum? Try an array of shape (2, 3) with axis=0: "
        "three columns, each adding up to 1.",
        "masked": "-inf minus the maximum is -inf, and exp(-inf) is 0: nothing special has to be done for "
        "it. A mean over the slice, or a product with 0, turns it into NaN.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "each row gives exp(x) over the sum of exp(x)",
            WrongAnswer(
                "maxima and sums not lined up with their rows",
                "rows",
                {"s.max(axis=axis, keepdims=True)": "s.max(axis=axis)"},
            ),
        ),
        *caught_by(
            "logits near 1000 do not overflow",
            WrongAnswer("F21: no max subtraction", "not_shifted", {"s - s.max(axis=axis, keepdims=True)": "s"}),
        ),
        *caught_by(
            "logits near -1000 do not vanish",
            WrongAnswer("largest absolute value", "vanish", {"s.max(axis": "abs(s).max(axis"}),
        ),
        *caught_by(
            "rows that lie 1000 apart are each right",
            WrongAnswer("one maximum for the whole array", "own_max", {"s.max(axis=axis, keepdims=True)": "s.max()"}),
        ),
        *caught_by(
            "any axis of any array can be the one that adds up to 1",
            WrongAnswer(
                "always the last axis",
                "axis",
                {
                    "s.max(axis=axis,": "s.max(axis=-1,",
                    "p.sum(axis=axis,": "p.sum(axis=-1,",
                },
            ),
        ),
        *caught_by(
            "an entry of -inf gets 0, and the others share the 1",
            WrongAnswer(
                "centred on the mean before the maximum is taken",
                "masked",
                {"    p = np.exp(": "    s = s - s.mean(axis=axis, keepdims=True)\n    p = np.exp("},
            ),
        ),
        *caught_by(
            "float16 logits are added up in float32",
            WrongAnswer("float16 accumulation", "precision", {"np.promote_types(x.dtype, np.float32)": "x.dtype"}),
        ),
        *caught_by(
            "x is not modified, and its dtype comes back",
            WrongAnswer(
                "subtracts in place",
                "modified",
                {
                    "x.astype(np.promote_types(x.dtype, np.float32))": (
                        "x\n    if x.dtype == np.float16:\n        s = x.astype(np.float32)\n"
                        "    s -= s.max(axis=axis, keepdims=True)"
                    )
                },
            ),
        ),
    ),
    right_answers=(
        Variant("slice by slice", function=lambda x, axis=-1: _softmax_by_slices(x, axis)),
        Variant("through log-sum-exp, in float64", function=lambda x, axis=-1: _softmax_by_lse(x, axis)),
    ),
)


def _softmax_by_slices(x, axis):
    def one(row):
        largest = max(float(entry) for entry in row)
        terms = [np.exp(float(entry) - largest) for entry in row]
        total = sum(terms)
        return np.array([term / total for term in terms])

    return np.apply_along_axis(one, axis, x).astype(x.dtype)


def _softmax_by_lse(x, axis):
    s = np.moveaxis(x.astype(np.float64), axis, 0)
    return np.moveaxis(np.exp(s - np.logaddexp.reduce(s, axis=0)), 0, axis).astype(x.dtype)


def logsumexp(x, axis=-1):
    """log(sum(exp(x))) along an axis, natural logarithm, with no overflow on the way.

    x: float16, float32 or float64, any shape. An entry may be -inf, and then adds nothing to the sum.
    Returns x's shape without `axis`, float32, for float64 float64. Where every entry is -inf, the result is
        -inf, the logarithm of an empty sum. x is not modified.

    >>> print(logsumexp(np.array([1.0, 2.0, 3.0, 4.0])).round(4))
    4.4402
    """
    s = x.astype(np.promote_types(x.dtype, np.float32))
    m = s.max(axis=axis, keepdims=True)
    shift = np.where(m == -np.inf, 0, m)  # finite, so that -inf - shift is -inf and never NaN
    l = np.exp(s - shift).sum(axis=axis)
    with np.errstate(divide="ignore"):  # log(0) is -inf, as it should be
        return shift.squeeze(axis) + np.log(l)


def lse_parts(x, axis=-1):
    exact, plain = exact_and_plain(lambda x: reference.logsumexp(x, axis), x)
    m = x.max(axis=axis)

    def readings():
        return {MAX_FORGOTTEN: exact - m}

    # An error in l is relative to l, so absolute in log(l): terms of size 1 beside those of m's size.
    terms = 1.0 + np.where(m == -np.inf, 0.0, abs(m))
    return [Part("logsumexp", exact, plain, terms, readings, index_of(exact))]


def half_lse_parts(x):
    exact = reference.logsumexp(x.astype(np.float64))
    return [Part("logsumexp", exact, np.float64(reference.logsumexp(x)), exact)]


def lse_shifts(answer, x, c):
    return compare(answer(x + c), [_shifted(part, c) for part in lse_parts(x)])


def _shifted(part, c):
    return Part(part.name, part.expected + c, part.plain + c, part.terms + abs(c), index=part.index)


def draw_shift():
    from hypothesis import strategies as st

    x = st.lists(numbers(), min_size=1, max_size=3).map(np.array)
    return st.fixed_dictionaries({"x": x, "c": st.integers(-8, 8).map(lambda i: i * 250.0)})


LSE_CALL = "logsumexp(x)"

LSE = Exercise(
    id="03.logsumexp",
    title="Log-sum-exp",
    points=2,
    minutes=10,
    difficulty="medium",
    answer=logsumexp,
    hints=(
        "What is log(exp(1000) + exp(1000))? You can say it without computing exp(1000). How?",
        "Take exp(m) out of the sum: sum of exp(x) = exp(m) * sum of exp(x - m). What does the logarithm "
        "make of that product? And what should be subtracted where m is -inf?",
        "m = x.max(axis=axis, keepdims=True); shift = m, but 0 where that is -inf; l = sum of exp(x - shift) "
        "along axis; the answer is shift, without its axis of length 1, plus log(l).",
    ),
    reasoning="The logarithm turns the common factor exp(m) into the term m, which is added outside and "
    "never passes through exp. l lies between 1 and the number of entries, so its logarithm is harmless. If "
    "every entry is -inf, the sum is empty; with 0 subtracted in place of -inf, l comes out as 0 and log(0) "
    "= -inf is the right answer. An epsilon inside the logarithm would turn that into a finite number, which"
    " says that something was visible.",
    properties=(
        Property(
            "a row gives the logarithm of the sum of exp(x)",
            LSE_CALL,
            agrees(lse_parts),
            (case([1, 2, 3, 4]), case([3]), case([0, 0])),
            draw_x(dimensions=(1, 1)),
            {f"logsumexp: {MAX_FORGOTTEN}": "add_back", "": "formula"},
        ),
        Property(
            "adding c to every logit adds c to the result, 1000 and -1000 included",
            "logsumexp(x + c)",
            lse_shifts,
            (case([0, 1], c=1000.0), case([0, 1], c=-1000.0)),
            draw_shift,
            {"": "not_shifted"},
        ),
        Property(
            "any axis of any array, which the result does not have any more",
            "logsumexp(x, axis)",
            agrees(lse_parts),
            (case([[0, 1, 2], [2, 0, 0]], axis=-1), case([[0, 1], [2, 4]], axis=0)),
            draw_x(dimensions=(1, 3), with_axis=True),
            {"": "axis", ": exception": "axis", ": shape": "axis"},
        ),
        Property(
            "entries of -inf add nothing, and nothing but -inf gives -inf",
            LSE_CALL,
            agrees(lse_parts),
            (case([0, -np.inf]), case([-np.inf]), case([[-np.inf, -np.inf], [1, -np.inf]])),
            draw_x(of=with_masked),
            {"": "epsilon", ": nan": "masked"},
        ),
        Property(
            "float16 logits are added up in float32",
            LSE_CALL,
            agrees(half_lse_parts),
            ({"x": HALF_ROW}, {"x": HALF_ZEROS}),
            hints={"": "precision"},
        ),
        contract(
            "x is not modified, and float16 gives float32",
            LSE_CALL,
            ({"x": np.array([[1, 2]], np.float64)}, {"x": np.array([1, 2], np.float16)}),
            lambda dtype: np.promote_types(dtype, np.float32),
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "add_back": "You took exp(m) out of the sum. log(exp(m) * l) is m + log(l): where is the m?",
        "formula": "Two steps: the sum of exp(x - m), and its logarithm plus m. Print both for [0, 0], where "
        "the result is log(2).",
        "not_shifted": "exp(1000) overflows and exp(-1000) vanishes. Subtract the maximum inside, add it outside.",
        "axis": "x of shape (2, 3) with axis=-1 gives shape (2,). keepdims=True is needed where maxima meet "
        "x, and one squeeze(axis) where they meet the sums.",
        "masked": "-inf minus -inf is NaN, and it happens where the maximum is -inf. What finite number "
        "could you subtract instead, so that exp(-inf - it) is 0?",
        "epsilon": "The logarithm of an empty sum is -inf, and that is the answer here. Any number added to "
        "keep the logarithm finite claims that something was there.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "a row gives the logarithm of the sum of exp(x)",
            WrongAnswer("maximum not added back", "add_back", {"shift.squeeze(axis) + np.log(l)": "np.log(l)"}),
        ),
        *caught_by(
            "adding c to every logit adds c to the result, 1000 and -1000 included",
            WrongAnswer("no max subtraction", "not_shifted", {"np.where(m == -np.inf, 0, m)": "0 * m"}),
        ),
        *caught_by(
            "any axis of any array, which the result does not have any more",
            WrongAnswer("maximum of the whole array's last axis", "axis", {"s.max(axis=axis,": "s.max(axis=-1,"}),
            WrongAnswer(
                "leaves an axis of length 1",
                "axis",
                {
                    ".sum(axis=axis)": ".sum(axis=axis, keepdims=x.ndim > 1)",
                    "shift.squeeze(axis)": "(shift if x.ndim > 1 else shift.squeeze(axis))",
                },
            ),
        ),
        *caught_by(
            "entries of -inf add nothing, and nothing but -inf gives -inf",
            WrongAnswer("-inf minus -inf", "masked", {"np.where(m == -np.inf, 0, m)": "m"}),
            WrongAnswer("epsilon inside the logarithm", "epsilon", {"np.log(l)": "np.log(l + 1e-9)"}),
        ),
        *caught_by(
            "float16 logits are added up in float32",
            WrongAnswer("float16 accumulation", "precision", {"np.promote_types(x.dtype, np.float32)": "x.dtype"}),
        ),
        *caught_by(
            "x is not modified, and float16 gives float32",
            WrongAnswer(
                "subtracts in place",
                "modified",
                {
                    "s = x.astype(np.promote_types(x.dtype, np.float32))": (
                        "s = x.astype(np.promote_types(x.dtype, np.float32), copy=False)"
                    ),
                    "    l = np.exp(s - shift)": "    s -= shift\n    l = np.exp(s)",
                },
            ),
        ),
    ),
    right_answers=(
        Variant("logaddexp, entry by entry", function=lambda x, axis=-1: _lse_by_pairs(x, axis)),
        Variant("log1p of the terms beside the largest", function=lambda x, axis=-1: _lse_by_log1p(x, axis)),
    ),
)


def _lse_by_pairs(x, axis):
    s = np.moveaxis(x.astype(np.float64), axis, 0)
    total = np.full(s.shape[1:], -np.inf)
    for entry in s:
        total = np.logaddexp(total, entry)
    return total.astype(np.promote_types(x.dtype, np.float32))


def _lse_by_log1p(x, axis):
    s = np.sort(x.astype(np.promote_types(x.dtype, np.float32)), axis=axis)
    largest = np.take(s, -1, axis=axis)
    rest = np.take(s, range(s.shape[axis] - 1), axis=axis)
    m = np.expand_dims(np.where(np.isfinite(largest), largest, 0), axis)
    return largest + np.log1p(np.exp(rest - m).sum(axis=axis))


def masked_softmax(x, mask):
    """Softmax along the last axis over the entries that are visible.

    x: float16, float32 or float64, [..., n]. mask: bool, x's shape or one that broadcasts to it; True is
        visible. What x holds where the mask is False does not matter, be it NaN or infinite.
    Returns an array of x's shape and dtype: 0 where hidden, and the visible entries of a row add up to 1. A
        row in which nothing is visible is 0 throughout. x and mask are not modified.

    >>> x = np.array([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    >>> mask = np.array([[True, True, True, False], [False, False, False, False]])
    >>> print(masked_softmax(x, mask).round(4))
    [[0.09   0.2447 0.6652 0.    ]
     [0.     0.     0.     0.    ]]
    """
    s = np.where(mask, x, -np.inf).astype(np.promote_types(x.dtype, np.float32))
    m = s.max(axis=-1, keepdims=True)
    p = np.exp(s - np.where(m == -np.inf, 0, m))  # never -inf - -inf
    l = p.sum(axis=-1, keepdims=True)
    return (p / np.where(l == 0, 1, l)).astype(x.dtype)


def masked_parts(x, mask):
    shown = np.where(mask, x, -np.inf)
    exact, plain = exact_and_plain(reference.stable_softmax, shown)

    def readings():
        nothing = ~np.isfinite(shown).any(axis=-1, keepdims=True)
        return {
            UNIFORM: np.where(nothing, 1 / x.shape[-1], exact),
            MASK_INVERTED: reference.stable_softmax(np.where(mask, -np.inf, x)),
            VANISHED: np.zeros_like(x),
            NOT_RENORMALISED: reference.stable_softmax(x) * mask,
        }

    return [Part("softmax", exact, plain, exact, readings, index_of(x))]


def masked_case(x, mask):
    return {"x": np.array(x, dtype=np.float64), "mask": np.array(mask, dtype=bool)}


def draw_masked(*, visible="some", hidden=None, offset=0.0):
    """visible: "all", "some" (at least one a row) or "any" (a row may have none).

    hidden: strategy of what a hidden entry holds, None for ordinary numbers. offset: added to visible ones.
    """

    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(draw):
            shape = [draw(st.integers(1, 2)), draw(st.integers(1, 3))][draw(st.integers(0, 1)) :]
            x = arrays(draw, *shape) + offset
            mask = arrays(draw, *shape, of=st.just(1) if visible == "all" else st.sampled_from([1, 0])) == 1
            if visible == "some":
                mask[..., 0] |= ~mask.any(axis=-1)
            if hidden:
                x = np.where(mask, x, arrays(draw, *shape, of=hidden()))
            return {"x": x, "mask": mask}

        return inputs()

    return draw


def garbage():
    from hypothesis import strategies as st

    return st.sampled_from([np.nan, np.inf, -np.inf, 0.0])


MASKED_CALL = "masked_softmax(x, mask)"

MASKED = Exercise(
    id="03.masked_softmax",
    title="Softmax over what is visible",
    points=3,
    minutes=15,
    difficulty="medium",
    answer=masked_softmax,
    hints=(
        "Which score makes exp(score - m) exactly 0, for every finite m? And what is m if all scores are that?",
        "Put -inf in place of every hidden entry, and only then take the maximum. Where the maximum is -inf, "
        "subtract 0 instead; where the sum is 0, divide by 1 instead.",
        "s = np.where(mask, x, -np.inf); m = s.max(axis=-1, keepdims=True); p = exp(s - m), with 0 for m "
        "where m is -inf; l = p.sum(axis=-1, keepdims=True); return p / l, with 1 for l where l is 0.",
    ),
    reasoning="A score of -inf is the one that no other score and no shift can bring back: its term is 0 to "
    "the last bit. Choosing it with np.where, and not by adding -inf or multiplying by 0, also drops "
    "whatever the hidden entry held, NaN included. A row with nothing visible is a sum over no values, and "
    "an empty sum is 0: so its weights are 0. That takes two exceptions, one for -inf - -inf and one for "
    "0/0; an epsilon in the divisor would only hide the second, and changes every other row a little.",
    properties=(
        Property(
            "with everything visible it is the softmax",
            MASKED_CALL,
            agrees(masked_parts),
            (masked_case([1, 2, 3, 4], [1, 1, 1, 1]), masked_case([[0, 1], [2, 4]], [[1, 1], [1, 1]])),
            draw_masked(visible="all"),
            {"": "formula", ": nan": "inverted", f"softmax: {MASK_INVERTED}": "inverted"},
        ),
        Property(
            "hidden entries get 0, and the visible ones of a row add up to 1",
            MASKED_CALL,
            agrees(masked_parts),
            (masked_case([1, 2, 3, 4], [1, 1, 1, 0]), masked_case([[0, 1], [2, 4]], [[1, 0], [1, 1]])),
            draw_masked(),
            {"": "weights", f"softmax: {NOT_RENORMALISED}": "renormalise"},
        ),
        Property(
            "hidden entries are not measured from: visible ones may lie 1000 below them",
            MASKED_CALL,
            agrees(masked_parts),
            (masked_case([-1000, 0], [1, 0]), masked_case([[-1000, -1001, 0]], [[1, 1, 0]])),
            draw_masked(offset=-1000.0, hidden=numbers),
            {"": "visible_max"},
        ),
        Property(
            "a row in which nothing is visible is 0 throughout, and the other rows stay right",
            MASKED_CALL,
            agrees(masked_parts),
            (masked_case([0], [0]), masked_case([[0, 1], [2, 4]], [[0, 0], [1, 1]])),
            draw_masked(visible="any"),
            {"": "nothing", ": nan": "masked", f"softmax: {UNIFORM}": "uniform"},
        ),
        Property(
            "a hidden NaN or infinity reaches nothing",
            MASKED_CALL,
            agrees(masked_parts),
            (masked_case([0, np.nan], [1, 0]), masked_case([[0, np.inf], [1, 2]], [[1, 0], [1, 1]])),
            draw_masked(hidden=garbage),
            {"": "garbage"},
        ),
        Property(
            "one mask can serve all rows",
            MASKED_CALL,
            agrees(masked_parts),
            (masked_case([[0, 1, 2], [2, 4, 0]], [1, 1, 0]),),
            hints={"": "broadcast", ": exception": "broadcast", ": shape": "broadcast"},
        ),
        contract(
            "x and mask are not modified, and x's dtype comes back",
            MASKED_CALL,
            (
                masked_case([[1, 2]], [[1, 0]]),
                {"x": np.array([1, 2], np.float16), "mask": np.array([True, False])},
            ),
            lambda dtype: dtype,
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "formula": "With a mask that is True throughout, masked_softmax(x, mask) is stable_softmax(x): "
        "maximum subtracted, divided by the sum, each row by itself.",
        "inverted": "True means visible. Which entries did you replace by -inf?",
        "renormalise": "The division came too early: its sum still holds the hidden terms. Hide first, then "
        "take the softmax.",
        "weights": "A hidden entry's term must be exactly 0, and must not be in the sum. exp(0) is 1: a "
        "score of 0 hides nothing.",
        "visible_max": "The maximum was taken over hidden entries too. Measured from it every visible term "
        "underflows to 0, and 0/0 follows.",
        "masked": "-inf minus -inf is NaN, and so is 0/0; both happen where nothing is visible. What can you "
        "subtract in place of m, and divide by in place of l, there?",
        "uniform": "A large negative number is a score like any other: if all entries of a row have it, they "
        "share the 1 evenly, and the row attends to exactly what it may not see. -inf does not do that.",
        "nothing": "The sum over no values is 0, so every weight of such a row is 0.",
        "garbage": "NaN + (-inf) is NaN, inf + (-inf) is NaN, and 0 * NaN is NaN: arithmetic does not remove "
        "an entry. np.where(mask, x, -np.inf) chooses, and computes nothing.",
        "broadcast": "The mask may have fewer axes than x: np.where lines them up from the last axis, "
        "boolean indexing as in x[mask] does not.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "with everything visible it is the softmax",
            WrongAnswer("mask the wrong way round", "inverted", {"(mask, x, -np.inf)": "(mask, -np.inf, x)"}),
        ),
        *caught_by(
            "hidden entries get 0, and the visible ones of a row add up to 1",
            WrongAnswer(
                "hides after the softmax",
                "renormalise",
                {
                    "np.where(mask, x, -np.inf).astype": "x.astype",
                    "np.where(l == 0, 1, l))": "np.where(l == 0, 1, l) * mask)",
                },
            ),
            WrongAnswer("mask value 0", "weights", {"(mask, x, -np.inf)": "(mask, x, 0.0)"}),
        ),
        *caught_by(
            "hidden entries are not measured from: visible ones may lie 1000 below them",
            WrongAnswer(
                "maximum over hidden entries too",
                "visible_max",
                {"s.max(axis=-1, keepdims=True)": "x.max(axis=-1, keepdims=True)"},
            ),
        ),
        *caught_by(
            "a row in which nothing is visible is 0 throughout, and the other rows stay right",
            WrongAnswer("NaN on a fully masked row", "masked", {"np.where(m == -np.inf, 0, m)": "m"}),
            WrongAnswer("-1e9 for -inf", "uniform", {"(mask, x, -np.inf)": "(mask, x.astype(np.float64), -1e9)"}),
        ),
        *caught_by(
            "a hidden NaN or infinity reaches nothing",
            WrongAnswer("adds -inf", "garbage", {"np.where(mask, x, -np.inf)": "(x + np.where(mask, 0, -np.inf))"}),
        ),
        *caught_by(
            "one mask can serve all rows",
            WrongAnswer(
                "boolean indexing with the mask as it is",
                "broadcast",
                {
                    "    s = np.where(mask, x, -np.inf).astype(np.promote_types(x.dtype, np.float32))\n": (
                        "    s = x.astype(np.promote_types(x.dtype, np.float32))\n    s[~mask] = -np.inf\n"
                    )
                },
            ),
        ),
        *caught_by(
            "x and mask are not modified, and x's dtype comes back",
            WrongAnswer(
                "writes -inf into x",
                "modified",
                {
                    "    s = np.where(mask, x, -np.inf).astype": (
                        "    x[~np.broadcast_to(mask, x.shape)] = -np.inf\n    s = x.astype"
                    )
                },
            ),
        ),
    ),
    right_answers=(
        Variant("row by row, visible entries alone", function=lambda x, mask: _masked_by_rows(x, mask)),
        Variant(
            "hides the terms, not the scores",
            {
                "    p = np.exp(s - np.where(m == -np.inf, 0, m))  # never -inf - -inf\n": (
                    "    shift = np.where(np.isfinite(m), m, 0)\n"
                    "    p = np.where(s > -np.inf, np.exp(np.minimum(s - shift, 0)), 0)\n"
                )
            },
        ),
    ),
)


def _masked_by_rows(x, mask):
    out = np.zeros_like(x)
    for index in np.ndindex(x.shape[:-1]):
        visible = np.flatnonzero(np.broadcast_to(mask, x.shape)[index])
        if len(visible):
            s = x[index][visible].astype(np.float64)
            terms = np.exp(s - s.max())
            out[index][visible] = terms / terms.sum()
    return out


EXERCISES = (SOFTMAX, LSE, MASKED)


QUIZ = [
    {
        "question": "You subtract 40 from every logit of a row instead of its maximum. What happens to the softmax?",
        "type": "multiple_choice",
        "answers": [
            option("It is scaled by exp(-40)", False, "So is its denominator, and the factor cancels."),
            option(
                "Nothing in real arithmetic; in floating point it depends on where the largest logit lies",
                True,
                "Far above 40 its exponential overflows, far below 40 all of them vanish.",
            ),
            option("It is wrong unless 40 is the maximum", False, "Any constant cancels. The maximum is safe."),
        ],
    },
    {
        "question": "Why is the sum of exp(x - m) never 0 when m is the maximum and one entry is finite?",
        "type": "multiple_choice",
        "answers": [
            option("One of its terms is exp(0) = 1", True, "So no epsilon is needed in the divisor."),
            option("exp is positive", False, "In floating point exp(-1000) is 0."),
            option("NumPy adds a tiny number before it divides", False, "It does not, and 0/0 would be NaN."),
        ],
    },
    {
        "question": "A row of 65536 float32 numbers does not fit in fast memory. How often does a fused "
        "stable softmax read it from HBM, with the maximum taken first and then the sum?",
        "type": "multiple_choice",
        "answers": [
            option("Once", False, "Only a row that fits can be kept between maximum, sum and division."),
            option("Twice", False, "That is the naive one, which has no maximum to find."),
            option("Three times", True, "For the maximum, for the sum, and to write the results."),
            option("Five times", False, "That is one pass per line of NumPy, with every intermediate stored."),
        ],
    },
    {
        "question": "All entries of a row are masked with -1e9 in float32. What does a stable softmax return "
        "for that row?",
        "type": "multiple_choice",
        "answers": [
            option("Zeros", False, "That is what the row should be; -1e9 does not give it."),
            option("NaN", False, "That comes from -inf without the guard."),
            option(
                "The same weight for every masked entry, adding up to 1",
                True,
                "The maximum is -1e9 too, so every exponent is about 0.",
            ),
        ],
    },
    {
        "question": "The logits are float16. In which dtype do you add the exponentials?",
        "type": "multiple_choice",
        "answers": [
            option("float32", True, "Its sum of ones goes on to 16,777,216, and rounds at the 7th digit."),
            option(
                "float16, since each exponential is at most 1",
                False,
                "Each is, their sum is not: one by one, it stops at 2048.",
            ),
            option("It makes no difference", False, "At 8192 equal logits the weights would add up to 4."),
        ],
    },
]
