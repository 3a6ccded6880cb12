"""One output after the other, where an answer returns several."""

from courseware.checks import Evidence


def setting_aside(agrees, *names):
    """A test for `Checks`: `agrees`, whatever is wrong with the outputs called `names`, which come later."""

    def test(returned, **inputs):
        evidence = agrees(returned, **inputs)
        if evidence is None:
            return None
        first, *_ = evidence.findings
        if first.kind == "swapped" and sum(name in first.text for name in names) == 2:
            return None  # the others are right
        findings = tuple(finding for finding in evidence.findings if finding.part not in names)
        aside = tuple(f"{name}, " for name in names)
        shown = (
            "\n".join(line for line in text.split("\n") if not line.startswith(aside))
            for text in (evidence.returned, evidence.expected)
        )
        return Evidence(findings, *shown) if findings else None

    return test
