"""flash_decode, in whichever mode this machine has: against float64, and the laws that a split or paged cache keeps."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib import masks, runtime
from course_lib.kernels import attention, checks, decode, flash_attention, flash_decode
from course_lib.kernels.configs import select
from course_lib.kernels.forward import flash_forward
from course_lib.serving.paged_cache import PagePool
from courseware.bench.accuracy import assert_within_budget, check_attention, check_gradients
from courseware.tracer import trace

DEVICE = runtime.device()
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SMALL = (16, 16, 4, 1)  # tiles so small that short sequences have several of each
SIX_ROWS = {  # of the benchmark: (batch, heads, kv_heads, keys) -> splits on 132 multiprocessors
    (1, 32, 8, 8192): 32, (1, 32, 8, 65_536): 32, (16, 32, 8, 8192): 2, (16, 64, 8, 16_384): 2, (64, 32, 8, 2048): 1,
    (8, 32, 32, 8192): 1,
}  # fmt: skip


def random(shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def caches(batch, heads, kv_heads, capacity, d, *, n_new=1, dtype=torch.float32):
    """q, k_cache, v_cache."""
    return random((batch, heads, n_new, d), dtype), *(random((batch, kv_heads, capacity, d), dtype, s) for s in (1, 2))


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


def attend(q, k, v, visible, scale, dtype):
    group = q.shape[1] // k.shape[1]
    q, k, v = q.to(dtype), k.to(dtype).repeat_interleave(group, 1), v.to(dtype).repeat_interleave(group, 1)
    scores = ((q @ k.mT) * scale).masked_fill(~visible, -torch.inf)
    return torch.softmax(scores, -1).masked_fill(~visible.any(1)[:, None], 0.0) @ v


def check(o, q, k, v, lengths, *, causal=True, window_left=None, scale=None):
    """Each sequence of o, from contiguous caches, against float64, within the error budget."""
    mask = masks.sliding_window(window_left, 0 if causal else None)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    assert o.shape == q.shape and not torch.isnan(o).any()
    for b, length in enumerate(lengths.tolist()):
        if length == 0:
            assert (o[b] == 0).all()
            continue
        visible = torch.from_numpy(mask.dense(q.shape[2], length)).to(DEVICE)
        inputs = q[b, None], k[b, None, :, :length], v[b, None, :, :length], visible, scale
        exact, plain = (attend(*inputs, dtype) for dtype in (torch.float64, q.dtype))
        assert_within_budget(f"o of {length} keys", o[b, None], plain, exact, q.dtype)


# The function, as it is called.


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", (1, 3, 24, 64, 80, 256))
def test_every_kind_of_head_dim_contiguous_and_in_pages(d, dtype):
    q, k, v = caches(2, 2, 1, 150, d, dtype=dtype)
    lengths = integers(150, 61)
    k_pages, v_pages, table = in_pages(k, v, 16)
    for num_splits in (1, 2):
        o = flash_decode(q, k, v, lengths, num_splits=num_splits)
        check(o, q, k, v, lengths)
        assert torch.equal(flash_decode(q, k_pages, v_pages, lengths, block_table=table, num_splits=num_splits), o)


@pytest.mark.parametrize("integer", (torch.int32, torch.int64), ids=str)
def test_lengths_of_any_size_side_by_side(integer):
    lengths = integers(300, 1, 0, 127, 128, 129, dtype=integer)
    q, k, v = caches(len(lengths), 3, 1, 300, 16)
    for num_splits in (None, 1, 2, 5):
        check(flash_decode(q, k, v, lengths, num_splits=num_splits), q, k, v, lengths)


@pytest.mark.parametrize("heads, kv_heads", ((1, 1), (4, 2), (7, 1)))
@pytest.mark.parametrize("n_new", (1, 5, 17))
def test_several_new_tokens(n_new, heads, kv_heads):
    """In one tile of rows or in several, in which the rows of one query may be apart."""
    causal = n_new // 4 % 2 == heads // 4  # each pair of n_new, heads and causal occurs
    q, k, v = caches(3, heads, kv_heads, 50, 16, n_new=n_new)
    lengths = integers(50, n_new, 33)
    check(run(q, k, v, lengths, causal=causal, num_splits=2), q, k, v, lengths, causal=causal)
    check(flash_decode(q, k, v, lengths, causal=causal), q, k, v, lengths, causal=causal)


def test_a_chunk_of_a_prompt():
    q, k, v = caches(2, 4, 2, 160, 16, n_new=45)
    lengths = integers(160, 60)
    for config in ((64, 32, 4, 1), (16, 64, 4, 1)):
        check(run(q, k, v, lengths, config=config, num_splits=2), q, k, v, lengths)


@pytest.mark.parametrize("scale", (1.0, 0.02, -0.7, 0.0, 3))
def test_scale(scale):
    q, k, v = caches(1, 2, 1, 150, 16)
    for num_splits in (1, 2):
        o = flash_decode(q, k, v, integers(140), scale=scale, num_splits=num_splits)
        check(o, q, k, v, integers(140), scale=scale)


def test_scores_that_differ_from_split_to_split():
    """Merging must keep the error budget whatever the maxima of the parts are, and when they are all the same."""
    q, k, v = caches(1, 2, 1, 80, 16)
    ascending = torch.linspace(-3, 3, 80, device=DEVICE)[:, None].expand(1, 1, 80, 16).contiguous()
    cases = {
        "of size 1e3": (30 * q, 30 * k), "all equal": (torch.ones_like(q), torch.ones_like(k)),
        "strongly negative": (30 * torch.ones_like(q), -30 * torch.ones_like(k)),
        "ascending": (q.abs(), ascending), "descending": (q.abs(), -ascending),
    }  # fmt: skip
    for (queries, keys), num_splits in itertools.product(cases.values(), (1, 2, 5)):
        check(run(queries, keys, v, integers(75), num_splits=num_splits), queries, keys, v, integers(75))


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("window_left", (0, 15, 16, 30, 1000))
def test_window(window_left, causal):
    q, k, v = caches(3, 4, 2, 70, 16, n_new=3)
    lengths = integers(70, 3, 40)
    how = dict(causal=causal, window_left=window_left)
    for num_splits in (1, 3):
        check(run(q, k, v, lengths, num_splits=num_splits, **how), q, k, v, lengths, **how)
    check(flash_decode(q, k, v, lengths, **how), q, k, v, lengths, **how)


def test_rows_without_a_visible_key():
    """More new tokens than keys: what `flash_attention` may ask for."""
    q, k, v = caches(1, 4, 2, 40, 16, n_new=9)
    for num_splits in (1, 3):
        o, lse = decode.decode(
            q, k, v, integers(5), causal=True, scale=0.25, store_lse=True, num_splits=num_splits, config=SMALL
        )
        check_attention((o, lse), q, k[:, :, :5], v[:, :, :5], causal=True)
        assert (o[:, :, :4] == 0).all() and (lse[:, :, :4] == -torch.inf).all() and torch.isfinite(lse[:, :, 4:]).all()


# The laws.


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_split_gives_the_same_answer(dtype):
    """More splits than tiles, too: then some have no keys."""
    q, k, v = caches(2, 2, 1, 90, 32, dtype=dtype)
    lengths = integers(90, 37)
    for num_splits in (1, 2, 5, 6, 7, 20):
        o, lse = decode.decode(
            q, k, v, lengths, causal=True, scale=32**-0.5, store_lse=True, num_splits=num_splits, config=SMALL
        )
        for b, length in enumerate(lengths.tolist()):
            one = slice(b, b + 1)
            check_attention((o[one], lse[one]), q[one], k[one, :, :length], v[one, :, :length])


def test_as_many_splits_as_there_may_be():
    q, k, v = caches(1, 1, 1, 90, 16)
    check(run(q, k, v, integers(77), num_splits=decode.MAX_SPLITS), q, k, v, integers(77))


@pytest.mark.parametrize("page_size", (16, 32, 64))
@pytest.mark.parametrize("block_n", (16, 32, 64))
def test_pages_of_any_size_and_order_change_no_bit(page_size, block_n):
    """Where a tile spans several pages, is one, or is part of one."""
    q, k, v = caches(3, 2, 1, 130, 16, n_new=2)
    lengths = integers(130, 2, 66)
    for num_splits in (1, 2):
        how = dict(config=(16, block_n, 4, 1), num_splits=num_splits)
        o = run(q, k, v, lengths, **how)
        check(o, q, k, v, lengths)
        k_pages, v_pages, table = in_pages(k, v, page_size, seed=num_splits)
        assert torch.equal(run(q, k_pages, v_pages, lengths, table, **how), o)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_shape(data):
    """Drawn shapes: contiguous against float64, in pages the same bits."""
    draw = data.draw
    batch, kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 6))
    n_new, d, capacity = draw(st.integers(1, 6)), draw(st.integers(1, 40)), draw(st.integers(6, 120))
    lengths = integers(*(draw(st.just(0) | st.integers(n_new, capacity)) for _ in range(batch)))
    q, k, v = caches(batch, kv_heads * group, kv_heads, capacity, d, n_new=n_new, dtype=draw(st.sampled_from(DTYPES)))
    how = {"causal": draw(st.booleans()), "window_left": draw(st.none() | st.integers(0, 60))}
    launch = {"config": (16, draw(st.sampled_from((16, 32, 64))), 4, 1), "num_splits": draw(st.integers(1, 9))}
    o = run(q, k, v, lengths, **how, **launch)
    check(o, q, k, v, lengths, **how)
    k_pages, v_pages, table = in_pages(k, v, draw(st.sampled_from((16, 32, 64))), seed=draw(st.integers(0, 9)))
    assert torch.equal(run(q, k_pages, v_pages, lengths, table, **how, **launch), o)


@pytest.mark.parametrize("num_splits", (1, 3))
def test_a_sequence_in_a_batch_has_the_bits_that_it_has_alone(num_splits):
    q, k, v = caches(4, 4, 2, 150, 16, n_new=2)
    lengths = integers(150, 2, 97, 33)
    o = run(q, k, v, lengths, num_splits=num_splits)
    for b, length in enumerate(lengths.tolist()):
        one = slice(b, b + 1)
        alone = run(q[one], k[one, :, :length], v[one, :, :length], lengths[one], num_splits=num_splits)
        assert torch.equal(alone, o[one])


@pytest.mark.parametrize("heads, kv_heads", ((4, 2), (6, 1), (20, 1)))
def test_grouped_heads_are_repeated_heads(heads, kv_heads):
    """To the last bits, in which the order of a sum may show: rows stand elsewhere in their tiles."""
    q, k, v = caches(2, heads, kv_heads, 100, 16, n_new=2)
    repeated = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
    lengths = integers(100, 41)
    grouped, alone = (run(q, *kv, lengths, num_splits=2) for kv in ((k, v), repeated))
    torch.testing.assert_close(grouped, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("paged", (False, True))
@pytest.mark.parametrize("chunk", (1, 4))
def test_decoding_equals_prefill(chunk, paged):
    """A prompt of 20 tokens, then one or four at a time, each written into the cache before it asks."""
    n, prompt = 48, 20
    q, k, v = caches(2, 4, 2, n, 16, n_new=n)
    prefill = flash_attention(q, k, v, causal=True)
    cache_k, cache_v = (torch.full_like(x, torch.nan) for x in (k, v))
    pool = PagePool(n_pages=8, page_size=16)
    sequences = [pool.start() for _ in range(2)]
    pages_k, pages_v = (torch.full((8, 2, 16, 16), torch.nan, device=DEVICE) for _ in range(2))
    steps = []
    for start, stop in itertools.pairwise([0, *range(prompt, n + 1, chunk)]):
        cache_k[:, :, start:stop], cache_v[:, :, start:stop] = k[:, :, start:stop], v[:, :, start:stop]
        for b, sequence in enumerate(sequences):
            pages, rows, _ = (torch.as_tensor(x) for x in pool.append(sequence, stop - start))
            pages_k[pages, :, rows], pages_v[pages, :, rows] = (x[b, :, start:stop].transpose(0, 1) for x in (k, v))
        table, lengths = (torch.from_numpy(x).to(DEVICE) for x in pool.tables(sequences))
        cached = (pages_k, pages_v, lengths) if paged else (cache_k, cache_v, lengths)
        steps.append(flash_decode(q[:, :, start:stop], *cached, block_table=table if paged else None))
    decoded = torch.cat(steps, 2)
    check_attention(decoded, q, k, v, causal=True)
    torch.testing.assert_close(decoded, prefill, rtol=1e-5, atol=1e-6)


def test_sequences_that_share_pages_read_the_same_keys():
    """A prefix of 20 tokens lies in two pages, the second of which is copied when one of the sequences goes on."""
    pool = PagePool(n_pages=6, page_size=16)
    keys = random((40, 2, 16)), random((40, 2, 16), seed=1)  # tokens of either sequence: [tokens, kv_heads, d]
    pages_k, pages_v = (torch.full((6, 2, 16, 16), torch.nan, device=DEVICE) for _ in range(2))
    a = pool.start()

    def append(sequence, tokens):
        pages, rows, copies = pool.append(sequence, len(tokens))
        for cache, written in zip((pages_k, pages_v), keys, strict=True):
            for source, target in copies:
                cache[target] = cache[source]
            cache[torch.as_tensor(pages), :, torch.as_tensor(rows)] = written[tokens]

    tokens = {a: list(range(20))}
    append(a, tokens[a])
    b = pool.share(a, 20)
    for sequence, more in ((b, [30, 31, 32]), (a, [20]), (b, list(range(33, 40)))):
        append(sequence, more)
        tokens[sequence] = tokens.get(sequence, tokens[a][:20]) + more
    q = random((2, 4, 1, 16), seed=3)
    table, lengths = (torch.from_numpy(x).to(DEVICE) for x in pool.tables([a, b]))
    o = flash_decode(q, pages_k, pages_v, lengths, block_table=table)
    assert table[0, 0] == table[1, 0] and table[0, 1] != table[1, 1] and lengths.tolist() == [21, 30]
    for one, sequence in enumerate((a, b)):
        k, v = (x[tokens[sequence]].transpose(0, 1)[None] for x in keys)
        check_attention(o[one, None], q[one, None], k, v)


def test_the_same_call_gives_the_same_bits_and_changes_nothing():
    q, k, v = caches(2, 8, 2, 300, 32, dtype=torch.float16)
    lengths, before = integers(300, 120), [x.clone() for x in (q, k, v)]
    first, second = (flash_decode(q, k, v, lengths, num_splits=4) for _ in range(2))
    assert torch.equal(first, second) and all(map(torch.equal, (q, k, v), before)) and lengths.tolist() == [300, 120]


# Memory: what is read, how often, and what is not.


def test_what_lies_beyond_a_length_or_before_a_window_is_not_read():
    q, k, v = caches(3, 4, 2, 100, 16, n_new=2)
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
        for page_size in (16, 64):
            k_pages, v_pages, table = in_pages(dirty_k, dirty_v, page_size)
            first_keys = torch.arange(table.shape[1]) * page_size
            for b, length in enumerate(lengths.tolist()):
                start = 0 if window_left is None else length - 2 - window_left
                table[b, (first_keys >= length) | (first_keys + page_size <= start)] = 10**9
            o_paged = flash_decode(q, k_pages, v_pages, lengths, block_table=table, **how)
            torch.testing.assert_close(o_paged, o)
            for block_n in (16, 64):
                small = dict(config=(16, block_n, 4, 1), num_splits=num_splits)
                paged = run(q, k_pages, v_pages, lengths, table, **small, **how)
                assert torch.equal(paged, run(q, k, v, lengths, **small, **how))


@pytest.mark.parametrize("page_size", (None, 16, 64))
@pytest.mark.parametrize("num_splits", (1, 3))
def test_keys_and_values_are_read_once_for_all_heads_that_share_them(page_size, num_splits):
    q, k, v = caches(2, 8, 2, 150, 24, n_new=2)
    lengths, table = integers(150, 35), None
    if page_size:
        k, v, table = in_pages(k, v, page_size)
    named = {"q": q, "k": k, "v": v} | ({"table": table} if page_size else {})
    with trace(**named) as traced:
        run(q, k, v, lengths, table, num_splits=num_splits)
    assert traced.violations == []
    once_bytes = (150 + 35) * 2 * 24 * 4
    assert traced.by_tensor["k"] == traced.by_tensor["v"] == (once_bytes, 0)
    assert traced.by_tensor["q"] == (num_splits * q.numel() * 4, 0), "each program reads its queries"
    assert (traced.heatmap("k") <= 1).all()
    if page_size:
        keys = torch.arange(table.shape[1]) * page_size
        needed = np.array([(keys < length).numpy() for length in lengths.tolist()])
        assert ((traced.heatmap("table") > 0) == needed).all(), "only entries of pages with keys"
    assert not traced.unwritten("o").any()


def test_no_access_out_of_bounds():
    for heads, kv_heads, capacity, d, n_new in ((3, 1, 33, 24, 2), (2, 2, 16, 1, 1), (4, 1, 70, 16, 9)):
        q, k, v = caches(2, heads, kv_heads, capacity, d, n_new=n_new)
        lengths = integers(capacity, n_new)
        for num_splits, causal in itertools.product((1, 6), (False, True)):
            with trace(q=q, k=k, v=v) as traced:
                decode.decode(
                    q, k, v, lengths, causal=causal, scale=1.0, store_lse=True, num_splits=num_splits, config=SMALL
                )
            assert traced.violations == []
            stats = "stats" if num_splits == 1 else "lse"  # without splits, they are lse
            assert not traced.unwritten("o").any() and not traced.unwritten(stats).any()


@pytest.mark.parametrize("page_size", (16, 64))
def test_the_tracer_sees_a_page_that_is_not_there(page_size):
    q, k, v = caches(2, 2, 1, 64, 16)
    k_pages, v_pages, table = in_pages(k, v, page_size)
    table[1, 0] = len(k_pages) + 2
    with trace(k_pages=k_pages, v_pages=v_pages) as traced:
        run(q, k_pages, v_pages, integers(64, 40), table, config=(16, 32, 4, 1))
    found = traced.violations
    assert {violation.tensor for violation in found} == {"k_pages", "v_pages"}
    assert {violation.program[0] for violation in found} == {1} and found[0].index[0] == len(k_pages) + 2
    assert sum(violation.count for violation in found) == 2 * min(page_size, 40) * 16


def test_every_output_element_is_written(monkeypatch):
    monkeypatch.setattr(decode.torch, "empty_like", lambda x, **_: torch.full(x.shape, torch.nan).to(x))
    monkeypatch.setattr(decode.torch, "empty", lambda s, **options: torch.full(s, torch.nan, **options))
    q, k, v = caches(2, 6, 2, 50, 24, n_new=3)
    for num_splits in (1, 2, 9):
        o, lse = decode.decode(
            q, k, v, integers(50, 0), causal=True, scale=1.0, store_lse=True, num_splits=num_splits, config=SMALL
        )
        assert not torch.isnan(o).any() and not torch.isnan(lse).any()


def strided(kind, x):
    """x's values in another layout."""
    if kind == "rows before heads":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "rows apart":
        wide = torch.full((*x.shape[:2], 2 * x.shape[2], x.shape[3] + 5), torch.nan, dtype=x.dtype, device=DEVICE)
        wide[:, :, ::2, : x.shape[3]] = x
        return wide[:, :, ::2, : x.shape[3]]
    assert kind == "keys and values in one tensor"
    both = torch.stack([x, torch.full_like(x, torch.nan)], 1)
    return both[:, 0]


@pytest.mark.parametrize("kind", ("rows before heads", "rows apart", "keys and values in one tensor"))
def test_strides(kind):
    q, k, v = caches(2, 4, 2, 64, 32, n_new=2, dtype=torch.float16)
    lengths = integers(64, 20)
    o = flash_decode(q, k, v, lengths)
    assert torch.equal(flash_decode(*(strided(kind, x) for x in (q, k, v)), lengths), o)
    k_pages, v_pages, table = in_pages(k, v, 16)
    wide = torch.full((2, 9), 10**9, dtype=torch.int32, device=DEVICE)
    wide[:, :4] = table
    for some in (table, wide[:, :4], table.T.contiguous().T):
        pages = strided(kind, k_pages), strided(kind, v_pages)
        assert torch.equal(flash_decode(q, *pages, lengths, block_table=some), o)
    across, apart = q.mT.contiguous().mT, integers(64, 0, 20, 0)[::2]
    assert across.stride(-1) != 1 and torch.equal(flash_decode(across, k, v, apart), o)


@pytest.mark.parametrize("axis", (0, 1, 2))
@pytest.mark.parametrize("paged", (False, True))
def test_offsets_beyond_31_bits(axis, paged):
    """Pages or sequences, heads, or rows are far apart in a tensor of gigabytes, nearly all of which nobody touches."""
    shape = [(3, 1, 32, 16), (1, 3, 32, 16), (1, 1, 32, 16)][axis]
    strides = [512, 512, 16, 1]
    strides[axis] = 2**30 if axis < 2 else 2**27
    storage = torch.empty(strides[axis] * (shape[axis] - 1) + 512, dtype=torch.float16, device=DEVICE)
    far = storage.as_strided(shape, strides)
    far.copy_(random(shape, torch.float16))
    table = torch.arange(3 if axis == 0 else 1, device=DEVICE, dtype=torch.int32).flip(0)[:, None] if paged else None
    q = random((shape[0], shape[1], 2, 16), torch.float16)
    lengths = integers(*[30] * shape[0])
    outputs = [run(q, x, x, lengths, table, num_splits=2) for x in (far, far.contiguous())]
    assert torch.equal(*outputs)


def test_queries_beyond_31_bits():
    storage = torch.empty(2**31 + 64, dtype=torch.float16, device=DEVICE)
    far = storage.as_strided((1, 2, 2, 16), (0, 2**30, 2**30, 1))
    far.copy_(random((1, 2, 2, 16), torch.float16))
    k = random((1, 1, 40, 16), torch.float16)
    outputs = [run(q, k, k, integers(40)) for q in (far, far.contiguous())]
    assert torch.equal(*outputs)


def test_an_empty_batch_gives_an_empty_result():
    q, k, v = (x[:0] for x in caches(1, 2, 1, 20, 4))
    assert flash_decode(q, k, v, integers()).shape == (0, 2, 1, 4)


# How it is launched.


def test_a_slot_s_work_is_near_the_least_and_no_fewer_splits_are():
    for n_programs, n_tiles, n_slots in itertools.product((1, 8, 100, 128, 133, 999), (1, 2, 5, 32, 128), (1, 264)):
        work = {
            s: -(-n_programs * s // n_slots) * (-(-n_tiles // s) + decode.START_TILES) for s in range(1, n_tiles + 1)
        }
        near = [s for s in work if work[s] <= 1.05 * min(work.values())]
        assert decode.splits(n_programs, n_tiles, n_slots) == near[0]


def test_splits_of_the_benchmark_s_shapes():
    """With tiles of 64 keys, and two programs at a time on each of an H200's multiprocessors."""
    found = {shape: decode.splits(shape[0] * shape[2], shape[3] // 64, 2 * 132) for shape in SIX_ROWS}
    assert found == SIX_ROWS


def test_there_are_never_more_splits_than_the_merge_can_hold():
    assert decode.splits(1, 10**5, 10**5) <= decode.MAX_SPLITS
    assert decode.splits(1, 1, 10**5) == 1, "and none without keys"


def test_lengths_and_pages_do_not_change_what_is_launched():
    """So a CUDA graph can be replayed with others."""
    q, k, v = caches(2, 2, 1, 100, 16)
    k_pages, v_pages, table = in_pages(k, v, 16)
    flash_decode(q, k_pages, v_pages, integers(100, 3), block_table=table)
    misses = decode.plan.cache_info().misses
    k_pages, v_pages, table = in_pages(k, v, 16, seed=1)
    flash_decode(q, k_pages, v_pages, integers(1, 0), block_table=table)
    assert decode.plan.cache_info().misses == misses


GPUS = ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0), None)


@pytest.mark.parametrize("capability", GPUS, ids=str)
def test_a_launch_takes_what_select_says(capability):
    metas = [decode.tensor_meta(x) for x in caches(2, 8, 2, 300, 128, dtype=torch.float16)]
    options = dict(causal=True, scale=1.0, window_left=None, store_lse=False, num_splits=None, config=None)
    launch, _, num_splits = decode.plan(*metas, None, None, capability, 132, **options)
    config = select(
        "decode", dtype=torch.float16, head_dim=128, causal=True, capability=capability, n_k=300, by_descriptor=False
    )
    assert launch.constants["BLOCK_N"] == config.block_n and launch.constants["BLOCK_M"] == 16
    assert tuple(launch.options.values()) == (config.num_warps, config.num_stages)
    assert num_splits == decode.splits(4, -(-300 // config.block_n), 132 * decode.PROGRAMS_PER_MULTIPROCESSOR)
    many = decode.tensor_meta(caches(2, 8, 2, 1, 128, n_new=99, dtype=torch.float16)[0])
    assert decode.plan(many, *metas[1:], None, None, capability, 132, **options)[0].constants["BLOCK_M"] == min(
        config.block_m, 512
    )


def test_what_the_launch_depends_on_is_planned_anew():
    q, k, v = caches(2, 4, 2, 64, 16, n_new=2)
    k_pages, v_pages, table = in_pages(k, v, 16)
    calls = [
        (q, k, v, integers(64, 9)), (q, k, v, integers(64, 9, dtype=torch.int64)), (q, k, v, None),
        (q, k_pages, v_pages, integers(64, 9), table), (q[:, :, :1], k, v, integers(64, 9)),
        (q, k[:, :, :63], v[:, :, :63], integers(63, 9)),
    ]  # fmt: skip
    changes = [
        {}, {"causal": False}, {"scale": 0.5}, {"window_left": 3}, {"window_left": 4}, {"store_lse": True},
        {"num_splits": 2}, {"num_splits": 3}, {"config": (16, 32, 4, 1)},
    ]  # fmt: skip
    decode.plan.cache_clear()
    for arguments, changed in [*((call, {}) for call in calls), *((calls[0], change) for change in changes[1:])]:
        decode.decode(*arguments, **{"causal": True, "scale": 1.0, "config": SMALL} | changed)
    assert decode.plan.cache_info().misses == len(calls) + len(changes) - 1


@pytest.mark.skipif(DEVICE == "cpu", reason="there are no CUDA graphs without a GPU")
@pytest.mark.parametrize("num_splits", (None, 1, 4))
def test_a_cuda_graph_is_replayed_with_other_lengths_and_pages(num_splits):
    q, k, v = caches(2, 8, 2, 300, 64, dtype=torch.float16)
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


def test_it_is_an_operator_of_a_compiled_graph():
    q, k, v = caches(2, 4, 2, 100, 16)
    lengths = integers(100, 7)
    k_pages, v_pages, table = in_pages(k, v, 16)
    compiled = torch.compile(flash_decode, backend="eager", fullgraph=True)
    o = flash_decode(q, k, v, lengths)
    assert torch.equal(compiled(q, k, v, lengths), o)
    assert torch.equal(compiled(q, k_pages, v_pages, lengths, block_table=table), o)


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("n_q, heads, kv_heads", ((1, 4, 1), (1, 16, 1), (4, 8, 2), (16, 2, 2)))
def test_few_queries_of_flash_attention_are_decoded(decoded, n_q, heads, kv_heads, causal, dtype):
    q, k, v = caches(1, heads, kv_heads, 530, 16, n_new=n_q, dtype=dtype)
    answer = flash_attention(q, k, v, causal=causal, return_lse=True)
    check_attention(answer, q, k, v, causal=causal)
    assert torch.equal(flash_attention(q, k, v, causal=causal), answer[0]) and len(decoded) == 2


def test_grouped_heads_in_half_precision_have_more_rows_decoded(decoded):
    for n_q, n_decoded in ((16, 1), (17, 1)):
        q, k, v = caches(1, 4, 1, 530, 16, n_new=n_q, dtype=torch.float16)
        check_attention(flash_attention(q, k, v, causal=True, return_lse=True), q, k, v, causal=True)
        assert len(decoded) == n_decoded


def test_other_calls_of_flash_attention_are_not(decoded):
    for n_q, heads, n_k, blocks in (
        (17, 1, 530, {}), (3, 6, 530, {}), (1, 1, 511, {}), (1, 1, 530, {"block_k": 64}), (1, 1, 530, {"block_q": 16})
    ):  # fmt: skip
        q, k, v = caches(1, heads, 1, n_k, 16, n_new=n_q)
        o = flash_attention(q, k, v, **blocks)
        scale = 16**-0.5
        forward, _ = flash_forward(q, k, v, causal=False, scale=scale, store_lse=False, **blocks)
        assert torch.equal(o, forward)
    assert decoded == []


def test_gradients_are_right_where_the_forward_is_decoded(decoded):
    inputs = [x.requires_grad_() for x in caches(1, 4, 2, 520, 16, n_new=2)]
    for causal in (False, True):
        o, lse = flash_attention(*inputs, causal=causal, return_lse=True)
        do, dlse = torch.randn_like(o), torch.randn_like(lse)
        gradients = torch.autograd.grad((o, lse), inputs, (do, dlse))
        check_gradients(gradients, *inputs, do, dlse, causal=causal)
        with torch.no_grad():
            assert torch.equal(flash_attention(*inputs, causal=causal), o)
    assert len(decoded) == 4


def test_few_queries_are_decoded_in_a_compiled_graph_too(decoded):
    q, k, v = caches(1, 4, 2, 520, 16)
    o = torch.compile(flash_attention, backend="eager", fullgraph=True)(q, k, v)
    assert torch.equal(o, flash_attention(q, k, v)) and decoded == [(1, 4, 1, 16)] * 2


# What is refused.


def whole(*shape, **options):
    return torch.zeros(shape, **{"dtype": torch.int32} | options)


T = torch.zeros
PAGED = dict(k_cache=T(5, 1, 16, 8), v_cache=T(5, 1, 16, 8), block_table=whole(2, 3))
BAD_INPUTS = {
    "q is no tensor": (dict(q=np.zeros((2, 1, 1, 8))), TypeError, "q must be a torch.Tensor, got ndarray"),
    "rank": (
        dict(k_cache=T(2, 32, 8)), ValueError, r"k_cache must have 4 dimensions \[batch, kv_heads, capacity, head_dim\]"
    ),
    "rank of pages": (
        PAGED | dict(v_cache=T(16, 8)), ValueError, r"v_cache must have 4 dimensions \[n_pages, kv_heads, page_size, h"
    ),
    "float64": (dict(q=T(2, 1, 1, 8, dtype=torch.float64)), TypeError, "q has dtype float64; accepted"),
    "mixed dtypes": (dict(v_cache=T(2, 1, 32, 8, dtype=torch.float16)), TypeError, "v_cache has dtype float16 but q"),
    "head_dim": (dict(k_cache=T(2, 1, 32, 9), v_cache=T(2, 1, 32, 9)), ValueError, "k_cache has head_dim 9 but q"),
    "head_dim 257": (
        dict(q=T(2, 1, 1, 257), k_cache=T(2, 1, 32, 257), v_cache=T(2, 1, 32, 257)), ValueError, "head_dim must be 1 to"
    ),
    "k and v": (dict(v_cache=T(2, 1, 31, 8)), ValueError, r"v_cache must have k_cache's shape \[2, 1, 32, 8\]"),
    "batch": (dict(k_cache=T(3, 1, 32, 8), v_cache=T(3, 1, 32, 8)), ValueError, "k_cache has batch 3 but q has 2"),
    "heads": (
        dict(q=T(2, 3, 1, 8), k_cache=T(2, 2, 32, 8), v_cache=T(2, 2, 32, 8)),
        ValueError, "k_cache and v_cache have 2 heads, which do not divide q's 3",
    ),
    "no new token": (dict(q=T(2, 1, 0, 8)), ValueError, "q has n_new 0; it must be at least 1"),
    "no heads": (dict(k_cache=T(2, 0, 32, 8), v_cache=T(2, 0, 32, 8)), ValueError, "k_cache has kv_heads 0"),
    "no capacity": (dict(k_cache=T(2, 1, 0, 8), v_cache=T(2, 1, 0, 8)), ValueError, "k_cache has capacity 0"),
    "columns apart": (dict(k_cache=T(2, 1, 8, 32).mT), ValueError, "k_cache must be contiguous in its last dim"),
    "lengths no tensor": (dict(lengths=[3, 4]), TypeError, "lengths must be a torch.Tensor, got list"),
    "lengths float": (dict(lengths=T(2)), TypeError, "lengths has dtype float32; accepted: int32, int64"),
    "lengths rank": (dict(lengths=whole(2, 1)), ValueError, r"lengths must have shape \[batch\] .* got \[2, 1\]"),
    "lengths batch": (dict(lengths=whole(3)), ValueError, r"lengths must have shape \[batch\] with batch 2, got \[3\]"),
    "table int64": (
        PAGED | dict(block_table=whole(2, 3, dtype=torch.int64)), TypeError, "block_table has dtype int64; acc"
    ),
    "table rank": (
        PAGED | dict(block_table=whole(6)), ValueError, r"block_table must have shape \[batch, pages\] with batch 2"
    ),
    "table batch": (
        PAGED | dict(block_table=whole(3, 3)), ValueError, r"block_table must have shape .* batch 2, got \[3, 3\]"
    ),
    "table empty": (PAGED | dict(block_table=whole(2, 0)), ValueError, "block_table has pages 0"),
    "page_size 24": (
        PAGED | dict(k_cache=T(5, 1, 24, 8), v_cache=T(5, 1, 24, 8)), ValueError, "k_cache has page_size 24; accepted"
    ),
    "page_size 8": (
        PAGED | dict(k_cache=T(5, 1, 8, 8), v_cache=T(5, 1, 8, 8)), ValueError, "k_cache has page_size 8; accepted"
    ),
    "scale": (dict(scale=float("inf")), ValueError, "scale must be finite"),
    "causal": (dict(causal=1), TypeError, "causal must be True or False, got 1"),
    "window_left": (dict(window_left=-1), ValueError, "window_left must be 0 to .* or None, got -1"),
    "num_splits 0": (dict(num_splits=0), ValueError, "num_splits must be 1 to 512 or None, got 0"),
    "num_splits 513": (dict(num_splits=513), ValueError, "num_splits must be 1 to 512 or None, got 513"),
    "num_splits 1.5": (dict(num_splits=1.5), TypeError, "num_splits must be a whole number or None, got 1.5"),
    "gradient": (dict(q=T(2, 1, 1, 8, requires_grad=True)), ValueError, "q requires a gradient, which flash"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_input_is_named_before_any_launch(case, monkeypatch):
    arguments, error, message = BAD_INPUTS[case]
    monkeypatch.setattr(attention, "decode", lambda *_, **__: pytest.fail("launched"))
    good = dict(q=T(2, 1, 1, 8), k_cache=T(2, 1, 32, 8), v_cache=T(2, 1, 32, 8), lengths=whole(2) + 3)
    merged = {n: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for n, x in {**good, **arguments}.items()}
    with pytest.raises(error, match=message):
        flash_decode(**merged)


@pytest.mark.parametrize("name", ("k_cache", "lengths", "block_table"))
def test_devices_must_agree(name):
    arguments = {"q": T(2, 1, 1, 8), "lengths": whole(2)} | PAGED
    arguments = {n: x.to("meta" if n == name else DEVICE) for n, x in arguments.items()}
    with pytest.raises(ValueError, match=f"{name} is on meta but q is on"):
        flash_decode(**arguments)


BAD_VALUES = {
    "too long": ((33, 3), {}, r"lengths\[0\] is 33; accepted: 2 \(the new tokens\) to 32, or 0"),
    "new tokens not counted": ((32, 1), {}, r"lengths\[1\] is 1; accepted: 2"),
    "negative": ((32, -1), {}, r"lengths\[1\] is -1; accepted: 2"),
    "beyond the pages": ((49, 3), {"table": [[0, 1, 2], [0, 0, 0]]}, r"lengths\[0\] is 49; .* to 48, or 0"),
    "no such page": ((48, 3), {"table": [[0, 1, 5], [0, 0, 0]]}, r"block_table\[0, 2\] is 5; accepted: 0 to 4"),
    "negative page": ((33, 3), {"table": [[0, 1, -1], [0, 0, 0]]}, r"block_table\[0, 2\] is -1; accepted: 0 to 4"),
    "inside the window": (
        (48, 3), {"table": [[-1, 3, 1], [0, 9, 9]], "window_left": 31}, r"block_table\[0, 0\] is -1; accepted: 0 to 4"
    ),
}  # fmt: skip


def call_with_values(lengths, table=None, window_left=None):
    cached = dict(k_cache=T(2, 1, 32, 8), v_cache=T(2, 1, 32, 8)) if table is None else PAGED
    cached = {name: x.to(DEVICE) for name, x in cached.items()}
    if table is not None:
        cached["block_table"] = integers(*table)
    return flash_decode(T(2, 1, 2, 8, device=DEVICE), **cached, lengths=integers(*lengths), window_left=window_left)


@pytest.mark.parametrize("case", BAD_VALUES)
def test_values_are_checked_in_debug_mode_and_in_the_interpreter(case, monkeypatch):
    lengths, changed, message = BAD_VALUES[case]
    monkeypatch.setattr(checks, "DEBUG", DEVICE != "cpu")
    with pytest.raises(ValueError, match=message):
        call_with_values(lengths, **changed)


def test_values_that_are_not_used_are_not_checked(monkeypatch):
    monkeypatch.setattr(checks, "DEBUG", True)
    call_with_values((32, 0), table=[[0, 4, 99], [-1, 99, 99]])
    call_with_values((48, 2), table=[[-1, 3, 1], [0, 9, 9]], window_left=30)


@pytest.mark.parametrize("debug", (False, True))
def test_otherwise_the_host_does_not_look_at_values(monkeypatch, debug):
    looked_at = []
    monkeypatch.setattr(runtime, "mode", lambda: "gpu")
    monkeypatch.setattr(checks, "DEBUG", debug)
    monkeypatch.setattr(attention, "check_values", lambda *_: looked_at.append(1))
    monkeypatch.setattr(attention, "decode", lambda q, *_, **__: (q, None))
    call_with_values((32, 3))
    assert bool(looked_at) == debug
