"""Lesson 05: wrong answers, and what the check has to say of each."""

import numpy as np


def merge_guarded_as_a_whole(a, b):
    """Guarded only if a whole state is empty."""
    (m_a, l_a, acc_a), (m_b, l_b, acc_b) = a, b
    if np.all(m_a == -np.inf):
        return b
    if np.all(m_b == -np.inf):
        return a
    m = np.maximum(m_a, m_b)
    w_a, w_b = np.exp(m_a - m), np.exp(m_b - m)
    return m, w_a * l_a + w_b * l_b, w_a[..., None] * acc_a + w_b[..., None] * acc_b


def merge_weighted_by_l(a, b):
    (m_a, l_a, acc_a), (m_b, l_b, acc_b) = a, b
    m = np.maximum(m_a, m_b)
    shift = np.where(m == -np.inf, 0.0, m)
    w_a, w_b = np.exp(m_a - shift) * l_a, np.exp(m_b - shift) * l_b
    return m, w_a + w_b, w_a[..., None] * acc_a + w_b[..., None] * acc_b


def normalizer_from_the_first(stream):
    stream = iter(stream)
    m, l = next(stream), 1.0
    for s in stream:
        m_new = max(m, s)
        l = l * np.exp(m - m_new) + np.exp(s - m_new)
        m = m_new
    return m, l


def normalizer_l_1_at_a_new_max(stream):
    m, l = -np.inf, 0.0
    for s in stream:
        if s > m:
            m, l = s, 1.0
        elif s > -np.inf:
            l += np.exp(s - m)
    return m, l


def normalizer_strict(stream):
    """A score that equals the maximum is lost."""
    m, l = -np.inf, 0.0
    for s in stream:
        if s > m:
            m, l = s, l * np.exp(m - s) + 1.0
        elif s < m:
            l += np.exp(s - m)
    return m, l


STEP = "l = l * np.exp(m - m_new) + np.exp(s - m_new)"
UPDATED = "return m_new, alpha * l + p.sum(axis=-1), alpha[..., None] * acc + p @ values"
MERGED = "return m, w_a * l_a + w_b * l_b, w_a[..., None] * acc_a + w_b[..., None] * acc_b"
SCORES = "scores = K[start : start + block] @ q / np.sqrt(d)"
ACC = "acc = alpha * acc + p @ V[start : start + block]"

WRONG_ANSWERS = {
    "online_normalizer": {
        "from the first score": (normalizer_from_the_first, ""),
        "l = 1 at a new maximum": (normalizer_l_1_at_a_new_max, ""),
        "a tie is lost": (normalizer_strict, ""),
        "start at -1e6": ({"-np.inf, 0.0\n    for": "-1e6, 0.0\n    for", "if m_new == -np.inf:": "if m_new == -1e6:"}, ""),
        "start at 0, l guarded": ({"m, l = -np.inf, 0.0": "m, l = 0.0, 0.0"}, ""),
        "m is not updated": ({"        m = m_new\n": ""}, ""),
        "l is the log": ({"return m, l": "return m, np.log(l)"}, ""),
        "m + log l": ({"return m, l": "return m + np.log(l), l"}, ""),
        "a count": ({STEP: "l = l + 1"}, ""),
        "alpha of the new": ({STEP: "l = l * np.exp(s - m_new) + np.exp(m - m_new)"}, ""),
        "everything rescaled": ({STEP: "l = (l + np.exp(s - m_new)) * np.exp(m - m_new)"}, ""),
        "min": ({"m_new = max(m, s)": "m_new = min(m, s) if m > -np.inf else s"}, ""),
        "a list comes back": ({"return m, l": "return [m, l, 0]"}, ""),
        "raises on empty": ({"    return m, l": "    if l == 0:\n        raise ValueError\n    return m, l"}, ""),
        "empty gives 0, 0": ({"    return m, l": "    return (m, l) if l else (0.0, 0.0)"}, ""),
        "masked counts": ({"            continue": "            l += 1\n            continue"}, ""),
        "abs max": ({"max(m, s)": "max(m, abs(s)) if s > -np.inf else m"}, ""),
        "in chunks of two": (lambda stream: (lambda x: (max(x, default=-np.inf), sum(np.exp(s - max(x)) for s in x)) if x and max(x) > -np.inf else (-np.inf, 0.0))(list(stream)), ""),
        "the softmax too": ({"return m, l": "return m, l, 1 / l"}, ""),
        "sorted": ({"for s in stream:": "for s in sorted(stream):"}, ""),
        "len": ({"    m, l =": "    n = len(stream)\n    m, l ="}, ""),
    },
    "online_softmax_update": {
        "acc not rescaled when below": ({UPDATED: UPDATED.replace("alpha[..., None] * acc", "np.where(m == m_new, 1, 0)[..., None] * acc")}, ""),
        "l = block sum": ({UPDATED: UPDATED.replace("alpha * l + p.sum(axis=-1)", "p.sum(axis=-1)")}, ""),
        "acc = block acc": ({UPDATED: UPDATED.replace("alpha[..., None] * acc + p @ values", "p @ values")}, ""),
        "alpha without the axis": ({UPDATED: UPDATED.replace("alpha[..., None] * acc", "alpha * acc")}, ""),
        "alpha squared": ({UPDATED: UPDATED.replace("alpha * l", "alpha * alpha * l")}, ""),
        "start -1e6": ({"np.where(m_new == -np.inf, 0.0, m_new)": "np.maximum(m_new, -1e6)"}, ""),
        "scores not shifted": ({"p = np.exp(scores - shift[..., None])": "p = np.exp(scores - m[..., None])"}, ""),
        "m comes back old": ({"return m_new,": "return m,"}, ""),
        "acc, l exchanged": ({UPDATED: "return m_new, alpha[..., None] * acc + p @ values, alpha * l + p.sum(axis=-1)"}, ""),
        "sum over all": ({"p.sum(axis=-1)": "p.sum()"}, ""),
        "values weighted by scores": ({"p @ values": "scores @ values"}, ""),
        "values summed": ({"p @ values": "values.sum(axis=0)"}, ""),
        "alpha rescales p": ({"alpha[..., None] * acc + p @ values": "alpha[..., None] * (acc + p @ values)"}, ""),
        "mean": ({"p.sum(axis=-1)": "p.mean(axis=-1)"}, ""),
        "guard by the whole": ({"np.where(m_new == -np.inf, 0.0, m_new)": "m_new if np.any(m_new > -np.inf) else 0 * l"}, ""),
        "a list": ({UPDATED: UPDATED.replace("return ", "return [") + ", 0]"}, ""),
        "float32 always": ({UPDATED: UPDATED + "\n"}, ""),
        "nan_to_num": ({"shift = np.where(m_new == -np.inf, 0.0, m_new)": "shift = m_new", "p = np.exp(scores - shift[..., None])": "p = np.nan_to_num(np.exp(scores - shift[..., None]))", "alpha = np.exp(m - shift)": "alpha = np.nan_to_num(np.exp(m - shift), nan=1.0)"}, ""),
        "one query only": ({"p @ values": "sum(w * v for w, v in zip(p, values, strict=True))"}, ""),
        "reset when the maximum rises": ({"alpha = np.exp(m - shift)": "alpha = (m == m_new) * 1.0"}, ""),
    },
    "merge_states": {
        "guarded as a whole": (merge_guarded_as_a_whole, ""),
        "weighted by l": (merge_weighted_by_l, ""),
        "a mean": ({MERGED: "return m, (w_a * l_a + w_b * l_b) / 2, (w_a[..., None] * acc_a + w_b[..., None] * acc_b) / 2"}, ""),
        "normalised": ({MERGED: "l = w_a * l_a + w_b * l_b\n    return m, l, (w_a[..., None] * acc_a + w_b[..., None] * acc_b) / l[..., None]"}, ""),
        "min": ({"np.maximum(m_a, m_b)": "np.minimum(m_a, m_b)"}, ""),
        "sum of the maxima": ({"m = np.maximum(m_a, m_b)": "m = m_a + m_b"}, ""),
        "larger l wins": ({"m = np.maximum(m_a, m_b)": "m = np.where(l_a > l_b, m_a, m_b)"}, ""),
        "only the larger state": ({MERGED: "return m, np.where(m_a > m_b, l_a, l_b), np.where((m_a > m_b)[..., None], acc_a, acc_b)"}, ""),
        "m_a": ({"m = np.maximum(m_a, m_b)": "m = np.where(m_a == -np.inf, m_b, m_a)"}, ""),
        "axis missing": ({"w_a[..., None] * acc_a + w_b[..., None] * acc_b": "w_a * acc_a + w_b * acc_b"}, ""),
        "order (l, m, acc)": ({MERGED: MERGED.replace("return m, w_a * l_a + w_b * l_b,", "return w_a * l_a + w_b * l_b, m,")}, ""),
        "nan_to_num": ({"shift = np.where(m == -np.inf, 0.0, m)": "shift = m", MERGED: "return m, np.nan_to_num(w_a * l_a + w_b * l_b), np.nan_to_num(w_a[..., None] * acc_a + w_b[..., None] * acc_b)"}, ""),
        "shift -1e9": ({"np.where(m == -np.inf, 0.0, m)": "np.maximum(m, -1e9)"}, ""),
        "m of nothing is 0": ({MERGED: MERGED.replace("return m,", "return shift,")}, ""),
        "ties doubled": ({"w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)": "w_a, w_b = np.exp(m_a - shift), np.where(m_a == m_b, 0, np.exp(m_b - shift))"}, ""),
        "a single factor": ({"w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)": "w_a = w_b = np.exp(np.minimum(m_a, m_b) - shift)"}, ""),
        "1-d only": ({"w_a[..., None] * acc_a + w_b[..., None] * acc_b": "np.array([w_a * x + w_b * y for x, y in zip(acc_a, acc_b, strict=True)])"}, ""),
        "float16": ({MERGED: "return tuple(np.float16(x) for x in (m, w_a * l_a + w_b * l_b, w_a[..., None] * acc_a + w_b[..., None] * acc_b))"}, ""),
    },
    "online_attention": {
        "an acc of length d": ({"np.zeros(V.shape[1])": "np.zeros(d)"}, ""),
        "no block at a time": ({SCORES: SCORES.replace("start : start + block", "start : start + 1")}, ""),
        "the last block repeated": ({"range(0, n, block)": "range(0, n + block, block)"}, ""),
        "whole scale on K": ({"/ np.sqrt(d)": "/ np.sqrt(n)"}, ""),
        "0.5": ({"/ np.sqrt(d)": "* 0.5"}, ""),
        "sqrt(d_v)": ({"/ np.sqrt(d)": "/ np.sqrt(V.shape[1])"}, ""),
        "sqrt(block)": ({"/ np.sqrt(d)": "/ np.sqrt(block)"}, ""),
        "l = block": ({"l = alpha * l + p.sum()": "l = p.sum()"}, ""),
        "starts at -1e6": ({"m, l, acc = -np.inf": "m, l, acc = -1e6"}, ""),
        "starts at -1e30, fine": ({"m, l, acc = -np.inf": "m, l, acc = -1e30"}, ""),
        "V by one block late": ({ACC: "acc = alpha * acc + p @ V[max(start - block, 0) : max(start - block, 0) + block][: len(p)]"}, ""),
        "alpha applied twice": ({ACC: "acc = alpha * alpha * acc + p @ V[start : start + block]"}, ""),
        "m stays": ({"        m = m_new\n": ""}, ""),
        "scores kept": ({"    for start": "    kept = []\n    for start", "        m_new =": "        kept.append(scores)\n        m_new ="}, ""),
        "two passes": ({"    for start": "    for start in range(0, n, block):\n        K[start : start + block]\n    for start"}, ""),
        "reads row by row": ({SCORES: "scores = np.array([K[i] @ q for i in range(start, min(start + block, n))]) / np.sqrt(d)"}, ""),
        "float16 output": ({"return acc / l": "return np.float16(acc / l)"}, ""),
        "weights come back": ({"return acc / l": "return acc, l"}, ""),
        "an average of block outputs": (lambda q, K, V, block: np.mean([(lambda p: p @ V[i : i + block] / p.sum())(np.exp(K[i : i + block] @ q / np.sqrt(len(q)))) for i in range(0, len(K), block)], axis=0), ""),
        "block is ignored": ({"    m, l, acc": "    block = n\n    m, l, acc"}, ""),
        "blocks of 2": ({"    m, l, acc": "    block = 2\n    m, l, acc"}, ""),
        "backwards with a gap": ({"range(0, n, block)": "range(0, n - 1, block)"}, ""),
    },
}
