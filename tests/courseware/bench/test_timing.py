"""The clock for back-to-back calls, on times that are made up; and wrong answers are found before anything is timed."""

import time

import pytest
import torch

from courseware.bench import accuracy, timing
from courseware.bench.accuracy import check_answers


@pytest.mark.parametrize("wait, expected_s", [(False, 0.0), (True, 0.005)])
def test_a_series_ends_with_the_gpu_or_with_the_host(monkeypatch, wait, expected_s):
    queued = []

    def synchronize():
        time.sleep(0.005 * len(queued))
        queued.clear()

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    seconds = timing.back_to_back_s({"a": lambda: queued.append(1)}, calls=4, wait=wait, min_rounds=3, min_s=0)["a"]
    assert expected_s <= seconds < expected_s + 0.004


def test_series_take_turns_until_rounds_and_time_suffice_and_the_fastest_counts(monkeypatch):
    now_s, order = [0.0], []
    spent_s = {"a": iter([3.0, 1.0, 2.0] + 99 * [4.0]), "b": iter(102 * [2.0])}

    def call(name):
        order.append(name)
        now_s[0] += next(spent_s[name])

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    contestants = {name: lambda name=name: call(name) for name in "ab"}
    fastest_s = timing.back_to_back_s(contestants, calls=1, wait=False, min_rounds=3, min_s=0)
    assert fastest_s == {"a": 1.0, "b": 2.0} and order == ["a", "b"] * 3
    timing.back_to_back_s(contestants, calls=1, wait=False, min_rounds=1, min_s=20)
    assert len(order) == 6 + 2 * 4, "four rounds of 4 + 2 seconds, until 20 have passed"


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
