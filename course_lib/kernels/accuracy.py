"""The error budget of kernels: what counts as correct, for tests and benchmarks alike.

An answer in dtype T may err, against float64 on the same inputs, by twice what plain PyTorch in T errs, plus a floor:
one rounding to T and eight to fp32, for plain PyTorch may happen to be exact (as on a single key) where a kernel has
scaled by log2(e) and back. In the relative Frobenius norm, and likewise in the largest element.
"""

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


def assert_within_budget(name, answer, plain, exact, dtype):
    """Raise AssertionError, with both errors, unless `answer` keeps the budget of `dtype`."""
    if answer.shape != exact.shape:
        raise AssertionError(f"{name}: shape {list(answer.shape)}, expected {list(exact.shape)}")
    answer, plain, exact = answer.double(), plain.double(), exact.double()
    infinite = torch.isinf(exact)
    if not torch.equal(torch.where(infinite, answer, 0.0), torch.where(infinite, exact, 0.0)):
        raise AssertionError(f"{name}: infinities are not where they belong")
    answer, plain, exact = (torch.where(infinite, 0.0, x) for x in (answer, plain, exact))
    floor = torch.finfo(dtype).eps / 2 + 8 * torch.finfo(torch.float32).eps / 2
    for norm, size in (("Frobenius", torch.linalg.vector_norm), ("largest", lambda x: x.abs().max())):
        error, allowed, scale = size(answer - exact), size(plain - exact), size(exact)
        if not error <= 2 * allowed + floor * scale:
            raise AssertionError(
                f"{name}: {norm} error {error:.3e} on values of {scale:.3e}; plain PyTorch errs by {allowed:.3e}, "
                f"the budget is {2 * allowed + floor * scale:.3e}"
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
