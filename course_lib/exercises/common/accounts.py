"""How a right result comes about, for a test to tell with what is wrong: where an answer leaves it can be seen there."""

from dataclasses import replace

from course_lib.grading import Finding


def accounted(test, account):
    """A test for `Checks`: `test`, and if a result is wrong, what account(returned, **inputs) says to it, if anything."""

    def both(returned, **inputs):
        evidence = test(returned, **inputs)
        if evidence is None or not evidence.expected or evidence.findings[0].kind in ("none", "type", "dtype", "shape"):
            return evidence
        text = account(returned, **inputs)
        return replace(evidence, findings=(*evidence.findings, Finding("", "account", text))) if text else evidence

    return both
