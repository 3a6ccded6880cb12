"""flash_decode, in whichever mode this machine has: against float64, and the laws that a split or paged cache keeps."""

import functools
import itertools
import pickle

import numpy as np
import pytest
import torch

from course_lib import masks
from course_lib.kernels import attention, decode, flash_attention, flash_decode
from course_lib.kernels.forward import flash_forward
from course_lib.kernels.score_mods import alibi, hide_before, soft_cap
from courseware.bench.accuracy import assert_within_budget, check_attention
from tests.course_lib.kernels.common import BFLOAT, DEVICE, DTYPES, FLOAT, HALF, LAYOUTS, ON_CPU, far_apart, random
from tests.course_lib.kernels.test_masked_attention import stated

SMALL = (16, 16, 4, 1)  # tiles so small that short sequences have several of each


def caches(batch, heads, kv_heads, capacity, d=16, *, n_new=1, dtype=FLOAT):
    """q, k_cache, v_cache."""
    cache = batch, kv_heads, capacity, d
    return random(batch, heads, n_new, d, dtype=dtype), *(random(*cache, dtype=dtype, seed=seed) for seed in (1, 2))


def integers(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def run(q, k, v, lengths, block_table=None, *, causal=True, scale=None, config=SMALL, **options):
    """`flash_decode` with the tiles of config."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return decode.decode(q, k, v, lengths, block_table, causal=causal, scale=scale, config=config, **options)[0]


def in_pages(k, v, page_size, *, spare=3, seed=0):
    """(k_pages, v_pages, block_table): the same caches in pages, in any order, with NaN in the pages of nobody."""
    batch, kv_heads, capacity, d = k.shape
    pages = -(-capacity // page_size)
    order = torch.randperm(batch * pages + spare, generator=torch.Generator().manual_seed(seed))[: batch * pages]
    table = order.view(batch, pages).to(DEVICE)
    pools = []
    for cache in (k, v):
        padded = torch.full((batch, kv_heads, pages * page_size, d), torch.nan, dtype=k.dtype, device=DEVICE)
        padded[:, :, :capacity] = cache
        pool = torch.full((batch * pages + spare, kv_heads, page_size, d), torch.nan, dtype=k.dtype, device=DEVICE)
        pool[table] = padded.unflatten(2, (pages, page_size)).transpose(1, 2)
        pools.append(pool)
    return *pools, table.int()


def check(o, q, k, v, lengths, *, causal=True, window_left=None, scale=None, lse=None):
    """Each sequence of o, from contiguous caches, against float64, within the error budget."""
    mask = masks.sliding_window(window_left, 0 if causal else None)
    assert o.shape == q.shape and not torch.isnan(o).any()
    for b, length in enumerate(lengths.tolist()):
        if length == 0:
            assert (o[b] == 0).all() and (lse is None or (lse[b] == -torch.inf).all())
            continue
        given = q[b, None], k[b, None, :, :length], v[b, None, :, :length]
        exact, plain = (stated(*(x.to(y) for x in given), mask=mask, scale=scale) for y in (torch.float64, q.dtype))
        assert_within_budget(f"o of {length} keys", o[b, None], plain[0], exact[0], q.dtype)
        if lse is not None:
            assert_within_budget(f"lse of {length} keys", lse[b, None], plain[1], exact[1], FLOAT)


def case(*lengths, heads=(2, 1), capacity=None, tiles=(16, 16), page_size=16, dtype=FLOAT, n_new=1, d=16, **how):
    """A case of the next test; without tiles, it calls `flash_decode`."""
    how = {"num_splits": None, "causal": True, "window_left": None, "scale": None} | how
    return lengths, heads, capacity or max(lengths), tiles, page_size, dtype, n_new, d, how


@pytest.mark.parametrize(
    "chosen",
    (
        # Head dimensions, shipped tiles.
        *(
            case(150, 61, d=d, dtype=dtype, tiles=None, num_splits=1 + d % 2)
            for d, dtype in ((1, HALF), (3, BFLOAT), (24, FLOAT), (64, HALF), (80, BFLOAT), (255, FLOAT), (256, HALF))
        ),
        # Lengths of any size side by side, in splits that are fewer or more than the tiles.
        *(
            case(300, 1, 0, 127, 128, 129, heads=(3, 1), tiles=tiles, num_splits=num_splits, page_size=32)
            for tiles, num_splits in ((None, None), (None, 2), ((16, 64), 5), ((16, 32), 20))
        ),
        *(case(90, 37, dtype=dtype, d=32, num_splits=n) for n, dtype in zip((1, 5, 6, 7), itertools.cycle(DTYPES))),
        # New tokens, in one tile of rows or in several, in which the rows of one query may be apart.
        *(
            case(50, n_new, heads=heads, n_new=n_new, causal=causal, num_splits=2)
            for (n_new, heads), causal in itertools.product(((1, (7, 1)), (5, (4, 2)), (17, (3, 1))), (True, False))
        ),
        case(77, heads=(1, 1), capacity=90, num_splits=decode.MAX_SPLITS),
        case(capacity=20, tiles=None),  # no sequences
        # More new tokens than keys, of which the first see none: what `flash_attention` may ask for.
        *(case(5, heads=(4, 2), capacity=40, n_new=9, num_splits=n) for n in (1, 3)),
        *(case(140, num_splits=1 + at % 2, scale=scale) for at, scale in enumerate((1.0, 0.02, -0.7, 0.0))),
        *(
            case(70, 3, 40, heads=(4, 2), n_new=3, num_splits=n, causal=causal, window_left=window)
            for window in (0, 15, 16, 30, 1000)
            for n, causal in ((1, True), (3, False), (3, True))
        ),
        case(100, 3, 40, heads=(4, 2), n_new=3, tiles=None, causal=False, window_left=20, scale=0.3, num_splits=2),
        # Where a tile spans several pages, is one, or is part of one.
        *(
            case(130, 2, 66, n_new=2, tiles=(16, block_n), page_size=page_size, num_splits=2)
            for page_size, block_n in (*itertools.product((16, 32, 64), repeat=2), (1, 16), (5, 32), (24, 16), (48, 32))
        ),
    ),
    ids=str,
)
def test_contiguous_within_the_error_budget_and_in_pages_the_same_bits(chosen, poisoned_memory):
    lengths, heads, capacity, tiles, page_size, dtype, n_new, d, how = chosen
    q, k, v = caches(len(lengths), *heads, capacity, d, n_new=n_new, dtype=dtype)
    lengths = integers(*lengths, dtype=torch.int32 if tiles else torch.int64)
    call = functools.partial(flash_decode, return_lse=True, **how)
    if tiles:
        launch = how | {"scale": d**-0.5 if how["scale"] is None else how["scale"]}
        call = functools.partial(decode.decode, store_lse=True, config=(*tiles, 4, 1), **launch)
    o, lse = call(q, k, v, lengths)
    checked = {name: how[name] for name in ("causal", "window_left", "scale")}
    check(o, q, k, v, lengths, **checked, lse=lse)
    k_pages, v_pages, table = in_pages(k, v, page_size)
    assert all(map(torch.equal, call(q, k_pages, v_pages, lengths, block_table=table), (o, lse)))


@pytest.mark.parametrize("num_splits", (1, 2, 3))
def test_sinks_score_mods_and_lse(num_splits):
    """As `flash_attention` has them for the same keys; a place without keys has the sink. Keys that a score mod hides,
    here whole tiles, whole splits and all of the last sequence, are as if they were not there.
    """
    q, k, v = caches(3, 4, 2, 90, n_new=2)
    lengths, sinks, slopes = integers(90, 0, 37), random(4, seed=3), random(3, 4, seed=4).abs()
    k_pages, v_pages, table = in_pages(k, v, 24)
    cap, none, hidden = soft_cap(2.0), integers(0, 0, 0), integers(75, 0, 37)
    hiding = {"score_mod": (cap, hide_before(hidden[:, None].expand(3, 4)))}
    for new, how, of_one, first in (
        (q, {"sinks": sinks, "scale": -0.5}, lambda b: {}, none),
        (q, {"score_mod": (cap, alibi(slopes))}, lambda b: {"score_mod": (cap, alibi(slopes[b]))}, none),
        (q[:, :, :1], hiding, lambda b: {"score_mod": cap}, hidden),
        (q, hiding | {"sinks": sinks}, lambda b: {"score_mod": cap}, hidden),
    ):
        call = functools.partial(flash_decode, num_splits=num_splits, return_lse=True, **how)
        o, lse = call(new, k, v, lengths)
        assert all(map(torch.equal, call(new, k_pages, v_pages, lengths, block_table=table.long()), (o, lse)))
        for b, length in enumerate(lengths.tolist()):
            one = new[b, None], *(x[b, None, :, first[b] : length] for x in (k, v))
            expected = flash_attention(*one, causal=True, return_lse=True, **how | of_one(b))
            for ours, theirs in zip((o, lse), expected, strict=True):
                torch.testing.assert_close(ours[b, None], theirs, rtol=2e-5, atol=2e-6)


def test_autocast_and_numpy_integers(monkeypatch):
    q, k, v = caches(1, 4, 2, 90)
    dtype = torch.bfloat16
    with torch.autocast(DEVICE, dtype):
        o = flash_decode(q, k.to(dtype), v, integers(90), num_splits=np.int64(2), window_left=np.int32(50))
    low = [x.to(dtype) for x in (q, k, v)]
    assert o.dtype == dtype and torch.equal(o, flash_decode(*low, integers(90), num_splits=2, window_left=50))
    seeds = [flash_attention(q, k, v, dropout_p=np.float32(0.5), seed=seed) for seed in (3, np.int64(3))]
    assert torch.equal(*seeds) and torch.equal(
        *(flash_attention(q, k, v, block_q=block(16), block_k=block(32)) for block in (int, np.int16))
    )
    mods = soft_cap(2.0), alibi(torch.ones(4, device=DEVICE))
    copied = pickle.loads(pickle.dumps(mods))
    assert torch.equal(flash_attention(q, k, v, score_mod=copied), flash_attention(q, k, v, score_mod=mods))


# The laws.


# Memory: what is read, how often, and what is not.


def test_what_lies_beyond_a_length_or_before_a_window_is_not_read():
    q, k, v = caches(3, 4, 2, 100, n_new=2)
    lengths = integers(70, 0, 2)
    for window_left, num_splits in ((None, 1), (20, 3)):
        how = dict(window_left=window_left)
        o = run(q, k, v, lengths, num_splits=num_splits, **how)
        dirty_k, dirty_v = k.clone(), v.clone()
        for b, length in enumerate(lengths.tolist()):
            needed = slice(0 if window_left is None else max(0, length - 2 - window_left), length)
            for clean, dirty in ((k, dirty_k), (v, dirty_v)):
                dirty[b] = torch.nan
                dirty[b, :, needed] = clean[b, :, needed]
        assert torch.equal(run(q, dirty_k, dirty_v, lengths, num_splits=num_splits, **how), o)
        for page_size, block_n in ((16, 64), (64, 16)):
            k_pages, v_pages, table = in_pages(dirty_k, dirty_v, page_size)
            first_keys = torch.arange(table.shape[1]) * page_size
            for b, length in enumerate(lengths.tolist()):
                start = 0 if window_left is None else length - 2 - window_left
                table[b, (first_keys >= length) | (first_keys + page_size <= start)] = 10**9
            small = dict(config=(16, block_n, 4, 1), num_splits=num_splits)
            paged = run(q, k_pages, v_pages, lengths, table, **small, **how)
            assert torch.equal(paged, run(q, k, v, lengths, **small, **how))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_gives_the_same_bits(layout):
    """Of caches, if their columns lie together."""
    q, k, v = caches(2, 4, 2, 64, 32, n_new=2, dtype=HALF)
    lengths = integers(64, 20)
    o = flash_decode(q, k, v, lengths)
    assert torch.equal(flash_decode(layout(q), k, v, integers(64, 0, 20, 0)[::2]), o)
    if layout(k).stride(-1) != 1:
        return
    assert torch.equal(flash_decode(*map(layout, (q, k, v)), lengths), o)
    k_pages, v_pages, table = in_pages(k, v, 16)
    wide = torch.full((2, 9), 10**9, dtype=torch.int32, device=DEVICE)
    wide[:, :4] = table
    for some in (table, wide[:, :4], table.T.contiguous().T):
        assert torch.equal(flash_decode(q, layout(k_pages), layout(v_pages), lengths, block_table=some), o)


@pytest.mark.parametrize("axis, paged", ((0, False), (0, True), (1, False), (2, True)))
def test_offsets_beyond_31_bits(axis, paged):
    """Pages or sequences, heads, or rows are far apart, of the queries as well."""
    shape = [(3, 1, 32, 16), (1, 3, 32, 16), (1, 1, 32, 16)][axis]
    far = far_apart(shape, axis, 2**30 if axis < 2 else 2**27)
    table = torch.arange(3 if axis == 0 else 1, device=DEVICE, dtype=torch.int32).flip(0)[:, None] if paged else None
    q, lengths = far_apart((*shape[:2], 3, 16), axis, 2**30), integers(*[30] * shape[0])
    outputs = [
        run(*x, lengths, table, num_splits=2) for x in ((q, far, far), (q.contiguous(), *2 * [far.contiguous()]))
    ]
    assert torch.equal(*outputs)


# How it is launched.


def test_a_slot_s_work_is_near_the_least_and_no_fewer_splits_are():
    for n_programs, n_tiles, n_slots in itertools.product((1, 8, 100, 128, 133, 999), (1, 2, 5, 32, 128), (1, 264)):
        work = {
            s: -(-n_programs * s // n_slots) * (-(-n_tiles // s) + decode.START_TILES) for s in range(1, n_tiles + 1)
        }
        near = [s for s in work if work[s] <= 1.05 * min(work.values())]
        assert decode.splits(n_programs, n_tiles, n_slots) == near[0]
    assert decode.splits(1, 10**5, 10**5) <= decode.MAX_SPLITS, "as many states as the merge can hold"


@pytest.mark.skipif(ON_CPU, reason="there are no CUDA graphs without a GPU")
@pytest.mark.parametrize("num_splits", (None, 1, 4))
def test_a_cuda_graph_is_replayed_with_other_lengths_and_pages(num_splits):
    q, k, v = caches(2, 8, 2, 300, 64, dtype=HALF)
    k_pages, v_pages, table = in_pages(k, v, 16)
    lengths = integers(300, 40)

    def call():
        return flash_decode(q, k_pages, v_pages, lengths, block_table=table, num_splits=num_splits)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = call()
    for seed, now in ((1, (7, 300)), (2, (0, 129))):
        k_new, v_new, table_new = in_pages(k, v, 16, seed=seed)
        for x, new in ((k_pages, k_new), (v_pages, v_new), (table, table_new), (lengths, integers(*now))):
            x.copy_(new)
        graph.replay()
        check(o, q, k, v, lengths)


# flash_attention with few queries.


@pytest.fixture
def decoded(monkeypatch):
    """Shapes of the queries that `flash_attention` has had decoded."""
    shapes = []
    real = attention.decode

    def noted(q, *arguments, **options):
        shapes.append(tuple(q.shape))
        return real(q, *arguments, **options)

    monkeypatch.setattr(attention, "decode", noted)
    return shapes


@pytest.mark.parametrize(
    "n_q, heads, kv_heads, causal, dtype",
    (
        (1, 4, 1, True, HALF), (1, 16, 1, False, FLOAT), (4, 8, 2, True, FLOAT), (16, 2, 2, False, BFLOAT),
        (16, 4, 1, True, HALF),  # grouped heads in half precision: up to 64 rows
    ),
)  # fmt: skip
def test_few_queries_of_flash_attention_are_decoded(decoded, n_q, heads, kv_heads, causal, dtype):
    q, k, v = caches(1, heads, kv_heads, 530, n_new=n_q, dtype=dtype)
    answer = flash_attention(q, k, v, causal=causal, return_lse=True)
    check_attention(answer, q, k, v, causal=causal)
    assert torch.equal(flash_attention(q, k, v, causal=causal), answer[0]) and len(decoded) == 2


def test_other_calls_of_flash_attention_are_not(decoded):
    for n_q, heads, n_k, dtype, blocks in (
        (17, 1, 530, FLOAT, {}), (3, 6, 530, FLOAT, {}), (17, 4, 530, HALF, {}), (1, 1, 511, FLOAT, {}),
        (1, 1, 530, FLOAT, {"block_k": 64}), (1, 1, 530, FLOAT, {"block_q": 16}),
    ):  # fmt: skip
        q, k, v = caches(1, heads, 1, n_k, n_new=n_q, dtype=dtype)
        o = flash_attention(q, k, v, **blocks)
        forward, _ = flash_forward(q, k, v, causal=False, scale=16**-0.5, store_lse=False, **blocks)
        assert torch.equal(o, forward)
    assert decoded == []
