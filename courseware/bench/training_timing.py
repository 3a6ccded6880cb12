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
import torch.distributed as dist
from torch.nn.attention import sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from course_lib import runtime
from course_lib.distributed import ring_attention, shard
from course_lib.kernels import flash_attention
from course_lib.kernels.plain_backward import differentiable_attention
from course_lib.serving.model import ALPHABET, TinyModel, causal_attention, encode, generate
from course_lib.serving.server import Server
from course_lib.serving.training import mean_loss, train, train_step, windows
from courseware.bench import timing
from courseware.bench.accuracy import relative_error
from courseware.bench.timing import attempt
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


class Values(torch.autograd.Function):
    """No attention: each token gets its own value, so that a step takes the time of all the rest.

    q and k get a gradient, too: what comes before them has its backward.
    """

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.group_size = q.shape[1] // k.shape[1]
        return v.repeat_interleave(ctx.group_size, dim=1)

    @staticmethod
    def backward(ctx, do):
        of_keys = do.unflatten(1, (-1, ctx.group_size)).sum(2)
        return do, of_keys, of_keys


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
        "values": lambda layer, q, k, v: Values.apply(q, k, v),
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


def gradient(tokens, following, attend, dtype, positions=None, ranks=None):
    """(the loss, the gradient of all weights as one vector in float64). dtype: torch.float64, or as `train_step`'s."""
    model = new_model().to(torch.float64 if dtype == torch.float64 else torch.float32)
    model = DistributedDataParallel(model) if ranks else model
    with torch.autocast(runtime.device(), torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = mean_loss(model, tokens, following, attend, positions)
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


def step_row(batch, attend, dtype, positions=None, ranks=None):
    """ms of a step, the median of a few; peak memory; ms of the kernels.

    matmul_ms: of products by name, so that the "values" row has them alone; FlashAttention-2's kernels count, too.
    positions: `mean_loss`'s. ranks: whether the model averages its gradients over ranks.
    """
    on_gpu = runtime.mode() == "gpu"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    model = DistributedDataParallel(new_model()) if ranks else new_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, fused=on_gpu)
    step = partial(train_step, model, optimizer, *batch, attend, dtype, positions=positions)
    step()  # compiles, and makes the optimizer's moments
    wait()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    ms = []
    for _ in range(7 if batch[0].numel() <= TOKENS else 2):
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


def text_and_dtype(length):
    """(the text as tokens, more of them than `length`; the dtype of the products): a text too short is repeated."""
    tokens = torch.tensor(encode("\n".join(prose(EXERCISES.glob("*/*.md")) + entries())), device=runtime.device())
    return tokens.repeat(1 + length // len(tokens)), torch.bfloat16 if runtime.mode() == "gpu" else None


def changed(model):
    """The model with another last bit or so in one of its parameters."""
    with torch.no_grad():
        model.embedding.weight[0, 0] *= 1 + 1e-7
    return model


def training_rows():
    """Training with each attention: curves of the loss, and a step's time and memory by the length of a sequence"""
    device = runtime.device()
    text, dtype = text_and_dtype(TOKENS)
    methods = contestants()
    attending = {name: attend for name, attend in methods.items() if name not in ("values", "sdpa")}
    weights = sum(weight.numel() for weight in TinyModel(**MODEL).parameters())
    yield {"kind": "model", **MODEL, "weights": weights, "characters": len(text), "tokens": TOKENS, "curve": CURVE}
    batch = windows(text, torch.arange(2, device=device) * CURVE["length"], CURVE["length"])
    yield from check_rows(batch, attending, dtype)
    for name, attend in [*attending.items(), ("control", methods["ours"])]:
        model = changed(new_model()) if name == "control" else new_model()
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


def rank_rows(n):
    """A step on sequences of n tokens on one GPU, on every rank the same; and by all ranks, in two ways.

    Data parallel, each rank has its part of the sequences; context parallel, a shard of each. In both, the ranks' mean
    of the gradients is that of the whole, and PyTorch computes it.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    (text, dtype), ours = text_and_dtype(n), contestants()["ours"]
    count = max(1, TOKENS // n)
    batch = windows(text, torch.arange(count, device=text.device) * n, n)
    positions = shard(torch.arange(n, device=text.device), dim=0, causal=True)

    def in_ring(layer, q, k, v):
        return ring_attention(q.to(v.dtype), k.to(v.dtype), v, causal=True)

    ways = {"one_gpu": (batch, ours, dtype)}
    if count >= size:
        ways["data_parallel"] = ([x.chunk(size)[rank] for x in batch], ours, dtype, None, size)
    ways["context_parallel"] = ([shard(x, dim=1, causal=True) for x in batch], in_ring, dtype, positions, size)
    exact = None
    for name, how in ways.items():
        row = {"kind": "step", "method": name, "n": n, "batch": count, "ranks": 1 if name == "one_gpu" else size}
        if n <= TOKENS:
            found = gradient(*how[0], *how[1:])[1].cpu()  # a peak of memory does not count it
            exact = found if exact is None else exact
            row["gradient_error"] = relative_error(found, exact)
        yield attempt(row, lambda how=how: step_row(*how))
