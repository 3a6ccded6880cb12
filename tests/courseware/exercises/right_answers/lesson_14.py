import numpy as np


def bytes_with_numpy(lengths, heads, kv_heads, d, page_size, splits, bytes_per_element):
    lengths = np.array(lengths)
    in_pages = (lengths + page_size - 1) // page_size * page_size
    held, keys = (2 * kv_heads * d * bytes_per_element * rows.sum() for rows in (in_pages, lengths))
    o = lengths.size * heads * d * bytes_per_element
    states = 4 * lengths.size * heads * splits * (d + 2) * (splits != 1)
    return held, keys + o * splits + states, o + states


def merge_by_weights(m, l, acc):
    """From the log-sum-exp of each split."""
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = m + np.log(l)
        largest = lse.max(axis=-1)
        largest = np.where(np.isneginf(largest), np.zeros_like(largest), largest)
        whole = largest + np.log(np.exp(lse - largest[..., None]).sum(axis=-1))
        weights = np.where(l > 0, np.exp(m - np.where(np.isneginf(whole), 0 * l[..., 0], whole)[..., None]), 0 * l)
    return np.einsum("...s,...sd->...d", weights, acc), whole


RIGHT_ANSWERS = {
    "decode_bytes": {"with NumPy": bytes_with_numpy},
    "merge_splits": {"by weights": merge_by_weights},
    "append_to_pages": {"pages, counts and places as arrays": {
                            "return pages, free, references, copies, places": "return np.array(pages, int), free, "
                            "np.array(references), copies, np.array(places, int).reshape(-1, 2)"}},
    "paged_attention": {"float32, normalised at the end": {
                            "q[b, head] @ K[:, kv_head].T": "np.float32(q[b, head]) @ np.float32(K[:, kv_head]).T",
                            "p @ V": "np.float32(p) @ V",
                            "p.sum(axis=1, keepdims=True)": "np.float32(p).sum(axis=1, keepdims=True)"}},
    "decode_kernel": {
        "in base 2, m brought back at the end": {
            'tl.trans(k), input_precision="ieee") *': 'tl.trans(k), input_precision="ieee") * 1.4426950408889634 *',
            "tl.exp(m_i": "tl.exp2(m_i",
            "tl.exp(scores": "tl.exp2(scores",
            "tl.store(m_ptr + states, m_i,": "tl.store(m_ptr + states, m_i * 0.6931471805599453,"}},
}  # fmt: skip
