"""Lesson 04, attention: the exercises' answers, hints, properties and plausible wrong answers.

The stages are those of standard attention in Dao, Fu, Ermon, Rudra, Re, "FlashAttention" (2022), Alg. 0; heads
are those of Vaswani et al., "Attention Is All You Need" (2017), section 3.2.2.
"""

import numbers as number_types
from dataclasses import replace

import numpy as np

from course_lib import reference, traffic
from course_lib.grading.checking import agrees, arrays, not_modified
from course_lib.grading.diagnosis import compare, exact_and_plain, show
from course_lib.grading.exercise import (
    Evidence,
    Exercise,
    Finding,
    Part,
    Property,
    Variant,
    WrongAnswer,
    caught_by,
)
from course_lib.reference import example
from course_lib.reference.attention import causal_mask as reference_mask

LESSON = "04"
TITLE = "Attention"

NO_SCALE = "the scores are not scaled"
OVER_D = "the scores are divided by d, not by sqrt(d)"
OVER_QUERIES = "the softmax runs over the queries instead of the keys"
NOT_CAUSAL = "causal is ignored"
ONE_MORE = "each query also sees the key after its own"
ONE_LESS = "no query sees its own key"
MASKED_BY_0 = "hidden scores are 0 instead of -inf"
TOP_LEFT = "the mask is aligned top-left"
EVEN = "a query that sees no key averages over all of them"

SHARED_MISTAKES = {
    "error": "Run the call above in a cell of its own and print the shapes of what meets on the line that is "
    "shown. Which shape does that line expect?",
    "format": "Compare the docstring's Returns with your return statement.",
    "endless": "Which line changes what the loop waits for? No loop is needed here: NumPy works on whole matrices.",
    "modified": "+=, *=, /= and out= write into the caller's array. A new array, as in a * b, does not.",
}
SHARED_HINTS = {
    ": exception": "error",
    ": shape": "error",
    ": none": "format",
    ": type": "format",
    ": dtype": "format",
    ": timeout": "endless",
}


def attention(Q, K, V, causal=False):
    """Attention of one head: the softmax of the scaled scores, times the values.

    Q: [n_q, d], K: [n_k, d], V: [n_k, d]. The scale is 1 / sqrt(d).
    causal: if True, query i sees key j only where j <= i + n_k - n_q, so that the last query sees every key,
        whatever the two lengths.
    Returns [n_q, d] in float32 or float64. The row of a query that sees no key is 0. No score may overflow,
        and the inputs are not modified.

    >>> Q = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 2.0]])
    >>> K = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> V = np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0], [3.0, -1.0]])
    >>> print(attention(Q, K, V, causal=True)[[0, -1]].round(4))
    [[ 2.      0.    ]
     [ 2.0112 -0.0112]]
    """
    n_q, n_k, d = len(Q), len(K), Q.shape[1]
    S = Q @ K.T / np.sqrt(d)  # [n_q, d] @ [d, n_k]
    if causal:
        visible = np.arange(n_k) <= np.arange(n_q)[:, None] + n_k - n_q
        S = np.where(visible, S, -np.inf)
    m = S.max(axis=1, keepdims=True)
    P = np.exp(S - np.where(m == -np.inf, 0, m))  # never -inf - -inf
    l = P.sum(axis=1, keepdims=True)
    return P / np.where(l == 0, 1, l) @ V  # [n_q, n_k] @ [n_k, d]


def attention_parts(Q, K, V, causal):
    def function(Q, K, V):
        return reference.attention(Q, K, V, causal=causal)

    exact, plain = exact_and_plain(function, Q, K, V)

    def readings():
        S, d = reference.scores(Q, K), Q.shape[1]
        visible = reference_mask(*S.shape) if causal else np.ones(S.shape, bool)
        i, j = np.indices(S.shape)

        def output(scores, mask=visible, axis=1):
            return reference.stable_softmax(np.where(mask, scores, -np.inf), axis) @ V

        found = {NO_SCALE: output(S * np.sqrt(d)), OVER_D: output(S / np.sqrt(d)), OVER_QUERIES: output(S, axis=0)}
        if causal:
            nothing = ~visible.any(axis=1)[:, None]
            found |= {
                NOT_CAUSAL: output(S, True),
                TOP_LEFT: output(S, j <= i),
                ONE_MORE: output(S, j <= i + len(K) - len(Q) + 1),
                ONE_LESS: output(S, j < i + len(K) - len(Q)),
                MASKED_BY_0: output(np.where(visible, S, 0), True),
            }
            # First: where nothing else differs, two of the others may come out the same.
            found = {EVEN: np.where(nothing, V.mean(axis=0), exact)} | found
        return found

    return [Part("the output", exact, plain, function(Q, K, abs(V)), readings)]


def heads_case(Q, K, V, causal=False):
    Q, K, V = (np.array(x, dtype=np.float64) for x in (Q, K, V))
    return {"Q": Q, "K": K, "V": V, "causal": causal}


SENTENCE = tuple(x.tolist() for x in (example.Q, example.K, example.V))


def draw_attention(*, causal=False, lengths="any", of=None):
    """lengths: "equal", "fewer queries", "more queries" or "any", the last with numbers that differ freely."""

    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(draw):
            n_q, extra, d = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
            n_q, n_k = {
                "equal": (n_q, n_q),
                "fewer queries": (n_q, n_q + extra),
                "more queries": (n_q + extra, n_q),
                "any": (n_q, draw(st.integers(1, 3))),
            }[lengths]
            Q, K = (arrays(draw, n, d, of=of() if of else None) for n in (n_q, n_k))
            return {"Q": Q, "K": K, "V": arrays(draw, n_k, d), "causal": causal}

        return inputs()

    return draw


def large_entries():
    from hypothesis import strategies as st

    return st.sampled_from([32.0, 30.0, -32.0, 0.0])


ATTENTION_CALL = "attention(Q, K, V, causal)"

ATTENTION = Exercise(
    id="04.attention",
    title="Attention of one head",
    points=3,
    minutes=12,
    difficulty="medium",
    answer=attention,
    hints=(
        "Three matrices come one after another: scores, weights, output. Which shape has each, and along which "
        "axis do a query's weights add up to 1?",
        "Scores: Q @ K.T over sqrt(d). Hide with -inf, before anything else looks at them. Weights: the stable "
        "softmax of each row. What must be subtracted in a row that is -inf throughout, and what divided by?",
        "S = Q @ K.T / sqrt(d); if causal, S = np.where(j <= i + n_k - n_q, S, -inf); m = row maximum, with 0 "
        "for -inf; P = exp(S - m); l = row sum, with 1 for 0; return P / l @ V.",
    ),
    reasoning="Row i of S holds the scores of query i, so the softmax runs along axis 1 and row i of P V is query "
    "i's average of the values. The mask is applied to scores, not to weights, so that what is visible adds up "
    "to 1 by itself. Bottom-right alignment, j <= i + n_k - n_q, makes the last query see every key: the queries "
    "are the last n_q positions of a text of n_k tokens. With more queries than keys the first ones see nothing; "
    "an empty sum is 0, and that takes the two exceptions of lesson 03.",
    properties=(
        Property(
            "each output is the values' average, weighted by the softmax of its query's scaled scores",
            ATTENTION_CALL,
            agrees(attention_parts),
            (heads_case(*SENTENCE), heads_case([[1, 2]], SENTENCE[1], SENTENCE[2])),
            draw_attention(),
            {
                f"the output: {NO_SCALE}": "scale",
                f"the output: {OVER_D}": "root",
                f"the output: {OVER_QUERIES}": "axis",
                "": "formula",
            },
        ),
        Property(
            "causal: query i sees the keys 0 to i, and itself",
            ATTENTION_CALL,
            agrees(attention_parts),
            (heads_case(*SENTENCE, causal=True),),
            draw_attention(causal=True, lengths="equal"),
            {
                f"the output: {NOT_CAUSAL}": "causal",
                f"the output: {ONE_MORE}": "future",
                f"the output: {ONE_LESS}": "itself",
                f"the output: {MASKED_BY_0}": "zero",
                "": "causal",
                ": nan": "itself",
            },
        ),
        Property(
            "causal with fewer queries than keys: the last query sees every key",
            ATTENTION_CALL,
            agrees(attention_parts),
            (heads_case(SENTENCE[0][2:], *SENTENCE[1:], causal=True), heads_case([[1, 2]], *SENTENCE[1:], causal=True)),
            draw_attention(causal=True, lengths="fewer queries"),
            {"": "alignment", ": nan": "alignment"},
        ),
        Property(
            "scores near 1000 neither overflow nor vanish",
            ATTENTION_CALL,
            agrees(attention_parts),
            (heads_case([[32]], [[32], [30]], [[1], [2]]), heads_case([[-32]], [[32], [30]], [[1], [2]])),
            draw_attention(of=large_entries),
            {"": "not_shifted"},
        ),
        Property(
            "causal with more queries than keys: a query that sees no key gives 0",
            ATTENTION_CALL,
            agrees(attention_parts),
            (heads_case(SENTENCE[0], SENTENCE[1][:2], SENTENCE[2][:2], causal=True),),
            draw_attention(causal=True, lengths="more queries"),
            {"": "nothing", ": nan": "masked"},
        ),
        not_modified(ATTENTION_CALL, (heads_case(*SENTENCE, causal=True),)),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "scale": "Scores of more components are larger, and softmax saturates (lesson 01). By what are they divided?",
        "root": "The spread of a dot product grows as the root of d, so that root is what to divide by.",
        "axis": "Each query's weights add up to 1, and a query is a row of S. Which axis runs over its keys?",
        "formula": "Print S, P and P @ V for the two queries and keys of the input above, and compute the first row "
        "of each by hand.",
        "causal": "Which keys may query 0 see? Hide all others before the softmax, by a score of -inf.",
        "future": "Query i may see the keys 0 to i. Yours also sees key i + 1, the very token that a language model "
        "is asked to predict.",
        "itself": "A query sees its own key: j <= i, not j < i. Otherwise the first one would see nothing.",
        "zero": "A score of 0 is a score like any other: its weight is exp(0 - m). Which score has weight 0?",
        "alignment": "The queries are the last n_q of n_k positions: query 0 stands at position n_k - n_q, and sees "
        "the keys up to there.",
        "not_shifted": "exp overflows beyond 709 in float64, and of scores near -1000 nothing is left. Subtract each "
        "row's maximum first (lesson 03).",
        "nothing": "A query that sees no key has no weights to give, and an empty sum is 0. A large negative number "
        "in place of -inf makes all keys equal there instead.",
        "masked": "-inf minus -inf is NaN, and so is 0 / 0. Both happen in a row with no visible key: subtract 0 "
        "there, and divide by 1.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "each output is the values' average, weighted by the softmax of its query's scaled scores",
            WrongAnswer("scale missing", "scale", {" / np.sqrt(d)": ""}),
            WrongAnswer("scale 1/d", "root", {"np.sqrt(d)": "d"}),
            WrongAnswer(
                "softmax over the queries",
                "axis",
                {"S.max(axis=1,": "S.max(axis=0,", "P.sum(axis=1,": "P.sum(axis=0,"},
            ),
        ),
        *caught_by(
            "causal: query i sees the keys 0 to i, and itself",
            WrongAnswer("causal ignored", "causal", {"if causal:": "if False:"}),
            WrongAnswer("causal off by one, into the future", "future", {"+ n_k - n_q\n": "+ n_k - n_q + 1\n"}),
            WrongAnswer("causal off by one, without itself", "itself", {"np.arange(n_k) <= ": "np.arange(n_k) < "}),
            WrongAnswer("mask value 0", "zero", {"np.where(visible, S, -np.inf)": "np.where(visible, S, 0)"}),
        ),
        *caught_by(
            "causal with fewer queries than keys: the last query sees every key",
            WrongAnswer("mask aligned top-left", "alignment", {"[:, None] + n_k - n_q": "[:, None]"}),
        ),
        *caught_by(
            "scores near 1000 neither overflow nor vanish",
            WrongAnswer("no max subtraction", "not_shifted", {"np.where(m == -np.inf, 0, m)": "0"}),
        ),
        *caught_by(
            "causal with more queries than keys: a query that sees no key gives 0",
            WrongAnswer("NaN where no key is visible", "masked", {"np.where(m == -np.inf, 0, m)": "m"}),
            WrongAnswer("-1e9 for -inf", "nothing", {"S, -np.inf)": "S, -1e9)"}),
        ),
        *caught_by(
            "the inputs are not modified",
            WrongAnswer(
                "scales Q in place",
                "modified",
                {"S = Q @ K.T / np.sqrt(d)": "Q /= np.sqrt(d)\n    S = Q @ K.T"},
            ),
        ),
    ),
    right_answers=(
        Variant("query by query", function=lambda Q, K, V, causal=False: _attention_by_query(Q, K, V, causal)),
        Variant(
            "scaled queries, in float32",
            {"S = Q @ K.T / np.sqrt(d)": "S = (Q / np.sqrt(d)).astype(np.float32) @ K.astype(np.float32).T"},
        ),
    ),
)


def _attention_by_query(Q, K, V, causal):
    out = np.zeros((len(Q), V.shape[1]))
    for i, q in enumerate(Q):
        seen = min(max(i + 1 + len(K) - len(Q), 0), len(K)) if causal else len(K)
        if seen:
            s = K[:seen] @ q / Q.shape[1] ** 0.5
            p = np.exp(s - s.max())
            out[i] = p @ V[:seen] / p.sum()
    return out


def causal_mask(n_q, n_k):
    """Which query sees which key when each sees its own position and those before it.

    n_q, n_k: numbers of queries and keys, at least 1. The queries are the last n_q of n_k positions: query i
        sees key j where j <= i + n_k - n_q (bottom-right: the last query sees every key).
    Returns [n_q, n_k] of bool, True where visible. With more queries than keys the first n_q - n_k rows are
        False throughout.

    >>> print(causal_mask(2, 3))
    [[ True  True False]
     [ True  True  True]]
    """
    return np.arange(n_k) <= np.arange(n_q)[:, None] + (n_k - n_q)


INVERTED = "True is taken for hidden"
TRANSPOSED = "rows and columns have changed places"
CLIPPED = "with more queries than keys the rows are aligned at the top"


def mask_part(n_q, n_k):
    exact = reference_mask(n_q, n_k).astype(np.float64)
    i, j = np.indices((n_q, n_k))

    def readings():
        return {
            TOP_LEFT if n_q < n_k else CLIPPED: j <= i,
            INVERTED: 1 - exact,
            ONE_MORE: j <= i + n_k - n_q + 1,
            ONE_LESS: j < i + n_k - n_q,
            TRANSPOSED: j >= i + n_k - n_q,
        }

    return Part("the mask", exact, exact, 1.0, lambda: {name: np.float64(x) for name, x in readings().items()})


def is_mask(answer, n_q, n_k):
    """Whatever dtype stands for True and False: that is a property of its own."""
    returned = answer(n_q, n_k)
    if not isinstance(returned, np.ndarray) or returned.dtype != bool:
        return compare(returned, [mask_part(n_q, n_k)])
    evidence = compare(returned.astype(np.float64), [mask_part(n_q, n_k)])
    return evidence and replace(evidence, returned=show(returned), expected=show(reference_mask(n_q, n_k)))


def is_bool(answer, n_q, n_k):
    returned = answer(n_q, n_k)
    if isinstance(returned, np.ndarray) and returned.dtype == bool:
        return None
    dtype = np.asarray(returned).dtype
    return Evidence((Finding("the mask", "dtype", f"the mask has dtype {dtype}"),), str(dtype), "bool")


def draw_lengths(relation):
    def draw():
        from hypothesis import strategies as st

        pair = st.tuples(st.integers(1, 6), st.integers(1, 6))
        order = {
            "equal": lambda n, extra: (n + 1, n + 1),  # one query and one key cannot tell the mistakes apart
            "fewer queries": lambda n, extra: (n, n + extra),
            "more queries": lambda n, extra: (n + extra, n),
        }[relation]
        return pair.map(lambda drawn: dict(zip(("n_q", "n_k"), order(*drawn), strict=True)))

    return draw


def lengths(n_q, n_k):
    return {"n_q": n_q, "n_k": n_k}


MASK_CALL = "causal_mask(n_q, n_k)"

MASK = Exercise(
    id="04.causal_mask",
    title="Who sees whom",
    points=1,
    minutes=6,
    difficulty="easy",
    answer=causal_mask,
    hints=(
        "A text of 5 tokens is there, and the last 2 of them are queries. At which positions do they stand, and "
        "how many keys does each see?",
        "Query i stands at position i + n_k - n_q. Compare a column of these positions with a row of the keys' "
        "positions 0 to n_k - 1; NumPy makes a matrix of it.",
        "np.arange(n_k) is the row, np.arange(n_q)[:, None] + (n_k - n_q) the column; key <= query is the mask.",
    ),
    reasoning="Positions are counted in the text of n_k tokens, whose last n_q are the queries. Query i stands at i "
    "+ n_k - n_q and sees what does not come after it. Broadcasting a row against a column compares every pair. "
    "With more queries than keys the first positions are negative, and no key lies at or before them.",
    properties=(
        Property(
            "as many queries as keys: a triangle with its diagonal",
            MASK_CALL,
            is_mask,
            (lengths(2, 2), lengths(4, 4), lengths(1, 1)),
            draw_lengths("equal"),
            {
                f"the mask: {INVERTED}": "inverted",
                f"the mask: {ONE_LESS}": "itself",
                f"the mask: {ONE_MORE}": "future",
                f"the mask: {TRANSPOSED}": "transposed",
                "": "triangle",
            },
        ),
        Property(
            "fewer queries than keys: the last query sees every key",
            MASK_CALL,
            is_mask,
            (lengths(1, 4), lengths(2, 5)),
            draw_lengths("fewer queries"),
            {"": "alignment"},
        ),
        Property(
            "more queries than keys: the first queries see none",
            MASK_CALL,
            is_mask,
            (lengths(4, 1), lengths(5, 2)),
            draw_lengths("more queries"),
            {"": "negative"},
        ),
        Property(
            "the mask is an array of bool", MASK_CALL, is_bool, (lengths(2, 3),), hints={"the mask: dtype": "bool"}
        ),
    ),
    mistakes={key: text for key, text in SHARED_MISTAKES.items() if key != "modified"}
    | {
        "inverted": "True means visible here, as in PyTorch's attention with a mask of bool.",
        "itself": "A query sees its own position too: <= or <?",
        "future": "Query 0 of as many queries as keys sees key 0 alone.",
        "transposed": "Rows are queries, columns are keys. Which of the two gets the extra axis?",
        "triangle": "Write the mask of 4 queries and 4 keys by hand, row by row. Which key does row i end at?",
        "alignment": "With 1 query and 4 keys, the query is the text's last token, and sees all 4. Where does query i "
        "stand in the text?",
        "negative": "n_k - n_q may be negative; then the first queries stand before the first key and see nothing.",
        "bool": "np.where and ~ treat 0 and 1 as numbers. A comparison of arrays is bool by itself.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "as many queries as keys: a triangle with its diagonal",
            WrongAnswer("True for hidden", "inverted", {"np.arange(n_k) <= ": "np.arange(n_k) > "}),
            WrongAnswer("without itself", "itself", {"np.arange(n_k) <= ": "np.arange(n_k) < "}),
            WrongAnswer("one key too many", "future", {"(n_k - n_q)": "(n_k - n_q + 1)"}),
            WrongAnswer("upper triangle", "transposed", {"np.arange(n_k) <= ": "np.arange(n_k) >= "}),
        ),
        *caught_by(
            "fewer queries than keys: the last query sees every key",
            WrongAnswer("aligned top-left", "alignment", {" + (n_k - n_q)": ""}),
            WrongAnswer("shifted the wrong way", "alignment", {"(n_k - n_q)": "(n_q - n_k)"}),
        ),
        *caught_by(
            "more queries than keys: the first queries see none",
            WrongAnswer("shift never negative", "negative", {"(n_k - n_q)": "max(n_k - n_q, 0)"}),
        ),
        *caught_by(
            "the mask is an array of bool",
            WrongAnswer(
                "zeros and ones",
                "bool",
                {"return np": "return 1.0 * (np", "(n_k - n_q)": "(n_k - n_q))"},
            ),
        ),
    ),
    right_answers=(
        Variant("np.tri", function=lambda n_q, n_k: np.tri(n_q, n_k, n_k - n_q, dtype=bool)),
        Variant(
            "pair by pair, from the end",
            function=lambda n_q, n_k: np.array([[n_k - 1 - j >= n_q - 1 - i for j in range(n_k)] for i in range(n_q)]),
        ),
    ),
)


def multi_head_attention(X, Wq, Wk, Wv, Wo, n_heads, causal=False):
    """Multi-head attention of a sequence with itself.

    X: [n, d_model]. Wq, Wk, Wv, Wo: [d_model, d_model]; n_heads divides d_model, and d = d_model / n_heads.
    The queries of all heads are X @ Wq: head h has its columns h d to (h + 1) d - 1. Keys and values likewise,
        with Wk and Wv. Each head attends by itself, with scale 1 / sqrt(d), causal or not. The heads' outputs
        [n, d], side by side in the same order, make [n, d_model], and that times Wo is the result.
    Returns [n, d_model] in float32 or float64. The inputs are not modified.

    >>> X = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> I = np.eye(2)
    >>> print(multi_head_attention(X, I, I, I, 2 * I, n_heads=2).round(4))
    [[1.4621 1.    ]
     [1.     1.4621]]
    """
    n, d_model = X.shape
    d = d_model // n_heads
    # [n, d_model] -> [n_heads, n, d]: cut each row into heads, then bring the heads to the front.
    Q, K, V = ((X @ W).reshape(n, n_heads, d).transpose(1, 0, 2) for W in (Wq, Wk, Wv))
    S = Q @ K.transpose(0, 2, 1) / np.sqrt(d)  # [n_heads, n, d] @ [n_heads, d, n]
    if causal:
        S = np.where(np.tri(n, dtype=bool), S, -np.inf)
    P = np.exp(S - S.max(axis=-1, keepdims=True))
    O = P / P.sum(axis=-1, keepdims=True) @ V  # [n_heads, n, n] @ [n_heads, n, d]
    return O.transpose(1, 0, 2).reshape(n, d_model) @ Wo


NO_WO = "the product with Wo is missing"
ONE_HEAD = "all columns are taken as one head"
INTERLEAVED = "head h takes every n_heads-th column instead of d columns side by side"
NOT_TRANSPOSED = "rows are cut into heads by a reshape alone, which mixes the positions"
MODEL_SCALE = "the scale is 1/sqrt(d_model) instead of 1/sqrt(d)"


def multi_head(X, Wq, Wk, Wv, Wo, n_heads, causal, *, columns=None, scale=None, magnitude=False):
    """Head by head, with the reference. columns: head -> its columns; None for those side by side."""
    Q, K, V = X @ Wq, X @ Wk, abs(X) @ abs(Wv) if magnitude else X @ Wv
    d = X.shape[1] // n_heads
    O = np.empty_like(V)
    for h in range(n_heads):
        head = columns(h) if columns else slice(h * d, (h + 1) * d)
        O[:, head] = reference.attention(
            *(np.ascontiguousarray(x[:, head]) for x in (Q, K, V)), causal=causal, scale=scale
        )
    return O @ abs(Wo) if magnitude else O @ Wo


def multi_head_parts(X, Wq, Wk, Wv, Wo, n_heads, causal):
    arguments = X, Wq, Wk, Wv, Wo
    exact, plain = exact_and_plain(lambda *a: multi_head(*a, n_heads, causal), *arguments)

    def not_transposed():
        n, d_model = X.shape
        Q, K, V = ((X @ W).reshape(n_heads, n, d_model // n_heads) for W in (Wq, Wk, Wv))
        heads = [reference.attention(q, k, v, causal=causal) for q, k, v in zip(Q, K, V, strict=True)]
        return np.stack(heads).reshape(n, d_model) @ Wo

    def readings():
        found = {NO_WO: multi_head(X, Wq, Wk, Wv, np.eye(len(Wo)), n_heads, causal)}
        if causal:
            found[NOT_CAUSAL] = multi_head(*arguments, n_heads, False)
        if n_heads > 1:
            found |= {
                ONE_HEAD: multi_head(*arguments, 1, causal),
                MODEL_SCALE: multi_head(*arguments, n_heads, causal, scale=X.shape[1] ** -0.5),
                INTERLEAVED: multi_head(*arguments, n_heads, causal, columns=lambda h: slice(h, None, n_heads)),
                NOT_TRANSPOSED: not_transposed(),
            }
        return found

    terms = multi_head(*arguments, n_heads, causal, magnitude=True)
    return [Part("the output", exact, plain, terms, readings)]


def multi_head_case(seed, n, d_model, n_heads, causal=False):
    rng = np.random.default_rng(seed)
    X, *weights = (
        rng.integers(-3, 4, shape).astype(np.float64) / 2 for shape in ((n, d_model), *[(d_model, d_model)] * 4)
    )
    names = ("Wq", "Wk", "Wv", "Wo")
    return {"X": X, **dict(zip(names, weights, strict=True)), "n_heads": n_heads, "causal": causal}


def draw_multi_head(n_heads, *, causal=False):
    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(draw):
            n, d_model = draw(st.integers(1, 3)), n_heads * draw(st.integers(1, 2))
            small = st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5])
            X, *weights = (arrays(draw, rows, d_model, of=small) for rows in (n, *[d_model] * 4))
            names = ("Wq", "Wk", "Wv", "Wo")
            return {"X": X, **dict(zip(names, weights, strict=True)), "n_heads": n_heads, "causal": causal}

        return inputs()

    return draw


HEADS_CALL = "multi_head_attention(X, Wq, Wk, Wv, Wo, n_heads, causal)"

HEADS = Exercise(
    id="04.multi_head_attention",
    title="Several heads",
    points=3,
    minutes=14,
    difficulty="hard",
    answer=multi_head_attention,
    hints=(
        "With 2 heads and d_model = 4: which columns of X @ Wq are head 0's queries? What is the shape of all heads' "
        "scores together?",
        "A loop over heads, with columns h d to (h + 1) d - 1 of Q, K and V, and the attention that you have written "
        "already, is a right answer. Put the outputs side by side before Wo.",
        "Q = X @ Wq and so on; d = d_model // n_heads; for each head, attention of Q[:, h*d:(h+1)*d] and the same "
        "columns of K and V; np.concatenate(outputs, axis=1) @ Wo.",
    ),
    reasoning="A head is attention on d columns of its own: softmax is taken head by head, so two heads can look at "
    "two different places, which one head of twice the width cannot. In memory a row holds its heads side by side. "
    "reshape(n, n_heads, d) cuts each row, and the transpose brings the heads to the front without mixing positions; "
    "reshape(n_heads, n, d) would take whole rows for a head. Wo mixes the heads' outputs; without it, head h could "
    "only ever reach its own columns.",
    properties=(
        Property(
            "one head: attention of X Wq, X Wk, X Wv, times Wo",
            HEADS_CALL,
            agrees(multi_head_parts),
            (multi_head_case(1, 3, 2, 1),),
            draw_multi_head(1),
            {f"the output: {NO_WO}": "wo", "": "weights"},
        ),
        Property(
            "two heads: each attends with its own d columns",
            HEADS_CALL,
            agrees(multi_head_parts),
            (multi_head_case(2, 3, 4, 2),),
            draw_multi_head(2),
            {
                f"the output: {ONE_HEAD}": "one_head",
                f"the output: {INTERLEAVED}": "columns",
                f"the output: {NOT_TRANSPOSED}": "transpose",
                f"the output: {MODEL_SCALE}": "head_dim",
                "": "columns",
            },
        ),
        Property(
            "causal: every head hides what comes later",
            HEADS_CALL,
            agrees(multi_head_parts),
            (multi_head_case(3, 4, 4, 2, causal=True),),
            draw_multi_head(2, causal=True),
            {"": "causal"},
        ),
        not_modified(HEADS_CALL, (multi_head_case(4, 3, 4, 2),)),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "wo": "The heads' outputs lie side by side. One matrix is left that mixes them.",
        "weights": "Queries come from Wq, keys from Wk, values from Wv. Set three of them to the identity and see "
        "which one your answer does not use.",
        "one_head": "Softmax is taken for each head by itself. Where does n_heads enter your scores?",
        "columns": "Head 0 has the columns 0 to d - 1, head 1 the next d: a slice h * d : (h + 1) * d, on the way in "
        "and on the way out.",
        "transpose": "reshape(n_heads, n, d) cuts the matrix into groups of rows: a head would then get some "
        "positions, not some columns. reshape(n, n_heads, d) cuts the columns; then move the axis of heads.",
        "head_dim": "A head's dot product has d terms, not d_model. What does its spread grow with?",
        "causal": "Is the mask applied to the scores of every head, before the softmax?",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "one head: attention of X Wq, X Wk, X Wv, times Wo",
            WrongAnswer("Wo forgotten", "wo", {" @ Wo": ""}),
            WrongAnswer("keys made with Wq", "weights", {"for W in (Wq, Wk, Wv)": "for W in (Wq, Wq, Wv)"}),
        ),
        *caught_by(
            "two heads: each attends with its own d columns",
            WrongAnswer("one head for all columns", "one_head", {"X.shape\n": "X.shape\n    n_heads = 1\n"}),
            WrongAnswer(
                "heads interleaved",
                "columns",
                {
                    "(n, n_heads, d).transpose(1, 0, 2) for": "(n, d, n_heads).transpose(2, 0, 1) for",
                    "O.transpose(1, 0, 2)": "O.transpose(1, 2, 0)",
                },
            ),
            WrongAnswer(
                "reshape without transpose",
                "transpose",
                {
                    ".reshape(n, n_heads, d).transpose(1, 0, 2) for W": ".reshape(n_heads, n, d) for W",
                    "O.transpose(1, 0, 2)": "O",
                },
            ),
            WrongAnswer("scale of the whole model", "head_dim", {"np.sqrt(d)": "np.sqrt(d_model)"}),
        ),
        *caught_by(
            "causal: every head hides what comes later",
            WrongAnswer("causal ignored", "causal", {"if causal:": "if False:"}),
        ),
        *caught_by(
            "the inputs are not modified",
            WrongAnswer(
                "adds the result to X in place",
                "modified",
                {
                    "return O.transpose(1, 0, 2).reshape(n, d_model) @ Wo": (
                        "result = O.transpose(1, 0, 2).reshape(n, d_model) @ Wo\n    X += result\n    return result"
                    )
                },
            ),
        ),
    ),
    right_answers=(
        Variant("head by head", function=lambda *arguments: _heads_in_a_loop(*arguments)),
        Variant("a sum over heads, each with its rows of Wo", function=lambda *arguments: _heads_summed(*arguments)),
    ),
)


def _heads_in_a_loop(X, Wq, Wk, Wv, Wo, n_heads, causal):
    d = X.shape[1] // n_heads
    columns = [slice(h * d, (h + 1) * d) for h in range(n_heads)]
    heads = [_attention_by_query(*((X @ W)[:, c] for W in (Wq, Wk, Wv)), causal) for c in columns]
    return np.concatenate(heads, axis=1) @ Wo


def _heads_summed(X, Wq, Wk, Wv, Wo, n_heads, causal):
    total = 0
    for q, k, v, o in zip(*(np.split(W, n_heads, axis=1) for W in (Wq, Wk, Wv)), np.split(Wo, n_heads), strict=True):
        total = total + attention(X @ q, X @ k, X @ v, causal) @ o
    return total


def standard_attention_bytes(n, d, bytes_per_element):
    """Bytes that standard attention moves between HBM and SRAM, stage by stage, for one head.

    n: queries, and as many keys; d: head_dim; bytes_per_element: 2 for fp16, 4 for fp32. Whole numbers.
    Returns a dict of six whole numbers, in bytes: "S written", "S read", "P written", "P read",
        "Q K V read" (all three together) and "O written". Each element is read or written once a stage.

    >>> standard_attention_bytes(4, 2, 8)["S written"]
    128
    """
    square = n * n * bytes_per_element
    matrix = n * d * bytes_per_element
    return {
        "S written": square,
        "S read": square,
        "P written": square,
        "P read": square,
        "Q K V read": 3 * matrix,
        "O written": matrix,
    }


IN_ELEMENTS = "elements are counted, not bytes"
IN_BITS = "bits are counted, not bytes"
HALF_SQUARE = "only half of the square is counted"
TWO_OF_THREE = "only two of Q, K and V are counted"
ONE_OF_THREE = "only one of Q, K and V is counted"
AS_SCORES = "S is given the size of Q"


def stages_of(n, d, bytes_per_element):
    """The six stages, from the closed form's bytes by tensor."""
    moved = traffic.standard_attention(n, n, d, dtype_bytes=bytes_per_element).by_tensor
    return {
        "S written": moved["S"].write_bytes,
        "S read": moved["S"].read_bytes,
        "P written": moved["P"].write_bytes,
        "P read": moved["P"].read_bytes,
        "Q K V read": sum(moved[name].read_bytes for name in "QKV"),
        "O written": moved["O"].write_bytes,
    }


def stage_part(name, n_bytes, n, d, bytes_per_element):
    exact = np.float64(n_bytes)

    def readings():
        found = {IN_ELEMENTS: exact / bytes_per_element, IN_BITS: 8 * exact}
        if name[0] in "SP":
            found |= {AS_SCORES: exact * d / n, HALF_SQUARE: exact / 2}
        elif name == "Q K V read":
            found |= {TWO_OF_THREE: exact * 2 / 3, ONE_OF_THREE: exact / 3}
        return found

    return Part(name, exact, exact, exact, readings)


def right_stages(names):
    """A test: the returned dict has these of the six stages right."""

    def test(answer, n, d, bytes_per_element):
        returned = answer(n, d, bytes_per_element)
        expected = stages_of(n, d, bytes_per_element)
        if not isinstance(returned, dict):
            return compare(returned, [Part("a dict", np.zeros(6), np.zeros(6), 1.0)]) or Evidence(
                (Finding("", "type", "the answer returned no dict"),)
            )
        if set(returned) != set(expected):
            missing, unknown = sorted(set(expected) - set(returned)), sorted(map(str, set(returned) - set(expected)))
            text = "".join(
                f"the dict {what} {', '.join(map(repr, keys))}. "
                for what, keys in (("lacks", missing), ("has a stage that is none:", unknown))
                if keys
            ).strip()
            return Evidence((Finding("", "stages", text),), ", ".join(map(str, returned)), ", ".join(expected))
        parts = [stage_part(name, expected[name], n, d, bytes_per_element) for name in names]
        findings = []
        for part in parts:
            found = compare(returned[part.name], [part])
            findings += found.findings if found else ()
        if not findings:
            return None
        shown = ("; ".join(f"{name}: {show(table[name])}" for name in names) for table in (returned, expected))
        return Evidence(tuple(findings), *shown)

    return test


def whole_stages(answer, n, d, bytes_per_element):
    returned = answer(n, d, bytes_per_element)
    names = [name for name, value in returned.items() if not isinstance(value, number_types.Integral)]
    if not names:
        return None
    text = f"{names[0]} came back as {type(returned[names[0]]).__name__}, not as an int"
    return Evidence((Finding("", "float", text),))


def stage_sizes(n, d, bytes_per_element):
    return {"n": n, "d": d, "bytes_per_element": bytes_per_element}


def draw_stage_sizes():
    from hypothesis import strategies as st

    return st.fixed_dictionaries(
        {"n": st.integers(1, 64), "d": st.integers(1, 64), "bytes_per_element": st.sampled_from([2, 4, 8])}
    )


SQUARES = ("S written", "S read", "P written", "P read")
MATRICES = ("Q K V read", "O written")
BYTES_CALL = "standard_attention_bytes(n, d, bytes_per_element)"


def square_signatures(kind):
    """The same slip in all four is one mistake, and so is one in S or in P alone."""
    groups = (SQUARES, SQUARES[:2], SQUARES[2:], *((name,) for name in SQUARES))
    return [f"{' '.join(names)}: {kind}" for names in groups]


BYTES = Exercise(
    id="04.standard_attention_bytes",
    title="The bytes of standard attention",
    points=2,
    minutes=8,
    difficulty="easy",
    answer=standard_attention_bytes,
    hints=(
        "How many elements has S, how many P, how many Q? How often does each of them travel between HBM and SRAM, "
        "and in which direction?",
        "S is written by the first pass and read by the second; P is written by the second and read by the third. "
        "Four trips of n n elements each. Q, K, V and O make one trip each.",
        "square = n * n * bytes_per_element for each of the first four, 3 * n * d * bytes_per_element for Q, K and V, "
        "n * d * bytes_per_element for O; return them in a dict with the six names.",
    ),
    reasoning="Three passes, each of which reads what it needs from HBM and writes its result back: S = Q K^T reads Q "
    "and K and writes S; the softmax reads S and writes P; O = P V reads P and V and writes O. In elements that is 4 "
    "n n + 4 n d. Every byte count comes from a count of elements and a dtype, so the size of an element is an "
    "argument and not a constant.",
    properties=(
        Property(
            "S and P: written once and read once, n n elements each",
            BYTES_CALL,
            right_stages(SQUARES),
            (stage_sizes(4, 2, 8), stage_sizes(1024, 64, 2)),
            draw_stage_sizes,
            {key: "elements" for key in square_signatures(IN_ELEMENTS)}
            | {key: "bits" for key in square_signatures(IN_BITS)}
            | {key: "square" for key in square_signatures(AS_SCORES)}
            | {": stages": "stages", "P read": "fused", "": "square"},
        ),
        Property(
            "Q, K and V read, O written: n d elements each",
            BYTES_CALL,
            right_stages(MATRICES),
            (stage_sizes(4, 2, 8), stage_sizes(1024, 64, 2)),
            draw_stage_sizes,
            {"Q K V read": "three", "O written": "output", "": "three"},
        ),
        Property(
            "131072 tokens do not overflow",
            BYTES_CALL,
            right_stages(SQUARES + MATRICES),
            (stage_sizes(131072, 128, 4),),
            hints={"": "overflow"},
        ),
        Property(
            "the bytes are whole numbers, of type int",
            BYTES_CALL,
            whole_stages,
            (stage_sizes(3, 5, 2),),
            hints={": float": "whole"},
        ),
    ),
    mistakes={key: text for key, text in SHARED_MISTAKES.items() if key != "modified"}
    | {
        "stages": "The six names stand in the docstring. Copy them, blanks and all.",
        "elements": "That is the number of elements. How many bytes has each of them?",
        "bits": "bytes_per_element is in bytes already: 2 for fp16, which has 16 bits.",
        "square": "S has a row for every query and a column for every key, and a mask skips none of them.",
        "fused": "The third pass multiplies P by V. Where does it find P?",
        "three": "Three matrices are read besides S and P. Name them, and the pass that needs each.",
        "output": "O has a row for every query, as long as a value. It is written once.",
        "overflow": "An int32 ends at 2147483647. Python's own int does not end.",
        "whole": "Bytes come in whole numbers: no / and no float factor in the formula.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "S and P: written once and read once, n n elements each",
            WrongAnswer("S counted in elements", "elements", {"n * n * bytes_per_element": "n * n"}),
            WrongAnswer("counted in bits", "bits", {"n * n * bytes_per_element": "n * n * bytes_per_element * 8"}),
            WrongAnswer("S of the size of Q", "square", {"n * n *": "n * d *"}),
            WrongAnswer("P stays in SRAM", "fused", {'"P read": square': '"P read": 0'}),
            WrongAnswer("a stage left out", "stages", {'        "O written": matrix,\n': ""}),
        ),
        *caught_by(
            "Q, K and V read, O written: n d elements each",
            WrongAnswer("K forgotten", "three", {"3 * matrix": "2 * matrix"}),
            WrongAnswer("O never leaves", "output", {'"O written": matrix': '"O written": 0'}),
        ),
        *caught_by(
            "131072 tokens do not overflow",
            WrongAnswer(
                "int32",
                "overflow",
                {"n * n * bytes_per_element": "np.prod([n, n, bytes_per_element], dtype=np.int32)"},
            ),
        ),
        *caught_by(
            "the bytes are whole numbers, of type int",
            WrongAnswer("floats", "whole", {"n * d * bytes_per_element": "n * d * bytes_per_element / 1"}),
        ),
    ),
    right_answers=(
        Variant("counted from shapes", function=lambda *sizes: _bytes_from_arrays(*sizes)),
        Variant("int64", {"n * n * bytes": "np.int64(n) * n * bytes", "n * d * bytes": "np.int64(n) * d * bytes"}),
    ),
)


def _bytes_from_arrays(n, d, bytes_per_element):
    element = np.zeros((), f"V{bytes_per_element}")
    square, matrix = (np.broadcast_to(element, shape).nbytes for shape in ((n, n), (n, d)))
    moved = {f"{name} {way}": square for name in "SP" for way in ("written", "read")}
    return {"O written": matrix, "Q K V read": matrix + matrix + matrix} | moved


EXERCISES = (MASK, ATTENTION, HEADS, BYTES)


def _option(answer, correct, feedback):
    return {"answer": answer, "correct": correct, "feedback": feedback}


QUIZ = [
    {
        "question": "3 queries continue a text of 10 tokens, the last 3 of which are theirs. How many keys does the "
        "first of these queries see, under a causal mask?",
        "type": "multiple_choice",
        "answers": [
            _option("1", False, "That is top-left alignment: it would forget the text before the queries."),
            _option("8", True, "It stands at position 7, counted from 0, and sees positions 0 to 7."),
            _option("10", False, "Only the last query sees all of them."),
        ],
    },
    {
        "question": "A model of width 1024 goes from 8 heads to 16. What happens to the memory for S, and to the FLOPs "
        "of the two products?",
        "type": "multiple_choice",
        "answers": [
            _option("Both double", False, "A head's d is halved, so its FLOPs are, too."),
            _option("Neither changes", False, "There is one matrix S for each head."),
            _option("The memory doubles, the FLOPs stay", True, "heads n n elements, but 4 heads n n d = 4 n n 1024."),
        ],
    },
    {
        "question": "A table says: standard attention at N = 1024, d = 64 moves 17.8 MB. What is missing?",
        "type": "multiple_choice",
        "answers": [
            _option("The dtype: in fp32 it does, in fp16 it is half", True, "Elements are counted; bytes follow."),
            _option("The number of GPUs", False, "What one head asks for does not depend on them."),
            _option("Nothing", False, "It is right for fp32, and twice too much for fp16."),
        ],
    },
    {
        "question": "In fp16 with d = 64, standard attention does about 30 FLOPs for each byte, and an H100's "
        "ridge is at 295. What would make it faster?",
        "type": "multiple_choice",
        "answers": [
            _option("Faster tensor cores", False, "They wait already: about nine tenths of the time."),
            _option("A causal mask", False, "In the three passes it hides scores and moves as many bytes as before."),
            _option("Moving fewer bytes", True, "The time goes into moving S and P, so they should not be moved."),
        ],
    },
    {
        "question": "An A100's 108 SMs have 164 KiB of shared memory each. How large may the tiles of one program be?",
        "type": "multiple_choice",
        "answers": [
            _option("17 MiB, all of it together", False, "An SM cannot reach the shared memory of all others."),
            _option("163 KiB", True, "One program runs on one SM, and 1 KiB there is the system's."),
            _option("40 MiB, as much as L2 has", False, "L2 is shared by all SMs, and no program's to command."),
        ],
    },
]
