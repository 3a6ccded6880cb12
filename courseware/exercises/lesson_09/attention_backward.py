"""The gradients of attention with whole matrices: FlashAttention-2 (Dao, 2023), section 2.3.2."""

import numpy as np

from courseware.checks import Checks, Exercise, agrees, not_modified

from ..common.generators import as_floats, in_both_dtypes
from ..common.parts import setting_aside
from .gradients import ALIKE, COLUMN, FEWER_KEYS, SENTENCE, SQUARE, expected_gradients, small_inputs


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


LARGE = as_floats(q=[[1], [0]], k=[[1000], [999]], v=[[1], [2]], do=[[1], [1]])
right = agrees(expected_gradients)
check = Checks("attention_backward(q, k, v, do)", right)

AS_MANY = [COLUMN, SQUARE, small_inputs(square=True)]
check("dV = P^T dO, with P the softmax of the scaled scores", AS_MANY, test=setting_aside(right, "dQ", "dK"))
check("all keys and values alike: dP is the sum of P * dP, dQ and dK are 0", [ALIKE], test=setting_aside(right, "dV"))
check("dQ = scale dS K", AS_MANY, test=setting_aside(right, "dK", "dV"))
check("dK = scale dS^T Q", AS_MANY, test=setting_aside(right, "dQ", "dV"))
check("any numbers of queries, keys and columns", [SENTENCE, FEWER_KEYS, small_inputs()])
check("scores in the thousands do not overflow", [LARGE, LARGE | {"k": np.array([[4000.0], [0.0]])}])
check("the inputs are not modified", in_both_dtypes(SQUARE), calls=not_modified)

EXERCISE = Exercise(__file__, attention_backward, check, points=3, minutes=12, difficulty="medium")
