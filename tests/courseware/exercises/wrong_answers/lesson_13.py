"""Lesson 13: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

import numpy as np


def without_scale(Q, K, V, dO, kept, p):
    S = Q @ K.T / np.sqrt(Q.shape[1])
    P = np.exp(S - np.logaddexp.reduce(S, axis=1)[:, None])
    D = P * kept / (1 - p)
    dP = dO @ V.T * kept / (1 - p)
    dS = P * dP - P * (P * dP).sum(axis=1)[:, None]
    return D @ V, dS @ K, dS.T @ Q, D.T @ dO


def bounds_in_keys(start_m, n_q, n_k, left, right, block_m, block_n):
    first, last = start_m + n_k - n_q, min(start_m + block_m, n_q) - 1 + n_k - n_q
    begin, end = max(first - left, 0) // block_n * block_n, max(min(last + right + 1, n_k), 0)
    full_begin, full_end = -(-max(last - left, 0) // block_n) * block_n, min(first + right + 1, n_k)
    return begin, full_begin, full_end if full_end == n_k else full_end // block_n * block_n, end


WRONG_ANSWERS = {
    "documents_mask": {
        "one key too many": ({"keys - k_stop <= queries - q_stop": "keys - k_stop <= queries - q_stop + 1"}, "query 0 sees key 1 of its own document"),
    },
    "tile_kinds": {
        "a tile's first row": ({"2 if tile.all() else int(tile.any())": "2 if tile[0].all() else int(tile.any())"}, "tile (0, 1) is partial, not 2"),
    },
    "sliding_window_bounds": {
        "in keys, with an end that is never negative": (bounds_in_keys, "begin is the right result times block_n"),
    },
    "masked_forward": {
        "full for partial": ({"if kind == 1:": "if kind == 2:"}, "o is wrong at rows"),
    },
    "alibi_scores": {
        "one position off": ({"[:, None] + n_k - n_q": "[:, None] + n_k - n_q - 1"}, "the result is wrong"),
    },
    "dropout_attention": {
        "no scale in dQ and dK, from the log-sum-exp": (without_scale, "dQ is the right result times q.shape[1]**0.5"),
    },
}  # fmt: skip
