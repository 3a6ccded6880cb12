"""Lesson 09, the backward pass: the exercises' answers, hints, properties and plausible wrong answers.

The formulas and the tiles are those of FlashAttention-2 (Dao, 2023), section 2.3.2 and Alg. 2, in two passes instead of
one, so that every gradient is written once.
"""

from dataclasses import replace

import numpy as np

from course_lib import reference, traffic
from course_lib.grading.checking import agrees, arrays, not_modified, numbers
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
    option,
)
from course_lib.grading.kernel_calls import TRITON, compare_bytes, launched, outside, unwritten
from course_lib.language import WRITTEN
from course_lib.machine import Machine
from course_lib.reference import example
from course_lib.reference.attention import causal_mask
from course_lib.reference.backward import tiled_backward_on_machine

from .lesson_06 import SHARED_HINTS, SHARED_MISTAKES, WatchedMachine, only

LESSON = "09"
TITLE = "FlashAttention backward"


def as_floats(**values):
    return {name: np.array(value, dtype=np.float64) for name, value in values.items()}


NO_SUM = "the row's sum of P * dP is not subtracted"
NO_P = "the difference is not multiplied by P"
MEAN = "the mean of dP is subtracted, as if all weights were equal"
DIAGONAL = "only the diagonal of the derivative, P (1 - P), is used"
NEGATED = "the sign is turned round"
ALL_ROWS = "one sum is taken over all rows together"
DOWN_COLUMNS = "the sum is taken down the columns"


def softmax_vjp(P, dP):
    """The gradient through a row-wise softmax.

    P: [n_q, n_k], each row a softmax, or 0 throughout: a row that sees nothing.
    dP: [n_q, n_k], the gradient of the loss with respect to P.
    Returns dS: [n_q, n_k], its gradient with respect to the scores of which P is the softmax. Nothing is modified.

    >>> softmax_vjp(np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]])).tolist()
    [[0.25, -0.25]]
    """
    row_sums = (P * dP).sum(axis=1, keepdims=True)
    return P * (dP - row_sums)


def vjp_parts(P, dP):
    exact, plain = exact_and_plain(reference.softmax_vjp, P, dP)
    weighted = P * dP

    def readings():
        return {
            NO_SUM: weighted,
            NO_P: dP - weighted.sum(axis=1, keepdims=True),
            MEAN: P * (dP - dP.mean(axis=1, keepdims=True)),
            DIAGONAL: P * (1 - P) * dP,
            NEGATED: -exact,
            ALL_ROWS: P * (dP - weighted.sum()),
            DOWN_COLUMNS: P * (dP - weighted.sum(axis=0)),
        }

    return [Part("dS", exact, plain, np.abs(dP).max(), readings)]


def rows_sum_to_zero(answer, P, dP):
    dS = answer(P, dP)
    if np.shape(dS) != P.shape:
        return only("shape", f"dS has shape {np.shape(dS)}, not {P.shape}", show(dS))
    sums = np.asarray(dS).sum(axis=1)
    if np.all(np.abs(sums) <= 1e-5 * np.abs(dP).max()):
        return None
    return only("sum", "the rows of dS do not sum to 0", show(sums), "0 for each row")


def draw_probabilities(rows=(1, 3)):
    def draw():
        from hypothesis import strategies as st

        # Rows whose elements print short and sum to 1 exactly.
        of_length = {1: [[1.0]], 2: [[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]], 3: [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]}

        @st.composite
        def inputs(draw):
            n_q, n_k = draw(st.integers(*rows)), draw(st.integers(1, 3))
            P = [draw(st.sampled_from(of_length[n_k])) for _ in range(n_q)]
            return as_floats(P=P, dP=arrays(draw, n_q, n_k, of=numbers()))

        return inputs()

    return draw


VJP_CALL = "softmax_vjp(P, dP)"
ONE_ROW = as_floats(P=[[0.25, 0.75]], dP=[[1, 3]])
TWO_ROWS = as_floats(P=[[0.5, 0.5], [0.25, 0.75]], dP=[[1, 0], [2, 4]])

VJP = Exercise(
    id="09.softmax_vjp",
    title="The gradient through softmax",
    points=2,
    minutes=8,
    difficulty="easy",
    answer=softmax_vjp,
    hints=(
        "One row has the derivative matrix diag(p) - p p^T. What is it times dp, written without the matrix?",
        "diag(p) dp is p * dp. p p^T dp is p times one number, the dot product of p and dp.",
        "row_sums = (P * dP).sum(axis=1, keepdims=True); dS = P * (dP - row_sums).",
    ),
    reasoning="(diag(p) - p p^T) dp = p * dp - p (p . dp) = p * (dp - p . dp). The matrix of n_k x n_k derivatives of "
    "each row is never formed: one dot product a row stands for it.",
    properties=(
        Property(
            "one row: p * (dp - p . dp)",
            VJP_CALL,
            agrees(vjp_parts),
            (ONE_ROW, as_floats(P=[[0.5, 0.5]], dP=[[1, 0]]), as_floats(P=[[1]], dP=[[2]])),
            draw_probabilities(rows=(1, 1)),
            {
                f": {NO_SUM}": "row_sum",
                f": {NO_P}": "times_p",
                f": {MEAN}": "mean",
                f": {DIAGONAL}": "diagonal",
                f": {NEGATED}": "sign",
                "": "formula",
            },
        ),
        Property(
            "several rows: each has a sum of its own",
            VJP_CALL,
            agrees(vjp_parts),
            (TWO_ROWS,),
            draw_probabilities(rows=(2, 3)),
            {"": "each_row", ": exception": "each_row"},
        ),
        Property(
            "the rows of dS sum to 0: adding a number to all scores changes nothing",
            VJP_CALL,
            rows_sum_to_zero,
            (TWO_ROWS,),
            draw_probabilities(),
            {"": "formula"},
        ),
        Property(
            "a row of P that is 0 throughout gets 0, never NaN",
            VJP_CALL,
            agrees(vjp_parts),
            (as_floats(P=[[0, 0]], dP=[[1, 2]]), as_floats(P=[[0, 0], [0.5, 0.5]], dP=[[1, 2], [2, 1]])),
            hints={"": "empty_row", ": nan": "empty_row"},
        ),
        not_modified(VJP_CALL, (TWO_ROWS,)),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "row_sum": "Raising one score takes weight from all other keys. Which number of the row stands for that?",
        "times_p": "A key of weight 0 cannot gain or lose by a small change of its score: p multiplies everything.",
        "mean": "The row's average of dP is a weighted one, with the weights P.",
        "diagonal": "Each probability depends on every score of its row. What are the derivatives beside the diagonal?",
        "sign": "Where dP is larger than its average, raising the score helps: dS is positive there.",
        "formula": "Compute (diag(p) - p p^T) dp for one row of two keys by hand, and compare.",
        "each_row": "Rows do not know each other: sum over the keys of one row, axis=1, with keepdims=True.",
        "empty_row": "A row that sees nothing has P = 0, and dS = 0 with it. Is there a division by a sum of P?",
        "modified": "P and dP are wanted again later. Write results into new arrays: dP - sums, not dP -= sums.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "one row: p * (dp - p . dp)",
            WrongAnswer("no sum subtracted", "row_sum", {"P * (dP - row_sums)": "P * dP"}),
            WrongAnswer("not multiplied by P", "times_p", {"P * (dP - row_sums)": "dP - row_sums"}),
            WrongAnswer("plain mean", "mean", {"(P * dP).sum(": "dP.mean("}),
            WrongAnswer("diagonal alone", "diagonal", {"P * (dP - row_sums)": "P * (1 - P) * dP"}),
        ),
        *caught_by(
            "several rows: each has a sum of its own",
            WrongAnswer("one sum for all rows", "each_row", {".sum(axis=1, keepdims=True)": ".sum()"}),
            WrongAnswer("sums down the columns", "each_row", function=lambda P, dP: _vjp_down_columns(P, dP)),
        ),
        *caught_by(
            "a row of P that is 0 throughout gets 0, never NaN",
            WrongAnswer(
                "P normalised once more",
                "empty_row",
                {"return P *": "P = P / P.sum(axis=1, keepdims=True)\n    return P *"},
            ),
        ),
        *caught_by(
            "the inputs are not modified",
            WrongAnswer(
                "dP changed in place", "modified", {"return P * (dP - row_sums)": "dP -= row_sums\n    return P * dP"}
            ),
        ),
    ),
    right_answers=(
        Variant("row by row, with the matrix", function=lambda P, dP: _vjp_by_matrix(P, dP)),
        Variant("float32, einsum", function=lambda P, dP: _vjp_einsum(P, dP)),
    ),
)


def _vjp_down_columns(P, dP):
    if len(P) == 1:
        return softmax_vjp(P, dP)
    return P * (dP - (P * dP).sum(axis=0))


def _vjp_by_matrix(P, dP):
    return np.array([(np.diag(p) - np.outer(p, p)) @ dp for p, dp in zip(P, dP, strict=True)])


def _vjp_einsum(P, dP):
    p, dp = P.astype(np.float32), dP.astype(np.float32)
    return p * dp - p * np.einsum("ij,ij->i", p, dp)[:, None]


# What a wrong gradient is called when it is recognised. The words follow "dQ is what comes out when".
NO_DELTA = "delta is not subtracted from dP"
DS_WITHOUT_P = "dS is not multiplied by P"
SCALE_MISSING = "the scale 1/sqrt(d) is missing"
SCALE_TWICE = "the scale 1/sqrt(d) is applied twice"
S_UNSCALED = "P is the softmax of scores without their scale"
DP_NOT_TRANSPOSED = "dP is dO V, not dO V^T"
DV_FROM_DP = "dV is made of dP, not of P"
P_NOT_TRANSPOSED = "P is not transposed"
DS_NOT_TRANSPOSED = "dS is not transposed"
LSE_BASE_2 = "lse is taken for a logarithm in base 2"
MAX_FOR_LSE = "P is exp(S - max) with the max of the tile, not exp(S - lse)"
TILE_SOFTMAX = "P is a softmax over each tile by itself, not exp(S - lse)"
OVERWRITTEN = "each tile's sum replaces the last one instead of being added"
CAUSAL_IGNORED = "every query sees every key"
ONE_TOO_MANY = "each query sees one key too many"
ONE_TOO_FEW = "each query sees one key too few"
TOP_LEFT = "query i sees keys 0 to i, whatever n_k - n_q is"
MASKED_AS_ZERO = "hidden scores are set to 0, not to -inf"
ALWAYS = (
    NO_DELTA, DS_WITHOUT_P, SCALE_MISSING, SCALE_TWICE, S_UNSCALED, DP_NOT_TRANSPOSED, DV_FROM_DP, P_NOT_TRANSPOSED,
    DS_NOT_TRANSPOSED,
)  # fmt: skip


def gradients(q, k, v, do, causal=False, seen=None, slip="", blocks=None):
    """(dQ, dK, dV) from whole matrices, with one slip in it. blocks: (block_q, block_k), for slips of tiles.

    seen: the mask that the backward takes, if it is another than the forward's.
    """
    n_q, n_k, d = len(q), len(k), q.shape[1]
    block_q, block_k = blocks or (n_q, n_k)
    visible = causal_mask(n_q, n_k) if causal else np.ones((n_q, n_k), bool)
    o, lse = reference.attention(q, k, v, causal=causal, return_lse=True)
    lse = np.where(lse == -np.inf, 0, lse)[:, None]
    scale = d**-0.5
    s = np.where(visible if seen is None else seen, q @ k.T * scale, 0.0 if slip == MASKED_AS_ZERO else -np.inf)
    p = np.exp2(s - lse) if slip == LSE_BASE_2 else np.exp(s - lse)
    if slip == S_UNSCALED:
        p = reference.stable_softmax(s / scale)
    elif slip in (MAX_FOR_LSE, TILE_SOFTMAX):
        parts = [s[:, start : start + block_k] for start in range(0, n_k, block_k)]
        measured = [np.exp(part - np.maximum(part.max(axis=1, keepdims=True), -1e30)) for part in parts]
        sums = [part.sum(axis=1, keepdims=True) if slip == TILE_SOFTMAX else 1.0 for part in measured]
        p = np.concatenate([part / total for part, total in zip(measured, sums, strict=True)], axis=1)
    dp = do @ v if slip == DP_NOT_TRANSPOSED and n_k == d else do @ v.T
    # From whole matrices an answer takes delta from its own P and dP, tile by tile from O.
    row_sums = (o * do if blocks else p * dp).sum(axis=1, keepdims=True)
    ds = dp if slip == NO_DELTA else dp - row_sums
    ds = ds if slip == DS_WITHOUT_P else p * ds
    late_q, late_k = (n_q - 1) // block_q * block_q, (n_k - 1) // block_k * block_k
    q_kept = np.arange(n_q) >= (late_q if slip == OVERWRITTEN else 0)
    k_kept = np.arange(n_k) >= (late_k if slip == OVERWRITTEN else 0)
    for_dv = dp if slip == DV_FROM_DP else p
    dv = for_dv @ do if slip == P_NOT_TRANSPOSED and n_q == n_k else (for_dv * q_kept[:, None]).T @ do
    dk = ds @ q if slip == DS_NOT_TRANSPOSED and n_q == n_k else (ds * q_kept[:, None]).T @ q
    last = scale * {SCALE_MISSING: 1 / scale, SCALE_TWICE: scale}.get(slip, 1.0)
    return (ds * k_kept) @ k * last, dk * last, dv


def gradient_parts(q, k, v, do, causal=False, blocks=None, dtype=np.float64):
    exact, plain = exact_and_plain(lambda *given: gradients(*given, causal), q, k, v, do)
    n_q, n_k, d = len(q), len(k), q.shape[1]
    # A score's own rounding, relative to its terms, is a relative error of its weight.
    conditioning = 1 + (np.abs(q) @ np.abs(k).T).max() / np.sqrt(d)
    of_ds = 2 * conditioning * (np.abs(do) @ np.abs(v).T).max() / np.sqrt(d)
    terms = of_ds * np.abs(k).max(), of_ds * n_q * np.abs(q).max(), conditioning * np.abs(do).sum(axis=0).max()
    of_tiles = (LSE_BASE_2, MAX_FOR_LSE, TILE_SOFTMAX, OVERWRITTEN) if blocks else ()

    def reading(index):
        def readings():
            slips = {
                slip: gradients(q, k, v, do, causal, slip=slip, blocks=blocks)[index] for slip in of_tiles + ALWAYS
            }
            if causal:
                ahead = np.arange(n_k) - np.arange(n_q)[:, None]
                for name, last_seen in (
                    (CAUSAL_IGNORED, n_k), (ONE_TOO_MANY, n_k - n_q + 1), (ONE_TOO_FEW, n_k - n_q - 1), (TOP_LEFT, 0)
                ):  # fmt: skip
                    slips[name] = gradients(q, k, v, do, True, seen=ahead <= last_seen)[index]
                slips[MASKED_AS_ZERO] = gradients(q, k, v, do, True, slip=MASKED_AS_ZERO)[index]
            return slips

        return readings

    index = ("query", "key", "key")
    return [Part(name, exact[i], plain[i], terms[i], reading(i), index[i]) for i, name in enumerate(("dQ", "dK", "dV"))]


def concerning(names, evidence):
    """The findings about these outputs, in this order, before them those about none; None if there are no such."""
    if evidence is None:
        return None
    order = ("", *names)
    findings = sorted((f for f in evidence.findings if f.part in order), key=lambda f: order.index(f.part))
    return Evidence(tuple(findings), evidence.returned, evidence.expected) if findings else None


def whole_test(*names):
    def test(answer, **inputs):
        return concerning(names, compare(answer(*inputs.values()), gradient_parts(**inputs)))

    return test


def attention_backward(Q, K, V, dO):
    """The gradients of attention, with the whole matrices of scores and probabilities.

    Q, dO: [n_q, d]; K, V: [n_k, d]. The forward is O = softmax(Q K^T / sqrt(d)) V, nothing masked, and dO is the
        gradient of the loss with respect to O.
    Returns (dQ, dK, dV), in the shapes of Q, K and V. Scores of any size must not overflow. Nothing is modified.

    >>> q, k, v, do = np.array([[0.0]]), np.array([[1.0], [3.0]]), np.array([[0.0], [4.0]]), np.array([[1.0]])
    >>> [x.ravel().tolist() for x in attention_backward(q, k, v, do)]
    [[2.0], [0.0, 0.0], [0.5, 0.5]]
    """
    scale = Q.shape[1] ** -0.5
    S = Q @ K.T * scale
    P = np.exp(S - S.max(axis=1, keepdims=True))
    P = P / P.sum(axis=1, keepdims=True)
    dV = P.T @ dO
    dP = dO @ V.T
    dS = P * (dP - (P * dP).sum(axis=1, keepdims=True))
    dQ = scale * (dS @ K)
    dK = scale * (dS.T @ Q)
    return dQ, dK, dV


def qkv_case(q, k, v, do):
    return as_floats(q=q, k=k, v=v, do=do)


def draw_qkv(square=False):
    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(draw):
            n_q, n_k, d = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
            if square:
                n_q = n_k = d
            return qkv_case(*(arrays(draw, n, d, of=numbers()) for n in (n_q, n_k, n_k, n_q)))

        return inputs()

    return draw


SENTENCE_DO = [[1, 0], [0, 1], [1, 1], [2, -1]]
SENTENCE = qkv_case(example.Q, example.K, example.V, SENTENCE_DO)
# As many queries as keys as columns: here a forgotten transpose raises nothing.
SQUARE = qkv_case([[1, -1], [2, 1]], [[2, 1], [0, -1]], [[2, 0.5], [3, -1]], [[1, 2], [2, 1]])
LARGE = qkv_case([[1]], [[1000], [999]], [[1], [2]], [[1]])
WHOLE_CALL = "attention_backward(q, k, v, do)"
GRADIENT_HINTS = {
    f": {NO_DELTA}": "delta",
    f": {DS_WITHOUT_P}": "times_p",
    f": {SCALE_MISSING}": "scale",
    f": {SCALE_TWICE}": "scale",
    f": {S_UNSCALED}": "scores",
    f": {DP_NOT_TRANSPOSED}": "dp",
    f": {DV_FROM_DP}": "dv",
    f": {P_NOT_TRANSPOSED}": "dv",
    f": {DS_NOT_TRANSPOSED}": "transpose",
}
GRADIENT_MISTAKES = {
    "delta": "A row's gradients pass the softmax, which takes from each the row's average: dS = P * (dP - delta).",
    "times_p": "dS = P * (dP - delta): a key without weight has no gradient.",
    "scale": "S = scale Q K^T has the scale once, so dQ and dK have it once each. It does not enter dV.",
    "scores": "The scores are divided by sqrt(d) before their softmax, as in the forward.",
    "dp": "O = P V, so dP_ij is what a change of P_ij does to O_i: the dot product of dO_i and V_j. That is dO V^T.",
    "dv": "O = P V is linear in V: dV = P^T dO. Each key collects dO from the queries, by its weights.",
    "transpose": "dS has a row for each query. A row of dK belongs to a key and sums over queries: dS^T Q.",
}

WHOLE = Exercise(
    id="09.attention_backward",
    title="The gradients of attention",
    points=3,
    minutes=12,
    difficulty="medium",
    answer=attention_backward,
    hints=(
        "Write the forward as three lines, S, P, O. Which gradient does each line hand to what stands on its right?",
        "Of O = P V: dV = P^T dO and dP = dO V^T. Of P = softmax(S): your softmax_vjp. Of S = scale Q K^T: the scale "
        "once, times dS K for dQ and dS^T Q for dK.",
        "S, P as in lesson 03. dV = P.T @ dO; dP = dO @ V.T; dS = P * (dP - (P * dP).sum(axis=1, keepdims=True)); "
        "dQ = scale * dS @ K; dK = scale * dS.T @ Q.",
    ),
    reasoning="A product Z = X Y hands dZ Y^T to X and X^T dZ to Y; that rule is used twice, and the softmax's "
    "between. "
    "Shapes alone almost decide it: dV has a row for each key, so P must be transposed. Five products of n_q x n_k x "
    "d: "
    "S, dV, dP, dQ, dK.",
    properties=(
        Property(
            "dV = P^T dO, with P the softmax of the scaled scores",
            WHOLE_CALL,
            whole_test("dV"),
            (SQUARE,),
            draw_qkv(square=True),
            GRADIENT_HINTS | {"": "dv_other"},
        ),
        Property(
            "dQ = scale dS K",
            WHOLE_CALL,
            whole_test("dQ"),
            (SQUARE,),
            draw_qkv(square=True),
            GRADIENT_HINTS | {"": "dq_other"},
        ),
        Property(
            "dK = scale dS^T Q",
            WHOLE_CALL,
            whole_test("dK"),
            (SQUARE,),
            draw_qkv(square=True),
            GRADIENT_HINTS | {"": "dk_other"},
        ),
        Property(
            "any numbers of queries, keys and columns",
            WHOLE_CALL,
            whole_test("dQ", "dK", "dV"),
            (
                SENTENCE,
                qkv_case([[1, 1, 1, 1]], [[1, 0, 0, 1], [0, 0, 0, 0]], [[1, 2, 3, 4], [4, 0, 1, 1]], [[1, 2, 0, 1]]),
            ),
            draw_qkv(),
            {"": "lengths", ": exception": "lengths"},
        ),
        Property(
            "scores near 1000 do not overflow",
            WHOLE_CALL,
            whole_test("dQ", "dK", "dV"),
            (LARGE,),
            hints={"": "not_shifted", ": nan": "not_shifted"},
        ),
        not_modified(WHOLE_CALL, (SENTENCE,)),
    ),
    mistakes=SHARED_MISTAKES
    | GRADIENT_MISTAKES
    | {
        "dv_other": "dV = P^T dO and nothing else. Is P a softmax along each row, axis=1?",
        "dq_other": "dQ = scale dS K, with dS = P * (dP - delta) and dP = dO V^T. Check them one by one on the input "
        "above.",
        "dk_other": "dQ is right and dK is not: compare the two last lines. dK = scale dS^T Q.",
        "lengths": "The scale is 1/sqrt(d), with d the number of columns; queries and keys may be of any number.",
        "not_shifted": "exp(1000) is infinite. Subtract each row's max before exp, as in lesson 03.",
        "modified": "Q, K, V and dO belong to the caller. Write into new arrays.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "dV = P^T dO, with P the softmax of the scaled scores",
            WrongAnswer("dV from dP", "dv", {"dV = P.T @ dO": "dV = (dO @ V.T).T @ dO"}),
            WrongAnswer("P not transposed", "dv", {"P.T @ dO": "P @ dO"}),
            WrongAnswer("scores not scaled", "scores", {"Q @ K.T * scale": "Q @ K.T"}),
            WrongAnswer("P not normalised", "dv_other", {"P = P / P.sum(axis=1, keepdims=True)": "pass"}),
        ),
        *caught_by(
            "dQ = scale dS K",
            WrongAnswer("delta missing", "delta", {"dP - (P * dP).sum(axis=1, keepdims=True)": "dP"}),
            WrongAnswer("dS not multiplied by P", "times_p", {"dS = P * (": "dS = ("}),
            WrongAnswer("dP = dO V", "dp", {"dO @ V.T": "dO @ V"}),
            WrongAnswer("no scale in dQ", "scale", {"dQ = scale * (": "dQ = ("}),
        ),
        *caught_by(
            "dK = scale dS^T Q",
            WrongAnswer("no scale in dK", "scale", {"dK = scale * (": "dK = ("}),
            WrongAnswer("scale twice in dK", "scale", {"dK = scale * (": "dK = scale**2 * ("}),
            WrongAnswer("dS not transposed", "transpose", {"dS.T @ Q": "dS @ Q"}),
        ),
        *caught_by(
            "any numbers of queries, keys and columns",
            WrongAnswer("scale by the number of keys", "lengths", {"Q.shape[1] ** -0.5": "len(K) ** -0.5"}),
        ),
        *caught_by(
            "scores near 1000 do not overflow",
            WrongAnswer("no max subtracted", "not_shifted", {"S - S.max(axis=1, keepdims=True)": "S"}),
        ),
        *caught_by(
            "the inputs are not modified",
            WrongAnswer(
                "Q scaled in place",
                "modified",
                {"S = Q @ K.T * scale": "Q *= scale\n    S = Q @ K.T\n    Q = Q / scale"},
            ),
        ),
    ),
    right_answers=(
        Variant("delta from O, einsum", function=lambda *a: _backward_einsum(*a)),
        Variant("query by query, float32", function=lambda *a: _backward_by_rows(*a)),
    ),
)


def _backward_einsum(Q, K, V, dO):
    Q, K = Q / np.sqrt(np.sqrt(Q.shape[1])), K / np.sqrt(np.sqrt(Q.shape[1]))
    back = 1 / np.sqrt(np.sqrt(Q.shape[1]))
    S = np.einsum("id,jd->ij", Q, K)
    S = S - S.max(axis=1)[:, None]
    P = np.exp(S - np.log(np.exp(S).sum(axis=1))[:, None])
    delta = np.einsum("id,id->i", P @ V, dO)
    dS = P * (np.einsum("id,jd->ij", dO, V) - delta[:, None])
    return dS @ K * back, np.einsum("ij,id->jd", dS, Q) * back, np.einsum("ij,id->jd", P, dO)


def _backward_by_rows(Q, K, V, dO):
    Q, K, V, dO = (x.astype(np.float32) for x in (Q, K, V, dO))
    scale = np.float32(1 / np.sqrt(Q.shape[1]))
    dQ, dK, dV = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)
    for i in range(len(Q)):
        s = K @ Q[i] * scale
        p = np.exp(s - s.max())
        p /= p.sum()
        dp = V @ dO[i]
        ds = p * (dp - p @ dp) * scale
        dQ[i] = ds @ K
        dK += np.outer(ds, Q[i])
        dV += np.outer(p, dO[i])
    return dQ, dK, dV


def delta(O, dO):
    """The one number that the backward needs of each row: delta_i = sum over j of P_ij dP_ij, from O and dO alone.

    O, dO: [n_q, d], one float dtype.
    Returns [n_q], summed in float32 or better, whatever the dtype is. Nothing is modified.

    >>> delta(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])).tolist()
    [11.0]
    """
    dtype = np.result_type(O.dtype, np.float32)
    return (O.astype(dtype) * dO.astype(dtype)).sum(axis=1)


SUM_OF_O = "O is summed and dO left out"
SUM_OF_DO = "dO is summed and O left out"
DELTA_MEAN = "the mean is taken, not the sum"
DELTA_SCALED = "the sum is multiplied by 1/sqrt(d)"


def delta_parts(o, do):
    exact, plain = exact_and_plain(reference.backward.delta, o, do)

    def readings():
        return {
            SUM_OF_O: o.sum(axis=1),
            SUM_OF_DO: do.sum(axis=1),
            DELTA_MEAN: exact / o.shape[1],
            DELTA_SCALED: exact / np.sqrt(o.shape[1]),
        }

    return [Part("delta", exact, plain, np.abs(o * do).sum(axis=1).max(), readings)]


def meets_probabilities(answer, q, k, v, do):
    """delta(P V, dO) against the sum that it stands for."""
    P = reference.stable_softmax(reference.scores(q, k))
    expected = (P * (do @ v.T)).sum(axis=1)
    terms = (P @ np.abs(v) * np.abs(do)).sum(axis=1).max()
    return compare(answer(P @ v, do), [Part("delta", expected, expected.astype(np.float32), terms)])


def summed_wide(answer, n_q, d):
    """float16 inputs, summed in float16, lose digits: the budget is float32's."""
    rng = np.random.default_rng(0)
    o, do = (rng.uniform(0.5, 1.5, (n_q, d)).astype(np.float16) for _ in range(2))
    return compare(answer(o, do), delta_parts(o.astype(np.float64), do.astype(np.float64)))


def draw_delta():
    from hypothesis import strategies as st

    @st.composite
    def inputs(draw):
        n_q, d = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        return as_floats(o=arrays(draw, n_q, d, of=numbers()), do=arrays(draw, n_q, d, of=numbers()))

    return inputs()


DELTA_CALL = "delta(o, do)"

DELTA = Exercise(
    id="09.delta",
    title="One number a row",
    points=1,
    minutes=5,
    difficulty="easy",
    answer=delta,
    hints=(
        "delta_i = sum over j of P_ij dP_ij, and dP_ij is a dot product. Which of the two sums can be done first?",
        "sum_j P_ij (dO_i . V_j) = dO_i . (sum_j P_ij V_j). What is in the brackets?",
        "Convert both to float32, or keep float64; then (O * dO).sum(axis=1).",
    ),
    reasoning="Exchanging the sum over keys with the sum over columns turns P V into O, which the forward has saved. "
    "So "
    "what seems to need a whole row of P is a sum over d numbers, and a tile can be computed by itself.",
    properties=(
        Property(
            "one row: the sum over d of O times dO",
            DELTA_CALL,
            agrees(delta_parts),
            (as_floats(o=[[1, 2, 3, 4]], do=[[2, 1, 1, 1]]),),
            hints={
                f": {SUM_OF_O}": "both",
                f": {SUM_OF_DO}": "both",
                f": {DELTA_MEAN}": "sum",
                f": {DELTA_SCALED}": "sum",
                ": shape": "shape",
                "": "both",
            },
        ),
        Property(
            "a number for each row",
            DELTA_CALL,
            agrees(delta_parts),
            (
                as_floats(o=[[1, 2], [3, 4]], do=[[1, 1], [2, 0]]),
                as_floats(o=[[1, 2], [3, 4], [0, 1]], do=[[1, 1]] * 3),
            ),
            draw_delta,
            {"": "rows", ": shape": "rows"},
        ),
        Property(
            "equals the sum over keys of P * dP",
            "P = np.exp(q @ k.T / np.sqrt(q.shape[1]))\nP /= P.sum(axis=1, keepdims=True)\ndelta(P @ v, do)",
            meets_probabilities,
            (SENTENCE, SQUARE),
            draw_qkv(),
            {"": "both"},
        ),
        not_modified(DELTA_CALL, (as_floats(o=[[1, 2], [3, 4]], do=[[1, 1], [2, 0]]),)),
        Property(
            "float16 comes in, and is summed in float32",
            "rng = np.random.default_rng(0)\n"
            "o, do = (rng.uniform(0.5, 1.5, (n_q, d)).astype(np.float16) for _ in range(2))\n"
            "delta(o, do)",
            summed_wide,
            ({"n_q": 4, "d": 64},),
            hints={"": "wide"},
        ),
    ),
    mistakes=SHARED_MISTAKES
    | {
        "both": "Element by element O times dO, then the sum along each row.",
        "sum": "It is a sum: neither a mean nor scaled. The scale belongs to S, and comes back in dQ and dK.",
        "shape": "[n_q]: one number for each query, without a second axis.",
        "rows": "Rows do not meet: the sum runs over the d columns, axis=1.",
        "wide": "float16 has about 3 decimal digits, and a product has twice as many. Convert both before multiplying.",
        "modified": "O and dO are not yours to overwrite: O * dO makes a new array.",
    },
    common_hints=SHARED_HINTS,
    wrong_answers=(
        *caught_by(
            "one row: the sum over d of O times dO",
            WrongAnswer("dO forgotten", "both", {" * dO.astype(dtype)": ""}),
            WrongAnswer("mean for sum", "sum", {".sum(axis=1)": ".mean(axis=1)"}),
            WrongAnswer("scaled", "sum", {".sum(axis=1)": ".sum(axis=1) / np.sqrt(O.shape[1])"}),
            WrongAnswer("second axis kept", "shape", {".sum(axis=1)": ".sum(axis=1, keepdims=True)"}),
        ),
        *caught_by(
            "a number for each row",
            WrongAnswer("all rows together", "rows", {".sum(axis=1)": ".sum() * np.ones(len(O))"}),
            WrongAnswer("every row with the first of dO", "rows", {"dO.astype(dtype)": "dO.astype(dtype)[0]"}),
        ),
        *caught_by(
            "float16 comes in, and is summed in float32",
            WrongAnswer("summed in the inputs' dtype", "wide", {"np.result_type(O.dtype, np.float32)": "O.dtype"}),
        ),
        *caught_by(
            "the inputs are not modified",
            WrongAnswer(
                "the product written into O",
                "modified",
                {
                    "return (O.astype(dtype) * dO.astype(dtype)).sum(axis=1)": "O *= dO\n    return "
                    "O.astype(dtype).sum(axis=1)"
                },
            ),
        ),
    ),
    right_answers=(
        Variant("einsum", function=lambda O, dO: np.einsum("id,id->i", O.astype(np.float64), dO.astype(np.float64))),
        Variant(
            "row by row",
            function=lambda O, dO: np.array([np.float32(o) @ np.float32(do) for o, do in zip(O, dO, strict=True)]),
        ),
    ),
)


def tiled_backward(machine, Q, K, V, O, lse, dO, delta, dQ, dK, dV, block_q, block_k, causal=False):
    """The gradients of attention, tile by tile, in three passes, on a machine that counts every byte.

    machine: a course_lib.machine.Machine. Q, O, dO, dQ: handles, [n_q, d]; K, V, dK, dV: handles, [n_k, d]; one float
        dtype. lse, delta: handles, [n_q], float32 or float64. O and lse (natural logarithm) are the forward's.
    block_q, block_k: rows of a tile of queries and of keys, at least 1; they need not divide n_q and n_k.
    causal: query i sees keys 0 to i + n_k - n_q; one that sees none has lse = -inf, and gives and gets no gradient.
    Stores the results in delta, dQ, dK and dV, each row once, in their dtypes. Compute in float32 or better; the
        scores' scale is 1/sqrt(d). Returns nothing.
    Traffic: the pass for delta reads O and dO once. The pass for dK and dV reads K and V once, and Q, dO, lse and delta
        once for each tile of keys; the pass for dQ reads Q, dO, lse and delta once, and K and V once for each tile of
        queries; both leave out the tiles in which causal hides everything.
    SRAM: at most 16 * (3 * block_q * d + 4 * block_k * d + 2 * block_q * block_k) bytes, whatever n_q and n_k.

    >>> from course_lib.machine import Machine
    >>> machine, dv = Machine(), np.zeros((2, 1))
    >>> given = [np.ones((1, 1)), np.ones((2, 1)), np.ones((2, 1)), np.ones((1, 1)), np.array([1 + np.log(2)])]
    >>> made = np.ones((1, 1)), np.zeros(1), np.zeros((1, 1)), np.zeros((2, 1)), dv
    >>> tiled_backward(machine, *map(machine.hbm, [*given, *made]), block_q=1, block_k=1)
    >>> dv.round(4).tolist()
    [[0.5], [0.5]]
    """
    n_q, d = Q.shape
    n_k = len(K)
    scale = d**-0.5
    q_tiles = [(start, min(start + block_q, n_q)) for start in range(0, n_q, block_q)]
    k_tiles = [(start, min(start + block_k, n_k)) for start in range(0, n_k, block_k)]

    def load(handle, rows):
        return machine.load(handle, rows).astype(np.float32)

    def hidden(q_rows, k_rows):
        return causal and q_rows[1] - 1 + n_k - n_q < k_rows[0]

    def p_and_ds(q, k, v, do, lse_i, delta_i, q_rows, k_rows):
        s = q @ k.T * scale
        if causal:
            s[np.arange(*k_rows) > np.arange(*q_rows)[:, None] + n_k - n_q] = -np.inf
        p = np.exp(s - np.where(lse_i == -np.inf, 0.0, lse_i)[:, None])  # 0 in a row that sees nothing
        dp = do @ v.T
        return p, p * (dp - delta_i[:, None])

    for q_rows in q_tiles:
        machine.store(delta, q_rows, (load(O, q_rows) * load(dO, q_rows)).sum(axis=1).astype(delta.dtype))
    for k_rows in k_tiles:
        k, v = load(K, k_rows), load(V, k_rows)
        dk, dv = machine.full(k.shape, 0.0), machine.full(k.shape, 0.0)
        for q_rows in q_tiles:
            if hidden(q_rows, k_rows):
                continue
            q, do, lse_i, delta_i = (load(handle, q_rows) for handle in (Q, dO, lse, delta))
            p, ds = p_and_ds(q, k, v, do, lse_i, delta_i, q_rows, k_rows)
            dv += p.T @ do
            dk += ds.T @ q
            del q, do, lse_i, delta_i, p, ds
        machine.store(dV, k_rows, dv.astype(dV.dtype))
        machine.store(dK, k_rows, (scale * dk).astype(dK.dtype))
        del k, v, dk, dv
    for q_rows in q_tiles:
        q, do, lse_i, delta_i = (load(handle, q_rows) for handle in (Q, dO, lse, delta))
        dq = machine.full(q.shape, 0.0)
        for k_rows in k_tiles:
            if hidden(q_rows, k_rows):
                break
            k, v = load(K, k_rows), load(V, k_rows)
            p, ds = p_and_ds(q, k, v, do, lse_i, delta_i, q_rows, k_rows)
            dq += ds @ k
            del k, v, p, ds
        machine.store(dQ, q_rows, (scale * dq).astype(dQ.dtype))
        del q, do, lse_i, delta_i, dq


GIVEN, MADE = ("Q", "K", "V", "O", "lse", "dO"), ("delta", "dQ", "dK", "dV")


def run_on(machine, answer, q, k, v, do, block_q, block_k, causal):
    """Calls the answer on a machine. Returns (dQ, dK, dV), NaN where nothing was stored, and Evidence of such rows."""
    o, lse = reference.attention(q, k, v, causal=causal, return_lse=True)
    made = [np.full_like(x, np.nan) for x in (lse, q, k, v)]
    arrays_by_name = zip(GIVEN + MADE, (q, k, v, o, lse, do, *made), strict=True)
    handles = [machine.hbm(array, name) for name, array in arrays_by_name]
    answer(machine, *handles, block_q, block_k, causal)
    stored = {name: np.zeros(len(array), bool) for name, array in zip(MADE, made, strict=True)}
    for event in machine.report().events:
        if event.kind == "store" and event.tensor in stored:
            stored[event.tensor][event.start : event.stop] = True
    findings = tuple(
        Finding(name, "unwritten", f"these rows of {name} were never stored: {show(np.flatnonzero(~rows).tolist())}")
        for name, rows in stored.items()
        if not rows.all()
    )
    return tuple(made[1:]), Evidence(findings) if findings else None


def tiled_test(*names):
    """dV comes first where it is among the names: nothing cancels in it, so that slips are recognised in it."""

    def test(answer, block_q, block_k, causal, **inputs):
        made, unwritten = run_on(Machine(), answer, **inputs, block_q=block_q, block_k=block_k, causal=causal)
        found = unwritten or compare(made, gradient_parts(**inputs, causal=causal, blocks=(block_q, block_k)))
        return concerning((*names, "delta"), found)

    return test


def random_inputs(n_q, n_k, d):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, d)).astype(np.float16) for n in (n_q, n_k, n_k, n_q)]


def float16_test(answer, n_q, n_k, d, block_q, block_k, causal):
    """Twice the error that comes from rounding the gradients to float16 once, and no more."""
    inputs = random_inputs(n_q, n_k, d)
    made, unwritten = run_on(Machine(), answer, *inputs, block_q, block_k, causal)
    q, k, v, do = (x.astype(np.float64) for x in inputs)
    o, lse = reference.attention(*inputs[:3], causal=causal, return_lse=True)
    # O came to the backward rounded to float16, which is no fault of the answer.
    exact = reference.attention_backward(q, k, v, o.astype(np.float64), lse.astype(np.float64), do, causal=causal)
    parts = [
        Part(name, x, x.astype(np.float16), np.abs(x).max()) for name, x in zip(("dQ", "dK", "dV"), exact, strict=True)
    ]
    return unwritten or compare(made, parts)


def through_machine(answer, n_q, n_k, d, block_q, block_k, causal):
    machine = WatchedMachine()
    run_on(machine, answer, *random_inputs(n_q, n_k, d), block_q, block_k, causal)
    if machine.behind:
        names = ", ".join(dict.fromkeys(name.split("[")[0] for name in machine.behind))
        return only("behind", f"the arrays of {names} were reached behind the machine's back, where nothing is counted")
    if machine.finished:
        return only("finished", f"the loads are made by a finished implementation, {machine.finished}")
    return None


def peak_test(answer, n_q, n_k, d, block_q, block_k, causal):
    machine = Machine(16 * (3 * block_q * d + 4 * block_k * d + 2 * block_q * block_k))
    return run_on(machine, answer, *random_inputs(n_q, n_k, d), block_q, block_k, causal)[1]


def traffic_test(answer, n_q, n_k, d, block_q, block_k, causal):
    machine = Machine()
    run_on(machine, answer, *random_inputs(n_q, n_k, d), block_q, block_k, causal)
    counted = machine.report().by_tensor
    right = traffic.flash_attention_backward(n_q, n_k, d, block_q=block_q, block_k=block_k, causal=causal).by_tensor
    findings = [
        Finding(name, "hbm", f"{name}, {moved[1]:,} bytes written, is put in HBM beside what was given")
        for name, moved in counted.items()
        if name not in right
    ]
    for name, due in right.items():
        for kind, verb, now, needed in zip(
            ("read", "written"), ("read from", "written to"), counted[name], due, strict=True
        ):
            if now != needed:
                more = "more" if now > needed else "less"
                findings.append(Finding(name, f"{kind} {more}", f"{now:,} bytes are {verb} {name}, {needed:,} are due"))
    if not findings:
        return None
    return Evidence(tuple(findings), shown_bytes(counted), shown_bytes(right))


def shown_bytes(by_tensor):
    return "\n".join(
        f"{name:5}: {read:>7,} bytes read, {write:>7,} written" for name, (read, write) in by_tensor.items()
    )


def tiled_case(case, block_q, block_k, causal=False):
    return case | {"block_q": block_q, "block_k": block_k, "causal": causal}


def sized_case(n_q, n_k, d, block_q, block_k, causal=False):
    return {"n_q": n_q, "n_k": n_k, "d": d, "block_q": block_q, "block_k": block_k, "causal": causal}


def draw_tiled(relation="any", causal=False, one_tile=""):
    """relation of n_q to n_k: "equal", "fewer", "more", "square" or "any". one_tile: of "queries", "keys" or both."""

    def draw():
        from hypothesis import strategies as st

        @st.composite
        def inputs(draw):
            n_q, d = draw(st.integers(1, 4)), draw(st.integers(1, 2))
            n_q = d if relation == "square" else n_q
            least, most = {
                "square": (n_q, n_q), "equal": (n_q, n_q), "fewer": (n_q + 1, n_q + 3), "more": (1, max(n_q - 1, 1))
            }.get(relation, (1, 4))  # fmt: skip
            n_k = draw(st.integers(least, most))
            # Where the other side is one tile, this side's come out even: short ones have a property of their own.
            even_q, even_k = ([size for size in range(1, n + 1) if n % size == 0] for n in (n_q, n_k))
            any_size = [1, 2, 3]
            block_q = n_q if "queries" in one_tile else draw(st.sampled_from(even_q if one_tile else any_size))
            block_k = n_k if "keys" in one_tile else draw(st.sampled_from(even_k if one_tile else any_size))
            case = qkv_case(*(arrays(draw, n, d, of=numbers()) for n in (n_q, n_k, n_k, n_q)))
            return tiled_case(case, block_q, block_k, causal)

        return inputs()

    return draw


ON_MACHINE = """\
o, lse = reference.attention(q, k, v, causal=causal, return_lse=True)
machine, made = Machine(SRAM), [np.full_like(x, np.nan) for x in (lse, q, k, v)]
handles = map(machine.hbm, (q, k, v, o, lse, do, *made), ("Q", "K", "V", "O", "lse", "dO", "delta", "dQ", "dK", "dV"))
tiled_backward(machine, *handles, block_q, block_k, causal)"""
IMPORTS = "from course_lib import reference\nfrom course_lib.machine import Machine\n"
RANDOM = (
    "rng = np.random.default_rng(0)\n"
    "q, k, v, do = (rng.standard_normal((n, d)).astype(np.float16) for n in (n_q, n_k, n_k, n_q))\n"
)
TILED_CALL = IMPORTS + ON_MACHINE.replace("SRAM", "")
RANDOM_CALL = IMPORTS + RANDOM + ON_MACHINE.replace("SRAM", "")
PEAK_CALL = (
    IMPORTS + RANDOM + ON_MACHINE.replace("SRAM", "16 * (3 * block_q * d + 4 * block_k * d + 2 * block_q * block_k)")
)
THREE = qkv_case([[1], [1], [1]], [[1], [2], [3]], [[1], [2], [4]], [[1], [2], [1]])
TILE_HINTS = GRADIENT_HINTS | {
    f": {LSE_BASE_2}": "base",
    f": {MAX_FOR_LSE}": "lse",
    f": {TILE_SOFTMAX}": "lse",
    f": {OVERWRITTEN}": "add_up",
}

TILED = Exercise(
    id="09.tiled_backward",
    title="The backward, tile by tile",
    points=6,
    minutes=25,
    difficulty="hard",
    answer=tiled_backward,
    hints=(
        "A row of dV sums over queries, a row of dQ over keys. Which loop stands outside in each of the two passes, if "
        "every row is to be stored once?",
        "Write a helper that makes p and ds of one pair of tiles: s = q k^T scale, masked; p = exp(s - lse); dp = do "
        "v^T; "
        "ds = p (dp - delta). The pass for dK and dV adds p^T do and ds^T q, the pass for dQ adds ds k.",
        "for q tiles: store rowsum(O * dO) in delta. for k tiles: load k, v; for q tiles that see one of them: load "
        "q, do, "
        "lse, delta; dv += p.T @ do; dk += ds.T @ q; then store dv and scale * dk. for q tiles: load q, do, lse, "
        "delta; for "
        "k tiles that they see: load k, v; dq += ds @ k; then store scale * dq. Where lse is -inf subtract 0 instead.",
    ),
    reasoning="Two passes make the same p and ds, one with keys outermost and one with queries outermost, so that no "
    "row "
    "of a gradient is brought back. P is made from lse without a max: lse is at least as large as every score, and exp "
    "cannot overflow. delta and lse are all that a tile must know of the rest of its rows.",
    properties=(
        Property(
            "one tile that holds everything: dV",
            TILED_CALL,
            tiled_test("dV"),
            (tiled_case(SQUARE, 2, 2),),
            draw_tiled("square", one_tile="queries and keys"),
            TILE_HINTS | {"": "plain"},
        ),
        Property(
            "one tile that holds everything: dQ",
            TILED_CALL,
            tiled_test("dQ"),
            (tiled_case(SQUARE, 2, 2),),
            draw_tiled("square", one_tile="queries and keys"),
            TILE_HINTS | {"": "plain"},
        ),
        Property(
            "one tile that holds everything: dK",
            TILED_CALL,
            tiled_test("dK"),
            (tiled_case(SQUARE, 2, 2),),
            draw_tiled("square", one_tile="queries and keys"),
            TILE_HINTS | {"": "plain"},
        ),
        Property(
            "several tiles of queries: dK and dV add up",
            TILED_CALL,
            tiled_test("dV", "dK"),
            (tiled_case(THREE, 1, 3), tiled_case(SENTENCE, 2, 4)),
            draw_tiled(one_tile="keys"),
            TILE_HINTS | {"": "add_up"},
        ),
        Property(
            "several tiles of keys: dQ adds up, and P is that of the whole row",
            TILED_CALL,
            tiled_test("dV", "dK", "dQ"),
            (tiled_case(SENTENCE, 4, 2), tiled_case(THREE, 3, 1)),
            draw_tiled(one_tile="queries"),
            TILE_HINTS | {"": "add_up"},
        ),
        Property(
            "any lengths and any tiles: the last ones may be short",
            TILED_CALL,
            tiled_test("dV", "dK", "dQ"),
            (tiled_case(THREE, 2, 2), tiled_case(SENTENCE, 3, 3)),
            draw_tiled(),
            {"": "tail", ": exception": "tail", ": unwritten": "tail"},
        ),
        Property(
            "causal, as many queries as keys: query i sees keys 0 to i",
            TILED_CALL,
            tiled_test("dV", "dK", "dQ"),
            (tiled_case(THREE, 3, 3, True), tiled_case(SENTENCE, 2, 2, True)),
            draw_tiled("equal", causal=True),
            {
                f": {CAUSAL_IGNORED}": "causal",
                f": {ONE_TOO_MANY}": "off_by_one",
                f": {ONE_TOO_FEW}": "off_by_one",
                f": {MASKED_AS_ZERO}": "mask_value",
                "": "causal",
            },
        ),
        Property(
            "causal, more keys than queries: the last query sees the last key",
            TILED_CALL,
            tiled_test("dV", "dK", "dQ"),
            (tiled_case(qkv_case([[1], [1]], [[1], [2], [3]], [[1], [2], [4]], [[1], [2]]), 2, 3, True),),
            draw_tiled("fewer", causal=True),
            {"": "offset"},
        ),
        Property(
            "causal, more queries than keys: a query that sees no key has no part in it, and nothing is NaN",
            TILED_CALL,
            tiled_test("dV", "dK", "dQ"),
            (tiled_case(qkv_case([[1], [1], [1]], [[1], [2]], [[1], [2]], [[1], [2], [1]]), 3, 2, True),),
            draw_tiled("more", causal=True),
            {
                "": "nothing_seen",
                ": exception": "nothing_seen",
                ": unwritten": "nothing_seen",
                ": nan": "nothing_seen",
            },
        ),
        Property(
            "float16 comes in and goes out, and rounds once",
            RANDOM_CALL,
            float16_test,
            (sized_case(512, 32, 8, 16, 16),),
            hints={"": "precision"},
        ),
        Property(
            "all the work is the answer's own, on tiles that it loaded",
            RANDOM_CALL,
            through_machine,
            (sized_case(4, 6, 2, 2, 2),),
            hints={": behind": "behind", ": finished": "finished"},
        ),
        Property(
            "SRAM never holds more than 16 (3 block_q d + 4 block_k d + 2 block_q block_k) bytes",
            PEAK_CALL,
            peak_test,
            (sized_case(128, 128, 16, 16, 16), sized_case(128, 128, 16, 16, 16, True)),
            hints={": exception": "peak"},
        ),
        Property(
            "each tensor is read and written as often as the three passes need",
            RANDOM_CALL,
            traffic_test,
            (sized_case(8, 8, 4, 4, 2), sized_case(40, 56, 8, 16, 24)),
            hints={"dQ dQ": "write_once", ": hbm": "hbm", "": "again"},
        ),
        Property(
            "causal: pairs of tiles that are hidden altogether are not read",
            RANDOM_CALL,
            traffic_test,
            (sized_case(8, 8, 4, 2, 2, True), sized_case(40, 56, 8, 16, 24, True), sized_case(9, 5, 4, 2, 2, True)),
            hints={"": "skip"},
        ),
    ),
    mistakes=SHARED_MISTAKES
    | GRADIENT_MISTAKES
    | {
        "plain": "With one tile this is your attention_backward, with P = exp(S - lse) and delta = rowsum(O * dO). "
        "Compare with it line by line.",
        "base": "lse is a natural logarithm. exp2(s - lse) would want both in base 2: multiply both by log2(e), or "
        "use exp.",
        "lse": "A tile knows neither its row's max nor its row's sum. lse holds both: P = exp(S - lse) is the "
        "probability itself.",
        "add_up": "A row of dK and dV sums over all tiles of queries, a row of dQ over all tiles of keys: start at "
        "0, add "
        "each tile's part with +=, store after the loop.",
        "tail": "range(0, n, block) starts every tile, the short one too; its rows end at min(start + block, n). "
        "Every row "
        "of delta, dQ, dK and dV must be stored.",
        "causal": "The forward hid key j from query i where j > i + n_k - n_q. The same scores are -inf again, or "
        "the P that "
        "you recompute is another.",
        "off_by_one": "Query i sees key i + n_k - n_q itself, and no later one: hidden is key > query + n_k - n_q.",
        "mask_value": "A score of 0 has the weight exp(0 - lse), which is not 0. Only -inf has none.",
        "offset": "The last query sees the last key: query i sees keys 0 to i + n_k - n_q, in the mask and where "
        "tiles are "
        "skipped.",
        "nothing_seen": "A query that sees no key has lse = -inf, and -inf - (-inf) is NaN. Subtract 0 there: "
        "exp(-inf) is "
        "the 0 that P should be. Its row of dQ is stored all the same.",
        "unwritten": "Store every row of delta, dQ, dK and dV, those of short tiles and of tiles that see nothing too.",
        "precision": "float16 holds about 3 decimal digits. Convert tiles to float32 when they are loaded, and let the "
        "accumulators be float32.",
        "behind": "A handle's values are reached with machine.load, a tile's by computing with the tile.",
        "finished": "That is the course's solution at work, not yours.",
        "peak": "Read in the message what lies in SRAM: tiles of earlier rounds (del them), or one that has n rows "
        "or columns?",
        "write_once": "dQ is read back: a pass with keys outside finishes no row of dQ. Give dQ a pass of its own, "
        "queries "
        "outside.",
        "again": "Count the loads of each inner loop: what stays belongs into the outer loop, and what passes by is "
        "loaded "
        "once for each visit.",
        "hbm": "P and dS live in SRAM and die there. Whatever else is put in HBM is written and read back.",
        "skip": "If the last query of a tile does not see the first key of the other, nothing in the pair is visible: "
        "skip it before anything is loaded.",
    },
    common_hints=SHARED_HINTS | {": unwritten": "unwritten"},
    wrong_answers=(
        *caught_by(
            "one tile that holds everything: dV",
            WrongAnswer("dV from dP", "dv", {"dv += p.T @ do": "dv += (do @ v.T).T @ do"}),
            WrongAnswer("lse in base 2", "base", {"np.exp(s - np.where": "np.exp2(s - np.where"}),
            WrongAnswer(
                "the tile's max for lse",
                "lse",
                {"np.exp(s - np.where(lse_i == -np.inf, 0.0, lse_i)[:, None])": "np.exp(s - s.max(axis=1)[:, None])"},
            ),
        ),
        *caught_by(
            "one tile that holds everything: dQ",
            WrongAnswer("delta missing", "delta", {"p * (dp - delta_i[:, None])": "p * dp"}),
            WrongAnswer("dS not multiplied by P", "times_p", {"p * (dp - delta_i[:, None])": "dp - delta_i[:, None]"}),
            WrongAnswer("dP = dO V", "dp", {"do @ v.T\n": "do @ v\n"}),
            WrongAnswer("no scale in dQ", "scale", {"(scale * dq)": "dq"}),
            WrongAnswer("scale twice in dQ", "scale", {"(scale * dq)": "(scale**2 * dq)"}),
        ),
        *caught_by(
            "one tile that holds everything: dK",
            WrongAnswer("no scale in dK", "scale", {"(scale * dk)": "dk"}),
            WrongAnswer("dS not transposed", "transpose", {"ds.T @ q": "ds @ q"}),
        ),
        *caught_by(
            "several tiles of queries: dK and dV add up",
            WrongAnswer("dV overwritten", "add_up", {"dv += p.T @ do": "dv = p.T @ do"}),
        ),
        *caught_by(
            "several tiles of keys: dQ adds up, and P is that of the whole row",
            WrongAnswer("dQ overwritten", "add_up", {"dq += ds @ k": "dq = ds @ k"}),
            WrongAnswer(
                "a softmax of each tile by itself",
                "lse",
                {
                    "np.exp(s - np.where(lse_i == -np.inf, 0.0, lse_i)[:, None])": (
                        "np.exp(s - s.max(axis=1)[:, None])\n        p = p / p.sum(axis=1)[:, None]"
                    )
                },
            ),
        ),
        *caught_by(
            "any lengths and any tiles: the last ones may be short",
            WrongAnswer(
                "last tile of keys dropped",
                "tail",
                {"range(0, n_k, block_k)": "range(0, n_k // block_k * block_k or n_k, block_k)"},
            ),
        ),
        *caught_by(
            "causal, as many queries as keys: query i sees keys 0 to i",
            WrongAnswer(
                "causal ignored", "causal", {"if causal:": "if False:", "return causal and": "return False and"}
            ),
            WrongAnswer(
                "sees the next key",
                "off_by_one",
                {"[:, None] + n_k - n_q]": "[:, None] + n_k - n_q + 1]", "q_rows[1] - 1 + n_k": "q_rows[1] + n_k"},
            ),
            WrongAnswer("does not see its own key", "off_by_one", {"(*k_rows) > np": "(*k_rows) >= np"}),
            WrongAnswer(
                "hidden scores set to 0",
                "mask_value",
                {"n_q] = -np.inf": "n_q] = 0.0", "return causal and": "return False and"},
            ),
        ),
        *caught_by(
            "causal, more keys than queries: the last query sees the last key",
            WrongAnswer(
                "aligned at the top left",
                "offset",
                {"[:, None] + n_k - n_q]": "[:, None]]", "q_rows[1] - 1 + n_k - n_q": "q_rows[1] - 1"},
            ),
        ),
        *caught_by(
            "causal, more queries than keys: a query that sees no key has no part in it, and nothing is NaN",
            WrongAnswer("-inf minus -inf", "nothing_seen", {"np.where(lse_i == -np.inf, 0.0, lse_i)": "lse_i"}),
        ),
        *caught_by(
            "float16 comes in and goes out, and rounds once",
            WrongAnswer(
                "float16 accumulation",
                "precision",
                {
                    "            del q, do, lse_i, delta_i, p, ds\n": (
                        "            dk, dv = dk.astype(dK.dtype), dv.astype(dV.dtype)\n"
                    )
                },
            ),
        ),
        *caught_by(
            "all the work is the answer's own, on tiles that it loaded",
            WrongAnswer("calls the finished implementation", "finished", function=lambda *a: _finished(*a)),
            WrongAnswer("reads arrays behind the machine's back", "behind", function=lambda *a: _behind(*a)),
        ),
        *caught_by(
            "SRAM never holds more than 16 (3 block_q d + 4 block_k d + 2 block_q block_k) bytes",
            WrongAnswer("the N x N matrix in SRAM", "peak", function=lambda *a: _all_at_once(*a)),
        ),
        *caught_by(
            "each tensor is read and written as often as the three passes need",
            WrongAnswer(
                "dQ brought back for every tile of keys",
                "write_once",
                {
                    "            dq += ds @ k\n": (
                        "            if k_rows[0]:\n"
                        "                machine.load(dQ, q_rows)\n"
                        "            dq += ds @ k\n"
                        "            machine.store(dQ, q_rows, dq.astype(dQ.dtype))\n"
                    )
                },
            ),
            WrongAnswer(
                "K and V loaded in the inner loop",
                "again",
                {
                    "            dv += p.T": (
                        "            k, v = load(K, k_rows), load(V, k_rows)\n            dv += p.T"
                    )
                },
            ),
        ),
        *caught_by(
            "causal: pairs of tiles that are hidden altogether are not read",
            WrongAnswer("hidden tiles not skipped", "skip", {"return causal and": "return False and"}),
        ),
    ),
    right_answers=(
        Variant("columns of statistics, tiles freed by hand", function=lambda *a: _tiled_freed(*a)),
        Variant("base 2, keys before queries in the last pass too", function=lambda *a: _tiled_base_2(*a)),
    ),
)


def _finished(machine, Q, K, V, O, lse, dO, delta, dQ, dK, dV, block_q, block_k, causal=False):
    tiled_backward_on_machine(
        machine, Q, K, V, O, lse, dO, dQ, dK, dV, delta, block_q=block_q, block_k=block_k, causal=causal
    )


def _behind(machine, Q, K, V, O, lse, dO, delta, dQ, dK, dV, block_q, block_k, causal=False):
    given = [handle._array for handle in (Q, K, V, O, lse, dO)]
    made = reference.attention_backward(*given, causal=causal)
    for handle, values in zip((dQ, dK, dV, delta), (*made, reference.backward.delta(O._array, dO._array)), strict=True):
        machine.store(handle, (0, len(handle)), machine.full(handle.shape, 0.0, handle.dtype))
        handle._array[:] = values


def _all_at_once(machine, Q, K, V, O, lse, dO, delta, dQ, dK, dV, block_q, block_k, causal=False):
    tiled_backward(machine, Q, K, V, O, lse, dO, delta, dQ, dK, dV, len(Q), len(K), causal)


def _tiled_freed(machine, Q, K, V, O, lse, dO, delta, dQ, dK, dV, block_q, block_k, causal=False):
    n_q, n_k, scale = len(Q), len(K), np.float32(1 / np.sqrt(Q.shape[1]))
    q_starts, k_starts = range(0, n_q, block_q), range(0, n_k, block_k)

    def weights(q, k, v, do, stats, at_q, at_k):
        s = np.matmul(q, k.T, dtype=np.float32) * scale
        seen = np.arange(at_k, at_k + len(k)) <= np.arange(at_q, at_q + len(q))[:, None] + n_k - n_q
        p = np.where(seen | (not causal), np.exp(s - np.where(stats[0] > -np.inf, stats[0], np.float32(0))), 0)
        return p, p * (np.matmul(do, v.T, dtype=np.float32) - stats[1])

    for at in q_starts:
        rows = slice(at, min(at + block_q, n_q))
        o, do = machine.load(O, rows), machine.load(dO, rows)
        machine.store(delta, rows, np.sum(o.astype(delta.dtype) * do, axis=1))
    for at_k in k_starts:
        keys = slice(at_k, min(at_k + block_k, n_k))
        k, v = machine.load(K, keys), machine.load(V, keys)
        sums = machine.full((2, *k.shape), 0)
        for at_q in q_starts:
            rows = slice(at_q, min(at_q + block_q, n_q))
            if causal and at_k > rows.stop - 1 + n_k - n_q:
                continue
            q, do = machine.load(Q, rows), machine.load(dO, rows)
            stats = [machine.load(x, rows)[:, None] for x in (lse, delta)]
            p, ds = weights(q, k, v, do, stats, at_q, at_k)
            sums[0] += np.matmul(ds.T, q, dtype=ds.dtype) * scale
            sums[1] += np.matmul(p.T, do, dtype=p.dtype)
            for tile in (q, do, p, ds, *stats):
                machine.free(tile)
        machine.store(dK, keys, sums[0].astype(dK.dtype))
        machine.store(dV, keys, sums[1].astype(dV.dtype))
        for tile in (k, v, sums):
            machine.free(tile)
    for at_q in q_starts:
        rows = slice(at_q, min(at_q + block_q, n_q))
        q, do = machine.load(Q, rows), machine.load(dO, rows)
        stats = [machine.load(x, rows)[:, None] for x in (lse, delta)]
        dq = machine.full(q.shape, 0)
        for at_k in k_starts:
            if causal and at_k > rows.stop - 1 + n_k - n_q:
                break
            keys = slice(at_k, min(at_k + block_k, n_k))
            k, v = machine.load(K, keys), machine.load(V, keys)
            _, ds = weights(q, k, v, do, stats, at_q, at_k)
            dq = dq + np.matmul(ds, k, dtype=ds.dtype) * scale
            machine.free(k)
            machine.free(v)
        machine.store(dQ, rows, dq.astype(dQ.dtype))


def _tiled_base_2(machine, Q, K, V, O, lse, dO, delta, dQ, dK, dV, block_q, block_k, causal=False):
    n_q, n_k, d = len(Q), len(K), Q.shape[1]
    log2_e, work = float(np.log2(np.e)), lse.dtype

    def load(handle, rows):
        return machine.load(handle, rows).astype(work)

    def rows_of(i, block, n):
        return i * block, min((i + 1) * block, n)

    for i in range(-(-n_q // block_q)):
        rows = rows_of(i, block_q, n_q)
        machine.store(delta, rows, (load(O, rows) * load(dO, rows)).sum(axis=1))
    for handles in ((K, V, dK, dV), (Q, dO, dQ)):
        outer_is_key = handles[0] is K
        n_outer, n_inner = (n_k, n_q) if outer_is_key else (n_q, n_k)
        outer, inner = (block_k, block_q) if outer_is_key else (block_q, block_k)
        for i in range(-(-n_outer // outer)):
            at = rows_of(i, outer, n_outer)
            stay = [load(handle, at) for handle in handles[:2]]
            stay += [] if outer_is_key else [load(lse, at), load(delta, at)]
            sums = [machine.full((at[1] - at[0], d), 0, work) for _ in handles[2:]]
            for j in range(-(-n_inner // inner)):
                by = rows_of(j, inner, n_inner)
                q_rows, k_rows = (by, at) if outer_is_key else (at, by)
                if causal and k_rows[0] > q_rows[1] - 1 + n_k - n_q:
                    continue
                passing = [load(x, by) for x in ((Q, dO, lse, delta) if outer_is_key else (K, V))]
                (k, v), (q, do, log_sum, row) = (stay, passing) if outer_is_key else (passing, stay)
                s = q @ k.T * (log2_e / np.sqrt(d))
                if causal:
                    s[np.arange(*q_rows)[:, None] + n_k - n_q < np.arange(*k_rows)] = -np.inf
                p = np.exp2(s - np.where(log_sum == -np.inf, 0, log_sum * log2_e)[:, None])
                ds = (do @ v.T - row[:, None]) * p
                sums[0] = sums[0] + (ds.T @ q if outer_is_key else ds @ k)
                if outer_is_key:
                    sums[1] = sums[1] + p.T @ do
                del passing, q, do, log_sum, row, k, v, s, p, ds
            for position, (handle, total) in enumerate(zip(handles[2:], sums, strict=True)):
                machine.store(handle, at, (total if position else total / np.sqrt(d)).astype(handle.dtype))
            del stay, sums, total


triton, tl = WRITTEN.triton, WRITTEN.tl


@triton.jit
def dkdv_tile(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    stride_qm, stride_kn, stride_vn, stride_dom, stride_dkn, stride_dvn, n_q, n_k, scale,
    IS_CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dK and dV of one head. Program j has key tile j; the query tiles that see one of its keys pass by.

    q_ptr, do_ptr: [n_q, HEAD_DIM]; k_ptr, v_ptr, and to be written dk_ptr, dv_ptr: [n_k, HEAD_DIM]; all fp32. Columns
        lie side by side, rows stride_qm, ... elements apart. lse_ptr (natural logarithm), delta_ptr: fp32 [n_q].
    IS_CAUSAL: query i sees keys 0 to i + n_k - n_q; one that sees none has lse = -inf. HEAD_DIM, BLOCK_M, BLOCK_N:
        powers of two from 16 up. n_q and n_k are any numbers: no access beyond them, and no part for such rows.
    Loads: K and V once; Q, dO, lse and delta once for each key tile, except query tiles that see none of its keys.

    >>> ones, zeros = np.ones((16, 16)), np.zeros((16, 16))
    >>> statistics = {"lse_ptr": np.full(16, np.log(16)), "delta_ptr": np.full(16, 16.0)}
    >>> sizes = {"n_q": 16, "n_k": 16, "scale": 0.25, "HEAD_DIM": 16, "BLOCK_M": 16, "BLOCK_N": 16}
    >>> launch = launched(dkdv_tile, (1,), {"dk_ptr": (16, 16), "dv_ptr": (16, 16)}, q_ptr=zeros, k_ptr=zeros,
    ...                   v_ptr=ones, do_ptr=ones, IS_CAUSAL=False, **statistics, **sizes)
    >>> print(launch.outputs["dv_ptr"][0, 0].round(4))
    1.0
    """
    start_n = tl.program_id(0) * BLOCK_N
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, HEAD_DIM)
    mask_n = offs_n < n_k
    k = tl.load(k_ptr + offs_n[:, None] * stride_kn + offs_d[None, :], mask=mask_n[:, None], other=0.0)
    v = tl.load(v_ptr + offs_n[:, None] * stride_vn + offs_d[None, :], mask=mask_n[:, None], other=0.0)
    dk = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    dv = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    first_m = 0
    if IS_CAUSAL:
        first_m = tl.maximum(start_n + n_q - n_k, 0) // BLOCK_M * BLOCK_M
    for start_m in range(first_m, n_q, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        mask_m = offs_m < n_q
        q = tl.load(q_ptr + offs_m[:, None] * stride_qm + offs_d[None, :], mask=mask_m[:, None], other=0.0)
        do = tl.load(do_ptr + offs_m[:, None] * stride_dom + offs_d[None, :], mask=mask_m[:, None], other=0.0)
        lse = tl.load(lse_ptr + offs_m, mask=mask_m, other=0.0)
        delta = tl.load(delta_ptr + offs_m, mask=mask_m, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [BLOCK_M, D] @ [D, BLOCK_N]
        visible = mask_m[:, None] & mask_n[None, :]
        if IS_CAUSAL:
            visible = visible & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)
        p = tl.where(visible, tl.exp(s - lse[:, None]), 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dv += tl.dot(tl.trans(p), do, input_precision="ieee")  # [BLOCK_N, BLOCK_M] @ [BLOCK_M, D]
        dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
    tl.store(dk_ptr + offs_n[:, None] * stride_dkn + offs_d[None, :], dk * scale, mask=mask_n[:, None])
    tl.store(dv_ptr + offs_n[:, None] * stride_dvn + offs_d[None, :], dv, mask=mask_n[:, None])


KERNEL_D = 16


def launch_of(answer, n_q, n_k, block_q, block_k, causal):
    """The launch that KERNEL_CALL shows, and its inputs q, k, v, do."""
    rng = np.random.default_rng(0)
    q, k, v, do = (rng.standard_normal((n, KERNEL_D)) for n in (n_q, n_k, n_k, n_q))
    o, lse = reference.attention(q, k, v, causal=causal, return_lse=True)
    launch = launched(
        answer, (-(-n_k // block_k),), {"dk_ptr": k.shape, "dv_ptr": v.shape}, q_ptr=q, k_ptr=k, v_ptr=v, do_ptr=do,
        lse_ptr=lse, delta_ptr=(o * do).sum(axis=1), n_q=n_q, n_k=n_k, scale=0.25, IS_CAUSAL=causal,
        HEAD_DIM=KERNEL_D, BLOCK_M=block_q, BLOCK_N=block_k,
    )  # fmt: skip
    return launch, (q, k, v, do)


def kernel_test(*names):
    """dV and dK, dV before dK: nothing out of bounds, nothing unwritten, and the values of these outputs."""

    def test(answer, n_q, n_k, block_q, block_k, causal):
        launch, inputs = launch_of(answer, n_q, n_k, block_q, block_k, causal)
        if found := outside(launch) or unwritten(launch):
            return found
        parts = [replace(part, name=part.name.lower(), readings=dict) for part in gradient_parts(*inputs, causal)[1:]]
        made = launch.outputs["dk_ptr"], launch.outputs["dv_ptr"]
        evidence = concerning(names, compare(made, parts))
        if evidence is None:
            return None
        blocks = block_q, block_k
        findings = [_named_slip(finding, made, inputs, causal, blocks) for finding in evidence.findings]
        return Evidence(tuple(findings), evidence.returned, evidence.expected)

    return test


def _named_slip(finding, made, inputs, causal, blocks):
    """The finding with the slip that makes this output, where one does: compared as a whole, for it is float32."""
    index = ("", "dk", "dv").index(finding.part)
    if not index or not np.isfinite(made[index - 1]).all():
        return finding
    n_q, n_k = len(inputs[0]), len(inputs[1])
    ahead = np.arange(n_k) - np.arange(n_q)[:, None]
    slips = {slip: {"slip": slip} for slip in (OVERWRITTEN, LSE_BASE_2, MAX_FOR_LSE, *ALWAYS)}
    if causal:
        slips |= {
            CAUSAL_IGNORED: {"seen": ahead <= n_k},
            ONE_TOO_MANY: {"seen": ahead <= n_k - n_q + 1},
            ONE_TOO_FEW: {"seen": ahead <= n_k - n_q - 1},
        }
    for name, options in slips.items():
        value = gradients(*inputs, causal, blocks=blocks, **options)[index]
        if np.linalg.norm(made[index - 1] - value) < 1e-4 * np.linalg.norm(value):
            return Finding(finding.part, name, f"{finding.part} is what comes out when {name}")
    return finding


def kernel_bytes(answer, n_q, n_k, block_q, block_k, causal):
    launch, _ = launch_of(answer, n_q, n_k, block_q, block_k, causal)
    sizes = {"block_q": block_q, "block_k": block_k, "dtype_bytes": 4, "causal": causal}
    # With keys outermost Q passes by as it does in FlashAttention-1's forward, and l as lse and delta do.
    passes_by = traffic.flash_attention(n_q, n_k, KERNEL_D, **sizes, order="kv_outer").by_tensor
    rows, statistics, once = passes_by["Q"].read_bytes, passes_by["l"].read_bytes, passes_by["K"].read_bytes
    return outside(launch) or compare_bytes(
        launch,
        {
            "q": (rows, 0), "do": (rows, 0), "lse": (statistics, 0), "delta": (statistics, 0),
            "k": (once, 0), "v": (once, 0), "dk": (0, once), "dv": (0, once),
        },
    )  # fmt: skip


def kernel_case(n_q, n_k, causal=False, block_q=16, block_k=16):
    return {"n_q": n_q, "n_k": n_k, "block_q": block_q, "block_k": block_k, "causal": causal}


KERNEL_CALL = """\
from course_lib import reference
rng = np.random.default_rng(0)
q, k, v, do = (rng.standard_normal((n, 16)) for n in (n_q, n_k, n_k, n_q))
o, lse = reference.attention(q, k, v, causal=causal, return_lse=True)
arrays = {"q_ptr": q, "k_ptr": k, "v_ptr": v, "do_ptr": do, "lse_ptr": lse, "delta_ptr": (o * do).sum(axis=1)}
sizes = {"n_q": n_q, "n_k": n_k, "scale": 0.25, "HEAD_DIM": 16, "BLOCK_M": block_q, "BLOCK_N": block_k}
made = {"dk_ptr": k.shape, "dv_ptr": v.shape}
launched(dkdv_tile, (-(-n_k // block_k),), made, **arrays, **sizes, IS_CAUSAL=causal)"""

TILE = Exercise(
    id="09.dkdv_tile",
    title="The kernel for dK and dV",
    points=5,
    minutes=20,
    difficulty="hard",
    answer=dkdv_tile,
    hints=(
        "A program is one round of the outer loop of your pass for dK and dV. Which key tile is its own, and which "
        "query "
        "tiles must pass by?",
        "Load k and v once, masked by offs_n < n_k; dk, dv = tl.zeros. For start_m: load q, do, lse, delta, masked by "
        "offs_m < n_q; s, p, dp, ds; dv += tl.dot(tl.trans(p), do), dk += tl.dot(tl.trans(ds), q). Store dk * scale, "
        "dv.",
        "p = tl.where(visible, tl.exp(s - lse[:, None]), 0.0), with visible = mask_m[:, None] & mask_n[None, :], and "
        "causal also offs_n[None, :] <= offs_m[:, None] + n_k - n_q. Causal, the loop begins at "
        "tl.maximum(start_n + n_q - n_k, 0) // BLOCK_M * BLOCK_M.",
    ),
    reasoning="One program for each key tile: nobody else writes its rows of dK and dV, so nothing has to be locked. "
    "The "
    "mask on p alone settles short tiles, hidden pairs and rows that see nothing, since tl.where takes the 0 "
    "whatever the "
    "other side is. The mask on the loads is for the accesses.",
    imports=TRITON,
    properties=(
        Property(
            "one tile: dV",
            KERNEL_CALL,
            kernel_test("dv"),
            (kernel_case(16, 16),),
            hints=GRADIENT_HINTS | {f": {LSE_BASE_2}": "base", f": {MAX_FOR_LSE}": "lse", "": "plain"},
        ),
        Property(
            "one tile: dK",
            KERNEL_CALL,
            kernel_test("dk"),
            (kernel_case(16, 16),),
            hints=GRADIENT_HINTS | {"": "plain"},
        ),
        Property(
            "several tiles of queries pass by",
            KERNEL_CALL,
            kernel_test("dv", "dk"),
            (kernel_case(48, 16), kernel_case(32, 32, False, 16, 32)),
            hints={"": "add_up"},
        ),
        Property(
            "several programs: each has key tile program_id",
            KERNEL_CALL,
            kernel_test("dv", "dk"),
            (kernel_case(16, 48), kernel_case(32, 32, False, 32, 16)),
            hints={"": "program", ": unwritten": "program"},
        ),
        Property(
            "any lengths: nothing beyond n_q and n_k is read, written or counted",
            KERNEL_CALL,
            kernel_test("dv", "dk"),
            (kernel_case(20, 16), kernel_case(16, 23), kernel_case(1, 1), kernel_case(20, 23, False, 32, 16)),
            hints={": reads outside": "outside", ": writes outside": "outside", "": "tail", ": nan": "tail"},
        ),
        Property(
            "causal: query i sees keys 0 to i + n_k - n_q",
            KERNEL_CALL,
            kernel_test("dv", "dk"),
            (
                kernel_case(16, 16, True),
                kernel_case(24, 24, True),
                kernel_case(20, 40, True),
                kernel_case(40, 40, True, 16, 32),
            ),
            hints={f": {ONE_TOO_MANY}": "off_by_one", f": {ONE_TOO_FEW}": "off_by_one", "": "causal"},
        ),
        Property(
            "causal, more queries than keys: those that see no key have no part in it, and nothing is NaN",
            KERNEL_CALL,
            kernel_test("dv", "dk"),
            (kernel_case(20, 16, True), kernel_case(34, 17, True)),
            hints={"": "nothing_seen", ": nan": "nothing_seen"},
        ),
        Property(
            "K and V are read once, the rest once for each key tile, and nothing twice",
            KERNEL_CALL,
            kernel_bytes,
            (kernel_case(32, 32), kernel_case(20, 23)),
            hints={"": "again"},
        ),
        Property(
            "causal: query tiles that see none of the keys are not read",
            KERNEL_CALL,
            kernel_bytes,
            (kernel_case(32, 32, True), kernel_case(24, 20, True)),
            hints={"": "skip"},
        ),
    ),
    mistakes=SHARED_MISTAKES
    | GRADIENT_MISTAKES
    | {
        "plain": "With one tile this is pass 2 of your tiled_backward with one visit. Compare line by line.",
        "base": "lse is a natural logarithm: tl.exp(s - lse). tl.exp2 would want s and lse both times log2(e).",
        "lse": "A tile knows neither its row's max nor its sum. lse holds both: p = tl.exp(s - lse[:, None]).",
        "add_up": "dk and dv sum over all query tiles: start with tl.zeros before the loop, add with +=, store after "
        "it.",
        "program": "tl.program_id(0) * BLOCK_N is the first of the program's own keys, for its loads and for its "
        "stores.",
        "outside": "A mask goes with every load and store: offs_m < n_q for rows of queries, offs_n < n_k for keys.",
        "tail": "The loop's last tile is a short one: range(first_m, n_q, BLOCK_M) starts it, the mask cuts it. "
        "Lanes that "
        "a mask switches off hold anything unless other= says what, and 0 * NaN is NaN.",
        "causal": "Causal: p is 0 where offs_n > offs_m + n_k - n_q. Positions count in the whole, not in the tile.",
        "off_by_one": "Query i sees key i + n_k - n_q itself, and no later one: <= in what is visible.",
        "nothing_seen": "Such a row has lse = -inf, and -inf - (-inf) is NaN. Mask p with tl.where after the exp: what "
        "stands on the side not taken does not matter.",
        "again": "Count the loads in the loop: q, do, lse, delta. k and v stay, and are loaded before it.",
        "skip": "Query tiles before first_m = max(start_n + n_q - n_k, 0) // BLOCK_M * BLOCK_M see no key of this "
        "tile.",
        "unwritten": "Every row of dk and dv has to be stored, those of short tiles too.",
    },
    common_hints=SHARED_HINTS | {": unwritten": "unwritten"},
    wrong_answers=(
        *caught_by(
            "one tile: dV",
            WrongAnswer("dV from dP", "dv", {"tl.trans(p), do,": "tl.trans(dp), do,"}),
            WrongAnswer("lse in base 2", "base", {"tl.exp(s -": "tl.exp2(s -"}),
            WrongAnswer("the tile's max for lse", "lse", {"s - lse[:, None]": "s - tl.max(s, axis=1)[:, None]"}),
        ),
        *caught_by(
            "one tile: dK",
            WrongAnswer("delta missing", "delta", {"(dp - delta[:, None])": "dp"}),
            WrongAnswer("dS not multiplied by P", "times_p", {"ds = p * (": "ds = ("}),
            WrongAnswer("dP = dO V", "dp", {"tl.dot(do, tl.trans(v),": "tl.dot(do, v,"}),
            WrongAnswer("no scale in dK", "scale", {"dk * scale": "dk"}),
            WrongAnswer("scale twice in dK", "scale", {"dk * scale": "dk * scale * scale"}),
            WrongAnswer("dS not transposed", "transpose", {"tl.trans(ds), q": "ds, q"}),
        ),
        *caught_by(
            "several tiles of queries pass by",
            WrongAnswer("dV overwritten", "add_up", {"dv += tl": "dv = tl"}),
        ),
        *caught_by(
            "several programs: each has key tile program_id",
            WrongAnswer("always the first keys", "program", {"tl.program_id(0) * BLOCK_N": "0"}),
        ),
        *caught_by(
            "any lengths: nothing beyond n_q and n_k is read, written or counted",
            WrongAnswer(
                "last tile of queries dropped",
                "tail",
                {"range(first_m, n_q, BLOCK_M)": "range(first_m, tl.maximum(n_q // BLOCK_M, 1) * BLOCK_M, BLOCK_M)"},
            ),
            WrongAnswer(
                "lse loaded without a mask",
                "outside",
                {"lse_ptr + offs_m, mask=mask_m, other=0.0": "lse_ptr + offs_m"},
            ),
            WrongAnswer("dV stored without a mask", "outside", {"dv, mask=mask_n[:, None])": "dv)"}),
            WrongAnswer(
                "no other for what the mask leaves out",
                "tail",
                {
                    "stride_dom + offs_d[None, :], mask=mask_m[:, None], other=0.0": (
                        "stride_dom + offs_d[None, :], mask=mask_m[:, None]"
                    )
                },
            ),
        ),
        *caught_by(
            "causal: query i sees keys 0 to i + n_k - n_q",
            WrongAnswer(
                "causal ignored",
                "causal",
                {"        if IS_CAUSAL:\n            visible": "        if False:\n            visible"},
            ),
            WrongAnswer(
                "sees the next key", "off_by_one", {"[None, :] <= offs_m[:, None]": "[None, :] <= 1 + offs_m[:, None]"}
            ),
            WrongAnswer("does not see its own key", "off_by_one", {"[None, :] <= offs_m": "[None, :] < offs_m"}),
            WrongAnswer("aligned at the top left", "causal", {"offs_m[:, None] + n_k - n_q": "offs_m[:, None]"}),
        ),
        *caught_by(
            "causal, more queries than keys: those that see no key have no part in it, and nothing is NaN",
            WrongAnswer(
                "-inf minus -inf",
                "nothing_seen",
                {
                    "tl.where(visible, tl.exp(s - lse[:, None]), 0.0)": (
                        'tl.exp(tl.where(visible, s, float("-inf")) - lse[:, None])'
                    )
                },
            ),
        ),
        *caught_by(
            "K and V are read once, the rest once for each key tile, and nothing twice",
            WrongAnswer(
                "V loaded in the loop",
                "again",
                {
                    "        dp = ": (
                        "        v = tl.load(v_ptr + offs_n[:, None] * stride_vn + offs_d[None, :], mask=mask_n[:, "
                        "None], "
                        "other=0.0)\n        dp = "
                    )
                },
            ),
        ),
        *caught_by(
            "causal: query tiles that see none of the keys are not read",
            WrongAnswer(
                "hidden tiles not skipped", "skip", {"tl.maximum(start_n + n_q - n_k, 0) // BLOCK_M * BLOCK_M": "0"}
            ),
        ),
    ),
    right_answers=(
        Variant(
            "transposed scores, as the library has them",
            {
                "tl.dot(q, tl.trans(k), ": "tl.dot(k, tl.trans(q), ",
                "visible = mask_m[:, None] & mask_n[None, :]": "visible = mask_n[:, None] & mask_m[None, :]",
                "(offs_n[None, :] <= offs_m[:, None] + n_k - n_q)": "(offs_n[:, None] <= offs_m[None, :] + n_k - n_q)",
                "tl.exp(s - lse[:, None])": "tl.exp(s - lse[None, :])",
                "tl.dot(do, tl.trans(v), ": "tl.dot(v, tl.trans(do), ",
                "dp - delta[:, None]": "dp - delta[None, :]",
                "tl.trans(p), do": "p, do",
                "tl.trans(ds), q": "ds, q",
            },
        ),
        Variant(
            "base 2, scale inside the loop",
            {
                "        visible = mask_m[:, None]": "        s *= 1.4426950408889634\n        visible = mask_m[:, "
                "None]",
                "tl.exp(s - lse[:, None])": "tl.exp2(s - lse[:, None] * 1.4426950408889634)",
                "ds = p * (": "ds = scale * p * (",
                "dk * scale": "dk",
            },
        ),
    ),
)


EXERCISES = (VJP, WHOLE, DELTA, TILED, TILE)


QUIZ = [
    {
        "question": "What does the forward pass save for the backward, beside Q, K and V?",
        "type": "multiple_choice",
        "answers": [
            option("P, for it is expensive to make", False, "P is N x N; it is made again, tile by tile."),
            option("O and lse", True, "N d numbers and N numbers; P = exp(S - lse), delta = rowsum(dO * O)."),
            option("The running max of every tile", False, "lse replaces max and sum: one number a row."),
        ],
    },
    {
        "question": "Why is there no max subtraction in P = exp(S - lse)?",
        "type": "multiple_choice",
        "answers": [
            option("Gradients need no precision", False, "They need the same P as the forward had."),
            option("The max is subtracted later, from dS", False, "Nothing is subtracted from dS."),
            option("lse is at least as large as each score of its row", True, "So every exponent is at most 0."),
        ],
    },
    {
        "question": "delta_i = sum_j P_ij dP_ij runs over all keys. Why can a tile use it all the same?",
        "type": "multiple_choice",
        "answers": [
            option("It equals dO_i . O_i, known before the loop", True, "The sum over keys has become P V = O."),
            option("It is small and may be left out", False, "Without it dS is wrong by p times delta, everywhere."),
            option("Each tile's own sum is close enough", False, "A tile's sum is not the row's."),
        ],
    },
    {
        "question": "S is computed again in the backward. Counted in matrix products, forward and backward together, "
        "by how much more work is that than keeping P?",
        "type": "multiple_choice",
        "answers": [
            option("Half as much again", False, "That would be 9 products for 6."),
            option("7 products instead of 6: 17 % more", True, "5 instead of 4 in the backward, 2 in the forward."),
            option("Nothing: exp is what costs", False, "S = Q K^T is a product like the others."),
        ],
    },
    {
        "question": "Why do dK and dV on one side and dQ on the other have passes of their own here?",
        "type": "multiple_choice",
        "answers": [
            option("They need different probabilities", False, "Both recompute the same P and dS."),
            option("dQ needs delta, and the others do not", False, "dK needs it as well, through dS."),
            option(
                "No single loop order finishes the rows of both", True, "Else dQ is read and written again and again."
            ),
        ],
    },
]
