"""The backward in tiles on the memory machine: FlashAttention-2 (Dao, 2023), Alg. 2, in three passes."""

from collections import Counter

import numpy as np
from hypothesis import strategies as st

from course_lib import reference, traffic
from courseware.checks import Checks, Exercise, ExpectedOutput, case_of, compare, single_finding

from ..common.explanations import explain
from ..common.generators import as_floats
from ..common.on_machine import compare_traffic, on_machine, own_work
from .gradients import HIDDEN, SENTENCE, SQUARE, expected_delta, expected_gradients, small_inputs


def tiled_backward(machine, Q, K, V, O, lse, dO, delta, dQ, dK, dV, block_q, block_k, causal=False):
    """The gradients of attention, tile by tile, in three passes, on a machine that counts every byte.

    machine: a course_lib.machine.Machine. Q, O, dO, dQ: handles, [n_q, d]; K, V, dK, dV: handles, [n_k, d]; one float
        dtype. lse, delta: handles, [n_q], float32 or float64. O and lse (natural logarithm) are the forward's.
    block_q, block_k: rows of a tile of queries and of keys, at least 1; they need not divide n_q and n_k.
    causal: query i sees keys 0 to i + n_k - n_q; one that sees none has lse = -inf, and gives and gets no gradient.
    Stores the results in delta, dQ, dK and dV, each row once, in their dtypes. Compute in float32 or better; the
        scores' scale is 1/sqrt(d). Returns nothing.
    Traffic, at most: the pass for delta reads O and dO once. The pass for dK and dV reads K and V once, and Q, dO, lse
        and delta once for each tile of keys; the pass for dQ reads Q, dO, lse and delta once, and K and V once for each
        tile of queries; both leave out the pairs of tiles in which causal hides everything. Less traffic is
        right, too: the pass for dQ may also compute delta, if it comes before the pass for dK and dV.
    SRAM: at most 16 * (3 * block_q * d + 4 * block_k * d + 2 * block_q * block_k) bytes, whatever n_q and n_k.

    >>> from course_lib.machine import Machine
    >>> machine, dv = Machine(), np.zeros((2, 1))
    >>> given = [np.ones((1, 1)), np.ones((2, 1)), np.ones((2, 1)), np.ones((1, 1)), np.array([1 + np.log(2)])]
    >>> made = np.ones((1, 1)), np.zeros(1), np.zeros((1, 1)), np.zeros((2, 1)), dv
    >>> tiled_backward(machine, *map(machine.hbm, [*given, *made]), block_q=1, block_k=1)
    >>> dv.round(4).tolist()
    [[0.5], [0.5]]
    """
    n_q, d = Q.shape
    n_k = len(K)
    scale = d**-0.5
    q_tiles = [(start, min(start + block_q, n_q)) for start in range(0, n_q, block_q)]
    k_tiles = [(start, min(start + block_k, n_k)) for start in range(0, n_k, block_k)]

    def load(handle, rows):
        return machine.load(handle, rows).astype(np.float32)

    def hidden(q_rows, k_rows):
        return causal and q_rows[1] - 1 + n_k - n_q < k_rows[0]

    def p_and_ds(q, k, v, do, lse_i, delta_i, q_rows, k_rows):
        s = q @ k.T * scale
        if causal:
            s[np.arange(*k_rows) > np.arange(*q_rows)[:, None] + n_k - n_q] = -np.inf
        p = np.exp(s - np.where(lse_i == -np.inf, 0.0, lse_i)[:, None])  # 0 in a row that sees nothing
        dp = do @ v.T
        return p, p * (dp - delta_i[:, None])

    for q_rows in q_tiles:
        machine.store(delta, q_rows, (load(O, q_rows) * load(dO, q_rows)).sum(axis=1).astype(delta.dtype))
    for k_rows in k_tiles:
        k, v = load(K, k_rows), load(V, k_rows)
        dk, dv = machine.full(k.shape, 0.0), machine.full(k.shape, 0.0)
        for q_rows in q_tiles:
            if hidden(q_rows, k_rows):
                continue
            q, do, lse_i, delta_i = (load(handle, q_rows) for handle in (Q, dO, lse, delta))
            p, ds = p_and_ds(q, k, v, do, lse_i, delta_i, q_rows, k_rows)
            dv += p.T @ do
            dk += ds.T @ q
            del q, do, lse_i, delta_i, p, ds
        machine.store(dV, k_rows, dv.astype(dV.dtype))
        machine.store(dK, k_rows, (scale * dk).astype(dK.dtype))
        del k, v, dk, dv
    for q_rows in q_tiles:
        q, do, lse_i, delta_i = (load(handle, q_rows) for handle in (Q, dO, lse, delta))
        dq = machine.full(q.shape, 0.0)
        for k_rows in k_tiles:
            if hidden(q_rows, k_rows):
                break
            k, v = load(K, k_rows), load(V, k_rows)
            p, ds = p_and_ds(q, k, v, do, lse_i, delta_i, q_rows, k_rows)
            dq += ds @ k
            del k, v, p, ds
        machine.store(dQ, q_rows, (scale * dq).astype(dQ.dtype))
        del q, do, lse_i, delta_i, dq


def right_results(machine, q, k, v, o, lse, do, made, causal, **_):
    if q.dtype == np.float16:
        # The error of rounding each gradient to float16 once. O came rounded already, which is not the answer's fault.
        q, k, v, o, do = (x.astype(np.float64) for x in (q, k, v, o, do))
        exact = reference.attention_backward(q, k, v, o, lse.astype(np.float64), do, causal=causal)
        rounded = zip(("dQ", "dK", "dV"), exact, strict=True)
        expected = [ExpectedOutput(name, x, x.astype(np.float16), np.abs(x).max()) for name, x in rounded]
    else:
        expected = expected_gradients(q, k, v, do, causal)
    return compare(tuple(made), [*expected_delta(o, do), *expected])


def needed(q, k, block_q, block_k, causal):
    """{name: what has to be moved of it}."""
    sizes = {"block_q": block_q, "block_k": block_k, "causal": causal, "dtype_bytes": q.itemsize}
    return traffic.flash_attention_backward(len(q), *k.shape, **sizes).by_tensor


def loads(machine, q, k, block_q, block_k, causal, **_):
    """Whether the pairs of tiles are visited in which some query sees some key: each loads its rows of Q."""
    due = needed(q, k, block_q, block_k, causal)["Q"].read_bytes // q[0].nbytes
    came = machine.report().by_tensor["Q"].read_bytes // q[0].nbytes
    return came != due and f"{came} rows of Q are loaded in all, where the visible pairs of tiles take {due}"


def rounding(machine, q, k, o, do, made, **names):
    """Where the digits of float16 inputs are lost: delta is made of two tiles alone."""
    if compare(made[0], expected_delta(o, do)) is None:
        return loads(machine, q, k, **names)
    return "delta is made of one tile of O and one of dO: a tile is float16, as its tensor is, until it is converted"


def moves_no_more_than_needed(machine, q, k, block_q, block_k, causal, **names):
    wrong = right_results(machine, q, k, causal=causal, **names)
    return wrong or compare_traffic(machine, needed(q, k, block_q, block_k, causal))


def reading_pass(machine, q, k, block_q, block_k, causal, **_):
    """Which pass reads hidden tiles, if all is right without a mask: K and V pass by in one, Q in the other."""
    due, counted = needed(q, k, block_q, block_k, causal), machine.report().by_tensor
    passes = {"dQ": "K", "dK and dV": "Q"}
    reading = [made for made, name in passes.items() if counted[name].read_bytes > due[name].read_bytes]
    return reading and f"tiles that causal hides are read in the pass for {' and in that for '.join(reading)}"


def large_loads(events, block_q, block_k):
    """Loads of more rows than a tile has, or ""."""
    tile = dict.fromkeys(("K", "V"), ("keys", block_k))
    tile |= dict.fromkeys(("Q", "O", "dO", "lse", "delta"), ("queries", block_q))
    lines = {}
    for place, event in enumerate(events):
        of, rows = tile.get(event.tensor, ("", np.inf))
        if event.kind == "load" and event.stop - event.start > rows:
            stored = next((later.tensor for later in events[place:] if later.kind == "store"), "any result")
            text = f"{event.stop - event.start} rows of {event.tensor} are loaded at once, before {stored} is stored"
            lines.setdefault(event.tensor, f"  {text}; a tile of {of} has {rows}")
    return "\n".join(lines.values())


def fits(machine, n_q, n_k, d, block_q, block_k, **names):
    """No limit is set, so that an answer is told what it holds when SRAM is fullest, not where the last straw fell."""
    most = 16 * (3 * block_q * d + 4 * block_k * d + 2 * block_q * block_k)
    report = machine.report()
    if report.peak_sram_bytes <= most:
        return right_results(machine, **names)
    held = Counter((name.split("[")[0], n_bytes) for name, n_bytes in report.peak_holders)
    tiles = {-(-n_k // block_k): "keys", -(-n_q // block_q): "queries"}
    text = f"{report.peak_sram_bytes:,} bytes of SRAM are in use at the peak, where {most:,} are allowed:"
    for (name, n_bytes), count in sorted(held.items(), key=lambda each: -each[0][1] * each[1])[:3]:
        most = max((n_tiles for n_tiles in tiles if 8 <= n_tiles <= count), default=0)
        each = f", at least one for each of the {most} tiles of {tiles[most]}" if most else ""
        text += f"\n  {count} x {n_bytes:,} bytes: {name}{each}"
    loads = large_loads(report.events, block_q, block_k)
    return single_finding("large loads", f"{text}\n{loads}") if loads else single_finding("SRAM", text)


def tiled(inputs, block_q, block_k, causal=False):
    return inputs | {"block_q": block_q, "block_k": block_k, "causal": causal}


sized = case_of("n_q n_k d block_q block_k causal", causal=False)
CALL = """\
from course_lib import reference
from course_lib.machine import Machine
o, lse = reference.attention(q, k, v, causal=causal, return_lse=True)
machine, made = Machine(), [np.full_like(x, np.nan) for x in (lse, q, k, v)]
handles = map(machine.hbm, (q, k, v, o, lse, do, *made), ("Q", "K", "V", "O", "lse", "dO", "delta", "dQ", "dK", "dV"))
tiled_backward(machine, *handles, block_q, block_k, causal)"""
RANDOM = """\
rng = np.random.default_rng(0)
q, k, v, do = (rng.standard_normal((n, d)).astype(np.float16) for n in (n_q, n_k, n_k, n_q))
"""
RANDOM_CALL = RANDOM + CALL
FLOAT32_CALL = RANDOM_CALL.replace("float16", "float32")
THREE = as_floats(q=[[1], [1], [1]], k=[[1], [2], [3]], v=[[1], [2], [4]], do=[[1], [2], [1]])
TWO = as_floats(q=[[1], [1]], k=[[1], [2]], v=[[1], [2]], do=[[1], [2]])
MORE_KEYS = as_floats(q=[[1], [1]], k=[[1], [2], [3]], v=[[1], [2], [4]], do=[[1], [2]])
MORE_QUERIES = as_floats(q=[[1], [1]], k=[[2]], v=[[3]], do=[[1], [2]])
check = Checks(CALL, explain(right_results, loads), tiled, on_machine)

check("all keys and values alike: dP is delta, and dQ and dK are 0", [(TWO | {"k": TWO["q"], "v": TWO["q"]}, 2, 2)])
check("one tile that holds everything, of one column: the scale is 1", [(THREE, 3, 3)])
check(
    "one tile that holds everything",
    [(SQUARE, 2, 2), small_inputs(square=True).map(lambda x: (x, len(x["q"]), len(x["k"])))],
)
check("several tiles of queries: dK and dV add up", [(THREE, 1, 3), (SENTENCE, 2, 4)])
check("several tiles of keys: dQ adds up, and P is that of the whole row", [(THREE, 3, 1), (SENTENCE, 4, 2)])
check("the last tile of queries or of keys may be short", [(THREE, 2, 2), (SENTENCE, 3, 3)])
check("causal, as many queries as keys: query i sees keys 0 to i", [(TWO, 2, 2, True), (SENTENCE, 2, 2, True)])
check(
    "causal, more keys than queries: the last query sees the last key",
    [(MORE_KEYS, 2, 3, True), (MORE_KEYS, 1, 2, True)],
)
check(
    "causal, more queries than keys: a query that sees no key has no part in it, and nothing is NaN",
    [(MORE_QUERIES, 2, 1, True), (THREE | {"k": TWO["k"], "v": TWO["v"]}, 2, 2, True)],
)
check(
    "any numbers of queries and keys, any tiles, causal or not",
    [(SENTENCE, 3, 2, True), st.tuples(small_inputs(most=4), *[st.integers(1, 3)] * 2, st.booleans())],
)
# In float32, so that a sum that is stored and read back in between is told by its bytes, not by its digits.
check(
    "each tensor is read and written no more often than the three passes need",
    [sized(8, 8, 4, 4, 2), sized(40, 56, 8, 16, 24)],
    test=moves_no_more_than_needed,
    call=FLOAT32_CALL,
)
check.call = RANDOM_CALL
check(
    "float16 comes in and goes out, and rounds once",
    [sized(512, 32, 8, 16, 16), sized(16, 512, 8, 16, 16)],
    test=explain(right_results, rounding),
)
check(
    "all the work is the answer's own, on tiles that it loaded",
    [sized(4, 6, 2, 2, 2)],
    test=own_work(right_results),
    credit=4,
)
check(
    "SRAM never holds more than 16 (3 block_q d + 4 block_k d + 2 block_q block_k) bytes",
    [
        sized(96, 80, 16, 16, 32),
        sized(8, 160, 4, 4, 4),
        sized(600, 8, 4, 4, 4),
        sized(64, 64, 1, 64, 1),
        sized(40, 56, 8, 16, 24, True),
    ],
    test=fits,
)
check(
    "causal: pairs of tiles that are hidden altogether are not read",
    [sized(8, 8, 4, 2, 2, True), sized(40, 56, 8, 16, 24, True), sized(9, 5, 4, 2, 2, True)],
    test=explain(moves_no_more_than_needed, reading_pass),
    call=FLOAT32_CALL,
)
check(
    "hidden scores far above or far below the visible ones stay hidden",
    [(inputs, 2, 2, True) for inputs in HIDDEN],
    call=CALL,
)
check("causal is off unless it is given", [(TWO, 2, 2)], call=CALL.replace("block_k, causal)", "block_k)"))

EXERCISE = Exercise(__file__, tiled_backward, check, points=6, minutes=25, difficulty="hard")
