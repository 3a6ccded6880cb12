"""What float16, bfloat16 and float32 can hold, where exp leaves each of them, and softmax rounded to each.

NumPy has no bfloat16. Here all three are treated alike: a result is computed in float64 and then rounded to
a number of the format, to nearest with ties to even, and to infinity beyond its largest (IEEE 754, section
4.3.1). For float16 and float32 that is what NumPy's `astype` does.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FloatFormat:
    """A binary format: one sign bit, `exponent_bits` for the range, `mantissa_bits` for the digits."""

    name: str
    exponent_bits: int
    mantissa_bits: int

    @property
    def bits(self):
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def largest_exponent(self):
        """The power of 2 in the largest numbers. Half of all are negative; one is for inf and NaN."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def largest(self):
        return (2 - 2.0**-self.mantissa_bits) * 2.0**self.largest_exponent

    @property
    def smallest_normal(self):
        """The smallest positive number with all its digits."""
        return 2.0 ** (1 - self.largest_exponent)

    @property
    def smallest(self):
        """The smallest positive number, a subnormal with one bit left."""
        return self.smallest_normal * 2.0**-self.mantissa_bits

    def gap(self, x):
        """From |x| to the next larger number of the format, for |x| that it holds. x: any shape, finite."""
        _, exponent = np.frexp(np.maximum(np.abs(x), self.smallest_normal))
        return np.ldexp(1.0, exponent - 1 - self.mantissa_bits)

    def round(self, x):
        """The format's numbers nearest to x, in float64. x: any shape; inf and nan stay what they are."""
        x = np.asarray(x, dtype=np.float64)
        gap = self.gap(np.where(np.isfinite(x), x, 0))
        rounded = np.rint(x / gap) * gap
        return np.where(np.abs(rounded) > self.largest, np.copysign(np.inf, x), rounded)[()]

    def holds(self, x):
        """Which of x are finite numbers of the format. x: any shape. Returns bools of that shape."""
        x = np.asarray(x, dtype=np.float64)
        return np.isfinite(x) & (self.round(x) == x)


FLOAT16 = FloatFormat("float16", 5, 10)
BFLOAT16 = FloatFormat("bfloat16", 8, 7)
FLOAT32 = FloatFormat("float32", 8, 23)
FORMATS = {number_format.name: number_format for number_format in (FLOAT16, BFLOAT16, FLOAT32)}


def largest_exp_input(number_format):
    """The largest number of the format whose exp, rounded to the format, is finite. Returns a float."""
    # Half a gap above the largest number is where rounding goes to infinity.
    limit = np.log(number_format.largest + number_format.gap(number_format.largest) / 2)
    gap = number_format.gap(limit)
    return float(np.floor(limit / gap) * gap)


def smallest_exp_input(number_format, result=None):
    """The smallest number of the format whose exp is above 0, or at least `result`, a number of the format.

    Returns a float. Rounding to the format included, as above.
    """
    result = number_format.smallest if result is None else result
    limit = np.log(result - number_format.gap(result) / 2)  # what lies above this rounds to result or more
    gap = number_format.gap(limit)
    return float(np.ceil(limit / gap) * gap)


def naive_softmax_steps(x, number_format):
    """exp(x) / sum(exp(x)) over the last axis, with x and the result of every step rounded to the format.

    x: [..., n], finite. The sum is rounded once, when it is complete.
    Returns (exp_x, total, weights): [..., n], [..., 1], [..., n], float64 holding numbers of the format,
    inf and nan where it overflows.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        exp_x = number_format.round(np.exp(number_format.round(x)))
        total = number_format.round(exp_x.sum(axis=-1, keepdims=True))
        return exp_x, total, number_format.round(exp_x / total)
