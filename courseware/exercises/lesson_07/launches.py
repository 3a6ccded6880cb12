"""What the lesson's exercises share: matrices with the block that their rows go through, and who does what."""

import numpy as np
from hypothesis import strategies as st

from courseware.checks import case_of, single_finding
from courseware.checks.kernel_calls import launch_agrees
from courseware.exercises.common.generators import NUMBERS, drawn_case

rows_case = case_of("x BLOCK")
WIDE = np.random.default_rng(7).standard_normal((2, 18)).round(1)


def rows(counts, lengths, block=4, of=NUMBERS):
    """As many rows as one of `counts`, as long as one of `lengths`."""
    return drawn_case({"n": counts, "length": lengths}, of, x="n length", BLOCK=st.just(block))


def shared_out(oracle, work, requested_bytes=None):
    """A test: `launch_agrees`, and every program has a part in the work, block by block.

    work(**inputs): (how many programs, lanes of the widest load or store, enough). enough: (name without _ptr, "load"
    or "store") -> how many of a program.
    """
    agrees = launch_agrees(oracle, requested_bytes)

    def test(launch, **inputs):
        if evidence := agrees(launch, **inputs):
            return evidence
        programs, lanes, enough = work(**inputs)
        if launch.trace.widest > lanes:
            text = f"a load or store is {launch.trace.widest} elements wide, where a block has {lanes}"
            return single_finding("wide", text)
        for (name, kind), most in enough.items():
            counts = [n for (tensor, _, its), n in launch.trace.requests.items() if (tensor, its) == (name, kind)]
            if len(counts) < programs:
                return single_finding("idle", f"{len(counts)} of {programs} programs {kind} {name}", part=name)
            if max(counts) > most:
                text = f"a program makes {max(counts)} {kind}s of {name}, where {most} of a whole block would do"
                return single_finding("many requests", text, part=name)
        return None

    return test
