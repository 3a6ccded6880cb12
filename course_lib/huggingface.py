"""The course's attention in Hugging Face's transformers: any causal decoder, with attn_implementation="course".

    from course_lib import huggingface
    huggingface.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="course")

transformers takes two functions from an attention implementation. `key_ranges` makes the mask, once in a forward pass
for all layers of a kind; `attend` computes attention with it in each layer.

In a causal decoder, a query sees one range of keys: up to its own, from where its window, its sequence (of several in
one row) or what is no padding begins. So the mask is two numbers for each query, where PyTorch's attention takes one
for each pair. They are computed where the tensors are, so that a compiled model has no break in its graph.

Reading order: the mask, attention, register.
"""

import torch
from torch.nn.functional import pad

from course_lib.kernels import flash_attention, flash_decode
from course_lib.kernels.score_mods import hide_before, soft_cap

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.utils.import_utils import is_tracing
except ImportError as error:
    raise ImportError(
        "course_lib.huggingface needs transformers 5.24 or newer: pip install 'flash-attention-course[models]'"
    ) from error

ACCEPTED = (
    "accepted: causal masks, with a window, chunks, packed sequences, and padding in front of a sequence or behind it. "
    'attn_implementation="eager" takes others'
)
# What a model may pass to attention that would change the result, or that asks for another one.
REFUSED = {
    "output_attentions": "the weights, which are never in memory all at once",
    "position_bias": "a number to add to each score",
    "indices": "a choice of keys for each query",
    "block_indices": "a choice of blocks of keys for each query",
    "sinks": "sinks, which are accepted by the name of s_aux",
    "block_table": "a cache in pages",
}


def key_ranges(
    batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None, local_size=None,
    allow_is_causal_skip=True, use_vmap=False, device="cpu", **_,
):  # fmt: skip
    """The mask: `flash_attention`'s key_ranges as int32 [batch, 1, 2, n_q], because transformers hands masks of four
    dimensions on as they are; or None if it is the causal one, aligned at the last query and the last key.

    Query i is the token at position q_offset + i (in a static cache a tensor), key j the one at kv_offset + j. For
    positions, mask_function(batch, head, query, key) says whether one sees the other. local_size: the width of a window
    or of chunks, None without. attention_mask: bool [batch, tokens], False for padding, or None. The others are as
    `transformers.masking_utils.sdpa_mask`'s.

    Raises NotImplementedError for a mask that shows keys behind the query, or more than one range. In a compiled model,
    this is a RuntimeError, on a GPU a failed assertion.
    """
    if use_vmap:
        raise NotImplementedError(f"the model changes its mask by or_mask_function or and_mask_function; {ACCEPTED}")
    batch, head = torch.arange(batch_size, device=device)[:, None], torch.zeros(1, 1, dtype=torch.int64, device=device)
    keys = torch.arange(kv_length, device=device)
    before, after = (kv_offset + keys[:-1])[None], (kv_offset + keys[1:])[None]
    looks_ahead = mask_function(batch, head, before, after).any()
    # A token that does not see the one before it is the first of a sequence, or of a chunk: [batch, n_k].
    is_first = ~mask_function(batch, head, after, before).expand(batch_size, -1)
    first_of_key = torch.where(pad(is_first, (1, 0), value=True), keys, 0).cummax(1).values
    own = torch.arange(q_length, device=device) + q_offset - kv_offset  # each query's own key
    first, stop = first_of_key[:, own], (own + 1).expand(batch_size, -1)
    if local_size is not None:
        first = torch.maximum(first, own - local_size + 1)
    has_gaps = torch.zeros_like(looks_ahead)
    if attention_mask is not None:
        # Where a static cache has no keys yet, attention_mask has no entries.
        n_missing = max(kv_offset + kv_length - attention_mask.shape[1], 0)
        is_shown = pad(attention_mask, (0, n_missing))[:, kv_offset : kv_offset + kv_length]
        first_shown = torch.where(is_shown, keys, kv_length).amin(1, keepdim=True)
        stop_shown = torch.where(is_shown, keys + 1, 0).amax(1, keepdim=True)
        has_gaps = (is_shown.sum(1, keepdim=True) < stop_shown - first_shown).any()
        first, stop = torch.maximum(first, first_shown), torch.minimum(stop, stop_shown)
    ranges = torch.stack([first, stop], dim=1).int()[:, None]
    ahead, gaps = f"the model's mask shows later tokens; {ACCEPTED}", f"attention_mask has gaps; {ACCEPTED}"
    if is_tracing(ranges):
        torch._assert_async(~looks_ahead, ahead)
        torch._assert_async(~has_gaps, gaps)
        return ranges
    is_causal = (ranges == _causal_ranges(q_length, kv_length, device)).all()
    looks_ahead, has_gaps, is_causal = torch.stack([looks_ahead, has_gaps, is_causal]).tolist()  # waits for the GPU
    if looks_ahead or has_gaps:
        raise NotImplementedError(ahead if looks_ahead else gaps)
    return None if is_causal and allow_is_causal_skip else ranges


def _causal_ranges(n_q, n_k, device):
    """int32 [1, 1, 2, n_q], for the last of n_q queries at the last of n_k keys."""
    stop = torch.arange(n_k - n_q + 1, n_k + 1, dtype=torch.int32, device=device)
    return torch.stack([torch.zeros_like(stop), stop])[None, None]


def attend(
    module, query, key, value, attention_mask, *, scaling=None, dropout=0.0, softcap=None, s_aux=None, is_causal=None,
    cu_seq_lens_q=None, **others,
):  # fmt: skip
    """(o, None): attention as a layer of a model asks for it, and no weights.

    query: [batch, heads, n_q, head_dim]; key, value: [batch, kv_heads, n_k, head_dim], from a cache or not, kv_heads a
    divisor of heads. Values may have another head_dim. attention_mask: what `key_ranges` returns. softcap: as
    `soft_cap`'s. s_aux: sinks. cu_seq_lens_q: [0, n_1, n_1 + n_2, ...], where sequences in a row begin.
    Returns o as [batch, n_q, heads, head_dim].

    A single query that needs no gradient goes to `flash_decode`, all others to `flash_attention`, whose inputs and
    errors these are. Raises NotImplementedError, by name, for what would change the result and is not here.
    """
    for name in REFUSED:
        if others.get(name) is not None and others[name] is not False:
            raise NotImplementedError(f"{name} asks for {REFUSED[name]}; not with the course's attention")
    batch, n_heads, n_q, head_dim = query.shape
    n_k = key.shape[2]
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal) and n_q > 1:
        raise NotImplementedError(f"{type(module).__name__} is not causal; {ACCEPTED}")
    ranges = attention_mask
    if ranges is not None and (ranges.dtype != torch.int32 or ranges.shape != (batch, 1, 2, n_q)):
        raise NotImplementedError(
            f"attention_mask is {ranges.dtype} {list(ranges.shape)}; accepted: [batch, tokens], 0 for padding, or None"
        )
    if cu_seq_lens_q is not None:
        if n_q != n_k:
            raise NotImplementedError(f"cu_seq_lens_q comes with {n_q} queries and {n_k} keys; accepted: equally many")
        ranges = (_causal_ranges(n_q, n_k, query.device) if ranges is None else ranges).expand(batch, -1, -1, -1)
        tokens = torch.arange(n_q, dtype=cu_seq_lens_q.dtype, device=query.device)
        begins = cu_seq_lens_q[torch.searchsorted(cu_seq_lens_q, tokens, right=True) - 1].int()
        ranges = torch.stack([torch.maximum(ranges[:, :, 0], begins), ranges[:, :, 1]], dim=2)
    v_head_dim = value.shape[3]
    if v_head_dim != head_dim:
        query, key, value = (pad(x, (0, max(head_dim, v_head_dim) - x.shape[3])) for x in (query, key, value))
    how = {"scale": head_dim**-0.5 if scaling is None else scaling, "sinks": s_aux}
    mods = () if softcap is None else (soft_cap(softcap),)
    needs_gradient = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (query, key, value, s_aux)
    )
    if n_q == 1 and not needs_gradient and not dropout:
        lengths = torch.full((batch,), n_k, dtype=torch.int32, device=query.device)
        if ranges is not None:
            first, lengths = ranges[:, 0, :, 0].unbind(1)
            mods += (hide_before(first[:, None].expand(batch, n_heads)),)  # last, or the cap would show them again
        o = flash_decode(query, key, value, lengths, score_mod=mods or None, **how)
    else:
        seen = {"causal": True} if ranges is None else {"key_ranges": ranges[:, 0]}
        o = flash_attention(query, key, value, score_mod=mods or None, dropout_p=dropout, **seen, **how)
    return o[..., :v_head_dim].transpose(1, 2).contiguous(), None


def register(name="course"):
    """From now on, attn_implementation=name is the course's attention. May be called again.

    Raises ValueError for a name by which transformers, which looks for parts of names, would know another one.
    """
    known, taken = ("eager", "sdpa", "flash", "flex", "paged"), AttentionInterface().get(name, attend) is not attend
    if taken or not name.isidentifier() or any(part in name for part in known):
        raise ValueError(f"name is {name!r}; accepted: a new identifier without {', '.join(known)} in it")
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, key_ranges)
