"""How fast a call can be at best, and what binds a measured one.

The roofline is Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (2009). The
measured cases come from the records in courseware/data. Lesson 10's exercises are `roofline_seconds` and
`explain_point`.
"""

from course_lib import traffic
from course_lib.hardware import GPUS
from courseware.bench import records

# Kernels that one call of each method launches: standard attention is a product, a softmax and a product.
LAUNCHES = {"standard": 3, "flash": 1}
# Standard attention, d = 64, N = 4096, fp16, on an H100: Q K^T writes S, softmax turns it into P, P V reads P.
STANDARD_4096 = {
    "kernels": [(2**31, 34_603_008), (0, 67_108_864), (2**31, 34_603_008)],
    "flops_per_s": 989.4e12,
    "bytes_per_s": 3352e9,
    "launch_s": 2e-6,
}


def roofline_seconds(kernels, flops_per_s, bytes_per_s, launch_s=0.0):
    """The time of a sequence of kernels that run one after the other, by a model.

    kernels: a list of (flops, n_bytes), one pair per kernel, and either may be 0.
    flops_per_s: the peak rate of the arithmetic. bytes_per_s: the bandwidth of the memory. launch_s: the time that it
        takes to launch a kernel.
    The model: each kernel, the first one too, takes the longest of three times, namely its FLOPs at the peak rate, its
        bytes at the bandwidth, and launch_s. Each begins when the one before it has ended.
    Returns seconds as a float, 0.0 for no kernels. The list is not modified.

    >>> roofline_seconds([(400.0, 100.0), (0.0, 300.0)], flops_per_s=200.0, bytes_per_s=100.0)
    5.0
    """
    seconds = 0.0
    for flops, n_bytes in kernels:
        arithmetic_s, memory_s = flops / flops_per_s, n_bytes / bytes_per_s
        seconds += max(arithmetic_s, memory_s, launch_s)
    return seconds


def explain_point(seconds, flops, n_bytes, launches, flops_per_s, bytes_per_s, launch_s):
    """Which resource binds a measured call, and what share of its time that explains.

    seconds: measured, for the whole call. flops, n_bytes, launches: what the call is taken to need.
    flops_per_s, bytes_per_s: peak rate and bandwidth. launch_s: the time of one launch; the launches follow
        one another.
    A call's arithmetic, memory traffic and launches go on side by side, so each of the three sets a least time for the
        call. The longest of them, over the measured seconds, is the share of the time that the account explains.
    Returns (verdict, share), with the verdict
        "arithmetic", "memory" or "launch" if that is what the call waits for, for at least half of its time;
        "none of these" if more than half of the time goes into something that is not in the account;
        "miscounted" if the measurement proves the account wrong.
    No two of the least times are equal.

    >>> explain_point(4.0, flops=300.0, n_bytes=20.0, launches=1, flops_per_s=100.0, bytes_per_s=10.0, launch_s=0.5)
    ('arithmetic', 0.75)
    """
    needs = {
        "arithmetic": flops / flops_per_s,
        "memory": n_bytes / bytes_per_s,
        "launch": launches * launch_s,
    }
    resource = max(needs, key=needs.get)
    share = needs[resource] / seconds
    if share > 1:
        return "miscounted", share
    if share < 0.5:
        return "none of these", share
    return resource, share


def least_launch_s():
    """The least time per launch of calls made back to back, by the record standard-h100."""
    calls = [row for row in _one_sequence() if row["method"] in LAUNCHES]
    return min(row["train_ms"] / 1e3 / LAUNCHES[row["method"]] for row in calls)


def measured_cases():
    """{name: arguments of explain_point}, five of them, from the records.

    Peaks are the H100's of `hardware`, and launch_s is `least_launch_s`. The first case is of calls made back to back,
    the median of those up to N = 1,024, because the fastest of them defines launch_s itself. The others are of single
    calls. Bytes are those of Q, K, V and O once, except for standard attention, whose S and P have to pass as well, and
    where the name says that they are the bytes requested.
    """
    cases = {}
    launch_s = least_launch_s()
    standard = {row["n"]: row for row in _one_sequence() if row["method"] == "standard"}
    short = sorted((row for row in standard.values() if row["n"] <= 1024), key=lambda row: row["train_ms"])
    median, longest = short[len(short) // 2], standard[max(standard)]
    for row, clock, how in ((median, "train_ms", ", back to back"), (longest, "ms", "")):
        n = row["n"]
        counted = traffic.standard_attention(n, n, 64, heads=row["heads"])
        cases[f"standard, N = {n:,}, d = 64{how}"] = _case(row[clock], counted.flops, counted.total_bytes, 3, launch_s)
    for d in (64, 128):
        for row in records.rows("attention-h100", **{"pass": "forward", "causal": False, "head_dim": d, "n": 16384}):
            sizes = {"block_k": 64, "heads": row["heads"], "batch": row["batch"]}
            once, requested = (traffic.flash_attention(16384, 16384, d, block_q=q, **sizes) for q in (16384, 128))
            name, ms = f"this course, N = 16,384, d = {d}", row["ms"]["ours"]
            cases[name] = _case(ms, once.flops, once.total_bytes, 1, launch_s)
            if d == 128:
                cases[f"{name}, bytes requested"] = _case(ms, requested.flops, requested.total_bytes, 1, launch_s)
    return cases


def _one_sequence():
    """Forward calls of every length, one sequence of 16 heads."""
    return records.rows("standard-h100", **{"pass": "forward", "causal": False, "head_dim": 64, "batch": 1})


def _case(ms, flops, n_bytes, launches, launch_s):
    gpu = GPUS["H100"]
    return {
        "seconds": ms / 1e3, "flops": flops, "n_bytes": n_bytes, "launches": launches,
        "flops_per_s": gpu.fp16_tensor_tflops * 1e12, "bytes_per_s": gpu.hbm_bytes_per_s, "launch_s": launch_s,
    }  # fmt: skip
