"""Attention of one query over keys that arrive block by block, each of them read once."""

import numpy as np
from hypothesis import strategies as st

from courseware.checks import Checks, Evidence, Exercise, ExpectedOutput, Finding, agrees, case_of, not_modified
from courseware.checks.diagnosis import compare, exactly, show
from courseware.checks.read_counting import Rows

from ..common.generators import LARGE_SCORES, NUMBERS, as_floats, drawn_case, in_both_dtypes, in_float32
from ..common.oracles import attention_output
from ..common.precision import keeps_float64
from .online_normalizer import growing


def online_attention(q, K, V, block):
    """Attention of one query, reading the keys and values block by block, in one pass.

    q: [d]. K: [n, d]. V: [n, d_v], n at least 1; all are float32, or all float64. block: keys read at a time, at
        least 1; it need not divide n.
    Returns [d_v]: the sum over keys of softmax(K q / sqrt(d)) times their rows of V, in the inputs' dtype or float64.
    K and V may be larger than memory: read them by rows, as in K[start:stop] or K[i], at most `block` rows at
        a time and every row once; the len, shape and dtype of either cost nothing. What is kept between two
        blocks does not grow with n: one state, not one for each block.

    >>> q = np.array([1.0, 2.0])
    >>> K = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> V = np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0], [3.0, -1.0]])
    >>> print(online_attention(q, K, V, block=2).round(4))
    [ 2.0112 -0.0112]
    """
    n, d = K.shape
    m, l, acc = -np.inf, 0.0, np.zeros(V.shape[1])
    for start in range(0, n, block):
        scores = K[start : start + block] @ q / np.sqrt(d)
        m_new = max(m, scores.max())
        alpha = np.exp(m - m_new)
        p = np.exp(scores - m_new)
        l = alpha * l + p.sum()
        acc = alpha * acc + p @ V[start : start + block]
        m = m_new
    return acc / l


def right_output(q, K, V, block, name="out", index="column", tile=None):
    (part,) = attention_output(name, q[None], K, V)
    return [ExpectedOutput(name, part.expected[0], part.plain[0], part.terms[0], index, tile)]


def weights(q, K, block):
    """With V the identity the output is the weight of every key, so a mistake shows by block of keys."""
    return right_output(q, K, np.eye(len(K)), block, name="the weight of each key", index="key", tile=block)


def all_the_weight(returned, **_):
    """Of one key. `weights` would allow for the rounding of its score, which is not in the weight."""
    return compare(returned, exactly("the weight of each key", np.ones(1), index="key"))


def reads(answer, q, K, V, block):
    """Each row of K and V is read once, at most `block` rows at a time."""
    rows = {"K": Rows(K), "V": Rows(V)}
    returned = answer(q, rows["K"], rows["V"], block)
    answer.note(*(served.reads for served in rows.values()))
    findings = []
    for name, served in rows.items():
        if served.most_at_once > block:
            text = f"{served.most_at_once} rows of {name} were read at once, with block = {block}"
            findings.append(Finding(name, "at once", text))
        elif served.reads.max() > 1:
            row = int(served.reads.argmax())
            findings.append(Finding(name, "again", f"row {row} of {name} was read {served.reads[row]} times"))
    if findings:
        read = "; ".join(f"{name} read {show(served.reads)} times, row by row" for name, served in rows.items())
        return Evidence(tuple(findings), read, f"every row once, at most {block} at a time")
    return compare(returned, right_output(q, K, V, block))


def memory(answer, n, d_v, block):
    q, out = np.ones(4), np.ones(d_v)

    def rows(size):
        # Broadcast: long matrices of ones that take no memory themselves.
        return [Rows(np.broadcast_to(1.0, (size, width))) for width in (4, d_v)]

    def is_right(returned, _):
        return compare(returned, exactly("out", out))

    text = "what is kept between blocks grows with n, by about {} bytes a key (one float64 score is 8)"
    return growing(lambda served: answer(q, *served, block), n, text, is_right, rows)


def score_case(scores, block):
    """With d = 1 and q = [1] the keys are the scores, and no scale can hide or make a mistake."""
    return as_floats(q=[1], K=[[s] for s in scores]) | {"block": block}


def wide_case(scores, block):
    """With d = 4: a dot product is twice the score, so that the two differ."""
    return as_floats(q=[1] * 4, K=[[s / 2] * 4 for s in scores]) | {"block": block}


def streams(of=NUMBERS):
    return st.builds(score_case, st.lists(of, min_size=1, max_size=7), st.integers(1, 3))


CALL = "online_attention(q, K, V, block)"
case = case_of(online_attention)
INPUTS = drawn_case({"n": 6, "d": 3, "d_v": 3}, q="d", K="n d", V="n d_v", block=st.integers(1, 4))
EXAMPLE = case([1, 2], [[1, 0], [0, 1], [1, 1], [2, 1]], [[2, 0], [0, 2], [1, 1], [3, -1]], 2)
right = agrees(right_output)
check = Checks("online_attention(q, K, np.eye(len(K)), block)", agrees(weights), score_case)

check(
    "one block that holds every key gives softmax(K q / sqrt(d))",
    [as_floats(q=[1, 1, 2], K=[[1, 0, 1], [0, 0, 0], [0, 1, 0], [2, 0, 0]]) | {"block": 4}, ([2, 0, 1], 3), ([5], 1)],
)
check("blocks that leave the max alone", [([1, 1], 1), ([2, 1, 0, 1], 2), ([0, 0, 0, 0], 2)])
check("blocks that raise the max, each of them", [([0, 1], 1), ([0, 1, 2, 3], 2), ([-4, -3, -1], 1)])
check(
    "the last block may be short, and a block may be longer than the sequence",
    [([0, 0, 0], 2), ([1, 0, 2, 1, 0], 3), ([1, 0], 4), streams()],
)
check("any q, K, V and block give attention's output", [EXAMPLE, INPUTS], test=right, call=CALL)
check("scores near 1000 in one block", [([1000, 999], 2), ([1000], 1), wide_case([1000, 999], 2)])
check(
    "the max falls or rises by 1000 from one block to the next",
    [([1000, 0], 1), ([0, 1000], 1), ([1000, 999, 0, -1], 2), wide_case([0, 1000], 1), streams(LARGE_SCORES.map(abs))],
)
check("all scores strongly negative", [([-1000, -1001], 1), wide_case([-1000, -1001], 1), streams(LARGE_SCORES)])
check("a single key gets all the weight, however low its score", [([-1e37], 1), ([-1e37], 2)], test=all_the_weight)
check(
    "every row of K and V is read once, at most `block` rows at a time",
    [EXAMPLE, case([1], [[0], [1], [2]], [[1], [2], [3]], 1)],
    calls=reads,
    call="online_attention(q, Rows(K), Rows(V), block)",
)
check(
    "what is kept between two blocks does not grow with n",
    # Wide values: a state for each block shows beside the few hundred bytes that Python itself may keep for one.
    [{"n": 8192, "d_v": 96, "block": 512}],
    calls=memory,
    call="online_attention(np.ones(4), Rows(np.ones((n, 4))), Rows(np.ones((n, d_v))), block)",
)
check("float32 inputs give float32 or float64", [in_float32(EXAMPLE)], test=right, call=CALL)
check(
    "float64 inputs give float64 digits",
    [EXAMPLE, case([0.3], [[0.7], [1.9]], [[3.3], [0.4]], 1)],
    test=keeps_float64(right_output),
    call=CALL,
)
check("the inputs are not modified", in_both_dtypes(EXAMPLE), calls=not_modified, call=CALL)

EXERCISE = Exercise(__file__, online_attention, check, points=4, minutes=9, difficulty="hard")
