"""NVRTC compiles the CUDA kernels for every GPU generation, into registers that a block has, without spills."""

from math import prod

import pytest

from course_lib.hardware import GPUS
from course_lib.kernels.cuda import gpu, launches
from tools.resources import registers_and_stack


def launches_on(found):
    """Every kernel that `solve` and the lesson launch on a GPU."""
    limits = {"sms": found.sms, "max_shared_bytes": found.shared_bytes_per_block}
    planned = [launches.plain(1000, 1000, d) for d in (1, 64, 96, 128)]
    planned += [
        launches.shipped(M, 1000, d, **limits) for M, d in ((1, 128), (64, 64), (1000, 32), (1000, 64), (1000, 128))
    ]
    return {launch.kernel: launch for plan in planned for launch in plan}.values()


@pytest.mark.parametrize("name", ("T4", "A100", "H100", "B200"))
def test_registers_shared_memory_and_spills(name):
    found = GPUS[name]
    for launch in launches_on(found):
        cubin = gpu.compiled(launch.source, launch.kernel, "sm_{}{}".format(*found.compute_capability)).code
        registers, stack_bytes = registers_and_stack(cubin)
        assert stack_bytes <= 24, launch.kernel  # what a division may take
        assert registers * prod(launch.block) <= found.registers_per_sm, launch.kernel
        assert launch.shared_bytes <= found.shared_bytes_per_block, launch.kernel
