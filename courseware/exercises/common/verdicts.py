"""What exercises share whose answer is a verdict, one of a few words, and the number that it rests on."""

import math
from numbers import Real

from courseware.checks import show, single_finding


def check_verdict(reference, verdicts, number, account):
    """A test for `Checks`: the answer returns the verdict and the number that `reference` returns.

    number: what the number is, in words. account(**inputs): what the verdict rests on, {words: number}.
    """

    def test(returned, **inputs):
        verdict, expected = reference(**inputs)

        def wrong(part, kind, text):
            text += f"\non this input, {', '.join(f'{words} {show(x)}' for words, x in account(**inputs).items())}"
            return single_finding(kind, text, _shown(returned), f"({verdict!r}, {expected:.6g})", part)

        if not isinstance(returned, tuple | list) or len(returned) != 2 or not isinstance(returned[0], str):
            return wrong("", "type", "the answer did not return a verdict, as text, and a number")
        said, found = returned
        if said not in verdicts:
            return wrong("the verdict", "word", f"{said!r} is none of {', '.join(map(repr, verdicts))}")
        if said != verdict:
            return wrong("the number", f"{said} for {verdict}", f"the verdict should be {verdict!r}, not {said!r}")
        if not isinstance(found, Real) or not math.isclose(found, expected, rel_tol=1e-5):
            return wrong("the number", "values", f"the number is not {number}")
        return None

    return test


def _shown(returned):
    if not isinstance(returned, tuple | list):
        return show(returned)
    return f"({', '.join(repr(value) if isinstance(value, str) else show(value) for value in returned)})"
