"""A cache of keys and values in pages: which sequence has which pages, and where its next tokens go.

Sequences come and go, and grow by a token at a time. If each reserved memory for the longest answer it might give, most
of it would stay empty. Instead, a sequence gets pages of a few tokens as it grows, wherever one is free. Sequences that
begin with the same tokens can share the pages that hold them. Each page counts its sequences, and a sequence that is
about to write into a page that others have gets a copy of it (copy on write). Kwon et al., "Efficient Memory Management
for Large Language Model Serving with PagedAttention" (2023), section 4.

A pool does the bookkeeping and holds no keys. Those lie in the caller's arrays, two for each layer of a model, of shape
[n_pages, kv_heads, page_size, head_dim]. One pool serves all of them:

    pool = PagePool(n_pages=64, page_size=16)
    a = pool.start()
    pages, rows, copies = pool.append(a, len(prompt))
    for source, target in copies:
        k_cache[target] = k_cache[source]
    k_cache[pages, :, rows] = keys    # [tokens, kv_heads, head_dim]; v_cache likewise
    block_table, lengths = pool.tables([a])
"""

import itertools

import numpy as np

from course_lib.integers import python_integers


class OutOfPages(RuntimeError):
    """There are fewer free pages than a sequence needs to grow. The pool is as it was before."""


class PagePool:
    """n_pages pages, each for page_size tokens of one sequence, or of several that begin with the same tokens.

    free: the numbers of the free pages. references: [n_pages], how many sequences have each page.
    """

    @python_integers
    def __init__(self, n_pages, page_size):
        self.page_size = page_size
        self.free = list(reversed(range(n_pages)))
        self.references = [0] * n_pages
        self._pages, self._lengths = {}, {}  # of each sequence
        self._names = itertools.count()

    def start(self):
        """A new sequence without tokens; returns the number by which the other methods know it."""
        sequence = next(self._names)
        self._pages[sequence], self._lengths[sequence] = [], 0
        return sequence

    @python_integers
    def share(self, sequence, n_tokens):
        """A new sequence that begins with the first n_tokens of another and has the same pages for them."""
        length = self._lengths[sequence]
        if not 0 <= n_tokens <= length:
            raise ValueError(f"n_tokens is {n_tokens}; accepted: 0 to {length}, the length of sequence {sequence}")
        new = self.start()
        self._pages[new], self._lengths[new] = self._pages[sequence][: self._pages_for(n_tokens)], n_tokens
        for page in self._pages[new]:
            self.references[page] += 1
        return new

    @python_integers
    def append(self, sequence, n_tokens=1):
        """Room for n_tokens more tokens of a sequence: (pages, rows, copies).

        Token i goes to row rows[i] of page pages[i]; both are integer arrays [n_tokens]. copies: a list of (source,
        target), pages that are to be copied before anything is written. Raises OutOfPages if there are too few.
        """
        pages, length = self._pages[sequence], self._lengths[sequence]
        if n_tokens < 0:
            raise ValueError(f"n_tokens is {n_tokens}; accepted: whole numbers of at least 0")
        # The first new token goes into a page that others have, too.
        must_copy = n_tokens > 0 and length % self.page_size > 0 and self.references[pages[-1]] > 1
        n_new = self._pages_for(length + n_tokens) - len(pages)
        if n_new + must_copy > len(self.free):
            raise OutOfPages(f"sequence {sequence} needs {n_new + must_copy} more pages; {len(self.free)} are free")
        copies = []
        if must_copy:
            source, pages[-1] = pages[-1], self._take()
            self._release(source)
            copies.append((source, pages[-1]))
        pages += [self._take() for _ in range(n_new)]
        self._lengths[sequence] = length + n_tokens
        index, rows = np.divmod(np.arange(length, length + n_tokens), self.page_size)
        return np.array(pages, dtype=np.int64)[index], rows, copies

    def drop(self, sequence):
        """End a sequence: the pages that no other sequence has become free."""
        for page in self._pages.pop(sequence):
            self._release(page)
        del self._lengths[sequence]

    def tables(self, sequences):
        """(block_table, lengths) of these sequences, as `flash_decode` takes them.

        block_table: int32 [sequences, most pages of one of them, at least 1], 0 behind a sequence's last page; lengths:
        int32 [sequences].
        """
        table = np.zeros((len(sequences), max([1, *(len(self._pages[s]) for s in sequences)])), dtype=np.int32)
        for row, sequence in zip(table, sequences, strict=True):
            row[: len(self._pages[sequence])] = self._pages[sequence]
        return table, np.array([self._lengths[s] for s in sequences], dtype=np.int32)

    def _pages_for(self, n_tokens):
        return -(-n_tokens // self.page_size)

    def _take(self):
        page = self.free.pop()
        self.references[page] = 1
        return page

    def _release(self, page):
        self.references[page] -= 1
        if self.references[page] == 0:
            self.free.append(page)
