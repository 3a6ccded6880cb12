"""Decoding on a GPU: how fast K and V are read, beside PyTorch's kernels and a plain read of the same memory.

`ncu` runs this module as a program, as it runs `counters`.
"""

import contextlib
import itertools

import torch
from torch.nn.attention import sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from course_lib import runtime, traffic
from course_lib.kernels import flash_attention, flash_decode
from course_lib.kernels.decode import plan
from course_lib.kernels.launch import tensor_meta
from courseware.bench import counters, timing
from courseware.bench.accuracy import check_attention, exact_attention, relative_error, wrong_answers_are_not_timed
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
# Attention as in lesson 04, which rounds its scores to bf16 in memory. Of its error nothing is asked.
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
    _, batch, _, n_keys, _ = kv.shape
    table = torch.randperm(batch * n_keys // page_size, device=kv.device).view(batch, -1)
    pages = torch.empty_like(kv).view(2, table.numel(), kv.shape[2], page_size, HEAD_DIM)
    pages[:, table] = kv.unflatten(3, (-1, page_size)).transpose(2, 3)
    return *pages, table.int()


def standard_attention(q, k, v):
    """A single new query, with three launches that write their results. Heads that share keys are rows of a product."""
    rows = q.unflatten(1, (k.shape[1], -1)).squeeze(3)
    scores = torch.matmul(rows, k.transpose(2, 3)) * HEAD_DIM**-0.5
    return torch.matmul(scores.softmax(-1), v).flatten(1, 2)[:, :, None]


def calls_of(q, kv, lengths):
    """{name: callable} of what is ours, of attention whose scores go to memory, and of the plain read."""
    k, v = kv
    calls = {
        "ours": lambda: flash_decode(q, k, v, lengths),
        "flash_attention": lambda: flash_attention(q, k, v, causal=True),
        "unsplit": lambda: flash_decode(q, k, v, lengths, num_splits=1),
    }
    if q.shape[2] == 1:
        calls[STANDARD] = lambda: standard_attention(q, k, v)
    for page_size in PAGE_SIZES:
        *pages, table = in_pages(kv, page_size)
        calls[f"paged_{page_size}"] = lambda pages=pages, table=table: flash_decode(
            q, *pages, lengths, block_table=table
        )
    return calls | {READ: lambda: kv.view(torch.float32).sum()}


def peer_call(q, kv):
    """PyTorch's attention, with whichever backend the caller has chosen."""
    # A single query sees every key, with the mask or without.
    mask = causal_lower_right(q.shape[2], kv.shape[3]) if q.shape[2] > 1 else None
    return lambda: scaled_dot_product_attention(q, *kv, attn_mask=mask, enable_gqa=True)


def with_backend(backend, call):
    def chosen():
        with sdpa_kernel(backend):
            return call()

    return chosen


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


def errors_of(answers, q, kv):
    """{name: relative error} against float64, the largest of the first and the last sequence.

    Raises RuntimeError unless all of our kernels' answers keep the error budget: wrong answers are not timed.
    """
    errors = dict.fromkeys(answers, 0.0)
    for one in (slice(1), slice(-1, None)):
        inputs = q[one], kv[0, one], kv[1, one]
        exact, _ = exact_attention(*inputs, causal=True)
        for name, o in answers.items():
            errors[name] = max(errors[name], relative_error(o[one], exact))
            if name not in PEERS and name != STANDARD:
                with wrong_answers_are_not_timed(f"{name}, {list(kv.shape)}"):
                    check_attention(o[one], *inputs, causal=True)
    return errors


def requested(q, kv, splits):
    """The closed form: `traffic.decode` of full caches."""
    _, batch, kv_heads, n_keys, _ = kv.shape
    return traffic.decode([n_keys] * batch, HEAD_DIM, heads=q.shape[1], kv_heads=kv_heads, splits=splits)


def splits_of(q, kv, lengths):
    """How many programs share the keys of a sequence in a call of `flash_decode`."""
    metas = map(tensor_meta, (q, *kv, lengths))
    how = dict(causal=True, scale=1.0, window_left=None, store_lse=False, num_splits=None, config=None)
    return plan(*metas, None, runtime.capability(q.device), runtime.multiprocessors(q.device), **how)[2]


def compared(*shape, n_new=1):
    """One row: GB/s of K and V. A batch of one is also timed in back-to-back calls, and replayed from a CUDA graph."""
    q, kv, lengths = random_case(*shape, n_new)
    calls, peer, missing = calls_of(q, kv, lengths), peer_call(q, kv), []
    if shape[0] == 1:
        calls["graph"] = replayed(calls["ours"])
    answers = {name: call() for name, call in calls.items() if name != READ}
    for name, backend in PEERS.items():
        try:
            answers[name] = with_backend(backend, peer)()
            calls[name] = with_backend(backend, peer)
        except RuntimeError:  # this PyTorch has no such kernel for these inputs
            missing.append(name)
    errors = errors_of(answers, q, kv)
    times_ms = timing.median_ms(calls)
    splits = splits_of(q, kv, lengths)
    by_tensor = requested(q, kv, splits).by_tensor
    kv_bytes = by_tensor["K"].read_bytes + by_tensor["V"].read_bytes
    row = dict(zip(("batch", "heads", "kv_heads", "n"), shape, strict=True)) | {
        "n_new": n_new, "head_dim": HEAD_DIM, "dtype": "bfloat16", "splits": splits, "kv_bytes": kv_bytes,
        "missing": missing, "relative_error": errors, "ms": times_ms,
        "gb_per_s": {name: 1e-6 * kv_bytes / ms for name, ms in times_ms.items()},
    }  # fmt: skip
    if shape[0] == 1:
        latency_s = {}
        for name in answers:
            # The backend is entered once and not in every call, because choosing it takes the host's time.
            with sdpa_kernel(PEERS[name]) if name in PEERS else contextlib.nullcontext():
                call = peer if name in PEERS else calls[name]
                latency_s |= timing.back_to_back_s({name: call}, calls=100, wait=True)
        row["back_to_back_us"] = {name: 1e6 * seconds for name, seconds in latency_s.items()}
    return row


def decode_rows():
    """Decoding in bf16, contiguous and paged, beside PyTorch's kernels and a plain read: GB/s and relative errors"""
    for shape in SHAPES:
        yield compared(*shape)
    yield compared(*SPECULATIVE_SHAPE, n_new=SPECULATIVE_TOKENS)


COUNTED = ("ours", *(f"paged_{page_size}" for page_size in PAGE_SIZES), READ)


def counter_rows():
    """Bytes of decoding by the GPU's own counters, beside the closed form; needs Nsight Compute's ncu on the path"""
    counted = counters.counted_by_ncu(__name__, counters.COUNTERS)
    for (shape, method), sums in zip(itertools.product(SHAPES, COUNTED), counted, strict=True):
        case = random_case(*shape)
        splits = splits_of(*case)
        closed_form = requested(*case[:2], splits)
        yield {
            "method": method, **dict(zip(("batch", "heads", "kv_heads", "n"), shape, strict=True)),
            "head_dim": HEAD_DIM, "dtype": "bfloat16", "splits": splits,
            "requested_read_bytes": closed_form.read_bytes, "requested_write_bytes": closed_form.write_bytes,
            **counters.in_bytes(sums),
        }  # fmt: skip


def cases():
    """The calls that ncu watches."""
    for shape in SHAPES:
        calls = calls_of(*random_case(*shape))
        yield from (calls[method] for method in COUNTED)


if __name__ == "__main__":
    counters.run_profiled(cases())
