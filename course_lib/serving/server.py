"""Serving: requests come and go, run in one batch, and keep their keys and values in pages of one pool.

In each step, every running request gets one more character out of one call of the model, however long its text is
(continuous batching: Yu et al., "Orca", 2022). Requests wait in the order of their arrival until the pool has pages for
their prompts. A prompt that begins like the text of a running request shares its pages. When no page is left for a next
character, the request that came last is preempted: its pages become free, and it waits to be computed again, as in
PagedAttention (Kwon et al. 2023), section 4.5.

    from course_lib.serving.model import load

    server = Server(load(), n_pages=5, page_size=16)
    for prompt, n_new in (("tile: ", 20), ("online softmax: ", 30), ("key: ", 10)):
        server.submit(prompt, n_new)
    texts = server.run()    # one string of new characters for each request
    for step in server.log:
        print(step.new, step.pages, step.references)

Reading order: what a step records, the server.
"""

from collections import deque
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch

from course_lib.integers import python_integers
from course_lib.kernels import flash_decode
from course_lib.serving.model import decode, encode
from course_lib.serving.paged_cache import OutOfPages, PagePool


@dataclass
class Request:
    """tokens: the prompt's and the new ones. sequence: its name in the pool, None while it waits."""

    number: int
    tokens: list
    n_prompt: int
    n_new: int
    sequence: int | None = None

    @property
    def is_finished(self):
        return len(self.tokens) == self.n_prompt + self.n_new


@dataclass(frozen=True)
class Step:
    """What happened in one step. Requests are known by their numbers, in the order of arrival; so are pages.

    preempted: requests, the newest first. admitted: {request: how many of its tokens were in pages already, those of
    another request}. finished, waiting: requests; waiting are those that wait when the step ends.
    new: {request: its new character}, of every request that ran. copies: [(source, target)], pages that were copied
    before a write, because other requests have the source, too.
    When the model has run, and before finished requests give back their pages: pages: {request: its pages}; lengths:
    {request: how many tokens are in them}; references: [n_pages], how many requests have each page, 0 where it is free.
    """

    preempted: list
    admitted: dict
    finished: list
    waiting: list
    new: dict
    copies: list
    pages: dict
    lengths: dict
    references: list


class Server:
    """Serves requests with a `TinyModel`. The text of each is what `tiny_model.generate` gives.

    n_pages, page_size: of the pool; `flash_decode` takes pages of 16, 32, 64, ... tokens. shares: whether a request
    that begins like a running one gets its pages for as long as they agree, if that is a page or more. attention: what
    computes it, called as `flash_decode` is. Keys and values are on the model's device and in its dtype.
    pool: the PagePool. k_cache, v_cache: [n_layers, n_pages, kv_heads, page_size, head_dim]. waiting, running:
    requests, in the order of arrival. log: a Step for each step so far.
    """

    @python_integers
    def __init__(self, model, *, n_pages, page_size, shares=True, attention=flash_decode):
        self.model, self.shares, self.attention = model, shares, attention
        self.pool = PagePool(n_pages, page_size)
        shape = (model.n_layers, n_pages, model.kv_heads, page_size, model.head_dim)
        self.k_cache, self.v_cache = (model.embedding.weight.new_zeros(shape) for _ in range(2))
        self.waiting, self.running, self.log = deque(), [], []
        self._requests = []

    @python_integers
    def submit(self, prompt, n_new):
        """Queue a request for the n_new characters after `prompt`; returns its number.

        Raises ValueError if the prompt is empty or has characters that the model does not know, if n_new is less than
        1, and if the request would not fit into the pool even if it were alone.
        """
        tokens = encode(prompt)
        if not tokens:
            raise ValueError("prompt is empty; accepted: at least one character")
        if n_new < 1:
            raise ValueError(f"n_new is {n_new}; accepted: whole numbers of at least 1")
        # Nothing is computed from the last character, so its keys are never stored.
        n_stored, n_pages, page_size = len(tokens) + n_new - 1, len(self.pool.references), self.pool.page_size
        if n_stored > n_pages * page_size:
            raise ValueError(
                f"a prompt of {len(tokens)} characters and n_new = {n_new} need room for {n_stored} tokens; the pool "
                f"has {n_pages} pages of {page_size}"
            )
        request = Request(len(self._requests), tokens, len(tokens), n_new)
        self._requests.append(request)
        self.waiting.append(request)
        return request.number

    def run(self):
        """Step until every request is finished; returns the new characters of each, in the order of arrival."""
        while self.waiting or self.running:
            self.step()
        return [decode(request.tokens[request.n_prompt :]) for request in self._requests]

    def step(self):
        """One more character for every running request, and the first for each that is admitted. Returns the Step."""
        copies = []
        places, preempted = self._make_room(copies)
        if self.running:
            self._forward(self.running, places)
        # After a preemption hardly a page is to spare, and whoever took it would be the next to give it up.
        admitted = {} if preempted else self._admit(copies)
        finished = [request for request in self.running if request.is_finished]
        self.log.append(self._record(preempted, admitted, finished, copies))
        for request in finished:
            self.running.remove(request)
            self._drop(request)
        return self.log[-1]

    def _make_room(self, copies):
        """(where each running request's next token goes, the requests that were preempted for it).

        The oldest request is first, and takes pages from the newest. So it always runs, finishes, and another becomes
        the oldest: no request waits for ever.
        """
        places, preempted = [], []
        while len(places) < len(self.running):
            try:
                places.append(self._room(self.running[len(places)], 1, copies))
            except OutOfPages:
                newest = self.running.pop()
                self._drop(newest)
                self.waiting.appendleft(newest)
                preempted.append(newest)
        return places, preempted

    def _admit(self, copies):
        """Start requests, in the order of arrival, while there are pages for their texts: {request: tokens shared}."""
        admitted = {}
        while self.waiting:
            request = self.waiting[0]
            n_shared = self._start(request)
            try:
                place = self._room(request, len(request.tokens) - n_shared, copies)
            except OutOfPages:
                self._drop(request)
                break
            self.running.append(self.waiting.popleft())
            self._forward([request], [place])
            admitted[request.number] = n_shared
        return admitted

    def _start(self, request):
        """Start a sequence in the pool; returns how many of the request's tokens are in its pages already."""
        # A running request's newest token is not stored yet, and of this request, the last one has to be computed.
        alike = {other.sequence: n_alike(request.tokens[:-1], other.tokens[:-1]) for other in self.running}
        donor = max(alike, key=alike.get, default=None)
        if not self.shares or donor is None or alike[donor] < self.pool.page_size:
            request.sequence = self.pool.start()
            return 0
        request.sequence = self.pool.share(donor, alike[donor])
        return alike[donor]

    def _room(self, request, n_tokens, copies):
        """Where the request's next n_tokens go, (pages, rows). Copies pages, and adds them to `copies`."""
        pages, rows, copied = self.pool.append(request.sequence, n_tokens)
        for source, target in copied:
            for cache in (self.k_cache, self.v_cache):
                cache[:, target] = cache[:, source]
        copies += copied
        return pages, rows

    def _drop(self, request):
        self.pool.drop(request.sequence)
        request.sequence = None

    def _forward(self, requests, places):
        """One new token for each request. places: where the keys of its last tokens go, of as many of each request."""
        on_device = {"device": self.model.embedding.weight.device}
        pages, rows = (torch.tensor(np.concatenate(each), **on_device) for each in zip(*places, strict=True))
        table, lengths = (torch.tensor(x, **on_device) for x in self.pool.tables([r.sequence for r in requests]))
        n_new = len(pages) // len(requests)

        def attend(layer, q, k, v):
            k_cache, v_cache = self.k_cache[layer], self.v_cache[layer]
            # [batch, kv_heads, n_new, head_dim] -> [batch * n_new, kv_heads, head_dim]
            k_cache[pages, :, rows] = k.transpose(1, 2).flatten(0, 1)
            v_cache[pages, :, rows] = v.transpose(1, 2).flatten(0, 1)
            return self.attention(q, k_cache, v_cache, lengths, block_table=table)

        tokens = torch.tensor([request.tokens[-n_new:] for request in requests], **on_device)
        positions = lengths[:, None] - n_new + torch.arange(n_new, **on_device)
        logits = self.model(tokens, positions, attend)[:, -1]
        for request, token in zip(requests, logits.argmax(-1).tolist(), strict=True):
            request.tokens.append(token)

    def _record(self, preempted, admitted, finished, copies):
        tables, lengths = self.pool.tables([request.sequence for request in self.running])
        ran = [request.number for request in self.running]
        n_pages = -(-lengths // self.pool.page_size)
        return Step(
            preempted=[request.number for request in preempted],
            admitted=admitted,
            finished=[request.number for request in finished],
            waiting=[request.number for request in self.waiting],
            new={request.number: decode(request.tokens[-1:]) for request in self.running},
            copies=copies,
            pages={number: table[:n].tolist() for number, table, n in zip(ran, tables, n_pages, strict=True)},
            lengths=dict(zip(ran, lengths.tolist(), strict=True)),
            references=list(self.pool.references),
        )


def n_alike(a, b):
    """With how many equal tokens two lists begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
