"""Masks, score mods, sinks and dropout: against a float64 statement of each, and the laws that they keep."""

import itertools

import numpy as np
import pytest
import torch

from course_lib import masks, runtime
from course_lib.kernels import flash_attention, masked_backward, masked_forward
from course_lib.kernels.block_mask import block_mask_of
from course_lib.kernels.configs import Config
from course_lib.kernels.score_mods import alibi, soft_cap
from course_lib.masks import FULL, HIDDEN, PARTIAL
from courseware.bench.accuracy import assert_within_budget
from courseware.tracer import trace

DEVICE = runtime.device()
N_Q, N_K, D = 37, 45, 24
LAYOUT = np.array([[True, False, True, True], [False] * 4, [True, True, False, False]])
MASKS = {
    "window": masks.sliding_window(9, 3),
    "documents": masks.documents(np.arange(N_K) // 17) & masks.causal(),
    "sparse": masks.block_sparse(LAYOUT, 13),  # queries 13 to 25 see nothing
    # Sequences of (queries, keys): (0, 3), (1, 0), (19, 27), (1, 1), (0, 0), (16, 14)
    "packed": masks.packed([0, 0, 1, 20, 21, 21, 37], [0, 3, 3, 30, 31, 31, 45], masks.sliding_window(20, 0)),
    "either": masks.sliding_window(5, 0) | masks.documents(np.arange(N_K) % 3),
}


def random(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def inputs(n_q=N_Q, n_k=N_K, d=D, dtype=torch.float32):
    """q, k, v of 2 sequences and 4 heads, of which two share keys, and a gradient of the output."""
    return [
        random(2, h, n, d, dtype=dtype, seed=i) for i, (h, n) in enumerate([(4, n_q), (2, n_k), (2, n_k), (4, n_q)])
    ]


def stated(q, k, v, sinks=None, *, mask=None, cap=None, slopes=None, cap_first=True, kept=None, p=0.0, scale=None):
    """(o, lse) with every score written out, in the dtype of q. kept: [batch, heads, n_q, n_k] of bool."""
    n_q, n_k, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT * (q.shape[3] ** -0.5 if scale is None else scale)
    if cap is not None and cap_first:
        scores = cap * torch.tanh(scores / cap)
    if slopes is not None:
        position = (mask or masks.full()).positions(n_q, n_k)
        distance = torch.from_numpy(abs(position[:, None] - np.arange(n_k))).to(q.device)
        scores = scores - slopes.to(q.dtype)[..., None, None] * distance
    if cap is not None and not cap_first:
        scores = cap * torch.tanh(scores / cap)
    if mask is not None:
        scores = scores.masked_fill(~torch.from_numpy(mask.dense(n_q, n_k)).to(q.device), -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(q.dtype)[:, None, None].expand(*scores.shape[:3], 1)], dim=-1)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.softmax(scores, dim=-1).masked_fill((lse == -torch.inf)[..., None], 0.0)[..., :n_k]
    if kept is not None:
        weights = weights * kept / (1 - p)
    return weights @ v.repeat_interleave(group, 1), lse


def check(call, *, sinks=None, dtype=torch.float32, **how):
    """call(q, k, v, sinks) -> (o, lse): values and gradients within the error budget of `stated`."""
    *leaves, do = inputs(dtype=dtype)
    leaves += [] if sinks is None else [sinks]
    dlse, results = random(*do.shape[:3], seed=9), {}
    for name, as_dtype in (("answer", None), ("plain", dtype), ("exact", torch.float64)):
        given = [x.detach().to(as_dtype or x.dtype).requires_grad_() for x in leaves]
        o, lse = call(*given) if name == "answer" else stated(*given, **how)
        gradients = torch.autograd.grad((o, lse), given, (do.to(o.dtype), dlse.to(lse.dtype)))
        results[name] = o.detach(), lse.detach(), *gradients
    dtypes = dtype, torch.float32, *(x.dtype for x in leaves)
    lse = results["exact"][1]
    # The larger lse is, the larger its rounding to fp32, and that is a relative error of P = exp(S - lse).
    of_lse = torch.where(lse == -torch.inf, 0.0, lse.abs() / 2).max().clamp(min=1.0)
    for name, answer, plain, exact, of in zip(
        ("o", "lse", "dq", "dk", "dv", "dsinks"), *results.values(), dtypes, strict=False
    ):
        # Gradients are differences of larger terms, which are of the size of the inputs here.
        terms = None if name in ("o", "lse") else of_lse * (exact.abs() + 1)
        assert_within_budget(name, answer, plain, exact, of, terms=terms)


@pytest.fixture
def in_tiles(monkeypatch):
    """in_tiles(m, n): from then on, all kernels have tiles of m queries and n keys."""

    def choose(block_m, block_n):
        for module in (masked_forward, masked_backward):
            monkeypatch.setattr(module, "config_of", lambda *_: Config(block_m, block_n, 4, 1))

    return choose


@pytest.mark.parametrize(
    "name, tile", (*itertools.product(MASKS, ((16, 32), (32, 16))), ("sparse", (16, 128)), ("either", (16, 128)))
)
def test_masks(name, tile, in_tiles):
    in_tiles(*tile)
    check(lambda q, k, v: flash_attention(q, k, v, mask=MASKS[name], return_lse=True), mask=MASKS[name])


def test_everything_at_once(in_tiles):
    in_tiles(32, 16)
    slopes, sinks = torch.tensor([[0.5, 0.25, 1.0, 0.1], [0.3, 0.2, 0.1, 0.7]]), random(4, seed=5)
    mods = soft_cap(1.5), alibi(slopes)
    check(
        lambda q, k, v, s: flash_attention(
            q, k, v, causal=True, mask=MASKS["sparse"], score_mod=mods, sinks=s, return_lse=True
        ),
        sinks=sinks, mask=MASKS["sparse"] & masks.causal(), cap=1.5, slopes=slopes.to(DEVICE),
    )  # fmt: skip


def test_score_mods_are_applied_one_after_the_other(in_tiles):
    """The derivative is taken where each of them stands: behind alibi, a cap sees other scores."""
    in_tiles(16, 32)
    slopes = torch.tensor([0.5, 0.25, 1.0, 0.1])
    for cap_first in (True, False):
        mods = (soft_cap(1.5), alibi(slopes)) if cap_first else (alibi(slopes), soft_cap(1.5))
        check(
            lambda q, k, v, mods=mods: flash_attention(q, k, v, score_mod=mods, return_lse=True),
            cap=1.5, slopes=slopes.to(DEVICE), cap_first=cap_first,
        )  # fmt: skip


def test_packed_sequences_have_biases_of_their_own_positions(in_tiles):
    in_tiles(16, 32)
    slopes, mask = torch.tensor([0.5, 0.25, 1.0, 0.1]), MASKS["packed"]
    check(
        lambda q, k, v: flash_attention(q, k, v, mask=mask, score_mod=alibi(slopes), return_lse=True),
        mask=mask, slopes=slopes.to(DEVICE),
    )  # fmt: skip


def philox(seed, c0, c1, c2):
    """The four 32-bit numbers of Philox-4x32-7 (Salmon et al. 2011) for counters (c0, c1, c2, 0)."""
    low, shift = np.uint64(2**32 - 1), np.uint64(32)
    c = [np.asarray(x, np.uint64) for x in np.broadcast_arrays(c0, c1, c2, 0)]
    keys = np.array([seed & (2**32 - 1), seed >> 32], np.uint64)
    for _ in range(7):
        first, second = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(second >> shift) ^ c[1] ^ keys[0], second & low, (first >> shift) ^ c[3] ^ keys[1], first & low]
        keys = (keys + np.array([0x9E3779B9, 0xBB67AE85], np.uint64)) & low
    return c


def kept_pairs(seed, p, n_q=N_Q, n_k=N_K, heads=8):
    """Which pairs dropout keeps: [heads, n_q, n_k] of bool. Each number of Philox is for one of four pairs."""
    queries, keys = np.arange(n_q)[:, None], np.arange(n_k)
    numbers = philox(seed, keys // 16 * 8 + keys % 8, queries // 16 * 8 + queries % 8, np.arange(heads)[:, None, None])
    drawn = np.choose(queries // 8 % 2 * 2 + keys // 8 % 2, numbers)
    # Compared as signed numbers.
    return (drawn ^ np.uint64(2**31)) >= round(p * 2**32)


def test_dropout_keeps_what_philox_says_forward_and_backward(in_tiles):
    p, seed = 0.3, 2**40 + 17
    kept = torch.from_numpy(kept_pairs(seed, p)).view(2, 4, N_Q, N_K).to(DEVICE)
    how = dict(mask=MASKS["window"], dropout_p=p, seed=seed, return_lse=True)
    for tile in ((32, 16), (16, 64)):
        in_tiles(*tile)
        check(lambda q, k, v: flash_attention(q, k, v, **how), mask=MASKS["window"], kept=kept, p=p)


def test_dropout_keeps_its_share_and_draws_for_each_pair_alone():
    """Of neighbours, and of the pairs that share a call of Philox, both are kept as often as chance has it."""
    p, n = 0.3, 256
    kept = kept_pairs(5, p, n, n, 4)
    assert abs(kept.mean() - 0.7) < 4 * (0.21 / kept.size) ** 0.5
    for by in ((0, 1), (1, 0), (0, 8), (8, 0), (8, 8), (0, 16), (16, 0)):
        both = kept[:, : n - by[0], : n - by[1]] & kept[:, by[0] :, by[1] :]
        assert abs(both.mean() - 0.49) < 4 * (0.49 * 0.51 / both.size) ** 0.5 * 1.5, by
    assert abs((kept[0] & kept[1]).mean() - 0.49) < 4 * (0.25 / n**2) ** 0.5


def test_dropout_of_nothing_and_of_everything():
    q, k, v, _ = inputs()
    plain, lse = flash_attention(q, k, v, mask=masks.full(), return_lse=True)
    assert torch.equal(flash_attention(q, k, v, mask=masks.full(), dropout_p=0.0, seed=3), plain)
    nothing, same_lse = flash_attention(q, k, v, dropout_p=1.0, seed=3, return_lse=True)
    assert not nothing.any() and torch.equal(same_lse, lse)
    one, other = (flash_attention(q, k, v, dropout_p=0.5, seed=seed) for seed in (1, 2))
    assert not torch.equal(one, other) and torch.equal(one, flash_attention(q, k, v, dropout_p=0.5, seed=1))


def test_laws_of_masks():
    q, k, v, _ = inputs()
    full = flash_attention(q, k, v, mask=masks.full())
    assert torch.equal(flash_attention(q, k, v, mask=masks.sliding_window(N_K, N_K)), full)
    all_blocks = flash_attention(q, k, v, mask=masks.block_sparse(np.ones((1, 1), bool), 64))
    # A layout is read as bits, by other code, which a GPU's compiler may round differently.
    assert torch.equal(all_blocks, full) or DEVICE != "cpu"
    plain, _ = stated(q.double(), k.double(), v.double())
    for o in (full, all_blocks):
        assert_within_budget("o", o, stated(q, k, v)[0], plain, q.dtype)
    # Documents that are packed into a row are as if each were alone.
    ids = masks.documents(np.repeat([3, 1, 2], [16, 1, 20]))
    packed = flash_attention(q, k[:, :, :N_Q], v[:, :, :N_Q], causal=True, mask=ids)
    for part in (slice(0, 16), slice(16, 17), slice(17, 37)):
        alone = [x[:, :, part] for x in (q, k, v)]
        exact, _ = stated(*(x.double() for x in alone), mask=masks.causal())
        assert_within_budget("o", packed[:, :, part], stated(*alone, mask=masks.causal())[0], exact, q.dtype)


def test_a_sink_of_minus_infinity_is_none_and_a_row_that_sees_nothing_has_the_sink():
    q, k, v, _ = inputs()
    none, lse = flash_attention(q, k, v, mask=MASKS["sparse"], return_lse=True)
    assert (
        torch.equal(none[:, :, 13:26], torch.zeros_like(none[:, :, 13:26])) and (lse[:, :, 13:26] == -torch.inf).all()
    )
    sinks = torch.full((4,), -torch.inf, device=DEVICE, requires_grad=True)
    o, same = flash_attention(q, k, v, mask=MASKS["sparse"], sinks=sinks, return_lse=True)
    assert torch.equal(o, none) and torch.equal(same, lse)
    assert not torch.autograd.grad(o.sum(), sinks)[0].any()
    sinks = torch.arange(4.0, device=DEVICE)
    _, lse = flash_attention(q, k, v, mask=MASKS["sparse"], sinks=sinks, return_lse=True)
    torch.testing.assert_close(lse[:, :, 13:26], sinks[:, None].expand(2, 4, 13), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_half_precision(dtype):
    check(
        lambda q, k, v: flash_attention(q, k, v, mask=MASKS["window"], return_lse=True),
        mask=MASKS["window"],
        dtype=dtype,
    )


@pytest.mark.parametrize("by_key", (False, True))
@pytest.mark.parametrize("name", MASKS)
def test_a_block_mask_has_the_tiles_of_the_mask(name, by_key):
    """Every pair that a program computes is one that the mask shows, once, and full tiles lie inside the tensor."""
    block_q, block_k = 8, 16
    seen = block_mask_of(MASKS[name], N_Q, N_K, block_q, block_k, torch.device("cpu"), by_key)
    kinds = MASKS[name].tiles(N_Q, N_K, block_q, block_k).kinds
    kinds = kinds.T if by_key else kinds
    computed = np.zeros((N_Q + 16, N_K + 16), int)
    lengths = [end - begin for _, begin, _, end, _ in seen.programs.tolist()]
    assert lengths == sorted(lengths, reverse=True) and sorted(seen.programs[:, 0].tolist()) == list(range(len(kinds)))
    for own, begin, first_partial, end, first_tile in seen.programs.tolist():
        visited = seen.tiles[begin:end].tolist()
        assert first_tile == seen.tiles[begin]
        assert sorted(visited) == np.flatnonzero(kinds[own] != HIDDEN).tolist()
        for visit, other in zip(range(begin, end), visited, strict=True):
            i, j = (other, own) if by_key else (own, other)
            queries, keys = np.arange(i * block_q, (i + 1) * block_q), np.arange(j * block_k, (j + 1) * block_k)
            if visit < first_partial:
                assert kinds[own, other] == FULL and queries[-1] < N_Q and keys[-1] < N_K
                pairs = np.ones((block_q, block_k), bool)
            elif seen.ranges is not None:
                rows, others = (keys, queries) if by_key else (queries, keys)
                first, stop = np.pad(seen.ranges.numpy(), ((0, 0), (0, 16)))[:, rows][..., None]
                pairs = (first <= others) & (others < stop)
                pairs = pairs.T if by_key else pairs
            else:
                words = seen.bits[seen.bits_of[visit]].numpy()
                pairs = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :block_k]
            computed[np.ix_(queries, keys)] += pairs
    shown = MASKS[name].dense(N_Q, N_K)
    assert np.array_equal(computed[:N_Q, :N_K], shown) and computed.sum() == shown.sum()
    assert PARTIAL in kinds


@pytest.mark.parametrize(
    ("given", "message"),
    (
        ({"mask": torch.ones(2, 2)}, "mask is a Tensor"),
        ({"mask": np.ones((37, 45), bool)}, "mask is a ndarray"),
        ({"mask": masks.documents([0, 1])}, "ids has length 2; accepted: 45"),
        ({"score_mod": abs}, "score_mod is <built-in function abs>; accepted: a ScoreMod"),
        ({"score_mod": alibi([1.0, 2.0])}, r"parameter of a score_mod has shape \[2\]; accepted: a number, \[4\]"),
        ({"sinks": torch.ones(3)}, r"sinks is torch.float32 \[3\]; accepted: floating-point \[4\]"),
        ({"sinks": 1.0}, "sinks is 1.0"),
        ({"dropout_p": 1.5}, "dropout_p is 1.5; accepted: numbers from 0 to 1"),
        ({"dropout_p": 0.5, "seed": -1}, "seed is -1; accepted: whole numbers from 0"),
        ({"mask": masks.packed([0, 36])}, "cu_seqlens_q ends at 36; accepted: 37"),
        ({"mask": MASKS["packed"], "causal": True}, r"causal is True and mask is packed\(...\)"),
        ({"mask": masks.block_sparse(LAYOUT, 16)}, r"layout has shape \(3, 4\); accepted: \(3, 3\)"),
        ({"score_mod": (alibi(1.0), None)}, "score_mod is None; accepted: a ScoreMod, several in a tuple"),
        ({"score_mod": alibi(torch.ones(4, requires_grad=True))}, "parameter of a score_mod requires a gradient"),
        ({"sinks": torch.ones(4, dtype=torch.int64)}, r"sinks is torch.int64 \[4\]"),
        ({"dropout_p": -0.1}, "dropout_p is -0.1"),
        ({"dropout_p": True}, "dropout_p is True"),
        ({"dropout_p": float("nan")}, "dropout_p is nan"),
        ({"dropout_p": 0.5, "seed": 1.0}, "seed is 1.0; accepted: whole numbers from 0"),
        ({"mask": masks.full(), "block_q": 16}, "block_q and block_k are not accepted with a mask"),
    ),
)  # fmt: skip
def test_refused(given, message):
    q, k, v, _ = inputs()
    with pytest.raises((TypeError, ValueError), match=message):
        flash_attention(q, k, v, **given)


def test_a_batch_that_no_grid_holds_is_refused():
    q = torch.empty(65_536, 1, 1, 1, device=DEVICE)
    with pytest.raises(ValueError, match="q has batch 65536; at most 65535 are accepted with a mask"):
        flash_attention(q, q, q, mask=masks.full())


@pytest.mark.parametrize("scale", (-0.3, 0.0, 2.0))
def test_scale(scale, in_tiles):
    in_tiles(16, 32)
    check(
        lambda q, k, v: flash_attention(q, k, v, scale=scale, mask=MASKS["window"], return_lse=True),
        mask=MASKS["window"], scale=scale,
    )  # fmt: skip


def test_gradients_of_any_layout_and_of_lse_alone():
    q, k, v, do = inputs()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    o, lse = flash_attention(*leaves, mask=MASKS["window"], return_lse=True)

    def gradients(of, given):
        return torch.autograd.grad(of, leaves, given, retain_graph=True)

    dlse = random(*lse.shape, seed=9)
    for mine, same in (
        (gradients(o, torch.ones(1, device=DEVICE).expand_as(o)), gradients(o, torch.ones_like(o))),
        (gradients(o, do.mT.contiguous().mT), gradients(o, do)),
        (gradients(lse, dlse.mT.contiguous().mT), gradients(lse, dlse)),
        (gradients(lse, dlse), gradients((o, lse), (torch.zeros_like(o), dlse))),
    ):
        assert all(map(torch.equal, mine, same))


def test_the_same_call_gives_the_same_bits_and_changes_nothing(in_tiles):
    in_tiles(32, 16)
    given = [x[:1] for x in inputs()]
    before = [x.clone() for x in given]

    def call():
        leaves = [x.detach().requires_grad_() for x in given[:3]]
        o = flash_attention(*leaves, mask=MASKS["either"], score_mod=soft_cap(2.0), dropout_p=0.2, seed=7)
        return o, *torch.autograd.grad(o, leaves, given[3])

    assert all(map(torch.equal, call(), call())) and all(map(torch.equal, given, before))


@pytest.mark.parametrize("name", MASKS)
def test_all_is_written_and_nothing_is_read_out_of_bounds(name, in_tiles):
    in_tiles(16, 32)
    *leaves, do = (x[:1] for x in inputs())
    q, k, v = (x.detach().requires_grad_() for x in leaves)
    with trace(q=q, k=k, v=v, do=do) as traced:
        o = flash_attention(q, k, v, mask=MASKS[name], score_mod=alibi(1.0), dropout_p=0.1, seed=1)
        torch.autograd.grad(o, (q, k, v), do)
    assert traced.violations == []
    for written in ("o", "lse", "delta", "dq", "dk", "dv"):
        assert not traced.unwritten(written).any(), written


def test_an_empty_batch_has_empty_results_and_gradients():
    *leaves, _ = (x[:0].requires_grad_() for x in inputs())
    sinks = torch.zeros(4, device=DEVICE, requires_grad=True)
    o, lse = flash_attention(*leaves, mask=MASKS["window"], sinks=sinks, return_lse=True)
    assert o.shape == (0, 4, N_Q, D) and lse.shape == (0, 4, N_Q)
    assert not torch.autograd.grad(o.sum(), (*leaves, sinks))[3].any()


def test_under_torch_compile():
    def loss(q, k, v, sinks):
        return flash_attention(2 * q, k, v, mask=MASKS["window"], score_mod=soft_cap(2.0), sinks=sinks).sum()

    leaves = [x.requires_grad_() for x in (*inputs()[:3], random(4))]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    compiled = torch.compile(loss, backend="aot_eager")
    for ours, theirs in zip(torch.autograd.grad(compiled(*leaves), leaves), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_cap_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="cap is 0; accepted: positive numbers"):
        soft_cap(0)
