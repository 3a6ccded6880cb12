"""Where a program's loop over keys begins to need a mask, and where it ends."""

from hypothesis import strategies as st

from course_lib import masks
from courseware.checks import Checks, Evidence, Exercise, Finding, show, single_finding
from courseware.exercises.common.explanations import explain


def kv_loop_bounds(start_m, n_q, n_k, causal, block_m, block_n):
    """Where one program's loop over keys changes its kind and where it ends: (full_end, kv_end).

    start_m: the first query of the program's tile, below n_q; the tile has queries start_m to start_m + block_m - 1,
        but none beyond n_q - 1. n_q, n_k: queries and keys. causal: query i sees keys 0 to i + n_k - n_q, else every
        key.
    kv_end: one more than the last key that any query of the tile sees; 0 if none sees a key.
    full_end: the largest multiple of block_n, at most n_k, such that every query of the tile sees every key before
        it. Tiles of keys in [0, full_end) need no mask, those in [full_end, kv_end) do, later ones are not visited.

    >>> kv_loop_bounds(start_m=2, n_q=4, n_k=4, causal=True, block_m=2, block_n=2)
    (2, 4)
    """
    if causal:
        first_sees = min(max(start_m + 1 + n_k - n_q, 0), n_k)
        last_row = min(start_m + block_m, n_q)
        kv_end = min(max(last_row + n_k - n_q, 0), n_k)
    else:
        first_sees = kv_end = n_k
    return first_sees // block_n * block_n, kv_end


def keys_seen(start_m, n_q, n_k, causal, block_m):
    """How many keys each query of the tile sees."""
    mask = masks.causal() if causal else masks.full()
    return mask.dense(n_q, n_k)[start_m : start_m + block_m].sum(axis=1)


def agrees_with_the_mask(returned, block_n, **inputs):
    seen = keys_seen(**inputs)
    right = int(seen.min()) // block_n * block_n, int(seen.max())
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        text = "the answer did not return two whole numbers"
        return single_finding("type", text, show(returned), "(full_end, kv_end)")
    findings = []
    for name, now, due in zip(("full_end", "kv_end"), returned, right, strict=True):
        if now != due:
            kind = "more" if now > due else "less"
            findings.append(Finding(name, kind, f"{name} is {show(now)}, {kind} than {due}"))
    return Evidence(tuple(findings), show(tuple(returned)), show(right)) if findings else None


def what_is_seen(_, start_m, n_q, n_k, causal, block_m, block_n):
    seen = keys_seen(start_m, n_q, n_k, causal, block_m)
    last = min(start_m + block_m, n_q) - 1
    return f"of {n_k} keys, query {start_m} sees {seen[0]}, and the tile's last query, {last}, sees {seen[-1]}"


@st.composite
def tiles(draw, causal):
    """Causal, there are at least as many queries as keys, so that some tiles see no key."""
    n_k, block_m, block_n = draw(st.integers(1, 12)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    n_q = draw(st.integers(n_k if causal else 1, 12))
    start_m = draw(st.integers(0, (n_q - 1) // block_m)) * block_m
    return start_m, n_q, n_k, causal, block_m, block_n


check = Checks(kv_loop_bounds, explain(agrees_with_the_mask, what_is_seen))

check("not causal: every key, a mask for the ragged tail only", [(0, 4, 5, False, 2, 2), tiles(causal=False)])
check("causal, as many queries as keys: the loop ends after the tile's last query", [(0, 8, 8, True, 2, 2)])
check("causal, query tiles and key tiles of different sizes", [(4, 16, 16, True, 4, 8), (4, 12, 12, True, 4, 5)])
check("causal, more keys than queries", [(0, 2, 6, True, 2, 2), (2, 4, 9, True, 2, 3)])
check(
    "causal, any lengths: also a tile that sees no key, and a short last tile",
    [(0, 6, 2, True, 2, 2), (4, 5, 9, True, 4, 2), (4, 5, 2, True, 4, 2), tiles(causal=True)],
)

EXERCISE = Exercise(__file__, kv_loop_bounds, check, points=2, minutes=8, difficulty="medium")
