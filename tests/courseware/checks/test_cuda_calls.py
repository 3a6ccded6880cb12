"""Answers in CUDA C++: what is found, and how it is told."""

import inspect

import numpy as np
import pytest

from course_lib import runtime
from courseware.checks import checking, prose, registry, run_cuda
from courseware.checks.cuda_calls import compare_output, compare_sectors, cuda_checks
from courseware.checks.exercise import Exercise, ExpectedOutput
from courseware.classroom import marking
from courseware.editing import edited
from courseware.exercises.lesson_12.solve import compare_shared_loads

pytestmark = pytest.mark.skipif(runtime.cxx_compiler() is None, reason="there is no C++ compiler")


def doubled():
    return r"""
    extern "C" __global__ void doubled(const float* x, float* y, int n) {
      __shared__ float tile[64];
      const int i = blockIdx.x * 64 + threadIdx.x;
      tile[threadIdx.x] = i < n ? x[i] : 0.0f;
      __syncthreads();
      if (i < n) y[i] = tile[threadIdx.x] + tile[threadIdx.x];
    }
    """


CALL = """\
x = np.arange(n, dtype=np.float32)
y = np.full_like(x, np.nan)
run_cuda(doubled(), "doubled", -(-n // 64), 64, x=x, y=y, n=n)"""


def agrees(report, x, y, **_):
    return compare_output(report, y, ExpectedOutput("y", 2.0 * x, 2 * x, x, "element"))


def reads_once(report, **_):
    return compare_sectors(report, {"x": (13, 0), "y": (0, 13)}) or compare_shared_loads(report, 4)


CASES = [{"n": 100}]
check = cuda_checks(CALL, agrees)
check("doubled", CASES)
check("once", CASES, test=reads_once)
EXERCISE = Exercise("exercises/lesson_99/doubled.py", doubled, check, points=1, minutes=1, difficulty="easy")
# There is no Markdown file to read.
vars(EXERCISE)["prose"] = prose.Prose("Doubled", ("", "", ""), "", misconceptions=())


@pytest.fixture(autouse=True)
def exercise(monkeypatch):
    find = registry.find
    monkeypatch.setattr(registry, "find", lambda name: EXERCISE if name == EXERCISE.id else find(name))


def graded(*edit):
    return checking.grade(EXERCISE.id, edited(doubled, {edit[0]: edit[1]} if edit else {}))


SUM = "tile[threadIdx.x] + tile[threadIdx.x]"
LEFT = "      if (i < n) y[i] = tile[threadIdx.x] + tile[threadIdx.x ^ 32]"
RACE = "      __syncthreads();\n      if (i < n) y[i] = " + SUM, LEFT


@pytest.mark.parametrize(
    "old, new, told",
    [(SUM, f"{SUM} + 1", "y is wrong at every element"),
     ("i < n ? x[i] : 0.0f", "x[i]", "Line 5: thread 36 of block 1 loads x[100], outside x, whose shape is [100]."),
     (*RACE, "Line 5: thread 32 of block 0 stores element 32 of tile, which thread 0 loads in line 6"),
     ("tile[threadIdx.x] = i", "if (threadIdx.x) tile[threadIdx.x] = i",
      "Line 7: thread 0 of block 0 loads element 0 of tile, which no thread of the block has stored."),
     ("      __syncthreads();", "      if (threadIdx.x < 32) __syncthreads();\n      else __syncthreads();",
      "Line 6: in block 0, thread 0 and 31 more wait at __syncthreads() in line 6, thread 32 and 31 more wait"),
     ("if (i < n) y", "if (i < n - 2) y", "y: 2 of 100 elements are never stored (elements 98 to 99)"),
     ("blockIdx.x * 64 +", "blockIdx.x * 64 + ;", "the CUDA source does not compile: kernel.cu, line 4: expected"),
     ("void doubled(", "void twice(", "the CUDA source does not compile: there is no kernel doubled"),
     (", int n)", ", int n, int m)", "the kernel cannot be launched: the kernel takes 4 "
      "(float const*, float*, int, int) arguments, not 3: x, y, n"),
     ("      __syncthreads();", "      while (true) __syncthreads();", "the kernel was still running after 2 s, in"),
     ("    extern", "    #include <cstdio>\n    extern", "the kernel is not run: line 2: it may not use #include"),
     ("    return r", "    return 7 and 8 or r", "the answer returned 8, not CUDA C++ as text"),
     (SUM, f"{SUM} + 0 * y[i]", "y is NaN at every element"),
     (SUM, f"{SUM} + 0 * x[i / 64 * 64]", "the launch loads 17 sectors of x, where 13 are enough")],
)  # fmt: skip
def test_what_is_wrong_is_told(old, new, told):
    result = graded(old, new)
    assert result.attempted and not result.passed
    assert result.message.split("diagnosis ")[-1].startswith(told), result.message
    if (old, new) == RACE:  # the lines that a finding names are shown
        assert f"line 6:  {LEFT.strip()};" in result.message


def test_more_loads_of_shared_memory_than_enough_are_told_and_less_is_never_wrong():
    x = np.zeros(100, np.float32)
    report = run_cuda(doubled(), "doubled", np.int64(2), (np.uint8(64),), x=x, y=x.copy(), n=np.int32(100))
    loads = report.shared.loads.requests
    assert compare_shared_loads(report, loads) is compare_shared_loads(report, loads + 1) is None
    assert compare_sectors(report, {"x": (14, 0), "y": (0, 14)}, {"x": 400, "y": 400}) is None
    assert "401 have to be" in compare_sectors(report, {}, {"x": 401}).findings[0].text
    assert "have to be" in compare_shared_loads(report, loads, 10**6).findings[0].text
    assert f"{loads} requests load" in compare_shared_loads(report, loads // 2).findings[0].text


def test_a_right_kernel_passes_and_without_a_compiler_the_check_says_so(monkeypatch):
    result = graded()
    assert result.passed and list(result.properties) == ["doubled", "once"], result.message
    monkeypatch.setattr(runtime, "cxx_compiler", lambda: None)
    result = graded()
    assert (result.passed, result.attempted) == (False, True)
    assert "not checked, for this exercise needs Linux and a C++ compiler" in result.message


def test_an_answer_is_marked_in_class():
    exercise_id = "12.warp_softmax"
    right = inspect.getsource(registry.find(exercise_id).answer)
    # Only the text that is returned can be judged, however it is made.
    hidden = right.replace('    return r"""', '    return "#inc" + "lude <fstream>\\n" + r"""')
    test = f"from courseware.checks import grade\nresult = grade({exercise_id!r}, warp_softmax, seed=7)\n"
    test += "assert result.passed, result.message"
    for source, passed, said in ((right, True, ""), (hidden, False, "may not use #include")):
        (outcome,) = marking.mark({exercise_id: source}, {exercise_id: test}).values()
        assert outcome["passed"] == passed and said in outcome["message"], outcome


def test_a_process_that_dies_is_the_kernel_s_doing(monkeypatch):
    def dies(*_, **__):
        raise RuntimeError("the process that runs the kernel died of signal 11: ")

    monkeypatch.setattr("courseware.simulators.cuda_emulator.runner.launch", dies)
    assert "the kernel writes beyond its own memory, and its process died" in graded().message
