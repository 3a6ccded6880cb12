"""How many digits a docstring promises, where that is more than those of float32, with which `compare` is content."""

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
            relative = off / np.maximum(size, 1e-300)
            text = f"{part.name} is right to about {int(-np.log10(relative.max()))} digits only, where float64 has 15"
            text += f": it is {came.dtype}" * (came.dtype != np.float64)
            # A sum that is wrong changes all entries by one factor, and what is rounded does not.
            if off.size > 1 and np.ptp(relative) < 1e-3 * relative.max():
                text += ", and every entry is off by the same part of itself"
            shown = (f"{part.name} = {show(np.asarray(x), 15)}" for x in (came, part.expected))
            return single_finding("digits", text, *shown, part=part.name)
    return None


def keeps_float32(exact_lse):
    """A test of a kernel: lse is exact_lse(**inputs) to 2^-20, a few roundings. `compare` allows for more."""

    def test(launch, **inputs):
        off = float(np.abs(launch.outputs["lse_ptr"].ravel() / exact_lse(**inputs) - 1).max())
        text = f"lse is off by {off:.1g} of itself, where float32 rounds by 6e-08"
        return single_finding("digits", text, part="lse") if off > 2**-20 else None

    return test


def rounds_products(agrees):
    """A test for `kernel_checks`: `agrees`, and there are products by tl.dot, each of float32 inputs as they are."""

    def test(launch, **inputs):
        if wrong := agrees(launch, **inputs):
            return wrong
        if not launch.trace.dots:
            return single_finding("no dot", "no product is a tl.dot, and only these run on a GPU's tensor cores")
        text = "tl.dot may round its float32 inputs to TF32 on a GPU, which leaves them about 3 digits"
        return single_finding("tf32", text) if launch.trace.rounding_dots else None

    return test
