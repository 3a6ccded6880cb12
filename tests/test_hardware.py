"""GPU specifications: the figures that lessons lean on, and relations that vendor tables obey."""

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
    assert 4 * MIB <= gpu.l2_bytes < GIB < 16 * GIB <= gpu.hbm_bytes <= 256 * GIB
    assert 1e11 < gpu.hbm_bytes_per_s < 1e13
    assert 2 * gpu.fp32_tflops <= gpu.fp16_tensor_tflops < 3000
    assert gpu.sources and all(len(source) > 20 for source in gpu.sources)


def test_peaks_follow_from_units_and_clock():
    """fp32 peak = SMs x lanes x 2 x boost clock, with the clock of the same vendor tables."""
    for name, lanes, boost_ghz in [("T4", 64, 1.59), ("A100", 64, 1.41), ("RTX 4090", 128, 2.52)]:
        gpu = GPUS[name]
        assert gpu.fp32_tflops == pytest.approx(gpu.sms * lanes * 2 * boost_ghz / 1e3, rel=0.01)


def test_the_ridge_is_where_the_roofs_meet():
    assert GPUS["H100"].ridge_flops_per_byte == pytest.approx(295, abs=1)


def test_specifications_cannot_be_changed():
    with pytest.raises(AttributeError):
        GPUS["H100"].sms = 144
