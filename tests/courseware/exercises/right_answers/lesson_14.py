"""Lesson 14: right answers written differently."""

import math

import numpy as np


def bytes_sequence_by_sequence(lengths, heads, kv_heads, d, page_size, splits, bytes_per_element):
    held = read = written = 0
    for length in lengths:
        held += math.ceil(length / page_size) * page_size * kv_heads * d * bytes_per_element * 2
        for _ in range(heads):
            read += splits * d * bytes_per_element
            written += d * bytes_per_element + (splits > 1) * splits * 4 * (d + 2)
            read += (splits > 1) * sum(8 * splits for _ in range(0, d, 32))
            read += (splits > 1) * splits * d * 4
        read += kv_heads * length * d * bytes_per_element * 2
    return [held, read, written]


def bytes_with_numpy(lengths, heads, kv_heads, d, page_size, splits, bytes_per_element):
    lengths = np.array(lengths)
    in_pages = (lengths + page_size - 1) // page_size * page_size
    held, keys = (2 * kv_heads * d * bytes_per_element * rows.sum() for rows in (in_pages, lengths))
    o = lengths.size * heads * d * bytes_per_element
    states = 4 * lengths.size * heads * splits * np.array([d + 2 * ((d + 31) // 32), d + 2]) * (splits != 1)
    return held, keys + o * splits + states[0], o + states[1]


def merge_by_weights(m, l, acc):
    """From the log-sum-exp of each split."""
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = m + np.log(l)
        largest = lse.max(axis=-1)
        largest = np.where(np.isneginf(largest), np.zeros_like(largest), largest)
        whole = largest + np.log(np.exp(lse - largest[..., None]).sum(axis=-1))
        weights = np.where(l > 0, np.exp(m - np.where(np.isneginf(whole), 0 * l[..., 0], whole)[..., None]), 0 * l)
    return np.einsum("...s,...sd->...d", weights, acc), whole


def merge_in_turn(m, l, acc):
    """Split after split, as a program with little memory would."""
    m_all, l_all, acc_all = m[..., 0], l[..., 0], acc[..., 0, :]
    for s in range(1, m.shape[-1]):
        m_new = np.maximum(m_all, m[..., s])
        safe = np.where(np.isinf(m_new), 0, m_new).astype(m.dtype)
        a, b = np.exp(m_all - safe), np.exp(m[..., s] - safe)
        m_all, l_all, acc_all = m_new, a * l_all + b * l[..., s], a[..., None] * acc_all + b[..., None] * acc[..., s, :]
    has_keys = l_all > 0
    divisor = l_all + (1 - has_keys.astype(m.dtype))
    return acc_all / divisor[..., None], m_all + np.log(divisor)


def append_token_by_token(pages, length, n_tokens, page_size, free, references):
    pages, free, references, copies, places = [*pages], [*free], [*references], [], []
    for token in range(length, length + n_tokens):
        index, row = divmod(token, page_size)
        writable = index < len(pages) and (row == 0 or references[pages[index]] == 1)
        if not writable:
            if not free:
                return None
            page = free.pop()
            references[page] = 1
            if index < len(pages):
                copies += [(pages[index], page)]
                references[pages[index]] -= 1
                pages[index] = page
            else:
                pages += [page]
        places += [[pages[index], row]]
    return pages, free, references, copies, places


def append_with_numpy(pages, length, n_tokens, page_size, free, references):
    """One slice of free, for the copy and for the new pages."""
    counts = np.array(references)
    used, left = divmod(length, page_size)
    copies_one = bool(n_tokens and left and counts[pages[-1]] != 1)
    kept = list(pages[: len(pages) - copies_one])
    needed = math.ceil((length + n_tokens) / page_size) - len(kept)
    if len(free) < needed:
        return None
    taken = list(free[len(free) - needed :][::-1])
    counts[pages[len(kept) :]] -= 1
    counts[taken] += 1
    after = np.array(kept + taken, dtype=int)
    tokens = np.arange(length, length + n_tokens)
    places = np.stack([after[tokens // page_size], tokens % page_size], axis=1)
    copies = [(pages[-1], taken[0])] if copies_one else []
    return after, free[: len(free) - needed], counts, copies, places


def paged_in_the_order_of_a_kernel(q, k_pages, v_pages, block_table, lengths, scale):
    """Page by page, with an online softmax for the rows of all heads that share keys."""
    (batch, heads, n_new, d), (_, kv_heads, page_size, _) = q.shape, k_pages.shape
    grouped = q.reshape(batch, kv_heads, heads // kv_heads * n_new, d).astype(np.float32)
    o = np.zeros_like(grouped)
    newest = np.tile(np.arange(n_new), heads // kv_heads)
    for b in range(batch):
        for h in range(kv_heads):
            rows = grouped[b, h] * np.float32(scale)
            m, l, acc = np.full(len(rows), -np.inf, np.float32), np.zeros(len(rows), np.float32), np.zeros_like(rows)
            for start in range(0, lengths[b], page_size):
                page, n = block_table[b, start // page_size], min(page_size, lengths[b] - start)
                s = rows @ k_pages[page, h, :n].astype(np.float32).T
                seen = start + np.arange(n) < (lengths[b] - n_new + newest + 1)[:, None]
                s = np.where(seen, s, np.float32(-np.inf))
                m_new = np.maximum(m, s.max(axis=1))
                shift = np.where(np.isinf(m_new), np.float32(0), m_new)
                p, alpha = np.exp(s - shift[:, None]), np.exp(m - shift)
                m, l, acc = m_new, l * alpha + p.sum(axis=1), acc * alpha[:, None] + p @ v_pages[page, h, :n]
            o[b, h] = acc / np.where(l == 0, np.float32(1), l)[:, None]
    return o.reshape(q.shape)


def paged_in_one_gather(q, k_pages, v_pages, block_table, lengths, scale):
    """All sequences padded to the longest, with what does not exist replaced before it is used."""
    (_, heads, n_new, _), (_, kv_heads, page_size, _) = q.shape, k_pages.shape
    lengths = np.asarray(lengths)
    keys = np.arange(max(1, lengths.max()))
    exists = keys < lengths[:, None]
    pages = np.where(exists, block_table[:, np.minimum(keys // page_size, block_table.shape[1] - 1)], 0)
    k, v = (np.where(exists[..., None, None], x[pages, :, keys % page_size], 0) for x in (k_pages, v_pages))
    k, v = (np.repeat(x, heads // kv_heads, axis=2) for x in (k, v))
    s = np.einsum("bhid,bjhd->bhij", q, k) * scale
    seen = exists[:, None, :] & (keys <= (lengths[:, None] - n_new + np.arange(n_new))[..., None])
    s = np.where(seen[:, None], s, -np.inf)
    largest = s.max(axis=-1, keepdims=True)
    p = np.exp(s - np.where(np.isinf(largest), 0, largest))
    return np.einsum("bhij,bjhd->bhid", p / np.maximum(p.sum(axis=-1, keepdims=True), 1e-300), v)


RIGHT_ANSWERS = {
    "decode_bytes": {"sequence by sequence": bytes_sequence_by_sequence, "with NumPy": bytes_with_numpy},
    "merge_splits": {"by weights": merge_by_weights, "in turn": merge_in_turn},
    "append_to_pages": {"token by token": append_token_by_token, "with NumPy": append_with_numpy},
    "paged_attention": {"page by page": paged_in_the_order_of_a_kernel, "in one gather": paged_in_one_gather},
    "decode_kernel": {
        "in base 2, m brought back at the end": {
            '@ [BLOCK_D, BLOCK_N]\n        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale': (
                '@ [BLOCK_D, BLOCK_N]\n        scores = tl.dot(q, tl.trans(k), input_precision="ieee")'
                " * (scale * 1.4426950408889634)"
            ),
            "tl.exp(m_i": "tl.exp2(m_i",
            "tl.exp(scores": "tl.exp2(scores",
            "tl.store(m_ptr + states, m_i,": "tl.store(m_ptr + states, m_i * 0.6931471805599453,",
        },
        "tile by tile, without tl.dot and with a guard": {
            "range(split * share, end, BLOCK_N):": "range(split * share, (split + 1) * share, BLOCK_N):",
            'scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale': (
                "scores = tl.sum(q[:, None, :] * k[None, :, :], axis=2) * scale"
            ),
            "alpha = tl.exp(m_i - m_new)": (
                'm_ref = tl.where(m_new == float("-inf"), 0.0, m_new)\n        alpha = tl.exp(m_i - m_ref)'
            ),
            "p = tl.exp(scores - m_new[:, None])": "p = tl.exp(scores - m_ref[:, None])",
        },
        "nothing loaded for a split without keys, k and v advanced by pointers": {
            "q = tl.load(q_ptrs, mask=mask_md, other=0.0)": (
                "q = tl.load(q_ptrs, mask=mask_md & (split * tl.cdiv(tl.cdiv(length, BLOCK_N), n_splits) * BLOCK_N"
                " < length), other=0.0)"
            ),
            "share = tl.cdiv(tl.cdiv(length, BLOCK_N), n_splits) * BLOCK_N": (
                "n_tiles = (length + BLOCK_N - 1) // BLOCK_N\n"
                "    share = (n_tiles + n_splits - 1) // n_splits * BLOCK_N"
            ),
            "k_ptrs = k_ptr + batch * stride_kb + kv_head * stride_kh + offs_n[:, None] * stride_kn": (
                "k_tile = k_ptr + batch * stride_kb + kv_head * stride_kh + start_n * stride_kn\n"
                "        k_ptrs = k_tile + tl.arange(0, BLOCK_N)[:, None] * stride_kn"
            ),
        },
    },
}
