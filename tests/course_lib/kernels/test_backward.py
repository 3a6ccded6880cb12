"""flash_attention's backward, in whichever mode this machine has: the same tests run compiled on a GPU."""

import itertools

import numpy as np
import pytest
import torch

from course_lib import masks, runtime
from course_lib.kernels import backward, flash_attention
from course_lib.kernels.configs import select
from course_lib.kernels.forward import flash_forward
from course_lib.kernels.masked_backward import variant_backward
from course_lib.kernels.masked_forward import Variant
from course_lib.kernels.plain_backward import plain_attention_backward
from course_lib.reference import attention, attention_backward
from course_lib.traffic import flash_attention_backward as closed_form
from courseware.bench.accuracy import check_gradients, exact_gradients
from courseware.tracer import trace

DEVICE = runtime.device()
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SMALL = (32, 16, 4, 1)  # tiles small enough that a few dozen rows make several


def inputs(n_q, n_k, d, *, dtype=torch.float32, batch=1, heads=1, kv_heads=None, seed=0):
    """q, k, v and the gradient of o."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (batch, heads, n_q, d), (batch, kv_heads or heads, n_k, d)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(DEVICE, dtype) for s in (q, k, k, q)]


def gradients(q, k, v, do, dlse=None, *, causal=False, scale=None, config=SMALL, by_descriptor=None):
    """(dq, dk, dv) straight from the kernels, all of them in tiles of config; None: the shipped ones."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    o, lse = flash_forward(q, k, v, causal=causal, scale=scale, store_lse=True, config=config)
    return backward.flash_backward(
        q, k, v, o, lse, do, dlse, causal=causal, scale=scale, config_dkdv=config, config_dq=config,
        by_descriptor=by_descriptor,
    )  # fmt: skip


def check(q, k, v, do, dlse=None, *, causal=False, scale=None, config=SMALL, by_descriptor=None):
    answer = gradients(q, k, v, do, dlse, causal=causal, scale=scale, config=config, by_descriptor=by_descriptor)
    check_gradients(answer, q, k, v, do, dlse, causal=causal, scale=scale)
    return answer


def test_the_oracle_is_the_numpy_reference():
    q, k, v, do = inputs(9, 14, 5, dtype=torch.float64)
    for causal, scale in itertools.product((False, True), (None, 0.3)):
        arrays = [x[0, 0].cpu().numpy() for x in (q, k, v, do)]
        o, lse = attention(*arrays[:3], causal=causal, scale=scale, return_lse=True)
        expected = attention_backward(*arrays[:3], o, lse, arrays[3], causal=causal, scale=scale)
        for ours, theirs in zip(exact_gradients(q, k, v, do, causal=causal, scale=scale), expected, strict=True):
            np.testing.assert_allclose(ours[0, 0].cpu().numpy(), theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("d", (1, 40, 64, 96, 128, 160, 256))
def test_head_dims(d):
    for dtype, causal in zip(DTYPES, itertools.cycle((d % 3 == 1, d % 3 != 1)), strict=False):
        check(*inputs(37, 51, d, dtype=dtype), causal=causal, config=None)


@pytest.mark.parametrize("n_q,n_k", ((1, 1), (1, 40), (40, 1), (33, 31), (64, 64), (45, 70), (70, 45)))
def test_lengths(n_q, n_k):
    for causal in (False, True):
        check(*inputs(n_q, n_k, 24), causal=causal)
    check(*inputs(n_q, n_k, 16, dtype=torch.float16), causal=n_q != n_k, config=(16, 32, 4, 1))


@pytest.mark.parametrize("config", ((16, 16, 4, 1), (16, 64, 4, 1), (64, 16, 4, 2)))
def test_tile_sizes(config):
    for causal, (n_q, n_k) in itertools.product((False, True), ((40, 50), (50, 40))):
        check(*inputs(n_q, n_k, 16), causal=causal, config=config)


@pytest.mark.parametrize("heads,kv_heads", ((4, 2), (3, 1)))
@pytest.mark.parametrize("causal", (False, True))
def test_grouped_queries(heads, kv_heads, causal):
    check(*inputs(33, 40, 16, batch=2, heads=heads, kv_heads=kv_heads), causal=causal, config=(32, 32, 4, 1))


@pytest.mark.parametrize("scale", (1.0, -0.7, 0.0))
def test_scale(scale):
    check(*inputs(40, 50, 16), causal=True, scale=scale)


def test_a_gradient_of_lse():
    for causal in (False, True):
        q, k, v, do = inputs(40, 30, 16, heads=2)
        dlse = torch.randn(1, 2, 40, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        check(q, k, v, do, dlse, causal=causal)
        check(q, k, v, torch.zeros_like(do), dlse, causal=causal)


# Interpreted, rows beyond the last key may overflow; they are not stored.
@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
def test_scores_of_size_1e3():
    q, k, v, do = inputs(40, 50, 16)
    for causal in (False, True):
        check(30 * q, 30 * k, v, do, causal=causal)
        check(q.abs(), -50 * k.abs(), v, do, causal=causal)


def test_rows_without_a_visible_key():
    q, k, v, do = inputs(50, 13, 16)
    for config in (SMALL, (16, 16, 4, 1), (64, 64, 4, 1)):
        dq, dk, dv = check(q, k, v, do, causal=True, config=config)
        assert (dq[:, :, :37] == 0).all()


def tiles_of(rows, size):
    """The rows of all the tiles that hold one of these rows."""
    tiles = torch.zeros_like(rows)
    for start in range(0, len(rows), size):
        tiles[start : start + size] = rows[start : start + size].any()
    return tiles


@pytest.mark.filterwarnings("ignore:(invalid value|All-NaN):RuntimeWarning")
@pytest.mark.parametrize("row, causal, by_descriptor", ((5, True, False), (47, True, True), (47, False, False)))
def test_nan_reaches_what_depends_on_it_and_no_other_tile(row, causal, by_descriptor):
    """A NaN in one query or key becomes NaN in all gradients that depend on it. Gradients of rows that share no tile
    with these keep their bits, in this head and in all others. Rows below 6 see no key where causal."""
    if by_descriptor and DEVICE == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("descriptors need sm_90")
    q, k, v, do = inputs(54, 48, 16, dtype=torch.float16, batch=2, heads=2, kv_heads=1)
    clean = gradients(q, k, v, do, causal=causal, by_descriptor=by_descriptor)
    for name, tensor in {"q": q, "k": k, "v": v, "do": do}.items():
        head = 1 if name in ("q", "do") else 0  # the second of its group, in the second sequence
        before, tensor[1, head, row, 3] = tensor[1, head, row, 3].item(), torch.nan
        answers = gradients(q, k, v, do, causal=causal, by_descriptor=by_descriptor)
        assert_only_what_depends_on_it_is_nan(name, row, causal, answers, clean)
        tensor[1, head, row, 3] = before


def assert_only_what_depends_on_it_is_nan(name, row, causal, answers, clean):
    n_q, n_k, (block_m, block_n, *_) = answers[0].shape[2], answers[1].shape[2], SMALL
    sees = torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q if causal else n_k).to(DEVICE)
    if name in ("q", "do"):
        queries = (torch.arange(n_q, device=DEVICE) == row) & sees.any(1)
        tile = tiles_of(torch.arange(n_q, device=DEVICE) == row, block_m)
        heads = [1]
    else:
        queries = sees[:, row]
        tile = tiles_of(queries, block_m)
        heads = [0, 1]
    keys, nearby_keys = sees[queries].any(0), tiles_of(sees[tile].any(0), block_n)
    for gradient, answer, before, rows, nearby, its_heads in (
        ("dq", answers[0], clean[0], queries, tiles_of(queries | tile, block_m), heads),
        ("dk", answers[1], clean[1], keys, nearby_keys, [0]),
        ("dv", answers[2], clean[2], keys & (name != "v"), nearby_keys, [0]),
    ):
        touched, untouchable = (torch.zeros(answer.shape[:3], dtype=torch.bool, device=DEVICE) for _ in range(2))
        touched[1, its_heads] = rows
        untouchable[:] = True
        untouchable[1, its_heads] = ~nearby
        columns = [3] if (name, gradient) == ("do", "dv") else range(16)  # dV = P^T dO, column by column
        assert torch.isnan(answer[touched][:, columns]).all(), (name, gradient)
        assert torch.equal(answer[untouchable], before[untouchable]), (name, gradient)


def strided(kind, x):
    """x's values in another layout."""
    if kind == "seq before heads":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "rows padded":
        wide = torch.full((*x.shape[:-1], x.shape[-1] + 5), torch.nan, dtype=x.dtype, device=x.device)
        wide[..., : x.shape[-1]] = x
        return wide[..., : x.shape[-1]]
    if kind == "last dimension not contiguous":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", ("seq before heads", "rows padded", "last dimension not contiguous"))
def test_strides(kind):
    q, k, v, do = inputs(40, 30, 16, dtype=torch.float16, batch=2, heads=2)

    def by_autograd(q, k, v, do):
        leaves = [x.requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(flash_attention(*leaves, causal=True), leaves, do)

    expected = by_autograd(q, k, v, do)
    for ours, theirs in zip(by_autograd(*(strided(kind, x.detach()) for x in (q, k, v, do))), expected, strict=True):
        assert torch.equal(ours, theirs)


def sliced(q, k, v, do):
    """(q, k, v, o, lse, do, dlse) of the last half of the queries, o and what follows as slices of all rows; and once
    more, with NaN between their elements.
    """
    o, lse = flash_attention(q, k, v, causal=True, return_lse=True)
    dlse = torch.randn(lse.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    half = q.shape[2] // 2
    slices = [x[:, :, half:] for x in (o, lse, do, dlse)]
    for rest in (slices, [torch.stack([x, torch.full_like(x, torch.nan)], -1)[..., 0] for x in slices]):
        yield q[:, :, half:].contiguous(), k, v, *rest


def copies(tensors):
    return [x.clone(memory_format=torch.contiguous_format) for x in tensors]


def variant_gradients(*given, causal, scale):
    """(dq, dk, dv, dsinks) of a causal mask and a sink of each head."""
    assert causal
    variant = Variant(masks.causal(), (), None, torch.zeros(given[0].shape[1], device=DEVICE), 0.0, None)
    return variant_backward(*given, variant, scale)


@pytest.mark.parametrize("launch", (backward.flash_backward, variant_gradients))
def test_slices_have_the_gradients_of_their_copies(launch):
    for given in sliced(*inputs(80, 80, 16, heads=2)):
        expected = launch(*copies(given), causal=True, scale=0.25)
        assert all(map(torch.equal, launch(*given, causal=True, scale=0.25), expected))


def test_an_expanded_gradient():
    q, k, v, _ = inputs(20, 30, 16)
    q.requires_grad_()
    flash_attention(q, k, v).sum().backward()
    check_gradients(
        (q.grad, *gradients(q.detach(), k, v, torch.ones_like(q))[1:]), q.detach(), k, v, torch.ones_like(q)
    )


@pytest.mark.skipif(DEVICE == "cpu", reason="needs 26 GB of GPU memory")
def test_offsets_beyond_31_bits():
    # Row, head and batch past 2^31 elements in turn; from row to row MAX_ROW_STRIDE at most, so there are many rows.
    for shape, axis in (((1, 1, 200, 64), 2), ((1, 3, 40, 64), 1), ((3, 1, 40, 64), 0)):
        stride = [0, 0, 64, 1]
        stride[axis] = 2**31 // (shape[axis] - 1) // 64 * 64 + 64
        if axis != 2:
            stride[1 - axis] = 40 * 64
        storage = torch.empty(stride[axis] * (shape[axis] - 1) + 40 * 64, dtype=torch.float16, device=DEVICE)
        big = storage.as_strided(shape, stride)
        big.copy_(torch.randn(shape))
        dense = big.contiguous()
        ours, theirs = (gradients(*4 * [x], causal=True, config=None) for x in (big, dense))
        assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("causal", (False, True))
def test_tiles_by_descriptor(causal):
    """Interpreted here; where descriptors are hardware, the shipped configurations of long inputs take them."""
    if DEVICE == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("descriptors need sm_90")
    for n_q, n_k, d in ((37, 51, 24), (64, 48, 32), (5, 40, 16)):
        check(*inputs(n_q, n_k, d, dtype=torch.float16, heads=4, kv_heads=2), causal=causal, by_descriptor=True)


@pytest.mark.parametrize("n_k, by_descriptor", ((600, True), (100, False)))
def test_launches_take_what_select_says(monkeypatch, n_k, by_descriptor):
    """Of an H100, with the kernels replaced by notes of how they are launched."""
    launched = {}
    monkeypatch.setattr(backward.runtime, "capability", lambda device: (9, 0))
    monkeypatch.setattr(
        backward.Launch, "__call__", lambda self, *tensors: launched.update({self.kernel: (self, tensors)})
    )
    for dtype, d, causal in itertools.product((torch.float16, torch.float32), (64, 128), (False, True)):
        q, k = torch.zeros(1, 4, n_k, d, dtype=dtype), torch.zeros(1, 2, n_k, d, dtype=dtype)
        backward.flash_backward(q, k, k, q, torch.zeros(1, 4, n_k), q, causal=causal, scale=1.0)
        for kernel, name in ((backward.dkdv_kernel, "dkdv"), (backward.dq_kernel, "dq")):
            launch, tensors = launched[kernel]
            expected = select(
                name, dtype=dtype, head_dim=d, causal=causal, capability=(9, 0), n_k=n_k, by_descriptor=by_descriptor
            )
            blocks = launch.constants["BLOCK_M"], launch.constants["BLOCK_N"]
            assert (*blocks, launch.options["num_warps"], launch.options["num_stages"]) == expected
            rows = [x.block_shape[2] for x in tensors if hasattr(x, "block_shape")]
            assert rows == ([expected.block_m if name == "dkdv" else expected.block_n] * 2 if by_descriptor else [])


def test_the_plain_kernels_compute_the_same():
    q, k, v, do = inputs(37, 51, 24, heads=2)
    o, lse = flash_forward(q, k, v, causal=True, scale=0.2, store_lse=True)
    shipped = backward.flash_backward(q, k, v, o, lse, do, causal=True, scale=0.2)
    for ours, plain in zip(shipped, plain_attention_backward(q, k, v, o, lse, do, causal=True, scale=0.2), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads", (3, 11))
def test_tiles_of_many_heads(heads):
    """Programs alternate between the heads of a group, and the last group may be smaller."""
    check(*inputs(40, 35, 8, heads=heads), causal=True)


@pytest.mark.skipif(
    DEVICE == "cpu", reason="long inputs take descriptors on an H100; the interpreter would take minutes"
)
@pytest.mark.parametrize("d", (16, 32, 64, 80, 96, 128, 192, 256))
def test_long_inputs_in_the_shipped_configurations(d):
    for n_q, n_k, causal, dtype in (
        (1024, 1024, True, torch.float16), (700, 900, True, torch.bfloat16), (577, 1023, False, torch.float16),
    ):  # fmt: skip
        check(*inputs(n_q, n_k, d, dtype=dtype, heads=4, kv_heads=2), causal=causal, config=None)


def test_the_same_call_gives_the_same_bits_and_changes_nothing():
    given = inputs(130, 150, 32, dtype=torch.float16, heads=2, kv_heads=1)
    before = [x.clone() for x in given]
    first, second = (gradients(*given, causal=True, config=(64, 64, 4, 2)) for _ in range(2))
    assert all(map(torch.equal, first, second)) and all(map(torch.equal, given, before))


def test_every_output_element_is_written(monkeypatch):
    monkeypatch.setattr(backward.torch, "empty_like", lambda x, **_: torch.full(x.shape, torch.nan).to(x))
    for n_q, n_k in ((70, 33), (33, 70)):
        for gradient in gradients(*inputs(n_q, n_k, 24, heads=2, kv_heads=1), causal=True):
            assert not torch.isnan(gradient).any()


NAMES = {"q": "Q", "k": "K", "v": "V", "o": "O", "do": "dO", "dq": "dQ", "dk": "dK", "dv": "dV"}
TRACED = tuple(itertools.product(((33, 70), (50, 33), (32, 32), (1, 1)), (False, True)))


def test_the_tracer_counts_what_the_closed_form_says():
    """The machine counts the same: tests/course_lib/reference/test_backward.py."""
    # On a GPU each traced launch happens in another process: a sample will do there.
    for number, ((n_q, n_k), causal) in enumerate(TRACED[:: 1 if DEVICE == "cpu" else 3]):
        dtype = (torch.float32, torch.float16)[number % 2]
        (block_q, block_k), dq_blocks = ((32, 16), (16, 32)) if number % 4 < 2 else ((16, 32), (32, 16))
        q, k, v, do = inputs(n_q, n_k, 8, dtype=dtype, heads=2, kv_heads=1)
        o, lse = flash_forward(q, k, v, causal=causal, scale=1.0, store_lse=True)
        with trace(q=q, k=k, v=v, o=o, do=do, lse=lse) as traced:
            backward.flash_backward(
                q, k, v, o, lse, do, causal=causal, scale=1.0,
                config_dkdv=(block_q, block_k, 4, 1), config_dq=(*dq_blocks, 4, 1),
            )  # fmt: skip
        formula = closed_form(
            n_q, n_k, 8, block_q=block_q, block_k=block_k, dq_blocks=dq_blocks, heads=2, kv_heads=1,
            dtype_bytes=q.element_size(), causal=causal,
        )  # fmt: skip
        case = (n_q, n_k, causal, dtype)
        assert traced.violations == [], case
        assert {NAMES.get(name, name): count for name, count in traced.by_tensor.items()} == formula.by_tensor, case
        for name in ("dq", "dk", "dv", "delta"):
            assert not traced.unwritten(name).any(), (case, name)


def test_autograd_gives_the_kernels_gradients():
    q, k, v, do = inputs(40, 50, 16, heads=4, kv_heads=2)
    dlse = torch.ones(1, 4, 40, device=DEVICE)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    o, lse = flash_attention(*leaves, causal=True, return_lse=True)
    ours = torch.autograd.grad((o, lse), leaves, (do, dlse))
    check_gradients(ours, q, k, v, do, dlse, causal=True)
    lse = flash_attention(*leaves, causal=True, return_lse=True)[1]
    alone = torch.autograd.grad(lse, leaves, dlse)
    check_gradients(alone, q, k, v, torch.zeros_like(do), dlse, causal=True)


@pytest.mark.parametrize("wanted", ("q", "k", "v", "qk"))
def test_only_the_requested_gradients_are_computed(wanted):
    q, k, v, do = inputs(20, 30, 16)
    expected = dict(zip("qkv", gradients(q, k, v, do, config=None), strict=True))
    tensors = {"q": q, "k": k, "v": v}
    for name in wanted:
        tensors[name].requires_grad_()
    flash_attention(q, k, v).backward(do)
    for name, tensor in tensors.items():
        assert torch.equal(tensor.grad, expected[name]) if name in wanted else tensor.grad is None


def test_saved_are_q_k_v_o_and_lse():
    q, k, v, _ = inputs(40, 50, 16, heads=4, kv_heads=2, dtype=torch.float16)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        o, lse = flash_attention(*(x.requires_grad_() for x in (q, k, v)), return_lse=True)
    assert {x.data_ptr() for x in saved} == {x.data_ptr() for x in (q, k, v, o, lse)} and len(saved) == 5
    assert sum(x.nbytes for x in saved) == 2 * 16 * (2 * 4 * 40 + 2 * 2 * 50) + 4 * 4 * 40


def test_nothing_is_saved_without_gradients():
    q, k, v, _ = inputs(4, 4, 16)
    with trace() as traced:
        flash_attention(q, k, v)
        with torch.no_grad():
            flash_attention(q.requires_grad_(), k, v)
    assert "lse" not in traced.by_tensor


def test_a_second_derivative_is_refused():
    q, k, v, _ = inputs(4, 4, 16)
    (dq,) = torch.autograd.grad(flash_attention(q.requires_grad_(), k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.sum().backward()


def test_an_empty_batch_has_empty_gradients():
    leaves = [x[:0].requires_grad_() for x in inputs(5, 7, 4)[:3]]
    flash_attention(*leaves).sum().backward()
    assert [x.grad.shape for x in leaves] == [x.shape for x in leaves]


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_autocast(dtype):
    q, k, v, do = inputs(20, 30, 16)
    low = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    o = flash_attention(*low)
    expected = torch.autograd.grad(o, low, do.to(dtype))
    leaves = [q.requires_grad_(), low[1].detach().requires_grad_(), v.requires_grad_()]
    with torch.autocast(DEVICE, dtype):
        ours = flash_attention(*leaves)
    assert ours.dtype == dtype and torch.equal(ours, o)
    for leaf, gradient, theirs in zip(leaves, torch.autograd.grad(ours, leaves, do.to(dtype)), expected, strict=True):
        assert gradient.dtype == leaf.dtype and torch.equal(gradient, theirs.to(leaf.dtype))


@pytest.mark.parametrize("fullgraph", (False, True))
def test_under_torch_compile(fullgraph):
    def loss(q, k, v):
        o, lse = flash_attention(2 * q, k, v, causal=True, return_lse=True)
        return (3 * o).sum() + lse.sum()

    leaves = [x.requires_grad_() for x in inputs(20, 30, 16)[:3]]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    compiled = torch.compile(loss, fullgraph=fullgraph, backend="aot_eager")
    for ours, theirs in zip(torch.autograd.grad(compiled(*leaves), leaves), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
