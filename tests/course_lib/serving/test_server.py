"""The server: however the pool, the arrivals and the sharing are, the text is that of an unpaged, unbatched run."""

from collections import Counter
from functools import cache, lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib import runtime
from course_lib.kernels import flash_decode
from course_lib.serving.model import causal_attention, decode, encode, generate, load
from course_lib.serving.server import Server
from courseware.bench.accuracy import assert_within_budget, exact_attention

DEVICE = runtime.device()
# Three of them begin with the same 22 characters.
SYSTEM = "tile: a block of rows\n"
PROMPTS = (SYSTEM + "key: ", SYSTEM + "query: ", "tile: ", "score: ", "q", "online softmax: ", SYSTEM + "k")
MOST_NEW = 12


@cache
def model(dtype=torch.float32):
    return load().to(DEVICE, dtype)


@cache
def text(prompt, n_new=MOST_NEW):
    """What `generate` gives; of fewer characters, the beginning."""
    return generate(model(), prompt, MOST_NEW)[:n_new]


@lru_cache(None)
def right_logits(whole, dtype):
    """Of the character after a text."""
    positions = torch.arange(len(whole), device=DEVICE)[None]
    return model(dtype)(torch.tensor([encode(whole)], device=DEVICE), positions, causal_attention)[0, -1]


def gathered(q, k_cache, v_cache, lengths, *, block_table):
    """As `flash_decode`, in PyTorch and for pages of any size: each sequence's pages are put together."""
    outputs = []
    for b, length in enumerate(lengths.tolist()):
        k, v = (cache[block_table[b]].transpose(0, 1).flatten(1, 2)[None, :, :length] for cache in (k_cache, v_cache))
        outputs.append(exact_attention(q[b, None], k, v, causal=True, dtype=q.dtype)[0])
    return torch.cat(outputs)


class Watched(Server):
    """A server that notes each text and the logits computed from it. What nobody has written is NaN."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.k_cache.fill_(torch.nan)
        self.v_cache.fill_(torch.nan)
        self.seen, self.batches = [], []

    def _forward(self, requests, places):
        texts = [decode(request.tokens) for request in requests]
        hook = self.model.register_forward_hook(lambda module, given, logits: logged.append(logits[:, -1]))
        logged = []
        super()._forward(requests, places)
        hook.remove()
        (logits,) = logged
        self.seen += zip(texts, logits, strict=True)
        self.batches.append([request.number for request in requests])


def serve(arrivals, *, attention=gathered, **options):
    """Serve [(step of arrival, prompt, n_new)] to the end, and check all laws; returns the server."""
    server, left = Watched(model(), attention=attention, **options), list(arrivals)
    while left or server.waiting or server.running:
        while left and left[0][0] <= len(server.log):
            server.submit(*left.pop(0)[1:])
        n_batches = len(server.batches)
        step = server.step()
        check_step(server, step, server.batches[n_batches:])
    texts = server.run()
    assert texts == [text(prompt, n_new) for _, prompt, n_new in arrivals]
    assert texts == ["".join(step.new.get(number, "") for step in server.log) for number in range(len(texts))]
    found = torch.stack([logits for _, logits in server.seen])
    plain, exact = (
        torch.stack([right_logits(whole, x) for whole, _ in server.seen]) for x in (torch.float32, torch.float64)
    )
    assert_within_budget("logits", found, plain, exact, torch.float32)
    assert server.pool.references == [0] * options["n_pages"] and len(server.pool.free) == options["n_pages"]
    return server


def check_step(server, step, batches):
    """What a step's record says is what happened."""
    before = server.log[-2] if len(server.log) > 1 else None
    stayed = [number for number in (before.new if before else []) if number not in before.finished + step.preempted]
    admitted = list(step.admitted)
    assert batches == [stayed] * bool(stayed) + [[number] for number in admitted], "one batch, then each prompt"
    assert list(step.new) == stayed + admitted == list(step.pages) == list(step.lengths)
    owners = Counter(page for pages in step.pages.values() for page in pages)
    assert step.references == [owners[page] for page in range(len(step.references))]
    for number, length in step.lengths.items():
        assert len(step.pages[number]) == -(-length // server.pool.page_size)
    assert [request.number for request in server.waiting] == step.waiting
    assert not step.preempted or max(stayed) < min(step.preempted), "only the newest give way"
    assert list(step.new) + step.waiting == sorted([*step.new, *step.waiting]), "first come, first served"
    assert all(n == 0 or n >= server.pool.page_size for n in step.admitted.values())


REQUESTS = st.lists(
    st.tuples(st.integers(0, 15), st.sampled_from(PROMPTS), st.integers(1, MOST_NEW)), min_size=1, max_size=5
)


@settings(max_examples=25, deadline=None)
@given(REQUESTS, st.integers(1, 40), st.integers(0, 8), st.booleans())
def test_the_text_is_the_same_for_any_pool_arrivals_and_sharing(requests, page_size, spare, shares):
    arrivals = sorted(requests, key=lambda request: request[0])
    # What the largest request needs when it is alone.
    least = max(-(-(len(prompt) + n_new - 1) // page_size) for _, prompt, n_new in arrivals)
    serve(arrivals, n_pages=least + spare, page_size=page_size, shares=shares)


ALIKE = [(0, PROMPTS[0], 7), (0, PROMPTS[2], 8), (1, PROMPTS[1], 3), (2, PROMPTS[6], 3)]


@pytest.mark.parametrize("n_pages, shares", ((12, True), (3, False)))
def test_flash_decode_serves_the_same_text(n_pages, shares):
    server = serve(ALIKE, attention=flash_decode, n_pages=n_pages, page_size=16, shares=shares)
    assert any(step.preempted for step in server.log) != shares, "one is preempted where there are few pages"
    assert any(step.copies for step in server.log) == shares


def test_the_characters_that_are_not_shared():
    """A running text's newest one, whose keys are not stored yet; and a prompt's last one, from which text follows."""
    prompt = PROMPTS[2]
    server = serve([(0, prompt, 8), (0, prompt + text(prompt, 5), 3)], n_pages=8, page_size=4)
    first = server.log[0]
    assert first.admitted == {0: 0, 1: len(prompt)} and first.lengths[0] == len(prompt)
    # A page and two characters are the same. The page of the two is copied, because what follows them differs.
    (copied,) = first.copies
    assert first.pages[0][0] == first.pages[1][0] and (first.pages[0][1], first.pages[1][1]) == copied
    server = serve([(0, PROMPTS[0], 3), (0, PROMPTS[0], 3), (0, PROMPTS[6], 3)], n_pages=30, page_size=4)
    assert server.log[0].admitted == {0: 0, 1: len(PROMPTS[0]) - 1, 2: len(PROMPTS[6]) - 1}


def test_a_second_run_goes_on_with_the_same_pool():
    server = Watched(model(), n_pages=3, page_size=np.uint8(16), attention=gathered)
    assert server.run() == [] and server.step().new == {} and server.batches == [], "nothing is asked for"
    for expected, prompt in enumerate(PROMPTS[:3]):
        assert server.submit(prompt, 3) == expected
        assert server.run() == [text(done, 3) for done in PROMPTS[: expected + 1]]


def test_bad_requests_are_named_and_not_queued():
    server = Server(model(), n_pages=2, page_size=16)
    for prompt, n_new, message in [
        ("", 3, "prompt is empty"),
        ("Tile: ", 3, "the text contains 'T'; accepted: .*abcdef"),
        ("tile: ", 0, "n_new is 0; accepted: whole numbers of at least 1"),
        ("tile: ", 28, "a prompt of 6 characters and n_new = 28 need room for 33 tokens; the pool has 2 pages of 16"),
    ]:
        with pytest.raises(ValueError, match=message):
            server.submit(prompt, n_new)
    assert not server.waiting and server.run() == []
