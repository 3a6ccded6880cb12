"""What the exercises on the gradients of attention share: the oracle and inputs."""

import numpy as np

from course_lib import reference
from course_lib.reference import example
from courseware.checks import ExpectedOutput, exact_and_plain, expected
from courseware.exercises.common.generators import as_floats, drawn_case
from courseware.exercises.common.oracles import weights


def expected_gradients(q, k, v, do, causal=False, scale=None):
    """dQ, dK and dV as outputs to compare with."""

    def gradients(q, k, v, do):
        o, lse = reference.attention(q, k, v, causal=causal, scale=scale, return_lse=True)
        return reference.attention_backward(q, k, v, o, lse, do, causal=causal, scale=scale)

    exact, plain = exact_and_plain(gradients, q, k, v, do)
    scale = q.shape[1] ** -0.5 if scale is None else scale
    P = weights(np.float64(q), np.float64(k), causal, scale)
    dS = scale * reference.softmax_vjp(P, np.float64(do) @ np.float64(v).T)
    q_size, k_size, v_size, do_size = map(np.abs, (q, k, v, do))
    # A score's own rounding, relative to its terms, is a relative error of its weight.
    P_size = P * (1 + scale * (q_size @ k_size.T).max(axis=1, keepdims=True))
    dS_size = scale * P_size * (do_size @ v_size.T + (P_size @ v_size * do_size).sum(axis=1, keepdims=True))
    terms = dS_size @ k_size, dS_size.T @ q_size, P_size.T @ do_size
    dq, dk, dv = zip(exact, plain, terms, strict=True)
    return [
        ExpectedOutput("dQ", *dq, "query", product=lambda: ("key", dS, np.float64(k))),
        ExpectedOutput("dK", *dk, "key", product=lambda: ("query", dS.T, np.float64(q))),
        ExpectedOutput("dV", *dv, "key", product=lambda: ("query", P.T, np.float64(do))),
    ]


def expected_delta(o, do):
    """delta, alone in a list, as the output to compare with."""
    return expected("delta", reference.backward.delta, o, do, terms=np.abs(o * do).sum(axis=1).max(), index="query")


def small_inputs(square=False, most=3, **others):
    """Small q, k, v and do. square: as many queries as keys and columns, so that no wrong transpose raises."""
    rows = {"q": "n_q", "k": "n_k", "v": "n_k", "do": "n_q"}
    shapes = {name: "d d" if square else f"{n} d" for name, n in rows.items()}
    return drawn_case({"n_q": most, "n_k": most, "d": 2}, **shapes, **others)


SENTENCE = as_floats(q=example.Q, k=example.K, v=example.V, do=[[1, 0], [0, 1], [1, 1], [2, -1]])
SQUARE = as_floats(q=[[1, -1], [2, 1]], k=[[2, 1], [0, -1]], v=[[2, 0.5], [3, -1]], do=[[1, 2], [2, 1]])
FEWER_QUERIES = SENTENCE | {name: SENTENCE[name][:3] for name in ("q", "do")}
FEWER_KEYS = SENTENCE | {name: SENTENCE[name][:2] for name in "kv"}
COLUMN = as_floats(q=[[1], [2]], k=[[1], [-1]], v=[[2], [3]], do=[[1], [2]])
ALIKE = COLUMN | as_floats(k=[[1], [1]], v=[[2], [2]])
# With causal: hidden scores far above the visible ones, and far below.
HIDDEN = [COLUMN | as_floats(q=[[1], [1]], k=keys, v=[[1], [2]]) for keys in ([[-4e6], [-8e6]], [[1], [2000]])]
