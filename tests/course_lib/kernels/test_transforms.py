"""What torch does to a function: compiling, functional gradients, vmap, higher derivatives, shapes without values."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from course_lib import masks
from course_lib.kernels import flash_attention, flash_decode
from course_lib.kernels.score_mods import alibi, soft_cap
from tests.course_lib.kernels.common import DEVICE, inputs, leaves, random

N_Q, N_K, D = 20, 33, 16
SLOPES = torch.tensor([0.5, 0.25, 0.1, 1.0], device=DEVICE)
SINKS = torch.tensor([0.5, -1.0, 0.0, 2.0], device=DEVICE)
IDS, EDGES_Q, EDGES_K = [0] * 9 + [1] * 24, [0, 7, 20], [0, 11, 33]
OUTSIDE = masks.documents(IDS) & masks.causal()
# Each call of q, k, v and sinks; masks are made inside the compiled function or outside.
CALLS = {
    "lse": lambda q, k, v, s: flash_attention(q, k, v, causal=True, scale=0.3, return_lse=True, block_q=16),
    "one tensor": lambda q, k, v, s: flash_attention(q, q, q),
    "combined": lambda q, k, v, s: flash_attention(q, k, v, mask=OUTSIDE | masks.prefix_lm(3), causal=True),
    "packed": lambda q, k, v, s: flash_attention(q, k, v, mask=PACKED),
    "function": lambda q, k, v, s: flash_attention(q, k, v, mask=OF_HEADS),
    "key_ranges": lambda q, k, v, s: flash_attention(q, k, v, key_ranges=KEY_RANGES.clamp(max=k.shape[2]), sinks=s),
    "mods": lambda q, k, v, s: flash_attention(q, k, v, score_mod=(soft_cap(5.0), alibi(SLOPES))),
    "dropout": lambda q, k, v, s: flash_attention(q, k, v, dropout_p=0.3, seed=5),
    "decode, all": lambda q, k, v, s: flash_decode(
        q.detach(), k.detach(), v.detach(), LENGTHS, sinks=s.detach(), score_mod=alibi(SLOPES), return_lse=True
    ),
}
PACKED = masks.packed(EDGES_Q, EDGES_K, masks.causal())
OF_HEADS = masks.from_function(lambda b, h, i, j: (i + j + h) % 3 != 0, heads=4)
KEY_RANGES = torch.stack([torch.arange(N_Q) // 2, torch.arange(N_Q) + 14]).int().expand(2, 2, N_Q).to(DEVICE)
LENGTHS = torch.tensor([30, 33], device=DEVICE)


def given(n_q=N_Q, n_k=N_K):
    return leaves(*inputs(n_q, n_k, D, batch=2, heads=4, kv_heads=2)[:3], SINKS)


def results(call, tensors):
    """What the call returns, and gradients of all that it depends on."""
    found = call(*tensors)
    found = list(found) if isinstance(found, tuple) else [found]
    if not found[0].requires_grad:
        return found
    weighted = sum((x * random(*x.shape, seed=7)).sum() for x in found)
    return found + [x for x in torch.autograd.grad(weighted, tensors, allow_unused=True) if x is not None]


@pytest.mark.parametrize("name", CALLS)
def test_compiled_whole(name):
    """One graph, whose values and gradients are eager's; those are the same at every call, which changes no input."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled, tensors = torch.compile(CALLS[name], backend=counter, fullgraph=True), given()
    eager, again, compiled = (results(call, tensors) for call in (CALLS[name], CALLS[name], compiled))
    torch.testing.assert_close(compiled, eager, rtol=1e-6, atol=1e-6)
    assert counter.frame_count == 1
    assert all(map(torch.equal, eager, again)) and all(map(torch.equal, tensors, given()))
    assert LENGTHS.tolist() == [30, 33]


def test_other_lengths_and_masks_are_no_other_graphs():
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(
        lambda q, k, v, mask: flash_attention(q, k, v, causal=True, mask=mask), backend=counter, fullgraph=True
    )
    for n in (24, 27, 30, 32, 35):
        q, k, v, _ = given(n, n)
        for mask in (masks.documents([0] * 9 + [1] * (n - 9)), masks.sliding_window(n % 5, 0)):
            assert torch.equal(compiled(q, k, v, mask), flash_attention(q, k, v, mask=mask & masks.causal()))
    assert counter.frame_count <= 4, "one for each kind of mask, and one for any length"
    gone = masks.documents([0] * N_K).code
    with pytest.raises(RuntimeError, match="keep the mask as long as the graph"):
        masks.of_code(gone)


def test_dropout_draws_anew_at_each_call_of_a_graph():
    torch._dynamo.reset()
    q, k, v, _ = given()
    compiled = torch.compile(lambda: flash_attention(q, k, v, dropout_p=0.5), backend="aot_eager", fullgraph=True)
    torch.manual_seed(0)
    first, second = compiled(), compiled()
    torch.manual_seed(0)
    assert not torch.equal(first, second) and torch.equal(compiled(), first)


def plain(q, k, v):
    return flash_attention(q, k, v, causal=True).square().sum()


def masked(q, k, v):
    return flash_attention(q, k, v, mask=OUTSIDE, score_mod=soft_cap(5.0), sinks=SINKS).square().sum()


@pytest.mark.parametrize("loss", (plain, masked))
def test_functional_gradients_are_autograds_and_there_are_no_others(loss):
    """None of the others is silently 0, as it was when nothing but the result required a gradient."""
    q, k, v, _ = given()
    expected = torch.autograd.grad(loss(q, k, v), (q, k, v), create_graph=True)
    q0, k0, v0 = (x.detach() for x in (q, k, v))
    for ours, theirs in zip(torch.func.grad(loss, (0, 1, 2))(q0, k0, v0), expected, strict=True):
        assert torch.equal(ours, theirs)
    assert all(x.requires_grad for x in expected)
    norm = sum(x.square().sum() for x in expected)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(norm, q)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q, k0, v0).sum())(q0)
    with pytest.raises(NotImplementedError, match="no forward-mode"):
        torch.func.jvp(lambda q: loss(q, k0, v0), (q0,), (q0,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode"):
        loss(torch.autograd.forward_ad.make_dual(q0, q0), k0, v0)


def test_vmap():
    many = [random(3, *x[:, ::2].shape, seed=seed) for seed, x in enumerate(given()[:3])]
    one = many[2][0]
    for causal in (False, True):

        def loss(q, k, v, causal=causal):
            o, lse = flash_attention(q, k, v, causal=causal, return_lse=True)
            return o.square().sum() + lse.sum(), (o, lse)

        gradients, (o, lse) = torch.func.vmap(torch.func.grad(loss, (0, 1), has_aux=True), (0, 0, None))(*many[:2], one)
        for i in range(3):
            (dq, dk), (o_i, lse_i) = torch.func.grad(loss, (0, 1), has_aux=True)(many[0][i], many[1][i], one)
            for ours, theirs in ((gradients[0], dq), (gradients[1], dk), (o, o_i), (lse, lse_i)):
                torch.testing.assert_close(ours[i], theirs)
    moved = many[0].movedim(0, 3)
    assert torch.equal(
        torch.func.vmap(flash_attention, (3, 0, 0))(moved, *many[1:])[1], flash_attention(*[x[1] for x in many])
    )
    for how in ({"mask": OUTSIDE}, {"key_ranges": KEY_RANGES}):
        with pytest.raises(NotImplementedError, match="make the mapped dimension part of the batch"):
            torch.func.vmap(lambda q, k, v, how=how: flash_attention(q, k, v, **how))(*many)


def test_decode_says_that_it_has_no_derivatives():
    q, k, v, _ = (x.detach() for x in given())
    with pytest.raises(NotImplementedError, match="inside torch.func transforms"):
        torch.func.vmap(lambda q: flash_decode(q, k, v, LENGTHS))(q[None])
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="k_cache has a tangent"):
        flash_decode(q, torch.autograd.forward_ad.make_dual(k, k), v, LENGTHS)


@pytest.mark.parametrize("name", CALLS)
def test_shapes_without_values(name):
    """Of meta and fake tensors: shapes, dtypes and gradients as of others."""
    expected = results(CALLS[name], given())
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [mode.from_tensor(x) for x in given()]
        for ours, theirs in zip(results(CALLS[name], fake), expected, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    meta = [x.detach().to("meta") for x in given()]
    assert flash_attention(*meta[:3], dropout_p=0.1).shape == meta[0].shape
