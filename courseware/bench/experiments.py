"""Lesson 10's experiments on one GPU: standard attention against FlashAttention, the ladder, and fp32 products.

Standard attention is PyTorch's three calls, the scale inside the first: scores, softmax, product with the values.
"""

import itertools

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
            answers = {name: call() for name, call in calls.items()}
            check_answers(answers, inputs[:3] if which == "forward" else inputs)
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
    """Every rung of the forward kernel's ladder, kept and rejected.

    At 16 heads of head_dim 128, fp16, 16384 tokens in sequences of 4096 and of 1024. All rungs take turns. Raises
    RuntimeError, before anything is timed, if the answer of one is wrong.
    """
    from courseware.bench.triton_ladder import RUNGS, run

    for n, causal in itertools.product((4096, 1024), (False, True)):
        shape = {"batch": timing.TOKENS // n, "heads": 16, "n": n, "head_dim": 128}
        q, k, v, _ = timing.random_inputs(*shape.values(), torch.float16)
        contestants = {
            rung.name: lambda rung=rung, qkv=(q, k, v), c=causal: run(rung, *qkv, causal=c) for rung in RUNGS
        }
        exact, _ = exact_attention(*(x[:1, :2] for x in (q, k, v)), causal=causal)
        errors = {}
        for name, call in contestants.items():
            o = call()
            check_answers({name: [o]}, (q, k, v), causal)
            errors[name] = relative_error(o, exact)
        for name, ms in timing.median_ms(contestants).items():
            yield {
                "rung": name, **shape, "causal": causal, "dtype": "float16", "ms": ms,
                "tflops": timing.tflops(ms, **shape, causal=causal), "relative_error": errors[name],
            }  # fmt: skip


# (heads, N, head_dim) of `fp32_rows`.
FP32_SHAPES = ((1, 1024, 128), (1, 8192, 128), (1, 32768, 128), (16, 4096, 128), (16, 4096, 64))
FP32_PEERS = {"sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION, "sdpa_unfused": SDPBackend.MATH}


def fp32_rows():
    """The forward on fp32 inputs beside PyTorch's memory-efficient and unfused kernels: TFLOP/s, and relative errors.

    Errors are those of the first 1,024 queries, against float64.
    """
    for heads, n, head_dim in FP32_SHAPES:
        q, k, v, _ = timing.random_inputs(1, heads, n, head_dim, torch.float32)
        contestants = timing.forward_calls(FP32_PEERS, q, k, v)
        exact, _ = exact_attention(q[:, :, :1024], k, v)
        errors = {name: relative_error(call(), exact) for name, call in contestants.items()}
        times_ms = timing.median_ms(contestants, rounds=10)
        tflops = {name: timing.tflops(ms, n, head_dim, heads=heads) for name, ms in times_ms.items()}
        yield {"heads": heads, "n": n, "head_dim": head_dim, "tflops": tflops, "relative_error": errors}


# Lesson 08's kernel asks for IEEE products. Without these words, Triton rounds fp32 to TF32 on tensor cores.
TF32_EDITS = {
    'tl.dot(q, tl.trans(k), input_precision="ieee")': "tl.dot(q, tl.trans(k))",
    'tl.dot(p.to(v.dtype), v, input_precision="ieee")': "tl.dot(p.to(v.dtype), v)",
}


def precision_errors():
    """Relative errors of lesson 08's kernel on fp32 inputs, with TF32 and with IEEE products.

    In the Frobenius norm, against float64; 3 heads, 128 rows, head_dim 64.
    """
    from course_lib.kernels.plain_forward import flash_forward

    q, k, v, _ = timing.random_inputs(1, 3, 128, 64, torch.float32)
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=q.device)
    exact, _ = exact_attention(q, k, v)
    errors = {}
    for name, edits in (("ieee_relative_error", {}), ("tf32_relative_error", TF32_EDITS)):
        kernel = with_edits(flash_forward, edits, name)
        strides = [stride for x in (q, k, v, o) for stride in x.stride()[1:3]]
        kernel[128 // 64, 3](
            q, k, v, o, lse, *strides, lse.stride(1), 128, 128, 64**-0.5,
            IS_CAUSAL=False, HEAD_DIM=64, BLOCK_M=64, BLOCK_N=64, BLOCK_D=64,
        )  # fmt: skip
        errors[name] = relative_error(o, exact)
    return errors
