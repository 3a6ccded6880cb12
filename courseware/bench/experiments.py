"""Experiments on one GPU: standard attention against FlashAttention, lesson 11's ladder, products and kernels in fp32.

Standard attention is PyTorch's three calls, the scale inside the first: scores, softmax, product with the values.
"""

import itertools
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from course_lib import kernels
from courseware.bench import timing
from courseware.bench.accuracy import check_answers, exact_attention, relative_error
from courseware.editing import with_edits

HEADS, HEAD_DIM = 16, 64
# GPT-2 medium's attention as the first FlashAttention paper's Figure 2 has it.
GPT2_MEDIUM = {"batch": 64, "heads": 16, "n": 1024, "head_dim": 64}


def standard_attention(q, k, v):
    """softmax(q k^T / sqrt(d)) v with the score matrix in memory, in three calls. [batch, heads, n, d], one dtype."""
    flat_q, flat_k, flat_v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.baddbmm(q.new_empty(()), flat_q, flat_k.mT, beta=0, alpha=q.shape[-1] ** -0.5)
    return torch.bmm(torch.softmax(scores, dim=-1), flat_v).view_as(q)


# Each is called with q, k and v, not causal, where the caller has chosen PyTorch's backend.
ATTENTION = {
    "standard": standard_attention, "flash": kernels.flash_attention, "sdpa_flash": scaled_dot_product_attention
}  # fmt: skip


def one_pass(attention, which, q, k, v, do):
    """A callable. which: "forward" returns [o]; "both", forward and backward, the gradients of q, k and v."""

    def call():
        with torch.set_grad_enabled(which == "both"):
            o = attention(q, k, v)
            return torch.autograd.grad(o, (q, k, v), do) if which == "both" else [o]

    return call


def standard_rows():
    """Standard attention against FlashAttention over the lengths: time and peak memory.

    Time with a cold L2, time of one of 20 back-to-back calls, and peak bytes over inputs and results. Back-to-back
    calls take as long as the slower of host and GPU. Where kernels are short, that is the host.
    """
    shapes = [{"batch": 1, "heads": HEADS, "n": 2**i, "head_dim": HEAD_DIM} for i in range(6, 15)] + [GPT2_MEDIUM]
    # Entered once: entering it in every call would add the host's time to back-to-back calls.
    with sdpa_kernel(timing.PEERS["sdpa_flash"]):
        for shape, which in itertools.product(shapes, ("forward", "both")):
            inputs = timing.random_inputs(*shape.values(), torch.float16, differentiable=True)
            calls = {name: one_pass(method, which, *inputs) for name, method in ATTENTION.items()}
            check_answers({name: call() for name, call in calls.items()}, inputs[:3] if which == "forward" else inputs)
            times_ms = timing.median_ms(calls, rounds=20)
            back_to_back_s = timing.back_to_back_s(calls, calls=20, wait=True)
            for name, call in calls.items():
                yield {
                    "method": name, "pass": which, **shape, "causal": False, "dtype": "float16",
                    "ms": times_ms[name],
                    "train_ms": 1e3 * back_to_back_s[name],  # the committed record's name for it
                    "peak_bytes": timing.peak_bytes(call),
                }  # fmt: skip


def ladder_rows():
    """Every rung of the forward kernel's ladder, kept and rejected."""
    from courseware.bench.triton_ladder import RUNGS

    shapes = [(timing.TOKENS // n, 16, n, 128, causal) for n in (4096, 1024) for causal in (False, True)]
    return timing.ladder_rows({rung.name: rung for rung in RUNGS}, shapes, torch.float16)


FP32_PEERS = {"sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION, "sdpa_unfused": SDPBackend.MATH}
# (heads, M, N, d). Several heads are as many launches of a CUDA kernel, one after the other.
CUDA_SHAPES = (
    *((1, n, n, d) for d in (64, 128) for n in (1024, 4096, 8192, 32768)),
    (16, 4096, 4096, 64), (16, 4096, 4096, 128),
    *((1, m, 32768, 128) for m in (1, 16, 64, 256)),
)  # fmt: skip
# 16,896 queries are a block of 128 for each of an H200's 132 multiprocessors; 1,024 are eight.
CUDA_LADDER_SHAPES = ((16896, 8192, 128), (1024, 1024, 128))


def cuda_rows():
    """fp32: lesson 12's CUDA kernels and the Triton one beside PyTorch's, and each rung of the former's ladder"""
    from courseware.bench.cuda_ladder import rungs

    for heads, M, N, d in CUDA_SHAPES:
        inputs = timing.random_inputs(1, heads, (M, N), d, torch.float32)[:3]
        calls = timing.forward_calls(FP32_PEERS, *inputs)
        calls["triton"] = calls["ours"]
        # "keys split", the last rung that was kept, is what `cuda.solve` launches.
        for name, rung in (("ours", "keys split"), ("plain", "plain")):
            calls[name] = partial(rungs()[rung].launch, *inputs)
        clock = partial(timing.median_ms, rounds=6 if M * N > 2**28 else 12)
        found = timing.compare(calls, inputs, checked=(), clock=clock)
        yield {"heads": heads, "m": M, "n": N, "head_dim": d, **found}
    clock = partial(timing.median_ms, rounds=10)
    shapes = [(1, 1, (M, N), d, False) for M, N, d in CUDA_LADDER_SHAPES]
    for row in timing.ladder_rows(rungs(), shapes, torch.float32, checked=(), clock=clock):
        m, n = row["n"]
        yield {
            "rung": row["rung"], "m": m, "n": n, "head_dim": row["head_dim"], "ms": row["ms"],
            "speed_tflops": row["tflops"], "relative_error": row["relative_error"],
        }  # fmt: skip


# Lesson 08's kernel asks for IEEE products. Without these words, Triton rounds fp32 to TF32 on tensor cores.
TF32_EDITS = {
    'tl.dot(q, tl.trans(k), input_precision="ieee")': "tl.dot(q, tl.trans(k))",
    'tl.dot(p.to(v.dtype), v, input_precision="ieee")': "tl.dot(p.to(v.dtype), v)",
}


def precision_errors():
    """Relative errors of lesson 08's kernel on fp32 inputs, with TF32 and with IEEE products.

    In the Frobenius norm, against float64; 3 heads, 128 rows, head_dim 64.
    """
    from course_lib.kernels.plain_forward import flash_forward, plain_attention

    q, k, v, _ = timing.random_inputs(1, 3, 128, 64, torch.float32)
    exact, _ = exact_attention(q, k, v)
    errors = {}
    for name, edits in (("ieee_relative_error", {}), ("tf32_relative_error", TF32_EDITS)):
        kernel = with_edits(flash_forward, edits, name)
        o, _ = plain_attention(q, k, v, block_q=64, block_k=64, kernel=kernel)
        errors[name] = relative_error(o, exact)
    return errors
