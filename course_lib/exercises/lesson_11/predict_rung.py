"""The time that a rung of the ladder should take, from what is counted of it."""

import numpy as np
from hypothesis import strategies as st

from course_lib.grading.checking import agrees
from course_lib.grading.exercise import Checks, Exercise, ExpectedOutput, Slip
from course_lib.measure.rungs import GPU, counts_of, predict_rung


def least_time(counts, gpu):
    of_a_tile = [
        counts["product_clocks"],
        counts["instructions"] * counts["warps"] / gpu["schedulers"],
        counts["wait_clocks"] / counts["resident"],
    ]
    at_once = gpu["sms"] * counts["resident"]
    rounds = np.ceil(np.float64(counts["programs"]) / at_once)
    exact = rounds * counts["resident"] * counts["tiles"] * np.sum(of_a_tile) / gpu["clock_hz"]
    return [ExpectedOutput("the time", exact, np.float64(np.float32(exact)), exact)]


def case(programs, resident, warps=4, waits=900, instructions=250, sms=3, schedulers=4):
    """Round numbers, so that the time can be followed: a clock is a microsecond."""
    return {
        "counts": {
            "programs": programs, "resident": resident, "tiles": 5, "product_clocks": 600,
            "instructions": instructions, "warps": warps, "wait_clocks": waits,
        },
        "gpu": {"sms": sms, "schedulers": schedulers, "clock_hz": 1e6},
    }  # fmt: skip


INSTRUCTIONS = st.integers(1, 4).map(lambda i: 100 * i)
ISSUE = 'counts["instructions"] * counts["warps"] / gpu["schedulers"]'
WAIT = 'counts["wait_clocks"] / counts["resident"]'
SUM = f'counts["product_clocks"] + issue_clocks + {WAIT}'
ROUNDS = '-(-counts["programs"] // (gpu["sms"] * counts["resident"]))'
check = Checks(predict_rung, agrees(least_time))

check(
    "one program on each SM: products, instructions and waiting add up",
    [case(3, 1), case(3, 1, waits=0), st.builds(case, st.just(3), st.just(1), instructions=INSTRUCTIONS)],
).catches(
    Slip("products and instructions overlap", {SUM: f'max(counts["product_clocks"], issue_clocks) + {WAIT}'}),
    Slip("everything overlaps", {SUM: f'max(counts["product_clocks"], issue_clocks, {WAIT})'}),
    Slip("waiting takes no time", {f" + {WAIT}": ""}),
    Slip("clocks are returned", {'return clocks / gpu["clock_hz"]': "return clocks"}),
)
check(
    "every warp executes the instructions, and a scheduler issues one in a clock",
    [
        case(3, 1, warps=8),
        case(3, 1, warps=8, schedulers=2),
        st.builds(case, st.just(3), st.just(1), st.integers(1, 16)),
    ],
).catches(
    Slip("the warps are left out", {ISSUE: 'counts["instructions"]'}),
    Slip("one scheduler issues everything", {ISSUE: 'counts["instructions"] * counts["warps"]'}),
    Slip("one warp executes the instructions", {ISSUE: 'counts["instructions"] / gpu["schedulers"]'}),
)
check(
    "while one program waits, the SM's others work",
    [case(6, 2), case(9, 3, warps=8), st.integers(2, 4).flatmap(lambda r: st.builds(case, st.just(3 * r), st.just(r)))],
).catches(
    Slip("the others do not work meanwhile", {WAIT: 'counts["wait_clocks"]'}),
    Slip("an SM does the work of one program in a round", {'rounds * counts["resident"]': "rounds"}),
    Slip("one program runs on an SM at a time", {'(gpu["sms"] * counts["resident"])': 'gpu["sms"]'}),
)
check(
    "programs start in rounds, and the last one takes as long as a full one",
    [
        case(7, 2), case(10, 3, warps=8), {"counts": counts_of("fused scale", 4096, False), "gpu": GPU},
        st.builds(case, st.integers(1, 20), st.integers(1, 4), st.sampled_from([4, 8]), st.sampled_from([0, 900])),
    ],
).catches(
    Slip(
        "the last round is cut short",
        {ROUNDS: 'counts["programs"] / (gpu["sms"] * counts["resident"])'},
        {f"rounds = {ROUNDS}": 'rounds = -(-counts["programs"] // gpu["sms"]) / counts["resident"]'},
    ),
    Slip("the last round is left out", {ROUNDS: 'max(counts["programs"] // (gpu["sms"] * counts["resident"]), 1)'}),
)  # fmt: skip

EXERCISE = Exercise(__file__, predict_rung, check, points=3, minutes=12, difficulty="medium")
