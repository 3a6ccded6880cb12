"""The conventions of flash-attention's public functions, as our adapter keeps them: each against float64."""

import pytest
import torch

from course_lib import masks, runtime
from course_lib.measure.accuracy import assert_within_budget, check_attention, check_gradients
from tests.peers import flash_attn_adapter as adapter
from tests.peers.flash_attn_adapter import flash_attn_func, flash_attn_with_kvcache

DEVICE = runtime.device()
D = 16


def random(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def integers(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def attend(q, k, v, mask, dtype):
    """(o [n_q, heads, d], lse [heads, n_q]) of one sequence; mask: of `course_lib.masks`."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.to(dtype).transpose(0, 1) for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
    visible = torch.from_numpy(mask.dense(q.shape[1], k.shape[1])).to(DEVICE)
    scores = (q @ k.mT * D**-0.5).masked_fill(~visible, -torch.inf)
    weights = torch.softmax(scores, -1).masked_fill(~visible.any(-1)[:, None], 0.0)
    return (weights @ v).transpose(0, 1), torch.logsumexp(scores.double(), -1).float()


def check_sequences(found, q, k, v, lengths, causal=False, left=None, right=None):
    """found: o, or (o, lse), of sequences whose keys are the first lengths[b] rows of k[b] and v[b]."""
    o, lse = found if isinstance(found, tuple) else (found, None)
    mask = masks.sliding_window(left, 0 if causal else right)
    for b, length in enumerate(lengths):
        inputs = q[b], k[b, :length], v[b, :length], mask
        exact, plain = (attend(*inputs, dtype) for dtype in (torch.float64, q.dtype))
        assert_within_budget("o", o[b], plain[0], exact[0], q.dtype)
        if lse is not None:
            assert_within_budget("lse", lse[b], plain[1], exact[1].float(), torch.float32)


def in_pages(cache, page_size, seed=0):
    """(pages [n_pages, page_size, kv_heads, d] in any order with spare ones, block_table [batch, pages])."""
    batch, capacity, kv_heads, d = cache.shape
    n = capacity // page_size
    table = torch.randperm(batch * n + 3, generator=torch.Generator().manual_seed(seed))[: batch * n].view(batch, n)
    pages = torch.full((batch * n + 3, page_size, kv_heads, d), torch.nan, dtype=cache.dtype, device=DEVICE)
    pages[table.to(DEVICE)] = cache.unflatten(1, (n, page_size))
    return pages, table.int().to(DEVICE)


# flash_attn_func


@pytest.mark.parametrize("n_q, n_k, kv_heads", ((20, 50, 2), (50, 20, 1), (20, 20, 4)))
def test_sequence_comes_before_heads_and_causal_is_aligned_at_the_last_key(n_q, n_k, kv_heads):
    """With more queries than keys, the first see nothing: 0, and lse -inf. lse is [batch, heads, seq]."""
    q, k, v = random(2, n_q, 4, D), random(2, n_k, kv_heads, D, seed=1), random(2, n_k, kv_heads, D, seed=2)
    for causal in (False, True):
        o, lse, dropped = flash_attn_func(q, k, v, causal=causal, return_attn_probs=True)
        assert o.shape == q.shape and lse.shape == (2, 4, n_q) and dropped is None
        check_sequences((o, lse), q, k, v, (n_k, n_k), causal=causal)
        assert torch.equal(flash_attn_func(q, k, v, causal=causal), o)
    hidden = max(0, n_q - n_k)
    assert (o[:, :hidden] == 0).all() and (lse[..., :hidden] == -torch.inf).all() and (lse[..., hidden:] > -9).all()


def test_gradients_pass_through_the_layout():
    q, k, v = (random(1, n, heads, D, seed=n).requires_grad_() for n, heads in ((18, 4), (30, 2), (30, 2)))
    o = flash_attn_func(q, k, v, softmax_scale=0.3, causal=True)
    do = random(*o.shape, seed=5)
    found = torch.autograd.grad(o, (q, k, v), do)
    inputs = [x.detach().transpose(1, 2) for x in (q, k, v, do)]
    check_gradients([x.transpose(1, 2) for x in found], *inputs, causal=True, scale=0.3)


def test_packed_inputs_hold_q_k_and_v_in_this_order():
    q, k, v = (random(1, 20, 2, D, seed=seed) for seed in range(3))
    o = flash_attn_func(q, k, v, causal=True)
    assert torch.equal(adapter.flash_attn_qkvpacked_func(torch.stack((q, k, v), 2), causal=True), o)
    assert torch.equal(adapter.flash_attn_kvpacked_func(q, torch.stack((k, v), 2), causal=True), o)


def test_softmax_scale_is_that_of_the_scores():
    q, k, v = (random(1, 20, 2, D, seed=seed) for seed in range(3))
    for function in (flash_attn_func, flash_attn_with_kvcache):
        found = function(q, k, v, softmax_scale=0.7).transpose(1, 2)
        check_attention(found, *(x.transpose(1, 2) for x in (q, k, v)), scale=0.7)


# flash_attn_with_kvcache


@pytest.mark.parametrize(
    "page_size, kv_heads, dtype", ((None, 6, torch.float16), (16, 3, torch.bfloat16), (32, 1, torch.float32)), ids=str
)
def test_cache_seqlens_are_the_keys_of_each_sequence(page_size, kv_heads, dtype):
    """Without new keys, they are all that a query sees. Fewer keys than queries leave the first queries without any."""
    q = random(3, 4, 6, D, dtype=dtype)
    k, v = random(3, 64, kv_heads, D, dtype=dtype, seed=1), random(3, 64, kv_heads, D, dtype=dtype, seed=2)
    lengths, table, caches = (64, 1, 37), None, (k, v)
    if page_size:
        (k_pages, table), (v_pages, _) = in_pages(k, page_size), in_pages(v, page_size)
        caches = k_pages, v_pages
    for causal, num_splits in ((False, 0), (True, 1), (True, 3)):
        found = flash_attn_with_kvcache(
            q, *caches, cache_seqlens=integers(*lengths), block_table=table, causal=causal, num_splits=num_splits,
            return_softmax_lse=True,
        )  # fmt: skip
        assert found[1].shape == (3, 6, 4)
        check_sequences(found, q, k, v, lengths, causal=causal)


@pytest.mark.parametrize("n_new, n_appended, page_size", ((1, 1, None), (5, 3, None), (5, 5, 16), (2, 20, 16)))
def test_new_keys_are_written_in_place_behind_those_of_cache_seqlens(n_new, n_appended, page_size):
    """cache_seqlens are the lengths before the call, and are left as they were. Causal queries end at the last key."""
    before, capacity = (0, 30, 64 - n_appended), 64
    q, k, v = random(3, n_new, 2, D), random(3, capacity, 1, D, seed=1), random(3, capacity, 1, D, seed=2)
    new_k, new_v = random(3, n_appended, 1, D, seed=3), random(3, n_appended, 1, D, seed=4)
    expected_k, expected_v = k.clone(), v.clone()
    for b, length in enumerate(before):
        expected_k[b, length : length + n_appended], expected_v[b, length : length + n_appended] = new_k[b], new_v[b]
    after = [length + n_appended for length in before]
    for causal in (False, True):
        k_cache, v_cache, table = k.clone(), v.clone(), None
        if page_size:
            (k_cache, table), (v_cache, _) = in_pages(k, page_size), in_pages(v, page_size)
        seqlens = integers(*before)
        found = flash_attn_with_kvcache(
            q, k_cache, v_cache, new_k, new_v, cache_seqlens=seqlens, block_table=table, causal=causal,
            return_softmax_lse=True,
        )  # fmt: skip
        check_sequences(found, q, expected_k, expected_v, after, causal=causal)
        assert seqlens.tolist() == list(before)
        for cache, expected in ((k_cache, expected_k), (v_cache, expected_v)):
            assert torch.equal(cache if table is None else cache[table.long()].flatten(1, 2), expected)


def test_one_length_for_all_and_a_full_cache():
    q, k, v = random(2, 1, 2, D), random(2, 40, 2, D, seed=1), random(2, 40, 2, D, seed=2)
    check_sequences(flash_attn_with_kvcache(q, k, v, cache_seqlens=7), q, k, v, (7, 7))
    check_sequences(flash_attn_with_kvcache(q, k, v), q, k, v, (40, 40))


@pytest.mark.parametrize("n_new", (1, 4))
@pytest.mark.parametrize("window", ((0, 0), (5, 0), (5, 3), (20, -1), (-1, 0), (-1, 9), (63, 50)))
def test_a_window_is_counted_from_the_position_of_each_query(window, n_new):
    """In a sequence of n keys, query i stands at n - n_new + i. -1 is no limit, and causal is a right of 0."""
    q, k, v = random(3, n_new, 2, D), random(3, 64, 1, D, seed=1), random(3, 64, 1, D, seed=2)
    left, right = (None if side < 0 else side for side in window)
    for causal in (False, True):
        found = flash_attn_with_kvcache(
            q, k, v, cache_seqlens=integers(64, 4, 33), causal=causal, window_size=window, return_softmax_lse=True
        )
        check_sequences(found, q, k, v, (64, 4, 33), causal, left, right)


@pytest.mark.parametrize("window", ((29, 0), (40, 40), (-1, 19), (29, -1)))
def test_windows_that_hide_nothing_more_are_accepted_by_flash_attn_func(window):
    q, k, v = random(1, 20, 2, D), random(1, 30, 2, D, seed=1), random(1, 30, 2, D, seed=2)
    causal = window[1] == 0
    assert torch.equal(flash_attn_func(q, k, v, window_size=window), flash_attn_func(q, k, v, causal=causal))


# What is refused


REFUSED = {
    flash_attn_func: {
        "dropout_p": 0.1, "softcap": 30.0, "alibi_slopes": torch.zeros(2), "window_size": (5, 0),
    },
    flash_attn_with_kvcache: {
        "rotary_cos": torch.ones(64, 8), "rotary_sin": torch.zeros(64, 8), "cache_batch_idx": torch.arange(1),
        "cache_leftpad": torch.zeros(1), "softcap": 30.0, "alibi_slopes": torch.zeros(2), "window_size": (-1, 2),
    },
}  # fmt: skip


@pytest.mark.parametrize("function, name", [(function, name) for function in REFUSED for name in REFUSED[function]])
def test_what_our_kernels_do_not_do_is_refused_by_name(function, name, monkeypatch):
    for kernel in ("flash_attention", "decode"):
        monkeypatch.setattr(adapter, kernel, lambda *_, **__: pytest.fail("ran"))
    q, k = random(1, 4, 2, D), random(1, 64, 2, D)
    with pytest.raises(NotImplementedError, match=f"^{name} is given"):
        function(q, k, k, **{name: REFUSED[function][name]})


@pytest.mark.parametrize("page_size, named", ((None, "k_cache"), (16, "block_table")))
def test_a_cache_without_room_is_refused_before_anything_is_written(page_size, named):
    q, k, table = random(2, 1, 2, D), random(2, 32, 2, D), None
    if page_size:
        k, table = in_pages(k, page_size)
    before = k.clone()
    with pytest.raises(RuntimeError, match=f"{named} has room for 32 keys of a sequence, not for 33"):
        flash_attn_with_kvcache(q, k, k, q, q, cache_seqlens=integers(3, 32), block_table=table)
    torch.testing.assert_close(k, before, rtol=0, atol=0, equal_nan=True)
