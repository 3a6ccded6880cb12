"""Serving: requests come and go, run in one batch, and keep their keys and values in pages of one pool.

In each step, every running request gets one more character out of one call of the model, however long its text is
(continuous batching: Yu et al., "Orca", 2022). Requests wait in the order of their arrival until the pool has pages for
their prompts. A prompt that begins like the text of a running request shares its pages. When no page is left for a next
character, the request that came last is preempted: its pages become free, and it waits to be computed again, as in
PagedAttention (Kwon et al. 2023), section 4.5.

    from course_lib import serving, tiny_model

    server = serving.Server(tiny_model.load(), n_pages=8, page_size=16)
    for prompt, n_new in (("the softmax of ", 20), ("a page ", 30), ("the softmax is ", 10)):
        server.submit(prompt, n_new)
    texts = server.run()        # one string of new characters for each request
    for step in server.log:
        print(step.new, step.pages, step.references)

Reading order: what a step records, the server.
"""

from collections import deque
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch

from course_lib.kernels import flash_decode
from course_lib.paged_cache import OutOfPages, PagePool
from course_lib.tiny_model import decode, encode


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

    preempted, admitted, finished: requests. waiting: those that wait when the step ends.
    new: {request: its new character}, of every request that ran. shared: {admitted request: how many of its tokens were
    in pages already, those of another request}. copies: [(source, target)], pages that were copied before a write,
    because other requests have the source, too.
    When the model has run, and before finished requests give back their pages: pages: {request: its pages}; lengths:
    {request: how many tokens are in them}; references: [n_pages], how many requests have each page, 0 where it is free.
    """

    preempted: list
    admitted: list
    finished: list
    waiting: list
    new: dict
    shared: dict
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

    def __init__(self, model, *, n_pages, page_size, shares=True, attention=flash_decode):
        self.model, self.shares, self.attention = model, shares, attention
        self.pool = PagePool(n_pages, page_size)
        shape = (model.n_layers, n_pages, model.kv_heads, page_size, model.head_dim)
        self.k_cache, self.v_cache = (model.embedding.weight.new_zeros(shape) for _ in range(2))
        self.waiting, self.running, self.log = deque(), [], []
        self._requests = []

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
        copies, preempted, places, admitted, shared = [], [], [], [], {}
        for request in list(self.running):
            # The oldest first: only those behind it give way to a request, so each is the oldest one day, and finishes.
            while request in self.running:
                try:
                    places.append(self._room(request, 1, copies))
                    break
                except OutOfPages:
                    preempted.append(self._preempt())
        if self.running:
            self._forward(self.running, places)
        # After a preemption there are hardly pages to spare: who was preempted now waits for the next step.
        while self.waiting and not preempted:
            request = self.waiting[0]
            n_shared = self._share(request)
            try:
                place = self._room(request, len(request.tokens) - n_shared, copies)
            except OutOfPages:
                self._drop(request)
                break
            self.running.append(self.waiting.popleft())
            self._forward([request], [place])
            admitted.append(request)
            if n_shared:
                shared[request.number] = n_shared
        finished = [request for request in self.running if request.is_finished]
        self.log.append(self._record(preempted, admitted, finished, shared, copies))
        for request in finished:
            self.running.remove(request)
            self._drop(request)
        return self.log[-1]

    def _share(self, request):
        """Start a sequence in the pool; returns how many of the request's tokens are in its pages already."""
        # Each running request's newest token is not stored yet; and a request needs one token to compute.
        agree, donor = max(
            ((agreeing(request.tokens[:-1], other.tokens[:-1]), other) for other in self.running if self.shares),
            key=lambda pair: pair[0],
            default=(0, None),
        )
        if agree < self.pool.page_size:
            request.sequence = self.pool.start()
            return 0
        request.sequence = self.pool.share(donor.sequence, agree)
        return agree

    def _room(self, request, n_tokens, copies):
        """Where the request's next n_tokens go, (pages, rows). Copies pages, and adds them to `copies`."""
        pages, rows, copied = self.pool.append(request.sequence, n_tokens)
        for source, target in copied:
            for cache in (self.k_cache, self.v_cache):
                cache[:, target] = cache[:, source]
        copies += copied
        return pages, rows

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

    def _preempt(self):
        """Take its pages from the running request that came last, and let it wait; returns it."""
        request = self.running.pop()
        self._drop(request)
        self.waiting.appendleft(request)
        return request

    def _drop(self, request):
        self.pool.drop(request.sequence)
        request.sequence = None

    def _record(self, preempted, admitted, finished, shared, copies):
        tables, lengths = self.pool.tables([request.sequence for request in self.running])
        ran = [request.number for request in self.running]
        return Step(
            *([request.number for request in each] for each in (preempted, admitted, finished, self.waiting)),
            new={request.number: decode(request.tokens[-1:]) for request in self.running},
            shared=shared,
            copies=copies,
            pages={
                number: table[: -(-length // self.pool.page_size)].tolist()
                for number, table, length in zip(ran, tables, lengths, strict=True)
            },
            lengths=dict(zip(ran, lengths.tolist(), strict=True)),
            references=list(self.pool.references),
        )


def agreeing(a, b):
    """How many tokens two lists begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
