"""Which query sees which key, stated once. Every other part of the library that needs to know asks here.

A mask is a rule: `visible(i, j, n_q, n_k)` says whether query i sees key j when there are n_q queries and n_k keys.
Masks are aligned bottom-right: the last query and the last key stand at the same position, so that query i stands at
the position of key i + n_k - n_q. Masks combine with `&` and `|`.

    mask = causal() & documents([0, 0, 0, 1, 1, 1])
    tiles = mask.tiles(n_q=6, n_k=6, block_q=2, block_k=2)
    tiles.kinds           # [query tiles, key tiles]: HIDDEN, PARTIAL or FULL
    tiles.key_tiles(1)    # the key tiles that query tile 1 has to visit

The kind of a tile follows from the rule. Evaluating the rule for every pair of a long sequence takes too long, so most
masks have a closed form as well; the tests compare it with the rule over all small shapes. The Triton kernels state
their loop bounds again, in Triton; a test holds those equal, too.
"""

import hashlib
import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

HIDDEN, PARTIAL, FULL = 0, 1, 2  # none, some or all pairs of the tile's queries and keys are visible
WINDOW, REGISTERED, BOTH, EITHER = range(4)  # what a number of a mask's code begins


def full():
    """Every query sees every key."""
    return Window(None, None)


def causal():
    """A query sees the keys up to its own position: query i sees key j if j <= i + n_k - n_q."""
    return Window(None, 0)


def sliding_window(left, right):
    """Query i sees the keys from i + n_k - n_q - left to i + n_k - n_q + right, both included.

    left, right: whole numbers of at least 0, or None for no limit on that side. This is `window_size` of
    flash-attention 2.3 and later, which writes -1 for no limit.
    """
    for name, width in (("left", left), ("right", right)):
        if width is not None:
            _check_at_least(name, width, 0, ", or None for no limit")
    return Window(left, right)


def prefix_lm(n):
    """Every query sees the first n keys; the other keys are seen as under `causal`.

    n: whole number of at least 0. Raffel et al., "Exploring the Limits of Transfer Learning" (2020), section 3.2.1.
    """
    _check_at_least("n", n, 0)
    return Window(None, 0, prefix=n)


def documents(ids):
    """Several documents packed into one sequence: a query sees the keys of its own document.

    ids: [max(n_q, n_k)] whole numbers, one for each position, equal for the tokens of one document. If there are fewer
    queries than keys, the queries are the last positions; likewise the other way round.
    """
    ids = _array(ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise TypeError(f"ids has shape {ids.shape} and dtype {ids.dtype}; accepted: [positions] of whole numbers")
    return _registered(Documents(ids))


def packed(cu_seqlens_q, cu_seqlens_k=None, within=None):
    """Several sequences packed into one row by cumulative lengths: a query sees keys of its own sequence alone.

    cu_seqlens_q: [0, n_1, n_1 + n_2, ...], whole numbers, the last n_q: sequence b has the queries from cu_seqlens_q[b]
    to cu_seqlens_q[b + 1] - 1, perhaps none. cu_seqlens_k: likewise of keys, as many; None: there are as many keys as
    queries. within: what a query sees of its sequence, a mask that the four functions above `documents` return, aligned
    at the last query and the last key of each sequence; None: everything.

    Both lists are read on the host, so a GPU that has them is waited for. This is what `flash_attn_varlen_func` of
    flash-attention does with the lists of the same names.
    """
    edges_q = _cumulative("cu_seqlens_q", cu_seqlens_q)
    edges_k = edges_q if cu_seqlens_k is None else _cumulative("cu_seqlens_k", cu_seqlens_k)
    if len(edges_q) != len(edges_k):
        raise ValueError(
            f"cu_seqlens_q has {len(edges_q)} entries and cu_seqlens_k {len(edges_k)}; accepted: as many, one more "
            "than there are sequences"
        )
    within = full() if within is None else within
    if not isinstance(within, Window):
        raise TypeError(
            f"within is {within!r}; accepted: full(), causal(), sliding_window(...), prefix_lm(...) or None"
        )
    return _registered(Packed(edges_q, edges_k, within))


def block_sparse(layout, block):
    """Query i sees key j if layout[i // block, j // block] is true. FA1 (Dao et al. 2022), section 3.3.

    layout: [ceil(n_q / block), ceil(n_k / block)] of bool. block: how many queries, and keys, one entry stands for; it
    need not be the tile size of a kernel.
    """
    layout = _array(layout)
    if layout.ndim != 2 or layout.dtype != bool:
        raise TypeError(f"layout has shape {layout.shape} and dtype {layout.dtype}; accepted: [rows, columns] of bool")
    _check_at_least("block", block, 1)
    return _registered(BlockSparse(layout, int(block)))


def key_lengths(lengths):
    """Padded keys: in sequence b of a batch, every query sees the first lengths[b] keys and no others.

    lengths: [batch] whole numbers from 0 to n_k.
    """
    lengths = _array(lengths)
    if lengths.ndim != 1 or not lengths.size or lengths.dtype.kind not in "iu" or (lengths < 0).any():
        raise TypeError(f"lengths is {lengths!r}; accepted: [batch] of whole numbers from 0 up")
    return _registered(PerHead(_of_lengths, lengths, (len(lengths), 1)))


def from_dense(visible):
    """Query i sees key j if visible[i, j] is true, or visible[batch, head, i, j].

    visible: bool, [n_q, n_k], or [batch, heads, n_q, n_k] with 1 in place of batch, or of heads, that share a mask.
    PyTorch's scaled_dot_product_attention takes such an attn_mask. The array is as large as the matrix of scores; where
    a rule says the same, the functions above take less memory and less time.
    """
    visible = _array(visible)
    if visible.ndim not in (2, 4) or visible.dtype != bool or 0 in visible.shape:
        raise TypeError(
            f"visible has shape {visible.shape} and dtype {visible.dtype}; accepted: [n_q, n_k] or [batch, heads, n_q, "
            "n_k] of bool"
        )
    visible = visible if visible.ndim == 4 else visible[None, None]
    return _registered(PerHead(_of_array, visible, visible.shape[:2]))


def from_function(function, batch=None, heads=None):
    """Query i of a head of a sequence sees key j if function(batch, head, i, j) is true, as FlexAttention's mask_mod.

    function: takes the indices of a sequence and a head, and integer arrays i and j that broadcast; returns bool. It is
    called on the host, for every pair of queries and keys, the first time that a kernel meets the mask with these
    lengths. i and j count from 0: nothing aligns them. batch, heads: how many sequences and heads it tells apart; None
    if all of them share what it says of the first.
    """
    if not callable(function):
        raise TypeError(f"function is {function!r}; accepted: a function of (batch, head, i, j)")
    for name, count in (("batch", batch), ("heads", heads)):
        if count is not None:
            _check_at_least(name, count, 1, ", or None if all share one mask")
    return _registered(PerHead(Rule, function, (int(batch or 1), int(heads or 1))))


class Mask:
    """What the functions above return. A mask has no lengths of its own: every method takes n_q and n_k.

    is_band: whether each query sees one range of keys, given by `key_range`, such that

        - from one query to the next, neither end of the range moves left, and
        - the range contains the query's own position, or starts at key 0 if that position lies before the first key.

    It follows that the queries of a tile together see one range, from the first query's start to the last query's
    stop, and that all of them see the range from the last query's start to the first query's stop. Both `&` and `|` of
    two bands are bands again.

    has_ranges: whether each query sees one range of keys, wherever it may lie; so it is for bands, and for `&` of two
    masks for which it is so.

    shape: (batch, heads), how many sequences and heads have masks of their own, 1 where all share one. `at` returns the
    mask of one head; only such a mask, of shape (1, 1), answers the methods that take n_q and n_k.

    code: the mask as whole numbers, from which `of_code` makes an equal one. Graphs of torch.compile take numbers, and
    no objects.
    """

    is_band = False
    shape = 1, 1

    def at(self, batch, head):
        """The mask of a head of a sequence."""
        return self

    @property
    def has_ranges(self):
        return self.is_band

    def visible(self, i, j, n_q, n_k):
        """Whether query i sees key j: bool, of the shape that i and j broadcast to.

        i: whole numbers from 0 to n_q - 1; j: from 0 to n_k - 1; single numbers or arrays.
        """
        self.check_lengths(n_q, n_k)
        return self._rule(_positions("i", i, n_q), _positions("j", j, n_k), n_q, n_k)

    def dense(self, n_q, n_k):
        """`visible` for all pairs: [n_q, n_k] of bool."""
        self.check_lengths(n_q, n_k)
        return self._rule(np.arange(n_q)[:, None], np.arange(n_k), n_q, n_k)

    def tiles(self, n_q, n_k, block_q, block_k):
        """The pairs in tiles of block_q queries by block_k keys: Tiles. The last tiles may be short."""
        check_counts(block_q=block_q, block_k=block_k)
        self.check_lengths(n_q, n_k)
        return Tiles(self, n_q, n_k, block_q, block_k)

    def key_range(self, i, n_q, n_k):
        """(start, stop): query i sees the keys from start to stop - 1. i: integer array. Where `has_ranges` only."""
        raise TypeError(f"this {type(self).__name__} mask is not a band: a query may see several ranges of keys")

    def in_ranges(self, n_q, n_k):
        """This mask, or an equal one for these lengths that `has_ranges`, if each query sees one range of keys."""
        self.check_lengths(n_q, n_k)
        if self.has_ranges:
            return self
        bounds = []
        for first in range(0, n_q, 1024):  # so that not all pairs are there at a time
            seen = self._rule(np.arange(first, min(first + 1024, n_q))[:, None], np.arange(n_k), n_q, n_k)
            start, stop = seen.argmax(axis=1), n_k - seen[:, ::-1].argmax(axis=1)
            start, stop = start * seen.any(axis=1), stop * seen.any(axis=1)
            if not np.array_equal(seen.sum(axis=1), stop - start):
                return self
            bounds.append((start, stop))
        return Ranges(*np.concatenate(bounds, axis=1))

    def positions(self, n_q, n_k):
        """The key at whose position each query stands: int64 [n_q]."""
        return np.arange(n_q) + n_k - n_q

    def check_lengths(self, n_q, n_k):
        """TypeError or ValueError unless the mask is defined for n_q queries and n_k keys."""
        check_counts(n_q=n_q, n_k=n_k)

    def __and__(self, other):
        return Combined(self, other, either=False) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other):
        return Combined(self, other, either=True) if isinstance(other, Mask) else NotImplemented

    def _rule(self, i, j, n_q, n_k):
        """`visible` for integer arrays within bounds."""
        start, stop = self.key_range(i, n_q, n_k)
        return (start <= j) & (j < stop)

    def _bounds(self, tiles):
        """(maybe, surely), each [query tiles, key tiles] of bool: no tile outside `maybe` is visited, and every tile in
        `surely` is full. Where `has_ranges`, the remaining tiles are partial; for other masks the rule decides.
        """
        if not self.has_ranges:
            return np.ones(tiles.shape, bool), np.zeros(tiles.shape, bool)
        if not self.is_band:
            return self._bounds_of_ranges(tiles)
        begin, end, full_begin, full_end = (bound[:, None] for bound in self._key_tile_ranges(tiles))
        k_tile = np.arange(tiles.shape[1])
        return (begin <= k_tile) & (k_tile < end), (full_begin <= k_tile) & (k_tile < full_end)

    def _bounds_of_ranges(self, tiles):
        """`_bounds`, from the range of every query."""
        n_tiles, queries = tiles.shape[1], np.arange(tiles.n_q)
        start, stop = self.key_range(queries, tiles.n_q, tiles.n_k)

        def count(begin, end):
            """How many queries of each query tile have each key tile in [begin, end), two numbers a query."""
            changes, some = np.zeros((tiles.shape[0], n_tiles + 1), int), begin < end
            for edge, change in ((begin, 1), (end, -1)):
                np.add.at(changes, (queries[some] // tiles.block_q, edge[some]), change)
            return changes.cumsum(axis=1)[:, :-1]

        touched = count(start // tiles.block_k, np.where(start < stop, -(-stop // tiles.block_k), 0))
        whole = count(-(-start // tiles.block_k), np.where(stop == tiles.n_k, n_tiles, stop // tiles.block_k))
        first, last = _edges(tiles.n_q, tiles.block_q)
        return touched > 0, whole == (last - first)[:, None]

    def _key_tile_ranges(self, tiles):
        """For each query tile of a band: its key tiles [begin, end) are visited, [full_begin, full_end) are full."""
        starts, stops = _edges(tiles.n_q, tiles.block_q)
        first_start, first_stop = self.key_range(starts, tiles.n_q, tiles.n_k)
        last_start, last_stop = self.key_range(stops - 1, tiles.n_q, tiles.n_k)
        # The last key tile may be short: it is full as soon as the last key is seen.
        full_end = np.where(first_stop == tiles.n_k, tiles.shape[1], first_stop // tiles.block_k)
        return first_start // tiles.block_k, -(-last_stop // tiles.block_k), -(-last_start // tiles.block_k), full_end


@dataclass(frozen=True)
class Window(Mask):
    """`full`, `causal`, `sliding_window` or `prefix_lm`.

    left, right: how many keys before and after its own position a query sees, None for all. prefix: how many keys at
    the beginning every query sees; it needs left to be None.
    """

    left: int | None
    right: int | None
    prefix: int = 0
    is_band = True

    @property
    def code(self):
        left, right = (-1 if width is None else width for width in (self.left, self.right))
        return WINDOW, left, right, self.prefix

    def key_range(self, i, n_q, n_k):
        position = i + n_k - n_q
        start = 0 * position if self.left is None else np.clip(position - self.left, 0, n_k)
        stop = n_k + 0 * position if self.right is None else np.clip(position + self.right + 1, 0, n_k)
        return start, np.maximum(stop, np.minimum(self.prefix, n_k))


_codes = itertools.count()
_by_code = weakref.WeakValueDictionary()


class Registered(Mask):
    """A mask with more to it than a few numbers. Its code is a number under which `of_code` finds the object.

    Equal content makes masks equal, so that what was computed for one is found for its copies.
    """

    def __eq__(self, other):
        return type(self) is type(other) and self._content == other._content

    def __hash__(self):
        return hash(self._content)

    def __reduce__(self):
        return _copied, (type(self), self._fields)

    @property
    def _fields(self):
        return tuple(getattr(self, field.name) for field in fields(self))

    @cached_property
    def _content(self):
        return tuple(
            (x.shape, x.dtype.str, hashlib.sha256(np.ascontiguousarray(x)).digest()) if isinstance(x, np.ndarray) else x
            for x in self._fields
        )


def _registered(mask):
    number = next(_codes)
    object.__setattr__(mask, "code", (REGISTERED, number))
    _by_code[number] = mask
    return mask


def _copied(kind, content):
    return _registered(kind(*content))


@dataclass(frozen=True, eq=False)
class Documents(Registered):
    """`documents`. A band if the tokens of each document stand side by side."""

    ids: np.ndarray

    @cached_property
    def is_band(self):
        return len(self._starts) == len(np.unique(self.ids))

    @cached_property
    def _starts(self):
        """Positions at which another document begins."""
        return np.flatnonzero(np.append(True, self.ids[1:] != self.ids[:-1]))

    def check_lengths(self, n_q, n_k):
        super().check_lengths(n_q, n_k)
        if len(self.ids) != max(n_q, n_k):
            raise ValueError(f"ids has length {len(self.ids)}; accepted: {max(n_q, n_k)}, the larger of n_q and n_k")

    def _rule(self, i, j, n_q, n_k):
        return self.ids[i + len(self.ids) - n_q] == self.ids[j + len(self.ids) - n_k]

    def key_range(self, i, n_q, n_k):
        if not self.is_band:
            return super().key_range(i, n_q, n_k)
        n_positions = len(self.ids)
        after = np.searchsorted(self._starts, i + n_positions - n_q, side="right")
        edges = np.clip(np.append(self._starts, n_positions) + n_k - n_positions, 0, n_k)
        return edges[after - 1], edges[after]


@dataclass(frozen=True, eq=False)
class Packed(Registered):
    """`packed`. edges_q, edges_k: where sequences begin, and behind the last its end."""

    edges_q: np.ndarray
    edges_k: np.ndarray
    within: Window
    has_ranges = True

    def check_lengths(self, n_q, n_k):
        super().check_lengths(n_q, n_k)
        for name, edges, of, length in (("q", self.edges_q, "queries", n_q), ("k", self.edges_k, "keys", n_k)):
            if edges[-1] != length:
                raise ValueError(f"cu_seqlens_{name} ends at {edges[-1]}; accepted: {length}, the number of {of}")

    def key_range(self, i, n_q, n_k):
        sequence = np.searchsorted(self.edges_q, i, side="right")
        (begin_q, end_q), (begin_k, end_k) = ((x[sequence - 1], x[sequence]) for x in (self.edges_q, self.edges_k))
        start, stop = self.within.key_range(i - begin_q, end_q - begin_q, end_k - begin_k)
        return begin_k + start, begin_k + stop

    def positions(self, n_q, n_k):
        i = np.arange(n_q)
        sequence = np.searchsorted(self.edges_q, i, side="right")
        return i - self.edges_q[sequence] + self.edges_k[sequence]


@dataclass(frozen=True, eq=False)
class BlockSparse(Registered):
    """`block_sparse`."""

    layout: np.ndarray
    block: int

    def check_lengths(self, n_q, n_k):
        super().check_lengths(n_q, n_k)
        expected = -(-n_q // self.block), -(-n_k // self.block)
        if self.layout.shape != expected:
            raise ValueError(f"layout has shape {self.layout.shape}; accepted: {expected}, one entry for each block")

    def _rule(self, i, j, n_q, n_k):
        return self.layout[i // self.block, j // self.block]

    def _bounds(self, tiles):
        # seen[a, b]: how many entries of the layout are true in its first a rows and first b columns.
        seen = np.pad(self.layout.cumsum(axis=0, dtype=np.int32).cumsum(axis=1, dtype=np.int32), ((1, 0), (1, 0)))
        edges = _edges(tiles.n_q, tiles.block_q), _edges(tiles.n_k, tiles.block_k)
        (top, bottom), (left, right) = ((starts // self.block, -(-stops // self.block)) for starts, stops in edges)
        above, below = seen[top], seen[bottom]
        n_seen = below[:, right] - below[:, left] - above[:, right] + above[:, left]
        return n_seen > 0, n_seen == np.outer(bottom - top, right - left)


@dataclass(frozen=True, eq=False)
class PerHead(Registered):
    """`key_lengths`, `from_dense` or `from_function`: member(content, batch, head) is the mask of a head."""

    member: Callable
    content: np.ndarray | Callable
    shape: tuple = (1, 1)

    def at(self, batch, head):
        return self.member(self.content, batch % self.shape[0], head % self.shape[1])

    def _rule(self, i, j, n_q, n_k):
        if self.shape != (1, 1):
            raise TypeError(
                f"a mask is one for each of {self.shape} (batch, heads); at(batch, head) returns one of them"
            )
        return self.at(0, 0)._rule(i, j, n_q, n_k)


def _of_lengths(lengths, batch, _):
    return FirstKeys(int(lengths[batch]))


def _of_array(visible, batch, head):
    return BlockSparse(visible[batch, head], 1)


@dataclass(frozen=True)
class FirstKeys(Mask):
    """Every query sees the first n keys."""

    n: int
    has_ranges = True

    def check_lengths(self, n_q, n_k):
        super().check_lengths(n_q, n_k)
        if self.n > n_k:
            raise ValueError(f"lengths has {self.n}; accepted: 0 to {n_k}, the number of keys")

    def key_range(self, i, n_q, n_k):
        return 0 * i, 0 * i + self.n


@dataclass(frozen=True, eq=False)
class Ranges(Mask):
    """Query i sees the keys start[i] to stop[i] - 1. Made by `Mask.in_ranges`."""

    start: np.ndarray
    stop: np.ndarray
    has_ranges = True

    def key_range(self, i, n_q, n_k):
        return self.start[i], self.stop[i]


@dataclass(frozen=True)
class Rule(Mask):
    """What a function says of one head of one sequence."""

    function: Callable
    batch: int
    head: int

    def _rule(self, i, j, n_q, n_k):
        visible = _array(self.function(self.batch, self.head, i, j))
        if visible.dtype != bool:
            raise TypeError(f"the function of a mask returned {visible.dtype}; accepted: bool, whether i sees j")
        return np.broadcast_to(visible, np.broadcast_shapes(i.shape, j.shape))


@dataclass(frozen=True)
class Combined(Mask):
    """`a | b` if either, else `a & b`."""

    a: Mask
    b: Mask
    either: bool

    def __post_init__(self):
        for name, one, other in zip(("batch", "heads"), self.a.shape, self.b.shape, strict=True):
            if 1 < one != other > 1:
                raise ValueError(f"masks for {name} {one} and {other} are combined; they must be equal, or 1")

    @property
    def code(self):
        return EITHER if self.either else BOTH, *self.a.code, *self.b.code

    @property
    def shape(self):
        return tuple(map(max, self.a.shape, self.b.shape))

    def at(self, batch, head):
        return Combined(self.a.at(batch, head), self.b.at(batch, head), self.either)

    @property
    def is_band(self):
        return self.a.is_band and self.b.is_band

    @property
    def has_ranges(self):
        return self.is_band or not self.either and self.a.has_ranges and self.b.has_ranges

    def check_lengths(self, n_q, n_k):
        self.a.check_lengths(n_q, n_k)
        self.b.check_lengths(n_q, n_k)

    def _rule(self, i, j, n_q, n_k):
        return self._join(self.a._rule(i, j, n_q, n_k), self.b._rule(i, j, n_q, n_k))

    def key_range(self, i, n_q, n_k):
        starts, stops = zip(self.a.key_range(i, n_q, n_k), self.b.key_range(i, n_q, n_k), strict=True)
        return (np.minimum(*starts), np.maximum(*stops)) if self.either else (np.maximum(*starts), np.minimum(*stops))

    def positions(self, n_q, n_k):
        a, b = self.a.positions(n_q, n_k), self.b.positions(n_q, n_k)
        return b if np.array_equal(a, super().positions(n_q, n_k)) else a

    def _bounds(self, tiles):
        if self.has_ranges:
            return super()._bounds(tiles)
        return tuple(map(self._join, self.a._bounds(tiles), self.b._bounds(tiles)))

    def _join(self, a, b):
        return a | b if self.either else a & b


@lru_cache(256)  # which keeps the mask of a forward pass for its backward
def of_code(code):
    """The mask with this code, a tuple."""
    mask, rest = _decoded(code)
    assert not rest, "the code of one mask"
    return mask


def _decoded(code):
    """The mask with whose code this code begins, and the rest of it."""
    kind, *rest = code
    if kind == WINDOW:
        left, right, prefix, *rest = rest
        return Window(*(None if width < 0 else width for width in (left, right)), prefix), rest
    if kind == REGISTERED:
        number, *rest = rest
        if number not in _by_code:
            raise RuntimeError("a compiled graph uses a mask that no longer exists; keep the mask as long as the graph")
        return _by_code[number], rest
    a, rest = _decoded(rest)
    b, rest = _decoded(rest)
    return Combined(a, b, kind == EITHER), rest


class Visited(NamedTuple):
    """Sums over all tiles that are not hidden. A pair is one query and one key of the tile, visible or not."""

    tiles: int
    queries: int
    keys: int
    pairs: int


@dataclass(frozen=True)
class Tiles:
    """Tiles of block_q queries by block_k keys, and their kinds under `mask`. Made by `Mask.tiles`."""

    mask: Mask
    n_q: int
    n_k: int
    block_q: int
    block_k: int

    @property
    def shape(self):
        """(query tiles, key tiles)."""
        return -(-self.n_q // self.block_q), -(-self.n_k // self.block_k)

    @cached_property
    def query_rows(self):
        """(start, stop) of each query tile, as a list."""
        return list(zip(*(edge.tolist() for edge in _edges(self.n_q, self.block_q)), strict=True))

    @cached_property
    def key_rows(self):
        """(start, stop) of each key tile, as a list."""
        return list(zip(*(edge.tolist() for edge in _edges(self.n_k, self.block_k)), strict=True))

    @cached_property
    def kinds(self):
        """[query tiles, key tiles] of int8: HIDDEN, PARTIAL or FULL."""
        maybe, surely = self.mask._bounds(self)
        kinds = maybe.astype(np.int8) + surely
        if not self.mask.has_ranges:
            for i, j in np.argwhere(kinds == PARTIAL):
                visible = self.visible(i, j)
                kinds[i, j] = FULL if visible.all() else PARTIAL if visible.any() else HIDDEN
        return kinds

    def key_tiles(self, i):
        """The key tiles that query tile i visits, in order: those that are not hidden from it."""
        return np.flatnonzero(self.kinds[i]).tolist()

    def query_tiles(self, j):
        """The query tiles that visit key tile j, in order."""
        return np.flatnonzero(self.kinds[:, j]).tolist()

    def visible(self, i, j):
        """Which pairs of query tile i and key tile j are visible: [queries, keys] of bool."""
        queries, keys = np.arange(*self.query_rows[i]), np.arange(*self.key_rows[j])
        return self.mask._rule(queries[:, None], keys, self.n_q, self.n_k)

    @cached_property
    def visited(self):
        """The sums over visited tiles: Visited. For a band the cost grows with the number of query tiles only."""
        if self.mask.is_band:
            begin, end, _, _ = self.mask._key_tile_ranges(self)
            n_tiles = end - begin
            n_keys = np.minimum(end * self.block_k, self.n_k) - begin * self.block_k
        else:
            is_visited = self.kinds != HIDDEN
            n_tiles, n_keys = is_visited.sum(axis=1), is_visited @ np.diff(_edges(self.n_k, self.block_k), axis=0)[0]
        (n_queries,) = np.diff(_edges(self.n_q, self.block_q), axis=0)
        return Visited(*map(int, (n_tiles.sum(), n_queries @ n_tiles, n_keys.sum(), n_queries @ n_keys)))


def _array(x):
    """A copy of x as an array; x may be a tensor on any device."""
    return np.array(x.detach().cpu().numpy() if hasattr(x, "detach") else x)


def _cumulative(name, lengths):
    """Cumulative lengths as an integer array; TypeError or ValueError if they are none."""
    lengths = _array(lengths)
    if lengths.ndim != 1 or lengths.size == 0 or lengths.dtype.kind not in "iu":
        raise TypeError(f"{name} has shape {lengths.shape} and dtype {lengths.dtype}; accepted: [n] of whole numbers")
    if lengths[0] != 0:
        raise ValueError(f"{name} starts at {lengths[0]}; accepted: 0")
    for b in np.flatnonzero(np.diff(lengths) < 0):
        raise ValueError(f"{name} goes down from {lengths[b]} to {lengths[b + 1]} at sequence {b}")
    return lengths


def _edges(length, block):
    """(starts, stops) of the tiles of a sequence, two integer arrays."""
    starts = np.arange(0, length, block)
    return starts, np.minimum(starts + block, length)


def _positions(name, positions, length):
    """`positions` as an int64 array; TypeError or ValueError if they are not from 0 to length - 1."""
    positions = np.asarray(positions)
    if positions.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {positions.dtype}; accepted: whole numbers")
    if positions.size and not 0 <= positions.min() <= positions.max() < length:
        raise ValueError(f"{name} has entries from {positions.min()} to {positions.max()}; accepted: 0 to {length - 1}")
    return positions.astype(np.int64)


def check_counts(**counts):
    """TypeError or ValueError, naming the argument, unless every count is a whole number of at least 1."""
    for name, count in counts.items():
        _check_at_least(name, count, 1)


def _check_at_least(name, number, least, alternative=""):
    accepted = f"accepted: a whole number of at least {least}{alternative}"
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise TypeError(f"{name} is {number!r}; {accepted}")
    if number < least:
        raise ValueError(f"{name} is {number}; {accepted}")
