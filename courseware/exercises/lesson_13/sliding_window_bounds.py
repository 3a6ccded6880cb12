"""The key tiles that a query tile visits under a sliding window, and which of them need no mask."""

from dataclasses import replace

from hypothesis import strategies as st

from course_lib import masks
from courseware.checks import AnswerError, Checks, Evidence, Exercise, Finding, are_numbers, named, show, single_finding
from courseware.exercises.common.explanations import explain


def sliding_window_bounds(start_m, n_q, n_k, left, right, block_m, block_n):
    """Which key tiles one query tile visits under a sliding window: (begin, full_begin, full_end, end).

    start_m: the first query of the tile, a multiple of block_m, n_q - 1 at most. The tile has queries start_m to
        start_m + block_m - 1, but none beyond n_q - 1. n_q and n_k are 1 or more.
        Key tile t has keys t * block_n to (t + 1) * block_n - 1, but none beyond n_k - 1.
    left, right: 0 or more. Query i sees keys i + n_k - n_q - left to i + n_k - n_q + right, as far as there are such.
    A key tile is visited if some query of the query tile sees some key of the key tile: these are key tiles begin to
        end - 1. It needs no mask if every query of the query tile sees every key of the key tile: these are key tiles
        full_begin to full_end - 1. If none is visited, begin >= end; if none goes without a mask,
        full_begin >= full_end. Which numbers these are does not matter then.
    All four are whole numbers, found without a loop over all keys or all key tiles: a row may have millions of them.

    >>> sliding_window_bounds(4, 8, 8, left=3, right=0, block_m=2, block_n=2)
    (0, 1, 2, 3)
    """
    first, last = start_m + n_k - n_q, min(start_m + block_m, n_q) - 1 + n_k - n_q
    start, stop = max(first - left, 0), min(last + right + 1, n_k)
    full_start, full_stop = max(last - left, 0), min(first + right + 1, n_k)
    full_end = -(-n_k // block_n) if full_stop == n_k else full_stop // block_n
    return start // block_n, -(-full_start // block_n), full_end, -(-stop // block_n)


BOUNDS = "begin", "full_begin", "full_end", "end"
MAX_LISTED_TILES = 1000  # tiles of a range


def tiles_of_the_mask(start_m, n_q, n_k, left, right, block_m, block_n):
    """(visited, without a mask): the numbers of the key tiles, from every pair."""
    visible = masks.sliding_window(left, right).dense(n_q, n_k)[start_m : start_m + block_m]
    tiles = [visible[:, start : start + block_n] for start in range(0, n_k, block_n)]
    return [t for t, tile in enumerate(tiles) if tile.any()], [t for t, tile in enumerate(tiles) if tile.all()]


def agrees_with_the_mask(returned, **inputs):
    right = tiles_of_the_mask(**inputs)
    if not are_numbers(returned, 4):
        text = "the answer did not return four whole numbers"
        return single_finding("type", text, show(returned), f"({', '.join(BOUNDS)})")
    if not all(x == int(x) for x in returned):
        return single_finding("fraction", "a bound is no whole number", show(tuple(returned)))
    bounds = tuple(map(int, returned))
    pairs = zip(BOUNDS, bounds, sliding_window_bounds(**inputs), strict=True)
    name = next((name for name, came, due in pairs if came != due), "")  # that further findings speak of
    begin, full_begin, full_end, end = bounds
    findings = []
    for verb, now, due in (
        ("visited", range(begin, end), right[0]),
        ("taken without a mask", range(full_begin, full_end), right[1]),
    ):
        # A bound may be far off, and the range so long that it should not be written down.
        ends = (t for end in (now[:1], now[-1:]) for t in end)
        extra = [t for t in (now if now.stop - now.start < MAX_LISTED_TILES else ends) if t not in due]
        missing = [t for t in due if t not in now]
        if extra:
            findings.append(Finding(name, f"{verb}, extra", f"{those(extra)} {verb}, and should not be"))
        if missing:
            findings.append(Finding(name, f"{verb}, missing", f"{those(missing, 'not ')}{verb}, and should be"))
    said = f"visited: {show(right[0])}, without a mask: {show(right[1])}"
    return Evidence(tuple(findings), show(tuple(returned)), said) if findings else None


def those(tiles, no=""):
    return f"{named('key tile', tiles)} {'is' if len(tiles) == 1 else 'are'} {no}".rstrip() + " " * bool(no)


def what_is_seen(_, start_m, n_q, n_k, left, right, block_m, block_n):
    queries = dict.fromkeys((start_m, min(start_m + block_m, n_q) - 1))
    sees = (f"query {i} sees keys {i + n_k - n_q - left} to {i + n_k - n_q + right}" for i in queries)
    return f"{', '.join(sees)}, as far as they are between 0 and {n_k - 1}; key tile 1 begins with key {block_n}"


def at_once(answer, **inputs):
    """A row so long that an array of it does not fit into an address space, and is refused at once."""
    try:
        returned = answer(*inputs.values())
    except AnswerError as error:
        kind = "memory" if "MemoryError" in error.finding.text else error.finding.kind
        said = "the row has 2^50 keys: no loop and no array gets through them"
        return Evidence((replace(error.finding, kind=kind),)).with_account(said)
    right = sliding_window_bounds(**inputs)
    same = isinstance(returned, tuple | list) and list(map(int, returned)) == list(right)
    return None if same else single_finding("values", "the bounds are wrong", show(returned), show(right))


@st.composite
def tiles(draw):
    n_q, n_k, block_m, block_n = (draw(st.integers(1, most)) for most in (12, 12, 4, 4))
    left, right = (draw(st.integers(0, 6)) for _ in range(2))
    return draw(st.integers(0, (n_q - 1) // block_m)) * block_m, n_q, n_k, left, right, block_m, block_n


check = Checks(sliding_window_bounds, explain(agrees_with_the_mask, what_is_seen))

check(
    "keys before the query only: which tiles are visited, and which need no mask",
    [(8, 16, 16, 6, 0, 2, 2), (6, 16, 16, 5, 0, 2, 2), (12, 16, 16, 9, 0, 4, 4), (8, 24, 24, 5, 0, 4, 3)],
)
check("keys after the query, too", [(8, 20, 20, 4, 3, 2, 2), (6, 20, 20, 3, 6, 2, 2), (6, 16, 16, 5, 2, 1, 2)])
check("the window reaches beyond the first key or the last", [(0, 8, 8, 5, 4, 2, 2), (6, 8, 8, 3, 5, 2, 2)])
check("query tiles and key tiles of different sizes", [(8, 24, 24, 10, 2, 4, 3), (6, 24, 24, 7, 7, 2, 5)])
check("more keys than queries, and fewer", [(2, 4, 12, 4, 1, 2, 3), (8, 12, 8, 3, 2, 4, 2), (0, 6, 5, 1, 2, 2, 1)])
check("last tiles that are shorter", [(4, 5, 5, 2, 0, 4, 2), (8, 10, 10, 3, 0, 4, 2), (0, 3, 5, 9, 9, 2, 2)])
# Drawn, because what is returned for an empty range may be anything, and so tells no misconceptions apart.
SEE_NONE = [(0, 8, 3, 2, 1, 2, 2), (4, 9, 3, 0, 1, 4, 2), (0, 2, 1, 0, 0, 1, 2), (0, 9, 4, 1, 1, 3, 2)]
check("a tile of queries that see no key, or of which some see none", [st.sampled_from(SEE_NONE)])
check("any window", [(4, 9, 7, 3, 1, 4, 2), tiles()])
check("rows of 2^50 keys, too many to look at", [(2**49, 2**50, 2**50, 2**20, 5, 128, 64)], calls=at_once)

EXERCISE = Exercise(__file__, sliding_window_bounds, check, points=3, minutes=12, difficulty="medium")
