"""Lesson 04: wrong answers, and what the check has to say of each."""

import numpy as np


def attention_no_maximum_beside_an_empty_row(Q, K, V, causal=False):
    s = Q @ K.T / np.sqrt(Q.shape[1])
    if causal:
        s = np.where(np.tri(*s.shape, len(K) - len(Q), dtype=bool), s, -np.inf)
    m = s.max(axis=1, keepdims=True)
    if np.isinf(m).any():
        m = np.zeros_like(m)
    e = np.exp(s - m)
    z = e.sum(axis=1, keepdims=True)
    return np.divide(e, z, out=np.zeros_like(e), where=z > 0) @ V


def attention_empty_rows_by_a_negative_stop(Q, K, V, causal=False):
    n_q, n_k = len(Q), len(K)
    S = Q @ K.T / np.sqrt(Q.shape[1])
    if causal:
        S = np.where(np.tri(n_q, n_k, n_k - n_q, dtype=bool), S, -np.inf)
        S[: n_q - n_k] = 0
    P = np.exp(S - S.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    if causal:
        P[: n_q - n_k] = 0
    return P @ V


MASK = "np.arange(n_k) <= np.arange(n_q)[:, None] + (n_k - n_q)"
SCALED = "S = Q @ K.T / np.sqrt(d)"
HIDE = "S = np.where(visible, S, -np.inf)"
VISIBLE = "visible = np.arange(n_k) <= np.arange(n_q)[:, None] + n_k - n_q"
SHIFT = "np.where(m == -np.inf, 0, m)"
LAST = "P / np.where(l == 0, 1, l) @ V"
MHA_S = "S = Q @ K.transpose(0, 2, 1) / np.sqrt(d)"
BACK = "O.transpose(1, 0, 2).reshape(n, d_model) @ Wo"

WRONG_ANSWERS = {
    "causal_mask": {
        "square": (lambda n_q, n_k: np.tri(n_q, dtype=bool), "The mask is square, whatever the two lengths are."),
        "np.tri": (
            lambda n_q, n_k: np.tri(n_q, n_k, dtype=bool),
            "Query i sees the keys 0 to i, whatever the two lengths are.",
        ),
        "np.triu": (
            lambda n_q, n_k: np.triu(np.ones((n_q, n_k), bool), n_k - n_q),
            "Each query sees the keys from its own position on,",
        ),
        "shift off by one": (
            lambda n_q, n_k: np.tri(n_q, n_k, n_k - n_q - 1, dtype=bool),
            "Each query sees only the keys before its own.",
        ),
        "all": (lambda n_q, n_k: np.ones((n_q, n_k), bool), "Every query sees every key."),
        "diagonal": (
            lambda n_q, n_k: np.eye(n_q, n_k, n_k - n_q, dtype=bool),
            "Each query sees its own key and none before it.",
        ),
        "int": (lambda n_q, n_k: np.tri(n_q, n_k, n_k - n_q, dtype=int), "The mask holds numbers, not bool."),
        "a list": (
            lambda n_q, n_k: np.tri(n_q, n_k, n_k - n_q, dtype=bool).tolist(),
            "the answer returned a list of 2, not an array of shape (2,",
        ),
        "-inf and 0": (
            lambda n_q, n_k: np.where(np.tri(n_q, n_k, n_k - n_q, dtype=bool), 0.0, -np.inf),
            "0 and -inf come back, which is what is added to scores.",
        ),
        "last key hidden": (
            {MASK: f"({MASK}) & (np.arange(n_k) < n_k - (n_k > n_q))"},
            "query 0 sees keys 0 to 2; it should see keys 0 to 3",
        ),
        "abs": (
            {MASK: "np.arange(n_k) <= np.arange(n_q)[:, None] + abs(n_k - n_q)"},
            "query 0 sees key 0; it should see no key",
        ),
        "raises for more queries": (
            {"    return": "    if n_q > n_k:\n        raise ValueError\n    return"},
            "the answer raised ValueError",
        ),
        "only n_q rows of n_k": (
            lambda n_q, n_k: np.tri(n_k, n_k, dtype=bool)[-n_q:],
            "the mask has shape (1, 1), not (4, 1)",
        ),
        "the first n_q rows": (
            lambda n_q, n_k: np.tri(max(n_q, n_k), n_k, dtype=bool)[:n_q],
            "Query i sees the keys 0 to i, whatever the two lengths are.",
        ),
        "upside down": ({MASK: f"({MASK})[::-1]"}, "The rows are in reverse order: the first query sees most."),
    },
    "attention": {
        "empty rows by a negative stop": (
            attention_empty_rows_by_a_negative_stop,
            "a slice counts negative numbers from the end",
        ),
        "one empty row switches the maximum off": (attention_no_maximum_beside_an_empty_row, ""),
        "the maximum over hidden keys too": (
            {"m = S.max(axis=1, keepdims=True)": "m = (Q @ K.T / np.sqrt(d)).max(axis=1, keepdims=True)"},
            "The maximum is taken over hidden keys as well. Measured",
        ),
        "-1e4": (
            {
                HIDE: HIDE.replace("-np.inf", "-1e4"),
                LAST: "(P / l * visible.any(1, keepdims=True) if causal else P / l) @ V",
            },
            "A finite number such as -1e9 stands where -inf belongs,",
        ),
        "-2000": (
            {
                HIDE: HIDE.replace("-np.inf", "-2000"),
                LAST: "(P / l * visible.any(1, keepdims=True) if causal else P / l) @ V",
            },
            "A finite number such as -1e9 stands where -inf belongs,",
        ),
        "-1e9 and zeroed": (
            {
                HIDE: HIDE.replace("-np.inf", "-1e9"),
                LAST: "(P / l * visible.any(1, keepdims=True) if causal else P / l) @ V",
            },
            "A finite number such as -1e9 stands where -inf belongs,",
        ),
        "1 / sqrt(n_k)": ({"/ np.sqrt(d)": "/ np.sqrt(n_k)"}, "The scores are scaled, but not by 1/sqrt(d)."),
        "1 / sqrt(n_q)": ({"/ np.sqrt(d)": "/ np.sqrt(n_q)"}, "The scores are scaled, but not by 1/sqrt(d)."),
        "0.5": ({"/ np.sqrt(d)": "* 0.5"}, "The scores are scaled, but not by 1/sqrt(d)."),
        "0.125": ({"/ np.sqrt(d)": "/ 8"}, "The scores are scaled, but not by 1/sqrt(d)."),
        "times sqrt(d)": (
            {"/ np.sqrt(d)": "* np.sqrt(d)"},
            "The scores are multiplied by sqrt(d) or by d. They have to be",
        ),
        "weights transposed": (
            {LAST: "(P / np.where(l == 0, 1, l)).T @ V if n_q == n_k else P / np.where(l == 0, 1, l) @ V"},
            "row 0 of (P / np.where(l == 0, 1, l)).T is [0.221181, 0.141156,",
        ),
        "not normalised": ({LAST: "P @ V"}, "The weights of a row do not add up to 1: they are not"),
        "K for V": ({LAST: LAST.replace("V", "K")}, "The weights average the keys. V is not used."),
        "the weights come back": (
            {LAST: "P / np.where(l == 0, 1, l)"},
            "The weights are returned, without being multiplied by V.",
        ),
        "hidden after the softmax": (
            {
                HIDE: "pass",
                "P = np.exp(": "P = (visible if causal else 1) * np.exp(",
                "l = P.sum(axis=1, keepdims=True)": "l = np.exp(S - S.max(1, keepdims=True)).sum(axis=1, keepdims=True)",
            },
            "but the sum that divides the row still contains their terms.",
        ),
        "a global maximum": (
            {"S.max(axis=1, keepdims=True)": "S.max()"},
            "One maximum, of all scores, is subtracted from every row. A",
        ),
        "shifted by the mean": (
            {"m = S.max(axis=1, keepdims=True)": "m = np.where(np.isfinite(S), S, 0).mean(axis=1, keepdims=True)"},
            "What is subtracted is not the largest score of the row, so",
        ),
        "one sum for all": (
            {"l = P.sum(axis=1, keepdims=True)": "l = P.sum()"},
            "One sum, of all queries' terms, divides every row.",
        ),
        "always causal": ({"if causal:": "if True:"}, "Later keys are hidden although causal is False."),
        "mask inverted": (
            {HIDE: "S = np.where(visible, -np.inf, S)"},
            "Visible and hidden have changed places:",
        ),
        "causal shift reversed": (
            {VISIBLE: "visible = np.arange(n_k) <= np.arange(n_q)[:, None] + n_q - n_k"},
            "The queries' positions are shifted in the wrong direction.",
        ),
        "aligned at the top for more queries": (
            {VISIBLE: "visible = np.arange(n_k) <= np.arange(n_q)[:, None] + max(n_k - n_q, 0)"},
            "With more queries than keys, the first queries still see",
        ),
        "0/0": ({LAST: "P / l @ V"}, "and 0/0, if its sum is empty."),
        "the maximum is 0 at least": (
            {"S.max(axis=1, keepdims=True)": "np.maximum(S.max(axis=1, keepdims=True), 0)"},
            "Where every score of a row is negative, too large a number",
        ),
        "blind queries get the mean of V": (
            {LAST: "np.where(l == 0, V.mean(0), P / np.where(l == 0, 1, l) @ V)"},
            "A query that sees no key gets values all the same.",
        ),
        "blind queries get the first value": (
            {LAST: "np.where(l == 0, V[0], P / np.where(l == 0, 1, l) @ V)"},
            "A query that sees no key gets values all the same.",
        ),
        "float16 weights": (
            {LAST: "(P / np.where(l == 0, 1, l)).astype(np.float16) @ V"},
            "Scores, weights or output are rounded to float16, which keeps",
        ),
        "float16 comes back": (
            {LAST: "(P / np.where(l == 0, 1, l) @ V).astype(np.float16)"},
            "Scores, weights or output are rounded to float16, which keeps",
        ),
        "exp2": ({"np.exp(S": "np.exp2(S"}, "The weights are made of powers of 2, where powers of e"),
        "a softmax of a softmax": (
            {
                "    return P": "    P = np.exp(P / np.where(l == 0, 1, l))\n    l = P.sum(axis=1, keepdims=True)\n    return P"
            },
            "A softmax is taken of the weights once more.",
        ),
        "only visible keys before max, multiplied": (
            {HIDE: "S = S * visible"},
            "Hidden scores count as 0. That is a score like any other,",
        ),
        "V is scaled": ({LAST: f"{LAST} / np.sqrt(d)"}, "The output is divided by sqrt(d) as well. Only the scores"),
        "an epsilon": (
            {LAST: "P / (l + 1e-5) @ V"},
            "l + 1e-05 is [2.053467]; with [2.053457] in its place",
        ),
        "Q and K exchanged": (
            {"S = Q @ K.T / np.sqrt(d)": "S = (K @ Q.T / np.sqrt(d)).reshape(n_q, n_k)"},
            "K @ Q.T has shape (4, 2); with an array of shape (2, 4) in its",
        ),
    },
    "multi_head_attention": {
        "no maximum": (
            {"P = np.exp(S - S.max(axis=-1, keepdims=True))": "P = np.exp(S)"},
            "exp is taken of the scores themselves. It overflows beyond",
        ),
        "a global maximum": (
            {"S.max(axis=-1, keepdims=True)": "S.max()"},
            "One maximum is subtracted from rows of several heads or",
        ),
        "a maximum per query over heads": (
            {"S.max(axis=-1, keepdims=True)": "S.max(axis=0).max(axis=-1)[:, None]"},
            "One maximum is subtracted from rows of several heads or",
        ),
        "one sum over heads": (
            {"P.sum(axis=-1, keepdims=True)": "P.sum(axis=-1, keepdims=True).sum(axis=0)"},
            "The weights are divided by a sum over all heads.",
        ),
        "Wo twice": ({BACK: f"{BACK} @ Wo"}, "The heads' outputs meet Wo transposed, or twice."),
        "Wo transposed": ({BACK: f"{BACK}.T"}, "The heads' outputs meet Wo transposed, or twice."),
        "Wq transposed": ({"(X @ W)": "(X @ W.T)"}, "X is multiplied by the transposed matrices, X @ W.T."),
        "values from Wk": ({"for W in (Wq, Wk, Wv)": "for W in (Wq, Wk, Wk)"}, "The values are not X @ Wv."),
        "Wv unused": ({"for W in (Wq, Wk, Wv)": "for W in (Wq, Wk, np.eye(d_model))"}, "The values are not X @ Wv."),
        "heads averaged": (
            {BACK: "np.tile(O.mean(axis=0), (1, n_heads)) @ Wo"},
            "The heads' outputs are added, averaged, or one of them",
        ),
        "out not transposed": (
            {BACK: "O.reshape(n, d_model) @ Wo"},
            "The heads' outputs lie one after the other, each with all its",
        ),
        "heads in reverse": (
            {BACK: "O[::-1].transpose(1, 0, 2).reshape(n, d_model) @ Wo"},
            "The heads' outputs are put side by side in reverse order.",
        ),
        "only the first head": (
            {BACK: "np.concatenate([O[0]] * n_heads, axis=1) @ Wo"},
            "The heads' outputs are added, averaged, or one of them",
        ),
        "causal strict": (
            {"np.tri(n, dtype=bool)": "np.tri(n, k=-1, dtype=bool) | (np.arange(n)[:, None] == 0)"},
            "Queries do not see their own keys.",
        ),
        "causal mask inverted": (
            {"S = np.where(np.tri(n, dtype=bool), S, -np.inf)": "S = np.where(np.tri(n, dtype=bool).T, S, -np.inf)"},
            "Earlier keys are hidden instead of later ones.",
        ),
        "hidden are 0": ({"S, -np.inf": "S, 0"}, "Hidden scores count as 0. That is a score like any other."),
        "-1e4": ({"S, -np.inf": "S, -1e4"}, "A finite number such as -1e9 stands where -inf belongs,"),
        "causal in the first head alone": (
            {
                "S = np.where(np.tri(n, dtype=bool), S, -np.inf)": "S[0] = np.where(np.tri(n, dtype=bool), S[0], -np.inf)"
            },
            "Only one of the heads hides later keys.",
        ),
        "heads added": ({BACK: "O.sum(axis=0) @ Wo[:d]"}, "The heads' outputs are added, averaged, or one of them"),
        "the last head's weights": (
            {"keepdims=True) @ V": "keepdims=True)\n    O = O[-1] @ V"},
            "All heads use the same weights, those of the last head or of",
        ),
        "softmax over queries": (
            {"P.sum(axis=-1, keepdims=True)": "P.sum(axis=-2, keepdims=True)"},
            "The softmax runs over the queries instead of the keys.",
        ),
        "n_heads for d": (
            {"d = d_model // n_heads": "d = n_heads", "n, n_heads, d)": "n, d_model // d, d)"},
            "n_heads and d have changed places: each row is cut into d",
        ),
    },
    "standard_attention_bytes": {
        "d squared": (
            {"matrix = n * d * bytes_per_element": "matrix = d * d * bytes_per_element"},
            "Q K^T is 48 too small",
        ),
        "kilobytes": (
            {"square = n * n * bytes_per_element": "square = n * n * bytes_per_element // 1000"},
            "Q K^T is 128 too small",
        ),
        "three passes": (
            {'"scale": 2 * square': '"scale": 0', '"mask": 2 * square + visible': '"mask": 0'},
            "scale is 256 too small",
        ),
        "read and write as a pair": (
            {'"scale": 2 * square': '"scale": (square, square)'},
            "scale is a tuple, not a number",
        ),
        "K counted as n n": ({'"Q K^T": 2 * matrix + square': '"Q K^T": matrix + 2 * square'}, "Q K^T is 32 too large"),
        "V counted as n n": ({'"P V": square + 2 * matrix': '"P V": 2 * square + matrix'}, "P V is 32 too large"),
        "scale with a matrix": (
            {'"scale": 2 * square': '"scale": 2 * square + bytes_per_element'},
            "scale is 8 too large",
        ),
        "softmax with statistics": (
            {'"softmax": 2 * square': '"softmax": 2 * square + 8 * n'},
            "softmax is 32 too large",
        ),
        "softmax in fp32": ({'"softmax": 2 * square': '"softmax": square + 4 * n * n'}, "softmax is 64 too small"),
        "the mask twice": ({"2 * square + visible": "2 * square + 2 * visible"}, "mask is 16 too large"),
        "O in fp32": ({'"P V": square + 2 * matrix': '"P V": square + matrix + 4 * n * d'}, "P V is 48 too small"),
    },
}
