"""Lesson 10: wrong answers that are no slips, and what the check has to say of each."""

from course_lib.measure.bounds import roofline_seconds


def seconds_but_for_no_kernels(kernels, flops_per_s, bytes_per_s, launch_s=0.0):
    return roofline_seconds(kernels, flops_per_s, bytes_per_s, launch_s) if kernels else launch_s


def point_of_shares(seconds, flops, n_bytes, launches, flops_per_s, bytes_per_s, launch_s):
    needs = {"arithmetic": flops / flops_per_s, "memory": n_bytes / bytes_per_s, "launch": launches * launch_s}
    resource = max(needs, key=needs.get)
    return resource, needs[resource] / sum(needs.values())


WRONG_ANSWERS = {
    "arithmetic_intensity": {
        "n / block_q is not rounded": ({"-(-n // block_q)": "n / block_q"}, ""),
        "K alone is read again": ({"2 * matrix + 2 * matrix * n_tiles": "3 * matrix + matrix * n_tiles"}, ""),
        "the limit d / b": ({"flops / (elements * bytes_per_element)": "d / bytes_per_element"}, ""),
        "the limit 2 d / b": ({"flops / (elements * bytes_per_element)": "2 * d / bytes_per_element"}, ""),
        "one tile too many": ({"-(-n // block_q)": "n // block_q + 1"}, ""),
        "O is written for every tile": ({"2 * matrix + 2 * matrix * n_tiles": "matrix + 3 * matrix * n_tiles"}, ""),
        "S and P once": ({"4 * matrix + 4 * n * n": "4 * matrix + 2 * n * n"}, ""),
        "S alone": ({"4 * matrix + 4 * n * n": "4 * matrix + 2 * n * n"}, ""),
        "one product": ({"flops = 4": "flops = 2"}, ""),
        "bytes per FLOP": ({"flops / (elements * bytes_per_element)": "(elements * bytes_per_element) / flops"}, ""),
        "whole": ({"flops / (elements": "flops // (elements"}, ""),
    },
    "roofline_seconds": {
        "a launch for no kernels": (seconds_but_for_no_kernels, "the time is 4, not 0"),
        "min for max": ({"max(arithmetic_s, memory_s, launch_s)": "min(arithmetic_s, memory_s)"}, ""),
        "flops and bytes exchanged": ({"for flops, n_bytes in": "for n_bytes, flops in"}, ""),
        "rates exchanged": ({"flops / flops_per_s, n_bytes / bytes_per_s": "flops / bytes_per_s, n_bytes / flops_per_s"}, ""),
        "one launch for all": ({"max(arithmetic_s, memory_s, launch_s)": "max(arithmetic_s, memory_s)", "    return seconds": "    return max(seconds, launch_s)"}, ""),
        "launches added": ({"max(arithmetic_s, memory_s, launch_s)": "max(arithmetic_s, memory_s) + launch_s"}, ""),
        "the slowest kernel": ({"seconds += max(arithmetic_s, memory_s, launch_s)": "seconds = max(seconds, arithmetic_s, memory_s, launch_s)"}, ""),
        "the last kernel": ({"seconds += max(": "seconds = max("}, ""),
        "arithmetic and memory add up": ({"max(arithmetic_s, memory_s, launch_s)": "max(arithmetic_s + memory_s, launch_s)"}, ""),
        "a row of whole kernels": ({"    for flops, n_bytes in kernels:": "    for flops, n_bytes in [[sum(x) for x in zip(*kernels, strict=True)]] if kernels else []:"}, ""),
    },
    "explain_point": {
        ">= 1": ({"share > 1": "share >= 1"}, ""),
        "<= 1/2": ({"share < 0.5": "share <= 0.5"}, ""),
        "the share upside down": ({"needs[resource] / seconds": "seconds / needs[resource]"}, ""),
        "launch_s once": ({"launches * launch_s": "launch_s"}, ""),
        "the shortest": ({"max(needs": "min(needs"}, ""),
        "share of the sum": (point_of_shares, ""),
        "no miscounted": ({"share > 1": "share > 100"}, ""),
        "all needs add up": ({"needs[resource] / seconds": "sum(needs.values()) / seconds"}, ""),
        "the roof is always memory": ({"max(needs, key=needs.get)": "'memory'"}, ""),
        "percent": ({"needs[resource] / seconds": "100 * needs[resource] / seconds"}, ""),
    },
}  # fmt: skip
