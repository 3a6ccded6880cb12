"""Softmax in its three forms, the entropy of its weights, and the algebra of partial states."""

import functools
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.reference import (
    entropy,
    logsumexp,
    merge_states,
    naive_softmax,
    online_softmax_update,
    stable_softmax,
)

IDENTITY = (-np.inf, 0, 0)
# Of the inputs, and of the statistics over them.
DTYPES = [("f2", "f4"), ("f4", "f4"), ("f8", "f8")]
deterministic = settings(derandomize=True, deadline=None, database=None, max_examples=100)


def direct_state(scores, values):
    """The state by its definition: m = max, l = sum of exp(s - m), acc = sum of exp(s - m) v."""
    m = scores.max(axis=-1)
    p = np.exp(scores - m[..., None])
    return m, p.sum(axis=-1), p @ values


def assert_states_close(a, b, rtol=1e-12):
    """Equal as states: the same m, and l and acc equal relative to the largest entry."""
    np.testing.assert_array_equal(a[0], b[0])
    np.testing.assert_allclose(a[1], b[1], rtol=rtol)
    scale = np.abs(b[2]).max(initial=1.0)
    np.testing.assert_allclose(a[2] / scale, np.broadcast_to(b[2], np.shape(a[2])) / scale, atol=rtol)


def fold(scores, values, block):
    """The state after each block of a stream."""
    states = [IDENTITY]
    for start in range(0, scores.shape[-1], block):
        stop = start + block
        states.append(online_softmax_update(*states[-1], scores[..., start:stop], values[start:stop]))
    return states


@pytest.mark.parametrize("softmax", [naive_softmax, stable_softmax])
def test_softmax_keeps_shape_and_dtype_and_sums_to_one(softmax):
    for dtype, axis in itertools.product((np.float16, np.float64), (-1, 0)):
        x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(dtype)
        x.setflags(write=False)
        p = softmax(x, axis=axis)
        assert p.dtype == dtype and p.shape == x.shape, (dtype, axis)
        np.testing.assert_allclose(p.astype(np.float64).sum(axis=axis), 1, atol=5 * np.finfo(dtype).eps)


def test_adding_a_constant_changes_no_weight_and_moves_logsumexp_by_it():
    """Even where every exp would overflow, or underflow to 0; and what is not a number stays so."""
    x = np.random.default_rng(1).normal(size=(4, 9))
    for shift in (1e3, -1e3):
        np.testing.assert_allclose(stable_softmax(x + shift), stable_softmax(x), rtol=1e-11)
        np.testing.assert_allclose(logsumexp(x + shift), shift + np.log(np.exp(x).sum(axis=1)), rtol=1e-12)
    assert np.isnan(stable_softmax(np.array([np.nan, -1e3]))).all()


@pytest.mark.parametrize("dtype, result", DTYPES)
def test_statistics_are_float32_up_to_float32_inputs(dtype, result):
    rng = np.random.default_rng(2)
    x, values = rng.normal(size=(3, 7)).astype(dtype), rng.normal(size=(7, 4)).astype(dtype)
    state = fold(x, values, 2)[-1]
    assert {part.dtype for part in (*state, *merge_states(state, state), logsumexp(x))} == {np.dtype(result)}
    np.testing.assert_allclose(logsumexp(x, axis=0), np.log(np.exp(x.astype(np.float64)).sum(axis=0)), rtol=1e-6)


@deterministic
@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from([(), (1,), (5,), (2, 3)]),
    length=st.integers(1, 40),
    d=st.integers(1, 9),
    block=st.integers(1, 41),
    size=st.sampled_from([0.0, 1.0, 30.0, 1e3]),
    sort=st.sampled_from([None, "ascending", "descending"]),
)
def test_the_online_invariant_holds_after_every_block(seed, shape, length, d, block, size, sort):
    rng = np.random.default_rng(seed)
    scores = size * rng.normal(size=(*shape, length))
    if sort is not None:
        scores = np.sort(scores, axis=-1)[..., :: 1 if sort == "ascending" else -1]
    values = rng.normal(size=(length, d))
    for step, state in enumerate(fold(scores, values, block)):
        if step > 0:
            seen = min(step * block, length)
            assert [np.shape(part) for part in state] == [shape, shape, (*shape, d)]
            assert_states_close(state, direct_state(scores[..., :seen], values[:seen]), rtol=1e-11)


@deterministic
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1.0, 1e3]),
    hidden=st.sampled_from([0, 0.5, 0.95]),
    cuts=st.lists(st.integers(0, 40), min_size=2, max_size=5),
)
def test_merge_is_associative_commutative_and_has_an_identity(seed, size, hidden, cuts):
    rng = np.random.default_rng(seed)
    scores, values = size * rng.normal(size=(3, 40)), rng.normal(size=(40, 4))
    scores[rng.random(scores.shape) < hidden] = -np.inf
    edges = [0, *sorted(cuts), 40]
    # Rows with nothing visible are no reason for a warning.
    with np.errstate(all="raise", under="ignore"):
        parts = [
            online_softmax_update(*IDENTITY, scores[:, start:stop], values[start:stop])
            for start, stop in itertools.pairwise(edges)
        ]
        whole = online_softmax_update(*IDENTITY, scores, values)
        left = functools.reduce(merge_states, parts)
        right = functools.reduce(lambda state, part: merge_states(part, state), reversed(parts))
    assert_states_close(left, whole)
    assert_states_close(right, whole)
    a, b = parts[:2]
    assert_states_close(merge_states(a, b), merge_states(b, a), rtol=0)
    assert_states_close(merge_states(a, IDENTITY), a, rtol=0)
    assert_states_close(merge_states(IDENTITY, a), a, rtol=0)


def test_entropy_agrees_with_pytorch():
    p = stable_softmax(np.random.default_rng(0).normal(size=(5, 7)), axis=0)
    expected = torch.distributions.Categorical(probs=torch.from_numpy(p.T)).entropy()
    np.testing.assert_allclose(entropy(p, axis=0), expected, rtol=1e-12)
    assert entropy(np.eye(3, dtype=np.float16)[0]) == 0
    assert entropy(np.full(4, 0.25, np.float16)).dtype == np.float32
