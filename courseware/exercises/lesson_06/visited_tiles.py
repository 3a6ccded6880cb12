"""Which tiles of scores have to be computed."""

import numbers

import numpy as np
from hypothesis import strategies as st

from course_lib import masks
from courseware.checks import Checks, Evidence, Exercise, Finding, case_of, show, single_finding


def visited_tiles(n_q, n_k, block_q, block_k, causal):
    """The tiles of scores that have to be computed, queries in the outer loop.

    n_q, n_k: queries and keys. block_q, block_k: rows of a query tile and of a key tile; the last tile of either
        may be shorter. All four are at least 1. causal: query i sees keys 0 to i + n_k - n_q, else every key.
    Returns a list of (i, j), query tile and key tile counted from 0, in the order of visiting: all j of tile 0,
        then all j of tile 1. A tile is visited if at least one of its queries sees at least one of its keys.

    >>> visited_tiles(4, 4, 2, 2, causal=True)
    [(0, 0), (1, 0), (1, 1)]
    """
    tiles = []
    for i in range((n_q + block_q - 1) // block_q):
        last_query = min((i + 1) * block_q, n_q) - 1
        for j in range((n_k + block_k - 1) // block_k):
            if not causal or j * block_k <= last_query + n_k - n_q:
                tiles.append((i, j))
    return tiles


def right_tiles(n_q, n_k, block_q, block_k, causal):
    tiles = (masks.causal() if causal else masks.full()).tiles(n_q, n_k, block_q, block_k)
    return [(i, j) for i in range(tiles.shape[0]) for j in tiles.key_tiles(i)]


def agrees_with_the_mask(returned, **inputs):
    right = right_tiles(**inputs)
    if isinstance(returned, np.ndarray):
        returned = returned.tolist()
    if not isinstance(returned, list | tuple) or not all(
        isinstance(tile, list | tuple) and len(tile) == 2 and all(isinstance(n, numbers.Real) for n in tile)
        for tile in returned
    ):
        text = "the answer did not return a list of pairs (i, j)"
        return single_finding("type", text, show(returned), show(right))
    tiles = [(int(i), int(j)) for i, j in returned]
    extra, missing = set(tiles) - set(right), set(right) - set(tiles)
    if tiles == right:
        return None
    n_tiles = -(-inputs["n_q"] // inputs["block_q"]), -(-inputs["n_k"] // inputs["block_k"])
    unreal = {tile for tile in extra if not all(0 <= number < n for number, n in zip(tile, n_tiles, strict=True))}
    findings = [Finding("", "extra", f"visited for nothing: {show(sorted(extra - unreal))}")] if extra - unreal else []
    if unreal:
        text = f"there are {n_tiles[0]} query tiles and {n_tiles[1]} key tiles, and so no tile {show(min(unreal))}"
        findings.append(Finding("", "unreal", text))
    findings += [Finding("", "missing", f"never visited: {show(sorted(missing))}")] if missing else []
    text = "a tile is visited twice" if len(tiles) > len(right) else "these are the right tiles, in another order"
    return Evidence(tuple(findings or [Finding("", "order", text)]), show(tiles), show(right))


check = Checks(visited_tiles, agrees_with_the_mask, case_of(visited_tiles, causal=True))

check("not causal: every tile once, query tile by query tile", [(5, 7, 2, 3, False), (4, 6, 2, 2, False)])
check("causal, square tiles: those that the diagonal touches, and those before it", [(3, 3, 1, 1), (6, 6, 2, 2)])
check("causal, query tiles and key tiles of different sizes", [(8, 8, 4, 2), (8, 8, 2, 4), (12, 12, 4, 3)])
check("causal, more keys than queries: query i sees keys 0 to i + n_k - n_q", [(2, 6, 2, 2), (4, 8, 2, 2)])
check(
    "causal, any lengths and any tiles",
    [(5, 9, 4, 1), (6, 2, 2, 2), (4, 7, 3, 2), st.tuples(*[st.integers(1, 9)] * 2, *[st.integers(1, 4)] * 2)],
)

EXERCISE = Exercise(__file__, visited_tiles, check, points=2, minutes=7, difficulty="easy")
