def bounds_that_say_nothing_of_empty_ranges(start_m, n_q, n_k, left, right, block_m, block_n):
    shift = n_k - n_q
    last = min(n_q, start_m + block_m) + shift - 1
    begin, end = max(start_m + shift - left, 0) // block_n, min(last + right, n_k - 1) // block_n + 1
    if last + right < 0 or begin >= end:
        return 0, 0, 0, 0
    first_whole = max(0, last - left + block_n - 1) // block_n
    behind = min(start_m + shift + right + 1, n_k)
    whole = end if behind == n_k else max(first_whole, behind // block_n)
    return begin, first_whole, whole, end


RIGHT_ANSWERS = {
    "documents_mask": {"as lists": {"return visible": "return visible.tolist()"}},
    "tile_kinds": {"as lists": {"return kinds": "return kinds.tolist()"}},
    "sliding_window_bounds": {"nothing said of empty ranges": bounds_that_say_nothing_of_empty_ranges},
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
