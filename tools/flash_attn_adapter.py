"""Our kernels behind the public signatures of flash-attention (github.com/Dao-AILab/flash-attention, version 2).

Its own tests can then be run against them (`peer_tests.py`). Its tensors are [batch, seq, heads, head_dim], ours
[batch, heads, seq, head_dim]. Its window (left, right) counts keys on either side of the query's own position, and -1
is no limit. What our kernels do not do raises NotImplementedError, which begins with the argument's name.
"""

import torch

from course_lib import masks
from course_lib.kernels import checks, flash_attention
from course_lib.kernels.decode import decode
from course_lib.kernels.score_mods import FUNCTIONS, alibi, soft_cap


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
    deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """o, or (o, lse, None) with return_attn_probs. The gradients are always deterministic."""
    left, right = _window(causal, window_size, n_q=q.shape[1], n_k=k.shape[1])
    how = {"causal": True} if (left, right) == (None, 0) else {}
    if not how and (left, right) != (None, None):
        how = {"mask": masks.sliding_window(left, right)}
    how |= _variant(dropout_p, softcap, alibi_slopes, return_attn_probs)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o, lse = flash_attention(q, k, v, scale=softmax_scale, return_lse=True, **how)
    o = o.transpose(1, 2)
    return (o, lse, None) if return_attn_probs else o


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False,
    block_table=None,
):  # fmt: skip
    """Sequences one behind the other: q [total_q, heads, head_dim], k and v likewise; lse [heads, total_q].

    In our packed rows, a head has one slope for all sequences. Where each sequence has its own, all rows are computed
    with the slopes of each sequence, and its rows are taken.
    """
    _refuse(block_table=block_table)
    for cu_seqlens, most, name in ((cu_seqlens_q, max_seqlen_q, "q"), (cu_seqlens_k, max_seqlen_k, "k")):
        longest = max(cu_seqlens.diff().tolist(), default=0)
        if longest > most:
            raise ValueError(f"max_seqlen_{name} is {most}, but a sequence has {longest}")
    left, right = _window(causal, window_size, n_q=max_seqlen_q, n_k=max_seqlen_k)
    mask = masks.packed(cu_seqlens_q, cu_seqlens_k, masks.sliding_window(left, right))
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))

    def attend(slopes):
        how = _variant(dropout_p, softcap, slopes, return_attn_probs)
        o, lse = flash_attention(q, k, v, scale=softmax_scale, mask=mask, return_lse=True, **how)
        return o[0].transpose(0, 1), lse[0]

    if alibi_slopes is not None and alibi_slopes.dim() == 2:
        lengths = cu_seqlens_q.diff().tolist()
        each = [
            [x.split(lengths, dim)[b] for dim, x in enumerate(attend(alibi_slopes[b]))] for b in range(len(lengths))
        ]
        o, lse = (torch.cat(parts, dim) for dim, parts in enumerate(zip(*each, strict=True)))
    else:
        o, lse = attend(alibi_slopes)
    return (o, lse, None) if return_attn_probs else o


def flash_attn_varlen_kvpacked_func(q, kv, *arguments, **options):
    """kv: [total_k, 2, kv_heads, head_dim]; the others as in `flash_attn_varlen_func`."""
    return flash_attn_varlen_func(q, *kv.unbind(1), *arguments, **options)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, *arguments, **options):
    """qkv: [total, 3, heads, head_dim]; queries and keys have the same lengths."""
    lengths = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    return flash_attn_varlen_func(*qkv.unbind(1), *lengths, *arguments, **options)


def flash_attn_kvpacked_func(q, kv, *arguments, **options):
    """kv: [batch, seq, 2, kv_heads, head_dim]; the others as in `flash_attn_func`."""
    return flash_attn_func(q, *kv.unbind(2), *arguments, **options)


def flash_attn_qkvpacked_func(qkv, *arguments, **options):
    """qkv: [batch, seq, 3, heads, head_dim]; the others as in `flash_attn_func`."""
    return flash_attn_func(*qkv.unbind(2), *arguments, **options)


def unpad_input(hidden_states, attention_mask):
    """Of flash_attn.bert_padding: the rows of [batch, seq, ...] where the mask is true, and where they were."""
    lengths = attention_mask.sum(-1, dtype=torch.int32)
    indices = attention_mask.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[indices], indices, cu_seqlens, int(lengths.max()), lengths


def pad_input(hidden_states, indices, batch, seqlen):
    """Of flash_attn.bert_padding: what `unpad_input` took apart, with zeros in the other rows."""
    padded = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return padded.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
    cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False,
):  # fmt: skip
    """o, or (o, lse). Caches: [batch, capacity, kv_heads, head_dim], or pages [n_pages, page_size, kv_heads, head_dim].

    cache_seqlens: an int or [batch], how many keys were there before this call; None: the caches are full. The new
    keys k, v [batch, n_appended, kv_heads, head_dim] are first written into the caches behind them.
    """
    _refuse(rotary_cos=rotary_cos, rotary_sin=rotary_sin, cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad)
    batch, n_new, _, head_dim = q.shape
    capacity = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    if cache_seqlens is None or isinstance(cache_seqlens, int):
        full = capacity if cache_seqlens is None else cache_seqlens
        cache_seqlens = torch.full((batch,), full, dtype=torch.int32, device=q.device)
    lengths = cache_seqlens + (0 if k is None else k.shape[1])
    if (lengths > capacity).any():
        where = "k_cache" if block_table is None else "block_table"
        raise RuntimeError(f"{where} has room for {capacity} keys of a sequence, not for {lengths.max()}")
    if k is not None:
        for cache, new in ((k_cache, k), (v_cache, v)):
            _append(cache, new, cache_seqlens, block_table)
    # No more keys than these are in sight of any query.
    left, right = _window(causal, window_size, n_q=n_new, n_k=capacity)
    _refuse(window_size=(left, right) if right else None)
    q, k_cache, v_cache = (x.transpose(1, 2) for x in (q, k_cache, v_cache))
    checks.check_caches(q, k_cache, v_cache, lengths, block_table)
    mods, weights = checks.check_score_mods(_variant(0.0, softcap, alibi_slopes, False).get("score_mod"), q)
    # Not `flash_decode`, which wants at least as many keys as queries. The kernel does not need them.
    o, lse = decode(
        q, k_cache, v_cache, lengths, block_table, None, weights, causal=right == 0,
        scale=checks.check_scale(softmax_scale, head_dim), window_left=left, store_lse=return_softmax_lse,
        num_splits=num_splits or None, mods=tuple(FUNCTIONS[mod][0] for mod in mods),
    )  # fmt: skip
    o = o.transpose(1, 2)
    return (o, lse) if return_softmax_lse else o


def _append(cache, new, cache_seqlens, block_table):
    """Write new [batch, n, kv_heads, head_dim] into a cache, from row cache_seqlens of each sequence on."""
    sequences = torch.arange(len(new), device=new.device)[:, None]
    rows = cache_seqlens.long()[:, None] + torch.arange(new.shape[1], device=new.device)
    if block_table is not None:
        page_size = cache.shape[1]
        sequences, rows = block_table[sequences, rows // page_size].long(), rows % page_size
    cache[sequences, rows] = new


def _window(causal, window_size, n_q, n_k):
    """(left, right): how many keys a query sees on either side of its position n_k - n_q + i; None for all of them."""
    left, right = map(int, window_size)
    right = 0 if causal else right
    # From n_q - 1 on, the first query sees the last key; from n_k - 1 on, the last query sees the first.
    return left if 0 <= left < n_k - 1 else None, right if right == 0 or 0 < right < n_q - 1 else None


def _variant(dropout_p, softcap, alibi_slopes, return_attn_probs):
    """Keyword arguments of `flash_attention`. The cap comes before the bias, and a seed from torch's generator."""
    if dropout_p and return_attn_probs:
        raise NotImplementedError("return_attn_probs is given with dropout_p: our kernels do not return what they drop")
    mods = [soft_cap(softcap)] if softcap else []
    mods += [] if alibi_slopes is None else [alibi(alibi_slopes)]
    return {"score_mod": mods, "dropout_p": dropout_p} if mods else {"dropout_p": dropout_p}


def _refuse(**arguments):
    """Raise NotImplementedError for the first argument that is given and not 0."""
    for name, value in arguments.items():
        if value is not None and (isinstance(value, torch.Tensor) or value):
            raise NotImplementedError(f"{name} is given, which our kernels do not know")
