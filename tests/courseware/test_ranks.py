"""Processes that a notebook starts as ranks: what they return, and that none of them can hang or end the notebook."""

import time

import pytest

from courseware import ranks


def summed(rank, size):
    import torch
    import torch.distributed as dist

    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x)
    return rank, size, x.item()


def one_raises_and_one_ends(rank, size):
    import os

    import torch.distributed as dist

    dist.barrier()  # both are connected, so that neither fails for the other's end
    if rank == 1:
        raise ValueError("rank 1 has had enough")
    os._exit(7)


def one_never_comes(rank, size):
    import time

    import torch.distributed as dist

    if rank == 1:
        time.sleep(600)
    dist.barrier()
    raise AssertionError("the barrier was passed")


def test_each_rank_returns_what_its_function_does():
    assert ranks.run(summed, 2) == [(0, 2, 3.0), (1, 2, 3.0)]


def test_each_rank_that_fails_has_a_line():
    with pytest.raises(ranks.RanksFailed) as caught:
        ranks.run(one_raises_and_one_ends, 2)
    lines = ["rank 0: its process ended with code 7", "rank 1: ValueError: rank 1 has had enough"]
    assert sorted(str(caught.value).splitlines()) == lines
    assert caught.value._render_traceback_() == [str(caught.value)]


def test_a_rank_that_does_not_come_keeps_nobody_for_ever():
    begin = time.monotonic()
    with pytest.raises(ranks.RanksFailed) as caught:
        ranks.run(one_never_comes, 2, timeout_s=6)
    said = dict(line.split(": ", 1) for line in str(caught.value).splitlines())
    assert said.keys() == {"rank 0", "rank 1"} and "the barrier was passed" not in said["rank 0"]
    assert time.monotonic() - begin < 6 + ranks.GRACE_S + 20
