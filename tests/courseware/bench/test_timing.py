"""The clock for back-to-back calls, on times that are made up."""

import time

import pytest
import torch

from courseware.bench import timing


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
