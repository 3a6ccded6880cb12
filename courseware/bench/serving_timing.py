"""Serving on a GPU: tokens a second of lesson 14's server on pages, beside the same server with PyTorch's attention.

PyTorch's attention takes contiguous caches, as long as the longest text may become. The server has such caches if its
pages are that long: each request then has one page. Nothing else differs between the two.

The character model is so small that a step takes the time of launching its kernels. The wide model has the layers of a
large one, a few of them, with random weights, and prompts of random characters: its caches are what a step reads.
"""

import copy
import itertools
import random
import statistics
import time
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import scaled_dot_product_attention

from course_lib import runtime
from course_lib.serving.model import ALPHABET, TinyModel, generate, load
from course_lib.serving.server import Server
from courseware.bench.accuracy import assert_within_budget, wrong_answers_are_not_timed

PAGE_SIZE = 64
CHECKED_REQUESTS, CHECKED_STEPS, WARM_UP_STEPS = 4, 4, 8


@dataclass(frozen=True)
class Workload:
    """Requests that arrive together, for as many characters each. lengths: of the prompts."""

    model: str
    dtype: torch.dtype
    lengths: tuple
    n_new: int


WORKLOADS = (
    Workload("tiny", torch.float32, tuple(range(16, 144, 4)), 64),
    Workload("wide", torch.float16, (4096,) * 64, 64),
    Workload("wide", torch.float16, tuple(range(128, 8192, 126)), 64),
)
MODELS = {
    "tiny": load,
    "wide": lambda: TinyModel(n_layers=4, width=4096, heads=32, kv_heads=8, head_dim=128),
}


def padded_attention(q, k_cache, v_cache, lengths, *, block_table):
    """PyTorch's attention, called as `flash_decode`, where page i is all there is of sequence i.

    One new token of every sequence, or a prompt, whole, of a single one.
    """
    if q.shape[2] > 1:
        k, v = (cache[block_table[:, 0], :, : q.shape[2]] for cache in (k_cache, v_cache))
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    # Query heads that share keys become rows, so that K and V need not be repeated.
    rows = q.unflatten(1, (k_cache.shape[1], -1)).squeeze(3)
    is_key = torch.arange(k_cache.shape[2], device=q.device) < lengths[:, None]
    o = scaled_dot_product_attention(rows, k_cache, v_cache, attn_mask=is_key[:, None, None, :])
    return o.flatten(1, 2)[:, :, None]


def servers(model, workload, prompts):
    """{"pages": a server on pages, "padded": one on padded caches}, with all prompts submitted."""
    texts = [len(prompt) + workload.n_new for prompt in prompts]
    longest = -(-max(texts) // 128) * 128  # aligned, as PyTorch's kernels want the rows of a mask
    of_pages = {"n_pages": sum(-(-n // PAGE_SIZE) for n in texts), "page_size": PAGE_SIZE}
    of_padded = {"n_pages": len(texts), "page_size": longest, "attention": padded_attention}
    found = {"pages": Server(model, shares=False, **of_pages), "padded": Server(model, shares=False, **of_padded)}
    for server in found.values():
        for prompt in prompts:
            server.submit(prompt, workload.n_new)
    return found


def check_servers(model, workload, prompts):
    """Raise RuntimeError unless both servers are right on some of the prompts, for a few characters each.

    In fp32, their texts must be that of an unpaged, unbatched run. In the workload's dtype, in which two characters may
    be too close to call, the logits of a step must be within the error budget.
    """
    workload, prompts = replace(workload, n_new=CHECKED_STEPS), prompts[:: -(-len(prompts) // CHECKED_REQUESTS)]
    in_fp32, larger = copy.deepcopy(model).float(), torch.float64 if workload.dtype == torch.float32 else torch.float32
    right = [generate(in_fp32, prompt, CHECKED_STEPS) for prompt in prompts]
    for name, server in servers(in_fp32, workload, prompts).items():
        if (texts := server.run()) != right:
            raise RuntimeError(f"wrong answers are not timed: {name}, {workload.model}: {texts}, expected {right}")
    answers = [logits_of_a_step(server) for server in servers(model, workload, prompts).values()]
    exact = logits_of_a_step(servers(in_fp32.to(larger), workload, prompts)["padded"])
    with wrong_answers_are_not_timed(workload.model):
        assert_within_budget("logits", *answers, exact, workload.dtype)


def logits_of_a_step(server):
    """What the server computes after all prompts and one more character, which is the same for all servers."""
    server.step()
    for request in server.running:
        request.tokens[-1] = 0
    found = []
    hook = server.model.register_forward_hook(lambda module, inputs, logits: found.append(logits))
    server.step()
    hook.remove()
    return torch.cat(found)


def median_step_s(contestants):
    """{name: median seconds of a step} of servers that take turns. Each step ends when the host has its characters.

    The first steps are not timed: they compute the prompts, and compile.
    """
    seconds = {name: [] for name in contestants}
    while any(server.waiting or server.running for server in contestants.values()):
        for name, server in contestants.items():
            begin_s = time.perf_counter()
            server.step()
            seconds[name].append(time.perf_counter() - begin_s)
    return {name: statistics.median(each[WARM_UP_STEPS:]) for name, each in seconds.items()}


def served_rows():
    """Serving: tokens a second on pages, beside PyTorch's attention in the same loop on padded caches.

    Of the steps that have every request in their batch.
    """
    for workload in WORKLOADS:
        with torch.device(runtime.device()):
            model = MODELS[workload.model]().to(runtime.device(), workload.dtype).requires_grad_(False)
        characters = random.Random(0).choices(ALPHABET, k=sum(workload.lengths))
        ends = list(itertools.accumulate(workload.lengths))
        prompts = ["".join(characters[end - n : end]) for n, end in zip(workload.lengths, ends, strict=True)]
        check_servers(model, workload, prompts)
        contestants = servers(model, workload, prompts)
        step_s = median_step_s(contestants)
        yield {
            "model": workload.model, "dtype": str(workload.dtype).removeprefix("torch."), "requests": len(prompts),
            "shortest_prompt": min(workload.lengths), "longest_prompt": max(workload.lengths),
            "n_new": workload.n_new, "page_size": PAGE_SIZE, "step_ms": {name: 1e3 * s for name, s in step_s.items()},
            "tokens_per_s": {name: len(prompts) / s for name, s in step_s.items()},
            "cache_bytes": {name: 2 * server.k_cache.nbytes for name, server in contestants.items()},
        }  # fmt: skip
