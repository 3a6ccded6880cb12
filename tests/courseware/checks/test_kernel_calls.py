"""Answers that are Triton kernels: what is found, and how it is told."""

import inspect
import re
import subprocess
import sys

import numpy as np
import pytest

from course_lib import language, runtime
from courseware.checks import calling, checking, kernel_calls, launched, prose, registry
from courseware.checks.exercise import Exercise, ExpectedOutput
from courseware.checks.kernel_calls import compare_bytes, compare_launch, kernel_checks
from courseware.editing import edited

triton, tl = language.WRITTEN.triton, language.WRITTEN.tl
pytestmark = pytest.mark.skipif(runtime.mode() != "interpreter", reason="launches happen in the interpreter")

STRIDES = '{"x_ptr": ("stride_xm", "stride_xn"), "out_ptr": ("stride_om", "stride_on")}'
CALL = (
    'launched(double, (2, 2), {"out_ptr": x.shape}, x_ptr=x, n_rows=len(x), n_cols=x.shape[1], BLOCK=4, '
    f"strides={STRIDES})"
)


@triton.jit
def double(x_ptr, out_ptr, stride_xm, stride_xn, stride_om, stride_on, n_rows, n_cols, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]
    x = tl.load(x_ptr + rows[:, None] * stride_xm + cols[None, :] * stride_xn, mask=mask)
    tl.store(out_ptr + rows[:, None] * stride_om + cols[None, :] * stride_on, x + x, mask=mask)


def agrees(launch, x):
    return compare_launch(launch, [ExpectedOutput("out", 2 * x, 2 * x, np.abs(x))])


def reads_once(launch, x):
    return compare_bytes(launch, {"x": (4 * x.size, 0), "out": (0, 4 * x.size)})


CASES = [{"x": np.arange(30.0).reshape(6, 5)}]
check = kernel_checks(CALL, agrees)
check("doubled", CASES)
check("once", CASES, test=reads_once)
EXERCISE = Exercise("exercises/lesson_99/double.py", double, check, 1, 1, "easy", imports=kernel_calls.TRITON)
# There is no Markdown file to read.
vars(EXERCISE)["prose"] = prose.Prose("Double", ("", "", ""), "", misconceptions=())


def diagnosis(monkeypatch, *edit):
    monkeypatch.setattr(registry, "find", lambda exercise_id: EXERCISE)
    answer = edited(double, {edit[0]: edit[1]} if edit else {})
    result = checking.grade("99.double", answer)
    return result.passed, result.message.split("diagnosis ")[-1]


@pytest.mark.parametrize(
    "old, new, told",
    [("(rows < n_rows)", "(rows < 7)", "program 1 reads row 6 of x, which has 6"),
     ("(cols < n_cols)", "(cols < 9)", "program (0, 1) reads columns 5 to 7 of x, which has 5"),
     ("cols[None, :] * stride_xn, mask", "cols[None, :], mask", "program 0 reads between two elements of x"),
     ("x + x, mask=mask", "x + x, mask=cols[None, :] < n_cols",
      "program 1 writes rows 6 to 7 of out, which has 6"),
     ("(rows < n_rows)", "(rows < 5)", "out: 5 of 30 elements are never written (row 5)"),
     ("x + x,", "x + tl.load(x_ptr + rows[:, None] * stride_xm + cols[None, :] * stride_xn, mask=mask),",
      "the launch reads 240 bytes of x, where 120 are enough"),
     ("x + x,", "x + unknown,", "the answer raised NameError: name 'unknown' is not defined\n"),
     ("x + x,", "np.exp(x),", "np.exp is NumPy's, and a kernel's blocks are no arrays: use tl.exp\n"),
     ("    mask =", "    raise NotImplementedError\n    mask =", "the answer is not finished")],
)  # fmt: skip
def test_what_is_wrong_is_told(monkeypatch, old, new, told):
    passed, message = diagnosis(monkeypatch, old, new)
    assert not passed and message.startswith(told)
    if "NameError" in told:  # it is shown at its line, without Triton's frames
        assert re.findall(r"line \d+, in .*?\(", message) == ["line 7, in double:  tl.store("]
        assert "Nothing has that name." in message


def test_an_endless_kernel_is_stopped_and_the_interpreter_works_afterwards(monkeypatch):
    monkeypatch.setattr(calling.GuardedAnswer.__init__, "__defaults__", (0.3,))
    assert "did not return within" in diagnosis(monkeypatch, "    mask =", "    while True: pass\n    mask =")[1]
    assert diagnosis(monkeypatch)[0]  # the right one passes


def test_a_learner_can_make_the_same_call_and_sees_a_few_lines():
    """Rows of matrices do not touch, and strides are filled in."""
    launch = eval(CALL, {"launched": launched, "double": double, "x": CASES[0]["x"]})
    assert np.array_equal(launch.outputs["out_ptr"], 2 * CASES[0]["x"])
    text = repr(launch)
    assert "'x': (120, 0)" in text and "violations=[]" in text and len(text) < 500


def test_without_triton_the_check_says_where_it_can_be_done(monkeypatch):
    monkeypatch.setattr(runtime, "mode", lambda: "numpy")
    passed, message = diagnosis(monkeypatch)
    assert not passed and "needs Triton" in message and "Colab" in message
    namespace = dict(vars(language.WRITTEN))
    exec("@triton.jit\ndef double(x_ptr, BLOCK: tl.constexpr):\n    raise NotImplementedError", namespace)
    assert not checking.grade("99.double", namespace["double"]).attempted


EPILOGUE = registry.find("08.lse_epilogue")
FIRST_LINE = inspect.getsource(EPILOGUE.answer).splitlines().index('    """') + 2
ECHO = "import os; os.system('echo hello'); unknown"
STUCK = "    import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\n    while True: pass\n"


# Where kernels are compiled for a GPU, every check of a kernel happens in another process.
def test_another_process_finds_the_same(monkeypatch):
    answers = EPILOGUE.answer, EPILOGUE.misconceptions[0].answer(EPILOGUE.answer, 0)
    here = [checking.grade(EPILOGUE.id, answer) for answer in answers]
    assert [result.passed for result in here] == [True, False]
    monkeypatch.setattr(runtime, "mode", lambda: "gpu")
    assert [checking.grade(EPILOGUE.id, answer) for answer in answers] == here


@pytest.mark.parametrize(
    "begins, limit_s, told",
    [("    while True: pass\n", 60.0, "the answer did not return within 2 s"),
     ("    import os; os._exit(0)\n", 60.0, "08.lse_epilogue: the answer ended its process (exit status 0)"),
     # The line counts in the answer's own cell.
     (f"    {ECHO}\n", 60.0, f"line {FIRST_LINE}, in lse_epilogue:  {ECHO}"),
     # What no signal stops is killed with its process.
     (STUCK, 2.0, "08.lse_epilogue: the answer did not return within 2 s")],
)  # fmt: skip
def test_what_happens_in_another_process_is_told(monkeypatch, begins, limit_s, told):
    monkeypatch.setattr(runtime, "mode", lambda: "gpu")
    monkeypatch.setattr(kernel_calls, "ELSEWHERE_LIMIT_S", limit_s)
    first = "    offs_m = tl.program_id(0)"
    result = checking.grade(EPILOGUE.id, edited(EPILOGUE.answer, {first: begins + first}))
    assert (result.passed, result.attempted) == (False, True) and told in result.message


def test_reading_a_lesson_imports_no_triton():
    code = "import sys; from courseware.checks import cuda_calls, kernel_calls; from course_lib import language; "
    code += "print({'torch', 'triton'} & sys.modules.keys() or 'neither')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "neither"
