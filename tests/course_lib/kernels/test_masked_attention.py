"""Masks, score mods, sinks and dropout: against a float64 statement of each, and the laws that they keep."""

import numpy as np
import pytest
import torch

from course_lib import masks
from course_lib.kernels import flash_attention, masked_attention
from course_lib.kernels.block_mask import block_mask_of, block_mask_of_ranges
from course_lib.kernels.configs import Config
from course_lib.kernels.score_mods import alibi, soft_cap
from course_lib.masks import FULL, HIDDEN
from courseware.bench.accuracy import assert_within_budget
from courseware.tracer import trace
from tests.course_lib.kernels.common import BFLOAT, DEVICE, FLOAT, HALF, leaves, random
from tests.course_lib.kernels.common import inputs as of_shape

N_Q, N_K, D = 37, 45, 24
LAYOUT = np.array([[True, False, True, True], [False] * 4, [True, True, False, False]])
MASKS = {
    "causal": masks.causal(),  # the only one with full tiles
    "window": masks.sliding_window(9, 3),
    "documents": masks.documents(np.arange(N_K) // 17) & masks.causal(),
    "sparse": masks.block_sparse(LAYOUT, 13),  # queries 13 to 25 see nothing
    # Sequences of (queries, keys): (0, 3), (1, 0), (19, 27), (1, 1), (0, 0), (16, 14)
    "packed": masks.packed([0, 0, 1, 20, 21, 21, 37], [0, 3, 3, 30, 31, 31, 45], masks.sliding_window(20, 0)),
    "either": masks.sliding_window(5, 0) | masks.documents(np.arange(N_K) % 3),
}
# One for each sequence or head, of 2 sequences and 4 heads.
MASKS_OF_HEADS = {
    "lengths": masks.key_lengths([45, 11]) & masks.causal(),  # by ranges
    "function": masks.from_function(lambda b, h, i, j: (3 * i + (h + 1) * j + b) % 5 < 3, batch=2, heads=4),
    "array": masks.from_dense(np.random.default_rng(0).random((1, 4, N_Q, N_K)) < 0.3) | masks.sliding_window(4, 0),
    "for sequences": masks.from_dense(np.random.default_rng(0).random((2, 1, N_Q, N_K)) < 0.1),
}
# Of two sequences, on the device: a window behind padding, so that some queries see nothing; and packed sequences, the
# last of them padded, with fewer keys than the cache has room for.
_I = np.arange(N_Q)
RANGES = np.stack([
    [np.maximum(_I - 3, 9), np.minimum(_I + 1, 40)], [np.select([_I < 6, _I < 20], [0, 8], 22), np.minimum(_I + 3, 30)],
])  # fmt: skip
KEYS_OF_RANGES = (np.arange(N_K) >= RANGES[:, 0, :, None]) & (np.arange(N_K) < RANGES[:, 1, :, None])
KEY_RANGES = torch.from_numpy(RANGES.astype(np.int32)).to(DEVICE)


def inputs(batch=1, dtype=FLOAT):
    """q, k, v and a gradient of o, of 4 heads, of which two share keys."""
    return of_shape(N_Q, N_K, D, dtype=dtype, batch=batch, heads=4, kv_heads=2)


def stated(q, k, v, sinks=None, *, mask=None, cap=None, slopes=None, cap_first=True, kept=None, p=0.0, scale=None):
    """(o, lse) with every score written out, in the dtype of q. kept: [batch, heads, n_q, n_k] of bool."""
    n_q, n_k, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT * (q.shape[3] ** -0.5 if scale is None else scale)
    if cap is not None and cap_first:
        scores = cap * torch.tanh(scores / cap)
    if slopes is not None:
        position = (mask or masks.full()).positions(n_q, n_k)
        distance = torch.from_numpy(abs(position[:, None] - np.arange(n_k))).to(q.device)
        scores = scores - slopes.to(q)[..., None, None] * distance
    if cap is not None and not cap_first:
        scores = cap * torch.tanh(scores / cap)
    if mask is not None:
        visible = np.stack([mask.at(*index).dense(n_q, n_k) for index in np.ndindex(mask.shape)])
        visible = torch.from_numpy(visible.reshape(*mask.shape, n_q, n_k)).to(q.device)
        scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(q.dtype)[:, None, None].expand(*scores.shape[:3], 1)], dim=-1)
    lse = torch.logsumexp(scores if scores.dtype == torch.float64 else scores.float(), dim=-1)
    weights = torch.softmax(scores, dim=-1).masked_fill((lse == -torch.inf)[..., None], 0.0)[..., :n_k]
    if kept is not None:
        weights = weights * kept / (1 - p)
    return weights @ v.repeat_interleave(group, 1), lse


@pytest.fixture
def in_tiles(monkeypatch):
    """in_tiles(m, n): from then on, all kernels have tiles of m queries and n keys."""
    return lambda m, n: monkeypatch.setattr(masked_attention, "config_of", lambda *_: Config(m, n, 4, 1))


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


P, SEED = 0.3, 2**40 + 17
KEPT = torch.from_numpy(kept_pairs(SEED, P)).view(2, 4, N_Q, N_K).to(DEVICE)
SLOPES = torch.tensor([0.5, 0.25, 1.0, 0.1])
SLOPES_OF_EACH = torch.tensor([[0.5, 0.25, 1.0, 0.1], [0.3, 0.2, 0.1, 0.7]])
# name -> (tile, what `flash_attention` is given, the same for `stated`). Masks, slopes and caps are given to both.
CASES = {f"{name} {tile}": (tile, {"mask": MASKS[name]}, {"mask": MASKS[name]}) for name, tile in (
    ("window", (16, 32)), ("window", (32, 16)), ("documents", (32, 16)), ("sparse", (16, 32)), ("sparse", (16, 128)),
    ("packed", (16, 32)), ("packed", (32, 16)), ("either", (32, 16)), ("either", (16, 128)),
)}  # fmt: skip
CASES |= {
    f"a mask for each: {name} {tile}": (tile, {"mask": mask, "batch": 2}, {"mask": mask})
    for name, mask in MASKS_OF_HEADS.items() for tile in ((16, 32), (32, 16))
}  # fmt: skip
CASES |= {
    "everything at once": (
        (32, 16),
        {"causal": True, "mask": MASKS["sparse"], "score_mod": (soft_cap(1.5), alibi(SLOPES_OF_EACH)), "batch": 2},
        {"mask": MASKS["sparse"] & masks.causal(), "cap": 1.5, "slopes": SLOPES_OF_EACH, "sinks": random(4, seed=5)},
    ),
    # The derivative is taken where each of them stands: behind alibi, a cap sees other scores.
    "cap, alibi": ((16, 32), {"score_mod": (soft_cap(1.5), alibi(SLOPES))}, {"cap": 1.5, "slopes": SLOPES}),
    "alibi, cap": (
        (16, 32), {"score_mod": [alibi(SLOPES), soft_cap(1.5)]}, {"cap": 1.5, "slopes": SLOPES, "cap_first": False}
    ),
    "packed sequences have biases of their own positions": (
        (16, 32), {"mask": MASKS["packed"], "score_mod": alibi(SLOPES)}, {"mask": MASKS["packed"], "slopes": SLOPES}
    ),
}  # fmt: skip
for tile in ((32, 16), (16, 64)):
    CASES[f"dropout {tile}"] = (
        tile, {"mask": MASKS["window"], "dropout_p": P, "seed": SEED, "batch": 2},
        {"mask": MASKS["window"], "kept": KEPT, "p": P},
    )  # fmt: skip
for scale in (-0.3, 0.0, 2.0):
    how = {"mask": MASKS["window"], "scale": scale}
    CASES[f"scale {scale}"] = (16, 32), how, how
CASES["full blocks"] = (16, 32), *2 * [{"mask": masks.block_sparse(np.ones((1, 1), bool), 64)}]
CASES["sinks"] = (32, 16), {"mask": MASKS["sparse"]}, {"mask": MASKS["sparse"], "sinks": random(4, seed=5)}
for tile in ((16, 32), (32, 16), (128, 128)):
    CASES[f"key_ranges {tile}"] = (
        tile, {"key_ranges": KEY_RANGES, "batch": 2, "score_mod": soft_cap(1.5)},
        {"mask": masks.from_dense(KEYS_OF_RANGES[:, None]), "cap": 1.5, "sinks": random(4, seed=5)},
    )  # fmt: skip
for dtype in (HALF, BFLOAT):
    CASES[f"{dtype}"] = (32, 16), {"mask": MASKS["window"], "dtype": dtype}, {"mask": MASKS["window"]}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_the_statement(case, in_tiles, poisoned_memory):
    """Within the error budget of plain PyTorch."""
    tile, how, states = CASES[case]
    how, states = {"batch": 1, "dtype": FLOAT} | how, dict(states)
    in_tiles(*tile)
    dtype, sinks = how.pop("dtype"), states.pop("sinks", None)
    *tensors, do = inputs(how.pop("batch"), dtype)
    tensors += [] if sinks is None else [sinks]
    dlse, results = random(*do.shape[:3], seed=9), {}
    for name, as_dtype in (("answer", None), ("plain", dtype), ("exact", torch.float64)):
        given = leaves(*(x.to(as_dtype or x.dtype) for x in tensors))
        if name == "answer":
            o, lse = flash_attention(*given[:3], **how, sinks=(*given, None)[3], return_lse=True)
        else:
            o, lse = stated(*given, **states)
        gradients = torch.autograd.grad((o, lse), given, (do.to(o.dtype), dlse.to(lse.dtype)))
        results[name] = o.detach(), lse.detach(), *gradients
    dtypes = dtype, FLOAT, *(x.dtype for x in tensors)
    lse = results["exact"][1]
    # The larger lse is, the larger its rounding to fp32, and that is a relative error of P = exp(S - lse).
    of_lse = torch.where(lse == -torch.inf, 0.0, lse.abs() / 2).max().clamp(min=1.0)
    names = ("o", "lse", "dq", "dk", "dv", "dsinks")[: len(dtypes)]
    for name, answer, plain, exact, of in zip(names, *results.values(), dtypes, strict=True):
        # Gradients are differences of larger terms, which are of the size of the inputs here.
        terms = None if name in ("o", "lse") else of_lse * (exact.abs() + 1)
        assert_within_budget(name, answer, plain, exact, of, terms=terms)


def test_dropout_of_nothing_and_of_everything():
    q, k, v, _ = inputs()
    plain, lse = flash_attention(q, k, v, mask=masks.full(), return_lse=True)
    assert torch.equal(flash_attention(q, k, v, mask=masks.full(), dropout_p=0.0, seed=3), plain)
    nothing, same_lse = flash_attention(q, k, v, dropout_p=1.0, seed=3, return_lse=True)
    assert not nothing.any() and torch.equal(same_lse, lse)


def test_a_sink_of_minus_infinity_is_none_and_a_mask_may_hide_everything():
    q, k, v, _ = inputs()
    # Where nothing is visible, tiles are chosen for few keys, not for none.
    assert not flash_attention(q, k, v, mask=masks.block_sparse(np.zeros((1, 1), bool), 64)).any()
    sinks = torch.full((4,), -torch.inf, device=DEVICE, requires_grad=True)
    none, same = (flash_attention(q, k, v, mask=MASKS["sparse"], sinks=s, return_lse=True) for s in (None, sinks))
    torch.testing.assert_close(same, none, rtol=1e-6, atol=1e-6)
    assert not torch.autograd.grad(same[0].sum(), sinks)[0].any()


@pytest.mark.parametrize("by_key", (False, True))
@pytest.mark.parametrize("name", MASKS)
def test_programs_visit_their_tiles_once_and_mask_only_those_that_need_it(name, by_key):
    """The programs with the most tiles come first. Tiles need no mask that are full and lie inside the tensor."""
    seen = block_mask_of(MASKS[name], N_Q, N_K, 8, 16, torch.device("cpu"), by_key)
    kinds = MASKS[name].tiles(N_Q, N_K, 8, 16).kinds
    whole = (kinds == FULL) & (np.arange(len(kinds)) < N_Q // 8)[:, None] & (np.arange(kinds.shape[1]) < N_K // 16)
    kinds, whole = (kinds.T, whole.T) if by_key else (kinds, whole)
    programs = seen.programs[0].tolist()
    lengths = [end - begin for _, begin, _, end, _ in programs]
    assert lengths == sorted(lengths, reverse=True) and sorted(own for own, *_ in programs) == [*range(len(kinds))]
    for own, begin, first_partial, end, first_tile in programs:
        visited = seen.tiles[begin:end].tolist()
        assert first_tile == seen.tiles[begin] and sorted(visited) == np.flatnonzero(kinds[own] != HIDDEN).tolist()
        assert sorted(visited[: first_partial - begin]) == np.flatnonzero(whole[own]).tolist()


@pytest.mark.parametrize("by_key", (False, True))
def test_programs_visit_the_tiles_that_their_ranges_touch(by_key):
    """And others only if some of a tile's own rows see nothing."""
    seen, own_block = block_mask_of_ranges(KEY_RANGES, N_K, 8, 16, by_key), 16 if by_key else 8
    for visible, programs in zip(KEYS_OF_RANGES, seen.programs.tolist(), strict=True):
        kinds = masks.from_dense(visible).tiles(N_Q, N_K, 8, 16).kinds
        visible, kinds = (visible.T, kinds.T) if by_key else (visible, kinds)
        assert sorted(own for own, *_ in programs) == [*range(len(kinds))]
        for own, begin, first_partial, end, first_tile in programs:
            visited, needed = [*range(begin, end)], np.flatnonzero(kinds[own] != HIDDEN).tolist()
            assert begin == first_partial == first_tile and seen.tiles[begin:end].tolist() == visited
            all_see = visible[own * own_block : (own + 1) * own_block].any(axis=1).all()
            assert visited == needed if all_see else {*visited} >= {*needed}


@pytest.mark.parametrize("name", ("window", "sparse", "packed"))
def test_nothing_is_read_out_of_bounds(name, in_tiles):
    in_tiles(16, 32)
    *tensors, do = inputs()
    q, k, v = leaves(*tensors)
    with trace(q=q, k=k, v=v, do=do) as traced:
        o = flash_attention(q, k, v, mask=MASKS[name], score_mod=alibi(1.0), dropout_p=0.1, seed=1)
        torch.autograd.grad(o, (q, k, v), do)
    assert traced.violations == []
