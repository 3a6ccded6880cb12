"""Lesson 13: right answers written differently."""

import numpy as np


def kinds_from_a_padded_array(visible, block_q, block_k):
    (n_q, n_k), pads = (
        visible.shape,
        [(0, -n % block) for n, block in zip(visible.shape, (block_q, block_k), strict=True)],
    )
    shape = (n_q + pads[0][1]) // block_q, block_q, (n_k + pads[1][1]) // block_k, block_k
    some, every = (
        of(np.pad(visible, pads, constant_values=fill).reshape(shape), axis=(1, 3))
        for of, fill in ((np.any, False), (np.all, True))
    )
    return some + every.astype(int)


def kinds_in_8_bits(visible, block_q, block_k):
    return kinds_from_a_padded_array(visible, block_q, block_k).astype(np.uint8)


def kinds_as_lists(visible, block_q, block_k):
    kinds = []
    for rows in np.split(visible, range(block_q, len(visible), block_q)):
        shares = [part.mean() for part in np.split(rows, range(block_k, rows.shape[1], block_k), axis=1)]
        kinds.append([1 + (share == 1) - (share == 0) for share in shares])
    return kinds


def bounds_with_clip(start_m, n_q, n_k, left, right, block_m, block_n):
    positions = np.array([start_m, min(start_m + block_m, n_q) - 1]) + n_k - n_q
    (start, full_start), (full_stop, stop) = (
        np.clip(edge, 0, n_k).tolist() for edge in (positions - left, positions + right + 1)
    )
    tiles = (n_k + block_n - 1) // block_n
    full_end = tiles if full_stop >= n_k else full_stop // block_n
    return [start // block_n, (full_start + block_n - 1) // block_n, full_end, (stop + block_n - 1) // block_n]


def bounds_that_say_nothing_of_empty_ranges(start_m, n_q, n_k, left, right, block_m, block_n):
    shift = n_k - n_q
    last = min(n_q, start_m + block_m) + shift - 1
    begin, end = max(start_m + shift - left, 0) // block_n, min(last + right, n_k - 1) // block_n + 1
    if last + right < 0 or begin >= end:
        return 0, 0, 0, 0
    first_whole = max(0, last - left + block_n - 1) // block_n
    behind = min(start_m + shift + right + 1, n_k)
    whole = first_whole
    if behind == n_k:
        whole = end
    elif behind // block_n > first_whole:
        whole = behind // block_n
    return begin, first_whole, whole, end


def dropout_row_by_row(Q, K, V, dO, kept, p):
    Q, K, V, dO = (np.asarray(x, np.float32) for x in (Q, K, V, dO))
    O, dQ, dK, dV = (np.zeros_like(x) for x in (Q, Q, K, V))
    for i in range(len(Q)):
        s = K @ Q[i] / np.sqrt(np.float32(len(Q[i])))
        w = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
        factor = np.where(kept[i], np.float32(1 / (1 - p)), np.float32(0))
        O[i], dw = (w * factor) @ V, factor * (V @ dO[i])
        ds = (w * dw - w * (w @ dw)) / np.sqrt(np.float32(len(Q[i])))
        dQ[i], dK, dV = ds @ K, dK + np.outer(ds, Q[i]), dV + np.outer(w * factor, dO[i])
    return [O, dQ, dK, dV]


def dropout_from_its_log_sum_exp(Q, K, V, dO, kept, p):
    S = np.einsum("id,jd->ij", Q / Q.shape[1] ** 0.5, K)
    lse = np.logaddexp.reduce(S, axis=1)
    P, dropped = np.exp(S - lse[:, None]), ~kept
    D = np.where(dropped, 0, P) / (1 - p)
    dP = np.where(dropped, 0, dO @ V.T / (1 - p))
    dS = (P * dP - P * (P * dP).sum(1)[:, None]) / Q.shape[1] ** 0.5
    return D @ V, dS @ K, dS.T @ Q, D.T @ dO


def documents_by_their_numbers(q_starts, k_starts, causal):
    """From the number of each token's document; how far it is from the end of its document decides for causal."""
    numbers = [[t for t in range(len(x) - 1) for _ in range(x[t + 1] - x[t])] for x in (q_starts, k_starts)]
    return [
        [s == t and (not causal or k_starts[t + 1] - j >= q_starts[s + 1] - i) for j, t in enumerate(numbers[1])]
        for i, s in enumerate(numbers[0])
    ]


def documents_as_blocks(q_starts, k_starts, causal):
    visible = np.zeros((q_starts[-1], k_starts[-1]))
    for q0, q1, k0, k1 in zip(q_starts, q_starts[1:], k_starts, k_starts[1:], strict=False):
        block = np.ones((q1 - q0, k1 - k0))
        visible[q0:q1, k0:k1] = np.tril(block, (k1 - k0) - (q1 - q0)) if causal else block
    return visible > 0


def alibi_from_both_ends(scores, slopes):
    before_the_end = [np.arange(n)[::-1] for n in scores.shape[1:]]
    return np.stack(
        [s - slope * abs(np.subtract.outer(*before_the_end)) for s, slope in zip(scores, slopes, strict=True)]
    )


def alibi_with_meshgrid(scores, slopes):
    keys, queries = np.meshgrid(np.arange(scores.shape[2]), np.arange(scores.shape[1]) + scores.shape[2])
    return scores - np.einsum("h,qk->hqk", slopes, np.sqrt((queries - keys - scores.shape[1]) ** 2))


RIGHT_ANSWERS = {
    "documents_mask": {"by their numbers": documents_by_their_numbers, "as blocks": documents_as_blocks},
    "tile_kinds": {
        "from a padded array": kinds_from_a_padded_array,
        "as lists": kinds_as_lists,
        "in 8 bits": kinds_in_8_bits,
    },
    "sliding_window_bounds": {
        "with np.clip": bounds_with_clip,
        "nothing said of empty ranges": bounds_that_say_nothing_of_empty_ranges,
    },
    "masked_forward": {
        "in base 2": {
            'tl.dot(q, tl.trans(k), input_precision="ieee") * scale': (
                'tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)'
            ),
            "tl.exp(m_i": "tl.exp2(m_i",
            "tl.exp(scores": "tl.exp2(scores",
        },
        "without tl.dot's transpose, keys and mask hidden at once": {
            'scores = tl.where(mask_n[None, :], scores, float("-inf"))\n            if kind == 1:': (
                "seen = mask_n[None, :] & mask_m[:, None]\n            if kind != 2:"
            ),
            'scores = tl.where(visible != 0, scores, float("-inf"))': "seen = seen & (visible > 0)",
            "m_new = tl.maximum(m_i": (
                'scores = tl.where(seen, scores, float("-inf"))\n            m_new = tl.maximum(m_i'
            ),
        },
        "m starts below every score that is promised": {
            'm_i = tl.full([BLOCK_M], float("-inf"), tl.float32)': "m_i = tl.full([BLOCK_M], -1.0e9, tl.float32)",
        },
        "rows that have seen nothing are mended in p and alpha": {
            'm_ref = tl.where(m_new == float("-inf"), 0.0, m_new)  # a row may have seen no key yet': "",
            "alpha = tl.exp(m_i - m_ref)": 'alpha = tl.where(m_i == float("-inf"), 0.0, tl.exp(m_i - m_new))',
            "p = tl.exp(scores - m_ref[:, None])": (
                'p = tl.where(scores == float("-inf"), 0.0, tl.exp(scores - m_new[:, None]))'
            ),
        },
    },
    "alibi_scores": {"from both ends": alibi_from_both_ends, "with np.meshgrid": alibi_with_meshgrid},
    "dropout_attention": {"row by row": dropout_row_by_row, "from its log-sum-exp": dropout_from_its_log_sum_exp},
}
