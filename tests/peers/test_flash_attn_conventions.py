"""The conventions of flash-attention's public functions, as our adapter keeps them.

That the kernels keep the error budget in every dtype is tested with them.
"""

import itertools

import pytest
import torch

from course_lib import masks
from course_lib.kernels import flash_attention
from tests.course_lib.kernels.common import DEVICE, leaves, random
from tests.course_lib.kernels.test_decode import in_pages, integers
from tests.course_lib.kernels.test_masked_attention import stated as with_scores
from tools import flash_attn_adapter as adapter
from tools.flash_attn_adapter import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

D = 16
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


def slopes_of(dims, batch, heads):
    """(alibi_slopes of so many dimensions, none for 0; those of each sequence)."""
    slopes = random(batch, heads, seed=7).abs()
    return {0: (None, [None] * batch), 1: (slopes[0], [slopes[0]] * batch), 2: (slopes, slopes)}[dims]


def stated(q, k, v, *, window_size=(-1, -1), causal=False, softcap=0.0, alibi_slopes=None, softmax_scale=None):
    """(o, lse [heads, seq]) of one sequence [seq, heads, d], by flash-attention's documentation, in q's dtype."""
    if len(q) == 0 or len(k) == 0:
        return torch.zeros_like(q) + k.sum() + v.sum(), torch.full((q.shape[1], len(q)), -torch.inf, device=q.device)
    left, right = (None if size < 0 else size for size in window_size)
    mask, cap = masks.sliding_window(left, 0 if causal else right), softcap or None
    of_one = [x.transpose(0, 1)[None] for x in (q, k, v)]
    o, lse = with_scores(*of_one, mask=mask, cap=cap, slopes=alibi_slopes, scale=softmax_scale)
    return o[0].transpose(0, 1), lse[0].float()


def check_case(function, statement, q, k, v):
    """function and statement of (q, k, v) agree in o, in its gradients for a random do, and in lse."""
    do, found = random(*q.shape, dtype=q.dtype, seed=9), []
    for call in (function, statement):
        given = leaves(q, k, v)
        o, lse, *_ = call(*given)
        found.append((o, lse, *torch.autograd.grad(o, given, do)))
    torch.testing.assert_close(*found, **CLOSE)


def check_sequences(found, q, k, v, lengths, **arguments):
    """found: (o, lse) of sequences whose keys are the first lengths[b] rows of k[b] and v[b]."""
    parts = (stated(q[b], k[b, :length], v[b, :length], **arguments) for b, length in enumerate(lengths))
    torch.testing.assert_close(found, tuple(map(torch.stack, zip(*parts, strict=True))), **CLOSE)


def caches_of(k, v, page_size):
    """(k_cache, v_cache, block_table), as they are or in pages."""
    if not page_size:
        return k.clone(), v.clone(), None
    k_pages, v_pages, table = in_pages(k.transpose(1, 2), v.transpose(1, 2), page_size)
    return k_pages.transpose(1, 2).contiguous(), v_pages.transpose(1, 2).contiguous(), table


# flash_attn_func: (head_dim, heads, kv_heads, n_q, n_k, arguments); slopes: how many dimensions alibi_slopes has.
CASES = (
    (16, 4, 2, 20, 50, {"causal": True, "softmax_scale": 0.3}),
    (16, 4, 4, 50, 20, {"causal": True}),  # the first queries see nothing: 0, and lse is -inf
    (16, 2, 2, 20, 30, {"window_size": (28, 18)}),  # hides one pair on each side
    (16, 2, 2, 20, 30, {"window_size": (29, 0)}),  # hides no more than causal
    (16, 2, 2, 33, 40, {"window_size": (-1, 5)}),
    (16, 2, 1, 20, 33, {"window_size": (5, -1)}),
    (40, 4, 4, 30, 30, {"window_size": (5, 9), "causal": True}),  # causal hides what is on the right
    (32, 4, 2, 20, 45, {"slopes": 1}),
    (16, 4, 1, 40, 25, {"slopes": 2, "window_size": (9, 4)}),
    (64, 4, 2, 25, 40, {"softcap": 0.7, "slopes": 2, "causal": True, "softmax_scale": 0.4}),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_windows_slopes_and_caps_are_those_of_the_documentation(case):
    """Sequence comes before heads. Slopes are one for each head, or for each head of each sequence; the cap comes
    before the bias."""
    d, heads, kv_heads, n_q, n_k, arguments = case
    arguments, of_keys = dict(arguments), (2, n_k, kv_heads, d)
    q, *kv = (random(*shape, seed=seed) for seed, shape in enumerate(((2, n_q, heads, d), of_keys, of_keys)))
    slopes, each = slopes_of(arguments.pop("slopes", 0), 2, heads)

    def function(*of):
        return flash_attn_func(*of, alibi_slopes=slopes, return_attn_probs=True, **arguments)

    def statement(q, k, v):
        parts = [stated(q[b], k[b], v[b], alibi_slopes=each[b], **arguments) for b in range(2)]
        return map(torch.stack, zip(*parts, strict=True))

    check_case(function, statement, q, *kv)
    assert function(q, *kv)[2] is None


def test_packed_inputs_hold_q_k_and_v_in_this_order():
    """And sequences one behind the other are the rows of a padded batch."""
    qkv, cu = random(2, 24, 3, 2, D), integers(0, 24, 24 + 10)
    (q, k, v), rows = qkv.unbind(2), torch.cat([qkv[0], qkv[1, :10]])
    o, *_ = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert torch.equal(flash_attn_func(q, k, v, causal=True), o)
    assert torch.equal(adapter.flash_attn_qkvpacked_func(qkv, causal=True), o)
    assert torch.equal(adapter.flash_attn_kvpacked_func(q, qkv[:, :, 1:], causal=True), o)
    of_rows = adapter.flash_attn_varlen_qkvpacked_func(rows, cu, 24, causal=True)
    torch.testing.assert_close(of_rows, torch.cat([o[0], o[1, :10]]))
    again = adapter.flash_attn_varlen_kvpacked_func(rows[:, 0], rows[:, 1:], cu, cu, 24, 24, causal=True)
    assert torch.equal(again, of_rows)


def test_dropout_is_the_kernel_s_with_a_seed_of_the_global_generator():
    q, k, v = random(2, 40, 4, D), random(2, 40, 2, D, seed=1), random(2, 40, 2, D, seed=2)
    torch.manual_seed(3)
    dropped = flash_attn_func(q, k, v, dropout_p=0.17, causal=True)
    torch.manual_seed(3)
    expected = flash_attention(*(x.transpose(1, 2) for x in (q, k, v)), dropout_p=0.17, causal=True)
    assert torch.equal(dropped, expected.transpose(1, 2))
    assert not torch.equal(flash_attn_func(q, k, v, dropout_p=0.17, causal=True), dropped)


# flash_attn_varlen_func
VARLEN = (
    {}, {"causal": True}, {"window_size": (4, 2)}, {"window_size": (4, -1), "causal": True}, {"softcap": 1.5},
    {"slopes": 1, "causal": True}, {"slopes": 2},
)  # fmt: skip


@pytest.mark.parametrize("arguments", VARLEN, ids=str)
def test_sequences_of_any_length_one_behind_the_other(arguments):
    """Of none and of one token, and with more queries than keys; lse is [heads, total_q]."""
    lengths_q, lengths_k = (7, 0, 1, 20, 1, 12), (7, 3, 0, 30, 1, 5)
    arguments = dict(arguments)
    slopes, each = slopes_of(arguments.pop("slopes", 0), 6, 4)
    cu_q, cu_k = (integers(0, *itertools.accumulate(lengths)) for lengths in (lengths_q, lengths_k))
    q, k, v = (random(n, h, 32, seed=seed) for seed, (n, h) in enumerate(((41, 4), (46, 2), (46, 2))))

    def function(q, k, v):
        more = {"alibi_slopes": slopes, "return_attn_probs": True, **arguments}
        return flash_attn_varlen_func(q, k, v, cu_q, cu_k, 20, 30, **more)

    def statement(q, k, v):
        parts = zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), each, strict=True)
        o, lse = zip(*(stated(*part, alibi_slopes=of, **arguments) for *part, of in parts), strict=True)
        return torch.cat(o), torch.cat(lse, 1)

    check_case(function, statement, q, k, v)


def test_padding_is_taken_out_and_put_back():
    x = random(3, 5, 2)
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]], dtype=torch.bool, device=DEVICE)
    rows, indices, cu_seqlens, longest, lengths = adapter.unpad_input(x, mask)
    assert torch.equal(rows, torch.cat([x[0, :2], x[1], x[2, 4:]])) and lengths.tolist() == [2, 5, 1]
    assert cu_seqlens.tolist() == [0, 2, 7, 8] and cu_seqlens.dtype == torch.int32 and longest == 5
    assert torch.equal(adapter.pad_input(rows, indices, 3, 5), x * mask[..., None])


BIASED = {"softcap": 2.0, "alibi_slopes": random(6, seed=7).abs(), "causal": True}
# flash_attn_with_kvcache: (page_size, kv_heads, n_new, cache_seqlens, arguments)
CACHES = (
    (None, 6, 4, (64, 1, 37), {"softmax_scale": 0.7}),
    (16, 3, 4, (64, 1, 37), {"causal": True, "num_splits": 3}),
    (32, 1, 4, (64, 1, 37), {"causal": True, "num_splits": 1}),
    *(
        (None, 1, n_new, (64, 4, 33), {"window_size": window, "causal": causal})
        for n_new, window, causal in ((1, (0, 0), True), (4, (5, 3), False), (4, (20, -1), True), (4, (63, 50), False))
    ),
    *((None, 2, 1, length, {}) for length in (7, None)),  # one length for all; a full cache
    *((size, 2, 3, (64, 4, 33), BIASED) for size in (None, 16)),
)


@pytest.mark.parametrize("case", CACHES, ids=str)
def test_cache_seqlens_are_the_keys_of_each_sequence(case):
    """Without new keys, they are all that a query sees: query i of a sequence of n keys stands at n - n_new + i, and
    from there a window is counted. Fewer keys than queries leave the first queries without any."""
    page_size, kv_heads, n_new, lengths, arguments = case
    q, k, v = random(3, n_new, 6, D), *(random(3, 64, kv_heads, D, seed=seed) for seed in (1, 2))
    *caches, table = caches_of(k, v, page_size)
    how = {"cache_seqlens": integers(*lengths) if isinstance(lengths, tuple) else lengths, "block_table": table}
    found = flash_attn_with_kvcache(q, *caches, return_softmax_lse=True, **how, **arguments)
    assert torch.equal(flash_attn_with_kvcache(q, *caches, **how, **arguments), found[0])
    arguments = {name: value for name, value in arguments.items() if name != "num_splits"}
    check_sequences(found, q, k, v, lengths if isinstance(lengths, tuple) else 3 * (lengths or 64,), **arguments)


@pytest.mark.parametrize("n_new, n_appended, page_size", ((1, 1, None), (5, 3, None), (5, 5, 16), (2, 20, 16)))
def test_new_keys_are_written_in_place_behind_those_of_cache_seqlens(n_new, n_appended, page_size):
    """cache_seqlens are the lengths before the call, and are left as they were. Causal queries end at the last key."""
    before = (0, 30, 64 - n_appended)
    q, k, v = random(3, n_new, 2, D), random(3, 64, 1, D, seed=1), random(3, 64, 1, D, seed=2)
    new_k, new_v = random(3, n_appended, 1, D, seed=3), random(3, n_appended, 1, D, seed=4)
    expected_k, expected_v = k.clone(), v.clone()
    for b, length in enumerate(before):
        expected_k[b, length : length + n_appended], expected_v[b, length : length + n_appended] = new_k[b], new_v[b]
    after = [length + n_appended for length in before]
    for causal in (False, True):
        k_cache, v_cache, table = caches_of(k, v, page_size)
        seqlens = integers(*before)
        found = flash_attn_with_kvcache(
            q, k_cache, v_cache, new_k, new_v, cache_seqlens=seqlens, block_table=table, causal=causal,
            return_softmax_lse=True,
        )  # fmt: skip
        check_sequences(found, q, expected_k, expected_v, after, causal=causal)
        assert seqlens.tolist() == list(before)
        for cache, expected in ((k_cache, expected_k), (v_cache, expected_v)):
            assert torch.equal(cache if table is None else cache[table.long()].flatten(1, 2), expected)


@pytest.mark.parametrize("page_size, named", ((None, "k_cache"), (16, "block_table")))
def test_a_cache_without_room_is_refused_before_anything_is_written(page_size, named):
    q, k = random(2, 1, 2, D), random(2, 32, 2, D)
    cache, _, table = caches_of(k, k, page_size)
    before = cache.clone()
    with pytest.raises(RuntimeError, match=f"{named} has room for 32 keys of a sequence, not for 33"):
        flash_attn_with_kvcache(q, cache, cache, q, q, cache_seqlens=integers(3, 32), block_table=table)
    torch.testing.assert_close(cache, before, rtol=0, atol=0, equal_nan=True)


UNKNOWN = {
    "rotary_cos": torch.ones(64, 8), "rotary_sin": torch.zeros(64, 8), "cache_batch_idx": torch.arange(1),
    "cache_leftpad": torch.zeros(1), "window_size": (-1, 2),
}  # fmt: skip
REFUSED = (
    *((flash_attn_with_kvcache, {name: x}, NotImplementedError, f"{name} is given") for name, x in UNKNOWN.items()),
    *(
        (flash_attn_varlen_func, *case)
        for case in (
            ({"block_table": torch.zeros(1, 2)}, NotImplementedError, "block_table is given"),
            ({"return_attn_probs": True, "dropout_p": 0.1}, NotImplementedError, "return_attn_probs is given with"),
            ({"max_seqlen_q": 3}, ValueError, "max_seqlen_q is 3, but a sequence has 4"),
            ({"cu_seqlens_k": torch.tensor([0, 30, 64])}, ValueError, "cu_seqlens_q has 2 entries and cu_seqlens_k 3"),
        )
    ),
)


@pytest.mark.parametrize("function, arguments, error, message", REFUSED, ids=[message for *_, message in REFUSED])
def test_what_our_kernels_do_not_do_and_lengths_that_are_none_are_refused_by_name(function, arguments, error, message):
    q, k = random(4, 2, D), random(64, 2, D)
    if function is flash_attn_with_kvcache:
        given = dict(q=q[None], k_cache=k[None], v_cache=k[None])
    else:
        lengths = dict(cu_seqlens_q=integers(0, 4), cu_seqlens_k=integers(0, 64), max_seqlen_q=4, max_seqlen_k=64)
        given = dict(q=q, k=k, v=k, **lengths)
    with pytest.raises(error, match=f"^{message}"):
        function(**given | arguments)
