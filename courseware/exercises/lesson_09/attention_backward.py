"""The gradients of attention with whole matrices: FlashAttention-2 (Dao, 2023), section 2.3.2."""

import numpy as np

from courseware.checks import Checks, Evidence, Exercise, compare, not_modified
from courseware.exercises.common.generators import as_floats, in_float32
from courseware.exercises.lesson_09.gradients import ALIKE, COLUMN, SENTENCE, SQUARE, expected_gradients, small_inputs


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


def gives(*names):
    """A test of these outputs alone, so that the learner meets one gradient after the other."""

    def test(returned, **inputs):
        evidence = compare(returned, expected_gradients(**inputs))
        if evidence is None:
            return None
        if evidence.findings[0].kind == "swapped" and not any(name in evidence.findings[0].text for name in names):
            return None  # what these are is right
        findings = tuple(finding for finding in evidence.findings if finding.part in ("", *names))
        return Evidence(findings, evidence.returned, evidence.expected) if findings else None

    return test


LARGE = as_floats(q=[[1], [0]], k=[[1000], [999]], v=[[1], [2]], do=[[1], [1]])
check = Checks("attention_backward(q, k, v, do)", gives("dQ", "dK", "dV"))

check("one column, whose scale is 1: dV = P^T dO, with P the softmax of Q K^T", [COLUMN], test=gives("dV"))
check("dV = P^T dO, with P the softmax of the scaled scores", [SQUARE, small_inputs(square=True)], test=gives("dV"))
check("all keys and values alike: dP is the sum of P * dP, dQ and dK are 0", [ALIKE], test=gives("dQ", "dK"))
check("one column, whose scale is 1: dQ = dS K", [COLUMN], test=gives("dQ"))
check("one column, whose scale is 1: dK = dS^T Q", [COLUMN], test=gives("dK"))
check("dQ = scale dS K", [SQUARE, small_inputs(square=True)], test=gives("dQ"))
check("dK = scale dS^T Q", [SQUARE, small_inputs(square=True)], test=gives("dK"))
check(
    "any numbers of queries, keys and columns",
    [
        SENTENCE,
        as_floats(q=[[1, 1, 1, 1]], k=[[1, 0, 0, 1], [0, 0, 0, 0]], v=[[1, 2, 3, 4], [4, 0, 1, 1]], do=[[1, 2, 0, 1]]),
        small_inputs(),
    ],
)
check(
    "scores in the thousands do not overflow",
    [LARGE, *(LARGE | {"k": np.array([[most], [0.0]])} for most in (1000.0, 4000.0))],
)
check("the inputs are not modified", [SQUARE, in_float32(SQUARE)], calls=not_modified)

EXERCISE = Exercise(__file__, attention_backward, check, points=3, minutes=12, difficulty="medium")
