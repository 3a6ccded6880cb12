"""Lesson 10: right answers written differently."""

import math

import numpy as np


def intensity_by_loops(n, d, bytes_per_element, block_q=None):
    moved = 0
    if block_q is None:
        for shape in ((n, d), (n, d), (n, d), (n, n), (n, n), (n, n), (n, n), (n, d)):
            moved += math.prod(shape) * bytes_per_element
    else:
        for start in range(0, n, block_q):
            moved += 2 * min(block_q, n - start) * d * bytes_per_element + 2 * n * d * bytes_per_element
    return 2 * (2 * n * n * d) / moved


def seconds_by_arrays(kernels, flops_per_s, bytes_per_s, launch_s=0.0):
    needs = np.array(kernels, dtype=np.float64).reshape(-1, 2) / [flops_per_s, bytes_per_s]
    return np.maximum(needs.max(axis=1, initial=0), launch_s).sum()


def seconds_by_ridge(kernels, flops_per_s, bytes_per_s, launch_s=0.0):
    total = np.float32(0)
    for flops, n_bytes in kernels:
        compute_bound = flops >= n_bytes * flops_per_s / bytes_per_s
        need = flops / flops_per_s if compute_bound else n_bytes / bytes_per_s
        total += np.float32(need if need > launch_s else launch_s)
    return total


def point_by_comparisons(seconds, flops, n_bytes, launches, flops_per_s, bytes_per_s, launch_s):
    arithmetic, memory, launch = flops / flops_per_s, n_bytes / bytes_per_s, launches * launch_s
    if arithmetic > memory and arithmetic > launch:
        verdict, need = "arithmetic", arithmetic
    elif memory > launch:
        verdict, need = "memory", memory
    else:
        verdict, need = "launch", launch
    if need > seconds:
        verdict = "miscounted"
    elif 2 * need < seconds:
        verdict = "none of these"
    return verdict, need / seconds


RIGHT_ANSWERS = {
    "arithmetic_intensity": {"tile by tile": intensity_by_loops, "in float32": {"flops = 4": "flops = np.float32(4)"}},
    "roofline_seconds": {"by arrays": seconds_by_arrays, "by comparisons": seconds_by_ridge},
    "explain_point": {
        "by comparisons": point_by_comparisons,
        "in float32": {"share = needs[resource] / seconds": "share = np.float32(needs[resource] / seconds)"},
    },
}
