"""The kernels of attention, forward and backward, against float64, in whichever mode this machine has.

One table of cases runs through one body, whichever kernels they are for: lesson 08's and 09's plain ones, the portable
ones, those of compute capability 9.0, and FlashAttention-1's forward.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from course_lib import masks, runtime
from course_lib.kernels import attention, backward, flash_attention, forward
from course_lib.kernels.configs import BLOCK_SIZES
from course_lib.kernels.hopper.backward import hopper_backward
from course_lib.kernels.hopper.forward import hopper_forward
from course_lib.kernels.launch import MAX_ROW_STRIDE
from course_lib.kernels.masked_attention import Variant, variant_backward
from course_lib.kernels.plain_backward import differentiable_attention, plain_attention_backward
from course_lib.kernels.plain_forward import flash_forward as plain_kernel
from course_lib.kernels.plain_forward import plain_attention
from course_lib.kernels.score_mods import alibi
from course_lib.traffic import flash_attention_backward as closed_form
from courseware.bench.accuracy import check_attention, check_gradients, exact_attention
from courseware.bench.flash1_forward import flash1_attention
from courseware.tracer import trace
from tests.course_lib.kernels.common import (
    BFLOAT,
    DEVICE,
    DTYPES,
    FLOAT,
    HALF,
    LAYOUTS,
    ON_CPU,
    far_apart,
    inputs,
    leaves,
    random,
    seq_before_heads,
)  # fmt: skip

SMALL = (32, 16)  # tiles of so many queries and keys: a few dozen rows make several
CAPABILITY = None if ON_CPU else runtime.capability(0)
HAS_HOPPER = ON_CPU or CAPABILITY[0] == 9


class Kernels(NamedTuple):
    """forward(q, k, v, causal, scale, tiles) -> (o, lse); backward(q, k, v, o, lse, do, dlse, causal, scale, tiles)."""

    forward: Callable
    backward: Callable | None


def portable_forward(q, k, v, causal, scale, tiles, **how):
    config = tiles and (*tiles, 4, 1)
    return forward.flash_forward(q, k, v, causal=causal, scale=scale, store_lse=True, config=config, **how)


def portable_backward(q, k, v, o, lse, do, dlse, causal, scale, tiles, **how):
    config = tiles and (*tiles, 4, 1)
    return backward.flash_backward(
        q, k, v, o, lse, do, dlse, causal=causal, scale=scale, config_dkdv=config, config_dq=config, **how
    )


def blocks(tiles):
    return dict(zip(("block_q", "block_k"), tiles or (32, 32), strict=True))


def plain_forward(q, k, v, causal, scale, tiles):
    return plain_attention(q, k, v, causal=causal, scale=scale, **blocks(tiles))


def plain_backward(q, k, v, o, lse, do, dlse, causal, scale, tiles):
    return plain_attention_backward(q, k, v, o, lse, do, causal=causal, scale=scale, **blocks(tiles))


def hopper_gradients(q, k, v, o, lse, do, dlse, causal, scale, tiles):
    return hopper_backward(q, k, v, o, lse, do, dlse, causal=causal, scale=scale)


def both_hopper_gradients(q, k, v, o, lse, do, dlse, causal, scale, tiles):
    fused = hopper_backward(q, k, v, o, lse, do, dlse, causal=causal, scale=scale, fused=True)
    check_gradients(fused, q, k, v, do, dlse, causal=causal, scale=scale)
    gradients = hopper_gradients(q, k, v, o, lse, do, dlse, causal, scale, tiles)
    assert q.shape[3] <= 64 or all_equal(fused[1:], gradients[1:])  # of up to 64 columns, tiles are others
    return gradients


KERNELS = {
    "plain": Kernels(plain_forward, plain_backward),
    "plain forward": Kernels(plain_forward, None),
    "portable": Kernels(portable_forward, portable_backward),
    "by descriptor": Kernels(
        lambda *given: portable_forward(*given, by_descriptor=True),
        lambda *given: portable_backward(*given, by_descriptor=True),
    ),
    "hopper": Kernels(
        lambda q, k, v, causal, scale, tiles: hopper_forward(q, k, v, causal=causal, scale=scale, store_lse=True),
        both_hopper_gradients,
    ),
    "flash1": Kernels(
        lambda q, k, v, causal, scale, tiles: flash1_attention(q, k, v, causal=causal, **blocks(tiles)), None
    ),
}


def check(kernels, q, k, v, do, dlse=None, *, causal=False, scale=None, tiles=SMALL):
    """o, lse and the gradients of q, k and v within the error budget; returns them."""
    run, scale_or_default = KERNELS[kernels], q.shape[-1] ** -0.5 if scale is None else scale
    o, lse = run.forward(q, k, v, causal, scale_or_default, tiles)
    check_attention((o, lse), q, k, v, causal=causal, scale=scale)
    if run.backward is None:
        return o, lse
    gradients = run.backward(q, k, v, o, lse, do, dlse, causal, scale_or_default, tiles)
    check_gradients(gradients, q, k, v, do, dlse, causal=causal, scale=scale)
    return o, lse, *gradients


class Case(NamedTuple):
    kernels: str
    n_q: int
    n_k: int
    d: int = 16
    dtype: torch.dtype = FLOAT
    causal: bool = False
    heads: tuple = (1, 1, 1)  # batch, heads, kv_heads
    scale: float | None = None
    tiles: tuple | None = SMALL

    def __str__(self):
        return "-".join(str(x).removeprefix("torch.") for x in self)


BOTH = (False, True)
# Rows that see no key under a causal mask are in every case with more queries than keys.
CASES = [
    # Lengths around a tile, and tiles of every pair of sizes, in two shapes.
    *(
        Case(kernels, n_q, n_k, 8, causal=causal, tiles=tiles)
        for kernels, tiles, lengths in (("portable", (16, 16), (1, 16, 17, 40)), ("plain", (16, 32), (1, 17, 40)))
        for n_q, n_k, causal in itertools.product(lengths, (1, 16, 33), BOTH)
    ),
    *(
        Case("portable", *lengths, causal=(m + n) // 16 % 2 == at, heads=(2, 1, 1), tiles=(m, n))
        for m, n in itertools.product(BLOCK_SIZES, repeat=2)
        for at, lengths in enumerate(((45, 130), (130, 70)))
    ),
    *(Case("plain", 40, 50, causal=True, tiles=tiles) for tiles in ((16, 64), (64, 16))),
    *(
        Case("flash1", *shape, 24, dtype, causal)
        for shape, dtype, causal in itertools.product(((33, 70), (70, 33)), DTYPES, BOTH)
    ),
    # The shipped tiles, with lengths around them.
    *(
        Case("portable", n_q, n_k, 40, dtype, n_q < n_k, tiles=None)
        for (n_q, n_k), dtype in zip(((1, 300), (300, 1), (127, 129), (256, 128)), (*DTYPES, HALF), strict=True)
    ),
    # Head dimensions of every kind in every dtype, with and without a mask.
    *(
        Case("portable", 37, 51, d, dtype, (at + d) % 2 == 0, (2, 1, 1), tiles=None)
        for at, (d, dtype) in enumerate(itertools.product((1, 24, 64, 256), DTYPES))
    ),
    *(
        Case("portable", 37, 51, d, dtype, d > 90, tiles=None)
        for d, dtype in zip((3, 31, 80, 96, 128, 160, 192), itertools.cycle(DTYPES))
    ),
    *(
        Case("plain", 37, 51, d, dtype, (at + d) % 2 == 0, (2, 2, 2), tiles=None)
        for at, (d, dtype) in enumerate(itertools.product((1, 40, 64, 256), (HALF, FLOAT)))
    ),
    *(Case("plain forward", 37, 51, 40, BFLOAT, causal) for causal in BOTH),
    # Heads that share keys; more heads than a group of programs has, and more sequences than one.
    *(
        Case("portable", 33, 40, causal=causal, heads=heads)
        for heads in ((2, 6, 2), (1, 4, 1), (1, 11, 11))
        for causal in BOTH
    ),
    # The last scale makes scores of size 1e3, in which one key takes all.
    *(Case(k, 40, 80, causal=True, scale=s) for k in ("portable", "plain") for s in (3, -0.7, 0.0, 225)),
    *(
        Case("by descriptor", n_q, n_k, d, HALF, causal, (1, 4, 2))
        for n_q, n_k, d in ((37, 51, 24), (64, 48, 32), (5, 40, 16))
        for causal in BOTH
    ),
    # Hopper's tiles have 64 and 128 rows: lengths that end with a tile, one before, one behind; shorter than a tile;
    # masked tiles in two of 128 keys; a second group whose rows are all beyond the tensor.
    *(
        Case("hopper", n_q, n_k, d, dtype, causal)
        for n_q, n_k in ((256, 256), (255, 257), (5, 77), (300, 100), (129, 1), (200, 333), (1, 640))
        for causal, (d, dtype) in itertools.product(BOTH, ((64, HALF), (128, BFLOAT)))
    ),
    *(Case("hopper", 150, 200, d, HALF, True) for d in (40, 72, 96, 120)),
    *(Case("hopper", 130, 140, 64, HALF, True, scale=scale) for scale in (0.0, -0.3, 2.0)),
    *(Case("hopper", 190, 260, 64, BFLOAT, causal, (2, 4, 2)) for causal in BOTH),
]
if not ON_CPU:  # Long enough for descriptors from compute capability 9.0 on; the interpreter would take minutes.
    CASES += [
        Case("portable", n_q, n_k, d, dtype, causal, (1, 4, 2), tiles=None)
        for d in (16, 24, 32, 64, 80, 96, 128, 160, 192, 256)
        for n_q, n_k, causal, dtype in (
            (1024, 1024, True, HALF), (700, 900, True, BFLOAT), (577, 1023, False, HALF), (130, 600, True, FLOAT),
        )
    ]  # fmt: skip


# Interpreted, rows beyond the last key may overflow; they are not stored.
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_and_gradients_keep_the_error_budget(case, poisoned_memory):
    if case.kernels == "hopper" and not HAS_HOPPER or case.kernels == "by descriptor" and (CAPABILITY or (9,))[0] < 9:
        pytest.skip("not on this GPU")
    batch, heads, kv_heads = case.heads
    q, k, v, do = inputs(case.n_q, case.n_k, case.d, dtype=case.dtype, batch=batch, heads=heads, kv_heads=kv_heads)
    if heads > 1:
        k, do = seq_before_heads(k), seq_before_heads(do)
    dlse = random(*q.shape[:3], seed=9) if case.kernels != "plain" and case.causal else None
    o, lse, *gradients = check(case.kernels, q, k, v, do, dlse, causal=case.causal, scale=case.scale, tiles=case.tiles)
    if case.causal and case.n_q > case.n_k:
        hidden = slice(case.n_q - case.n_k)
        assert (o[:, :, hidden] == 0).all() and (lse[:, :, hidden] == -torch.inf).all()
        assert not gradients or (gradients[0][:, :, hidden] == 0).all()


@pytest.mark.filterwarnings("ignore:(invalid value|All-NaN):RuntimeWarning")
@pytest.mark.parametrize("row, causal, tiles", ((5, True, (16, 64)), (40, True, (16, 16)), (47, False, SMALL)))
def test_nan_reaches_what_depends_on_it_and_no_other_tile(row, causal, tiles):
    """0 * NaN is NaN in a matrix product, so what a tile loads may reach all of its rows, but no other tile's: those
    keep their bits, in this head and in all others. Rows below 6 see no key where causal.
    """
    q, k, v, do = inputs(54, 48, 16, dtype=HALF, batch=2, heads=2, kv_heads=1)

    def run():
        o, lse = portable_forward(q, k, v, causal, 0.25, tiles)
        return o, *portable_backward(q, k, v, o, lse, do, None, causal, 0.25, tiles)

    clean, rows, mask = run(), torch.arange(54, device=DEVICE), masks.causal() if causal else masks.full()
    sees = torch.from_numpy(mask.dense(54, 48)).to(DEVICE)
    visits = torch.from_numpy(mask.tiles(54, 48, *tiles).kinds != masks.HIDDEN).to(DEVICE)
    visits = visits.repeat_interleave(tiles[0], 0)[:54].repeat_interleave(tiles[1], 1)[:, :48]
    for name, tensor in {"q": q, "k": k, "v": v, "do": do}.items():
        of_queries = name in ("q", "do")
        hit = (rows == row) & sees.any(1) if of_queries else sees[:, row]
        near = rows // tiles[0] == row // tiles[0] if of_queries else visits[:, row]
        before, tensor[1, -1, row, 3] = tensor[1, -1, row, 3].item(), torch.nan
        for of, answer, was in zip(("o", "dq", "dk", "dv"), run(), clean, strict=True):
            by_query = of in ("o", "dq")
            touched, loads = (hit, near) if by_query else (sees[hit].any(0), visits[near].any(0))
            # O = P V and dV = P^T dO, column by column.
            columns = [3] if (name, of) in (("v", "o"), ("do", "dv")) else range(16)
            far = torch.ones(answer.shape[:3], dtype=torch.bool, device=DEVICE)
            for head in (0, 1) if by_query and not of_queries else [-1]:
                far[1, head] = ~loads
                depends = (name, of) not in (("do", "o"), ("v", "dv"))
                assert not depends or torch.isnan(answer[1, head][touched][:, columns]).all(), (name, of)
            assert torch.equal(answer[far], was[far]), (name, of)
        tensor[1, -1, row, 3] = before


# The public function.


def by_autograd(q, k, v, do, dlse=None, **how):
    """(o, lse, dq, dk, dv) of `flash_attention`."""
    given = leaves(q, k, v)
    o, lse = flash_attention(*given, **how, return_lse=True)
    outputs, gradients = ((o,), (do,)) if dlse is None else ((o, lse), (do, dlse))
    return o, lse, *torch.autograd.grad(outputs, given, gradients)


def all_equal(ours, theirs):
    return all(map(torch.equal, ours, theirs))


def test_autograd_gives_the_kernels_gradients_and_the_same_bits_every_time():
    q, k, v, do = given = inputs(140, 150, 16, heads=4, kv_heads=2)
    dlse, before = random(1, 4, 140, seed=9), [x.clone() for x in given]
    first, second = (by_autograd(*given, dlse, causal=True) for _ in range(2))
    check_attention(first[:2], q, k, v, causal=True)
    check_gradients(first[2:], q, k, v, do, dlse, causal=True)
    assert all_equal(first, second) and all_equal(given, before)
    assert torch.equal(flash_attention(q, k, v, causal=True), first[0]), "o alone is the same o"
    lse = flash_attention(*(tensors := leaves(q, k, v)), causal=True, return_lse=True)[1]
    check_gradients(torch.autograd.grad(lse, tensors, dlse), q, k, v, torch.zeros_like(do), dlse, causal=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_gives_the_same_bits(layout):
    given = inputs(40, 56, 32, dtype=HALF, batch=2, heads=2)
    expected = by_autograd(*given, causal=True)
    assert all_equal(by_autograd(*map(layout, given), causal=True), expected)


@pytest.mark.parametrize("shape, axis", (((3, 1, 20, 16), 0), ((1, 3, 20, 16), 1), ((1, 1, 150, 16), 2)))
def test_offsets_beyond_31_bits(shape, axis):
    far = far_apart(shape, axis, 2**30 if axis < 2 else MAX_ROW_STRIDE // 16 * 16)  # larger rows would be copied
    near = far.contiguous()
    for tiles in (None, (16, 16)) if ON_CPU else (None, (16, 16), (128, 128)):
        expected = portable_forward(near, near, near, True, 0.25, tiles)
        assert all_equal(portable_forward(far, far, far, True, 0.25, tiles), expected)
        ours, theirs = (portable_backward(x, x, x, *expected, x, None, True, 0.25, tiles) for x in (far, near))
        assert all_equal(ours, theirs)


@pytest.mark.parametrize("axis", (0, 1))
def test_offsets_of_the_plain_kernel_beyond_31_bits(axis):
    """Three heads, or three rows, 2^30 elements apart."""
    far = far_apart(((1, 3, 20, 16), (1, 1, 3, 16))[axis], axis + 1, 2**30 + 16)[0]
    outputs = []
    for x in (far, far.contiguous()):
        (heads, n, d), o, lse = x.shape, torch.empty(x.shape, dtype=HALF, device=DEVICE), torch.empty(3, 20).to(DEVICE)
        plain_kernel[(2, heads)](
            x, x, x, o, lse, *3 * x.stride()[:2], *o.stride()[:2], n, n, n, 0.25,
            IS_CAUSAL=True, HEAD_DIM=d, BLOCK_M=16, BLOCK_N=16, BLOCK_D=16,
        )  # fmt: skip
        outputs.append(o)
    assert torch.equal(*outputs)


def variant_of_a_causal_mask(q, k, v, o, lse, do, dlse, causal, scale, tiles):
    """(dq, dk, dv, dsinks), with a sink of each head."""
    variant = Variant(masks.causal(), (), None, torch.zeros(q.shape[1], device=DEVICE), 0.0, None)
    return variant_backward(q, k, v, o, lse, do, dlse, variant, scale)


@pytest.mark.parametrize(
    "run, n, d, dtype",
    (
        (portable_backward, 80, 16, FLOAT), (variant_of_a_causal_mask, 80, 16, FLOAT),
        pytest.param(
            hopper_gradients, 300, 64, HALF, marks=pytest.mark.skipif(not HAS_HOPPER, reason="another GPU")
        ),
    ),
)  # fmt: skip
def test_slices_have_the_gradients_of_their_copies(run, n, d, dtype):
    """Of half of the queries: o, lse, do and dlse are slices of all rows, or have NaN between their elements."""
    q, k, v, do = inputs(n, n, d, dtype=dtype, heads=2)
    o, lse = flash_attention(q, k, v, causal=True, return_lse=True)
    slices = [x[:, :, n // 2 :] for x in (o, lse, do, random(*lse.shape, seed=9))]
    apart = [torch.stack([x, torch.full_like(x, torch.nan)], -1)[..., 0] for x in slices]
    q = q[:, :, n // 2 :].contiguous()
    expected = run(q, k, v, *(x.contiguous() for x in slices), True, 0.25, None)
    for given in (slices, apart):
        assert all_equal(run(q, k, v, *given, True, 0.25, None), expected)


NAMES = {"q": "Q", "k": "K", "v": "V", "o": "O", "do": "dO", "dq": "dQ", "dk": "dK", "dv": "dV"}


def test_the_backward_moves_the_bytes_that_the_closed_form_says_and_no_others():
    """As the machine in tests/course_lib/reference/test_tiled.py does. The forward's: tests/test_counts_agree.py."""
    cases = itertools.product(((33, 70), (50, 33), (32, 32), (1, 1)), BOTH)
    # On a GPU each traced launch happens in another process: a sample will do there.
    for number, ((n_q, n_k), causal) in enumerate(list(cases)[:: 1 if ON_CPU else 3]):
        dtype = (FLOAT, HALF)[number % 2]
        (block_q, block_k), dq_blocks = ((32, 16), (16, 32)) if number % 4 < 2 else ((16, 32), (32, 16))
        q, k, v, do = inputs(n_q, n_k, 8, dtype=dtype, heads=2, kv_heads=1)
        case = (n_q, n_k, causal, dtype)
        o, lse = portable_forward(q, k, v, causal, 1.0, SMALL)
        with trace(q=q, k=k, v=v, o=o, do=do, lse=lse) as traced:
            backward.flash_backward(
                q, k, v, o, lse, do, causal=causal, scale=1.0,
                config_dkdv=(block_q, block_k, 4, 1), config_dq=(*dq_blocks, 4, 1),
            )  # fmt: skip
        formula = closed_form(
            n_q, n_k, 8, block_q=block_q, block_k=block_k, dq_blocks=dq_blocks, heads=2, kv_heads=1,
            dtype_bytes=q.element_size(), causal=causal,
        )  # fmt: skip
        assert traced.violations == [], case
        assert {NAMES.get(name, name): count for name, count in traced.by_tensor.items()} == formula.by_tensor, case


def test_more_sequences_and_heads_than_a_grid_has_room_for(monkeypatch):
    """A CUDA grid takes 65,535 programs along its second and third axes; here it takes 3."""
    sinks, slopes = random(4, seed=5), random(2, 4, seed=6).abs()
    key_ranges = torch.arange(20, device=DEVICE).int() + torch.tensor([[[0], [1]], [[2], [9]]], device=DEVICE).int()
    calls = [
        dict(causal=True, scale=-0.3, block_q=16), dict(causal=True, score_mod=alibi(slopes), sinks=sinks),
        dict(key_ranges=key_ranges),
    ]  # fmt: skip
    for how, batch in itertools.product(calls, (2, 4)):
        if batch == 4 and "score_mod" in how:
            how = how | {"score_mod": alibi(slopes[0])}
        if batch == 4 and "key_ranges" in how:
            how = how | {"key_ranges": key_ranges.repeat(2, 1, 1)}
        given = leaves(*inputs(20, 33, 16, batch=batch, heads=4, kv_heads=2)[:3])

        def results(given=given, how=how):
            o, lse = flash_attention(*given, return_lse=True, **how)
            return o, lse, *torch.autograd.grad(o.square().sum() + lse.sum(), given)

        at_once = results()
        with monkeypatch.context() as patched:
            patched.setattr(attention, "MAX_GRID_AXIS", 3)
            assert all_equal(results(), at_once)
            assert torch.equal(flash_attention(*(x.detach() for x in given), **how), at_once[0])
            with pytest.raises(ValueError, match=r"q has (batch|heads) 4; at most 3 are accepted with dropout"):
                flash_attention(*given, dropout_p=0.1)


@pytest.mark.parametrize("batch, n_q, n_k", [(2, 0, 5), (2, 5, 0), (2, 0, 0), (0, 5, 7)])
def test_no_sequences_no_queries_and_no_keys(batch, n_q, n_k):
    """Rows without keys have the output 0 and the lse -inf, or the sink; all gradients are there."""
    for how in ({}, {"causal": True}, {"mask": masks.sliding_window(3, 0)}):
        q, k, v, sinks = leaves(*inputs(n_q, n_k, 8, batch=batch, heads=4, kv_heads=2)[:3], random(4))
        o, lse = flash_attention(q, k, v, return_lse=True, **how)
        assert o.shape == q.shape and not o.any() and lse.shape == q.shape[:3] and (lse == -torch.inf).all()
        assert not any(x.any() for x in torch.autograd.grad(o.sum(), (q, k, v)))
        o, lse = flash_attention(q, k, v, sinks=sinks, return_lse=True, **how)
        assert torch.equal(lse, sinks[:, None].expand_as(lse)) and not o.any()
        assert not torch.autograd.grad(o.sum(), sinks, retain_graph=True)[0].any()
        assert torch.equal(torch.autograd.grad(lse.sum(), sinks)[0], torch.full_like(sinks, batch * n_q))


@pytest.mark.parametrize("wanted", ("q", "k", "v", "qk"))
def test_only_the_requested_gradients_are_computed(wanted):
    q, k, v, do = inputs(20, 30, 16)
    expected = dict(zip("qkv", by_autograd(q, k, v, do)[2:], strict=True))
    tensors = {"q": q, "k": k, "v": v}
    for name in wanted:
        tensors[name].requires_grad_()
    flash_attention(q, k, v).backward(do)
    for name, tensor in tensors.items():
        assert torch.equal(tensor.grad, expected[name]) if name in wanted else tensor.grad is None


def test_saved_are_q_k_v_o_and_lse_and_nothing_without_gradients():
    q, k, v, _ = inputs(40, 50, 16, heads=4, kv_heads=2, dtype=HALF)
    with trace() as traced:
        flash_attention(q, k, v)
        with torch.no_grad():
            flash_attention(q.requires_grad_(), k, v)
    assert "lse" not in traced.by_tensor
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        o, lse = flash_attention(*(x.requires_grad_() for x in (q, k, v)), return_lse=True)
    assert {x.data_ptr() for x in saved} == {x.data_ptr() for x in (q, k, v, o, lse)} and len(saved) == 5


@pytest.mark.parametrize("dtype", (HALF, BFLOAT))
def test_autocast(dtype):
    given = inputs(20, 30, 16)
    low = [x.to(dtype) for x in given]
    expected = by_autograd(*low)
    q, k, v = mixed = leaves(given[0], low[1], given[2])
    with torch.autocast(DEVICE, dtype):
        ours = flash_attention(q, k, v)
    assert ours.dtype == dtype and torch.equal(ours, expected[0])
    gradients = torch.autograd.grad(ours, mixed, low[3])
    for leaf, gradient, theirs in zip(mixed, gradients, expected[2:], strict=True):
        assert gradient.dtype == leaf.dtype and torch.equal(gradient, theirs.to(leaf.dtype))


@pytest.mark.skipif(ON_CPU, reason="the interpreter has no shared memory to exceed")
def test_tiles_that_do_not_fit_say_what_they_need():
    q, k, v, _ = inputs(256, 256, 256)
    with pytest.raises(ValueError, match=r"block_q=128, block_k=128 at head_dim=256, float32, needs \d+ bytes"):
        flash_attention(q, k, v, block_q=128, block_k=128)


@pytest.mark.skipif(ON_CPU or CAPABILITY < (8, 0), reason="the interpreter multiplies in plain fp32")
def test_fp32_on_tensor_cores_near_the_limits_of_the_format():
    """What the docstring of `flash_attention` says; plain fp32 products would pass only the first of these."""
    q, k, v, _ = inputs(128, 128, 64)
    exact, _ = exact_attention(q, k, v)

    def relative_error(o, size):
        return float((o.double() / size - exact).norm() / exact.norm())

    for size in (1e-33, 1e-20, 1e20, 1e37):
        assert relative_error(flash_attention(q, k, size * v), size) < 1e-6
    # The smallest of the three bf16 parts of a number falls below what a bf16 can hold.
    assert 1e-6 < relative_error(flash_attention(q, k, 1e-36 * v), 1e-36) < 1e-4
    v[0, 0, 5, 3] = 3.4e38  # a bf16 holds 3.39e38 at most
    assert not torch.isfinite(flash_attention(q, k, v)[0, 0, :, 3]).any()


@pytest.mark.parametrize("scale", (None, 0.6))
def test_lesson_09_s_kernels_differentiated_for_shared_heads_and_fewer_queries(scale):
    q, k, v, do = (random(2, *shape, 8, seed=i) for i, shape in enumerate(((4, 5), (2, 9), (2, 9), (4, 5))))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    o = differentiable_attention(*leaves, causal=True, scale=scale)
    check_attention(o.detach(), *(x.detach() for x in leaves), causal=True, scale=scale)
    gradients = torch.autograd.grad(o, leaves, do.mT.contiguous().mT)
    check_gradients(gradients, *(x.detach() for x in leaves), do, causal=True, scale=scale)
