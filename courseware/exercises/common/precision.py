"""That float64 inputs give float64 digits, where a docstring promises them: `compare` allows for float32's rounding."""

import numpy as np

from courseware.checks import compare, show, single_finding

EPSILONS = 64  # of float64, relative to the terms: another order of a few operations on each of them


def keeps_float64(oracle):
    """A test for `Checks`, of float64 inputs: the call returns what oracle(**names) states, to float64's digits."""

    def test(returned, **names):
        parts = oracle(**names)
        return compare(returned, parts) or lost_digits(returned if len(parts) > 1 else [returned], parts)

    return test


def lost_digits(returned, parts, sizes=None):
    """Evidence of the first output that is right in float32 only, or None.

    returned: outputs that `compare` accepts. sizes: of each one's terms, where they are not those of the parts.
    """
    for part, came, size in zip(parts, returned, sizes or [part.terms for part in parts], strict=True):
        came, finite = np.asarray(came), np.isfinite(part.expected)
        size = np.maximum(size, np.abs(np.where(finite, part.expected, 0)))
        with np.errstate(invalid="ignore"):  # -inf - -inf
            off = np.where(finite, np.abs(came - part.expected), 0)
        if (off > EPSILONS * np.finfo(np.float64).eps * size).any():
            digits = -np.log10((off / np.maximum(size, 1e-300)).max())
            text = f"{part.name} is right to about {int(digits)} digits only, where float64 has 15"
            text += f": it is {came.dtype}" * (came.dtype != np.float64)
            shown = (f"{part.name} = {show(np.asarray(x), 15)}" for x in (came, part.expected))
            return single_finding("digits", text, *shown, part=part.name)
    return None
