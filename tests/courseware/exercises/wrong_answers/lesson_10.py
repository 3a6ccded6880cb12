"""Lesson 10: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

from courseware.bench.bounds import roofline_seconds


def seconds_but_for_no_kernels(kernels, flops_per_s, bytes_per_s, launch_s=0.0):
    return roofline_seconds(kernels, flops_per_s, bytes_per_s, launch_s) if kernels else launch_s


def point_of_shares(seconds, flops, n_bytes, launches, flops_per_s, bytes_per_s, launch_s):
    needs = {"arithmetic": flops / flops_per_s, "memory": n_bytes / bytes_per_s, "launch": launches * launch_s}
    resource = max(needs, key=needs.get)
    return resource, needs[resource] / sum(needs.values())


WRONG_ANSWERS = {
    "arithmetic_intensity": {
        "the limit d / b": ({"flops / (elements * bytes_per_element)": "d / bytes_per_element"}, "the intensity is too large by the factor 1.5"),
        "the limit 2 d / b": ({"flops / (elements * bytes_per_element)": "2 * d / bytes_per_element"}, "the intensity is too large by the factor 3"),
        "elements, with tiles": ({"return flops": "return flops * (1 if block_q is None else bytes_per_element)"}, "the answer's FLOPs are 4 n n d, it divides them by 48"),
        "whole": ({"flops / (elements": "flops // (elements"}, "the intensity is 0"),
    },
    "roofline_seconds": {
        "min for max": ({"max(arithmetic_s, memory_s, launch_s)": "min(arithmetic_s, memory_s)"}, "the time is too small by the factor 0.5"),
    },
    "explain_point": {
        "<= 1/2": ({"share < 0.5": "share <= 0.5"}, "the verdict should be 'arithmetic', not 'none of these'"),
        "the share upside down": ({"needs[resource] / seconds": "seconds / needs[resource]"}, "the verdict should be 'arithmetic', not 'miscounted'"),
        "the roof is always memory": ({"max(needs, key=needs.get)": "'memory'"}, "the verdict should be 'arithmetic', not 'memory'"),
        "percent": ({"needs[resource] / seconds": "100 * needs[resource] / seconds"}, "the verdict should be 'arithmetic', not 'miscounted'"),
    },
}  # fmt: skip
