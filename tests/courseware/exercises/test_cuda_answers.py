"""Answers in CUDA C++ are CUDA C++: NVIDIA's compiler takes the answers, all variables in registers."""

import re
import subprocess
from pathlib import Path

import pytest

from courseware.checks import registry
from tests.courseware.exercises.right_answers import right_answers

cuda_core = pytest.importorskip("cuda.core", reason="cuda-core, of the extra `cuda`, is not installed")
triton = pytest.importorskip("triton", reason="cuobjdump is in Triton's package")
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
EXERCISES = [registry.find(exercise_id) for exercise_id in ("12.warp_softmax", "12.solve")]
ANSWERS = {f"{e.id}, {said}": answer for e in EXERCISES for said, answer in right_answers(e).items()}
ANSWERS |= {exercise.id: exercise.answer for exercise in EXERCISES}


@pytest.mark.parametrize("said", ANSWERS)
def test_an_answer_is_cuda_with_its_variables_in_registers(said, tmp_path):
    program = cuda_core.Program(ANSWERS[said](), "c++", cuda_core.ProgramOptions(arch="sm_80"))
    cubin = tmp_path / "cubin"
    cubin.write_bytes(bytes(program.compile("cubin").code))
    listing = subprocess.run([CUOBJDUMP, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    ((registers, stack, local),) = re.findall(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", listing)
    assert (int(stack), int(local)) == (0, 0) and int(registers) <= 128
