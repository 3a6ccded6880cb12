"""The last number of a format whose exponential the format can hold."""

import numbers

import numpy as np
from hypothesis import strategies as st

from course_lib.reference import formats
from courseware.checks import AnswerError, Checks, Exercise, judging, show, single_finding


def largest_exp_input(exponent_bits, mantissa_bits):
    """The largest number of a format whose exp is finite in that format.

    exponent_bits: 3 to 8. mantissa_bits: 2 to 23. float16 has (5, 10), bfloat16 (8, 7), float32 (8, 23); the
        format may be any other that is made like these: it keeps one exponent for inf and NaN, and one for 0
        and the subnormals.
    Returns a float, one that the format holds: exp of it, rounded to the format, is finite, and exp of the
        format's next larger number is not.

    >>> print(largest_exp_input(5, 10))
    11.0859375
    """
    largest_exponent = 2 ** (exponent_bits - 1) - 1
    # Half a gap above the largest number, from where on rounding goes to infinity.
    limit = np.log((2 - 2.0 ** -(mantissa_bits + 1)) * 2.0**largest_exponent)
    gap = 2.0 ** (np.floor(np.log2(limit)) - mantissa_bits)  # between the format's numbers near limit
    return float(np.floor(limit / gap) * gap)


def on_a_number(judge):
    """A test that hands (format, the number that came back) to judge, or says that it is no number."""

    def test(returned, exponent_bits, mantissa_bits):
        if isinstance(returned, bool) or not isinstance(returned, (numbers.Real, np.floating)):
            return single_finding("type", f"the answer returned {show(returned)}, not a number")
        if not np.isfinite(returned):
            return single_finding("inf", f"{show(returned)} came back, which is not a finite number", show(returned))
        names = {(f.exponent_bits, f.mantissa_bits): f.name for f in formats.FORMATS.values()}
        name = names.get((exponent_bits, mantissa_bits), "the format")
        return judge(formats.FloatFormat(name, exponent_bits, mantissa_bits), float(returned))

    return test


def in_time(call, test):
    """A Property's test that tells of a time limit what a format of many digits has to do with it."""
    judged = judging(call, test)

    def call_and_test(answer, exponent_bits, mantissa_bits):
        try:
            return judged(answer, exponent_bits=exponent_bits, mantissa_bits=mantissa_bits)
        except AnswerError as error:
            if error.finding.kind != "timeout" or mantissa_bits < 16:
                raise
            many = f"This format has {2**mantissa_bits:,} numbers from 1 up to 2, and as many from 2 up to 4:"
            text = f"{error.finding.text}\n{many}\nto try them one after another takes too long"
            return single_finding("timeout", text)

    return call_and_test


def is_held(fmt, x):
    if fmt.holds(x):
        return None
    if abs(x) > fmt.largest:
        return single_finding("not held", f"{fmt.name} ends at {fmt.largest:.5g}", repr(x))
    gap = fmt.gap(x)
    below = np.floor(x / gap) * gap
    text = f"{fmt.name} does not hold {x!r}: its neighbours there are {below:.10g} and {below + gap:.10g}"
    return single_finding("not held", text, repr(x))


def exp_is_finite(fmt, x):
    if x <= formats.largest_exp_input(fmt):
        return None
    if x - fmt.gap(x) <= formats.largest_exp_input(fmt):
        return single_finding("one step", f"x is one number too far: exp(x) rounds to infinity in {fmt.name}", repr(x))
    size = f"about {np.exp(x):.4g}" if x <= 700 else f"more than {np.exp(700):.4g}"
    text = f"exp(x) is {size}, and {fmt.name} ends at {fmt.largest:.5g}"
    return single_finding("too large", text, repr(x))


def no_larger_one(fmt, x):
    if x == formats.largest_exp_input(fmt):
        return None
    following = x + fmt.gap(x)
    exact, rounded = float(np.exp(following)), float(fmt.round(np.exp(following)))
    text = f"the next number of {fmt.name} is {following:.10g}; its exp, {exact:.5g}, is rounded to {rounded:.5g}"
    text += ", the largest number" * (rounded == fmt.largest) + ", so it is finite too"
    return single_finding("too small", text, repr(x))


# float16, bfloat16, float32 and others. In (4, 14) and (3, 3) the limit depends on the mantissa; in (4, 3) and (3, 4)
# an exp above the largest number still rounds to it.
EACH = [(5, 10), (8, 7), (8, 23), (5, 3), (4, 14), (3, 3), (4, 3), (3, 4)]
check = Checks(largest_exp_input, on_a_number(is_held), through=in_time)

check("a number comes back, and the format holds it", EACH)
check("exp of it is finite in the format", EACH, test=on_a_number(exp_is_finite))
ANY = st.tuples(st.integers(3, 8), st.integers(2, 23))
check("exp of the format's next number is infinite", [*EACH, ANY], test=on_a_number(no_larger_one))

EXERCISE = Exercise(__file__, largest_exp_input, check, points=2, minutes=25, difficulty="hard")
