"""How long each rank of a ring waits, from what it computes and what the link carries."""

import numpy as np
from hypothesis import strategies as st

from courseware.checks import Checks, Exercise, agrees, case_of, exactly
from courseware.exercises.common.explanations import explain
from courseware.exercises.common.generators import drawn_case
from courseware.simulators import ring


def exposed_seconds(pairs, n, d, heads, kv_heads, flops_per_s, bytes_per_s):
    """Seconds in which each rank of a ring waits instead of computing, in ring attention's forward: [ranks], float64.

    pairs: [ranks, ranks]. pairs[r, s]: how many pairs of a query and a key rank r computes at step s, in each of the
        query heads. A pair takes 4 d FLOPs. Every rank makes flops_per_s.
    n: how many rows of K, and as many of V, each rank sends at a step, in each of the kv_heads. A row has d elements of
        2 bytes. Every rank sends at bytes_per_s, and at the same time receives as fast.
    All ranks start step 0 at time 0. In each step but the last, a rank sends keys and values to rank + 1, the last rank
        to rank 0, while it computes. Such a transfer begins when both of its ranks have started the step.
    A rank starts its next step when it has computed, has sent, and has received from the rank before it.
    A rank's waiting ends where the arithmetic of its last step begins.

    >>> pairs = np.array([[100, 100], [100, 100]])
    >>> exposed_seconds(pairs, n=10, d=8, heads=2, kv_heads=1, flops_per_s=1e3, bytes_per_s=40)
    array([1.6, 1.6])
    """
    compute = 4 * d * heads * pairs / flops_per_s
    transfer = 2 * kv_heads * n * d * 2 / bytes_per_s
    ranks = len(pairs)
    start = np.zeros(ranks)
    for step in range(ranks - 1):
        arrived = np.maximum(start, np.roll(start, 1)) + transfer
        sent = np.roll(arrived, -1)
        start = np.maximum(start + compute[:, step], np.maximum(arrived, sent))
    return start - compute[:, :-1].sum(axis=1)


def seconds(pairs, n, d, heads, kv_heads, flops_per_s, bytes_per_s):
    """(compute, [ranks, steps], and transfer)."""
    return pairs * heads * 4.0 * d / flops_per_s, kv_heads * n * 4 * d / bytes_per_s


def waits(**inputs):
    compute, transfer = seconds(**inputs)
    terms = compute.sum(axis=1).max() + len(compute) * transfer
    return exactly("the result", ring.waited(compute.tolist(), transfer), terms, "rank")


def as_simulated(returned, **inputs):
    compute, transfer = seconds(**inputs)
    steps = ring.timeline(compute.tolist(), transfer)
    off = np.abs(np.asarray(returned) - waits(**inputs)[0].expected)
    rank = int(np.argmax(off > 1e-4 * off.max()))
    spans = [f"from {steps[rank, i].start:.4g} to {steps[rank, i].computed:.4g}" for i in range(len(compute))]
    return f"a transfer takes {transfer:.4g} s, and rank {rank} computes {', '.join(spans)}"


case = case_of(exposed_seconds, n=10, d=8, heads=1, kv_heads=1, flops_per_s=64.0, bytes_per_s=320.0)
check = Checks(exposed_seconds, explain(agrees(waits), as_simulated), case)


def equal(ranks, pairs, **sizes):
    return case([[pairs] * ranks] * ranks, **sizes)


check("transfers that take longer than the arithmetic: what is left of them is waited for", [equal(2, 1), equal(3, 1)])
check("transfers that the arithmetic hides: nobody waits", [equal(2, 4), equal(4, 9)])
check("one rank sends nothing", [equal(1, 5)])
check("K and V travel once for the query heads that share them", [equal(2, 1, heads=3, kv_heads=2, n=70)])
check("the steps of a rank take unequally long", [case([[1, 5, 9], [1, 5, 9], [1, 5, 9]]), case([[4, 1, 2]] * 3)])
check(
    "a rank waits for the rank before it, which has started later",
    [case([[1, 2], [6, 2]]), case([[3, 9, 0], [1, 0, 4], [2, 5, 7]])],
)
check(
    "a rank waits for the rank behind it, which takes what it sends",
    [case([[0, 1, 1], [20, 1, 1], [0, 1, 1]]), case([[9, 1, 3, 1], [1, 2, 1, 5], [1, 1, 2, 2], [1, 0, 1, 3]])],
)
SIZES = {name: st.integers(1, most) for name, most in {"n": 6, "d": 4, "heads": 3, "kv_heads": 2}.items()}
RATES = {"flops_per_s": st.sampled_from([8.0, 40.0]), "bytes_per_s": st.sampled_from([10.0, 80.0])}
RINGS = drawn_case({"ranks": [2, 3, 4]}, st.integers(0, 9), pairs="ranks ranks", **SIZES, **RATES)
UNEQUAL = [[2, 0, 7, 1], [9, 4, 0, 3], [1, 8, 5, 0], [0, 3, 6, 2]]
check("any ring", [case(UNEQUAL, heads=4, kv_heads=2, d=5, n=7), RINGS])

EXERCISE = Exercise(__file__, exposed_seconds, check, points=4, minutes=15, difficulty="medium")
