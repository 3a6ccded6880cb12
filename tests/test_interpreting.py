"""The process that interprets for one that compiles: calls, what they leave, and how they end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from course_lib import interpreting

ANSWERS = """
import os, signal, sys, time
from pathlib import Path

calls = 0

def count(folder):
    global calls
    calls += 1
    import triton
    interpreted = "Interpreted" in type(triton.jit(count)).__name__
    print("printed", flush=True)
    (Path(folder) / "found").write_text(f"{calls} {interpreted} {os.getpid()}")

def fail(folder):
    sys.stderr.write("in the way: ")
    raise ValueError("no such thing")

def leave(folder):
    os._exit(7)

def die(folder):
    os.kill(os.getpid(), signal.SIGKILL)

def stick(folder):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
    while True:
        pass
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    """call(name, limit_s): as `interpreting.run` of the function in ANSWERS."""
    (tmp_path / "answers_of_a_test.py").write_text(ANSWERS)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name, limit_s=60.0: interpreting.run(f"answers_of_a_test:{name}", tmp_path, limit_s)


def test_each_call_has_a_process_of_its_own_that_interprets(call, tmp_path):
    assert call("count") == (0, "")
    first = (tmp_path / "found").read_text().split()
    begin_s = time.perf_counter()
    assert call("count") == (0, "")
    assert time.perf_counter() - begin_s < 1.5  # the first started the process, which imports Triton
    second = (tmp_path / "found").read_text().split()
    assert first[:2] == second[:2] == ["1", "True"] and first[2] != second[2]


def test_how_a_call_ended_is_told_and_the_next_one_runs(call):
    status, errors = call("fail")
    assert status == 1 and "in the way: " in errors and errors.endswith("ValueError: no such thing\n")
    assert call("leave") == (7, "")
    assert call("die") == (-signal.SIGKILL, "")
    assert call("count") == (0, "")


def test_a_call_that_no_signal_stops_is_killed_in_time(call):
    interpreting.start()
    begin_s = time.perf_counter()
    with pytest.raises(TimeoutError, match=r"answers_of_a_test:stick did not return within 0\.5 s"):
        call("stick", 0.5)
    assert time.perf_counter() - begin_s < 2
    assert call("count") == (0, "")


def test_an_interrupt_of_the_caller_ends_the_call(call):
    interpreting.start()

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            call("stick")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert call("count") == (0, "")


def test_what_keeps_the_process_from_starting_is_told(tmp_path, monkeypatch):
    (tmp_path / "course_lib.py").write_text("raise ImportError('broken on purpose')")
    monkeypatch.setattr(interpreting, "_server", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="did not start:\n(.*\n)*ImportError: broken on purpose"):
        interpreting.start()


def test_the_process_ends_with_the_one_that_started_it(tmp_path):
    (tmp_path / "answers_of_a_test.py").write_text(ANSWERS)
    code = (
        "import os, sys; from course_lib import interpreting; sys.path.insert(0, sys.argv[1]);"
        "interpreting.run('answers_of_a_test:count', sys.argv[1]); print(interpreting._server[1].pid, flush=True);"
        "os._exit(0)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(interpreting.__file__).parents[1])}
    run = subprocess.run([sys.executable, "-c", code, tmp_path], env=environment, capture_output=True, text=True)
    server = Path("/proc") / run.stdout.strip()
    deadline_s = time.monotonic() + 5
    while server.exists() and "State:\tZ" not in (server / "status").read_text():
        assert time.monotonic() < deadline_s, run.stderr
        time.sleep(0.05)
