"""Lesson 13: wrong answers that are no misconceptions of the list, and what the check has to say of each."""

import numpy as np

LOGARITHM = """none = l_i == 0.0
            l_i = tl.where(none, 1.0, l_i)
            acc = acc / l_i[:, None]
            m_i = tl.where(none, float("-inf"), m_new + tl.log(l_i))
            l_i = tl.where(none, 0.0, 1.0)"""


def divided_by_p(Q, K, V, dO, kept, p):
    scale = 1 / np.sqrt(Q.shape[1])
    S = Q @ K.T * scale
    P = np.exp(S - S.max(axis=1)[:, None])
    P /= P.sum(axis=1)[:, None]
    factor = kept * (1 / p if p > 0 else 1.0)
    dP = dO @ V.T * factor
    dS = P * dP - P * (P * dP).sum(axis=1)[:, None]
    return P * factor @ V, scale * dS @ K, scale * dS.T @ Q, (P * factor).T @ dO


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
        "the next document, too": ({"visible[q_start:q_stop, k_start:k_stop] = own | (not causal)": "visible[q_start:q_stop, k_start:k_stop] = own | (not causal)\n        visible[q_start:q_stop, k_stop : k_stop + 1] = True"}, "query 0 sees key 2 of another document"),
        "as numbers": ({"dtype=bool": "dtype=int"}, "the result has dtype int64, not bool"),
    },
    "tile_kinds": {
        "a tile's first row": ({"2 if tile.all() else int(tile.any())": "2 if tile[0].all() else int(tile.any())"}, "tile (0, 1) is partial, not 2"),
        "as names": ({"return kinds": "return np.array(['hidden', 'partial', 'full'])[kinds]"}, "the answer did not return an array [query tiles, key tiles]"),
        "transposed": ({"return kinds": "return kinds.T"}, "what comes back is the right result, transposed"),
        "as fractions": ({"dtype=int": "dtype=float"}, "the answer returned an array of float64, not of whole numbers"),
    },
    "sliding_window_bounds": {
        "a tile too many": ({"-(-stop // block_n)": "-(-stop // block_n) + 1"}, "key tile 5 is visited, and should not be"),
        "in keys, with an end that is never negative": (bounds_in_keys, "The four bounds count keys, where the numbers of tiles are asked for"),
        "three bounds": ({"return start // block_n, ": "return "}, "the answer did not return four whole numbers"),
        "as fractions": ({"full_stop // block_n": "full_stop / block_n", "full_start // block_n": "full_start / block_n"}, "a bound is no whole number"),
        "an array of all keys": ({"    return start": "    np.arange(n_k)\n    return start"}, "the row has 2^50 keys"),
        "key by key": ({"    return start": "    for _ in range(n_k):\n        pass\n    return start"}, "the answer did not return within"),
    },
    "masked_forward": {
        "full for partial": ({"if kind == 1:": "if kind == 2:"}, "o is wrong at rows"),
        "every key twice": ({"if kind == 1:": "l_i += tl.where(kind == 2, 1.0, 0.0)\n            if kind == 1:"}, "o is too small by the same factor"),
        "m + log(l) as one number": ({"m_i = m_new": LOGARITHM}, "every score is -4e6, and float32 numbers of that size"),
        "a finite start": ({'m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)': "m_i = tl.full([BLOCK_M], -900.0, tl.float32)"}, "o is"),
        "the mask alone, kinds forgotten": ({"if kind != 0:": "if kind != -1:", "if kind == 1:": "if kind != -1:"}, "the launch reads"),
    },
    "alibi_scores": {
        "one position off": ({"[:, None] + n_k - n_q": "[:, None] + n_k - n_q - 1"}, "the result is wrong"),
        "half of the distance": ({"slopes[:, None, None] * distances": "slopes[:, None, None] * distances / 2"}, "the result is"),
        "the slopes at the axis of queries": ({"slopes[:, None, None]": "slopes.reshape(-1, 1)"}, "The slopes meet the axis of queries"),
        "transposed": ({"    return scores - slopes[:, None, None] * distances": "    return (scores - slopes[:, None, None] * distances).swapaxes(1, 2)"}, "the result"),
    },
    "dropout_attention": {
        "only dV knows of dropout": ({"O = (P * Z) @ V": "O = P @ V", "(dO @ V.T) * Z": "dO @ V.T"}, "O is wrong"),
        "divided by 1 + p": ({"kept / (1 - p)": "kept / (1 + p)"}, "O is"),
        "p is the probability to keep": (divided_by_p, "p is taken for the probability to be kept"),
        "no scale in dQ and dK, from the log-sum-exp": (without_scale, "dQ and dK lack the scale"),
        "three outputs": ({"return O, scale": "return scale"}, "(O, dQ, dK, dV)"),
    },
}  # fmt: skip
