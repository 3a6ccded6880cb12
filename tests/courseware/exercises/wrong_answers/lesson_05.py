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


def update_masked_at_1e4(m, l, acc, scores, values):
    m_new = np.maximum(m, scores.max(-1))
    shift = np.where(np.isneginf(m_new), 0, m_new)
    s = np.where(np.isneginf(scores), -1e4, scores).astype(scores.dtype)
    alpha, p = np.exp(m - shift), np.exp(s - shift[..., None])
    return m_new, alpha * l + p.sum(-1), alpha[..., None] * acc + p @ values


def update_one_masked_row_stops_all(m, l, acc, scores, values):
    if not np.isneginf(m).any() and np.isneginf(scores).all(axis=-1).any():
        return m, l, acc
    m_new = np.maximum(m, scores.max(-1))
    shift = np.where(np.isneginf(m_new), 0, m_new)
    alpha, p = np.exp(m - shift), np.exp(scores - shift[..., None])
    return m_new, alpha * l + p.sum(-1), alpha[..., None] * acc + p @ values


def update_one_fresh_row_decides(m, l, acc, scores, values):
    m_new = np.maximum(m, scores.max(-1))
    shift = np.where(np.isneginf(m_new), 0, m_new)
    p = np.exp(scores - shift[..., None])
    if np.any(m == -np.inf):
        return m_new, p.sum(-1), p @ values
    alpha = np.exp(m - shift)
    return m_new, alpha * l + p.sum(-1), alpha[..., None] * acc + p @ values


def attention_padded_with_1e9(q, K, V, block):
    m, l, acc = -np.inf, 0.0, np.zeros(V.shape[1])
    for start in range(0, len(K), block):
        k, v = K[start : start + block], V[start : start + block]
        s, full = np.full(block, -1e9), np.zeros((block, v.shape[1]))
        s[: len(k)], full[: len(k)] = k @ q / np.sqrt(len(q)), v
        m_new = max(m, s.max())
        alpha, p = np.exp(m - m_new), np.exp(s - m_new)
        l, acc, m = alpha * l + p.sum(), alpha * acc + p @ full, m_new
    return acc / l


def merge_one_empty_row_decides(a, b):
    m = np.maximum(a[0], b[0])
    if np.isneginf(a[0]).any() and not np.isneginf(b[0]).any():
        return b
    shift = np.where(np.isneginf(m), 0, m)
    f, g = np.exp(a[0] - shift), np.exp(b[0] - shift)
    return m, f * a[1] + g * b[1], f[..., None] * a[2] + g[..., None] * b[2]


STEP = "l = l * np.exp(m - m_new) + np.exp(s - m_new)"
UPDATED = "return m_new, alpha * l + p.sum(axis=-1), alpha[..., None] * acc + p @ values"
MERGED = "return m, w_a * l_a + w_b * l_b, w_a[..., None] * acc_a + w_b[..., None] * acc_b"
SCORES = "scores = K[start : start + block] @ q / np.sqrt(d)"
ACC = "acc = alpha * acc + p @ V[start : start + block]"

WRONG_ANSWERS = {
    "online_normalizer": {
        "from the first score": (normalizer_from_the_first, "l is 1 too large"),
        "l = 1 at a new maximum": (
            normalizer_l_1_at_a_new_max,
            "At every new maximum l starts again at 1, and the scores",
        ),
        "a tie is lost": (normalizer_strict, "A score that equals the maximum adds nothing."),
        "start at -1e6": (
            {"-np.inf, 0.0\n    for": "-1e6, 0.0\n    for", "if m_new == -np.inf:": "if m_new == -1e6:"},
            "",
        ),
        "start at 0, l guarded": (
            {"m, l = -np.inf, 0.0": "m, l = 0.0, 0.0"},
            "The maximum starts at 0, so a stream of negative scores",
        ),
        "m is not updated": ({"        m = m_new\n": ""}, "m is -inf"),
        "m + log l": ({"return m, l": "return m + np.log(l), l"}, "m is 0.3133 too large"),
        "a count": ({STEP: "l = l + 1"}, "l counts the scores. Each of them should add exp(s - m)."),
        "alpha of the new": ({STEP: "l = l * np.exp(s - m_new) + np.exp(m - m_new)"}, "l is 0"),
        "min": (
            {"m_new = max(m, s)": "m_new = min(m, s) if m > -np.inf else s"},
            "m is the smallest score, not the largest.",
        ),
        "a list comes back": (
            {"return m, l": "return [m, l, 0]"},
            "the answer returned a list of 3, not a tuple of 2: (m, l)",
        ),
        "raises on empty": (
            {"    return m, l": "    if l == 0:\n        raise ValueError\n    return m, l"},
            "Where no score is visible, (-inf, 0.0) does not come back.",
        ),
        "empty gives 0, 0": (
            {"    return m, l": "    return (m, l) if l else (0.0, 0.0)"},
            "Where no score is visible, (-inf, 0.0) does not come back.",
        ),
        "masked counts": (
            {"            continue": "            l += 1\n            continue"},
            "A masked score adds 1 to l.",
        ),
        "abs max": ({"max(m, s)": "max(m, abs(s)) if s > -np.inf else m"}, "m is 6 too large"),
        "in chunks of two": (
            lambda stream: (
                lambda x: (
                    (max(x, default=-np.inf), sum(np.exp(s - max(x)) for s in x))
                    if x and max(x) > -np.inf
                    else (-np.inf, 0.0)
                )
            )(list(stream)),
            "",
        ),
        "the softmax too": (
            {"return m, l": "return m, l, 1 / l"},
            "the answer returned a tuple of 3, not a tuple of 2: (m, l)",
        ),
        "a quotient of exponentials": (
            {"np.exp(m - m_new)": "np.exp(m) / np.exp(m_new)"},
            "The factor is a quotient of exponentials, exp(m) /",
        ),
        "sorted": (
            {"for s in stream:": "for s in sorted(stream):"},
            "The scores are kept, in one form or another, so memory",
        ),
        "len": (
            {"    m, l =": "    n = len(stream)\n    m, l ="},
            "the answer raised TypeError: object of type 'list_iterator'",
        ),
    },
    "online_softmax_update": {
        "one fresh row decides": (update_one_fresh_row_decides, "If a single query has seen no key so far"),
        "one masked key stops all": (
            {
                "    m_new = np.maximum(": "    if np.isneginf(scores).any():\n        return m, l, acc\n    m_new = np.maximum("
            },
            "If a single key of the block is masked, the whole block",
        ),
        "one masked row stops all": (update_one_masked_row_stops_all, "at row 1 of 2"),
        "masked keys at -1e4": (update_masked_at_1e4, ""),
        "one query asked with if": (
            {
                "    m_new = np.maximum(": "    if m == -np.inf and l == 0:\n        acc = 0 * acc\n    m_new = np.maximum("
            },
            "(by if, while or Python's max())",
        ),
        "acc not rescaled when below": (
            {UPDATED: UPDATED.replace("alpha[..., None] * acc", "np.where(m == m_new, 1, 0)[..., None] * acc")},
            "",
        ),
        "l = block sum": (
            {UPDATED: UPDATED.replace("alpha * l + p.sum(axis=-1)", "p.sum(axis=-1)")},
            "One of l and acc holds this block alone: what came before",
        ),
        "acc = block acc": (
            {UPDATED: UPDATED.replace("alpha[..., None] * acc + p @ values", "p @ values")},
            "One of l and acc holds this block alone: what came before",
        ),
        "alpha without the axis": (
            {UPDATED: UPDATED.replace("alpha[..., None] * acc", "alpha * acc")},
            "alpha meets acc without an extra axis, so it runs along",
        ),
        "alpha squared": (
            {UPDATED: UPDATED.replace("alpha * l", "alpha * alpha * l")},
            "An old sum is multiplied by alpha more than once.",
        ),
        "start -1e6": (
            {"np.where(m_new == -np.inf, 0.0, m_new)": "np.maximum(m_new, -1e6)"},
            "A finite number is subtracted where m_new is below it, so",
        ),
        "scores not shifted": (
            {"p = np.exp(scores - shift[..., None])": "p = np.exp(scores - m[..., None])"},
            "l is infinite",
        ),
        "m comes back old": ({"return m_new,": "return m,"}, "m is -inf"),
        "acc, l exchanged": (
            {UPDATED: "return m_new, alpha[..., None] * acc + p @ values, alpha * l + p.sum(axis=-1)"},
            "",
        ),
        "sum over all": ({"p.sum(axis=-1)": "p.sum()"}, "l takes the terms of all queries."),
        "values weighted by scores": ({"p @ values": "scores @ values"}, "acc is off by the factor -2.881"),
        "values summed": (
            {"p @ values": "values.sum(axis=0)"},
            "The values are added with other weights than p, or with",
        ),
        "alpha rescales p": (
            {"alpha[..., None] * acc + p @ values": "alpha[..., None] * (acc + p @ values)"},
            "the new terms are multiplied by alpha as well",
        ),
        "mean": ({"p.sum(axis=-1)": "p.mean(axis=-1)"}, "l takes the mean of the block's terms, not their sum."),
        "guard by the whole": (
            {"np.where(m_new == -np.inf, 0.0, m_new)": "m_new if np.any(m_new > -np.inf) else 0 * l"},
            "",
        ),
        "a list": (
            {UPDATED: UPDATED.replace("return ", "return [") + ", 0]"},
            "the answer returned a list of 4, not a tuple of 3: (m, l,",
        ),
        "one query only": (
            {"p @ values": "sum(w * v for w, v in zip(p, values, strict=True))"},
            "the answer raised ValueError: operands could not be",
        ),
    },
    "merge_states": {
        "one empty row decides": (merge_one_empty_row_decides, ""),
        "guarded as a whole": (merge_guarded_as_a_whole, "-inf is guarded only where a state is empty for every"),
        "weighted by l": (merge_weighted_by_l, "Each acc is multiplied by its l, as if it were a normalised"),
        "a mean": (
            {MERGED: "return m, (w_a * l_a + w_b * l_b) / 2, (w_a[..., None] * acc_a + w_b[..., None] * acc_b) / 2"},
            "",
        ),
        "normalised": (
            {
                MERGED: "l = w_a * l_a + w_b * l_b\n    return m, l, (w_a[..., None] * acc_a + w_b[..., None] * acc_b) / l[..., None]"
            },
            "",
        ),
        "min": (
            {"np.maximum(m_a, m_b)": "np.minimum(m_a, m_b)"},
            "The states are measured from the smaller of the two maxima.",
        ),
        "sum of the maxima": (
            {"m = np.maximum(m_a, m_b)": "m = m_a + m_b"},
            "The two maxima are added. The maximum of the union is the",
        ),
        "larger l wins": (
            {"m = np.maximum(m_a, m_b)": "m = np.where(l_a > l_b, m_a, m_b)"},
            "row 0 of np.where(l_a > l_b, m_a, m_b) is",
        ),
        "only the larger state": (
            {MERGED: "return m, np.where(m_a > m_b, l_a, l_b), np.where((m_a > m_b)[..., None], acc_a, acc_b)"},
            "",
        ),
        "m_a": (
            {"m = np.maximum(m_a, m_b)": "m = np.where(m_a == -np.inf, m_b, m_a)"},
            "The result is measured from m_a, even where m_b is larger.",
        ),
        "axis missing": (
            {"w_a[..., None] * acc_a + w_b[..., None] * acc_b": "w_a * acc_a + w_b * acc_b"},
            "The factors meet acc without an extra axis, so they run",
        ),
        "order (l, m, acc)": (
            {MERGED: MERGED.replace("return m, w_a * l_a + w_b * l_b,", "return w_a * l_a + w_b * l_b, m,")},
            "",
        ),
        "shift -1e9": (
            {"np.where(m == -np.inf, 0.0, m)": "np.maximum(m, -1e9)"},
            "A finite number is subtracted where m is below it, so",
        ),
        "m of nothing is 0": (
            {MERGED: MERGED.replace("return m,", "return shift,")},
            "The maximum of two empty states comes back as a finite",
        ),
        "ties doubled": (
            {
                "w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)": "w_a, w_b = np.exp(m_a - shift), np.where(m_a == m_b, 0, np.exp(m_b - shift))"
            },
            "",
        ),
        "a single factor": (
            {"w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)": "w_a = w_b = np.exp(np.minimum(m_a, m_b) - shift)"},
            "",
        ),
        "1-d only": (
            {
                "w_a[..., None] * acc_a + w_b[..., None] * acc_b": "np.array([w_a * x + w_b * y for x, y in zip(acc_a, acc_b, strict=True)])"
            },
            "",
        ),
        "float16": (
            {
                MERGED: "return tuple(np.float16(x) for x in (m, w_a * l_a + w_b * l_b, w_a[..., None] * acc_a + w_b[..., None] * acc_b))"
            },
            "",
        ),
    },
    "online_attention": {
        "an acc of length d": (
            {"np.zeros(V.shape[1])": "np.zeros(d)"},
            "the answer raised ValueError: operands could not be",
        ),
        "no block at a time": (
            {SCORES: SCORES.replace("start : start + block", "start : start + 1")},
            "the answer raised ValueError: matmul: Input operand 1 has a",
        ),
        "the last block repeated": (
            {"range(0, n, block)": "range(0, n + block, block)"},
            "the answer raised ValueError: zero-size array to reduction",
        ),
        "whole scale on K": ({"/ np.sqrt(d)": "/ np.sqrt(n)"}, "The scores are scaled, but not by 1/sqrt(d)."),
        "0.5": ({"/ np.sqrt(d)": "* 0.5"}, "The scores are scaled, but not by 1/sqrt(d)."),
        "sqrt(d_v)": ({"/ np.sqrt(d)": "/ np.sqrt(V.shape[1])"}, "the weight of each key is wrong at every key"),
        "sqrt(block)": ({"/ np.sqrt(d)": "/ np.sqrt(block)"}, "The scores are scaled, but not by 1/sqrt(d)."),
        "l = block": ({"l = alpha * l + p.sum()": "l = p.sum()"}, "l holds the terms of the last block alone."),
        "starts at -1e6": (
            {"m, l, acc = -np.inf": "m, l, acc = -1e6"},
            "A finite number takes the place of -inf.",
        ),
        "V by one block late": (
            {ACC: "acc = alpha * acc + p @ V[max(start - block, 0) : max(start - block, 0) + block][: len(p)]"},
            "",
        ),
        "alpha applied twice": (
            {ACC: "acc = alpha * alpha * acc + p @ V[start : start + block]"},
            "One of the old sums is multiplied by alpha twice.",
        ),
        "scores kept": (
            {
                "    for start": "    kept = []\n    for start",
                "        m_new =": "        kept.append(scores)\n        m_new =",
            },
            "",
        ),
        "each block read twice": (
            {
                "    for start": "    for start in range(0, n, block):\n        len(K[start : start + block])\n    for start"
            },
            "Every row of K is read twice",
        ),
        "two passes": (
            {"    for start": "    for start in range(0, n, block):\n        K[start : start + block]\n    for start"},
            "",
        ),
        "float16 output": (
            {"return acc / l": "return np.float16(acc / l)"},
            "the weight of each key is right to about 3 digits only",
        ),
        "weights come back": (
            {"return acc / l": "return acc, l"},
            "the answer returned a tuple of 2, not an array of shape (4,)",
        ),
        "an average of block outputs": (
            lambda q, K, V, block: np.mean(
                [
                    (lambda p: p @ V[i : i + block] / p.sum())(np.exp(K[i : i + block] @ q / np.sqrt(len(q))))
                    for i in range(0, len(K), block)
                ],
                axis=0,
            ),
            "",
        ),
        "block is ignored": (
            {"    m, l, acc": "    block = n\n    m, l, acc"},
            "An operation on the whole of K or V (K @ q, K.T,",
        ),
        "blocks of 2": (
            {"    m, l, acc": "    block = 2\n    m, l, acc"},
            "2 rows of K were read at once, with block = 1",
        ),
        "padded with a finite score": (attention_padded_with_1e9, "The short block is filled up with a finite score"),
        "max of absolute scores": (
            {"max(m, scores.max())": "max(m, abs(scores).max())"},
            "What is subtracted is never below 0",
        ),
        "backwards with a gap": ({"range(0, n, block)": "range(0, n - 1, block)"}, "the weight of each key is NaN"),
    },
}
