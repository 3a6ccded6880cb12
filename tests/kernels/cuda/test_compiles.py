"""NVRTC compiles the plain kernel for every GPU generation, into registers that a block has, without spills."""

import itertools
import re
import subprocess
from math import prod
from pathlib import Path

import pytest

from course_lib.kernels.cuda import launches

cuda_core = pytest.importorskip("cuda.core", reason="cuda-core, of the extra `cuda`, is not installed")
triton = pytest.importorskip("triton", reason="cuobjdump is in Triton's package")
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
REGISTERS_OF_AN_SM = 65_536


@pytest.mark.parametrize("arch,d", list(itertools.product((75, 80, 90, 100), (1, 64, 96, 128))))
def test_registers_shared_memory_and_spills(arch, d, tmp_path):
    launch = launches.plain(1024, 1024, d)
    program = cuda_core.Program(launch.source, "c++", cuda_core.ProgramOptions(arch=f"sm_{arch}"))
    cubin = tmp_path / "cubin"
    cubin.write_bytes(bytes(program.compile("cubin", name_expressions=(launch.kernel,)).code))
    listing = subprocess.run([CUOBJDUMP, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    ((registers, stack, shared, local),) = re.findall(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", listing)
    assert (int(stack), int(local)) == (0, 0)
    assert int(registers) * prod(launch.block) <= REGISTERS_OF_AN_SM
    columns = -(-d // 32) * 32
    # Three tiles of 16 rows; from compute capability 8.0 on, the system may take 1 KB of each block.
    assert int(shared) - 3 * 16 * columns * 4 in (0, 1024)
