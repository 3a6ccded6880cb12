"""Lesson 11: right answers written differently."""

import math

import numpy as np


def seconds_program_by_program(counts, gpu):
    """Hands programs out, one to each SM in turn, until none is left."""
    left, programs = counts["programs"], 0
    while left > 0:
        left, programs = left - gpu["sms"], programs + 1
    clocks = 0.0
    for _ in range(programs):
        clocks += counts["tiles"] * counts["product_clocks"]
        clocks += counts["tiles"] * counts["warps"] * counts["instructions"] / gpu["schedulers"]
        clocks += counts["tiles"] * counts["wait_clocks"] / min(programs, counts["resident"])
    return clocks / gpu["clock_hz"]


def seconds_by_numpy(counts, gpu):
    of_a_tile = np.array([counts["product_clocks"], counts["instructions"] * counts["warps"], counts["wait_clocks"]])
    programs = math.ceil(counts["programs"] / gpu["sms"])
    shares = of_a_tile / [1, gpu["schedulers"], counts["resident"] if counts["resident"] < programs else programs]
    return np.float32(shares.sum() * counts["tiles"] * programs / gpu["clock_hz"])


def waste_pair_by_pair(kernel):
    """Asks of each pair whether its last query sees its first key."""
    n, block_q, block_k = kernel["n"], kernel["block_q"], kernel["block_k"]
    seen = sum(
        not kernel["causal"] or first_key <= first_query + block_q - 1
        for first_query in range(0, n, block_q)
        for first_key in range(0, n, block_k)
    )
    row_bytes = kernel["d"] * kernel["element_bytes"]
    pairs = kernel["v_bytes"] / row_bytes / block_k
    loaded_bytes = sum(kernel[f"{name}_bytes"] for name in "qkv") + pairs * kernel["spilled_bytes"]
    computes, reads = pairs / seen, loaded_bytes / (n * row_bytes + 2 * kernel["v_bytes"])
    waits = 1 + kernel["wait_clocks"] / kernel["work_clocks"]
    ratio, verdict = max((computes, "computes"), (reads, "reads"), (waits, "waits"))
    return ["nothing", 1.0] if ratio == 1 else [verdict, ratio]


RIGHT_ANSWERS = {
    "predict_rung": {"program by program": seconds_program_by_program, "by NumPy, in float32": seconds_by_numpy},
    "find_the_waste": {
        "pair by pair, as a list": waste_pair_by_pair,
        "in float32": {'"waits": (': '"waits": np.float32('},
    },
}
