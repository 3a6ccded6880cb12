from collections import namedtuple

import numpy as np

from courseware.exercises.lesson_05.merge_states import merge_states

SUMS = "        l = alpha * l + p.sum()\n        acc = alpha * acc + p @ V[start : start + block]\n"
NORMALISED = "        l_new = alpha * l + p.sum()\n"
NORMALISED += "        acc = (alpha * l * acc + p @ V[start : start + block]) / l_new\n        l = l_new\n"
LOG2_E = "1.4426950408889634"  # of no dtype


def attention_by_merges(q, K, V, block):
    """In the inputs' dtype; the next block is fetched before the present one is merged."""
    state, nearby = None, (K[:block], V[:block])
    for stop in range(block, len(K) + block, block):
        k, v = nearby
        nearby = (K[stop : stop + block], V[stop : stop + block])
        scores = k @ q / np.sqrt(q.dtype.type(len(q)))
        p = np.exp(scores - scores.max())
        new = (scores.max(), p.sum(), p @ v)
        state = new if state is None else merge_states(state, new)
    return state[2] / state[1]


RIGHT_ANSWERS = {
    "online_normalizer": {
        "log-sum-exp": {"m, l = -np.inf, 0.0": "m = l = -np.inf",
                        "l * np.exp(m - m_new) + np.exp(s - m_new)": "np.logaddexp(l, s)",
                        "return m, l": "return m, np.exp(l - m) if m > -np.inf else 0.0"},
        "pairs of NumPy scalars, float32": {"        m_new = max": "        s = np.float32(s)\n        m_new = max"}},
    "online_softmax_update": {
        "exp2 with log2(e) folded in": {
            "np.exp(m - shift)": f"np.exp2((m - shift) * {LOG2_E})",
            "np.exp(scores - shift[..., None])": f"np.exp2((scores - shift[..., None]) * {LOG2_E})"}},
    "merge_states": {"a namedtuple": lambda a, b: namedtuple("State", "m l acc")(*merge_states(a, b))},
    "online_attention": {"FlashAttention-1: normalised at every step": {SUMS: NORMALISED,
                                                                        "return acc / l": "return acc"},
                         "merged block states, in the inputs' dtype, next block fetched early": attention_by_merges},
}  # fmt: skip
