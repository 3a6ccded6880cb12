"""The backward in tiles on the memory machine: FlashAttention-2 (Dao, 2023), Alg. 2, in three passes."""

import numpy as np
from hypothesis import strategies as st

from course_lib import reference, traffic
from course_lib.exercises.common.generators import as_floats
from course_lib.exercises.common.on_machine import compare_traffic, on_machine, own_work
from course_lib.exercises.lesson_09.gradients import SENTENCE, SQUARE, expected_delta, expected_gradients, small_inputs
from course_lib.grading.diagnosis import compare
from course_lib.grading.exercise import Before, Checks, Exercise, ExpectedOutput, Slip, each_and_all
from course_lib.reference.backward import tiled_backward_on_machine


def tiled_backward(machine, Q, K, V, O, lse, dO, delta, dQ, dK, dV, block_q, block_k, causal=False):
    """The gradients of attention, tile by tile, in three passes, on a machine that counts every byte.

    machine: a course_lib.machine.Machine. Q, O, dO, dQ: handles, [n_q, d]; K, V, dK, dV: handles, [n_k, d]; one float
        dtype. lse, delta: handles, [n_q], float32 or float64. O and lse (natural logarithm) are the forward's.
    block_q, block_k: rows of a tile of queries and of keys, at least 1; they need not divide n_q and n_k.
    causal: query i sees keys 0 to i + n_k - n_q; one that sees none has lse = -inf, and gives and gets no gradient.
    Stores the results in delta, dQ, dK and dV, each row once, in their dtypes. Compute in float32 or better; the
        scores' scale is 1/sqrt(d). Returns nothing.
    Traffic: the pass for delta reads O and dO once. The pass for dK and dV reads K and V once, and Q, dO, lse and delta
        once for each tile of keys; the pass for dQ reads Q, dO, lse and delta once, and K and V once for each tile of
        queries; both leave out the tiles in which causal hides everything.
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


def moves_no_more_than_needed(machine, n_q, n_k, d, block_q, block_k, causal, **names):
    needed = traffic.flash_attention_backward(n_q, n_k, d, block_q=block_q, block_k=block_k, causal=causal)
    return right_results(machine, causal=causal, **names) or compare_traffic(machine, needed.by_tensor)


def tiled(inputs, block_q, block_k, causal=False):
    return inputs | {"block_q": block_q, "block_k": block_k, "causal": causal}


def sized(n_q, n_k, d, block_q, block_k, causal=False):
    return tiled({"n_q": n_q, "n_k": n_k, "d": d}, block_q, block_k, causal)


@st.composite
def one_tile(draw):
    """As many queries as keys and columns, so that no wrong transpose raises, in one tile."""
    inputs = draw(small_inputs(square=True))
    return tiled(inputs, len(inputs["q"]), len(inputs["k"]))


@st.composite
def any_tiles(draw):
    return tiled(draw(small_inputs(most=4)), draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.booleans()))


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
LIMITED_CALL = RANDOM_CALL.replace("Machine()", "Machine(budget_bytes)").replace(
    "machine, made", "budget_bytes = 16 * (3 * block_q * d + 4 * block_k * d + 2 * block_q * block_k)\nmachine, made"
)
THREE = as_floats(q=[[1], [1], [1]], k=[[1], [2], [3]], v=[[1], [2], [4]], do=[[1], [2], [1]])
TWO = as_floats(q=[[1], [1]], k=[[1], [2]], v=[[1], [2]], do=[[1], [2]])
MORE_KEYS = as_floats(q=[[1], [1]], k=[[1], [2], [3]], v=[[1], [2], [4]], do=[[1], [2]])
MORE_QUERIES = as_floats(q=[[1], [1]], k=[[2]], v=[[3]], do=[[1], [2]])
P = "np.exp(s - np.where(lse_i == -np.inf, 0.0, lse_i)[:, None])"
DS = "p * (dp - delta_i[:, None])"
MASK, SKIP = "[:, None] + n_k - n_q]", "q_rows[1] - 1 + n_k - n_q"
NO_SKIP = {"return causal and": "return False and"}


def finished(machine, Q, K, V, O, lse, dO, delta, dQ, dK, dV, block_q, block_k, causal=False):
    tiled_backward_on_machine(
        machine, Q, K, V, O, lse, dO, dQ, dK, dV, delta, block_q=block_q, block_k=block_k, causal=causal
    )


def bypassing(machine, Q, K, V, O, lse, dO, delta, dQ, dK, dV, block_q, block_k, causal=False):
    made = reference.attention_backward(*(handle._array for handle in (Q, K, V, O, lse, dO)), causal=causal)
    for handle, values in zip((dQ, dK, dV, delta), (*made, reference.backward.delta(O._array, dO._array)), strict=True):
        machine.store(handle, (0, len(handle)), machine.full(handle.shape, 0.0, handle.dtype))
        handle._array[:] = values


check = Checks(CALL, right_results, on_machine)

check("one tile that holds everything", [tiled(SQUARE, 2, 2), one_tile()]).catches(
    Slip("dV is made from dP", {"dv += p.T @ do": "dv += (do @ v.T).T @ do"}),
    Slip("lse is read as a base-2 logarithm", {"np.exp(s - np.where": "np.exp2(s - np.where"}),
    Slip("the tile's maximum replaces lse", {P: "np.exp(s - s.max(axis=1)[:, None])"}),
    Slip("delta is the sum of O", {"(load(O, q_rows) * load(dO, q_rows))": "load(O, q_rows)"}),
    Slip("delta is not subtracted", {DS: "p * dp"}),
    Slip("dS is not multiplied by P", {DS: "dp - delta_i[:, None]"}),
    Slip("dP is dO V", {"do @ v.T\n": "do @ v\n"}),
    Slip("dQ lacks the scale", {"(scale * dq)": "dq"}),
    Slip("dQ and dK lack the scale", {"(scale * dq)": "dq", "(scale * dk)": "dk"}),
    Slip("dQ has the scale twice", {"(scale * dq)": "(scale**2 * dq)"}),
    Slip("dQ and dK have the scale twice", {DS: f"scale * {DS}"}),
    Slip("dK lacks the scale", {"(scale * dk)": "dk"}),
    Slip("dS is not transposed", {"ds.T @ q": "ds @ q"}),
)
check("several tiles of queries: dK and dV add up", [tiled(THREE, 1, 3), tiled(SENTENCE, 2, 4)]).catches(
    Slip("dK or dV is overwritten", *each_and_all({"dv += p": "dv = p", "dk += ds": "dk = ds"}))
)
check(
    "several tiles of keys: dQ adds up, and P is that of the whole row", [tiled(THREE, 3, 1), tiled(SENTENCE, 4, 2)]
).catches(
    Slip("dQ is overwritten", {"dq += ds @ k": "dq = ds @ k"}),
    Slip(
        "each tile has a softmax of its own",
        {P: "np.exp(s - s.max(axis=1)[:, None])\n        p = p / p.sum(axis=1)[:, None]"},
    ),
)
check("the last tile of queries or of keys may be short", [tiled(THREE, 2, 2), tiled(SENTENCE, 3, 3)]).catches(
    Slip(
        "the short last tile is left out",
        {"range(0, n_k, block_k)": "range(0, n_k // block_k * block_k or n_k, block_k)"},
        {"range(0, n_q, block_q)": "range(0, n_q // block_q * block_q or n_q, block_q)"},
    )
)
check(
    "causal, as many queries as keys: query i sees keys 0 to i", [tiled(TWO, 2, 2, True), tiled(SENTENCE, 2, 2, True)]
).catches(
    Slip("causal is ignored", {"if causal:": "if False:"} | NO_SKIP),
    Slip("each query sees one key too many", {MASK: "[:, None] + n_k - n_q + 1]", SKIP: "q_rows[1] + n_k - n_q"}),
    Slip("each query misses its last key", {"(*k_rows) > np": "(*k_rows) >= np"}),
    Slip("hidden scores are 0", {"n_q] = -np.inf": "n_q] = 0.0"} | NO_SKIP),
)
check(
    "causal, more keys than queries: the last query sees the last key",
    [tiled(MORE_KEYS, 2, 3, True), tiled(MORE_KEYS, 1, 2, True)],
).catches(Slip("query i sees keys 0 to i", {MASK: "[:, None]]", SKIP: "q_rows[1] - 1"}))
check(
    "causal, more queries than keys: a query that sees no key has no part in it, and nothing is NaN",
    [tiled(MORE_QUERIES, 2, 1, True), tiled(THREE | {"k": TWO["k"], "v": TWO["v"]}, 2, 2, True)],
).catches(Slip("-inf minus -inf", {"np.where(lse_i == -np.inf, 0.0, lse_i)": "lse_i"}))
check("any numbers of queries and keys, any tiles, causal or not", [tiled(SENTENCE, 3, 2, True), any_tiles()])
check("float16 comes in and goes out, and rounds once", [sized(512, 32, 8, 16, 16)], call=RANDOM_CALL).catches(
    Slip(
        "the sums are kept in float16",
        {"del q, do, lse_i, delta_i, p, ds\n": "dk, dv = dk.astype(dK.dtype), dv.astype(dV.dtype)\n"},
    )
)
check(
    "all the work is the answer's own, on tiles that it loaded",
    [sized(4, 6, 2, 2, 2)],
    test=own_work(right_results),
    call=RANDOM_CALL,
).catches(
    Slip("a finished implementation does the work", finished), Slip("arrays are reached without the machine", bypassing)
)
check(
    "SRAM never holds more than 16 (3 block_q d + 4 block_k d + 2 block_q block_k) bytes",
    [sized(96, 80, 16, 16, 32)],
    call=LIMITED_CALL,
).catches(Slip("the N x N matrix is in SRAM", {"n_k = len(K)\n": "n_k = len(K)\n    block_q, block_k = n_q, n_k\n"}))
check(
    "each tensor is read and written no more often than the three passes need",
    [sized(8, 8, 4, 4, 2), sized(40, 56, 8, 16, 24)],
    test=moves_no_more_than_needed,
    call=LIMITED_CALL,
).catches(
    Slip(
        "dQ is brought back for every tile of keys",
        {
            Before("dq += ds @ k"): "if k_rows[0]:\n    machine.load(dQ, q_rows)",
            Before("del k, v, p, ds"): "machine.store(dQ, q_rows, dq.astype(dQ.dtype))",
        },
    ),
    Slip("K and V are loaded in the inner loop", {Before("dv += p.T"): "k, v = load(K, k_rows), load(V, k_rows)"}),
)
check(
    "causal: pairs of tiles that are hidden altogether are not read",
    [sized(8, 8, 4, 2, 2, True), sized(40, 56, 8, 16, 24, True), sized(9, 5, 4, 2, 2, True)],
    test=moves_no_more_than_needed,
    call=LIMITED_CALL,
).catches(Slip("hidden tiles are read", NO_SKIP))

EXERCISE = Exercise(__file__, tiled_backward, check, points=6, minutes=25, difficulty="hard")
