"""How a right result comes about, for a test to tell with what is wrong: it shows where an answer goes astray."""

import numpy as np

from courseware.checks import show


def explain(test, account):
    """A test for `Checks`: `test`, and of a wrong result what account(returned, **inputs) says, if anything."""

    def both(returned, **inputs):
        evidence = test(returned, **inputs)
        if evidence is None or not evidence.expected or evidence.findings[0].kind in ("none", "type", "dtype", "shape"):
            return evidence
        return evidence.with_account(account(returned, **inputs))

    return both


def explain_softmax(x, out):
    """What is seen of a softmax of rows: sums that are not 1 show a wrong division, other steps wrong exponentials.

    Nothing where the sums alone are wrong, which is told already, or where nothing is a number.
    """
    with np.errstate(all="ignore"):
        told = np.isfinite(steps := np.diff(np.log(out)))
        if np.allclose(steps[told], np.diff(x)[told], atol=1e-3):
            return ""
        sums = out.sum(axis=1)
        row = int(np.argmax(np.abs(np.nan_to_num(sums, nan=np.inf) - 1)))
        steps = [show(np.diff(each[:4]).round(3)) for each in (np.log(out[row]), x[row])]
    said = f"its rows sum to {show(sums.round(3))}"
    if x.shape[1] == 1:
        return said
    rises, due = steps
    return f"{said}, and from column to column the logarithm of row {row} rises by {rises}, where x rises by {due}"
