"""Masks and variants of attention on a GPU: our kernels beside PyTorch's FlexAttention, and time beside tiles visited.

FlexAttention compiles a kernel for every mask, change of the scores and shape; ours take them as data and functions.
"""

import itertools
import warnings
from typing import NamedTuple

import numpy as np
import torch

from course_lib import masks, traffic
from course_lib.kernels import flash_attention
from course_lib.kernels.score_mods import alibi, soft_cap
from courseware.bench import timing
from courseware.bench.accuracy import assert_within_budget, relative_error, wrong_answers_are_not_timed

LENGTHS = 4096, 16_384
CHECKED_LENGTH = 1024  # of the sequence on which all answers are compared with float64
BLOCK = 128  # of queries and keys, in a block-sparse mask; FlexAttention's own block, too
CAP, DROPOUT_P, SEED = 20.0, 0.1, 1
CASES = (
    "full", "causal", "window 256", "window 1024", "documents", "prefix-LM", "block-sparse 10 %", "block-sparse 25 %",
    "block-sparse 50 %", "ALiBi", "soft cap", "dropout",
)  # fmt: skip


class Case(NamedTuple):
    """how: keyword arguments of `flash_attention`, a mask at least.

    mask_mod, score_mod: FlexAttention's, which say the same, for as many queries as keys.
    """

    how: dict
    mask_mod: object = None
    score_mod: object = None


def case_of(name, n, heads, device):
    """One of CASES for rows of n tokens. Masks are causal, apart from the full one and those of blocks."""
    kind, _, number = name.partition(" ")
    rng = np.random.default_rng(0)
    if kind == "full":
        return Case({"mask": masks.full()})
    if kind == "window":
        left = int(number)
        return Case({"mask": masks.sliding_window(left, 0)}, lambda b, h, i, j: (j <= i) & (i - j <= left))
    if kind == "documents":  # eight of different lengths
        ends = np.sort(rng.choice(np.arange(1, n), 7, replace=False))
        ids = torch.from_numpy(np.searchsorted(ends, np.arange(n), side="right")).to(device)
        mask = masks.documents(ids) & masks.causal()
        return Case({"mask": mask}, lambda b, h, i, j: (ids[i] == ids[j]) & (j <= i))
    if kind == "prefix-LM":
        return Case({"mask": masks.prefix_lm(n // 4)}, lambda b, h, i, j: (j <= i) | (j < n // 4))
    if kind == "block-sparse":  # the diagonal, and others at random
        layout = np.eye(-(-n // BLOCK), dtype=bool)
        n_more = max(0, round(layout.size * int(number.split()[0]) / 100) - len(layout))
        layout.flat[rng.choice(np.flatnonzero(~layout), n_more, replace=False)] = True
        mask, blocks = masks.block_sparse(layout, BLOCK), torch.from_numpy(layout).to(device)
        return Case({"mask": mask}, lambda b, h, i, j: blocks[i // BLOCK, j // BLOCK])
    how, causal = {"mask": masks.causal()}, lambda b, h, i, j: j <= i
    if kind == "ALiBi":
        slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, device=device) / heads)
        how["score_mod"] = alibi(slopes)
        return Case(how, causal, lambda score, b, h, i, j: score + slopes[h] * (j - i))
    if kind == "soft":
        return Case(how | {"score_mod": soft_cap(CAP)}, causal, lambda score, b, h, i, j: CAP * torch.tanh(score / CAP))
    return Case(how | ({"dropout_p": DROPOUT_P, "seed": SEED} if kind == "dropout" else {}), causal)


def flex_call(case, q, k, v):
    """FlexAttention as a callable."""
    from torch._functorch import config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    config.donated_buffer = False  # or its backward runs only once
    compiled, blocks, n = torch.compile(flex_attention, dynamic=False), None, q.shape[2]
    if case.mask_mod:
        blocks = create_block_mask(case.mask_mod, None, None, n, n, device=q.device, BLOCK_SIZE=BLOCK)
    return lambda: compiled(q, k, v, score_mod=case.score_mod, block_mask=blocks)


def stated(case, q, k, v, kept=None):
    """The case with all scores written out, in the dtype of q. kept: the weights that dropout keeps, as bool."""
    n = q.shape[2]
    at = [torch.arange(size, device=q.device) for size in (*q.shape[:2], n, n)]
    scores = q @ k.mT * q.shape[3] ** -0.5
    if case.score_mod:
        batches, heads, queries, keys = at
        scores = case.score_mod(scores, batches[:, None, None, None], heads[:, None, None], queries[:, None], keys)
    visible = torch.from_numpy(case.how["mask"].dense(n, n)).to(q.device)
    # In every case, each query sees itself.
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf).to(q.dtype), -1)
    return (weights if kept is None else weights * kept / (1 - case.how["dropout_p"])) @ v


def kept_by_dropout(case, q):
    """Which weights dropout keeps: those that attention to the columns of an identity matrix finds."""
    n, even = q.shape[2], q.new_zeros(*q.shape[:3], 256)
    columns = torch.eye(n, dtype=q.dtype, device=q.device).split(256, 1)
    columns = (torch.nn.functional.pad(x, (0, 256 - x.shape[1])).expand_as(even) for x in columns)
    return torch.cat([flash_attention(even, even, x, **case.how) for x in columns], -1)[..., :n] > 0


def check(name, head_dim, dtype, n=None, heads=None):
    """Raise RuntimeError unless our answer and gradients keep the error budget: wrong answers are not timed."""
    n, heads = n or CHECKED_LENGTH, heads or timing.HIDDEN_DIM // head_dim
    *leaves, do = timing.random_inputs(1, heads, n, head_dim, dtype, differentiable=True)
    case, found = case_of(name, n, heads, do.device), []
    kept = kept_by_dropout(case, leaves[0].detach()) if "dropout_p" in case.how else None
    for as_dtype in (None, dtype, torch.float64):
        given = [x.detach().to(as_dtype or dtype).requires_grad_() for x in leaves]
        o = stated(case, *given, kept) if as_dtype else flash_attention(*given, **case.how)
        found.append([o.detach(), *torch.autograd.grad(o, given, do.to(o.dtype))])
    for which, answer, plain, exact in zip(("o", "dq", "dk", "dv"), *found, strict=True):
        # Gradients are differences of larger terms, which are of the size of the inputs here.
        terms = None if which == "o" else exact.abs() + 1
        with wrong_answers_are_not_timed(f"{name}, head_dim {head_dim}"):
            assert_within_budget(which, answer, plain, exact, dtype, terms=terms)
    return {w: relative_error(a, e) for w, a, e in zip(("o", "dq", "dk", "dv"), found[0], found[2], strict=True)}


def contestants(name, n, head_dim, dtype, flex):
    """(case, (q, k, v, do), forward calls by name). "plain" is `flash_attention` without a variant."""
    heads = timing.HIDDEN_DIM // head_dim
    q, k, v, do = timing.random_inputs(max(1, timing.TOKENS // n), heads, n, head_dim, dtype, differentiable=True)
    case = case_of(name, n, heads, q.device)
    calls = {"ours": lambda: flash_attention(q, k, v, **case.how)}
    if name in ("full", "causal"):
        calls["plain"] = lambda: flash_attention(q, k, v, causal=name == "causal")
    if flex and name != "dropout":  # which FlexAttention does not have
        calls["flex"] = flex_call(case, q, k, v)
    return case, (q, k, v, do), calls


def visited_tiles(kernel, case, q):
    """Of one head: the tile of the kernel, how many of them it visits, and how many there are."""
    mask = case.how["mask"]
    (block_m, block_n, *_), _ = timing.shipped(kernel, q, q, q, q, mask=mask)
    tiles = mask.tiles(q.shape[2], q.shape[2], block_m, block_n)
    return {"tile": [block_m, block_n], "visited": tiles.visited.tiles, "all": int(np.prod(tiles.shape))}


def rows_of(name, n, head_dim, dtype, flex, errors):
    """The forward and the backward of one case: ms, and TFLOP/s, which count the visible pairs alone."""
    case, (q, k, v, do), forward = contestants(name, n, head_dim, dtype, flex)
    outputs = {called: call() for called, call in forward.items()}
    backward = {called: timing.backward_of(o, q, k, v, do) for called, o in outputs.items()}
    mask, (batch, heads) = case.how["mask"], q.shape[:2]
    # The pairs of tiles that have all or none of their pairs visible.
    n_visible = mask.tiles(n, n, *((1, 1) if mask.is_band else (BLOCK, BLOCK))).visited.pairs
    flops = traffic.attention_flops(n, n, head_dim, heads=heads, batch=batch) * n_visible / n**2
    for which, calls, kernels, factor in (
        ("forward", forward, ("forward",), 1.0), ("backward", backward, ("dkdv", "dq"), 2.5)
    ):  # fmt: skip
        answers = {called: [outputs[called]] if which == "forward" else call() for called, call in calls.items()}
        for called, found in answers.items():
            pairs = zip(found, answers["ours"], strict=True)
            difference = max(relative_error(x.float(), y.detach().float()) for x, y in pairs)
            if not difference < 2e-2:
                raise RuntimeError(f"wrong answers are not timed: {name}, {which}: ours and {called}: {difference:.2g}")
        # With gradients in the forward, too: without, FlexAttention would be compiled once more.
        times_ms = timing.median_ms(calls, rounds=11)
        yield {
            "case": name, "pass": which, "dtype": timing.name_of(dtype), "batch": batch, "heads": heads,
            "n": n, "head_dim": head_dim, "visible": n_visible / n**2,
            "tiles": {kernel: visited_tiles(kernel, case, q) for kernel in kernels},
            "checked": {w: error for w, error in errors.items() if (w == "o") == (which == "forward")}, "ms": times_ms,
            "tflops": {called: factor * flops / ms * 1e-9 for called, ms in times_ms.items()},
        }  # fmt: skip


def variant_rows(options):
    """Masks, ALiBi, soft cap and dropout, with --flex beside FlexAttention; time beside the tiles visited"""
    lengths, how = options.length or LENGTHS, (getattr(torch, options.dtype), options.flex)
    jobs = itertools.product(CASES, lengths, options.head_dim)
    timing.compile_ahead(_compile_one, [(*job, *how) for job in jobs])
    for head_dim, name in itertools.product(options.head_dim, CASES):
        errors = check(name, head_dim, how[0])
        for n in lengths:
            yield from rows_of(name, n, head_dim, *how, errors)
        torch.compiler.reset()  # FlexAttention refuses to compile again after a number of shapes


def _compile_one(job):
    """Run a case once, so that its kernels are in the caches."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, (q, k, v, do), calls = contestants(*job)
        for call in calls.values():
            torch.autograd.grad(call(), (q, k, v), do)
    torch.compiler.reset()
