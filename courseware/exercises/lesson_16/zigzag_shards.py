"""Which tokens of a sequence each rank holds in zigzag order, and the way back."""

import numpy as np
from hypothesis import strategies as st

from courseware.checks import Checks, Evidence, Exercise, Finding, named, raises_value_error, show, single_finding
from courseware.checks.diagnosis import as_array
from courseware.exercises.lesson_16.visible_blocks import tokens_of


def zigzag_shards(n, ranks):
    """Which tokens of a sequence each rank holds in zigzag order, and how to put them back: (rows, back).

    n: tokens 0 to n - 1. They are cut into 2 * ranks chunks of equal length, chunk 0, 1, 2, ... in the order of the
        sequence. Rank r holds chunk r and chunk 2 * ranks - 1 - r, in this order; within a chunk, tokens keep theirs.
    rows: [ranks, n / ranks], whole numbers. rows[r] lists the tokens of rank r, so x[rows[r]] is its shard of x.
    back: [n], whole numbers. If y holds the shards of all ranks one after the other, that of rank 0 first, then y[back]
        is in the order of the sequence.
    Raises ValueError if 2 * ranks does not divide n.

    >>> rows, back = zigzag_shards(8, ranks=2)
    >>> rows.tolist(), back.tolist()
    ([[0, 1, 6, 7], [2, 3, 4, 5]], [0, 1, 4, 5, 6, 7, 2, 3])
    """
    if n % (2 * ranks):
        raise ValueError(f"n is {n}; accepted: multiples of {2 * ranks}")
    chunk = n // (2 * ranks)
    early = np.arange(ranks)[:, None] * chunk + np.arange(chunk)
    late = np.arange(2 * ranks - 1, ranks - 1, -1)[:, None] * chunk + np.arange(chunk)
    rows = np.concatenate([early, late], axis=1)
    back = np.argsort(rows.ravel())
    return rows, back


def dealt_out(n, ranks):
    """(rows, back), rank by rank."""
    rows = np.array([tokens_of(rank, ranks, n // ranks, True) for rank in range(ranks)])
    return rows, np.argsort(rows, axis=None)


def agrees_with_the_tokens(returned, n, ranks):
    right = dealt_out(n, ranks)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        due = show(tuple(x.tolist() for x in right))
        return single_finding("type", "the answer did not return (rows, back)", show(returned), due)
    arrays = [as_array(list(x) if isinstance(x, tuple | list) else x) for x in returned]
    findings = []
    for name, came, due in zip(("rows", "back"), arrays, right, strict=True):
        if came is None or came.dtype.kind not in "iu":
            what = "no array" if came is None else f"of dtype {came.dtype}"
            findings.append(Finding(name, "dtype", f"{name} is {what}, not an array of whole numbers"))
        elif came.shape != due.shape:
            findings.append(Finding(name, "shape", f"{name} has shape {came.shape}, not {due.shape}"))
        elif (came != due).any():
            findings.append(Finding(name, "values", of_rows(came, due) if name == "rows" else of_back(came, due)))
    findings = [finding for finding in findings if finding.part == findings[0].part]  # back follows from rows
    shown = (f"rows: {show(x[0])}\nback: {show(x[1])}" for x in (returned, right)) if findings else ()
    return Evidence(tuple(findings), *shown) if findings else None


def of_rows(came, due):
    rank = int(np.flatnonzero((came != due).any(axis=1))[0])
    said = f"rank {rank} holds {named('token', due[rank].tolist())}; rows has {named('token', came[rank].tolist())}"
    if np.array_equal(np.sort(came, axis=None), np.arange(came.size)):
        right = sorted(came[rank].tolist()) == sorted(due[rank].tolist())
        return f"{said}: the right ones in another order" if right else said
    counts = np.bincount(np.clip(came, 0, came.size - 1).ravel(), minlength=came.size)
    return f"{said}\ntoken {int(np.flatnonzero(counts != 1)[0])} is held {counts[counts != 1][0]} times, not once"


def of_back(came, due):
    token = int(np.flatnonzero(came != due)[0])
    return f"token {token} stands at place {due[token]} of all shards in a row; back[{token}] is {came[token]}"


check = Checks(zigzag_shards, agrees_with_the_tokens)

check("one rank holds everything in order", [(2, 1), (6, 1)])
check("two ranks, chunks of one token", [(4, 2)])
check("more ranks: an early chunk and a late one for each", [(6, 3), (8, 4)])
check("chunks of several tokens, each in its own order", [(8, 2), (18, 3)])
check("2 * ranks does not divide n: ValueError", [(6, 2), (7, 1), (9, 3)], calls=raises_value_error)
check("any length", [(60, 5), st.tuples(st.integers(1, 4), st.integers(1, 5)).map(lambda x: (2 * x[0] * x[1], x[1]))])

EXERCISE = Exercise(__file__, zigzag_shards, check, points=2, minutes=8, difficulty="easy")
