"""Answers that are Triton kernels: what is found, and how it is told."""

import inspect
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from course_lib import language, runtime
from courseware.checks import calling, checking, kernel_calls, launched, prose, registry
from courseware.checks.exercise import Exercise, ExpectedOutput
from courseware.checks.kernel_calls import compare_bytes, compare_launch, kernel_checks
from courseware.editing import edited
from courseware.worker.rules import objection

triton, tl = language.WRITTEN.triton, language.WRITTEN.tl
interpreted = pytest.mark.skipif(runtime.mode() != "interpreter", reason="launches happen in the interpreter")

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
EXERCISE = Exercise(
    "exercises/lesson_99/double.py", double, check,
    points=1, minutes=1, difficulty="easy",
    imports=kernel_calls.TRITON,
)  # fmt: skip
# There is no Markdown file to read.
vars(EXERCISE)["prose"] = prose.Prose("Double", ("", "", ""), "", misconceptions=())


def diagnosis(monkeypatch, *edit):
    monkeypatch.setattr(registry, "find", lambda exercise_id: EXERCISE)
    answer = edited(double, {edit[0]: edit[1]} if edit else {})
    result = checking.grade("99.double", answer)
    return result.passed, result.message.split("diagnosis ")[-1]


@interpreted
def test_a_right_kernel_passes(monkeypatch):
    assert diagnosis(monkeypatch)[0]


@interpreted
@pytest.mark.parametrize(
    "old, new, told",
    [
        ("(rows < n_rows)", "(rows < 7)", "program 1 reads row 6 of x, which has 6"),
        ("(cols < n_cols)", "(cols < 9)", "program (0, 1) reads columns 5 to 7 of x, which has 5"),
        ("cols[None, :] * stride_xn, mask", "cols[None, :], mask", "program 0 reads between two elements of x"),
        ("x + x, mask=mask", "x + x, mask=cols[None, :] < n_cols",
         "program 1 writes rows 6 to 7 of out, which has 6"),
        ("(rows < n_rows)", "(rows < 5)", "out: 5 of 30 elements are never written (row 5)"),
        ("x + x,", "x + x + 1,", "out is wrong at every row"),
        ("x + x,", "x + tl.load(x_ptr + rows[:, None] * stride_xm + cols[None, :] * stride_xn, mask=mask),",
         "the launch reads 240 bytes of x, where 120 are enough"),
        ("x + x,", "x + unknown,", "the answer raised NameError: name 'unknown' is not defined\n"),
        ("x + x,", "np.exp(x),", "np.exp takes arrays, and a block of a kernel is none: use tl.exp\n"),
        ("x + x,", "np.sinh(x),", "np.sinh takes arrays, and a block of a kernel is none: use what tl has\n"),
        ("    mask =", "    raise NotImplementedError\n    mask =", "the answer is not finished"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(monkeypatch, old, new, told):
    passed, message = diagnosis(monkeypatch, old, new)
    assert not passed and message.startswith(told)


@interpreted
def test_an_exception_is_shown_at_the_line_without_triton_s_frames(monkeypatch):
    _, message = diagnosis(monkeypatch, "x + x,", "x + unknown,")
    lines = [line for line in message.splitlines() if line.strip().startswith("line ")]
    assert len(lines) == 1 and "in double:  tl.store(" in lines[0] and "line 7" in lines[0]


@interpreted
def test_an_endless_kernel_is_stopped_and_the_interpreter_works_afterwards(monkeypatch):
    monkeypatch.setattr(calling.GuardedAnswer.__init__, "__defaults__", (0.3,))
    assert "did not return within" in diagnosis(monkeypatch, "    mask =", "    while True: pass\n    mask =")[1]
    assert diagnosis(monkeypatch)[0]


@interpreted
def test_two_edits_of_one_name_are_two_kernels():
    """The interpreter reads a kernel's source again when it runs: each edit must find its own."""
    x = CASES[0]["x"]
    thrice, halved = (edited(double, {"x + x,": expression}, "same") for expression in ("3 * x,", "x / 2,"))
    for kernel, factor in ((thrice, 3), (halved, 0.5)):
        launch = eval(CALL, {"launched": launched, "double": kernel, "x": x})
        assert np.array_equal(launch.outputs["out_ptr"], factor * x)


@interpreted
def test_a_learner_can_make_the_same_call():
    x = CASES[0]["x"]
    launch = eval(CALL, {"launched": launched, "double": double, "x": x})
    assert np.array_equal(launch.outputs["out_ptr"], 2 * x)
    real = language.triton.jit(double)  # what @triton.jit gives in a notebook
    assert kernel_calls.plain(real) is double


@interpreted
def test_a_launch_is_shown_in_a_few_lines():
    from course_lib.kernels import triton_basics

    x = np.array([1.0, 2.0, 3.0])
    text = repr(launched(triton_basics.vector_add, (2,), {"out_ptr": (3,)}, x_ptr=x, y_ptr=x, n=3, BLOCK=2))
    assert "[2., 4., 6.]" in text and "'x': (12, 0)" in text and "violations=[]" in text
    assert len(text) < 200


@interpreted
def test_rows_of_matrices_do_not_touch_and_strides_are_filled_in():
    launch = eval(CALL, {"launched": launched, "double": double, "x": np.ones((6, 5))})
    assert launch.by_tensor() == {"x": (120, 0), "out": (0, 120)}


def test_a_function_without_source_is_an_attempt_that_fails(monkeypatch):
    monkeypatch.setattr(registry, "find", lambda exercise_id: EXERCISE)
    namespace = {}
    exec("def double(x_ptr):\n    return 42", namespace)
    result = checking.grade("99.double", namespace["double"])
    assert result.attempted and not result.passed and "could not get source" in result.message


def test_without_triton_the_check_says_where_it_can_be_done(monkeypatch):
    monkeypatch.setattr(registry, "find", lambda exercise_id: EXERCISE)
    monkeypatch.setattr(runtime, "mode", lambda: "numpy")
    result = checking.grade("99.double", double)
    assert (result.passed, result.attempted) == (False, True)
    assert "needs Triton" in result.message and "Colab" in result.message
    stub = replace(EXERCISE, answer=double)
    namespace = language.WRITTEN.__dict__ | {}
    exec("@triton.jit\ndef double(x_ptr, BLOCK: tl.constexpr):\n    raise NotImplementedError", namespace)
    assert not checking.grade(stub.id, namespace["double"]).attempted


EPILOGUE = registry.find("08.lse_epilogue")
STUCK = "    import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\n    while True: pass\n"


@pytest.fixture
def compiling(monkeypatch):
    """As where kernels are compiled for a GPU: every check of a kernel happens in another process."""
    monkeypatch.setattr(runtime, "mode", lambda: "gpu")


def epilogue(begins):
    """The answer of 08.lse_epilogue with lines of one's own at its beginning."""
    first = "    offs_m = tl.program_id(0)"
    return edited(EPILOGUE.answer, {first: begins + first})


@interpreted
def test_another_process_finds_the_same(monkeypatch):
    wrong = EPILOGUE.misconceptions[2].answers(EPILOGUE.answer)[0]
    here = [checking.grade(EPILOGUE.id, answer) for answer in (EPILOGUE.answer, wrong)]
    monkeypatch.setattr(runtime, "mode", lambda: "gpu")
    assert [checking.grade(EPILOGUE.id, answer) for answer in (EPILOGUE.answer, wrong)] == here
    assert [result.passed for result in here] == [True, False]


@interpreted
def test_another_process_tells_the_line_of_the_answer_s_own_cell(compiling):
    result = checking.grade(EPILOGUE.id, epilogue("    while True: pass\n"))
    assert (result.passed, result.attempted) == (False, True)
    assert "did not return within 2 s" in result.message
    result = checking.grade(EPILOGUE.id, epilogue("    import os; os.system('echo hello'); unknown\n"))
    line = inspect.getsource(EPILOGUE.answer).splitlines().index('    """') + 2
    assert f"line {line}, in lse_epilogue:  import os; os.system('echo hello'); unknown" in result.message


@interpreted
def test_an_answer_that_takes_the_other_process_down_has_not_passed(compiling):
    result = checking.grade(EPILOGUE.id, epilogue("    import os; os._exit(0)\n"))
    assert (result.passed, result.attempted) == (False, True)
    assert result.message == "08.lse_epilogue: the answer ended its process (exit status 0)"


@interpreted
def test_an_answer_that_no_signal_stops_is_killed_with_its_process(compiling, monkeypatch):
    monkeypatch.setattr(kernel_calls, "ELSEWHERE_LIMIT_S", 3.0)
    result = checking.grade(EPILOGUE.id, epilogue(STUCK))
    assert (result.passed, result.attempted) == (False, True)
    assert result.message == "08.lse_epilogue: the answer did not return within 3 s"


def test_reading_a_lesson_imports_no_triton():
    code = "import sys; from courseware.checks import kernel_calls; from course_lib import language; "
    code += "print({'torch', 'triton'} & sys.modules.keys() or 'neither')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "neither"


def test_triton_is_for_kernels_only():
    assert "may not import triton" in objection("import triton")
