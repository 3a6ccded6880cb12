"""The time that a rung of the ladder should take, from what is counted of it."""

import functools

import numpy as np
from hypothesis import strategies as st

from courseware.bench.ladder_model import GPU, counts_of, predict_rung
from courseware.checks import Checks, Exercise, ExpectedOutput, agrees, not_modified
from courseware.exercises.common.explanations import explain


def clocks(counts, gpu):
    """Of the SM with most programs: how many they are, and the clocks for one tile of one of them, part by part."""
    of_each_sm = np.ceil(np.float64(counts["programs"]) / gpu["sms"])
    of_a_tile = [
        counts["product_clocks"],
        np.maximum(
            counts["instructions"] * counts["warps"] / gpu["schedulers"],
            counts["exponentials"] / gpu["exponentials_per_clock"],
        ),
        counts["wait_clocks"] / np.minimum(counts["resident"], of_each_sm),
    ]
    return of_each_sm, of_a_tile


def least_time(counts, gpu):
    of_each_sm, of_a_tile = clocks(counts, gpu)
    exact = of_each_sm * counts["tiles"] * np.sum(of_a_tile) / gpu["clock_hz"]
    return [ExpectedOutput("the time", exact, np.float64(np.float32(exact)), exact)]


def in_clocks(returned, counts, gpu):
    of_each_sm, of_a_tile = clocks(counts, gpu)
    parts = " + ".join(f"{part:.6g}" for part in of_a_tile)
    each = f"{of_each_sm:g} program{'s' * bool(of_each_sm != 1)} of {counts['tiles']:g} tiles of {parts} clocks"
    return f"the SM with most programs has {each}; the answer has {returned * gpu['clock_hz']:,.6g} clocks in all"


def case(programs, resident, warps=8, waits=900, instructions=250, sms=3, schedulers=4, tiles=5, exponentials=400):
    """Round numbers, so that the time can be followed: a clock is a microsecond."""
    return {
        "counts": {
            "programs": programs, "resident": resident, "tiles": tiles, "product_clocks": 600,
            "instructions": instructions, "warps": warps, "exponentials": exponentials, "wait_clocks": waits,
        },
        "gpu": {"sms": sms, "schedulers": schedulers, "exponentials_per_clock": 16, "clock_hz": 1e6},
    }  # fmt: skip


one_each = functools.partial(case, 3, 1)
alone = functools.partial(one_each, warps=1, schedulers=1)
ALONE = alone()
INSTRUCTIONS = st.integers(1, 4).map(lambda i: 100 * i)
check = Checks(predict_rung, explain(agrees(least_time), in_clocks))

check(
    "one program of one warp on each SM: products, instructions and waiting add up",
    [ALONE, ALONE | {"counts": ALONE["counts"] | {"wait_clocks": 0}}, st.builds(alone, instructions=INSTRUCTIONS)],
)
check(
    "programs of one warp or several, on one scheduler or several",
    [one_each(), one_each(schedulers=2), one_each(warps=6), one_each(warps=1), st.builds(one_each, st.integers(1, 16))],
)
check(
    "exponentials that take longer than the other instructions, or less long",
    [
        one_each(exponentials=9600), one_each(warps=2, exponentials=4000),
        st.builds(one_each, exponentials=st.integers(1, 9).map(lambda i: 1600 * i)),
    ],
)  # fmt: skip
check("2.5 tiles for each program, on average", [one_each(tiles=2.5), one_each(tiles=4.75)])
check(
    "several programs at a time on each SM: the work of all, and a share of each wait",
    [
        case(6, 2),
        case(9, 3, warps=4),
        case(9, 3, waits=5000),
        st.integers(2, 4).flatmap(lambda r: st.builds(case, st.just(3 * r), st.just(r))),
    ],
)
check(
    "a number of programs that the SMs do not divide",
    [
        case(7, 2), case(10, 3, warps=4), {"counts": counts_of("fused scale", 4096, True), "gpu": GPU},
        st.builds(case, st.integers(7, 30), st.integers(1, 2), st.sampled_from([4, 8]), st.sampled_from([0, 900])),
    ],
)  # fmt: skip
check(
    "an SM that has fewer programs than places for them",
    [case(3, 2), case(1, 2), case(5, 4), st.builds(case, st.integers(1, 20), st.integers(1, 6))],
)
check("the dicts are not modified", [case(3, 2)], calls=not_modified)

EXERCISE = Exercise(__file__, predict_rung, check, points=3, minutes=12, difficulty="medium")
