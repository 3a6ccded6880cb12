import numpy as np


def kinds_as_lists(visible, block_q, block_k):
    kinds = []
    for rows in np.split(visible, range(block_q, len(visible), block_q)):
        shares = [part.mean() for part in np.split(rows, range(block_k, rows.shape[1], block_k), axis=1)]
        kinds.append([1 + (share == 1) - (share == 0) for share in shares])
    return kinds


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


def documents_by_their_numbers(q_starts, k_starts, causal):
    """From the number of each token's document; how far it is from the end of its document decides for causal."""
    numbers = [[t for t in range(len(x) - 1) for _ in range(x[t + 1] - x[t])] for x in (q_starts, k_starts)]
    return [
        [s == t and (not causal or k_starts[t + 1] - j >= q_starts[s + 1] - i) for j, t in enumerate(numbers[1])]
        for i, s in enumerate(numbers[0])
    ]


def alibi_with_meshgrid(scores, slopes):
    keys, queries = np.meshgrid(np.arange(scores.shape[2]), np.arange(scores.shape[1]) + scores.shape[2])
    return scores - np.einsum("h,qk->hqk", slopes, np.sqrt((queries - keys - scores.shape[1]) ** 2))


RIGHT_ANSWERS = {
    "documents_mask": {"by their numbers": documents_by_their_numbers},
    "tile_kinds": {"as lists": kinds_as_lists},
    "sliding_window_bounds": {"nothing said of empty ranges": bounds_that_say_nothing_of_empty_ranges},
    "masked_forward": {
        "in base 2": {
            'tl.trans(k), input_precision="ieee") *': 'tl.trans(k), input_precision="ieee") * 1.4426950408889634 *',
            "tl.exp(m_i": "tl.exp2(m_i",
            "tl.exp(scores": "tl.exp2(scores"},
        "m starts below every score that is promised": {'BLOCK_M], float("-inf")': "BLOCK_M], -1.0e9"}},
    "alibi_scores": {"with np.meshgrid": alibi_with_meshgrid},
    "dropout_attention": {
        "float32, as a list": {"S = Q @ K.T": "Q, K, V, dO = (np.float32(x) for x in (Q, K, V, dO))\n    S = Q @ K.T",
                               "return O,": "return [O,",
                               "(dS.T @ Q), dV": "(dS.T @ Q), dV]"}},
}  # fmt: skip
