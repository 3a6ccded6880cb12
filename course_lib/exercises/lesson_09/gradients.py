"""What the exercises on the gradients of attention share: the oracle and inputs."""

import functools

import numpy as np
from hypothesis import strategies as st

from course_lib import reference
from course_lib.exercises.common.generators import arrays, as_floats
from course_lib.grading.diagnosis import exact_and_plain
from course_lib.grading.exercise import ExpectedOutput
from course_lib.reference import example


def gradients(q, k, v, do, causal=False):
    """(dQ, dK, dV) by the reference, which computes in the dtype of the inputs."""
    o, lse = reference.attention(q, k, v, causal=causal, return_lse=True)
    return reference.attention_backward(q, k, v, o, lse, do, causal=causal)


def expected_gradients(q, k, v, do, causal=False):
    """dQ, dK and dV as outputs to compare with."""
    exact, plain = exact_and_plain(functools.partial(gradients, causal=causal), q, k, v, do)
    n_q, d = q.shape
    # A score's own rounding, relative to its terms, is a relative error of its weight.
    conditioning = 1 + (np.abs(q) @ np.abs(k).T).max() / np.sqrt(d)
    of_ds = 2 * conditioning * (np.abs(do) @ np.abs(v).T).max() / np.sqrt(d)
    terms = of_ds * np.abs(k).max(), of_ds * n_q * np.abs(q).max(), conditioning * np.abs(do).sum(axis=0).max()
    names, counted = ("dQ", "dK", "dV"), ("query", "key", "key")
    return [ExpectedOutput(*output) for output in zip(names, exact, plain, terms, counted, strict=True)]


def expected_delta(o, do):
    """delta as the output to compare with."""
    exact, plain = exact_and_plain(reference.backward.delta, o, do)
    return ExpectedOutput("delta", exact, plain, np.abs(o * do).sum(axis=1).max(), "query")


@st.composite
def gradient_inputs(draw, square=False):
    """Small q, k, v and do. square: as many queries as keys and columns, so that no wrong transpose raises."""
    n_q, n_k, d = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    if square:
        n_q = n_k = d
    return {name: arrays(draw, n, d) for name, n in (("q", n_q), ("k", n_k), ("v", n_k), ("do", n_q))}


SENTENCE = as_floats(q=example.Q, k=example.K, v=example.V, do=[[1, 0], [0, 1], [1, 1], [2, -1]])
SQUARE = as_floats(q=[[1, -1], [2, 1]], k=[[2, 1], [0, -1]], v=[[2, 0.5], [3, -1]], do=[[1, 2], [2, 1]])
