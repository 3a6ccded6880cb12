"""Which resource binds a measured call."""

import math

import numpy as np
from hypothesis import strategies as st

from course_lib.grading.diagnosis import show
from course_lib.grading.exercise import Checks, Evidence, Exercise, Finding
from course_lib.measure.bounds import explain_point, measured_cases

VERDICTS = ("arithmetic", "memory", "launch", "none of these", "miscounted")


def explains(answer, **point):
    returned = answer(*point.values())
    verdict, share = explain_point(**point)

    def wrong(part, kind, text):
        return Evidence((Finding(part, kind, text),), _shown(returned), f"({verdict!r}, {share:.6g})")

    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[0], str):
        return wrong("", "type", "the answer did not return a verdict, as text, and a share")
    said, of = returned
    if said not in VERDICTS:
        return wrong("the verdict", "word", f"{said!r} is none of {', '.join(map(repr, VERDICTS))}")
    if said != verdict:
        return wrong("the verdict", f"{said} for {verdict}", f"the verdict is {said!r}, not {verdict!r}")
    if not isinstance(of, float | int | np.floating | np.integer) or not math.isclose(of, share, rel_tol=1e-5):
        return wrong("the share", "values", "the share is not the longest need over the measured seconds")
    return None


def _shown(returned):
    if not isinstance(returned, tuple):
        return show(returned)
    return f"({', '.join(repr(value) if isinstance(value, str) else show(value) for value in returned)})"


def point(seconds, flops, n_bytes, launches=1, launch_s=0.5):
    """Round rates: 100 FLOPs and 10 bytes a second."""
    return {
        "seconds": seconds, "flops": flops, "n_bytes": n_bytes, "launches": launches, "flops_per_s": 100.0,
        "bytes_per_s": 10.0, "launch_s": launch_s,
    }  # fmt: skip


@st.composite
def points(draw, least_percent, most_percent, launches=(1, 4)):
    """Needs that differ, and a measured time of which the longest need is a share between the two."""
    arithmetic, memory, launch = draw(st.permutations([1, 2, 3]))
    percent = draw(st.integers(least_percent, most_percent).filter(lambda share: share not in (50, 100)))
    count = draw(st.integers(*launches))
    return point(300 / percent, 100.0 * arithmetic, 10.0 * memory, count, launch / count)


check = Checks(explain_point, explains)

check(
    "the resource that needs longest binds; the share is its need over the seconds",
    [
        point(4.0, 300.0, 20.0),
        point(4.0, 100.0, 30.0),
        point(4.0, 100.0, 20.0, 1, 3.0),
        point(4.0, 200.0, 10.0),
        points(55, 95, launches=(1, 1)),
    ],
)
check(
    "every launch takes launch_s",
    [point(4.0, 200.0, 10.0, 6, 0.5), point(8.0, 300.0, 20.0, 3, 2.0), points(55, 95, launches=(2, 4))],
)
check(
    "less than half of the time explained: none of these",
    [point(8.0, 300.0, 20.0), point(8.0, 100.0, 30.0), points(5, 45)],
)
check(
    "more than the whole time explained: miscounted",
    [point(2.0, 100.0, 30.0), point(2.0, 300.0, 20.0), points(105, 300)],
)
check("the measured cases", measured_cases().values())

EXERCISE = Exercise(__file__, explain_point, check, points=3, minutes=12, difficulty="medium")
