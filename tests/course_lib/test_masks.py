"""Masks against one-line definitions, pair by pair, over all small shapes; tiles against the dense mask."""

import functools
import itertools
import pickle

import numpy as np
import pytest

from course_lib import masks
from course_lib.masks import FULL, HIDDEN, PARTIAL


def pairs(n_q, n_k, sees):
    """[n_q, n_k] of bool from sees(q, k), where q and k count from the end: -1 is the last query, and the last key."""
    return np.array([[sees(q, k) for k in range(-n_k, 0)] for q in range(-n_q, 0)])


def window(left, right, n_q, n_k):
    dense = pairs(n_q, n_k, lambda q, k: (left is None or q - left <= k) and (right is None or k <= q + right))
    return masks.sliding_window(left, right), dense


def prefix(n, n_q, n_k):
    return masks.prefix_lm(n), pairs(n_q, n_k, lambda q, k: k <= q or k < n - n_k)


def packed(kind, n_q, n_k):
    n = max(n_q, n_k)
    mixed, runs = np.arange(n) * 2 % 3, [5] * (n // 3) + [2] * (n // 2) + [9] * (n - n // 3 - n // 2)
    ids = list(mixed if kind == "mixed" else runs)
    return masks.documents(ids), pairs(n_q, n_k, lambda q, k: ids[q] == ids[k])


def lengths_of(kind, n):
    """Of sequences that have n tokens in all."""
    if kind == "runs":
        return [n // 3, n - n // 3 - n // 2, n // 2]
    return {"empty": [0, n // 2, 0, n - n // 2, 0], "behind": [n, 0, 0, 0, 0]}[kind]


def sequences(kind_q, kind_k, left, right, prefix, n_q, n_k):
    dense, i, j = np.zeros((n_q, n_k), bool), 0, 0
    within = masks.prefix_lm(prefix) if prefix else masks.sliding_window(left, right)
    lengths = lengths_of(kind_q, n_q), lengths_of(kind_k, n_k)
    for length_q, length_k in zip(*lengths, strict=True):
        if length_q and length_k:
            dense[i : i + length_q, j : j + length_k] = within.dense(length_q, length_k)
        i, j = i + length_q, j + length_k
    return masks.packed(*([0, *itertools.accumulate(x)] for x in lengths), within), dense


def blocks(share, block, n_q, n_k):
    shape = -(-n_q // block), -(-n_k // block)
    layout = np.random.default_rng(10 * n_q + n_k).random(shape) < share
    return masks.block_sparse(layout, block), np.kron(layout, np.ones((block, block), bool))[:n_q, :n_k]


# Of `sequences`: their lengths, and what each is masked by.
SEQUENCES = [
    ("runs", "runs", None, None, 0), ("runs", "runs", 1, 0, 0), ("runs", "runs", None, 0, 2),
    ("empty", "empty", None, 0, 0), ("empty", "behind", None, None, 0), ("behind", "empty", 0, 0, 0),
]  # fmt: skip
# Each makes (mask, dense mask by definition) of n_q and n_k.
MASKS = {
    "full": lambda n_q, n_k: (masks.full(), np.ones((n_q, n_k), bool)),
    "causal": lambda n_q, n_k: (masks.causal(), pairs(n_q, n_k, lambda q, k: k <= q)),
    **{
        f"window {left} {right}": functools.partial(window, left, right)
        for left, right in ((None, 1), (0, None), (0, 0), (0, 2), (2, 0), (2, 1), (9, 9))
    },
    **{f"prefix {n}": functools.partial(prefix, n) for n in (0, 1, 3, 5, 9)},
    **{f"documents {kind}": functools.partial(packed, kind) for kind in ("runs", "mixed")},
    **{f"packed {' '.join(map(str, how))}": functools.partial(sequences, *how) for how in SEQUENCES},
    **{
        f"blocks of {block}, {share}": functools.partial(blocks, share, block)
        for block, share in ((1, 0.5), (2, 0.5), (3, 0.5), (2, 0), (3, 1))
    },
}
COMBINED = [
    "causal", "window 2 1", "window 0 None", "prefix 3", "documents runs", "documents mixed", "blocks of 2, 0.5",
    "packed runs runs 1 0 0",
]  # fmt: skip
NOT_BANDS = {"documents mixed"} | {name for name in MASKS if name.startswith(("blocks", "packed"))}


def combined(first, second, n_q, n_k):
    """`first & second` and `first | second`, each with its dense mask."""
    (a, dense_a), (b, dense_b) = MASKS[first](n_q, n_k), MASKS[second](n_q, n_k)
    return (a & b, dense_a & dense_b), (a | b, dense_a | dense_b)


def check_pairs(mask, dense):
    n_q, n_k = dense.shape
    np.testing.assert_array_equal(mask.dense(n_q, n_k), dense)
    if mask.has_ranges:
        start, stop = mask.key_range(np.arange(n_q), n_q, n_k)
        np.testing.assert_array_equal(dense, (start[:, None] <= np.arange(n_k)) & (np.arange(n_k) < stop[:, None]))
    if mask.is_band:
        # What Mask promises of a band, and what tiles rely on.
        position = np.arange(n_q) + n_k - n_q
        assert (np.diff(start) >= 0).all() and (np.diff(stop) >= 0).all()
        assert (np.where(position < 0, start == 0, (start <= position) & (position < stop))).all()


def check_tiles(mask, dense, block_q, block_k):
    n_q, n_k = dense.shape
    tiles = mask.tiles(n_q, n_k, block_q, block_k)
    starts = range(0, n_q, block_q), range(0, n_k, block_k)
    assert tiles.query_rows == [(start, min(start + block_q, n_q)) for start in starts[0]]
    assert tiles.key_rows == [(start, min(start + block_k, n_k)) for start in starts[1]]
    parts = [[dense[i : i + block_q, j : j + block_k] for j in starts[1]] for i in starts[0]]
    kinds = [[FULL if part.all() else PARTIAL if part.any() else HIDDEN for part in row] for row in parts]
    assert tiles.kinds.tolist() == kinds and tiles.shape == tiles.kinds.shape
    visited = [(i, j) for i, row in enumerate(kinds) for j, kind in enumerate(row) if kind != HIDDEN]
    assert [(i, j) for i in range(tiles.shape[0]) for j in tiles.key_tiles(i)] == visited
    assert sorted((i, j) for j in range(tiles.shape[1]) for i in tiles.query_tiles(j)) == visited
    assert all(np.array_equal(tiles.visible(i, j), parts[i][j]) for i, j in visited)
    shapes = [parts[i][j].shape for i, j in visited]
    sums = len(shapes), sum(q for q, _ in shapes), sum(k for _, k in shapes), sum(q * k for q, k in shapes)
    assert tiles.visited == sums and all(type(number) is int for number in tiles.visited)


@pytest.mark.parametrize("name", MASKS)
def test_each_mask_is_its_definition(name):
    for n_q, n_k in itertools.product((1, 2, 3, 5, 7), repeat=2):
        mask, dense = MASKS[name](n_q, n_k)
        check_pairs(mask, dense)
        for block_q, block_k in itertools.product(range(1, 5), repeat=2):
            check_tiles(mask, dense, block_q, block_k)


@pytest.mark.parametrize("names", list(itertools.combinations_with_replacement(COMBINED, 2)), ids=" and ".join)
def test_and_and_or_are_those_of_the_dense_masks(names):
    for n_q, n_k in itertools.product((1, 4, 7), repeat=2):
        for mask, dense in combined(*names, n_q, n_k):
            check_pairs(mask, dense)
            for block_q, block_k in ((1, 1), (2, 3)):
                check_tiles(mask, dense, block_q, block_k)


def test_packed_sequences_have_positions_of_their_own():
    """Query i of a sequence stands at its key i + n_k - n_q, wherever the sequence lies in the row."""
    mask = masks.packed([0, 2, 2, 5], [0, 1, 4, 9])
    assert mask.positions(5, 9).tolist() == [-1, 0, 6, 7, 8] == (mask & masks.full()).positions(5, 9).tolist()
    assert (masks.causal() & mask).positions(5, 9).tolist() == mask.positions(5, 9).tolist()
    assert masks.causal().positions(2, 5).tolist() == [3, 4]


def test_bands_are_known_as_such():
    """Otherwise the closed forms would not be used, and a long sequence would take minutes."""
    assert {name for name in MASKS if not MASKS[name](7, 7)[0].is_band} == NOT_BANDS
    for names in itertools.product(COMBINED, repeat=2):
        assert all(mask.is_band == NOT_BANDS.isdisjoint(names) for mask, _ in combined(*names, 7, 7))


def test_visible_broadcasts():
    seen = masks.causal().visible(np.array([[0], [2]]), np.array([0, 1, 3]), 3, 4)
    assert seen.dtype == bool and seen.tolist() == [[True, True, False], [True, True, True]]
    assert masks.causal().visible(0, 1, 3, 4) and not masks.causal().visible(0, 2, 3, 4)
    assert masks.full().visible(np.zeros((0, 1), int), np.arange(4), 3, 4).shape == (0, 4)


def test_counts_of_a_long_band_need_no_grid():
    """The grid would have 2^34 tiles."""
    n = 2**21
    count = n // 16
    assert masks.full().tiles(n, n, 16, 16).visited == (count**2, count * n, count * n, n * n)
    causal = masks.causal().tiles(n, n, 16, 16).visited
    assert causal == (count * (count + 1) // 2, *[count * (count + 1) * 8] * 2, count * (count + 1) * 128)
    packed = masks.documents(np.repeat(np.arange(8), n // 8)) & masks.causal()
    per_document = masks.causal().tiles(n // 8, n // 8, 16, 16).visited
    assert packed.tiles(n, n, 16, 16).visited == tuple(8 * number for number in per_document)


def test_masks_for_each_head():
    lengths = np.array([3, 0, 7])
    dense = np.random.default_rng(0).random((3, 2, 5, 7)) < 0.5
    function = masks.from_function(lambda b, h, i, j: dense[b, h][i, j], batch=3, heads=2)
    rows = masks.from_function(lambda b, h, i, j: i >= j)
    assert np.array_equal(rows.dense(5, 7), np.tri(5, 7, dtype=bool)) and rows.shape == (1, 1)
    assert np.array_equal(masks.from_dense(dense[0, 0]).dense(5, 7), dense[0, 0])
    both = masks.key_lengths(lengths) & (function | masks.causal())
    assert masks.key_lengths(lengths).shape == (3, 1) and both.shape == function.shape == (3, 2)
    causal = masks.causal().dense(5, 7)
    for b, h in np.ndindex(3, 2):
        padded = np.broadcast_to(np.arange(7) < lengths[b], (5, 7))
        for mask, expected in (
            (masks.key_lengths(lengths), padded), (masks.from_dense(dense), dense[b, h]), (function, dense[b, h]),
            (masks.from_dense(dense[:, :1]), dense[b, 0]), (both, padded & (dense[b, h] | causal)),
        ):  # fmt: skip
            check_pairs(mask.at(b, h), expected)
            check_tiles(mask.at(b, h), expected, 2, 3)


@pytest.mark.parametrize("name", MASKS)
def test_ranges_are_seen_in_any_rule(name):
    """A function that says what a window says is as cheap for a kernel as the window."""
    for n_q, n_k in ((7, 5), (4, 7)):
        mask, dense = MASKS[name](n_q, n_k)
        found = masks.from_dense(dense).at(0, 0).in_ranges(n_q, n_k)
        check_pairs(found, dense)
        check_tiles(found, dense, 2, 3)
        assert found.has_ranges or not mask.has_ranges


def test_copies_are_equal_and_codes_lead_back():
    """What is computed for a mask is found again for its copy; graphs of torch.compile know masks by their codes."""
    made = [
        *(make(7, 7)[0] for make in MASKS.values()), masks.key_lengths([1, 2]), masks.from_function(np.equal.outer),
        masks.from_dense(np.eye(3, dtype=bool)), masks.from_dense(~np.eye(3, dtype=bool)), masks.key_lengths([1, 3]),
    ]  # fmt: skip
    made += [one & other for one, other in itertools.pairwise(made)] + [made[0] | made[-1]]
    assert (
        masks.key_lengths([1, 2]) != masks.key_lengths([1, 3]) and masks.from_dense(~np.eye(2, dtype=bool)) != made[-2]
    )
    for mask in made:
        copied = pickle.loads(pickle.dumps(mask))
        assert copied == mask and hash(copied) == hash(mask)
        assert masks.of_code(mask.code) == mask == masks.of_code(copied.code)
        assert all(type(number) is int for number in mask.code)


def test_a_change_of_the_caller_s_array_does_not_reach_the_mask():
    ids, layout = np.array([0, 0, 1]), np.ones((3, 3), bool)
    packed, sparse = masks.documents(ids), masks.block_sparse(layout, 1)
    ids[:], layout[:] = range(3), False
    assert packed.dense(3, 3).sum() == 5 and sparse.dense(3, 3).all()
