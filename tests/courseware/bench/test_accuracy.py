"""Wrong answers are found before anything is timed."""

import pytest
import torch

from courseware.bench import accuracy
from courseware.bench.accuracy import check_answers


@pytest.mark.parametrize("causal", (False, True))
def test_answers_that_are_wrong_are_not_timed(causal):
    q, k, v, do = (torch.randn(2, 2, 40, 16, generator=torch.Generator().manual_seed(i)).half() for i in range(4))
    o = accuracy.exact_attention(q, k, v, causal=causal)[0].half()
    gradients = [x.half() for x in accuracy.exact_gradients(q, k, v, do, causal=causal)]
    check_answers({"right": [o]}, (q, k, v), causal)
    check_answers({"right": gradients, "some": [None, *gradients[1:]]}, (q, k, v, do), causal)
    last_wrong, one_wrong = o.clone(), o.clone()
    last_wrong[-1, -1] = 0
    one_wrong[0, 0, 39, 3] += 0.01
    for wrong in (1.004 * o, o.roll(1, 2), o * torch.nan, last_wrong, one_wrong):
        with pytest.raises(RuntimeError, match=r"wrong answers are not timed: wrong, \[2, 2, 40, 16\]: o: "):
            check_answers({"right": [o], "wrong": [wrong]}, (q, k, v), causal)
    with pytest.raises(RuntimeError, match="not timed: wrong, .*dk: "):
        check_answers({"wrong": [gradients[0], gradients[2], gradients[1]]}, (q, k, v, do), causal)
