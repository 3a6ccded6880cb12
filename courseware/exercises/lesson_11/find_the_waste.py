"""What a kernel does for nothing: found with the tracer and the compiler's report."""

from hypothesis import strategies as st

from courseware.bench.ladder_model import find_the_waste, suspects
from courseware.checks import Checks, Exercise
from courseware.exercises.common.verdicts import check_verdict

VERDICTS = ("computes", "reads", "waits", "nothing")


def needed_pairs(n, block_q, block_k, causal):
    return sum(-(-(start + block_q if causal else n) // block_k) for start in range(0, n, block_q))


def kernel(
    causal=False, more_pairs=0, times_q=1, k_again=0, spilled=0, wait=0, n=64, block_q=16, block_k=16, work=600, size=2
):
    """A kernel that multiplies more_pairs pairs too many, loads Q times_q times, and K again for k_again pairs."""
    pairs = needed_pairs(n, block_q, block_k, causal) + more_pairs
    tile = block_k * 16 * size
    return {
        "kernel": {
            "n": n, "d": 16, "block_q": block_q, "block_k": block_k, "causal": causal, "element_bytes": size,
            "q_bytes": times_q * n * 16 * size, "k_bytes": (pairs + k_again) * tile, "v_bytes": pairs * tile,
            "spilled_bytes": spilled, "work_clocks": work, "wait_clocks": wait,
        }
    }  # fmt: skip


def kernels(**drawn):
    blocks = st.sampled_from([(16, 16), (32, 16), (16, 32), (64, 16)])
    return blocks.flatmap(lambda b: st.builds(kernel, block_q=st.just(b[0]), block_k=st.just(b[1]), **drawn))


def account(kernel):
    n, block_q, block_k = kernel["n"], kernel["block_q"], kernel["block_k"]
    row_bytes = kernel["d"] * kernel["element_bytes"]
    pairs, clocks = kernel["v_bytes"] / (block_k * row_bytes), kernel["work_clocks"] + kernel["wait_clocks"]
    loaded_bytes = sum(kernel[f"{name}_bytes"] for name in "qkv") + pairs * kernel["spilled_bytes"]
    return {
        f"{pairs:g} pairs are multiplied; computes is": pairs / needed_pairs(n, block_q, block_k, kernel["causal"]),
        "reads": loaded_bytes / ((n + 2 * block_k * pairs) * row_bytes), "waits": clocks / kernel["work_clocks"],
    }  # fmt: skip


MANY = st.integers(1, 9).map(lambda i: 100 * i)
NUMBER = "the one that belongs to this verdict"
check = Checks(find_the_waste, check_verdict(find_the_waste, VERDICTS, NUMBER, account))

check(
    "computes: pairs of tiles in which no query sees any key",
    [
        kernel(True, 3, block_q=32),
        kernel(True, 2, block_q=16, block_k=32),
        kernels(causal=st.just(True), more_pairs=st.integers(1, 6)),
    ],
)
check(
    "reads: more bytes than the pairs need that are multiplied",
    [
        kernel(True, times_q=4, block_q=32),
        kernel(True, 1, times_q=6, k_again=5),
        kernels(times_q=st.integers(2, 5), causal=st.booleans()),
    ],
)
check(
    "reads: what a program spills, for every pair",
    [kernel(spilled=10), kernel(True, spilled=800, times_q=2), kernel(True, 2, spilled=4000), kernels(spilled=MANY)],
)
check(
    "waits: clocks with waiting, over those without",
    [kernel(wait=3), kernel(True, wait=900, times_q=2), kernels(wait=MANY)],
)
check("nothing is wasted", [kernel(), kernel(True, block_q=32), kernels(causal=st.booleans())])
check("the five kernels of the lesson", ({"kernel": suspect} for suspect in suspects().values()))

EXERCISE = Exercise(__file__, find_the_waste, check, points=3, minutes=15, difficulty="medium")
