"""The error budget of kernels: what counts as correct, for tests and benchmarks alike.

An answer in dtype T may differ from float64 on the same inputs by twice the error of plain PyTorch in T, plus a floor
of one rounding to T and eight to fp32. The floor is there because plain PyTorch may happen to be exact (as on a single
key) where a kernel has multiplied by log2(e) and back. The budget holds for the relative Frobenius norm, and likewise
for the largest element.

Gradients are differences: dP - delta, summed over keys or queries, may cancel to nothing (to exactly 0 for a single
key). Their fp32 roundings are therefore measured against the terms before they cancel. Sixteen roundings are allowed,
because dP comes from tensor cores, which truncate sums that delta's addition rounds.
"""

import contextlib
import warnings

import torch


def exact_attention(q, k, v, *, causal=False, scale=None, dtype=torch.float64):
    """Attention with the score matrix written out, computed in `dtype`: (o, lse), shapes as `flash_attention`'s.

    In float64 this is the exact answer; in the inputs' own dtype it is the plain PyTorch whose error sets the budget.
    """
    group = q.shape[1] // k.shape[1]
    q, k, v = q.to(dtype), k.to(dtype).repeat_interleave(group, 1), v.to(dtype).repeat_interleave(group, 1)
    n_q, n_k = q.shape[2], k.shape[2]
    scores = (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        queries, keys = torch.arange(n_q, device=q.device), torch.arange(n_k, device=q.device)
        scores = scores.masked_fill(keys[None, :] > queries[:, None] + n_k - n_q, float("-inf"))
    lse = torch.logsumexp(scores.float() if dtype != torch.float64 else scores, dim=-1)
    # For a row without a visible key, softmax gives NaN where our kernels promise 0.
    weights = torch.softmax(scores, dim=-1).masked_fill((lse == float("-inf"))[..., None], 0.0)
    return weights @ v, lse


def exact_gradients(q, k, v, do, dlse=None, *, causal=False, scale=None, dtype=torch.float64):
    """(dq, dk, dv) that PyTorch derives from `exact_attention` in `dtype`, for gradients do of o and dlse of lse."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
    o, lse = exact_attention(*leaves, causal=causal, scale=scale, dtype=dtype)
    outputs, given = ((o,), (do.to(dtype),)) if dlse is None else ((o, lse), (do.to(dtype), dlse.to(lse.dtype)))
    with warnings.catch_warnings():
        # PyTorch warns when the first call of autograd's own thread is a matrix product, which then creates a context.
        warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
        return torch.autograd.grad(outputs, leaves, given)


def _gradient_terms(q, k, v, do, dlse, causal, scale):
    """The sums of the absolute values of the terms of dq, dk and dv, in float64."""
    group = q.shape[1] // k.shape[1]
    q, do = q.double(), do.double()
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    # Attention to the identity matrix returns the probabilities.
    identity = torch.eye(k.shape[2], dtype=torch.float64, device=k.device).expand(*k.shape[:2], -1, -1)
    p, lse = exact_attention(q, k, identity, causal=causal, scale=scale)
    delta = ((p @ v) * do).sum(-1).abs() + (0 if dlse is None else dlse.abs())
    # The larger lse is, the larger its rounding to fp32, and that is a relative error of P = exp(S - lse).
    p = p * torch.where(lse == float("-inf"), 1.0, lse.abs() / 2).clamp(min=1.0)[..., None]
    ds = abs(scale) * p * ((do @ v.mT).abs() + delta[..., None])
    dk, dv = (x.unflatten(1, (-1, group)).sum(2) for x in (ds.mT @ q.abs(), p.mT @ do.abs()))
    return ds @ k.abs(), dk, dv


def assert_within_budget(name, answer, plain, exact, dtype, terms=None):
    """Raise AssertionError, with both errors, unless `answer` has this dtype and keeps its budget.

    An answer that is None is not checked. plain: plain PyTorch's answer in dtype. terms: what fp32 roundings are
    relative to, None for `exact`.
    """
    if answer is None:
        return
    if answer.dtype != dtype:
        raise AssertionError(f"{name} has dtype {answer.dtype}, expected {dtype}")
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
    """Raise AssertionError unless an answer, o or (o, lse), keeps the error budget on these inputs."""
    o, lse = answer if isinstance(answer, tuple) else (answer, None)
    exact, plain = (exact_attention(q, k, v, causal=causal, scale=scale, dtype=x) for x in (torch.float64, q.dtype))
    assert_within_budget("o", o, plain[0], exact[0], q.dtype)
    assert_within_budget("lse", lse, plain[1], exact[1], torch.float32)


def check_gradients(gradients, q, k, v, do, dlse=None, *, causal=False, scale=None):
    """Raise AssertionError unless the gradients (dq, dk, dv) keep the error budget on these inputs.

    do: the gradient of o, in its dtype; dlse: that of lse, fp32, or None. A gradient that is None is not checked.
    """
    exact, plain = (
        exact_gradients(q, k, v, do, dlse, causal=causal, scale=scale, dtype=x) for x in (torch.float64, q.dtype)
    )
    terms = _gradient_terms(q, k, v, do, dlse, causal, scale)
    for name, *compared, of_terms in zip(("dq", "dk", "dv"), gradients, plain, exact, terms, strict=True):
        assert_within_budget(name, *compared, q.dtype, terms=of_terms)


@contextlib.contextmanager
def wrong_answers_are_not_timed(of):
    """Turns an AssertionError of a check into a RuntimeError that says so. of: what is checked, in words."""
    try:
        yield
    except AssertionError as error:
        raise RuntimeError(f"wrong answers are not timed: {of}: {error}") from None


def check_answers(answers, inputs, causal=False, checked=None):
    """{name: relative error}. Raises RuntimeError unless answers keep the error budget: wrong answers are not timed.

    answers: name -> [o] if inputs are (q, k, v), or (dq, dk, dv) if they are (q, k, v, do), with None for what was
    not computed. checked: the names of those that must keep the budget, None for all. Only the first head of the first
    sequence and the last head of the last are looked at; the larger error of the two counts, and of several tensors.
    """
    errors = dict.fromkeys(answers, 0.0)
    for end in (slice(1), slice(-1, None)):
        given = [x.detach()[end, end] for x in inputs]
        of_gradients = len(given) == 4
        exact = exact_gradients(*given, causal=causal) if of_gradients else exact_attention(*given, causal=causal)[:1]
        for name, tensors in answers.items():
            found = [None if x is None else x.detach()[end, end] for x in tensors]
            if checked is None or name in checked:
                with wrong_answers_are_not_timed(f"{name}, {list(inputs[0].shape)}"):
                    check, answer = (check_gradients, found) if of_gradients else (check_attention, found[0])
                    check(answer, *given, causal=causal)
            pairs = zip(found, exact, strict=True)
            errors[name] = max([errors[name], *(relative_error(x, right) for x, right in pairs if x is not None)])
    return errors


def relative_error(x, exact):
    """The relative Frobenius norm of x - exact. exact may be of x's first sequences, heads and rows only."""
    return float((x.detach()[tuple(map(slice, exact.shape))] - exact).norm() / exact.norm())
