RIGHT_ANSWERS = {
    "decode_bytes": {"as an array": {"return held, read, written": "return list(np.array([held, read, written]))"}},
    "merge_splits": {"normalised split by split": {
        "    l_safe": "    w = alpha / np.where(l_all == 0, 1, l_all)[..., None]\n"
                      "    acc_all = (w[..., None] * acc).sum(axis=-2)\n    l_safe",
        "return acc_all / l_safe[..., None]": "return acc_all"}},
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
