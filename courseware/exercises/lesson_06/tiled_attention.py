"""Attention, tile by tile, on the memory machine."""

import functools

import numpy as np
from hypothesis import strategies as st

from course_lib import reference, traffic
from course_lib.reference import example
from courseware.checks import Checks, Exercise, ExpectedOutput, case_of, compare, exactly
from courseware.exercises.common.generators import drawn_case
from courseware.exercises.common.on_machine import compare_traffic, on_machine, own_work
from courseware.exercises.common.oracles import attention_output


def tiled_attention(machine, Q, K, V, O, block_q, block_k, causal=False):
    """Attention, tile by tile, on a machine that counts every byte. The result is stored in O.

    machine: a course_lib.machine.Machine. Q, O: handles, [n_q, d]; K, V: handles, [n_k, d]; one float dtype.
    block_q, block_k: rows of a query tile and of a key tile, at least 1; they need not divide n_q and n_k.
    causal: query i sees keys 0 to i + n_k - n_q; a query that sees none gets an output of 0.
    Scores are divided by sqrt(d). Compute in float32 or better (float32 is enough for float64, too), and
        store in O's dtype. Returns nothing.
    Traffic, at most: Q is read once and O written once; K and V are read once for each query tile, except the
        tiles that causal hides from all of its queries. Nothing else is put in HBM.
    SRAM: never more than 64 * (block_q * d + 2 * block_k * d + block_q * block_k) bytes, whatever n_q and n_k.

    >>> from course_lib.machine import Machine
    >>> machine, o = Machine(), np.zeros((2, 1))
    >>> arrays = np.array([[1.0], [1.0]]), np.array([[3.0], [3.0]]), np.array([[2.0], [4.0]]), o
    >>> Q, K, V, O = (machine.hbm(array, name) for array, name in zip(arrays, "QKVO"))
    >>> tiled_attention(machine, Q, K, V, O, block_q=1, block_k=1)
    >>> print(o.tolist(), machine.report().by_tensor["K"].read_bytes)
    [[3.0], [3.0]] 32
    """
    n_q, d = Q.shape
    n_k = len(K)
    for q_start in range(0, n_q, block_q):
        q_stop = min(q_start + block_q, n_q)
        q = machine.load(Q, (q_start, q_stop)).astype(np.float32)
        m = machine.full(len(q), -np.inf)
        l = machine.full(len(q), 0.0)
        acc = machine.full((len(q), d), 0.0)
        kv_end = min(max(q_stop + n_k - n_q, 0), n_k) if causal else n_k
        for k_start in range(0, kv_end, block_k):
            k_stop = min(k_start + block_k, n_k)
            k = machine.load(K, (k_start, k_stop))
            v = machine.load(V, (k_start, k_stop))
            s = q @ k.T * d**-0.5
            if causal:
                visible = np.arange(q_start, q_stop)[:, None] + n_k - n_q
                s[np.arange(k_start, k_stop) > visible] = -np.inf
            m_new = np.maximum(m, s.max(axis=1))
            shift = np.where(m_new == -np.inf, 0.0, m_new)  # finite, so that -inf - shift is never NaN
            alpha = np.exp(m - shift)
            p = np.exp(s - shift[:, None])
            l = alpha * l + p.sum(axis=1)
            acc = alpha[:, None] * acc + p @ v
            m = m_new
            del k, v, s, p
        out = acc / np.where(l == 0, 1.0, l)[:, None]
        machine.store(O, (q_start, q_stop), out.astype(O.dtype))


def output_is_right(machine, q, k, v, o, causal, **_):
    if q.dtype == np.float16:
        # Twice the error that comes from rounding the exact output to float16 once, and no more.
        exact = reference.attention(*(x.astype(np.float64) for x in (q, k, v)), causal=causal)
        expected = [ExpectedOutput("O", exact, exact.astype(np.float16), np.abs(exact).max())]
    else:
        expected = attention_output("O", q, k, v, causal)
    return compare(o, expected)


def moves_no_more(machine, n_q, n_k, d, block_q, block_k, causal, **names):
    sizes = {"block_q": block_q, "block_k": block_k, "dtype_bytes": 2, "causal": causal}
    needed = traffic.flash_attention(n_q, n_k, d, **sizes)
    return compare_traffic(machine, needed.by_tensor) or output_is_right(machine, causal=causal, **names)


case = case_of("q k v block_q block_k causal", causal=False)


def of_scores(scores, block_k, rows=1, causal=False):
    """With d = 1 and queries of 1 the keys are the scores, and no scale can hide or make a mistake."""
    values = [[2.0**-i] for i in range(len(scores))]
    return case([[1]] * rows, [[s] for s in scores], values, rows, block_k, causal)


causal_scores = functools.partial(of_scores, causal=True)


def matrices(causal=False):
    blocks = dict.fromkeys(("block_q", "block_k"), st.integers(1, 3))
    shapes = {"q": "n_q d", "k": "n_k d", "v": "n_k d"}
    return drawn_case({"n_q": 4, "n_k": 4, "d": 2}, **shapes, **blocks, causal=st.just(causal))


RANDOM = """\
rng = np.random.default_rng(0)
q, k, v = ((2 * rng.standard_normal((n, d))).astype(np.float16) for n in (n_q, n_k, n_k))
"""
CALL = """\
from course_lib.machine import Machine
machine, o = Machine(), np.full_like(q, np.nan)
tiled_attention(machine, *map(machine.hbm, (q, k, v, o), 'QKVO'), block_q, block_k, causal)"""
RANDOM_CALL = RANDOM + CALL
LIMITED_CALL = RANDOM_CALL.replace("Machine()", "Machine(64 * (block_q * d + 2 * block_k * d + block_q * block_k))")
sized = case_of("n_q n_k d block_q block_k causal", causal=False)
check = Checks(CALL, output_is_right, sized, on_machine)

check(
    "one tile that holds everything gives softmax(Q K^T / sqrt(d)) V",
    [case([[1, 1, 2], [0, 1, 0]], np.eye(4, 3) * 2, np.eye(4, 3) + [[0, 0, 2]], 2, 4)],
)
check("tiles of keys that leave the max alone", [of_scores([2, 1], 1), of_scores([4, 3, 1, 0], 2)])
check("tiles of keys that raise the max, each of them", [of_scores([1, 2], 1), of_scores([0, 1, 3, 4], 2)])
check(
    "any lengths and any tiles: the last ones may be short",
    [of_scores([1, 2, 3], 2), of_scores([1, 2, 3, 0, 2], 3, rows=3), case([[1]] * 3, [[1]], [[2]], 2, 4), matrices()],
)
check("scores near 1000", [of_scores([1000, 999], 2), of_scores([1000, 1001], 1)])
check("the max falls by 1000 from one tile of keys to the next", [of_scores([0, 1, -1000, -1001], 2)])
check("all scores strongly negative", [of_scores([-1000, -1001], 2), of_scores([-1000, -1001], 1)])
check(
    "a single key gets all the weight, however low its score",
    [of_scores([-1e37], 1), of_scores([-1e37], 2)],
    test=lambda machine, v, o, **_: compare(o, exactly("O", v)),
)
check("each row has a max of its own: rows 1000 apart", [case([[1], [-1]], [[1000], [999]], [[1], [2]], 2, 1)])
check(
    "causal, as many queries as keys: query i sees keys 0 to i",
    [
        causal_scores([1, 2], 1, rows=2),
        case(example.Q, example.K, example.V, 2, 2, True),
        case([[1]] * 6, [[0], [1], [2], [0], [1], [3]], [[1], [2], [4], [8], [16], [32]], 4, 2, True),
    ],
)
check("causal: a hidden key changes nothing, however high its score", [causal_scores([0, 1, 3, 1000], 2, rows=4)])
check("causal, more keys than queries: the last query sees the last key", [causal_scores([1, 2, 3, 4], 2, rows=2)])
check(
    "causal, more queries than keys: the first see no key and get 0",
    [causal_scores([1], 1, rows=2), causal_scores([1, 2], 1, rows=5), matrices(causal=True)],
)
check(
    "without `causal`, every query sees every key",
    [case(example.Q, example.K, example.V, 2, 2)],
    call=CALL.replace(", causal)", ")"),
)
check.call = RANDOM_CALL
check("float16 comes in and goes out, and rounds once", [(4, 6, 2, 2, 2), (32, 512, 16, 16, 16)])
check(
    "all the work is the answer's own, on tiles that it loaded",
    [(4, 6, 2, 2, 2)],
    test=own_work(output_is_right),
    credit=4,
)
check(
    "SRAM never holds more than 64 (block_q d + 2 block_k d + block_q block_k) bytes",
    [(16, 2048, 16, 16, 16), (2048, 16, 16, 16, 16), (192, 384, 16, 16, 16, True), (128, 6, 32, 64, 2)],
    call=LIMITED_CALL,
)
check(
    "no more bytes than Q and O once, and K and V once for every query tile",
    [(8, 8, 4, 4, 2), (40, 56, 8, 16, 24)],
    test=moves_no_more,
)
check(
    "causal: tiles that no query of the tile sees are not read",
    [(8, 8, 4, 2, 2, True), (40, 56, 8, 16, 24, True), (9, 5, 4, 2, 2, True)],
    test=moves_no_more,
)

EXERCISE = Exercise(__file__, tiled_attention, check, points=6, minutes=20, difficulty="hard")
