"""Lesson 05: right answers written differently."""

import numpy as np

from courseware.exercises.lesson_05.merge_states import merge_states

WEIGHTS = "np.exp(m_a - shift), np.exp(m_b - shift)"
SCORES = "K[start : start + block] @ q / np.sqrt(d)"
SUMS = "        l = alpha * l + p.sum()\n        acc = alpha * acc + p @ V[start : start + block]\n"

LOG2_E = "1.4426950408889634"  # of no dtype


def normalizer_by_lse(stream):
    m = lse = -np.inf
    for s in stream:
        m, lse = np.maximum(m, s), np.logaddexp(lse, s)
    return m, np.exp(lse - m) if m > -np.inf else 0.0


def update_by_loops(m, l, acc, scores, values):
    new_m, new_l, new_acc = np.array(m), np.array(l), np.array(acc)
    for row in np.ndindex(new_m.shape):
        for s, v in zip(scores[row], values, strict=True):
            if s == -np.inf:
                continue
            if s > new_m[row]:
                factor = np.exp(new_m[row] - s)
                new_l[row], new_acc[row], new_m[row] = new_l[row] * factor, new_acc[row] * factor, s
            weight = np.exp(s - new_m[row])
            new_l[row] += weight
            new_acc[row] += weight * v
    return new_m, new_l, new_acc


def update_in_float64(*arguments):
    dtype = arguments[2].dtype
    m, l, acc, scores, values = (np.asarray(x, dtype=np.float64) for x in arguments)
    block_m = scores.max(axis=-1, keepdims=True)
    block_p = np.where(block_m == -np.inf, 0, np.exp(scores - block_m))
    m_new = np.maximum(m[..., None], block_m)
    visible = m_new > -np.inf
    old = np.where(visible, np.exp(m[..., None] - m_new), 0)
    new = np.where(visible, np.exp(block_m - m_new), 0)
    l_new = old[..., 0] * l + new[..., 0] * block_p.sum(axis=-1)
    acc_new = old * acc + new * np.einsum("...k,kd->...d", block_p, values)
    return m_new[..., 0].astype(dtype), l_new.astype(dtype), acc_new.astype(dtype)


def merge_row_by_row(a, b):
    m, l, acc = (np.array(x) for x in a)
    for row in np.ndindex(m.shape):
        low, high = sorted(((m[row], l[row], acc[row]), (b[0][row], b[1][row], b[2][row])), key=lambda state: state[0])
        factor = 0.0 if low[0] == -np.inf else np.exp(low[0] - high[0])
        m[row], l[row], acc[row] = high[0], high[1] + factor * low[1], high[2] + factor * low[2]
    return m, l, acc


def merge_by_lse(a, b):
    dtype = a[2].dtype
    (m_a, l_a, acc_a), (m_b, l_b, acc_b) = (tuple(np.asarray(x, dtype=np.float64) for x in state) for state in (a, b))
    m, lse = np.maximum(m_a, m_b), np.logaddexp(m_a + np.log(l_a), m_b + np.log(l_b))
    visible = m > -np.inf
    w_a, w_b = (np.where(visible, np.exp(m_x - m), 0.0)[..., None] for m_x in (m_a, m_b))
    l = np.where(visible, np.exp(lse - m), 0.0)
    return m.astype(dtype), l.astype(dtype), (w_a * acc_a + w_b * acc_b).astype(dtype)


def attention_key_by_key(q, K, V, block):
    m, l, acc = -np.inf, 0.0, 0.0
    for k, v in zip(K, V, strict=True):
        s = sum(x * y for x, y in zip(k, q, strict=True)) / len(q) ** 0.5
        if s > m:
            l, acc, m = l * np.exp(m - s), acc * np.exp(m - s), s
        l += np.exp(s - m)
        acc = acc + np.exp(s - m) * v
    return acc / l


def attention_by_merges(q, K, V, block):
    """In float32; the next block is fetched before the present one is merged."""
    q = np.asarray(q, dtype=np.float32)
    state, nearby = None, (K[:block], V[:block])
    for stop in range(block, len(K) + block, block):
        k, v = (x.astype(np.float32) for x in nearby)
        nearby = (K[stop : stop + block], V[stop : stop + block])
        scores = k @ q / np.sqrt(np.float32(len(q)))
        p = np.exp(scores - scores.max())
        new = (scores.max(), p.sum(), p @ v)
        state = new if state is None else merge_states(state, new)
    return state[2] / state[1]


RIGHT_ANSWERS = {
    "online_normalizer": {
        "rescales only when the max moves": {
            "        l = l * np.exp(m - m_new) + np.exp(s - m_new)\n        m = m_new\n": (
                "        if s > m:\n"
                "            l = l * np.exp(m - s) + 1.0\n"
                "            m = s\n"
                "        else:\n"
                "            l += np.exp(s - m)\n"
            )
        },
        "log-sum-exp": normalizer_by_lse,
        "pairs of NumPy scalars, float32": {"        m_new = max": "        s = np.float32(s)\n        m_new = max"},
    },
    "online_softmax_update": {
        "query by query and key by key": update_by_loops,
        "in float64, rounded to the inputs' dtype": update_in_float64,
        "exp2 with log2(e) folded in": {
            "np.exp(m - shift)": f"np.exp2((m - shift) * {LOG2_E})",
            "np.exp(scores - shift[..., None])": f"np.exp2((scores - shift[..., None]) * {LOG2_E})",
        },
    },
    "merge_states": {
        "b before a": lambda a, b: merge_states(b, a),
        "row by row, the larger max first": merge_row_by_row,
        "by log-sum-exp": merge_by_lse,
        "in float64, rounded to the inputs' dtype": {
            "    m_a, l_a, acc_a = a\n": (
                "    dtype = a[2].dtype\n"
                "    a, b = ([np.asarray(x, np.float64) for x in state] for state in (a, b))\n"
                "    m_a, l_a, acc_a = a\n"
            ),
            "return m, w_a * l_a + w_b * l_b, w_a[..., None] * acc_a + w_b[..., None] * acc_b": (
                "out = m, w_a * l_a + w_b * l_b, w_a[..., None] * acc_a + w_b[..., None] * acc_b\n"
                "    return tuple(x.astype(dtype) for x in out)"
            ),
        },
        "one factor, from the difference of the maxima": {
            f"w_a, w_b = {WEIGHTS}": (
                "gap = np.exp(-np.abs(np.where(m_a == m_b, 0.0, m_a - m_b)))\n"
                "    one = m_a.dtype.type(1)\n"
                "    w_a, w_b = np.where(m_a >= m_b, one, gap), np.where(m_b >= m_a, one, gap)"
            )
        },
        "exp2 with log2(e) folded in": {
            WEIGHTS: f"np.exp2((m_a - shift) * {LOG2_E}), np.exp2((m_b - shift) * {LOG2_E})",
        },
    },
    "online_attention": {
        "key by key": attention_key_by_key,
        "FlashAttention-1: normalised at every step": {
            SUMS: (
                "        l_new = alpha * l + p.sum()\n"
                "        acc = (alpha * l * acc + p @ V[start : start + block]) / l_new\n"
                "        l = l_new\n"
            ),
            "return acc / l": "return acc",
        },
        "merged block states, in float32, next block fetched early": attention_by_merges,
        "exp2 with log2(e) in the scale, V read first": {
            f"scores = {SCORES}": (
                "v = V[start : start + block]\n"
                "        scores = K[start : start + block] @ (q * (np.log2(np.e) / np.sqrt(d)))"
            ),
            "np.exp(m - m_new)": "np.exp2(m - m_new)",
            "np.exp(scores - m_new)": "np.exp2(scores - m_new)",
            "p @ V[start : start + block]": "p @ v",
        },
    },
}
