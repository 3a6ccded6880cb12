"""Training on a GPU with one attention after another: the loss step by step, and the time and the memory of a step.

The model is lesson 14's, grown. Weights are fp32, matrix products and attention bf16 by autocast. A step always has the
same number of tokens, cut into sequences: the longer they are, the more of its time is attention's.

Without a GPU, everything is small, fp32, and times are the CPU's.
"""

import re
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from course_lib import runtime
from course_lib.kernels import flash_attention
from course_lib.kernels.plain_backward import differentiable_attention
from course_lib.serving.model import ALPHABET, TinyModel, causal_attention, encode, generate
from course_lib.serving.server import Server
from course_lib.serving.training import mean_loss, train, train_step, windows
from courseware.bench import timing
from courseware.bench.accuracy import relative_error
from courseware.bench.ring_timing import attempt
from courseware.glossary import TERMS

EXERCISES = Path(__file__).parents[1] / "exercises"
PROMPTS = ("online softmax: ", "each program ", "the kernel ")
MODEL = {"n_layers": 8, "width": 1024, "heads": 8, "kv_heads": 2, "head_dim": 128}
TOKENS, LENGTHS = 32_768, (1024, 2048, 4096, 8192, 16_384, 32_768)  # of a step, of a sequence
CURVE = {"steps": 200, "batch": 4, "length": 2048, "learning_rate": 3e-4, "max_norm": 1.0}
MATMUL = re.compile("gemm|nvjet|cutlass|xmma|cublas", re.IGNORECASE)  # names of matrix products' kernels


def known(text):
    """A text in lower case, in the characters of ALPHABET; None where much of it is code, symbols or a list."""
    words = " ".join(text.lower().replace("`", "").replace("*", "").split())
    kept = "".join(filter(ALPHABET.__contains__, words))
    return kept if len(kept) > 0.97 * len(words) and not words.startswith("- ") else None


def prose(paths):
    """The paragraphs of MyST files, without code, formulas, tables and headings, in the characters of ALPHABET."""
    found = []
    for path in sorted(paths):
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"\A---\n.*?^---$|^```.*?^```$|\$\$.*?\$\$|^[|#+].*?$", "", text, flags=re.S | re.M)
        text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)  # a link's words without its address
        found += [known(paragraph) for paragraph in re.split(r"\n\s*\n", text)]
    return list(dict.fromkeys(text for text in found if text and len(text) > 40))


def entries():
    """The glossary's, as "word: meaning"."""
    return list(filter(None, (known(f"{word}: {meaning}") for word, (_, meaning) in TERMS.items())))


def eager(layer, q, k, v):
    """Causal attention with the matrix of scores and that of weights, a softmax in fp32 between them."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
    return torch.softmax(scores, -1, dtype=torch.float32).to(v.dtype) @ v


def values(layer, q, k, v):
    """No attention: each token gets its own value, so that a step takes the time of all the rest."""
    return v.repeat_interleave(q.shape[1] // k.shape[1], dim=1)


def by_backend(backend, layer, q, k, v):
    """PyTorch's attention by one of its kernels."""
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def contestants():
    """{name: attend}, each as `TinyModel.forward` takes it. Positions turn q and k in fp32: they get v's dtype back."""
    peers = timing.PEERS if runtime.mode() == "gpu" else {}
    block = 64 if runtime.mode() == "gpu" else 32
    plain = partial(differentiable_attention, causal=True, block_q=block, block_k=block)
    found = {
        "ours": lambda layer, q, k, v: flash_attention(q, k, v, causal=True),
        "plain": lambda layer, q, k, v: plain(q, k, v),
        **{name: partial(by_backend, backend) for name, backend in peers.items()},
        "sdpa": causal_attention,
        "eager": eager,
        "values": values,
    }
    return {
        name: lambda layer, q, k, v, attend=attend: attend(layer, q.to(v.dtype), k.to(v.dtype), v)
        for name, attend in found.items()
    }


def new_model():
    """The same weights each time."""
    torch.manual_seed(0)
    with torch.device(runtime.device()):
        return TinyModel(**MODEL)


def gradient(tokens, following, attend, dtype):
    """(the loss, the gradient of all weights as one vector in float64). dtype: torch.float64, or as `train_step`'s."""
    model = new_model().to(torch.float64 if dtype == torch.float64 else torch.float32)
    with torch.autocast(runtime.device(), torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = mean_loss(model, tokens, following, attend)
    loss.backward()
    return loss.item(), torch.cat([weight.grad.double().flatten() for weight in model.parameters()])


def check_rows(batch, methods, dtype):
    """The first step's loss and gradient of each method: how far they are from those of float64."""
    exact_loss, exact = gradient(*batch, causal_attention, torch.float64)

    def errors(attend):
        loss, found = gradient(*batch, attend, dtype)
        return {"loss_error": abs(loss - exact_loss), "gradient_error": relative_error(found, exact)}

    rows = [attempt({"kind": "check", "method": name}, partial(errors, attend)) for name, attend in methods.items()]
    of = {row["method"]: row.get("gradient_error") for row in rows}
    if not of["ours"] < 2 * of["eager"]:
        raise RuntimeError(f"wrong gradients are not timed: {of}")
    return rows


def step_row(batch, attend, dtype, seconds=0.4):
    """ms of a step, the median of those within `seconds`, three at least; peak memory; ms of the kernels.

    matmul_ms: of products by name, so that the "values" row has them alone; FlashAttention-2's kernels count, too.
    """
    on_gpu = runtime.mode() == "gpu"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, fused=on_gpu)
    step = partial(train_step, model, optimizer, *batch, attend, dtype)
    step()  # compiles, and makes the optimizer's moments
    wait()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    ms, end_s = [], time.perf_counter() + seconds
    while len(ms) < 3 or time.perf_counter() < end_s:
        begin_s = time.perf_counter()
        step()
        wait()
        ms.append(1e3 * (time.perf_counter() - begin_s))
    if not on_gpu:
        return {"ms": statistics.median(ms)}
    peak_bytes = torch.cuda.max_memory_allocated()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step()
        wait()
    matmul_ms = other_ms = 0.0
    for event in profiler.key_averages():
        is_matmul = MATMUL.search(event.key)
        matmul_ms += event.self_device_time_total / 1e3 if is_matmul else 0.0
        other_ms += 0.0 if is_matmul else event.self_device_time_total / 1e3
    return {"ms": statistics.median(ms), "peak_bytes": peak_bytes, "matmul_ms": matmul_ms, "other_kernels_ms": other_ms}


def served(model):
    """What lesson 14's server writes from pages, and what the model's own greedy loop writes."""
    server = Server(model.requires_grad_(False), n_pages=64, page_size=16)
    for prompt in PROMPTS:
        server.submit(prompt, 60)
    alone = {prompt: generate(model, prompt, 60) for prompt in PROMPTS}
    return {"server": dict(zip(PROMPTS, server.run(), strict=True)), "alone": alone}


def training_rows():
    """Training with each attention: curves of the loss, and a step's time and memory by the length of a sequence"""
    device, dtype = runtime.device(), torch.bfloat16 if runtime.mode() == "gpu" else None
    text = torch.tensor(encode("\n".join(prose(EXERCISES.glob("*/*.md")) + entries())), device=device)
    methods = contestants()
    attending = {name: attend for name, attend in methods.items() if name not in ("values", "sdpa")}
    weights = sum(weight.numel() for weight in TinyModel(**MODEL).parameters())
    yield {"kind": "model", **MODEL, "weights": weights, "characters": len(text), "tokens": TOKENS, "curve": CURVE}
    batch = windows(text, torch.arange(2, device=device) * CURVE["length"], CURVE["length"])
    yield from check_rows(batch, attending, dtype)
    for name, attend in attending.items():
        model = new_model()
        torch.manual_seed(1)
        begin_s = time.perf_counter()
        steps = train(model, text, **CURVE, attend=attend, dtype=dtype)
        row = attempt({}, lambda steps=steps: {"losses": [round(loss, 5) for _, loss in steps]})
        yield {"kind": "curve", "method": name, "seconds": time.perf_counter() - begin_s} | row
        if name == "ours":
            yield attempt({"kind": "text"}, partial(served, model))
        del model, steps
    for n in LENGTHS:
        batch = windows(text, torch.arange(TOKENS // n, device=device) * n, n)
        for name, attend in [*attending.items(), ("values", methods["values"])]:
            measure = partial(step_row, batch, attend, dtype)
            yield attempt({"kind": "step", "method": name, "n": n, "batch": TOKENS // n}, measure)
