"""The plain CUDA kernel, run thread by thread: its results, its counts against closed forms, and what solve refuses."""

import itertools

import pytest
import torch

from course_lib.kernels import cuda
from course_lib.kernels.cuda import counts, launches
from courseware.bench.accuracy import check_attention
from courseware.simulators.cuda_emulator import runner
from courseware.simulators.cuda_emulator.report import Accesses


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


def test_inputs_stay_as_they_are():
    Q, K, V, output = inputs(20, 20, 20)
    before = [x.clone() for x in (Q, K, V)]
    assert cuda.solve(Q, K, V, output, 20, 20, 20) is None
    assert all(torch.equal(x, y) for x, y in zip((Q, K, V), before, strict=True))


@pytest.mark.parametrize(
    "scores",
    [
        lambda i, j: 1e3 * torch.sin(7 * i + 3 * j),
        lambda i, j: 1e3 * j,  # the maximum moves in every tile
        lambda i, j: -1e3 * j,
        lambda i, j: -500.0 + 0 * j,
        lambda i, j: torch.where(j == 37, 80.0, -80.0),
        lambda i, j: torch.where(j < 16, -1e30, 1.0 * j),
    ],
)
def test_scores_of_every_size(scores):
    """Q is the identity, so that K^T holds the scores."""
    M, N = 32, 40
    i, j = torch.arange(M)[:, None].float(), torch.arange(N)[None, :].float()
    Q = torch.eye(M) * M**0.5
    K = scores(i, j).expand(M, N).T.contiguous()
    _, _, V, output = inputs(M, N, M)
    cuda.solve(Q, K, V, output, M, N, M)
    assert_within_budget(output, Q, K, V)


def test_a_tile_whose_scores_are_all_minus_infinity():
    """1e30 times -1e30 overflows: the first 16 keys have no weight, and the answer is that of the others."""
    Q, K, V, output = inputs(3, 40, 4)
    Q[:, 0], K[:, 0], K[:16, 0] = 1e30, 0.0, -1e30
    cuda.solve(Q, K, V, output, 3, 40, 4)
    # Without the first column, head_dim is 3, and the scale 1 / sqrt(3).
    assert_within_budget(output, Q[:, 1:], K[16:, 1:] * (3 / 4) ** 0.5, V[16:])


def test_nan_reaches_the_rows_that_see_it_and_no_others():
    Q, K, V, output = inputs(20, 20, 8)
    Q[17, 3] = float("nan")
    cuda.solve(Q, K, V, output, 20, 20, 8)
    assert output.isnan().any(1).tolist() == [row == 17 for row in range(20)]
    Q, K, V, output = inputs(20, 20, 8)
    K[5, 2] = float("nan")
    cuda.solve(Q, K, V, output, 20, 20, 8)
    assert output.isnan().all()


@pytest.mark.parametrize(
    "changes,error,words",
    [
        ({"Q": [[1.0]]}, TypeError, "Q must be a torch.Tensor, got list"),
        ({"K": torch.zeros(6, 4, dtype=torch.float64)}, TypeError, "K has dtype float64; accepted: float32"),
        ({"V": torch.zeros(6, 4, dtype=torch.int32)}, TypeError, "V has dtype int32"),
        ({"Q": torch.zeros(4, 4)}, ValueError, r"Q must have shape \[5, 4\], got \[4, 4\]"),
        ({"K": torch.zeros(6, 3)}, ValueError, r"K must have shape \[6, 4\], got \[6, 3\]"),
        ({"V": torch.zeros(1, 6, 4)}, ValueError, r"V must have shape \[6, 4\]"),
        ({"output": torch.zeros(6, 4)}, ValueError, r"output must have shape \[5, 4\]"),
        ({"K": torch.zeros(4, 6).T}, ValueError, "K must be contiguous"),
        ({"V": torch.zeros(6, 4, device="meta")}, ValueError, "V is on meta but Q is on cpu"),
        ({"M": 0, "Q": torch.zeros(0, 4), "output": torch.zeros(0, 4)}, ValueError, "M must be at least 1, got 0"),
        ({"N": 0}, ValueError, "N must be at least 1, got 0"),
        ({"d": 129}, ValueError, "d must be 1 to 128, got 129"),
        ({"d": 4.0}, TypeError, "d must be an integer, got 4.0"),
        ({"M": True}, TypeError, "M must be an integer, got True"),
    ],
)
def test_bad_input_is_refused_by_name(changes, error, words):
    arguments = {"Q": torch.zeros(5, 4), "K": torch.zeros(6, 4), "V": torch.zeros(6, 4), "output": torch.zeros(5, 4)}
    arguments |= {"M": 5, "N": 6, "d": 4}
    with pytest.raises(error, match=words):
        cuda.solve(**arguments | changes)
