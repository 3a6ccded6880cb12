"""Lesson 02, softmax overflow: the exercises' answers, hints, properties and plausible wrong answers.

The formats are IEEE 754's binary16 and binary32, and bfloat16, which keeps binary32's exponent. F19 and F21
are the claims behind the exercises.
"""

import numbers

import numpy as np

from course_lib import reference
from course_lib.grading.checking import agrees
from course_lib.grading.diagnosis import exact_and_plain, show
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
from course_lib.reference import formats

LESSON = "02"
TITLE = "Softmax overflow"

EACH_DTYPE = tuple({"dtype": name} for name in formats.FORMATS)


def against(kind, text, returned="", expected=""):
    return Evidence((Finding("", kind, text),), returned, expected)


def largest_exp_input(dtype):
    """The largest number of a format whose exp is finite in that format.

    dtype: "float16", "bfloat16" or "float32". Their exponents have 5, 8 and 8 bits, their mantissas 10, 7
        and 23.
    Returns a float, one that the format holds: exp of it, rounded to the format, is finite, and exp of the
        format's next larger number is not.

    >>> print(largest_exp_input("float16"))
    11.0859375
    """
    exponent_bits, mantissa_bits = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23)}[dtype]
    largest_exponent = 2 ** (exponent_bits - 1) - 1
    largest = (2 - 2.0**-mantissa_bits) * 2.0**largest_exponent
    limit = np.log(largest)
    gap = 2.0 ** (np.floor(np.log2(limit)) - mantissa_bits)  # between the format's numbers near limit
    return float(np.floor(limit / gap) * gap)


def on_a_number(judge):
    """A test that hands (format, the number that came back) to judge, or says that it is no number."""

    def test(answer, dtype):
        returned = answer(dtype)
        if isinstance(returned, bool) or not isinstance(returned, (numbers.Real, np.floating)):
            return against("type", f"the answer returned {show(returned)}, not a number")
        if not np.isfinite(returned):
            return against("type", f"{show(returned)} is not a finite number")
        return judge(formats.FORMATS[dtype], float(returned))

    return test


def is_held(fmt, x):
    if fmt.holds(x):
        return None
    if abs(x) > fmt.largest:
        return against("not held", f"{fmt.name} ends at {fmt.largest:.5g}", repr(x))
    gap = fmt.gap(x)
    below = np.floor(x / gap) * gap
    text = f"{fmt.name} does not hold {x!r}: its neighbours there are {below:.10g} and {below + gap:.10g}"
    return against("not held", text, repr(x))


def exp_is_finite(fmt, x):
    if x <= formats.largest_exp_input(fmt):
        return None
    if x - fmt.gap(x) <= formats.largest_exp_input(fmt):
        return against("one step", f"x is one number too far: exp(x) rounds to infinity in {fmt.name}", repr(x))
    text = f"exp(x) is {np.exp(min(x, 700)):.4g} or more; the largest {fmt.name} is {fmt.largest:.5g}"
    return against("too large", text, repr(x))


def no_larger_one(fmt, x):
    if x == formats.largest_exp_input(fmt):
        return None
    following = x + fmt.gap(x)
    exp_following = float(fmt.round(np.exp(following)))
    text = f"the next {fmt.name} is {following:.10g}, and its exp, {exp_following:.5g}, is finite too"
    return against("too small", text, repr(x))


LARGEST_CALL = "largest_exp_input(dtype)"

LARGEST = Exercise(
    id="02.largest_exp_input",
    title="Where exp leaves a format",
    points=2,
    minutes=15,
    difficulty="medium",
    answer=largest_exp_input,
    hints=(
        "Which is the largest number of the format, and which x has it as its exp? Does the format hold that x?",
        "The largest number is (2 - 2^-mantissa_bits) * 2^(2^(exponent_bits - 1) - 1). Its natural "
        "logarithm is the limit. Between 8 and 16 the format's numbers are 2^(3 - mantissa_bits) apart, and "
        "between 64 and 128 it is 2^(6 - mantissa_bits). Which of them is the last at or below the limit?",
        "limit = np.log(largest); gap = 2.0 ** (np.floor(np.log2(limit)) - mantissa_bits); round limit / gap "
        "down to a whole number, and multiply by gap.",
    ),
    reasoning="exp is increasing, so the limit is the logarithm of the largest number: 11.0899 for float16, "
    "88.7189 for bfloat16, 88.7228 for float32. An input must itself be a number of the format, so the "
    "answer is the last one at or below: 11.0859375, 88.5, 88.7228317. (Rounding lets a number half a gap "
    "above the largest through, which is too little to reach another input.) The exponent bits alone place "
    "the limit, within a percent; the mantissa bits say how near to it an input can be. That is why "
    "bfloat16, as short as float16, overflows where float32 does.",
    properties=(
        Property(
            "the format holds the number",
            LARGEST_CALL,
            on_a_number(is_held),
            EACH_DTYPE,
            hints={"": "grid"},
        ),
        Property(
            "exp of it is finite in the format",
            LARGEST_CALL,
            on_a_number(exp_is_finite),
            EACH_DTYPE,
            hints={": one step": "down", "": "limit"},
        ),
        Property(
            "exp of the format's next number is infinite",
            LARGEST_CALL,
            on_a_number(no_larger_one),
            EACH_DTYPE,
            hints={"": "room"},
        ),
    ),
    mistakes={
        "grid": "The logarithm of the largest number is where exp overflows, but a logit in this format can "
        "only be one of the format's own numbers, which lie 2^(e - mantissa_bits) apart between 2^e and "
        "2^(e + 1).",
        "down": "The nearest number of the format may lie above the limit. Which of the two neighbours is "
        "on the safe side?",
        "limit": "The limit is the natural logarithm of the largest number. That number's exponent is "
        "2^(exponent_bits - 1) - 1: half of the exponents belong to numbers below 1.",
        "room": "There is room for more. Compute the format's largest number from its own exponent bits, "
        "and go up to its logarithm in steps of the format's gap there, not in whole numbers.",
        "format": "Return one finite float, such as 11.0859375.",
        "error": "Run the call above in a cell of its own, and print what each line makes.",
    },
    common_hints={": type": "format", ": none": "format", ": exception": "error", ": timeout": "error"},
    wrong_answers=(
        *caught_by(
            "the format holds the number",
            WrongAnswer(
                "the logarithm itself",
                "grid",
                {"return float(np.floor(limit / gap) * gap)": "return float(limit)"},
            ),
            WrongAnswer("float32's digits for bfloat16", "grid", {'"bfloat16": (8, 7)': '"bfloat16": (8, 23)'}),
        ),
        *caught_by(
            "exp of it is finite in the format",
            WrongAnswer("rounded to the nearest", "down", {"np.floor(limit / gap)": "np.rint(limit / gap)"}),
            WrongAnswer("no negative exponents", "limit", {"2 ** (exponent_bits - 1) - 1": "2**exponent_bits - 1"}),
            WrongAnswer("log2 for the natural logarithm", "limit", {"np.log(largest)": "np.log2(largest)"}),
        ),
        *caught_by(
            "exp of the format's next number is infinite",
            WrongAnswer("bfloat16 with float16's range", "room", {'"bfloat16": (8, 7)': '"bfloat16": (5, 7)'}),
            WrongAnswer("whole numbers only", "room", {"np.floor(limit / gap) * gap": "np.floor(limit)"}),
        ),
    ),
    right_answers=(
        Variant("counting up in steps of the gap", function=lambda dtype: _largest_by_steps(dtype)),
        Variant("bisecting the bit patterns", function=lambda dtype: _largest_by_bits(dtype)),
    ),
)


def _largest_by_steps(dtype):
    largest, x, step = {
        "float16": (65504.0, 11.0, 2.0**-7),
        "bfloat16": (255 * 2.0**120, 88.0, 2.0**-1),
        "float32": (float(np.finfo(np.float32).max), 88.72, 2.0**-17),
    }[dtype]
    x = np.floor(x / step) * step
    while np.exp(x + step) <= largest:
        x += step
    return x


def _largest_by_bits(dtype):
    """Positive floats are in the order of their bits; a bfloat16 is the upper half of a float32."""
    of_bits = {
        "float16": lambda bits: np.uint16(bits).view(np.float16),
        "bfloat16": lambda bits: np.uint32(bits << 16).view(np.float32),
        "float32": lambda bits: np.uint32(bits).view(np.float32),
    }[dtype]
    infinity = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000}[dtype]
    largest = np.float64(of_bits(infinity - 1))
    low, high = 0, infinity
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if np.exp(np.float64(of_bits(middle))) <= largest else (low, middle)
    return of_bits(low)


def naive_softmax(x):
    """exp(x) / sum(exp(x)) along the last axis, as the formula is written.

    x: [..., n], float16, float32 or float64.
    Returns the weights, in x's shape and dtype, with every step in that dtype: where exp or the sum overflows
        there, so does this. x is not modified.

    >>> print(naive_softmax(np.array([1.0, 2.0, 3.0, 4.0])).round(4))
    [0.0321 0.0871 0.2369 0.6439]
    """
    exp_x = np.exp(x)
    return exp_x / exp_x.sum(axis=-1, keepdims=True)


NOT_DIVIDED = "exp(x) is not divided by its sum"
POWERS_OF_TWO = "2 ** x stands where exp(x) should"
ONE_SUM = "all rows are divided by one sum"
COLUMNS = "each column is divided by its own sum"


def naive_parts(x):
    exact, plain = exact_and_plain(reference.naive_softmax, x)

    def readings():
        e = np.exp(x)
        found = {NOT_DIVIDED: e, POWERS_OF_TWO: np.exp2(x) / np.exp2(x).sum(axis=-1, keepdims=True)}
        return found | ({ONE_SUM: e / e.sum(), COLUMNS: e / e.sum(axis=0)} if x.ndim > 1 else {})

    return [Part("weights", exact, plain, exact, readings)]


def draw_logits(rows):
    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(draw):
            shape = (draw(st.integers(2, 3)), draw(st.integers(1, 3))) if rows else (draw(st.integers(1, 4)),)
            logit = st.sampled_from([0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5, -4.0])
            return {"x": np.array([draw(logit) for _ in range(int(np.prod(shape)))]).reshape(shape)}

        return inputs()

    return draw


def keeps_dtype(answer, x):
    returned = answer(x)
    if isinstance(returned, (np.ndarray, np.generic)) and returned.dtype == x.dtype:
        return None
    came = getattr(returned, "dtype", type(returned).__name__)
    return against("dtype", f"{x.dtype} went in, {came} came back", str(came), str(x.dtype))


def breaks_as_written(answer, x):
    with np.errstate(all="ignore"):
        expected = reference.naive_softmax(x)
    returned = answer(x)
    if np.array_equal(returned, expected, equal_nan=True):
        return None
    text = f"in {x.dtype} the formula, as written, does not give this"
    return against("survives", text, show(returned), show(expected))


def leaves_x(answer, x):
    answer(x)
    return against("modified", "the call changed its argument x in place") if answer.modified else None


NAIVE_CALL = "naive_softmax(x)"

NAIVE = Exercise(
    id="02.naive_softmax",
    title="Softmax as the formula has it",
    points=1,
    minutes=5,
    difficulty="easy",
    answer=naive_softmax,
    hints=(
        "What does the formula do first: take exp of every logit, or add? Along which axis is the sum?",
        "np.exp keeps the dtype. A sum over axis=-1 drops that axis; what must the sums look like to divide rows of x?",
        "exp_x = np.exp(x), and then exp_x divided by exp_x.sum(axis=-1, keepdims=True). Nothing else: no "
        "maximum, no other dtype.",
    ),
    reasoning="keepdims=True leaves the sums as [..., 1], so that each divides its own row. Every step "
    "stays in x's dtype, and so this breaks where that dtype ends: one exp that overflows makes inf / inf = "
    "NaN of its own weight and finite / inf = 0 of the others; a sum that overflows makes 0 of all. Lesson "
    "03 repairs it, and until then it is the specimen.",
    properties=(
        Property(
            "a row of logits gives exp(x) / sum(exp(x))",
            NAIVE_CALL,
            agrees(naive_parts),
            ({"x": np.array([0.0, 1.0])}, {"x": np.array([1.0, 2.0, 3.0, 4.0])}),
            draw_logits(rows=False),
            {f"weights: {NOT_DIVIDED}": "divide", f"weights: {POWERS_OF_TWO}": "base", "": "formula"},
        ),
        Property(
            "each row of a matrix has a softmax of its own",
            NAIVE_CALL,
            agrees(naive_parts),
            ({"x": np.array([[0.0, 1.0], [2.0, 2.0]])},),
            draw_logits(rows=True),
            {"": "axis", ": exception": "axis"},
        ),
        Property(
            "the weights have x's dtype",
            NAIVE_CALL,
            keeps_dtype,
            ({"x": np.array([0, 1], np.float16)}, {"x": np.array([0, 1], np.float32)}),
            hints={"": "dtype"},
        ),
        Property(
            "it breaks where the formula breaks",
            NAIVE_CALL,
            breaks_as_written,
            (
                {"x": np.array([12, 12], np.float16)},
                {"x": np.array([12, 0], np.float16)},
                {"x": np.array([11, 11], np.float16)},
                {"x": np.array([89, 89], np.float32)},
                {"x": np.array([710.0, 710.0])},
            ),
            hints={"": "specimen"},
        ),
        Property(
            "x is not modified",
            NAIVE_CALL,
            leaves_x,
            ({"x": np.array([0.0, 1.0])},),
            hints={"": "modified"},
        ),
    ),
    mistakes={
        "divide": "The weights of a row add up to 1. What do yours add up to?",
        "base": "The exponential is np.exp, powers of e.",
        "formula": "Follow the formula for x = [0, 1]: exp gives 1 and 2.7183, their sum is 3.7183.",
        "axis": "A row's weights add up to 1 by themselves. Sum along the last axis, and keep that axis "
        "with length 1, so that each sum divides its own row.",
        "dtype": "Nothing in the formula needs another dtype: np.exp of a float16 is a float16.",
        "specimen": "This one is meant to break: it is the formula as written, every step in x's dtype. No "
        "maximum is subtracted, nothing is computed in a wider dtype and cast back. The repair is lesson "
        "03's.",
        "modified": "out=x, *= and /= write into the caller's array.",
        "error": "Run the call above in a cell of its own, and look at the shapes on the line that is shown.",
    },
    common_hints={
        ": none": "formula",
        ": type": "formula",
        ": shape": "axis",
        ": exception": "error",
        ": timeout": "error",
    },
    wrong_answers=(
        *caught_by(
            "a row of logits gives exp(x) / sum(exp(x))",
            WrongAnswer("not divided", "divide", {" / exp_x.sum(axis=-1, keepdims=True)": ""}),
            WrongAnswer("powers of 2", "base", {"np.exp(x)": "np.exp2(x)"}),
        ),
        *caught_by(
            "each row of a matrix has a softmax of its own",
            WrongAnswer("one sum for all rows", "axis", {"axis=-1, keepdims=True": ""}),
        ),
        *caught_by(
            "the weights have x's dtype",
            WrongAnswer("returns float64", "dtype", {"np.exp(x)": "np.exp(x.astype(np.float64))"}),
        ),
        *caught_by(
            "it breaks where the formula breaks",
            WrongAnswer("the maximum subtracted", "specimen", {"np.exp(x)": "np.exp(x - x.max(-1)[..., None])"}),
            WrongAnswer(
                "computed in float64, cast back",
                "specimen",
                {
                    "np.exp(x)": "np.exp(x.astype(np.float64))",
                    "return exp_x / exp_x.sum(axis=-1, keepdims=True)": (
                        "return (exp_x / exp_x.sum(axis=-1, keepdims=True)).astype(x.dtype)"
                    ),
                },
            ),
        ),
        *caught_by(
            "x is not modified",
            WrongAnswer("exp in place", "modified", {"np.exp(x)": "np.exp(x, out=x)"}),
        ),
    ),
    right_answers=(
        Variant("row by row", function=lambda x: np.apply_along_axis(lambda r: np.exp(r) / np.exp(r).sum(), -1, x)),
        Variant(
            "times one over the sum",
            {"exp_x / exp_x.sum(axis=-1, keepdims=True)": "exp_x * (1 / np.add.reduce(exp_x, axis=-1)[..., None])"},
        ),
    ),
)


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
            return against("type", f"the answer returned {show(returned)}, not an array of floats")
        if x.ndim != 1 or len(x) < 2:
            return against("type", f"x has shape {x.shape}, not (n,) with n at least 2", show(returned))
        return judge(formats.FORMATS[dtype], x)

    return test


def are_finite(fmt, x):
    if np.isfinite(x).all():
        return None
    return against("infinite", f"x holds {show(x[~np.isfinite(x)][0])}, which is no finite logit", show(x))


def are_held(fmt, x):
    held = fmt.holds(x)
    if held.all():
        return None
    logit = float(x[~held][0])
    return against("not held", f"{fmt.name} does not hold {logit!r}; it would become {fmt.round(logit):.10g}", show(x))


def is_harmless(fmt, x):
    weights = reference.stable_softmax(x)
    if weights.min() >= 0.01:
        return None
    text = f"the true softmax has a weight of {weights.min():.3g}, below 0.01"
    return against("spread", text, show(x))


def is_broken(fmt, x):
    exp_x, total, weights = formats.naive_softmax_steps(x, fmt)
    if not np.isfinite(weights).all():
        return None
    if np.isinf(total).all():
        return against(
            "zero",
            f"in {fmt.name} only the sum overflows: the weights are {show(weights)}, wrong and finite",
            show(x),
        )
    return against("finite", f"in {fmt.name} the naive weights are {show(weights)}, all finite", show(x))


BREAKING_CALL = "breaking_input(dtype)"

BREAKING = Exercise(
    id="02.breaking_input",
    title="Harmless logits that break it",
    points=2,
    minutes=10,
    difficulty="medium",
    answer=breaking_input,
    hints=(
        "What is the softmax of logits that are all equal? Does it matter what they are equal to?",
        "The weights are tame if the logits lie near each other. They may lie near each other anywhere: "
        "which place does each format's exp not reach?",
        "Take the answer of 02.largest_exp_input for the format, go to a number above it that the format "
        "holds, and return that number twice.",
    ),
    reasoning="The true softmax depends only on differences of logits, and exp on the logits themselves. "
    "Equal logits have the softmax 1 / n wherever they are, so put them past the last number that exp can "
    "take: 12 in float16, 89 in bfloat16 and float32. exp gives inf, the sum is inf, inf / inf is NaN. It "
    "works downwards as well: at -128 every exp is 0 in all three formats, and 0 / 0 is NaN.",
    properties=(
        Property(
            "two logits or more, all finite",
            BREAKING_CALL,
            on_logits(are_finite),
            EACH_DTYPE,
            hints={"": "finite"},
        ),
        Property(
            "the format holds each logit",
            BREAKING_CALL,
            on_logits(are_held),
            EACH_DTYPE,
            hints={"": "grid"},
        ),
        Property(
            "every weight of the true softmax is at least 0.01",
            BREAKING_CALL,
            on_logits(is_harmless),
            EACH_DTYPE,
            hints={"": "spread"},
        ),
        Property(
            "the naive softmax is not finite in the format",
            BREAKING_CALL,
            on_logits(is_broken),
            EACH_DTYPE,
            hints={": zero": "sum", "": "range"},
        ),
    ),
    mistakes={
        "finite": "An infinite logit breaks every softmax, and proves nothing. Look for finite ones.",
        "grid": "A logit that the format does not hold is rounded before exp sees it, perhaps to where exp "
        "is safe. How far apart are the format's numbers there?",
        "spread": "A weight is exp of the distance to the largest logit, nearly. Logits that are to have "
        "weights of 0.01 or more cannot lie further apart than about 4.6.",
        "sum": "If the sum alone overflows, every weight is finite / inf = 0: wrong, and yet finite. For "
        "NaN, exp itself has to overflow, or every exp to vanish.",
        "range": "exp still fits. Each format has a limit of its own: 02.largest_exp_input.",
        "format": "Return a one-dimensional NumPy array of at least two floats.",
        "error": "Run the call above in a cell of its own, and print what each line makes.",
    },
    common_hints={": type": "format", ": none": "format", ": exception": "error", ": timeout": "error"},
    wrong_answers=(
        *caught_by(
            "two logits or more, all finite",
            WrongAnswer("infinite logits", "finite", {"np.array([logit, logit])": "np.array([np.inf, logit])"}),
        ),
        *caught_by(
            "the format holds each logit",
            WrongAnswer(
                "a little above the logarithm of the largest number",
                "grid",
                {
                    '{"float16": 12.0, "bfloat16": 89.0, "float32": 89.0}': (
                        '{"float16": 11.09375, "bfloat16": 88.73, "float32": 89.0}'
                    )
                },
            ),
            WrongAnswer("beyond float16 itself", "grid", {'"float16": 12.0': '"float16": 1e5'}),
        ),
        *caught_by(
            "every weight of the true softmax is at least 0.01",
            WrongAnswer("one large logit, one small", "spread", {"[logit, logit]": "[logit, 0.0]"}),
        ),
        *caught_by(
            "the naive softmax is not finite in the format",
            WrongAnswer(
                "only the sum overflows",
                "sum",
                {
                    '{"float16": 12.0, "bfloat16": 89.0, "float32": 89.0}': (
                        '{"float16": 11.0, "bfloat16": 88.5, "float32": 88.5}'
                    )
                },
            ),
            WrongAnswer("float16's limit for all", "range", {'"bfloat16": 89.0': '"bfloat16": 12.0'}),
        ),
    ),
    right_answers=(
        Variant("so low that every exp vanishes", {"return np.array([logit, logit])": "return np.full(3, -128.0)"}),
        Variant(
            "three that differ, in the format's own dtype",
            {
                "return np.array([logit, logit])": (
                    "return np.array([logit, logit + 1, logit - 1],\n"
                    '                    np.float16 if dtype == "float16" else np.float32)'
                )
            },
        ),
    ),
)

EXERCISES = (LARGEST, NAIVE, BREAKING)


QUIZ = [
    {
        "question": "float16 and bfloat16 both have 16 bits. Why does exp overflow near 11 in one and near "
        "89 in the other?",
        "type": "multiple_choice",
        "answers": [
            option("bfloat16 rounds more coarsely", False, "It does, and that does not move the limit to 89."),
            option(
                "bfloat16 spends 3 more bits on the exponent",
                True,
                "The exponent bits set the largest number, and its logarithm is the limit.",
            ),
            option("bfloat16 is computed in float32", False, "Often it is, but its largest number is its own."),
        ],
    },
    {
        "question": "In float16, the logits are 12, 0, 0. What does the naive softmax return?",
        "type": "multiple_choice",
        "answers": [
            option("NaN, 0, 0", True, "inf / inf for the first; 1 / inf for the others."),
            option("1, 0, 0", False, "That is the true softmax, to 5 digits. exp(12) does not fit into float16."),
            option("NaN, NaN, NaN", False, "Only what overflowed itself becomes inf / inf."),
            option("0, 0, 0", False, "That happens when the sum overflows and no exp does."),
        ],
    },
    {
        "question": "70,000 float16 logits are all 0. What is wrong with their naive softmax?",
        "type": "multiple_choice",
        "answers": [
            option("Nothing: exp(0) is 1", False, "Each term is 1, and the sum is 70,000."),
            option("exp overflows", False, "exp(0) is 1."),
            option(
                "The sum exceeds 65,504, and every weight becomes 0",
                True,
                "Nothing reports it: zeros are finite.",
            ),
        ],
    },
    {
        "question": "Every float16 logit of a row lies below -18. What does the naive softmax return?",
        "type": "multiple_choice",
        "answers": [
            option("Zeros", False, "The sum is 0 as well, and 0 is not divided by 0 without a trace."),
            option("The right weights: small numbers are harmless", False, "Every exp has been rounded to 0."),
            option("NaN", True, "Every exp is 0 in float16, so that each weight is 0 / 0."),
        ],
    },
    {
        "question": "You rewrite a float32 model in float64, because its naive softmax gave NaN. Is it safe now?",
        "type": "multiple_choice",
        "answers": [
            option(
                "No: exp overflows above 709.78",
                True,
                "A wider format moves the limit; it does not remove it.",
            ),
            option("Yes: float64 has 53 bits of mantissa", False, "The mantissa gives digits, not range."),
            option("Yes: weights never exceed 1", False, "The weights do not, but their exps do."),
        ],
    },
]
