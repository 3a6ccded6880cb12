import re
from html import unescape

import numpy as np
import pytest
import torch

from course_lib.kernels.plain_forward import plain_attention
from course_lib.reference import example, scores, tiled_attention
from courseware.explorers import hero

Q, K, V = example.Q[3:], example.K[list(hero.KEYS)], example.V[list(hero.KEYS)]


@pytest.mark.parametrize("name", hero.SOURCES)
def test_after_every_round_the_state_is_that_of_the_keys_so_far(name):
    block, unit, *_ = hero.SOURCES[name]
    s, every = scores(Q, K, 1.0)[0], hero.moments(name)
    rounds = [now for now in every if now.phase == "acc"]
    for number, now in enumerate([*rounds, every[-1]], start=1):
        seen = min(number * block, len(s))
        p = np.exp(s[:seen] - s[:seen].max())
        assert now.m == unit * s[:seen].max()
        assert np.count_nonzero(now.scores > 0) == np.count_nonzero(now.weights) == seen
        np.testing.assert_allclose([*now.weights[:seen], now.l, *now.acc], [*p, p.sum(), *p @ V[:seen]], rtol=1e-14)
    assert {0, 1} < {now.alpha for now in rounds}, "the maximum rises, and stays"
    tiled = tiled_attention(Q, K, V, block_q=1, block_k=block, scale=1.0)
    np.testing.assert_allclose(every[-1].acc / every[-1].l, tiled[0], rtol=1e-14)


def test_the_kernel_whose_lines_are_shown_ends_with_the_same_state():
    q, k, v = (torch.tensor(x, dtype=torch.float32)[None, None] for x in (Q, K, V))
    o, lse = plain_attention(q, k, v, scale=1.0, block_q=16, block_k=16)
    end = hero.moments("kernel")[-1]
    np.testing.assert_allclose(o.flatten(), end.acc / end.l, rtol=1e-6)
    np.testing.assert_allclose(lse.item(), end.m * np.log(2) + np.log(end.l), rtol=1e-6)


@pytest.mark.parametrize("name", hero.SOURCES)
def test_the_lines_of_a_step_light_up_and_the_numbers_that_it_changes(name):
    before = {}
    for step, now in enumerate(hero.moments(name)):
        html = unescape(hero.page(name, step).html())
        assert re.findall("class=lit.*?>(.*?)</div>", html) == [
            line.strip() for phase, line in hero.code(name) if phase == now.phase
        ]
        state = hero.state(now)
        changed = [of for of in state if before and state[of] != before[of]]
        assert re.findall('<div class="lit"><b>.*?</b> <span>(.*?)</span>', html) == changed
        before = state
    assert "initial" not in str(hero.code("stream")) and 'float("-inf")' in str(hero.code("kernel"))
