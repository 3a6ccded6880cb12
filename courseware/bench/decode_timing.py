"""Decoding on a GPU: how fast K and V are read, beside PyTorch's kernels and a plain read of the same memory."""

import contextlib
from functools import partial

import torch
from torch.nn.attention import sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from course_lib import runtime, traffic
from course_lib.kernels import flash_attention, flash_decode
from course_lib.kernels.decode import plan
from course_lib.kernels.launch import tensor_meta
from courseware.bench import timing
from courseware.bench.accuracy import check_answers
from courseware.bench.experiments import standard_attention
from courseware.bench.timing import PEERS

# (batch, heads, kv_heads, keys), in bf16.
SHAPES = (
    (1, 32, 8, 8192), (1, 32, 8, 65_536), (16, 32, 8, 8192), (16, 64, 8, 16_384), (64, 32, 8, 2048), (8, 32, 32, 8192)
)  # fmt: skip
HEAD_DIM = 128
PAGE_SIZES = (16, 64, 256)
# What speculative decoding asks for: some tokens that a smaller model has guessed, in one call.
SPECULATIVE_SHAPE, SPECULATIVE_TOKENS = (16, 32, 8, 8192), 4
READ = "read"  # every byte of K and V, once
# Attention as in lesson 04, in three launches: it rounds its scores to bf16 in memory. Of its error nothing is asked.
STANDARD = "standard"


def random_case(batch, heads, kv_heads, n_keys, n_new=1, device="cuda"):
    """q [batch, heads, n_new, HEAD_DIM]; kv [2, batch, kv_heads, n_keys, HEAD_DIM]; lengths, of full caches."""
    q, kv = (
        torch.randn(shape, device=device, dtype=torch.bfloat16)
        for shape in ((batch, heads, n_new, HEAD_DIM), (2, batch, kv_heads, n_keys, HEAD_DIM))
    )
    return q, kv, torch.full((batch,), n_keys, dtype=torch.int32, device=device)


def in_pages(kv, page_size):
    """(k_pages, v_pages, block_table): copies of the caches in kv, in pages of random order."""
    _, batch, kv_heads, n_keys, head_dim = kv.shape
    table = torch.randperm(batch * n_keys // page_size, device=kv.device).view(batch, -1)
    pages = torch.empty_like(kv).view(2, table.numel(), kv_heads, page_size, head_dim)
    pages[:, table] = kv.unflatten(3, (-1, page_size)).transpose(2, 3)
    return *pages, table.int()


def calls_of(q, kv, lengths):
    """{name: callable} of what is ours, of attention whose scores go to memory, and of the plain read."""
    k, v = kv
    calls = {
        "ours": lambda: flash_decode(q, k, v, lengths),
        "flash_attention": lambda: flash_attention(q, k, v, causal=True),
        "unsplit": lambda: flash_decode(q, k, v, lengths, num_splits=1),
    }
    if q.shape[2] == 1:
        rows = q.unflatten(1, (k.shape[1], -1)).squeeze(3)  # heads that share keys
        calls[STANDARD] = lambda: standard_attention(rows, k, v).flatten(1, 2)[:, :, None]
    for page_size in PAGE_SIZES:
        *pages, table = in_pages(kv, page_size)
        calls[f"paged_{page_size}"] = lambda pages=pages, table=table: flash_decode(
            q, *pages, lengths, block_table=table
        )
    return calls | {READ: lambda: kv.view(torch.float32).sum()}


def replayed(call):
    """A callable that replays the call from a CUDA graph."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = call()

    def replay():
        graph.replay()
        return o

    return replay


def row_of(q, kv, lengths):
    """(what a row says of a shape, the closed form: `traffic.decode` of full caches)."""
    (batch, heads, *_), (kv_heads, n_keys) = q.shape, kv.shape[2:4]
    how = dict(causal=True, scale=1.0, window_left=None, store_lse=False, num_splits=None, config=None)
    metas, gpu = map(tensor_meta, (q, *kv, lengths)), (runtime.capability(q.device), runtime.multiprocessors(q.device))
    _, _, splits, *_ = plan(*metas, None, None, None, *gpu, **how)
    form = traffic.decode([n_keys] * batch, HEAD_DIM, heads=heads, kv_heads=kv_heads, splits=splits)
    shape = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "n": n_keys}
    return shape | {"head_dim": HEAD_DIM, "dtype": "bfloat16", "splits": splits}, form


def compared(*shape, n_new=1):
    """One row: GB/s of K and V. A batch of one is also timed in back-to-back calls, and replayed from a CUDA graph."""
    case = random_case(*shape, n_new)
    q, kv, _ = case
    # A single query sees every key, with the mask or without.
    mask = causal_lower_right(n_new, kv.shape[3]) if n_new > 1 else None
    peer = partial(scaled_dot_product_attention, q, *kv, attn_mask=mask, enable_gqa=True)
    calls, missing = calls_of(*case), []
    if shape[0] == 1:
        calls["graph"] = replayed(calls["ours"])
    for name, backend in PEERS.items():
        chosen = timing.with_backend(backend, peer)
        try:
            chosen()
            calls[name] = chosen
        except RuntimeError:  # this PyTorch has no such kernel for these inputs
            missing.append(name)
    answers = {name: [call()] for name, call in calls.items() if name != READ}
    ours = answers.keys() - PEERS.keys() - {STANDARD}
    errors = check_answers(answers, (q, *kv), causal=True, checked=ours)
    times_ms = timing.median_ms(calls)
    row, form = row_of(*case)
    kv_bytes = form.by_tensor["K"].read_bytes + form.by_tensor["V"].read_bytes
    row |= {
        "n_new": n_new, "kv_bytes": kv_bytes, "missing": missing, "relative_error": errors, "ms": times_ms,
        "gb_per_s": {name: 1e-6 * kv_bytes / ms for name, ms in times_ms.items()},
    }  # fmt: skip
    if shape[0] == 1:
        row["back_to_back_us"] = {}
        for name in answers:
            # The backend is entered once and not in every call, because choosing it takes the host's time.
            with sdpa_kernel(PEERS[name]) if name in PEERS else contextlib.nullcontext():
                call = peer if name in PEERS else calls[name]
                latency_s = timing.back_to_back_s({name: call}, calls=100, wait=True)
            row["back_to_back_us"][name] = 1e6 * latency_s[name]
    return row


def decode_rows():
    """Decoding in bf16, contiguous and paged, beside PyTorch's kernels and a plain read: GB/s and relative errors"""
    for shape in SHAPES:
        yield compared(*shape)
    yield compared(*SPECULATIVE_SHAPE, n_new=SPECULATIVE_TOKENS)


def counted_cases():
    """(row, call) of each case of `counters.decode_rows`, in the order in which they run."""
    for shape in SHAPES:
        case = random_case(*shape)
        calls, (row, form) = calls_of(*case), row_of(*case)
        requested = {"requested_read_bytes": form.read_bytes, "requested_write_bytes": form.write_bytes}
        for method in ("ours", *(f"paged_{page_size}" for page_size in PAGE_SIZES), READ):
            yield {"method": method, **row, **requested}, calls[method]
