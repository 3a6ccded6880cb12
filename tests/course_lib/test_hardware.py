"""GPU specifications: the figures that lessons lean on, and relations that vendor tables obey."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from course_lib.hardware import GIB, GPUS, KIB, MIB


def test_shared_memory_per_block_is_that_of_the_syllabus():
    per_block = {name: gpu.shared_bytes_per_block // KIB for name, gpu in GPUS.items()}
    assert per_block == {"T4": 64, "A100": 163, "RTX 4090": 99, "H100": 227, "B200": 227}


def test_compute_capabilities_are_those_that_kernels_are_compiled_for():
    assert [gpu.compute_capability for gpu in GPUS.values()] == [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0)]


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_units_are_bytes_and_rates_are_plausible(gpu):
    # From compute capability 8.0 on, the system keeps 1 KiB of shared memory for every block.
    reserved_bytes = 0 if gpu.compute_capability < (8, 0) else KIB
    assert gpu.shared_bytes_per_sm - gpu.shared_bytes_per_block == reserved_bytes
    assert gpu.registers_per_sm == 65_536
    assert gpu.threads_per_sm in (1024, 1536, 2048) and gpu.blocks_per_sm in (16, 24, 32)
    assert 4 * MIB <= gpu.l2_bytes < GIB < 16 * GIB <= gpu.hbm_bytes <= 256 * GIB
    assert 1e11 < gpu.hbm_bytes_per_s < 1e13
    assert 2 * gpu.fp32_tflops <= gpu.fp16_tensor_tflops < 3000
    assert gpu.sources and all(len(source) > 20 for source in gpu.sources)


def test_resident_blocks_by_each_limit():
    def fit(name, shared_bytes, registers=32, num_warps=4, tensor_memory_columns=0):
        limits = GPUS[name].resident_blocks(
            shared_bytes=shared_bytes, registers=registers, num_warps=num_warps,
            tensor_memory_columns=tensor_memory_columns,
        )  # fmt: skip
        return min(limits, key=limits.get), min(limits.values())

    assert fit("H100", 227 * KIB) == ("shared memory", 1) and fit("H100", 113 * KIB) == ("shared memory", 2)
    assert fit("H100", 227 * KIB + 1) == ("shared memory", 0)
    # A T4 keeps nothing of an SM's shared memory for itself.
    assert fit("T4", 32 * KIB) == ("shared memory", 2)
    assert fit("H100", 1024, registers=115) == ("registers", 4)
    # 17 warps' registers are there, and are given out to 4 warps at a time.
    assert fit("H100", 1024, registers=115, num_warps=1) == ("registers", 16)
    assert fit("RTX 4090", 1024, num_warps=32) == ("threads", 1)
    assert fit("RTX 4090", 1024, num_warps=1) == ("blocks", 24)
    assert fit("B200", 1024, tensor_memory_columns=256) == ("tensor memory", 2)


def test_the_ridge_is_where_the_roofs_meet():
    assert GPUS["H100"].ridge_flops_per_byte == pytest.approx(295, abs=1)


# Reads compute capability, SMs, shared bytes an SM and a block, threads an SM, registers a thread, threads and shared
# bytes of a block; prints how many blocks fit, or -1.
OCCUPANCY = """
#include <stdio.h>
#include <string.h>
#include "cuda_occupancy.h"

int main(void) {
    int major, minor, sms, shared_sm, shared_block, threads_sm, registers, threads, shared;
    while (scanf("%d %d %d %d %d %d %d %d %d", &major, &minor, &sms, &shared_sm, &shared_block, &threads_sm,
                 &registers, &threads, &shared) == 9) {
        struct cudaOccDeviceProp gpu;
        struct cudaOccFuncAttributes kernel;
        struct cudaOccDeviceState state;
        struct cudaOccResult result;
        memset(&gpu, 0, sizeof gpu);
        memset(&kernel, 0, sizeof kernel);
        memset(&state, 0, sizeof state);
        gpu.computeMajor = major, gpu.computeMinor = minor, gpu.numSms = sms, gpu.warpSize = 32;
        gpu.maxThreadsPerBlock = 1024, gpu.maxThreadsPerMultiprocessor = threads_sm;
        gpu.regsPerBlock = gpu.regsPerMultiprocessor = 65536;
        gpu.sharedMemPerBlock = 49152, gpu.sharedMemPerBlockOptin = shared_block;
        gpu.sharedMemPerMultiprocessor = shared_sm, gpu.reservedSharedMemPerBlock = shared_sm - shared_block;
        kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers, kernel.numBlockBarriers = 1;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN, kernel.maxDynamicSharedSizeBytes = shared_block;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &gpu, &kernel, &state, threads, shared);
        printf("%d\\n", error ? -1 : result.activeBlocksPerMultiprocessor);
    }
}
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs a C compiler")
def test_resident_blocks_are_those_of_nvidias_own_calculator(tmp_path):
    """cuda_occupancy.h, which Triton's package holds, on random kernels for every GPU."""
    (tmp_path / "occupancy.c").write_text(OCCUPANCY)
    headers = Path(pytest.importorskip("triton").__file__).parent / "backends/nvidia/include"
    subprocess.run(["gcc", "-I", headers, "occupancy.c", "-o", "occupancy"], cwd=tmp_path, check=True)
    draw = random.Random(0)
    asked, ours = [], []
    for gpu in GPUS.values():
        for _ in range(400):
            registers, num_warps = draw.randint(16, 255), draw.choice([1, 2, 4, 8, 16])
            shared = draw.choice([0, draw.randint(0, gpu.shared_bytes_per_block)])
            blocks = gpu.resident_blocks(shared_bytes=shared, registers=registers, num_warps=num_warps)
            ours.append(min(blocks.values()))
            asked.append((
                *gpu.compute_capability, gpu.sms, gpu.shared_bytes_per_sm, gpu.shared_bytes_per_block,
                gpu.threads_per_sm, registers, 32 * num_warps, shared,
            ))  # fmt: skip
    lines = "\n".join(" ".join(map(str, row)) for row in asked)
    run = subprocess.run([tmp_path / "occupancy"], input=lines, capture_output=True, text=True, check=True)
    theirs = [int(line) for line in run.stdout.split()]
    assert len(theirs) == len(ours) and 0 < sum(ours)
    differing = [row for row, a, b in zip(asked, ours, theirs, strict=True) if a != b]
    assert not differing, differing[:5]
