"""Which resource binds a measured call."""

from hypothesis import strategies as st

from courseware.bench.bounds import explain_point, measured_cases
from courseware.checks import Checks, Exercise, case_of
from courseware.exercises.common.verdicts import check_verdict

VERDICTS = ("arithmetic", "memory", "launch", "none of these", "miscounted")


# Round rates: 100 FLOPs and 10 bytes a second.
RATES = {"flops_per_s": 100.0, "bytes_per_s": 10.0}
point = case_of("seconds flops n_bytes launches launch_s flops_per_s bytes_per_s", launches=1, launch_s=0.5, **RATES)


@st.composite
def points(draw, least_percent, most_percent, launches=(1, 4)):
    """Needs that differ, and a measured time of which the longest need is a share between the two."""
    arithmetic, memory, launch = needs = draw(st.lists(st.integers(1, 9), min_size=3, max_size=3, unique=True))
    percent = draw(st.integers(least_percent, most_percent).filter(lambda share: share not in (50, 100)))
    count = draw(st.integers(*launches))
    return 100 * max(needs) / percent, 100.0 * arithmetic, 10.0 * memory, count, launch / count


def account(seconds, flops, n_bytes, launches, flops_per_s, bytes_per_s, launch_s):
    needs = {"arithmetic": flops / flops_per_s, "memory": n_bytes / bytes_per_s, "launches": launches * launch_s}
    return {f"{name} take{'s' * (name != 'launches')}": need for name, need in needs.items()} | {
        "of the seconds measured,": seconds
    }


NUMBER = "the longest of the three least times over the measured seconds"
check = Checks(explain_point, check_verdict(explain_point, VERDICTS, NUMBER, account), point)

check(
    "the resource with the longest least time binds; the share is this time over the seconds",
    [
        (4.0, 300.0, 20.0),
        (4.0, 100.0, 30.0),
        (4.0, 100.0, 20.0, 1, 3.0),
        (4.0, 200.0, 10.0),
        (3.0, 300.0, 20.0),
        points(55, 95, launches=(1, 1)),
    ],
)
check("every launch takes launch_s", [(4.0, 200.0, 10.0, 6, 0.5), points(55, 95, launches=(2, 4))])
check(
    "less than half of the time explained: 'none of these', with the share that is explained",
    [(8.0, 300.0, 20.0), (8.0, 100.0, 30.0), (8.0, 200.0, 10.0, 1, 3.0), points(5, 45)],
)
check(
    "more than the whole time explained: 'miscounted', with a share above 1",
    [(2.0, 100.0, 30.0), (2.0, 300.0, 20.0), (2.0, 201.0, 10.0), (2.0, 100.0, 10.5, 1, 3.0), points(105, 300)],
)
check("the measured cases", measured_cases().values())

EXERCISE = Exercise(__file__, explain_point, check, points=3, minutes=12, difficulty="medium")
