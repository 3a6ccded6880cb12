"""The shipped CUDA kernel: right everywhere, and as cheap as it claims."""

import itertools

import numpy as np
import pytest
import torch

from course_lib import runtime
from course_lib.hardware import GPUS
from course_lib.kernels import cuda
from course_lib.kernels.cuda import launches
from courseware.bench.accuracy import check_attention
from courseware.simulators.cuda_emulator import runner

DEVICE = runtime.device()


def inputs(M, N, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    Q, K, V = (torch.randn(rows, d, generator=generator) for rows in (M, N, N))
    return Q, K, V, torch.full((M, d), float("nan"))


def assert_within_budget(output, Q, K, V):
    check_attention(output[None, None], *(x[None, None] for x in (Q, K, V)))


def run_thread_by_thread(planned, Q, K, V, output):
    """The reports of the launches on the CPU."""
    arrays = {"Q": Q.numpy(), "K": K.numpy(), "V": V.numpy(), "output": output.numpy()}
    arrays["states"] = np.full(max(1, launches.states_floats(planned)), np.nan, np.float32)
    return [runner.run(launch, arrays) for launch in planned]


LENGTHS = [(1, 1), (1, 200), (16, 64), (33, 65), (64, 63), (65, 64), (129, 130), (200, 1)]


@pytest.mark.parametrize("d", (1, 6, 32, 33, 64, 100, 128))
def test_every_length_and_head_dim(d):
    for M, N in LENGTHS if d in (33, 64) else LENGTHS[3:5]:
        tensors = inputs(M, N, d)
        on_device = [x.to(DEVICE) for x in tensors]
        cuda.solve(*on_device, M, N, d)
        assert_within_budget(on_device[-1].cpu(), *tensors[:3])


@pytest.mark.parametrize("sms,shared_kib", list(itertools.product((1, 3, 16), (64, 99, 227))))
def test_every_split_and_every_tile_size(sms, shared_kib):
    """No wrong access, no race, nothing unwritten, and the states of all splits merge to the right answer."""
    M, N, d = 70, 300, 66
    planned = launches.shipped(M, N, d, sms=sms, max_shared_bytes=shared_kib << 10)
    assert planned[0].shared_bytes <= shared_kib << 10
    tensors = inputs(M, N, d)
    reports = run_thread_by_thread(planned, *tensors)
    assert [report.findings for report in reports] == [[]] * len(planned)
    assert_within_budget(tensors[-1], *tensors[:3])


def test_scores_far_apart_and_rows_that_grow():
    """The running max rises in every tile, by more than exp takes."""
    M, N, d = 40, 200, 32
    Q, K, V, output = inputs(M, N, d)
    K *= torch.linspace(0.1, 60.0, N)[:, None]
    cuda.solve(*(x.to(DEVICE) for x in (Q, K, V)), on_device := output.to(DEVICE), M, N, d)
    assert_within_budget(on_device.cpu(), Q, K, V)


@pytest.mark.parametrize("M,N,d", [(128, 128, 128), (128, 192, 64), (64, 64, 32), (32, 128, 128)])
def test_two_passes_for_every_shared_load_and_every_sector_once(M, N, d):
    planned = launches.shipped(M, N, d, sms=1, max_shared_bytes=227 << 10)
    (report,) = run_thread_by_thread(planned, *inputs(M, N, d))
    loads = report.shared.loads
    assert loads.passes == 2 * loads.requests and loads.conflicts == report.shared.stores.conflicts == 0
    blocks = planned[0].grid[0]
    sectors = {name: tensor.loads.sectors for name, tensor in report.tensors.items()}
    assert sectors == {"Q": M * d // 8, "K": blocks * N * d // 8, "V": blocks * N * d // 8, "output": 0, "states": 0}
    assert report.tensors["output"].stores.sectors == M * d // 8


def test_keys_are_split_where_blocks_are_fewer_than_multiprocessors():
    def splits(M, N):
        return launches.shipped(M, N, 128, sms=132, max_shared_bytes=227 << 10)[0].grid[1]

    assert splits(8192, 8192) == 2  # 64 blocks of queries
    assert splits(16896, 8192) == 1  # 132
    assert splits(1, 32768) == 128
    assert splits(1, 64) == 1  # one tile
    assert splits(1, 10**6) <= launches.MAX_SPLITS


def test_a_gpu_with_little_shared_memory_gets_smaller_tiles():
    def kernel(shared_kib):
        return launches.shipped(1000, 1000, 128, sms=40, max_shared_bytes=shared_kib << 10)[0].kernel

    of_gpus = {name: kernel(GPUS[name].shared_bytes_per_block >> 10) for name in ("T4", "RTX 4090", "A100", "H100")}
    assert of_gpus == {
        "T4": "attention<128, 32, 32>", "RTX 4090": "attention<128, 64, 64>",
        "A100": "attention<128, 128, 64>", "H100": "attention<128, 128, 64>",
    }  # fmt: skip


def test_tensors_that_begin_anywhere():
    """Of a view that is not aligned to 16 bytes, the kernel gets a copy."""
    M, N, d = 5, 7, 8
    storage = torch.randn(1 + N * d)
    K = storage[1:].view(N, d)
    Q, _, V, output = inputs(M, N, d)
    cuda.solve(*(x.to(DEVICE) for x in (Q, K, V)), on_device := output.to(DEVICE), M, N, d)
    assert_within_budget(on_device.cpu(), Q, K, V)
