"""The one block of pairs that a rank has to compute at a step of the ring, under a causal mask."""

from numbers import Integral

import numpy as np
from hypothesis import strategies as st

from courseware.checks import Checks, Exercise, show, single_finding
from courseware.simulators.ring import chunks_of


def visible_blocks(rank, step, ranks, n, zigzag):
    """The block of pairs that a rank has to compute at a step of the ring, causal: (queries, keys, masked), or None.

    ranks: how many there are, 0 to ranks - 1. Each holds n rows of Q, K and V, n even. At step 0 each rank has its own
        keys. Between two steps, each rank passes the keys that it has on to rank + 1, the last one to rank 0.
    zigzag False: rank r holds tokens r n to r n + n - 1. zigzag True: of 2 * ranks chunks of n / 2 tokens, rank r holds
        chunk r and chunk 2 * ranks - 1 - r, in this order.
    A query sees a key if the key's token is not later than its own.
    queries, keys: (start, stop), rows 0 to n of the rank's queries and of the keys that it has at this step.
    masked: False if every query of the block sees every key of it. True if a causal mask on the block hides the rest:
        of as many queries as keys, query i of the block sees keys 0 to i.
    The block contains all pairs in which the query sees the key. If there are none, the result is None.

    >>> visible_blocks(rank=1, step=0, ranks=4, n=6, zigzag=False)
    ((0, 6), (0, 6), True)
    >>> visible_blocks(rank=0, step=1, ranks=4, n=6, zigzag=False) is None
    True
    """
    source = (rank - step) % ranks
    if source == rank:
        return (0, n), (0, n), True
    if not zigzag:
        return ((0, n), (0, n), False) if source < rank else None
    if source < rank:
        return (0, n), (0, n // 2), False
    return (n // 2, n), (0, n), False


def tokens_of(rank, ranks, n, zigzag):
    return np.concatenate([np.arange(n // 2) + chunk * n // 2 for chunk in chunks_of(rank, ranks, zigzag)])


def covered(block, n):
    """[n, n]: the pairs of a block. Raises TypeError and ValueError where it is none."""
    pairs = np.zeros((n, n), bool)
    if block is None:
        return pairs
    (q_start, q_stop), (k_start, k_stop), masked = block
    part = pairs[q_start:q_stop, k_start:k_stop]
    part |= np.tri(*part.shape, dtype=bool) if masked else True
    return pairs


def is_block(returned):
    match returned:
        case None | [[Integral(), Integral()], [Integral(), Integral()], bool() | np.bool_()]:
            return True
    return False


def sees_what_it_should(returned, rank, step, ranks, n, zigzag):
    source = (rank - step) % ranks
    tokens = [tokens_of(of, ranks, n, zigzag) for of in (rank, source)]
    visible = tokens[0][:, None] >= tokens[1]
    rows, columns = (np.flatnonzero(visible.any(axis=axis)).tolist() for axis in (1, 0))
    block = visible[np.ix_(rows, columns)]
    right = ((rows[0], rows[-1] + 1), (columns[0], columns[-1] + 1), not block.all()) if rows else None

    def wrong(kind, text):
        whose = "its own keys" if source == rank else f"the keys of rank {source}"
        text += f"\nat step {step}, rank {rank} has {whose}, tokens {in_words(tokens[1])}"
        text += "" if source == rank else f"; its queries are tokens {in_words(tokens[0])}"
        return single_finding(kind, text, show(returned), show(right))

    if not is_block(returned):
        text = "the answer returned neither None nor ((start, stop), (start, stop), True or False)"
        return single_finding("type", text, show(returned), show(right))
    if returned is None and right is None:
        return None
    if right is None:
        return wrong("nothing", "nothing is visible, and the answer did not return None")
    if returned is None:
        return wrong("something", f"the answer returned None, although {visible.sum()} pairs are visible")
    ends = [end for part in returned[:2] for end in part]
    if min(ends) < 0 or max(ends) > n:
        return wrong("rows", f"rows of a shard are 0 to {n}, and the answer has {show(tuple(returned[:2]))}")
    came = covered(returned, n)
    if (missing := visible & ~came).any():
        return wrong("missing", f"{missing.sum()} visible pairs are not computed: {of_a_pair(missing, tokens)}")
    if (hidden := came & ~visible).any():
        return wrong("hidden", f"{hidden.sum()} hidden pairs count as visible: {of_a_pair(hidden, tokens)}")
    if returned[2] and not right[2]:
        return wrong("masked", "masked is True, although every query of the block sees every key of it")
    return None


def in_words(tokens):
    """ "0 to 2, 9 to 11", of the two halves of a shard."""
    halves = np.split(tokens, 2) if tokens[-1] - tokens[0] >= len(tokens) else [tokens]
    return ", ".join(f"{half[0]} to {half[-1]}" if len(half) > 1 else f"{half[0]}" for half in halves)


def of_a_pair(pairs, tokens):
    q, k = np.argwhere(pairs)[0]
    return f"query row {q} and key row {k}, for one, are tokens {tokens[0][q]} and {tokens[1][k]}"


@st.composite
def places(draw):
    ranks = draw(st.integers(1, 5))
    rank, step = (draw(st.integers(0, ranks - 1)) for _ in range(2))
    return rank, step, ranks, 2 * draw(st.integers(1, 3)), draw(st.booleans())


check = Checks(visible_blocks, sees_what_it_should)

check("step 0: every rank sees its own keys, in either order", [(1, 0, 3, 4, False), (0, 0, 2, 6, True)])
check("contiguous: the keys of a lower rank are visible as a whole", [(1, 1, 4, 4, False), (3, 2, 4, 2, False)])
check("contiguous: no key of a higher rank is visible", [(0, 1, 3, 4, False), (1, 2, 4, 2, False)])
check(
    "zigzag: of a lower rank, all queries see the early chunk",
    [(1, 1, 2, 6, True), (3, 2, 4, 8, True), (1, 1, 2, 2, True)],
)
check("zigzag: of a higher rank, the late queries see both chunks", [(0, 1, 2, 6, True), (1, 3, 4, 8, True)])
check("any place in any ring", [(4, 2, 6, 10, True), (1, 4, 6, 10, True), places()])

EXERCISE = Exercise(__file__, visible_blocks, check, points=3, minutes=12, difficulty="medium")
