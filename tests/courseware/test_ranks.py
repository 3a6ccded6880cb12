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


def one_raises(rank, size):
    import torch.distributed as dist

    if rank == 1:
        raise ValueError("rank 1 has had enough")
    dist.barrier()


def one_ends(rank, size):
    import os

    import torch.distributed as dist

    if rank == 0:
        os._exit(7)
    dist.barrier()


def one_never_comes(rank, size):
    import time

    import torch.distributed as dist

    if rank == 1:
        time.sleep(600)
    dist.barrier()


def test_each_rank_returns_what_its_function_does():
    assert ranks.run(summed, 3) == [(0, 3, 6.0), (1, 3, 6.0), (2, 3, 6.0)]


@pytest.mark.parametrize(
    "function, timeout_s, first",
    [
        (one_raises, 60, "rank 1: ValueError: rank 1 has had enough"),
        (one_ends, 60, "rank 0: its process ended with code 7"),
        (one_never_comes, 12, "rank 0: "),
    ],
)
def test_a_rank_that_fails_ends_all_of_them_with_a_line_for_each(function, timeout_s, first):
    begin = time.monotonic()
    with pytest.raises(ranks.RanksFailed) as caught:
        ranks.run(function, 2, timeout_s)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(first) and len(lines) == 2, lines
    assert caught.value._render_traceback_() == [str(caught.value)]
    assert time.monotonic() - begin < timeout_s + 30
