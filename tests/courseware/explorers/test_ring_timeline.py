"""The timeline of a ring: what is drawn is the simulation, and the words are its numbers."""

import itertools

import numpy as np
import pytest

from courseware.explorers import ring_timeline as explorer
from courseware.simulators import ring

from .conftest import numbers, tips

CHOSEN = [
    {"ranks": ranks, "zigzag": zigzag, "n": n, "link": link}
    for ranks, zigzag, n, link in itertools.product((2, 4), (True, False), (8192, 131_072), explorer.LINKS)
]


@pytest.mark.parametrize("s", CHOSEN, ids=str)
def test_what_is_drawn_is_the_simulation(s):
    model = explorer.evaluate(**s)
    page = explorer.draw(model)
    spans = {"computes with": ("start", "computed"), "sends the keys": ("send", "sent")}
    for what, (begin, end) in spans.items():
        drawn = [tuple(numbers(tip)[-2:]) for tip in tips(page, rf"step \d+: rank \d+ {what} ")]
        steps = [(1e3 * getattr(x, begin), 1e3 * getattr(x, end)) for x in model.steps.values()]
        shown = [step for step in steps if step[1] > step[0]]
        assert sorted(drawn) == [pytest.approx(step, rel=1e-3, abs=1e-4) for step in sorted(shown)]
    assert f"Timeline of {1e3 * model.end:.3g} ms" in page.alt


def test_steps_have_all_pairs_and_zigzag_ones_take_equally_long_and_wait_for_what_the_link_leaves():
    assert [ring.visible_pairs(18, 3, zigzag).sum() for zigzag in (True, False)] == [18 * 19 // 2] * 2
    model = explorer.evaluate(ranks=4, n=131_072)
    later = [of[1:] for of in model.compute]
    assert np.ptp(later) == 0 and max(ring.waited(model.compute, model.transfer)) == pytest.approx(0, abs=1e-12)
    slow = explorer.evaluate(ranks=4, n=8192, link="a network, 12.5 GB/s")
    due = sum(max(0, slow.transfer - seconds) for seconds in slow.compute[0][:-1])
    assert ring.waited(slow.compute, slow.transfer) == pytest.approx([due] * 4)


def test_a_link_counts_and_copies():
    link, x = ring.Link(2), np.ones((3, 2), np.float32)
    arrived = link.send(1, x)
    x[:] = 0
    assert (arrived == 1).all() and link.sent_bytes == [0, 24] and link.sends == [0, 1]
    with pytest.raises(ValueError, match="rank is -1; accepted: 0 to 1"):
        link.send(-1, x)
