RIGHT_ANSWERS = {
    "documents_mask": {"as lists": {"return visible": "return visible.tolist()"}},
    "tile_kinds": {"as lists": {"return kinds": "return kinds.tolist()"}},
    "sliding_window_bounds": {"nothing said of empty ranges": {
        "    return start //": "    if last + right < 0 or start // block_n >= -(-stop // block_n):\n"
                           "        return 0, 0, 0, 0\n    return start //",
        "full_end, -(-stop": "max(full_end, -(-full_start // block_n)), -(-stop"}},
    "masked_forward": {
        "in base 2": {
            'tl.trans(k), input_precision="ieee") *': 'tl.trans(k), input_precision="ieee") * 1.4426950408889634 *',
            "tl.exp(m_i": "tl.exp2(m_i",
            "tl.exp(scores": "tl.exp2(scores"},
        "m starts below every score that is promised": {'BLOCK_M], float("-inf")': "BLOCK_M], -1.0e9"}},
    "alibi_scores": {"distances in float64": {"abs(positions -": "abs(1.0 * positions -"}},
    "dropout_attention": {
        "float32, as a list": {"S = Q @ K.T": "Q, K, V, dO = (np.float32(x) for x in (Q, K, V, dO))\n    S = Q @ K.T",
                               "return O,": "return [O,",
                               "(dS.T @ Q), dV": "(dS.T @ Q), dV]"}},
}  # fmt: skip
