"""The CUDA kernels, run thread by thread or on a GPU: their answers, and what they cost."""

import itertools

import numpy as np
import pytest
import torch

from course_lib.hardware import GPUS
from course_lib.kernels import cuda
from course_lib.kernels.cuda import launches
from courseware.bench.accuracy import check_attention
from courseware.simulators.cuda_emulator import runner
from courseware.simulators.cuda_emulator.report import Accesses
from tests.course_lib.kernels.common import DEVICE, misaligned

MOST_SHARED_BYTES = 227 << 10  # of an H100's block


def inputs(M, N, d):
    generator = torch.Generator().manual_seed(0)
    Q, K, V = (torch.randn(rows, d, generator=generator) for rows in (M, N, N))
    return Q, K, V, torch.full((M, d), float("nan"))


def assert_within_budget(output, Q, K, V):
    check_attention(output[None, None], *(x[None, None] for x in (Q, K, V)))


def solved(Q, K, V, place=lambda x: x):
    """What `solve` writes. place: moves a tensor in memory."""
    (M, d), N = Q.shape, len(K)
    tensors = [place(x.to(DEVICE)) for x in (Q, K, V)]
    before, output = [x.clone() for x in tensors], torch.full((M, d), float("nan"), device=DEVICE)
    assert cuda.solve(*tensors, output, np.int64(M), N, np.uint8(d)) is None
    assert all(torch.equal(x, y) or x.isnan().any() for x, y in zip(tensors, before, strict=True)), "inputs stay"
    return output.cpu()


def run_thread_by_thread(planned, Q, K, V, output):
    """The reports of the launches on the CPU."""
    arrays = {"Q": Q.numpy(), "K": K.numpy(), "V": V.numpy(), "output": output.numpy()}
    arrays["states"] = np.full(max(1, launches.states_floats(planned)), np.nan, np.float32)
    return [runner.run(launch, arrays) for launch in planned]


# Lengths around a tile of 16; columns that end with 32, one before and behind, that are odd, and few.
@pytest.mark.parametrize(
    "M, N, d",
    [
        *itertools.product((1, 16, 17), (1, 16, 40), (8,)), (1, 1, 128), (16, 16, 32), (15, 33, 96), (37, 51, 33),
        (40, 24, 31), (48, 16, 127), (31, 31, 2), (18, 70, 65), (64, 80, 128), (3, 3, 97), (20, 20, 20),
    ],
)  # fmt: skip
def test_counts_of_the_plain_kernel_are_the_closed_forms_and_the_answer_is_right(M, N, d):
    Q, K, V, output = inputs(M, N, d)
    (report,) = run_thread_by_thread(launches.plain(M, N, d), Q, K, V, output)
    expected = launches.plain_counts(M, N, d)
    assert report.complete and report.findings == [] and report.barriers == expected.barriers and report.shuffles == 0
    tensors = {name: report.tensors[name] for name in ("Q", "K", "V", "output")}
    for name, tensor in tensors.items():
        used, unused = (tensor.stores, tensor.loads) if name == "output" else (tensor.loads, tensor.stores)
        assert (used.requests, used.sectors) == expected.by_tensor[name], name
        assert unused == Accesses()
    # Each block loads its own rows of Q and all of K and V.
    assert tensors["Q"].loads.bytes == tensors["output"].stores.bytes == 4 * M * d
    assert tensors["K"].loads.bytes == tensors["V"].loads.bytes == 4 * N * d * -(-M // 16)
    shared = report.shared
    assert (shared.loads.requests, shared.stores.requests) == (expected.shared_loads, expected.shared_stores)
    assert shared.loads.conflicts == shared.stores.conflicts == 0
    assert_within_budget(output, Q, K, V)


@pytest.mark.parametrize(
    "M, N, d",
    [
        *((33, 65, d) for d in (1, 3, 6, 31, 32, 64, 100, 128)), (64, 63, 100), (1, 1, 33), (1, 200, 64), (16, 64, 33),
        (65, 64, 64), (129, 130, 33), (200, 1, 64),
    ],
)  # fmt: skip
def test_solve_at_every_length_and_head_dim(M, N, d):
    Q, K, V, _ = inputs(M, N, d)
    assert_within_budget(solved(Q, K, V), Q, K, V)
    assert_within_budget(solved(Q, K, V, misaligned), Q, K, V)  # the kernel gets copies


def test_a_tile_whose_scores_are_all_minus_infinity_and_nan():
    """1e30 times -1e30 overflows: the first 16 keys have no weight, and the answer is that of the others."""
    Q, K, V, _ = inputs(3, 40, 4)
    Q[:, 0], K[:, 0], K[:16, 0] = 1e30, 0.0, -1e30
    # Without the first column, head_dim is 3, and the scale 1 / sqrt(3).
    assert_within_budget(solved(Q, K, V), Q[:, 1:], K[16:, 1:] * (3 / 4) ** 0.5, V[16:])
    Q, K, V, _ = inputs(20, 20, 8)
    Q[17, 3] = float("nan")
    assert solved(Q, K, V).isnan().any(1).tolist() == [row == 17 for row in range(20)]
    K[5, 2] = float("nan")
    assert solved(inputs(20, 20, 8)[0], K, V).isnan().all()


@pytest.mark.parametrize("sms, shared_kib", ((1, 64), (3, 99), (16, 64), (16, 227), (3, 227)))
def test_every_split_and_every_tile_size(sms, shared_kib):
    """No wrong access, no race, nothing unwritten, and the states of all splits merge to the right answer."""
    M, N, d = 70, 300, 66
    planned = launches.shipped(M, N, d, sms=sms, max_shared_bytes=shared_kib << 10)
    assert planned[0].shared_bytes <= shared_kib << 10
    tensors = inputs(M, N, d)
    reports = run_thread_by_thread(planned, *tensors)
    assert [report.findings for report in reports] == [[]] * len(planned)
    assert_within_budget(tensors[-1], *tensors[:3])


@pytest.mark.parametrize("M, N, d", [(128, 128, 128), (128, 192, 64), (64, 64, 32), (32, 128, 128)])
def test_two_passes_for_every_shared_load_and_every_sector_once(M, N, d):
    planned = launches.shipped(M, N, d, sms=1, max_shared_bytes=MOST_SHARED_BYTES)
    (report,) = run_thread_by_thread(planned, *inputs(M, N, d))
    loads = report.shared.loads
    assert loads.passes == 2 * loads.requests and loads.conflicts == report.shared.stores.conflicts == 0
    blocks = planned[0].grid[0]
    sectors = {name: tensor.loads.sectors for name, tensor in report.tensors.items()}
    assert sectors == {"Q": M * d // 8, "K": blocks * N * d // 8, "V": blocks * N * d // 8, "output": 0, "states": 0}
    assert report.tensors["output"].stores.sectors == M * d // 8


def test_keys_are_split_where_blocks_are_few_and_tiles_are_smaller_where_shared_memory_is():
    def splits(M, N):
        return launches.shipped(M, N, 128, sms=132, max_shared_bytes=MOST_SHARED_BYTES)[0].grid[1]

    # 64 blocks of queries; 132; one; one tile of keys.
    assert [splits(*lengths) for lengths in ((8192, 8192), (16896, 8192), (1, 32768), (1, 64))] == [2, 1, 128, 1]
    assert splits(1, 10**6) <= launches.MAX_SPLITS
    for name, tile in {"T4": (32, 32), "RTX 4090": (64, 64), "A100": (128, 64), "H100": (128, 64)}.items():
        max_shared_bytes = GPUS[name].shared_bytes_per_block
        planned = launches.shipped(1000, 1000, 128, sms=40, max_shared_bytes=max_shared_bytes)
        assert planned[0].kernel == "attention<128, {}, {}>".format(*tile)
