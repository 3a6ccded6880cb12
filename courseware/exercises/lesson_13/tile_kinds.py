"""Which tiles a mask hides, which it leaves whole, and which need it pair by pair."""

import numpy as np
from hypothesis import strategies as st

from course_lib import masks
from courseware.checks import Checks, Evidence, Exercise, Finding, as_array, show, single_finding
from courseware.exercises.common.generators import drawn_case


def tile_kinds(visible, block_q, block_k):
    """What a mask makes of each tile of scores: 0, hidden, 1, partial, or 2, full.

    visible: [n_q, n_k] of bool, whether query i sees key j; neither length is 0. block_q, block_k: rows of a query
        tile and of a key tile. If they do not divide n_q and n_k, the last tile of either is shorter.
    Returns an integer array [query tiles, key tiles]: 0 where no pair of the tile is visible, 2 where all the pairs
        that it has are, 1 otherwise.

    >>> visible = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=bool)
    >>> tile_kinds(visible, 2, 1).tolist()
    [[2, 1, 0], [2, 2, 2]]
    """
    n_q, n_k = visible.shape
    kinds = np.zeros((-(-n_q // block_q), -(-n_k // block_k)), dtype=int)
    for i, j in np.ndindex(kinds.shape):
        tile = visible[i * block_q : (i + 1) * block_q, j * block_k : (j + 1) * block_k]
        kinds[i, j] = 2 if tile.all() else int(tile.any())
    return kinds


def agrees_with_the_mask(returned, visible, block_q, block_k, **_):
    right = masks.from_dense(visible).at(0, 0).tiles(*visible.shape, block_q, block_k).kinds.astype(int)
    kinds = as_array(returned)
    if kinds is None or kinds.dtype.kind not in "biuf" or kinds.ndim != 2:
        text = "the answer did not return an array [query tiles, key tiles]"
        return single_finding("type", text, show(returned), show(right))
    if kinds.dtype.kind == "f":
        text = f"the answer returned an array of {kinds.dtype}, not of whole numbers"
        return single_finding("dtype", text, show(kinds), show(right))
    if kinds.shape != right.shape:
        text = f"there are {' x '.join(map(str, right.shape))} tiles, not {' x '.join(map(str, kinds.shape))}"
        return single_finding("shape", text, show(kinds), show(right))
    names, wrong = ("hidden", "partial", "full"), [tuple(at.tolist()) for at in np.argwhere(kinds != right)]
    said = {}
    for at in wrong[::-1]:  # one of each kind
        i, j = at[0] * block_q, at[1] * block_k
        tile = visible[i : i + block_q, j : j + block_k]
        text = f"tile {at} is {names[right[at]]}, not {kinds[at]}: {tile.sum()} of its {tile.size} pairs are visible"
        said[f"{kinds[at]} for {right[at]}"] = text
    return Evidence(tuple(Finding("", *one) for one in said.items()), show(kinds), show(right)) if wrong else None


def pairs(*rows):
    """A row of visible from a text, in which x is a pair that is visible."""
    return np.array([[pair == "x" for pair in row] for row in rows])


def any_pairs(often):
    """Mostly of one kind, so that there are tiles without and with all of their pairs."""
    of = st.sampled_from([often, often, often, not often])
    drawn = drawn_case({"n_q": 5, "n_k": 5}, of, visible="n_q n_k", block_q=st.integers(1, 3), block_k=st.just(2))
    return drawn.map(lambda case: case | {"visible": case["visible"] == 1})


BAND = pairs("xx....", "xxx...", ".xxx..", "..xxx.", "...xxx", "....xx")
LOWER = np.tri(6, dtype=bool)
check = Checks(tile_kinds, agrees_with_the_mask)

check("square tiles, a causal mask", [(LOWER, 2, 2), (LOWER, 3, 3), (np.tri(4, 6, 2, dtype=bool), 2, 2)])
check("tiles that are wider than high, or higher than wide", [(LOWER, 3, 2), (LOWER, 2, 3), (np.tri(4, 8) > 0, 4, 2)])
check("a mask with two edges", [(BAND, 2, 2), (BAND, 3, 3), (~BAND, 3, 2)])
check(
    "one pair makes a tile partial, wherever it lies",
    [(pairs("....x.", "......", "xxxxxx", "x.xxxx"), 2, 3), (pairs(".xxx..", "xxx...", "xx..xx", "xxx.x."), 2, 2)],
)
check(
    "last tiles that are shorter: the pairs that they have decide",
    [(np.ones((5, 7), bool), 2, 3), (np.tri(5, 7, 2, dtype=bool), 2, 3)],
)
check(
    "a tile of 256 pairs, all visible, and one without any",
    [{"n_q": 16, "n_k": 32, "block_q": 16, "block_k": 16}],
    call="visible = np.tile(np.arange(n_k) < 16, (n_q, 1))\ntile_kinds(visible, block_q, block_k)",
)
check("any mask", [(np.zeros((3, 4), bool), 2, 2), st.booleans().flatmap(any_pairs)])

EXERCISE = Exercise(__file__, tile_kinds, check, points=2, minutes=8, difficulty="easy")
