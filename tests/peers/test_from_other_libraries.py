"""Every line of docs/from_other_libraries.md does what its left column means, by PyTorch or written out."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

from course_lib import masks
from tests.course_lib.kernels.common import DEVICE, random
from tests.course_lib.kernels.test_masked_attention import stated as with_scores

PAGE = Path(__file__).parents[2] / "docs/from_other_libraries.md"
(IMPORTS,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
ROWS = dict(re.findall(r"^\| (`.*|a key.*|pages.*) \| `(flash_.*)` \|$", PAGE.read_text(), re.MULTILINE))
B, H, N_Q, N, D = 2, 4, 20, 36, 16
q, k, v = (random(B, H, N, D, seed=seed) for seed in range(3))
q_few, q_new, k_few_heads, v_few_heads = q[:, :, :N_Q], q[:, :, :3], k[:, :2], v[:, :2]
q_bshd, k_bshd, v_bshd = (x.transpose(1, 2).contiguous() for x in (q, k, v))
visible_of_each = torch.rand(B, 1, N, N, generator=torch.Generator().manual_seed(0)) < 0.5
visible_of_each, lengths = visible_of_each.to(DEVICE), torch.tensor([36, 11], device=DEVICE)
visible = visible_of_each[0, 0]
slopes, sinks, keys = random(H, seed=5).abs(), random(H, seed=6), torch.arange(N, device=DEVICE)
cu_seqlens_q, cu_seqlens_k = torch.tensor([0, 7, 20]), torch.tensor([0, 16, 36])
packed_rows = q_few[:1], k[:1], v[:1]
leftpad = torch.tensor([5, 2], device=DEVICE)
block_tables = torch.tensor([[4, 0, 3], [1, 5, 2]], dtype=torch.int32, device=DEVICE)
k_cache, v_cache = k, v
k_pages, v_pages = (torch.empty(6, 12, H, D, device=DEVICE) for _ in "kv")
for pages, cache in ((k_pages, k), (v_pages, v)):
    pages[block_tables.long()] = cache.transpose(1, 2).unflatten(1, (3, 12))


def mask_mod(b, h, i, j):
    return (i * 7 + j * 3) % 5 < 3


def mod_of_heads(b, h, i, j):
    return (i * (h + 2) + j * 3 + b) % 5 < 3


def causal_mod(b, h, i, j):
    return i >= j


def stated(q=q, k=k, v=v, sinks=None, *, left=None, right=None, lengths=None, **how):
    """(o, lse), aligned at the last query and key, of the first lengths of the keys. how: as `with_scores` takes it."""
    if lengths is None:
        return with_scores(q, k, v, sinks, mask=masks.sliding_window(left, right), **how)
    each = [(q[b, None], k[b, None, :, :n], v[b, None, :, :n]) for b, n in enumerate(lengths.tolist())]
    found = [stated(*one, sinks, left=left, right=right, **how) for one in each]
    return tuple(map(torch.cat, zip(*found, strict=True)))


def flexed(mod, *, heads=(None, None), **how):
    return flex_attention(q, k, v, block_mask=create_block_mask(mod, *heads, N, N, device=DEVICE), **how)


def packed():
    rows, k, v = packed_rows
    first = stated(rows[:, :, :7], k[:, :, :16], v[:, :, :16], right=0)[0]
    return torch.cat([first, stated(rows[:, :, 7:], k[:, :, 16:], v[:, :, 16:], right=0)[0]], 2)


def behind_padding():
    ranges = enumerate(zip(leftpad.tolist(), lengths.tolist(), strict=True))
    keys = [(b, None, slice(None), slice(first, stop)) for b, (first, stop) in ranges]
    return torch.cat([stated(q_new[seen[:2]], k[seen], v[seen], right=0)[0] for seen in keys])


MEANT = {
    "`query, key, value`": lambda: sdpa(q, k, v),
    "`is_causal=True`, as many": lambda: sdpa(q, k, v, is_causal=True),
    "`is_causal=True`, fewer": lambda: sdpa(q_few, k, v, is_causal=True),
    "`attn_mask` of bool, `[n_q": lambda: sdpa(q, k, v, attn_mask=visible),
    "`attn_mask` of bool, `[batch": lambda: sdpa(q, k, v, attn_mask=visible_of_each),
    "a key padding mask": lambda: sdpa(q, k, v, attn_mask=keys < lengths[:, None, None, None]),
    "`scale=0.3`": lambda: sdpa(q, k, v, scale=0.3),
    "`enable_gqa": lambda: sdpa(q, k_few_heads, v_few_heads, enable_gqa=True),
    "`flash_attn_func": lambda: stated()[0].transpose(1, 2),
    "`causal=True, soft": lambda: stated(q_few, right=0, scale=0.3)[0],
    "`window_size=(8": lambda: stated(q_few, left=8, right=0)[0],
    "`window_size=(-1": lambda: stated(q_few, right=3)[0],
    "`softcap": lambda: stated(cap=20.0)[0],
    "`alibi_slopes=slopes`": lambda: stated(q_few, slopes=slopes)[0],
    "`return_attn_probs": lambda: stated()[1],
    "`flash_attn_varlen": packed,
    "`flash_attn_with_kvcache": lambda: stated(q_new, right=0, lengths=lengths)[0],
    "`cache_leftpad": behind_padding,
    "`create_block_mask(mask_mod": lambda: flexed(mask_mod),
    "`create_block_mask(mod_of_heads": lambda: flexed(mod_of_heads, heads=(B, H)),
    "`and_masks": lambda: flexed(and_masks(mask_mod, causal_mod)),
    "`score_mod` of": lambda: flexed(lambda b, h, i, j: i >= 0, score_mod=lambda s, *_: 20.0 * torch.tanh(s / 20.0)),
    "`return_lse=True`": lambda: flexed(lambda b, h, i, j: i >= 0, return_lse=True)[1],
    "pages": lambda: stated(q_new, right=0, lengths=lengths)[0],
    "`sliding_window": lambda: stated(q_new, left=7, right=0, lengths=lengths)[0],
    "`s_aux": lambda: stated(q_new, right=0, lengths=lengths, sinks=sinks)[0],
    "`alibi_slopes`, `logits": lambda: stated(q_new, right=0, lengths=lengths, cap=20.0, slopes=slopes)[0],
    "`return_softmax_lse": lambda: stated(q_new, right=0, lengths=lengths)[1],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", ROWS)
def test_a_row_means_the_same_on_both_sides(row):
    (meant,) = [MEANT[name] for name in MEANT if row.startswith(name)]
    names = dict(globals())
    exec(IMPORTS, names)
    torch.testing.assert_close(eval(ROWS[row], names), meant(), rtol=2e-5, atol=2e-5)


def test_every_row_is_read():
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "| here |" not in line]
    assert len(table) == len(ROWS) == len(MEANT)
