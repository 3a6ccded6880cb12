"""How a right result comes about, for a test to tell with what is wrong: it shows where an answer goes astray."""

from dataclasses import replace

import numpy as np

from course_lib.grading import Finding, show


def accounted(test, account):
    """A test for `Checks`: `test`, and of a wrong result what account(returned, **inputs) says, if anything."""

    def both(returned, **inputs):
        evidence = test(returned, **inputs)
        if evidence is None or not evidence.expected or evidence.findings[0].kind in ("none", "type", "dtype", "shape"):
            return evidence
        text = account(returned, **inputs)
        return replace(evidence, findings=(*evidence.findings, Finding("", "account", text))) if text else evidence

    return both


def of_softmax(x, out):
    """What is seen of a softmax of rows: sums that are not 1 show a wrong division, other steps wrong exponentials."""
    with np.errstate(all="ignore"):
        steps = (show(np.diff(row[:4]).round(3)) for row in (np.log(out[0]), x[0]))
    said = "its rows sum to {}, and from column to column the logarithm of row 0 rises by {}, where x rises by {}"
    return said.format(show(out.sum(axis=1).round(3)), *steps)
