"""The plain CUDA kernel, run thread by thread: its results, its counts against closed forms, and what solve refuses."""

import itertools

import pytest
import torch

from course_lib.kernels import cuda
from course_lib.kernels.cuda import counts, launches, runner
from course_lib.kernels.cuda.report import Accesses
from course_lib.measure.accuracy import check_attention


def inputs(M, N, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    Q, K, V = (torch.randn(rows, d, generator=generator) for rows in (M, N, N))
    return Q, K, V, torch.full((M, d), float("nan"))


def launched(M, N, d):
    *tensors, output = inputs(M, N, d)
    arguments = dict(zip(("Q", "K", "V", "output"), (x.numpy() for x in (*tensors, output)), strict=True))
    (launch,) = launches.plain(M, N, d)
    report = runner.run(launch, arguments)
    return report, tensors, output


def assert_within_budget(output, Q, K, V):
    check_attention(output[None, None], *(x[None, None] for x in (Q, K, V)))


SHAPES = [
    (1, 1, 1), (1, 1, 128), (1, 40, 64), (16, 16, 32), (16, 16, 128), (17, 16, 64), (16, 17, 64), (15, 33, 96),
    (64, 64, 64), (64, 80, 128), (33, 47, 8), (20, 20, 20), (37, 51, 33), (40, 24, 31), (5, 100, 100), (48, 16, 127),
    (31, 31, 2), (18, 70, 65), (70, 18, 3), (16, 64, 48), (80, 5, 72), (32, 32, 126), (3, 3, 97), (50, 50, 50),
]  # fmt: skip


@pytest.mark.parametrize("M,N,d", SHAPES)
def test_counts_are_the_closed_forms_and_the_answer_is_right(M, N, d):
    report, (Q, K, V), output = launched(M, N, d)
    expected = counts.plain_attention(M, N, d)
    assert report.complete and report.findings == [] and report.barriers == expected.barriers and report.shuffles == 0
    for name, tensor in report.tensors.items():
        used, unused = (tensor.stores, tensor.loads) if name == "output" else (tensor.loads, tensor.stores)
        assert (used.requests, used.sectors) == expected.by_tensor[name], name
        assert unused == Accesses()
    # Each block loads its own rows of Q and all of K and V.
    assert report.tensors["Q"].loads.bytes == report.tensors["output"].stores.bytes == 4 * M * d
    assert report.tensors["K"].loads.bytes == report.tensors["V"].loads.bytes == 4 * N * d * -(-M // 16)
    shared = report.shared
    assert (shared.loads.requests, shared.stores.requests) == (expected.shared_loads, expected.shared_stores)
    assert shared.loads.conflicts == shared.stores.conflicts == 0
    assert_within_budget(output, Q, K, V)


def test_the_published_profile():
    """RTX 4090, M = N = 1024, d = 128: sectors loaded and stored, shared stores and loads."""
    published = counts.plain_attention(1024, 1024, 128)
    assert sum(sectors for name, (_, sectors) in published.by_tensor.items() if name != "output") == 2_113_536
    assert published.by_tensor["output"][1] == 16_384
    assert (published.shared_stores, published.shared_loads) == (528_384, 39_845_888)


@pytest.mark.parametrize("d", (1, 2, 3, 5, 7, 8, 12, 31, 32, 33, 63, 64, 65, 95, 96, 97, 120, 128))
def test_head_dims(d):
    Q, K, V, output = inputs(19, 35, d)
    cuda.solve(Q, K, V, output, 19, 35, d)
    assert_within_budget(output, Q, K, V)


@pytest.mark.parametrize("M,N", list(itertools.product((1, 15, 16, 17, 40), repeat=2)))
def test_lengths(M, N):
    Q, K, V, output = inputs(M, N, 8)
    cuda.solve(Q, K, V, output, M, N, 8)
    assert_within_budget(output, Q, K, V)
