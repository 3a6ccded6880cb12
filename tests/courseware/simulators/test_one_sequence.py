"""The kernel of exercise 17.course_attention: right where it takes what it is given, and clear where it does not."""

import numpy as np
import pytest

from course_lib import reference
from courseware.simulators.one_sequence import Kernel


def test_it_is_causal_attention_of_the_last_queries():
    rng, kernel = np.random.default_rng(0), Kernel(gain=3)
    q, k, v = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 5, 4)), rng.standard_normal((2, 5, 4))
    due = [reference.attention(*x, causal=True, scale=0.7) for x in zip(q, k, v, strict=True)]
    np.testing.assert_allclose(kernel.attention(q, k, v, 0.7), 3 * np.stack(due), rtol=1e-12)
    assert kernel.launches == kernel.traces() == [(3, 5)]


@pytest.mark.parametrize(
    "q, k, scale, said",
    [
        ((2, 3, 4), (1, 5, 4), 1.0, "as many heads"),
        ((2, 3, 4), (2, 2, 4), 1.0, "no more than keys"),
        ((2, 0, 4), (2, 2, 4), 1.0, "at least one query"),
        ((1, 2, 3, 4), (2, 3, 4), 1.0, r"accepted: \[heads, tokens, d\]"),
        ((2, 3, 4), (2, 5, 4), None, "scale is None; accepted: a number"),
    ],
)
def test_what_it_does_not_take_it_refuses(q, k, scale, said):
    with pytest.raises(ValueError, match=said):
        Kernel().attention(np.zeros(q), np.zeros(k), np.zeros(k), scale)
