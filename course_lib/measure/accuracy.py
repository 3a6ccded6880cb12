"""The error budget of kernels: what counts as correct, for tests and benchmarks alike.

An answer in dtype T may err, against float64 on the same inputs, by twice what plain PyTorch in T errs, plus a floor:
one rounding to T and eight to fp32, for plain PyTorch may happen to be exact (as on a single key) where a kernel has
scaled by log2(e) and back. In the relative Frobenius norm, and likewise in the largest element.

Gradients are differences: dP - delta, summed over keys or queries, may cancel to nothing (to exactly 0 for a single
key). Their fp32 roundings are therefore measured against the terms before they cancel; and they are sixteen, for
dP comes from tensor cores, which truncate sums where delta's addition rounds.
"""

import warnings

import torch


def exact_attention(q, k, v, *, causal=False, scale=None, dtype=torch.float64):
    """Attention with the score matrix written out, computed in `dtype`: (o, lse), shapes as `flash_attention`'s.

    In float64 it is the oracle; in the inputs' own dtype it is the plain PyTorch whose error sets the budget.
    """
    group = q.shape[1] // k.shape[1]
    q, k, v = q.to(dtype), k.to(dtype).repeat_interleave(group, 1), v.to(dtype).repeat_interleave(group, 1)
    n_q, n_k = q.shape[2], k.shape[2]
    scores = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        queries, keys = torch.arange(n_q, device=q.device), torch.arange(n_k, device=q.device)
        scores = scores.masked_fill(keys[None, :] > queries[:, None] + n_k - n_q, float("-inf"))
    lse = torch.logsumexp(scores.float() if dtype != torch.float64 else scores, dim=-1)
    # A row without a visible key: softmax gives NaN, the contract says 0.
    weights = torch.softmax(scores, dim=-1).masked_fill((lse == float("-inf"))[..., None], 0.0)
    return weights @ v, lse


def exact_gradients(q, k, v, do, dlse=None, *, causal=False, scale=None, dtype=torch.float64):
    """(dq, dk, dv) that PyTorch derives from `exact_attention` in `dtype`, for gradients do of o and dlse of lse."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
    o, lse = exact_attention(*leaves, causal=causal, scale=scale, dtype=dtype)
    outputs, given = ((o,), (do.to(dtype),)) if dlse is None else ((o, lse), (do.to(dtype), dlse.to(lse.dtype)))
    with warnings.catch_warnings():
        # On a GPU, autograd's own thread may begin with a matrix product, and PyTorch says that it finds no context.
        warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
        return torch.autograd.grad(outputs, leaves, given)


def _gradient_terms(q, k, v, do, dlse, causal, scale):
    """What dq, dk and dv add up, in float64, every term positive."""
    group = q.shape[1] // k.shape[1]
    q, do = q.double(), do.double()
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    # Attention to the identity matrix returns the probabilities.
    identity = torch.eye(k.shape[2], dtype=torch.float64, device=k.device).expand(*k.shape[:2], -1, -1)
    p, lse = exact_attention(q, k, identity, causal=causal, scale=scale)
    delta = ((p @ v) * do).sum(-1).abs() + (0 if dlse is None else dlse.abs())
    # lse is rounded to fp32 at its own size, and P = exp(S - lse) errs by as much.
    p = p * torch.where(lse == float("-inf"), 1.0, lse.abs() / 2).clamp(min=1.0)[..., None]
    ds = abs(scale) * p * ((do @ v.mT).abs() + delta[..., None])
    dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (ds.mT @ q.abs(), p.mT @ do.abs()))
    return ds @ k.abs(), dk, dv


def assert_within_budget(name, answer, plain, exact, dtype, terms=None):
    """Raise AssertionError, with both errors, unless `answer` keeps the budget of `dtype`.

    terms: what the fp32 roundings are measured against, `exact` itself if None.
    """
    if answer.shape != exact.shape:
        raise AssertionError(f"{name}: shape {list(answer.shape)}, expected {list(exact.shape)}")
    answer, plain, exact = answer.double(), plain.double(), exact.double()
    infinite = torch.isinf(exact)
    if not torch.equal(torch.where(infinite, answer, 0.0), torch.where(infinite, exact, 0.0)):
        raise AssertionError(f"{name}: infinities are not where they belong")
    answer, plain, exact = (torch.where(infinite, 0.0, x) for x in (answer, plain, exact))
    roundings = 8 if terms is None else 16
    terms = exact if terms is None else terms
    for norm, size in (("Frobenius", torch.linalg.vector_norm), ("largest", lambda x: x.abs().max())):
        error, allowed, scale = size(answer - exact), size(plain - exact), size(exact)
        floor = torch.finfo(dtype).eps / 2 * scale + roundings * torch.finfo(torch.float32).eps / 2 * size(terms)
        if not error <= 2 * allowed + floor:
            raise AssertionError(
                f"{name}: {norm} error {error:.3e} on values of {scale:.3e}; plain PyTorch errs by {allowed:.3e}, "
                f"the budget is {2 * allowed + floor:.3e}"
            )


def check_attention(answer, q, k, v, *, causal=False, scale=None):
    """Raise AssertionError unless answer, o or (o, lse), keeps the error budget on these inputs."""
    o, lse = answer if isinstance(answer, tuple) else (answer, None)
    exact_o, exact_lse = exact_attention(q, k, v, causal=causal, scale=scale)
    plain_o, plain_lse = exact_attention(q, k, v, causal=causal, scale=scale, dtype=q.dtype)
    if o.dtype != q.dtype:
        raise AssertionError(f"o has dtype {o.dtype}, expected {q.dtype}")
    assert_within_budget("o", o, plain_o, exact_o, q.dtype)
    if lse is not None:
        if lse.dtype != torch.float32:
            raise AssertionError(f"lse has dtype {lse.dtype}, expected torch.float32")
        assert_within_budget("lse", lse, plain_lse, exact_lse, torch.float32)


def check_gradients(gradients, q, k, v, do, dlse=None, *, causal=False, scale=None):
    """Raise AssertionError unless gradients, (dq, dk, dv), keep the error budget on these inputs.

    do: the gradient of o, in its dtype; dlse: that of lse, fp32, or None. A gradient that is None is not checked.
    """
    exact = exact_gradients(q, k, v, do, dlse, causal=causal, scale=scale)
    plain = exact_gradients(q, k, v, do, dlse, causal=causal, scale=scale, dtype=q.dtype)
    terms = _gradient_terms(q, k, v, do, dlse, causal, scale)
    for name, *compared in zip(("dq", "dk", "dv"), gradients, plain, exact, terms, strict=True):
        if compared[0] is None:
            continue
        if compared[0].dtype != q.dtype:
            raise AssertionError(f"{name} has dtype {compared[0].dtype}, expected {q.dtype}")
        assert_within_budget(name, *compared[:3], q.dtype, terms=compared[3])
