"""The pool of pages, by any sequence of operations: no page leaks, none has two owners, contents are right."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from course_lib.serving.paged_cache import OutOfPages, PagePool


def write(pool, storage, sequence, tokens):
    """Append tokens, and write them into storage, [n_pages, page_size], as a caller writes keys into its arrays."""
    pages, rows, copies = pool.append(sequence, len(tokens))
    for source, target in copies:
        storage[target] = storage[source]
    storage[pages, rows] = tokens


def read(pool, storage, sequence):
    """The tokens of a sequence, found as a kernel finds keys."""
    (table,), (length,) = pool.tables([sequence])
    assert table.size and table.dtype == length.dtype == np.int32, "as kernels take them"
    keys = np.arange(length)
    return storage[table[keys // pool.page_size], keys % pool.page_size].tolist()


class AnyOrder(RuleBasedStateMachine):
    """Beside the pool runs a model, which keeps each sequence's tokens in a list of its own."""

    sequences = Bundle("sequences")

    @initialize(n_pages=st.integers(1, 12), page_size=st.integers(1, 5))
    def make(self, n_pages, page_size):
        self.pool, self.n_pages = PagePool(n_pages, page_size), n_pages
        self.storage = np.full((n_pages, page_size), -1)
        self.tokens = {}
        self.written = 0

    @rule(target=sequences)
    def start(self):
        sequence = self.pool.start()
        assert sequence not in self.tokens, "a name is given once"
        self.tokens[sequence] = []
        return sequence

    @rule(sequence=sequences, n_tokens=st.integers(0, 11))
    def append(self, sequence, n_tokens):
        # No two tokens are the same, so a token in the wrong place is seen.
        tokens = list(range(self.written, self.written + n_tokens))
        self.written += n_tokens
        before = list(self.pool.free), list(self.pool.references), self.pool.tables([sequence])
        (pages,), (length,) = before[2]
        have, want = (-(-n // self.pool.page_size) for n in (length, length + n_tokens))
        # A page that is full, or that no other sequence has, is not copied.
        is_copied = n_tokens > 0 and length % self.pool.page_size > 0 and before[1][pages[have - 1]] > 1
        needed = want - have + is_copied
        try:
            write(self.pool, self.storage, sequence, tokens)
        except OutOfPages:
            after = self.pool.free, self.pool.references, self.pool.tables([sequence])
            assert before[:2] == after[:2] and all(map(np.array_equal, before[2], after[2]))
            assert len(self.pool.free) < needed, "there were enough"
        else:
            self.tokens[sequence] += tokens
            assert len(before[0]) - len(self.pool.free) == needed

    @rule(target=sequences, sequence=sequences, data=st.data())
    def share(self, sequence, data):
        n_tokens = data.draw(st.integers(0, len(self.tokens[sequence])))
        free = len(self.pool.free)
        new = self.pool.share(sequence, n_tokens)
        assert len(self.pool.free) == free, "sharing takes no page"
        self.tokens[new] = self.tokens[sequence][:n_tokens]
        return new

    @rule(sequence=consumes(sequences))
    def drop(self, sequence):
        self.pool.drop(sequence)
        del self.tokens[sequence]

    @invariant()
    def contents_are_right(self):
        assert {sequence: read(self.pool, self.storage, sequence) for sequence in self.tokens} == self.tokens

    @invariant()
    def counts_balance(self):
        owners = Counter()
        for sequence, tokens in self.tokens.items():
            (row,), _ = self.pool.tables([sequence])
            pages = row[: -(-len(tokens) // self.pool.page_size)].tolist()
            assert len(set(pages)) == len(pages), "a page twice in one sequence"
            owners.update(pages)
        assert self.pool.references == [owners[page] for page in range(self.n_pages)]
        assert sorted([*self.pool.free, *owners]) == list(range(self.n_pages)), "each is free, or has owners"


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_what_is_refused():
    pool = PagePool(n_pages=2, page_size=4)
    a = pool.start()
    pool.append(a, 3)
    with pytest.raises(ValueError, match="n_tokens is 4; accepted: 0 to 3, the length of sequence 0"):
        pool.share(a, 4)
    with pytest.raises(ValueError, match="n_tokens is -1"):
        pool.append(a, -1)
    with pytest.raises(OutOfPages, match="sequence 0 needs 2 more pages; 1 are free"):
        pool.append(a, 6)
    pool.drop(a)
    with pytest.raises(KeyError):
        pool.append(a)
