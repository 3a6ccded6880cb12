"""Lesson 10, performance: the exercises' answers, hints, properties and plausible wrong answers.

The roofline is Williams, Waterman and Patterson, "Roofline: an insightful visual performance model" (2009). The cases
of `explain_point` that are called measured come from the records in course_lib/data.
"""

import math

import numpy as np

from course_lib import traffic
from course_lib.grading.checking import agrees
from course_lib.grading.diagnosis import show
from course_lib.grading.exercise import (
    Evidence,
    Exercise,
    Finding,
    Part,
    Property,
    Variant,
    WrongAnswer,
    caught_by,
    option,
)
from course_lib.hardware import GPUS
from course_lib.measure import records

LESSON = "10"
TITLE = "Performance"

SHARED_MISTAKES = {
    "error": "Run the call above in a cell of its own and look at the line that is shown.",
    "format": "Compare the docstring's Returns with your return statement.",
}
SHARED_HINTS = {
    ": timeout": "error",
    ": exception": "error",
    ": none": "format",
    ": type": "format",
    ": shape": "format",
    ": dtype": "format",
}


def drawn(**choices):
    """Strategy: a value for each name, from a range (first, last) of whole numbers or from a list of choices."""

    def draw():
        from hypothesis import strategies as st

        def one(of):
            return st.integers(*of) if isinstance(of, tuple) else st.sampled_from(of)

        values = st.tuples(*map(one, choices.values()))
        return values.map(lambda values: dict(zip(choices, values, strict=True)))

    return draw


def arithmetic_intensity(n, d, bytes_per_element, block_q=None):
    """FLOPs per byte asked for, of one head of attention's forward with n queries and keys, nothing masked.

    n, d, bytes_per_element: whole numbers of at least 1.
    block_q: rows of a query tile of FlashAttention, queries outermost: Q is read once, O written once, K and V are
        read once for every query tile; the last tile may be shorter. None: standard attention, which reads Q, K and
        V once, writes S and P to HBM, reads both back, and writes O once.
    The FLOPs are those of the two matrix products, 4 n n d either way. Returns a float.

    >>> print(f"{arithmetic_intensity(4, 2, 8):.4f} {arithmetic_intensity(4, 2, 8, block_q=2):.4f}")
    0.1667 0.3333
    """
    matrix = n * d
    if block_q is None:
        elements = 4 * matrix + 4 * n * n
    else:
        n_tiles = -(-n // block_q)
        elements = 2 * matrix + 2 * matrix * n_tiles
    flops = 4 * n * n * d
    return flops / (elements * bytes_per_element)


ONE_PRODUCT = "the FLOPs of one of the two products are left out"
ELEMENTS = "elements are counted, not bytes"
UPSIDE_DOWN = "bytes are divided by FLOPs"
NO_SQUARES = "S and P are left out"
HALF_SQUARES = "S and P are written and not read back, or only one of them is counted"
READ_ONCE = "K and V are read once in all"
NOT_ROUNDED = "the number of query tiles is not rounded up"


def intensity_parts(n, d, bytes_per_element, block_q):
    if block_q is None:
        counted = traffic.standard_attention(n, n, d, dtype_bytes=bytes_per_element)
    else:
        counted = traffic.flash_attention(n, n, d, block_q=block_q, block_k=n, dtype_bytes=bytes_per_element)
    exact, flops, matrix = np.float64(counted.arithmetic_intensity), counted.flops, n * d

    def readings():
        def with_elements(elements):
            return flops / (elements * bytes_per_element)

        slips = {
            ONE_PRODUCT: exact / 2,
            ELEMENTS: exact * bytes_per_element,
            UPSIDE_DOWN: 1 / exact,
            "O is left out": flops / (counted.total_bytes - matrix * bytes_per_element),
        }
        if block_q is None:
            return slips | {
                NO_SQUARES: with_elements(4 * matrix),
                HALF_SQUARES: with_elements(4 * matrix + 2 * n * n),
            }
        return slips | {
            READ_ONCE: with_elements(4 * matrix),
            NOT_ROUNDED: with_elements(2 * matrix + 2 * matrix * n / block_q),
            "the short last tile is left out": with_elements(2 * matrix + 2 * matrix * (n // block_q)),
        }

    return [Part("the intensity", exact, np.float32(exact), exact, readings)]


def intensity_case(n, d, bytes_per_element=2, block_q=None):
    return {"n": n, "d": d, "bytes_per_element": bytes_per_element, "block_q": block_q}


INTENSITY_CALL = "arithmetic_intensity(n, d, bytes_per_element, block_q)"

INTENSITY = Exercise(
    id="10.arithmetic_intensity",
    title="FLOPs per byte, with and without tiles",
    points=2,
    minutes=7,
    difficulty="easy",
    answer=arithmetic_intensity,
    hints=(
        "The FLOPs are the same in both. Which matrices of size n x n cross the memory in standard attention, and "
        "how often each? Which matrices of size n x d does FlashAttention read more than once?",
        "Standard: Q, K, V, O once each, and S and P twice each. FlashAttention: Q and O once, K and V once for each "
        "of the query tiles, of which there are n / block_q, rounded up.",
        "elements = 4 n d + 4 n n if block_q is None, else 2 n d + 2 n d T with T = -(-n // block_q). Return 4 n n d / "
        "(elements * bytes_per_element).",
    ),
    reasoning="For large n the standard version tends to 4 n n d / (4 n n) = d FLOPs per element: half of d per byte "
    "in fp16, whatever n. FlashAttention's tends to 2 block_q FLOPs per element, block_q per byte in fp16: the tile, "
    "not the sequence, decides, since each key that is read is used by block_q queries. -(-n // block_q) rounds up "
    "without leaving whole numbers.",
    properties=(
        Property(
            "standard attention: Q, K, V, O once, S and P written and read back",
            INTENSITY_CALL,
            agrees(intensity_parts),
            (intensity_case(4, 2, 8), intensity_case(1024, 64)),
            drawn(n=(1, 12), d=(1, 6), bytes_per_element=[2, 4], block_q=[None]),
            {
                f"the intensity: {ONE_PRODUCT}": "one_product",
                f"the intensity: {ELEMENTS}": "elements",
                f"the intensity: {UPSIDE_DOWN}": "upside_down",
                f"the intensity: {NO_SQUARES}": "squares",
                f"the intensity: {HALF_SQUARES}": "squares",
                "": "standard",
            },
        ),
        Property(
            "FlashAttention: K and V once for every query tile",
            INTENSITY_CALL,
            agrees(intensity_parts),
            (intensity_case(4, 2, 8, 2), intensity_case(4096, 128, 2, 128)),
            drawn(n=[2, 4, 8], d=(1, 6), bytes_per_element=[2, 4], block_q=[1, 2]),
            {f"the intensity: {READ_ONCE}": "linear", "": "tiles"},
        ),
        Property(
            "a short last tile reads every key too",
            INTENSITY_CALL,
            agrees(intensity_parts),
            (intensity_case(5, 2, 2, 2), intensity_case(100, 64, 2, 32), intensity_case(3, 2, 2, 16)),
            drawn(n=(1, 12), d=(1, 6), bytes_per_element=[2, 4], block_q=(1, 16)),
            {"": "tail"},
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "one_product": "Attention has two matrix products, Q K^T and P V, of 2 n n d FLOPs each.",
        "elements": "How many bytes has an element? The intensity is per byte.",
        "upside_down": "FLOPs per byte: which of the two is divided by which?",
        "squares": "S is written by the first kernel and read by the second, P written by the second and read by the "
        "third. That makes four walks through n x n elements.",
        "standard": "Write down for each of Q, K, V, S, P, O how often it is read and how often written.",
        "linear": "When the second query tile comes, the first keys are long gone from SRAM. Who reads them again?",
        "tiles": "How many query tiles are there, and how many elements of K and V does each of them read?",
        "tail": "Five rows in tiles of two are three tiles, and the short one needs every key. Round up.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "standard attention: Q, K, V, O once, S and P written and read back",
            WrongAnswer("F3: one of the two products", "one_product", {"flops = 4": "flops = 2"}),
            WrongAnswer("F12: elements for bytes", "elements", {"(elements * bytes_per_element)": "elements"}),
            WrongAnswer(
                "bytes per FLOP",
                "upside_down",
                {"flops / (elements * bytes_per_element)": "elements * bytes_per_element / flops"},
            ),
            WrongAnswer("S and P written, not read back", "squares", {"+ 4 * n * n": "+ 2 * n * n"}),
        ),
        *caught_by(
            "FlashAttention: K and V once for every query tile",
            WrongAnswer("F1: traffic linear in n", "linear", {"2 * matrix * n_tiles": "2 * matrix"}),
        ),
        *caught_by(
            "a short last tile reads every key too",
            WrongAnswer("tiles not rounded up", "tail", {"-(-n // block_q)": "n / block_q"}),
            WrongAnswer("tiles rounded down", "tail", {"-(-n // block_q)": "max(n // block_q, 1)"}),
        ),
    ),
    right_answers=(
        Variant("tile by tile", function=lambda *a: _intensity_by_loops(*a)),
        Variant("in float32", {"flops = 4": "flops = np.float32(4)"}),
    ),
)


def _intensity_by_loops(n, d, size, block_q=None):
    moved = 0
    if block_q is None:
        for shape in ((n, d), (n, d), (n, d), (n, n), (n, n), (n, n), (n, n), (n, d)):
            moved += math.prod(shape) * size
    else:
        for start in range(0, n, block_q):
            moved += 2 * min(block_q, n - start) * d * size + 2 * n * d * size
    return 2 * (2 * n * n * d) / moved


def roofline_seconds(kernels, flops_per_s, bytes_per_s, launch_s=0.0):
    """The least time in which a row of kernels can run, one after the other.

    kernels: a list of (flops, n_bytes), one pair a kernel; each kernel begins when the one before it has ended.
    flops_per_s: the peak rate of the arithmetic. bytes_per_s: the bandwidth of the memory. launch_s: the time from
        one launch to the next; it passes while the kernel before still runs.
    Inside a kernel arithmetic and memory work at the same time, so a kernel takes no less than the longest of three:
    its FLOPs at the peak rate, its bytes at the bandwidth, and launch_s.
    Returns seconds as a float, 0.0 for no kernels.

    >>> roofline_seconds([(400.0, 100.0), (0.0, 300.0)], flops_per_s=200.0, bytes_per_s=100.0)
    5.0
    """
    seconds = 0.0
    for flops, n_bytes in kernels:
        arithmetic_s, memory_s = flops / flops_per_s, n_bytes / bytes_per_s
        seconds += max(arithmetic_s, memory_s, launch_s)
    return seconds


NO_OVERLAP = "arithmetic and memory take turns inside a kernel"
OF_TOTALS = "all kernels are taken for one"
ARITHMETIC_ONLY = "the arithmetic alone is counted"
MEMORY_ONLY = "the memory alone is counted"
NO_LAUNCH = "launch_s is left out"
ONE_LAUNCH = "launch_s is counted once for the whole row"
ADDED = "launch_s is added to each kernel's time"


def roofline_parts(kernels, flops_per_s, bytes_per_s, launch_s):
    needs = [(flops / flops_per_s, n_bytes / bytes_per_s) for flops, n_bytes in kernels]
    exact = np.float64(sum(max(*need, launch_s) for need in needs))
    arithmetic, memory = (sum(need[i] for need in needs) for i in (0, 1))
    no_launch = sum(map(max, needs))

    def readings():
        return {
            NO_LAUNCH: no_launch,
            OF_TOTALS: max(arithmetic, memory, launch_s),
            NO_OVERLAP: sum(max(a + m, launch_s) for a, m in needs),
            ARITHMETIC_ONLY: sum(max(a, launch_s) for a, _ in needs),
            MEMORY_ONLY: sum(max(m, launch_s) for _, m in needs),
            ONE_LAUNCH: max(no_launch, launch_s),
            ADDED: no_launch + len(needs) * launch_s,
        }

    return [Part("the time", exact, np.float64(np.float32(exact)), exact, readings)]


def kernels_case(*kernels, launch_s=0.0):
    """Round rates, so that the times can be read off: 100 FLOPs and 10 bytes a second."""
    return {"kernels": list(kernels), "flops_per_s": 100.0, "bytes_per_s": 10.0, "launch_s": launch_s}


def draw_kernels(count, launches):
    def draw():
        from hypothesis import strategies as st

        size = st.integers(0, 8)
        kernel = st.tuples(size.map(lambda i: 100.0 * i), size.map(lambda i: 10.0 * i))
        kernels = st.lists(kernel, min_size=count[0], max_size=count[1])
        drawn = st.tuples(kernels, st.sampled_from(launches))
        return drawn.map(lambda values: kernels_case(*values[0], launch_s=values[1]))

    return draw


# Standard attention, d = 64, N = 4096, fp16, on an H100: Q K^T writes S, softmax turns it into P, P V reads P.
STANDARD_4096 = {
    "kernels": [(2**31, 34_603_008), (0, 67_108_864), (2**31, 34_603_008)],
    "flops_per_s": 989.4e12,
    "bytes_per_s": 3352e9,
    "launch_s": 2e-6,
}

ROOFLINE_CALL = "roofline_seconds(kernels, flops_per_s, bytes_per_s, launch_s)"

ROOFLINE = Exercise(
    id="10.roofline_seconds",
    title="The least time of a row of kernels",
    points=3,
    minutes=10,
    difficulty="medium",
    answer=roofline_seconds,
    hints=(
        "One kernel computes for 2 s and moves bytes for 1 s, at the same time; the next moves bytes for 3 s. When "
        "does each end?",
        "Each kernel has a longest need of its own; the next one begins after it. So where does max stand, and where "
        "the sum? And how often does launch_s have a say?",
        "Start at 0. For each (flops, n_bytes) add max(flops / flops_per_s, n_bytes / bytes_per_s, launch_s).",
    ),
    reasoning="Inside a kernel the units work side by side, so the longest need decides: a max. Kernels follow one "
    "another, so their times add up: a sum of maxima, which is never less than the maximum of the sums. That gap is "
    "what fusion can win: one kernel can compute while it moves, where three that take turns cannot. A launch that "
    "takes longer than the kernel before it leaves the GPU waiting, and so it is one more term of the max.",
    properties=(
        Property(
            "one kernel: the longer of its FLOPs' and its bytes' time",
            ROOFLINE_CALL,
            agrees(roofline_parts),
            (kernels_case((200.0, 10.0)), kernels_case((100.0, 30.0))),
            draw_kernels((1, 1), [0.0]),
            {
                f"the time: {NO_OVERLAP}": "overlap",
                f"the time: {ARITHMETIC_ONLY}": "both",
                f"the time: {MEMORY_ONLY}": "both",
                "": "one",
            },
        ),
        Property(
            "kernels follow one another: their times add up",
            ROOFLINE_CALL,
            agrees(roofline_parts),
            (kernels_case((200.0, 10.0), (0.0, 30.0)), kernels_case((100.0, 10.0), (100.0, 10.0)), kernels_case()),
            draw_kernels((0, 3), [0.0]),
            {f"the time: {OF_TOTALS}": "totals", "": "row", ": exception": "row"},
        ),
        Property(
            "no kernel takes less than launch_s",
            ROOFLINE_CALL,
            agrees(roofline_parts),
            (kernels_case((100.0, 10.0), (0.0, 20.0), launch_s=4.0), STANDARD_4096),
            draw_kernels((1, 3), [0.5, 1.5, 4.0]),
            {
                f"the time: {NO_LAUNCH}": "launch",
                f"the time: {ONE_LAUNCH}": "each_launch",
                f"the time: {ADDED}": "hidden_launch",
                "": "each_launch",
            },
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "overlap": "While one tile is multiplied the next is on its way: inside a kernel arithmetic and memory work at "
        "the same time.",
        "both": "A kernel has two needs, the arithmetic's and the memory's, and is done when both are met. Either may "
        "be the longer one.",
        "one": "One kernel of 200 FLOPs at 100 a second and 10 bytes at 10 a second: 2 s of the one, 1 s of the other.",
        "totals": "The second kernel cannot move its bytes while the first one still computes: each kernel has a "
        "longest need of its own.",
        "row": "The next kernel begins when this one has ended. What is the time of a row of none?",
        "launch": "Three kernels of nothing still have to be launched, one by one.",
        "each_launch": "Every kernel of the row is launched, and each takes at least launch_s.",
        "hidden_launch": "A launch passes while the kernel before still runs. It is one more need that may be the "
        "longest, not an addition to the longest.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "one kernel: the longer of its FLOPs' and its bytes' time",
            WrongAnswer(
                "no overlap inside a kernel",
                "overlap",
                {"max(arithmetic_s, memory_s,": "max(arithmetic_s + memory_s,"},
            ),
            WrongAnswer(
                "the shorter time",
                "both",
                {"max(arithmetic_s, memory_s,": "max(min(arithmetic_s, memory_s),"},
            ),
            WrongAnswer(
                "compute-bound, always", "both", {"arithmetic_s, memory_s, launch_s": "arithmetic_s, launch_s"}
            ),
        ),
        *caught_by(
            "kernels follow one another: their times add up",
            WrongAnswer("the maximum of the sums", "totals", function=lambda *a, **k: _seconds_of_totals(*a, **k)),
        ),
        *caught_by(
            "no kernel takes less than launch_s",
            WrongAnswer("launches forgotten", "launch", {"memory_s, launch_s)": "memory_s)"}),
            WrongAnswer(
                "launched once",
                "each_launch",
                {"memory_s, launch_s)": "memory_s)", "return seconds": "return max(seconds, launch_s)"},
            ),
            WrongAnswer("launches added", "hidden_launch", {"memory_s, launch_s)": "memory_s) + launch_s"}),
        ),
    ),
    right_answers=(
        Variant("by arrays", function=lambda *a, **k: _seconds_by_arrays(*a, **k)),
        Variant("by comparisons", function=lambda *a, **k: _seconds_by_ridge(*a, **k)),
    ),
)


def _seconds_of_totals(kernels, flops_per_s, bytes_per_s, launch_s=0.0):
    flops, n_bytes = (sum(kernel[i] for kernel in kernels) for i in (0, 1))
    return max(flops / flops_per_s, n_bytes / bytes_per_s, launch_s if kernels else 0.0)


def _seconds_by_arrays(kernels, flops_per_s, bytes_per_s, launch_s=0.0):
    needs = np.array(kernels, dtype=np.float64).reshape(-1, 2) / [flops_per_s, bytes_per_s]
    return np.maximum(needs.max(axis=1, initial=0), launch_s).sum()


def _seconds_by_ridge(kernels, flops_per_s, bytes_per_s, launch_s=0.0):
    total = np.float32(0)
    for flops, n_bytes in kernels:
        compute_bound = flops >= n_bytes * flops_per_s / bytes_per_s
        need = flops / flops_per_s if compute_bound else n_bytes / bytes_per_s
        total += np.float32(need if need > launch_s else launch_s)
    return total


def explain_point(seconds, flops, n_bytes, launches, flops_per_s, bytes_per_s, launch_s):
    """Which resource binds a measured call, and which share of its time that explains.

    seconds: measured, for the whole call. flops, n_bytes, launches: what the call is taken to need.
    flops_per_s, bytes_per_s: peak rate and bandwidth. launch_s: the time of one launch.
    Each resource alone needs "arithmetic": flops / flops_per_s; "memory": n_bytes / bytes_per_s; "launch": launches *
        launch_s. The longest need over the seconds is the share that it explains. If the share is
        more than 1, no clock can be that fast, so the account is wrong: "miscounted";
        less than 1/2, something else takes most of the time: "none of these";
        else the resource with the longest need binds, and its name is the verdict.
    Returns (verdict, share). No two needs are equal.

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


VERDICTS = ("arithmetic", "memory", "launch", "none of these", "miscounted")


def point_test(answer, **point):
    returned = answer(*point.values())
    verdict, share = explain_point(**point)
    expected = f"({verdict!r}, {share:.6g})"

    def wrong(part, kind, text):
        return Evidence((Finding(part, kind, text),), _shown_pair(returned), expected)

    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[0], str):
        return wrong("", "type", "the answer did not return a verdict, as text, and a share")
    said, of = returned
    if said not in VERDICTS:
        return wrong("the verdict", "word", f"{said!r} is none of {', '.join(map(repr, VERDICTS))}")
    if said != verdict:
        return wrong("the verdict", f"{said} for {verdict}", f"the verdict is {said!r}, not {verdict!r}")
    if not isinstance(of, float | int | np.floating | np.integer) or not math.isclose(of, share, rel_tol=1e-5):
        kind = "inverse" if isinstance(of, float) and of and math.isclose(1 / of, share, rel_tol=1e-5) else "values"
        return wrong("the share", kind, "the share is not the longest need over the measured seconds")
    return None


def _shown_pair(returned):
    return show(returned) if not isinstance(returned, tuple) else f"({', '.join(_shown(x) for x in returned)})"


def _shown(value):
    return repr(value) if isinstance(value, str) else show(value)


def point(seconds, flops, n_bytes, launches=1, launch_s=0.5):
    """Round rates: 100 FLOPs and 10 bytes a second."""
    return {
        "seconds": seconds, "flops": flops, "n_bytes": n_bytes, "launches": launches, "flops_per_s": 100.0,
        "bytes_per_s": 10.0, "launch_s": launch_s,
    }  # fmt: skip


def draw_point(share, launches=(1, 4)):
    """Needs that differ, and a measured time of which the longest is `share` (first, last) per cent."""

    def draw():
        from hypothesis import strategies as st

        drawn = st.tuples(
            st.permutations([1, 2, 3]), st.integers(*share).filter(lambda s: s not in (50, 100)), st.integers(*launches)
        )

        def of(values):
            (arithmetic, memory, launch), percent, count = values
            return point(300 / percent, 100.0 * arithmetic, 10.0 * memory, count, launch / count)

        return drawn.map(of)

    return draw


# Launches of one call: standard attention is a product, a softmax and a product.
LAUNCHES = {"standard": 3, "flash": 1}


def _small():
    """Forward calls of every length, one sequence of 16 heads."""
    return records.rows("standard-h100", **{"pass": "forward", "causal": False, "head_dim": 64, "batch": 1})


def least_launch_s():
    """The least time a launch in a train of calls, by the record standard-h100."""
    calls = [row for row in _small() if row["method"] in LAUNCHES]
    return min(row["train_ms"] / 1e3 / LAUNCHES[row["method"]] for row in calls)


def measured_cases():
    """{name: arguments of explain_point}, five of them, from the records.

    Peaks are the H100's of `hardware`, launch_s is `least_launch_s`. The first is of a train of calls, and in the
    middle of those up to 1,024, for the quickest would be launch_s itself; the others stand alone. Bytes are those
    of Q, K, V and O once, except where the name says that they are the ones asked for, or for standard attention,
    whose S and P have to pass as well.
    """
    cases = {}
    launch_s = least_launch_s()
    standard = {row["n"]: row for row in _small() if row["method"] == "standard"}
    short = sorted((row for row in standard.values() if row["n"] <= 1024), key=lambda row: row["train_ms"])
    for row, clock, how in ((short[len(short) // 2], "train_ms", ", in a train"), (standard[max(standard)], "ms", "")):
        n = row["n"]
        counted = traffic.standard_attention(n, n, 64, heads=row["heads"])
        cases[f"standard, N = {n:,}, d = 64{how}"] = _case(row[clock], counted.flops, counted.total_bytes, 3, launch_s)
    for d in (64, 128):
        for row in records.rows("attention-h100", **{"pass": "forward", "causal": False, "head_dim": d, "n": 16384}):
            sizes = {"block_k": 64, "heads": row["heads"], "batch": row["batch"]}
            once, asked = (traffic.flash_attention(16384, 16384, d, block_q=rows, **sizes) for rows in (16384, 128))
            name = f"ours, N = 16,384, d = {d}"
            cases[name] = _case(row["ms"]["ours"], once.flops, once.total_bytes, 1, launch_s)
            if d == 128:
                cases[f"{name}, bytes asked for"] = _case(
                    row["ms"]["ours"], asked.flops, asked.total_bytes, 1, launch_s
                )
    return cases


def _case(ms, flops, n_bytes, launches, launch_s):
    gpu = GPUS["H100"]
    return {
        "seconds": ms / 1e3, "flops": flops, "n_bytes": n_bytes, "launches": launches,
        "flops_per_s": gpu.fp16_tensor_tflops * 1e12, "bytes_per_s": gpu.hbm_bytes_per_s, "launch_s": launch_s,
    }  # fmt: skip


POINT_CALL = "explain_point(seconds, flops, n_bytes, launches, flops_per_s, bytes_per_s, launch_s)"

POINT = Exercise(
    id="10.explain_point",
    title="Which resource binds, for five measured cases",
    points=3,
    minutes=12,
    difficulty="medium",
    answer=explain_point,
    hints=(
        "Compute three times: how long would the call take if it had to wait for one resource alone? Which of the "
        "three is the call least able to beat?",
        "The longest need is a floor under the measured time. What does it mean if the measured time lies below the "
        "floor? And if it lies far above?",
        "needs = {name: time}; resource = the name of the longest; share = its need / seconds. Above 1: 'miscounted'; "
        "below 0.5: 'none of these'; else the resource.",
    ),
    reasoning="A resource that needs most of the measured time is the one to relieve, and relieving any other gains "
    "nothing. A share above 1 is not a fast kernel but a wrong account: most often bytes that were asked for and came "
    "out of a cache. A small share means that what takes the time is not in the account: exponentials, waiting for "
    "latency, programs that idle in the last wave, or a kernel that could be better.",
    properties=(
        Property(
            "the resource that needs longest binds; the share is its need over the seconds",
            POINT_CALL,
            point_test,
            (
                point(4.0, 300.0, 20.0),
                point(4.0, 100.0, 30.0),
                point(4.0, 100.0, 20.0, 1, 3.0),
                point(4.0, 200.0, 10.0),
            ),
            draw_point((55, 95), launches=(1, 1)),
            {
                "the share: inverse": "share",
                "the share: values": "share",
                "the verdict: word": "words",
                "": "longest",
            },
        ),
        Property(
            "every launch takes launch_s",
            POINT_CALL,
            point_test,
            (point(4.0, 200.0, 10.0, 6, 0.5), point(8.0, 300.0, 20.0, 3, 2.0)),
            draw_point((55, 95), launches=(2, 4)),
            {"": "launches"},
        ),
        Property(
            "less than half of the time explained: none of these",
            POINT_CALL,
            point_test,
            (point(8.0, 300.0, 20.0), point(8.0, 100.0, 30.0)),
            draw_point((5, 45)),
            {"": "unexplained"},
        ),
        Property(
            "more than the whole time explained: miscounted",
            POINT_CALL,
            point_test,
            (point(2.0, 100.0, 30.0), point(2.0, 300.0, 20.0)),
            draw_point((105, 300)),
            {"": "impossible"},
        ),
        Property(
            "the measured cases",
            POINT_CALL,
            point_test,
            tuple(measured_cases().values()),
            hints={"": "measured"},
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "longest": "The call has to wait for each of its resources. Which of the three times can it least undercut?",
        "words": "The verdict is one of the five words of the docstring, spelled as there.",
        "share": "The share says how much of the measured time the longest need explains: which of the two is divided "
        "by which, and is it the longest need that you divide?",
        "launches": "Three kernels are launched three times.",
        "unexplained": "If the longest need is a third of the measured time, relieving it cannot be what matters most. "
        "Where is the line, by the docstring?",
        "impossible": "No call is faster than what it needs. If it seems to be, which of the numbers is not what you "
        "take it for?",
        "measured": "The rules of the docstring decide these as well. Rates here are of the order of 1e15: is there a "
        "unit or an absolute tolerance in your code?",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "the resource that needs longest binds; the share is its need over the seconds",
            WrongAnswer("the shortest need", "longest", {"max(needs": "min(needs"}),
            WrongAnswer("seconds over the need", "share", {"return resource, share": "return resource, 1 / share"}),
            WrongAnswer(
                "memory-bound if below the ridge, launches forgotten",
                "longest",
                {'        "launch": launches * launch_s,\n': ""},
            ),
            WrongAnswer(
                "compute-bound by name",
                "words",
                {'"arithmetic": flops / flops_per_s,': '"compute": flops / flops_per_s,'},
            ),
        ),
        *caught_by(
            "every launch takes launch_s", WrongAnswer("one launch", "launches", {"launches * launch_s": "launch_s"})
        ),
        *caught_by(
            "less than half of the time explained: none of these",
            WrongAnswer(
                "something always binds",
                "unexplained",
                {'    if share < 0.5:\n        return "none of these", share\n': ""},
            ),
        ),
        *caught_by(
            "more than the whole time explained: miscounted",
            WrongAnswer(
                "faster than the roof", "impossible", {'    if share > 1:\n        return "miscounted", share\n': ""}
            ),
        ),
        *caught_by(
            "the measured cases",
            WrongAnswer(
                "an absolute tolerance",
                "measured",
                {"    resource = max": '    if seconds < 0.1:\n        return "launch", 1.0\n    resource = max'},
            ),
        ),
    ),
    right_answers=(
        Variant("by comparisons", function=lambda *a, **k: _point_by_comparisons(*a, **k)),
        Variant("in float32", {"share = needs[resource] / seconds": "share = np.float32(needs[resource] / seconds)"}),
    ),
)


def _point_by_comparisons(seconds, flops, n_bytes, launches, flops_per_s, bytes_per_s, launch_s):
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


EXERCISES = (INTENSITY, ROOFLINE, POINT)


QUIZ = [
    {
        "question": "The first call of a kernel takes 900 ms, later ones 1 ms. What goes into the record?",
        "type": "multiple_choice",
        "answers": [
            option("The mean of all calls", False, "With 30 calls the first one alone would make it 31 ms."),
            option(
                "The median of calls after a few that are thrown away",
                True,
                "The first call compiled the kernel and found its memory; no later call does.",
            ),
            option("The fastest call", False, "It may be the one that found everything in a cache."),
        ],
    },
    {
        "question": "A kernel's point lies above the roof drawn from the bytes that it asks for. What follows?",
        "type": "multiple_choice",
        "answers": [
            option("The kernel breaks the vendor's bandwidth", False, "No memory delivers more than its bandwidth."),
            option("The clock is wrong", False, "It may be, but look at the bytes first."),
            option("The kernel is compute-bound", False, "Perhaps; what follows is that the byte count is too high."),
            option("Part of these bytes never came from HBM", True, "A cache served them: asked for is not fetched."),
        ],
    },
    {
        "question": "Standard attention is three kernels. Why is its least time not the roofline of its total FLOPs "
        "and bytes?",
        "type": "multiple_choice",
        "answers": [
            option(
                "A kernel that waits for memory cannot lend its idle arithmetic to the next one",
                True,
                "A sum of maxima is never less than the maximum of the sums.",
            ),
            option("Its FLOPs are counted twice", False, "They are counted once, kernel by kernel."),
            option("S and P are in the cache", False, "That would make it faster, not slower."),
        ],
    },
    {
        "question": "You predicted a gain of 1.3 and measured 1.02. What belongs in the worklog?",
        "type": "multiple_choice",
        "answers": [
            option("Nothing: the idea did not work", False, "Then somebody will try it again."),
            option("The measured gain alone", False, "Without the prediction nobody learns what was misunderstood."),
            option(
                "Prediction, reason, measurement and verdict",
                True,
                "That the reason was wrong is the most useful line of it.",
            ),
        ],
    },
    {
        "question": "Four queries and four keys of the sentence: FlashAttention in one launch, or NumPy on the CPU. "
        "What does the roofline say?",
        "type": "multiple_choice",
        "answers": [
            option(
                "FlashAttention wins by the ratio of the peak rates", False, "128 FLOPs are over before they begin."
            ),
            option("Memory decides: 64 bytes in fp16", False, "They pass in less than a nanosecond."),
            option(
                "Neither FLOPs nor bytes matter; the launch takes longer than both",
                True,
                "At that size whoever starts faster is faster.",
            ),
        ],
    },
]
