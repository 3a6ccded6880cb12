"""The time that follows from what the compiler makes of each rung of the ladder, by the record rungs. No GPU needed.

The time is that of a crude model: of what one multiprocessor does for a pair of tiles, nothing overlaps but
exponentials with other instructions, and the waits of one program with the work of the others. The predictions in
triton_ladder.toml were made without the exponentials. Two of lesson 11's exercises are `predict_rung` and
`find_the_waste`.
"""

from course_lib import traffic
from course_lib.hardware import GPUS
from courseware.bench import records

HEAD_DIM, ROWS = 128, 16384 * 16  # of the ladder's record: 16 heads, 16384 tokens
# Clocks of one multiprocessor. Tensor cores do 4096 FLOPs in one (989 TFLOP/s is 132 of them at 1.83 GHz); fast matrix
# products reach 80 % of that with wgmma, and mma.sync reaches 62 % of wgmma. A tile comes from L2 in about 1000.
FLOPS_PER_CLOCK = {"wgmma": 0.8 * 4096, "mma.sync": 0.8 * 0.62 * 4096}
WAIT_CLOCKS = 1000
EXPONENTIALS_PER_CLOCK = round(records.record("rates-h100")["per_clock"]["exp2"])  # of an SM, measured: 16
GPU = {"sms": 132, "schedulers": 4, "exponentials_per_clock": EXPONENTIALS_PER_CLOCK, "clock_hz": 1.83e9}


def predict_rung(counts, gpu):
    """The time that one launch of a rung takes by the model, in seconds.

    counts: a dict. "programs" of the launch; "resident": how many of them one SM runs at a time; "tiles" of keys that a
        program visits, on average, such as 32.5. For each of these tiles: "product_clocks" of the tensor cores;
        "instructions" that each of the program's "warps" executes besides; "exponentials", of all warps together;
        "wait_clocks" until the tile is there, 0 if it was fetched ahead.
    gpu: a dict. "sms"; of each SM "schedulers", and "exponentials_per_clock"; "clock_hz": clocks in a second.
    The programs are handed out evenly, and the launch takes as long as the SM with most of them. To this SM, each tile
        of each of its programs costs the sum of
        - the product clocks;
        - the longer of two: the instructions of all warps, spread evenly over the schedulers, each of which issues one
          in a clock; and the exponentials at their rate;
        - the wait over the number of programs that the SM runs at a time: "resident", or all that it has if these are
          fewer. Other programs work while one waits.
    The dicts are not modified.

    >>> counts = dict(programs=10, resident=2, tiles=5, product_clocks=600, instructions=200, warps=8,
    ...               exponentials=8000, wait_clocks=1000)
    >>> predict_rung(counts, {"sms": 2, "schedulers": 4, "exponentials_per_clock": 16, "clock_hz": 1e6})
    0.04
    """
    programs = -(-counts["programs"] // gpu["sms"])
    at_once = min(counts["resident"], programs)
    issue_clocks = counts["instructions"] * counts["warps"] / gpu["schedulers"]
    exponential_clocks = counts["exponentials"] / gpu["exponentials_per_clock"]
    softmax_clocks = max(issue_clocks, exponential_clocks)
    tile_clocks = counts["product_clocks"] + softmax_clocks + counts["wait_clocks"] / at_once
    return programs * counts["tiles"] * tile_clocks / gpu["clock_hz"]


def find_the_waste(kernel):
    """What a kernel does too much of: "computes", "reads" or "waits"; and how many times as much as it needs.

    kernel: a dict. The launch: n queries and n keys of one head, block_q and block_k (both divide n), d, causal,
        element_bytes. From the tracer: "q_bytes", "k_bytes", "v_bytes", loaded by all programs together. From the
        compiler's report, for one pair of a tile of queries and a tile of keys: "spilled_bytes", the sum of those that
        are written to the stack and those that are read back; and the clocks that follow from the report,
        "work_clocks", and "wait_clocks" in addition to these.
    A pair is multiplied whenever a tile of V is loaded: "v_bytes" tells how many. Three ratios, each of what is done to
        what is needed:
        "computes": the pairs that are multiplied, over the pairs in which some query sees some key.
        "reads": the bytes of Q, K and V and what all pairs spill, over what the multiplied pairs need: Q once, and for
            each pair a tile of K and one of V.
        "waits": the clocks of a pair with waiting, over those without.
    Returns (verdict, ratio): the name and value of the largest ratio, ("nothing", 1.0) if all are 1. No two ratios
    above 1 are equal.

    >>> kernel = dict(n=64, d=16, block_q=32, block_k=32, causal=False, element_bytes=2, q_bytes=2048, k_bytes=4096,
    ...               v_bytes=4096, spilled_bytes=0, work_clocks=600, wait_clocks=300)
    >>> find_the_waste(kernel)
    ('waits', 1.5)
    """
    n, block_q, block_k = kernel["n"], kernel["block_q"], kernel["block_k"]
    row_bytes = kernel["d"] * kernel["element_bytes"]
    pairs = kernel["v_bytes"] // (block_k * row_bytes)
    seen = 0
    for start in range(0, n, block_q):
        keys = start + block_q if kernel["causal"] else n
        seen += -(-keys // block_k)
    loaded_bytes = kernel["q_bytes"] + kernel["k_bytes"] + kernel["v_bytes"] + kernel["spilled_bytes"] * pairs
    needed_bytes = (n + 2 * block_k * pairs) * row_bytes
    ratios = {
        "computes": pairs / seen,
        "reads": loaded_bytes / needed_bytes,
        "waits": (kernel["work_clocks"] + kernel["wait_clocks"]) / kernel["work_clocks"],
    }
    verdict = max(ratios, key=ratios.get)
    return (verdict, ratios[verdict]) if ratios[verdict] > 1 else ("nothing", 1.0)


def counts_of(rung, n, causal):
    """`predict_rung`'s counts of a rung, by name, at the shapes of the record ladder-h100: n is 1024 or 4096."""
    (row,) = records.rows("rungs", rung=rung, n=n, causal=causal)
    block_q, block_k, first, last = row["block_q"], row["block_k"], row["loops"][0], row["loops"][-1]
    pairs = _pairs(n, block_q, block_k, causal and rung != "visit every tile")
    # Tiles that need no mask have a loop of their own, except in rungs that mask all.
    masked = n // block_q * max(1, block_q // block_k) / pairs if causal else 0
    resident = GPUS["H100"].resident_blocks(**{key: row[key] for key in ("shared_bytes", "registers", "num_warps")})
    product_flops = 4 * block_q * block_k * HEAD_DIM
    return {
        "programs": row["programs"], "resident": min(resident.values()),
        "tiles": pairs * ROWS / n / row["programs"],
        "product_clocks": product_flops / FLOPS_PER_CLOCK[first["unit"]] if first["products"] else 0,
        "instructions": (1 - masked) * first["instructions"] + masked * last["instructions"],
        "warps": row["num_warps"], "exponentials": block_q * (block_k + 1),  # of each score, and of each row's alpha
        "wait_clocks": 0 if first["copies_ahead"] else WAIT_CLOCKS,
    }  # fmt: skip


# Lesson 11's five kernels: rungs of the ladder, under a causal mask.
SUSPECTS = {
    "A": "tiles of 64", "B": "visit every tile", "C": "256 queries", "D": "tensor descriptors", "E": "fp32 products"
}  # fmt: skip
SUSPECTS_N = 512


def suspects():
    """{letter: `find_the_waste`'s kernel} of SUSPECTS. Bytes are the closed form's, which the tracer counts, too."""
    found = {}
    for letter, rung in SUSPECTS.items():
        (row,) = records.rows("rungs", rung=rung, n=4096, causal=True)
        counts, element_bytes = counts_of(rung, 4096, True), 4 if rung == "fp32 products" else 2
        blocks = {"block_q": row["block_q"], "block_k": row["block_k"]}
        loaded = traffic.flash_attention(
            SUSPECTS_N, SUSPECTS_N, HEAD_DIM, causal=rung != "visit every tile", dtype_bytes=element_bytes, **blocks
        ).by_tensor
        found[letter] = {
            "n": SUSPECTS_N, "d": HEAD_DIM, **blocks, "causal": True, "element_bytes": element_bytes,
            **{f"{name.lower()}_bytes": loaded[name].read_bytes for name in "QKV"},
            "spilled_bytes": row["loops"][0]["spilled_bytes"] * 32 * row["num_warps"],
            "work_clocks": counts["product_clocks"] + softmax_clocks(counts),
            "wait_clocks": counts["wait_clocks"] / counts["resident"],
        }  # fmt: skip
    return found


def softmax_clocks(counts):
    """Of one tile: the longer of issuing its instructions and computing its exponentials."""
    issue_clocks = counts["instructions"] * counts["warps"] / GPU["schedulers"]
    return max(issue_clocks, counts["exponentials"] / GPU["exponentials_per_clock"])


def _pairs(n, block_q, block_k, causal):
    """Pairs of tiles that are multiplied for one head: V is loaded once for each."""
    loaded = traffic.flash_attention(n, n, HEAD_DIM, block_q=block_q, block_k=block_k, causal=causal).by_tensor["V"]
    return loaded.read_bytes // (2 * block_k * HEAD_DIM)
