"""Ring attention over simulated ranks: queries stay, keys and values travel, and each rank merges what it sees."""

import itertools
from functools import partial

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from courseware.checks import Checks, Exercise, agrees, case_of, expected, not_modified, single_finding
from courseware.checks.diagnosis import compare, exactly, named
from courseware.exercises.common.explanations import explain
from courseware.exercises.common.generators import drawn_case
from courseware.exercises.lesson_16.visible_blocks import tokens_of
from courseware.simulators.ring import Link


def ring_attention(link, Q, K, V, causal):
    """Attention of one sequence whose rows are spread over simulated ranks: o, [ranks, n, d].

    Q, K, V: [ranks, n, d]; Q[r], K[r] and V[r] are what rank r holds, n even. With causal, in zigzag order: of
        2 * ranks chunks of n / 2 tokens, rank r holds chunk r and chunk 2 * ranks - 1 - r. Otherwise in any order.
    Scores are divided by sqrt(d). causal: a query sees the keys whose tokens are not later than its own.
    link.send(rank, array) sends an array from a rank to the next one, from the last to rank 0, and returns what arrives
        there. A rank may compute only with its own rows and with what has arrived at it.
    Queries stay, and keys and values travel around the ring. Each rank sends 2 * (ranks - 1) * n * d elements at most.
    Returns the outputs of each rank's queries, in the order in which it holds them. The inputs are not modified.

    >>> from courseware.simulators.ring import Link
    >>> link, K, V = Link(ranks=2), np.zeros((2, 2, 1)), np.array([[[1.0], [4.0]], [[2.0], [3.0]]])
    >>> ring_attention(link, K, K, V, causal=True).tolist(), link.sent_bytes
    ([[[1.0], [2.5]], [[1.5], [2.0]]], [32, 32])
    """
    ranks, n, d = Q.shape
    m = np.full((ranks, n), -np.inf)
    l = np.zeros((ranks, n))
    acc = np.zeros((ranks, n, d))
    for step in range(ranks):
        for rank in range(ranks):
            source = (rank - step) % ranks
            first_query = n // 2 if causal and source > rank else 0
            n_keys = n // 2 if causal and source < rank else n
            rows = slice(first_query, n)
            s = Q[rank, rows] @ K[rank, :n_keys].T / np.sqrt(d)
            if causal and source == rank:
                s = np.where(np.tri(n, dtype=bool), s, -np.inf)
            m_new = np.maximum(m[rank, rows], s.max(axis=1))
            alpha = np.exp(m[rank, rows] - m_new)
            p = np.exp(s - m_new[:, None])
            l[rank, rows] = alpha * l[rank, rows] + p.sum(axis=1)
            acc[rank, rows] = alpha[:, None] * acc[rank, rows] + p @ V[rank, :n_keys]
            m[rank, rows] = m_new
        if step < ranks - 1:
            K = np.roll([link.send(rank, K[rank]) for rank in range(ranks)], 1, axis=0)
            V = np.roll([link.send(rank, V[rank]) for rank in range(ranks)], 1, axis=0)
    return acc / l[:, :, None]


def whole(Q, K, V, causal, gain=1):
    """The ranks' outputs from the whole sequence in one piece. gain: what a hop multiplies keys and values by."""
    ranks, n, d = Q.shape
    order = np.concatenate([tokens_of(rank, ranks, n, True) for rank in range(ranks)])
    back, o = np.argsort(order), []
    for rank in range(ranks):
        hops = gain ** (np.arange(rank, rank - ranks, -1) % ranks)[:, None, None].astype(K.dtype)
        q, k, v = (x.reshape(-1, d)[back] for x in (Q, K * hops, V * hops))
        o.append(reference.attention(q, k, v, causal=causal)[order[rank * n : (rank + 1) * n]])
    return np.stack(o)


def outputs(Q, K, V, causal, gain=1, **_):
    d, most = Q.shape[-1], gain ** (len(Q) - 1)
    conditioning = 1 + np.abs(Q).max() * np.abs(K).max() * most * np.sqrt(d)
    of = partial(whole, causal=causal, gain=gain)
    return expected("o", of, Q, K, V, terms=conditioning * most * np.abs(V).max(), index="rank")


def sends_no_more(returned, link, Q, **_):
    ranks, shard = len(Q), Q[0].nbytes
    enough = 2 * (ranks - 1) * shard
    over = [rank for rank, sent in enumerate(link.sent_bytes) if sent > enough]
    if not over:
        return None
    sent = link.sent_bytes[over[0]]
    text = f"rank {over[0]} sends {sent:,} bytes, where {enough:,} are enough: K and V of a rank are {2 * shard:,}"
    return single_finding("bytes", text, str(link.sent_bytes), str([enough] * ranks))


def leaves_inputs_alone(answer, **inputs):
    return not_modified(answer, link=Link(len(inputs["Q"])), **inputs)


case = case_of("Q K V causal", causal=False)
marked = case_of("Q K V causal gain", causal=False, gain=2)
LINK = "from courseware.simulators.ring import Link\nlink = Link(ranks=len(Q))\n"
CALL = LINK + "ring_attention(link, Q, K, V, causal)"


def sequence(ranks, n, d, causal=False, seed=0, size=1):
    """Rows of small numbers with many digits, the same ones for the same arguments."""
    rng = np.random.default_rng(seed)
    Q, K, V = (rng.integers(-8, 9, (ranks, n, d)) / 4 for _ in range(3))
    return case(Q, size * K, V, causal)


def of_scores(scores, causal=False):
    """With d = 1 and queries of 1 the keys are the scores. scores: [ranks][n]."""
    scores = np.array(scores, np.float64)[:, :, None]
    return case(np.ones_like(scores), scores, 2.0 ** np.arange(scores.size).reshape(scores.shape), causal)


def sequences(causal=False):
    shapes = dict.fromkeys("QKV", "ranks n d")
    return drawn_case({"ranks": 3, "n": [2, 4], "d": 2}, **shapes, causal=st.just(causal))


def keys_that_count(returned, Q, K, V, causal, gain=1, **_):
    """Of the first wrong row, the ranks whose keys it is made of, or how often they were carried, if it is right so."""
    ranks, n, d = Q.shape
    (part,) = outputs(Q, K, V, causal, gain)
    off = np.abs(np.asarray(returned) - part.expected).max(axis=-1) > 1e-4 * part.terms
    if not off.any():
        return ""
    rank, row = np.argwhere(off)[0]
    tokens = np.array([tokens_of(each, ranks, n, True) for each in range(ranks)])
    visible = tokens <= tokens[rank, row] if causal else np.ones_like(tokens, bool)
    scores = np.where(visible, K @ Q[rank, row] / np.sqrt(d), -np.inf)
    of = np.flatnonzero(visible.any(axis=1)).tolist()

    def is_made_of(some, carried):
        times = np.float64(gain) ** carried[:, None]
        o = reference.stable_softmax((scores[some] * times).ravel()) @ (V[some] * times[:, :, None]).reshape(-1, d)
        return np.allclose(o, np.asarray(returned)[rank, row], rtol=1e-5, atol=1e-9)

    if gain != 1:
        due = (rank - np.array(of)) % ranks
        for carried in map(np.array, itertools.product(range(ranks + 1), repeat=len(of))):
            if is_made_of(of, carried):
                came, right = (", ".join(map(str, x.tolist())) for x in (carried, due))
                text = f"as if the keys of {named('rank', of)} had been carried {came} times, not {right}"
                return f"row {row} of rank {rank} is {text}"
        return ""
    for some in (list(x) for size in range(1, ranks) for x in itertools.combinations(of, size)):
        if is_made_of(some, np.zeros(len(some))):
            return f"row {row} of rank {rank} is made of the keys of {named('rank', some)} alone"
    return ""


check = Checks(CALL, explain(agrees(outputs), keys_that_count), case)

check("one rank: softmax(Q K^T / sqrt(d)) V", [sequence(1, 4, 3), of_scores([[0, 1]])])
check("two ranks, no mask: every rank sees all keys", [of_scores([[0, 1], [2, 0]]), sequence(2, 4, 3)])
check("more ranks, no mask", [sequence(3, 2, 2), sequence(4, 6, 3), sequences()], credit=2)
check(
    "keys that arrive later may have higher scores, or lower ones",
    [of_scores([[0, 1], [900, 901], [-900, 5]]), of_scores([[-4e6, -4e6], [-3e6, -4e6]])],
    credit=3,
)
check(
    "causal, one rank: each query sees the keys up to its own",
    [of_scores([[0, 0, 1, 2]], True), sequence(1, 4, 2, True)],
)
check(
    "causal, two ranks in zigzag order",
    [of_scores([[0, 0], [0, 0]], True), of_scores([[0, 1, 2, 1], [3, 0, 1, 2]], True), sequence(2, 4, 3, True)],
)
check("causal, more ranks", [sequence(3, 2, 2, True), sequence(4, 6, 3, True), sequences(causal=True)])
check(
    "causal: hidden keys change nothing, however high their scores",
    [of_scores([[0, 1000], [1, 900]], True), of_scores([[1, 2, 990, 980], [0, 3, 970, 960]], True)],
)
check(
    "causal: the first query sees its own key alone, however low the score",
    [of_scores([[-4e6, 0], [0, 1]], True)],
    test=lambda returned, V, **_: compare(returned[0][0], exactly("o[0, 0]", V[0, 0])),
)
check(
    "a rank computes with what has arrived: over a link that doubles all it carries, as often as it was carried",
    [marked(**of_scores([[0, 1], [1, 2]])), marked(**sequence(3, 4, 2, True)), marked(**sequence(4, 2, 1))],
    call=CALL.replace("len(Q)", "len(Q), gain=gain"),
)
check(
    "each rank sends keys and values ranks - 1 times, and nothing else",
    [sequence(2, 2, 3), sequence(4, 2, 2, True), sequence(1, 2, 1)],
    test=sends_no_more,
)
check("the inputs are not modified", [sequence(3, 4, 2), sequence(2, 4, 2, True)], calls=leaves_inputs_alone)

EXERCISE = Exercise(__file__, ring_attention, check, points=6, minutes=25, difficulty="hard")
