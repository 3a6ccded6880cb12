"""The interpreting process: its calls, what they leave behind, and how they end."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from courseware.simulators.triton_trace import interpreter_process

ANSWERS = """
import os, signal, sys
from pathlib import Path

calls = 0

def count(folder):
    global calls
    calls += 1
    print("printed", flush=True)
    (Path(folder) / "found").write_text(f"{calls} {os.getpid()} {os.getcwd()} {sys.path[-1]}")

def interprets(folder):
    import triton
    assert "Interpreted" in type(triton.jit(count)).__name__

def fail(folder):
    sys.stderr.write("in the way: ")
    raise ValueError("no such thing")

def die(folder):
    os.kill(os.getpid(), signal.SIGKILL)

def kill_all(folder):
    os.kill(os.getppid(), signal.SIGKILL)
    stick(folder)

def stick(folder):
    (Path(folder) / "stuck").write_text(str(os.getpid()))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
    while True:
        pass
"""
# Stand-ins for what the process imports when it starts, which takes seconds.
LIGHT = {
    "torch/__init__.py": "class cuda:\n    is_available = staticmethod(lambda: False)\n",
    "triton/language.py": "",
    "hypothesis/extra/numpy.py": "",
}


def ended(process, within_s=10.0):
    """Whether the process with this id ends in time. A zombie counts as ended."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        try:
            if "State:\tZ" in Path(f"/proc/{process}/status").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def call(tmp_path, monkeypatch):
    """call(name, limit_s): as `interpreter_process.run` of the function in ANSWERS."""
    (tmp_path / "answers_of_a_test.py").write_text(ANSWERS)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name, limit_s=60.0: interpreter_process.run(f"answers_of_a_test:{name}", tmp_path, limit_s)


@pytest.fixture
def light(tmp_path, monkeypatch):
    """The process is one of the test's own, which starts quickly and knows no Triton."""
    for name, text in LIGHT.items():
        (tmp_path / "light" / name).parent.mkdir(parents=True)
        (tmp_path / "light" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "light")
    monkeypatch.setattr(interpreter_process, "_server", None)
    yield
    if interpreter_process._server:
        interpreter_process._stop()


def test_each_call_is_interpreted_in_a_process_of_its_own(call, tmp_path, monkeypatch):
    assert call("interprets") == (0, "")
    server = interpreter_process._server[1].pid
    assert call("count") == (0, "")
    first = (tmp_path / "found").read_text().split()
    # Folder and path are those of the caller now, not those of when the process started.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/some/where")])
    assert call("count") == (0, "")
    second = (tmp_path / "found").read_text().split()
    assert first[0] == second[0] == "1" and first[1] != second[1]
    assert second[2:] == [str(tmp_path), "/some/where"]
    assert interpreter_process._server[1].pid == server, "the process that has imported Triton is kept"


def test_the_way_a_call_ended_is_reported_and_the_next_one_runs(light, call):
    status, errors = call("fail")
    assert status == 1 and "in the way: " in errors and errors.endswith("ValueError: no such thing\n")
    assert call("die") == (-signal.SIGKILL, "")
    assert call("kill_all") == (-signal.SIGKILL, "")
    assert call("count") == (0, "")


def test_a_call_that_no_signal_stops_is_killed_in_time(light, call):
    interpreter_process.start()
    server = interpreter_process._server[1].pid
    with pytest.raises(TimeoutError, match=r"answers_of_a_test:stick did not return within 0\.3 s"):
        call("stick", 0.3)
    assert ended(server)
    assert call("count") == (0, "")


def test_an_exception_raised_by_another_thread_ends_the_call(light, call):
    """`worker.running` limits the time that way where there are no signals. It arrives when a system call returns.

    After it, and after an interrupt from the keyboard, the next call must not read this call's exit status.
    """
    interpreter_process.start()
    raised = []

    def stuck():
        try:
            call("stick", None)
        except InterruptedError as error:
            raised.append(error)

    thread = threading.Thread(target=stuck)
    thread.start()
    time.sleep(0.3)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(InterruptedError))
    thread.join(10)
    assert raised and not thread.is_alive()
    assert call("count") == (0, "")


def test_a_process_that_does_not_start_says_why(tmp_path, monkeypatch):
    (tmp_path / "course_lib.py").write_text("raise ImportError('broken on purpose')")
    monkeypatch.setattr(interpreter_process, "_server", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="did not start:\n(.*\n)*ImportError: broken on purpose"):
        interpreter_process.start()


@pytest.mark.parametrize("during", ("count", "stick"))
def test_the_process_ends_with_the_one_that_started_it(light, call, tmp_path, during):
    """Both between calls and in the middle of one."""
    code = (
        "import os, sys, threading, time; from courseware.simulators.triton_trace import interpreter_process;"
        "interpreter_process.start(); print(interpreter_process._server[1].pid, flush=True);"
        "ask = lambda: interpreter_process.run('answers_of_a_test:' + sys.argv[2], sys.argv[1]);"
        "threading.Thread(target=ask).start(); time.sleep(1); os._exit(0)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    command = [sys.executable, "-c", code, tmp_path, during]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended(run.stdout.strip()), run.stderr
    assert during == "count" or ended((tmp_path / "stuck").read_text())
