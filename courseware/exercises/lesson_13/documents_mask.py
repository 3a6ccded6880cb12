"""The mask of documents that are packed into one row, told by cumulative lengths."""

import numpy as np
from hypothesis import strategies as st

from course_lib import masks
from courseware.checks import Checks, Evidence, Exercise, Finding, show, single_finding


def documents_mask(q_starts, k_starts, causal):
    """Who sees whom when several documents are packed into one row: [queries, keys] of bool.

    q_starts, k_starts: lists of whole numbers, one more than there are documents. They begin with 0 and never fall:
        document t has queries q_starts[t] to q_starts[t + 1] - 1, and keys k_starts[t] to k_starts[t + 1] - 1. It may
        have more keys than queries or fewer, and it may lack queries, or keys, or both. There is at least one document.
        The last numbers are how many queries and keys there are in all.
    A query sees the keys of its own document. causal: of these the document's last query sees all, the query before it
        all but the last key, and so on: bottom-right within each document. If it has more queries than keys, its first
        queries see none. Without causal, every query sees all keys of its document.

    >>> documents_mask([0, 1, 3], [0, 2, 4], causal=True).astype(int).tolist()
    [[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    """
    visible = np.zeros((q_starts[-1], k_starts[-1]), dtype=bool)
    for t in range(len(q_starts) - 1):
        q_start, q_stop, k_start, k_stop = q_starts[t], q_starts[t + 1], k_starts[t], k_starts[t + 1]
        queries, keys = np.arange(q_start, q_stop)[:, None], np.arange(k_start, k_stop)
        own = keys - k_stop <= queries - q_stop
        visible[q_start:q_stop, k_start:k_stop] = own | (not causal)
    return visible


def dense(q_starts, k_starts, causal):
    mask = masks.packed(q_starts, k_starts, masks.causal() if causal else None)
    return mask.dense(q_starts[-1], k_starts[-1])


def agrees_with_the_mask(returned, q_starts, k_starts, causal):
    right = dense(q_starts, k_starts, causal)
    visible = np.asarray(returned) if isinstance(returned, np.ndarray | list) else np.array(None)
    if visible.shape == right.shape and visible.dtype != bool:
        return single_finding("type", f"the result has dtype {visible.dtype}, not bool", show(visible), show(right))
    if visible.shape != right.shape:
        text = f"the answer did not return an array [{', '.join(map(str, right.shape))}] of bool"
        return single_finding("type", text, show(returned), show(right.astype(int)))
    but = {"sees": ", and should not", "does not see": ", and should"}
    findings = [
        Finding("", verb, f"query {i} {verb} key {j} of {'its own' if own[i, j] else 'another'} document{but[verb]}")
        for verb, wrong in (("sees", visible & ~right), ("does not see", ~visible & right))
        for own in [dense(q_starts, k_starts, False)]
        for i, j in np.argwhere(wrong)[:1].tolist()
    ]
    rows = np.flatnonzero((visible != right).any(axis=1))[:1]
    shown = [f"query {row}: {show(x[row].astype(int))}" for x in (visible, right) for row in rows]
    return Evidence(tuple(findings), *shown) if findings else None


@st.composite
def packed(draw):
    n = draw(st.integers(1, 3))
    starts = [[0, *np.cumsum([draw(st.integers(t == 0, 3)) for t in range(n)]).tolist()] for _ in "qk"]
    return *starts, draw(st.booleans())


check = Checks(documents_mask, agrees_with_the_mask, lambda q_starts, k_starts, causal: locals())

check("one document", [([0, 3], [0, 3], False), ([0, 3], [0, 3], True)])
check(
    "several documents, each with as many queries as keys", [([0, 2, 5],) * 2 + (False,), ([0, 3, 4, 6],) * 2 + (True,)]
)
check("other lengths of keys than of queries", [([0, 2, 5], [0, 4, 5], False), ([0, 1, 3], [0, 3, 7], False)])
check(
    "causal, other lengths of keys than of queries: bottom-right within each document",
    [([0, 1, 3], [0, 3, 7], True), ([0, 2, 3], [0, 3, 6], True), ([0, 4, 9], [0, 3, 5], True)],
)
check(
    "documents without queries, or without keys",
    [([0, 2, 2, 3], [0, 1, 3, 3], True), ([0, 0, 2], [0, 2, 2], False), ([0, 1, 1, 3], [0, 2, 3, 4], False)],
)
check("any documents", [([0, 4, 5, 8], [0, 2, 6, 9], True), packed()])

EXERCISE = Exercise(__file__, documents_mask, check, points=2, minutes=8, difficulty="easy")
