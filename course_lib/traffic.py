"""Closed forms for attention: bytes moved, floating-point operations, memory held.

Bytes are those that programs *request*, before any cache, and only for rows within bounds. They follow from the tiles
that an algorithm visits (see `course_lib.masks`); nothing is simulated. The memory machine and the tracer count the
same bytes one access at a time, and tests hold the three equal.

FA1: Dao, Fu, Ermon, Rudra, Re, "FlashAttention" (2022). FA2: Dao, "FlashAttention-2" (2023).
"""

from dataclasses import dataclass
from typing import NamedTuple

from . import masks
from .integers import python_integers
from .masks import check_counts


class TensorBytes(NamedTuple):
    """Bytes read from and written to one tensor."""

    read_bytes: int
    write_bytes: int


@dataclass(frozen=True)
class Traffic:
    """What one call requests.

    read_bytes, write_bytes: summed over all tensors, heads and batch entries. flops: those of the matrix products.
    peak_bytes: the most HBM held at one time in addition to Q, K, V and O. by_tensor: name -> TensorBytes.
    """

    read_bytes: int
    write_bytes: int
    flops: int
    peak_bytes: int
    by_tensor: dict[str, TensorBytes]

    @property
    def total_bytes(self):
        return self.read_bytes + self.write_bytes

    @property
    def arithmetic_intensity(self):
        """FLOPs per byte, read or written."""
        return self.flops / self.total_bytes


@python_integers
def attention_flops(n_q, n_k, d, *, heads=1, batch=1):
    """4 n_q n_k d per head: Q K^T and P V take 2 n_q n_k d each, a multiplication and an addition for each term."""
    check_counts(n_q=n_q, n_k=n_k, d=d, heads=heads, batch=batch)
    return 4 * n_q * n_k * d * heads * batch


@python_integers
def training_flops(n, *, width, heads, kv_heads, head_dim, hidden):
    """(matrices, attention) of a decoder layer, FLOPs a token of a causal sequence of n, forward and backward.

    Matrices: [width, heads head_dim] for Q and for what follows attention, [width, kv_heads head_dim] for K and for V,
    [width, hidden] twice. Each of their numbers takes 2 FLOPs in the forward, twice as many in the backward; a visible
    pair, of which a token has (n + 1) / 2 on average, takes 2 products of 2 head_dim FLOPs a head, then 5 backward.
    """
    check_counts(n=n, width=width, heads=heads, kv_heads=kv_heads, head_dim=head_dim, hidden=hidden)
    return 12 * width * ((heads + kv_heads) * head_dim + hidden), 7 * heads * head_dim * (n + 1)


@python_integers
def standard_attention(n_q, n_k, d, *, dtype_bytes=2, causal=False, heads=1, batch=1):
    """Traffic of standard attention (FA1 Alg. 0), per head in elements:

        read   Q: n_q d, K: n_k d, V: n_k d, S: n_q n_k, P: n_q n_k
        write  S: n_q n_k, P: n_q n_k, O: n_q d
        total  4 n_q n_k + 2 n_q d + 2 n_k d

    flops: 4 n_q n_k d; peak_bytes: S and P, 2 n_q n_k elements. `causal` changes none of these, because standard
    attention computes the scores that it then hides. Sizes are counts of at least 1 (ValueError, TypeError).
    """
    check_counts(n_q=n_q, n_k=n_k, d=d, dtype_bytes=dtype_bytes, heads=heads, batch=batch)
    square = n_q * n_k
    elems = {
        "Q": (n_q * d, 0),
        "K": (n_k * d, 0),
        "V": (n_k * d, 0),
        "S": (square, square),
        "P": (square, square),
        "O": (0, n_q * d),
    }
    by_tensor = {name: (read * dtype_bytes, write * dtype_bytes) for name, (read, write) in elems.items()}
    return _traffic(by_tensor, 4 * square * d, 2 * square * dtype_bytes, heads * batch)


@python_integers
def flash_attention(
    n_q,
    n_k,
    d,
    *,
    block_q,
    block_k,
    dtype_bytes=2,
    causal=False,
    order="q_outer",
    return_lse=False,
    stat_bytes=4,
    heads=1,
    batch=1,
):
    """Traffic of FlashAttention, for either order of its two loops.

    visited_keys is the number of keys in a tile, summed over all tiles that are visited; visited_queries likewise.

    order="q_outer" (FA2 Alg. 1), per head in elements:

        read   Q: n_q d, K and V: d visited_keys each
        write  O: n_q d, lse: n_q statistics if return_lse

    Without a mask, visited_keys is n_k ceil(n_q / block_q), and the total is 2 n_q d + 2 n_k d ceil(n_q / block_q).
    For n_q = n_k = N it grows as N^2.

    order="kv_outer" (FA1 Alg. 1), per head in elements:

        read   K and V: n_k d each, Q and O: d visited_queries each, l and m: visited_queries statistics each
        write  O: n_q d + d visited_queries, l and m: n_q + visited_queries statistics each
               (line 2 of the algorithm initialises n_q rows of each)

    lse follows from l and m.

    Statistics take stat_bytes each. flops: 4 d for each pair of a query and a key of a visited tile, whether the mask
    hides the pair or not. peak_bytes: lse if it is returned (q_outer), l and m (kv_outer). Sizes are counts of at
    least 1 (ValueError, TypeError).
    """
    check_counts(
        n_q=n_q, n_k=n_k, d=d, block_q=block_q, block_k=block_k,
        dtype_bytes=dtype_bytes, stat_bytes=stat_bytes, heads=heads, batch=batch,
    )  # fmt: skip
    row_bytes = d * dtype_bytes
    visited = _visited(n_q, n_k, block_q, block_k, causal)
    if order == "q_outer":
        by_tensor = {
            "Q": (n_q * row_bytes, 0),
            "K": (visited.keys * row_bytes, 0),
            "V": (visited.keys * row_bytes, 0),
            "O": (0, n_q * row_bytes),
        }
        if return_lse:
            by_tensor["lse"] = (0, n_q * stat_bytes)
        peak_bytes = n_q * stat_bytes if return_lse else 0
    elif order == "kv_outer":
        queries = visited.queries
        by_tensor = {
            "Q": (queries * row_bytes, 0),
            "K": (n_k * row_bytes, 0),
            "V": (n_k * row_bytes, 0),
            "O": (queries * row_bytes, (n_q + queries) * row_bytes),
            "l": (queries * stat_bytes, (n_q + queries) * stat_bytes),
            "m": (queries * stat_bytes, (n_q + queries) * stat_bytes),
        }
        peak_bytes = 2 * n_q * stat_bytes
    else:
        raise ValueError(f'order is {order!r}; accepted: "q_outer" (FlashAttention-2), "kv_outer" (FlashAttention-1)')
    return _traffic(by_tensor, 4 * d * visited.pairs, peak_bytes, heads * batch)


@python_integers
def decode(lengths, d, *, heads=1, kv_heads=None, splits=1, dtype_bytes=2, stat_bytes=4):
    """Traffic of decoding with split keys: one new query of each sequence, and the keys of its cache.

    lengths: how many keys each sequence has, whole numbers of at least 0. heads: query heads; kv_heads: key and value
    heads, a divisor of heads, heads itself if None; the query heads that share keys are rows of one tile.
    Per sequence of n keys, in elements:

        read   Q: splits heads d, K and V: kv_heads n d each, the page's other rows not, if there are pages
        write  O: heads d

    and if splits > 1, in statistics of stat_bytes, whether a split has keys or not:

        write  acc: splits heads d, stats (m and l): 2 splits heads
        read   acc: splits heads d, stats: 2 splits heads ceil(d / 32), since a program merges 32 columns of a row

    Lengths and block tables, a few bytes for each tile of keys, are left out. flops: 4 d for each pair of a query and a
    key. peak_bytes: the states. Sizes are counts of at least 1 (ValueError, TypeError).
    """
    kv_heads = heads if kv_heads is None else kv_heads
    check_counts(
        d=d, heads=heads, kv_heads=kv_heads, splits=splits, dtype_bytes=dtype_bytes, stat_bytes=stat_bytes,
        sequences=len(lengths),
    )  # fmt: skip
    if heads % kv_heads:
        raise ValueError(f"kv_heads is {kv_heads}; accepted: a divisor of heads, {heads}")
    if min(lengths) < 0:
        raise ValueError(f"lengths holds {min(lengths)}; accepted: whole numbers of at least 0")
    n_keys, rows = sum(map(int, lengths)), len(lengths) * heads
    row_bytes = d * dtype_bytes
    by_tensor = {
        "Q": (splits * rows * row_bytes, 0),
        "K": (kv_heads * n_keys * row_bytes, 0),
        "V": (kv_heads * n_keys * row_bytes, 0),
        "O": (0, rows * row_bytes),
    }
    acc_bytes, stats_bytes = splits * rows * d * stat_bytes, splits * rows * 2 * stat_bytes
    if splits > 1:
        by_tensor |= {"acc": (acc_bytes, acc_bytes), "stats": (stats_bytes * -(-d // 32), stats_bytes)}
    peak_bytes = acc_bytes + stats_bytes if splits > 1 else 0
    return _traffic(by_tensor, 4 * d * heads * n_keys, peak_bytes, 1)


@python_integers
def flash_attention_backward(
    n_q,
    n_k,
    d,
    *,
    block_q,
    block_k,
    dq_blocks=None,
    dtype_bytes=2,
    causal=False,
    stat_bytes=4,
    heads=1,
    kv_heads=None,
    batch=1,
):
    """Traffic of FlashAttention's backward in two passes without atomics (FA2 Alg. 2, each output written once).

    block_q, block_k: tiles of the dK/dV pass; dq_blocks: (block_q, block_k) of the dQ pass if they differ.
    heads: query heads; kv_heads: key and value heads, a divisor of heads, heads itself if None.
    Per query head in elements (K, V, dK and dV of the dK/dV pass: per key head):

        delta    read  O, dO: n_q d each                                   write  delta: n_q statistics
        dK, dV   read  K, V: n_k d each, Q, dO: d visited_queries each,    write  dK, dV: n_k d each
                       lse, delta: visited_queries statistics each
        dQ       read  Q, dO: n_q d each, lse, delta: n_q statistics       write  dQ: n_q d
                       each, K, V: d visited_keys each

    with visited_keys and visited_queries as in `flash_attention`, each for the tiles of its own pass.

    flops: for each pair of a query and a key of a visited tile, 8 d in the dK/dV pass (S, dP, dV, dK) and 6 d in the
    dQ pass (S, dP, dQ). That makes 7 products, 14 n_q n_k d if no tile is skipped. The gradients alone take 5 products,
    10 n_q n_k d, and published FLOP/s are based on those; computing S and dP a second time is the price of writing dQ
    once, without atomics. peak_bytes: delta and lse, the HBM held in addition to inputs, output and gradients.
    Sizes are counts of at least 1 (ValueError, TypeError).
    """
    dq_block_q, dq_block_k = dq_blocks or (block_q, block_k)
    kv_heads = heads if kv_heads is None else kv_heads
    check_counts(
        n_q=n_q, n_k=n_k, d=d, block_q=block_q, block_k=block_k, dq_block_q=dq_block_q, dq_block_k=dq_block_k,
        dtype_bytes=dtype_bytes, stat_bytes=stat_bytes, heads=heads, kv_heads=kv_heads, batch=batch,
    )  # fmt: skip
    if heads % kv_heads:
        raise ValueError(f"kv_heads is {kv_heads}; accepted: a divisor of heads, {heads}")
    row_bytes = d * dtype_bytes
    dkdv = _visited(n_q, n_k, block_q, block_k, causal)
    dq = _visited(n_q, n_k, dq_block_q, dq_block_k, causal)
    by_query_head = {
        "Q": ((dkdv.queries + n_q) * row_bytes, 0),
        "K": (dq.keys * row_bytes, 0),
        "V": (dq.keys * row_bytes, 0),
        "O": (n_q * row_bytes, 0),
        "lse": ((dkdv.queries + n_q) * stat_bytes, 0),
        "dO": ((dkdv.queries + 2 * n_q) * row_bytes, 0),
        "delta": ((dkdv.queries + n_q) * stat_bytes, n_q * stat_bytes),
        "dQ": (0, n_q * row_bytes),
    }
    by_key_head = {
        "K": (n_k * row_bytes, 0),
        "V": (n_k * row_bytes, 0),
        "dK": (0, n_k * row_bytes),
        "dV": (0, n_k * row_bytes),
    }
    by_tensor = {}
    for per_head, count in ((by_query_head, heads), (by_key_head, kv_heads)):
        for name, (read, write) in per_head.items():
            before = by_tensor.get(name, (0, 0))
            by_tensor[name] = (before[0] + read * count, before[1] + write * count)
    flops = (8 * dkdv.pairs + 6 * dq.pairs) * d * heads
    return _traffic(by_tensor, flops, 2 * n_q * stat_bytes * heads, batch)


class SentBytes(NamedTuple):
    """Bytes that each rank of a group sends to others in one forward and in one backward."""

    forward_bytes: int
    backward_bytes: int


@python_integers
def between_ranks(n, d, ranks, *, method="ring", heads=1, kv_heads=None, batch=1, dtype_bytes=2, sum_bytes=4):
    """SentBytes of attention over P ranks, with n / P rows of each tensor on each (`course_lib.distributed`).

    n: rows of the whole sequence, a multiple of ranks. kv_heads: as in `decode`. With kv = 2 kv_heads n / P d, elements
    of a rank's K and V, each rank sends

        "ring"        forward   kv (P - 1)
                      backward  kv (P - 1), and of dK and dV kv the first time, kv (P - 2) sums of sum_bytes after that
        "all_gather"  forward   kv (P - 1)
                      backward  kv (P - 1) sums of sum_bytes (a reduce-scatter)
        "ulysses"     either    (P - 1) / P of its Q, K, V and O: (2 heads n / P d + kv) (P - 1) / P

    whether causal or not. That is what algorithms send that pass on nothing twice; of collectives, a library chooses
    its own. Sizes are counts of at least 1; ranks divides n, and for "ulysses" heads and kv_heads (ValueError).
    """
    kv_heads = heads if kv_heads is None else kv_heads
    check_counts(
        n=n, d=d, ranks=ranks, heads=heads, kv_heads=kv_heads, batch=batch, dtype_bytes=dtype_bytes,
        sum_bytes=sum_bytes,
    )  # fmt: skip
    divided = {"n": n, **({"heads": heads, "kv_heads": kv_heads} if method == "ulysses" else {})}
    for name, count in divided.items():
        if count % ranks:
            raise ValueError(f"{name} is {count}; accepted: multiples of ranks, {ranks}")
    others, row_elems = ranks - 1, batch * n // ranks * d
    kv_elems = 2 * kv_heads * row_elems
    if method == "ring":
        sums_bytes = kv_elems * (dtype_bytes + (ranks - 2) * sum_bytes) if others else 0
        return SentBytes(kv_elems * others * dtype_bytes, kv_elems * others * dtype_bytes + sums_bytes)
    if method == "all_gather":
        return SentBytes(kv_elems * others * dtype_bytes, kv_elems * others * sum_bytes)
    if method == "ulysses":
        exchanged_bytes = (2 * heads * row_elems + kv_elems) // ranks * others * dtype_bytes
        return SentBytes(exchanged_bytes, exchanged_bytes)
    raise ValueError(f'method is {method!r}; accepted: "ring", "all_gather", "ulysses"')


def _visited(n_q, n_k, block_q, block_k, causal):
    """What the visited tiles add up to, for either order of the two loops: masks.Visited."""
    mask = masks.causal() if causal else masks.full()
    return mask.tiles(n_q, n_k, block_q, block_k).visited


def choose_block_sizes(sram_bytes, d, dtype_bytes=2, multiple_of=16):
    """The largest tiles that fit: (block_q, block_k), by the four-tile budget.

    sram_bytes: what there is. d: numbers a row (head_dim). dtype_bytes: of one number, 2 for float16.
    multiple_of: each size is a multiple of it, and at least multiple_of itself.
    The tiles of Q, K, V and S must fit together: dtype_bytes * (block_q * d + 2 * block_k * d + block_q *
        block_k) <= sram_bytes. Accumulator, statistics and temporaries are not in this budget.
    Returns the pair with the largest product block_q * block_k; of several, that with the largest block_q.
    Raises ValueError if not even multiple_of x multiple_of fits.

    >>> choose_block_sizes(100_000, 64)
    (272, 80)
    """
    budget_elems = sram_bytes // dtype_bytes
    best = None
    for block_q in range(multiple_of, budget_elems + 1, multiple_of):
        fits = (budget_elems - block_q * d) // (2 * d + block_q)
        block_k = fits // multiple_of * multiple_of
        if block_k < multiple_of:
            break  # a larger block_q leaves even less
        if best is None or block_q * block_k >= best[0] * best[1]:
            best = block_q, block_k
    if best is None:
        smallest_bytes = dtype_bytes * (3 * multiple_of * d + multiple_of**2)
        raise ValueError(f"sram_bytes is {sram_bytes}; the smallest tiles need {smallest_bytes}")
    return best


@python_integers
def lower_bound_elems(n, d, sram_elems):
    """n^2 d^2 / M: how many elements exact attention must move, up to a constant factor.

    n: queries and keys; d: head_dim; M = sram_elems: the size of the fast memory in *elements*, d <= M <= n d
    (otherwise ValueError). FlashAttention moves Theta(n^2 d^2 / M) elements (FA1 Theorem 2), and no exact
    algorithm moves asymptotically fewer for every M in that range (FA1 Proposition 3). Since constant factors are left
    out, compare how traffic grows with this, not how large it is.
    """
    check_counts(n=n, d=d, sram_elems=sram_elems)
    if not d <= sram_elems <= n * d:
        raise ValueError(f"sram_elems is {sram_elems}; accepted: from d = {d} to n d = {n * d}, in elements, not bytes")
    return n**2 * d**2 / sram_elems


def _traffic(by_tensor, flops, peak_bytes, copies):
    """Totals over tensors, times the number of heads in the batch."""
    by_tensor = {name: TensorBytes(read * copies, write * copies) for name, (read, write) in by_tensor.items()}
    return Traffic(
        read_bytes=sum(tensor.read_bytes for tensor in by_tensor.values()),
        write_bytes=sum(tensor.write_bytes for tensor in by_tensor.values()),
        flops=flops * copies,
        peak_bytes=peak_bytes * copies,
        by_tensor=by_tensor,
    )
