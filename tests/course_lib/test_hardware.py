"""GPU specifications: the figures that lessons lean on, and relations that vendor tables obey."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from course_lib.hardware import GIB, GPUS, KIB, MIB


def test_what_kernels_are_compiled_for_is_that_of_the_syllabus():
    per_block = {name: (gpu.compute_capability, gpu.shared_bytes_per_block // KIB) for name, gpu in GPUS.items()}
    assert GPUS["H100"].ridge_flops_per_byte == pytest.approx(295, abs=1)
    assert per_block == {
        "T4": ((7, 5), 64), "A100": ((8, 0), 163), "RTX 4090": ((8, 9), 99),
        "H100": ((9, 0), 227), "B200": ((10, 0), 227),
    }  # fmt: skip


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_units_are_bytes_and_rates_are_plausible(gpu):
    assert gpu.shared_bytes_per_sm - gpu.shared_bytes_per_block == gpu.reserved_shared_bytes
    assert gpu.threads_per_sm in (1024, 1536, 2048) and gpu.blocks_per_sm in (16, 24, 32)
    assert 4 * MIB <= gpu.l2_bytes < GIB < 16 * GIB <= gpu.hbm_bytes <= 256 * GIB
    assert 1e11 < gpu.hbm_bytes_per_s < 1e13
    assert 2 * gpu.fp32_tflops <= gpu.fp16_tensor_tflops < 3000
    assert gpu.sources and all(len(source) > 20 for source in gpu.sources)


def test_tensor_memory_limits_resident_blocks():
    limits = GPUS["B200"].resident_blocks(shared_bytes=KIB, registers=32, num_warps=4, tensor_memory_columns=256)
    assert limits["tensor memory"] == min(limits.values()) == 2


# Reads compute capability, SMs, shared bytes an SM and a block, threads an SM, registers a thread, threads and shared
# bytes of a block; prints how many blocks fit, or -1.
OCCUPANCY = """
#include <stdio.h>
#include "cuda_occupancy.h"

int main(void) {
    int major, minor, sms, shared_sm, shared_block, threads_sm, registers, threads, shared;
    while (scanf("%d %d %d %d %d %d %d %d %d", &major, &minor, &sms, &shared_sm, &shared_block, &threads_sm,
                 &registers, &threads, &shared) == 9) {
        struct cudaOccDeviceProp gpu = {
            .computeMajor = major, .computeMinor = minor, .numSms = sms, .warpSize = 32, .maxThreadsPerBlock = 1024,
            .maxThreadsPerMultiprocessor = threads_sm, .regsPerBlock = 65536, .regsPerMultiprocessor = 65536,
            .sharedMemPerBlock = 49152, .sharedMemPerBlockOptin = shared_block,
            .sharedMemPerMultiprocessor = shared_sm, .reservedSharedMemPerBlock = shared_sm - shared_block,
        };
        struct cudaOccFuncAttributes kernel = {
            .maxThreadsPerBlock = 1024, .numRegs = registers, .numBlockBarriers = 1,
            .shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN, .maxDynamicSharedSizeBytes = shared_block,
        };
        struct cudaOccDeviceState state = {.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED};
        struct cudaOccResult result;
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
