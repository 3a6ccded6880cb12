"""Lesson 08: right answers written differently."""

import numpy as np

from courseware.exercises.lesson_08.find_failing_input import find_failing_input


def bounds_by_np_clip(start_m, n_q, n_k, causal, block_m, block_n):
    keys_seen = np.array([start_m, min(start_m + block_m, n_q) - 1]) + 1 + n_k - n_q if causal else np.array([n_k, n_k])
    first, last = np.clip(keys_seen, 0, n_k).tolist()
    return [first - first % block_n, last]


def bounds_counted_key_by_key(start_m, n_q, n_k, causal, block_m, block_n):
    def sees(query, key):
        return key < n_k and (not causal or key <= query + n_k - n_q)

    last_query = min(start_m + block_m, n_q) - 1
    full_end = kv_end = 0
    while all(sees(start_m, key) for key in range(full_end, full_end + block_n)):
        full_end += block_n
    while sees(last_query, kv_end):
        kv_end += 1
    return full_end, kv_end


def two_heads_of_everything(kernel):
    given = find_failing_input(kernel)
    return given | {name: np.repeat(given[name], 2, axis=0) for name in "qkv"}


def longer_inputs(kernel):
    given = find_failing_input(kernel)
    if kernel == "A":
        given |= {name: np.tile(given[name], (1, 2, 1)) for name in "qkv"}
    if kernel == "F":
        given["q"] = 4 * given["q"]
    return given


RIGHT_ANSWERS = {
    "kv_loop_bounds": {"by np.clip": bounds_by_np_clip, "counted key by key": bounds_counted_key_by_key},
    "lse_epilogue": {
        "natural logarithm, the max brought back first": {
            "(m_i + tl.log2(l_safe)) * 0.6931471805599453": "m_i * 0.6931471805599453 + tl.log(l_safe)"
        },
        "multiplied by the reciprocal, -inf left to the max": {
            "acc / l_safe[:, None]": "acc * (1.0 / l_safe)[:, None]",
            'tl.where(l_i == 0.0, float("-inf"), (m_i + tl.log2(l_safe)) * 0.6931471805599453)': (
                "(m_i + tl.log2(l_safe)) * 0.6931471805599453"
            ),
        },
    },
    "flash_forward": {
        "natural exponentials and logarithm": {
            "(scale * 1.4426950408889634)": "scale",
            "alpha = tl.exp2(": "alpha = tl.exp(",
            "p = tl.exp2(": "p = tl.exp(",
            "(m_i + tl.log2(l_safe)) * 0.6931471805599453": "m_i + tl.log(l_safe)",
        },
        "keys beyond the tile's last are not loaded": {"mask_n = offs_n < n_k": "mask_n = offs_n < kv_end"},
        "acc handed to tl.dot, sums the other way round": {
            'acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")': (
                'acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")'
            ),
            "tl.max(scores, axis=1)": "tl.max(scores, 1)",
            "l_i * alpha + tl.sum(p, axis=1)": "tl.sum(p, 1) + alpha * l_i",
        },
    },
    "find_failing_input": {"two heads of everything": two_heads_of_everything, "longer inputs": longer_inputs},
}
