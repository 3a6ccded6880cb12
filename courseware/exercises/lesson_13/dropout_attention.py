"""Attention with dropout, and its gradients: which weights the backward needs with dropout, and which without."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from courseware.checks import Checks, Exercise, ExpectedOutput, agrees, exact_and_plain, not_modified
from courseware.exercises.common.generators import drawn_case, in_both_dtypes
from courseware.exercises.common.oracles import weights
from courseware.exercises.common.parts import setting_aside


def dropout_attention(Q, K, V, dO, kept, p):
    """Attention with dropout, and its gradients: (O, dQ, dK, dV).

    Q, dO: [n_q, d]; K, V: [n_k, d]; n_q, n_k and d at least 1; all float32 or all float64, and the results may have
        either dtype. Scores are Q K^T / sqrt(d), nothing masked, and P is their softmax.
    kept: [n_q, n_k] of bool, which weights dropout keeps. The others become 0, and those that are kept are divided by
        1 - p, with 0 <= p < 1, so that O is on average what it is without dropout. Whatever p is, any weights may be
        dropped, even all of a query's.
    dO: the gradient of the loss with respect to O. Scores of any size must not overflow. Nothing is modified.

    >>> q, k, v, do = np.array([[0.0]]), np.array([[1.0], [3.0]]), np.array([[2.0], [4.0]]), np.array([[1.0]])
    >>> [x.ravel().tolist() for x in dropout_attention(q, k, v, do, np.array([[True, False]]), 0.5)]
    [[2.0], [-2.0], [0.0, 0.0], [1.0, 0.0]]
    """
    scale = Q.shape[1] ** -0.5
    S = Q @ K.T * scale
    P = np.exp(S - S.max(axis=1, keepdims=True))
    P = P / P.sum(axis=1, keepdims=True)
    Z = kept / (1 - p)
    O = (P * Z) @ V
    dV = (P * Z).T @ dO
    dP = (dO @ V.T) * Z
    delta = (O * dO).sum(axis=1, keepdims=True)
    dS = P * (dP - delta)
    return O, scale * (dS @ K), scale * (dS.T @ Q), dV


def by_the_reference(q, k, v, do, kept, p):
    """O, dQ, dK and dV, with the gradient through the softmax from the reference."""
    P, z = reference.stable_softmax(reference.scores(q, k)), (kept / (1 - p)).astype(q.dtype)
    dS = q.dtype.type(q.shape[1] ** -0.5) * reference.softmax_vjp(P, do @ v.T * z)
    return P * z @ v, dS @ k, dS.T @ q, (P * z).T @ do


def expected_outputs(q, k, v, do, kept, p):
    exact, plain = exact_and_plain(lambda q, k, v, do: by_the_reference(q, k, v, do, kept, p), q, k, v, do)
    largest = {name: np.abs(x).max() for name, x in (("q", q), ("k", k), ("v", v), ("do", do))}
    # A score's own rounding, relative to its terms, is a relative error of its weight.
    z, scale = 1 / (1 - p), q.shape[1] ** -0.5
    size = 1 + scale * q.shape[1] * largest["q"] * largest["k"]
    ds = size * z * 2 * q.shape[1] * largest["v"] * largest["do"] * scale
    terms = size * z * largest["v"], ds * largest["k"], len(q) * ds * largest["q"], len(q) * size * z * largest["do"]
    names, counted = ("O", "dQ", "dK", "dV"), ("query", "query", "key", "key")
    outputs = [ExpectedOutput(*output) for output in zip(names, exact, plain, terms, counted, strict=True)]
    return [replace(outputs[0], product=lambda: ("key", weights(q, k) * kept / (1 - p), v)), *outputs[1:]]


def case(q, k, v, do, kept, p=0.25):
    q, k, v, do = (np.array(x, dtype=np.float64) for x in (q, k, v, do))
    return {"q": q, "k": k, "v": v, "do": do, "kept": np.array(kept, dtype=bool), "p": p}


SHAPES = {"q": "n_q d", "k": "n_k d", "v": "n_k d", "do": "n_q d", "kept": "n_q n_k"}
INPUTS = drawn_case({"n_q": 3, "n_k": 3, "d": 2}, **SHAPES, p=st.sampled_from([0.25, 0.1, 0.5, 0.0]))

SQUARE = case([[1, -1], [2, 1]], [[2, 1], [0, -1]], [[2, 0.5], [3, -1]], [[1, 2], [2, 1]], [[1, 0], [1, 1]])
MORE_KEYS = case(
    [[1, 0.5], [-1, 2]], [[1, 0], [0.5, 1], [-1, 1]], [[2, 1], [0, 3], [1, -2]], [[1, 2], [3, -1]],
    [[1, 0, 1], [1, 1, 0]],
)  # fmt: skip
ALL = {name: np.ones_like(x) if name == "kept" else x for name, x in MORE_KEYS.items()} | {"p": 0.0}
# No gradient but those of saturated rows cancels to 0, where forms of one mistake differ by their rounding.
LARGE = case([[1], [1]], [[1000], [999]], [[1], [2]], [[1], [2]], [[1, 0], [1, 1]])
right = agrees(expected_outputs)
check = Checks("dropout_attention(q, k, v, do, kept, p)", right)

EVERYTHING = [ALL, SQUARE | {"kept": np.ones((2, 2), bool), "p": 0.0}]
check("p = 0 and everything kept: O is that of attention", EVERYTHING, test=setting_aside(right, "dQ", "dK", "dV"))
check("p = 0 and everything kept: dV = P^T dO", EVERYTHING, test=setting_aside(right, "O", "dQ", "dK"))
ONE_KEY = ALL | {"k": np.array([[1.0, 0.5]]), "v": np.array([[2.0, 1.0]]), "kept": np.ones((2, 1), dtype=bool)}
check("p = 0 and one key, which is kept: dQ and dK are 0", [ONE_KEY], test=setting_aside(right, "O", "dV"))
check("p = 0 and everything kept: attention and its gradients", EVERYTHING)
DROPPED = [SQUARE, MORE_KEYS, MORE_KEYS | {"p": 0.1}]
check("O: weights are dropped, and the others divided by 1 - p", DROPPED, test=setting_aside(right, "dQ", "dK", "dV"))
check("dV: what a value gave, it gets back", DROPPED, test=setting_aside(right, "O", "dQ", "dK"))
check("dQ and dK: through dropout first, and then through the softmax", DROPPED, test=setting_aside(right, "O", "dV"))
check("a query of which nothing is kept", [SQUARE | {"kept": np.array([[True, True], [False, False]])}])
check("scores near 1000 do not overflow", [LARGE, LARGE | {"k": np.array([[1000.0], [0.0]])}])
check(
    "scores that are 1000 apart from query to query",
    [case([[1], [1000]], [[1], [1.5]], [[1], [2]], [[1], [1]], [[1, 1], [1, 1]])],  # 0 * NaN would differ from 0
)
check("the inputs are not modified", in_both_dtypes(SQUARE), calls=not_modified)
check("any inputs", [MORE_KEYS | {"p": 0.5}, INPUTS.map(lambda drawn: case(**drawn))])

EXERCISE = Exercise(__file__, dropout_attention, check, points=4, minutes=15, difficulty="medium")
