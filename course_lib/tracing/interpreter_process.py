"""A process in which Triton's kernels are interpreted, for a process that compiles them: calls are sent there.

It starts with the first call, which takes seconds, and stays. It forks for each call: a call finds nothing of those
before it, and takes nobody down with it. It ends with the process that started it.
"""

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

_lock = threading.RLock()
_server = None  # (id of the process that started it, its Popen)


def run(function, folder, limit_s=None):
    """Call the function "module:name", with the folder, by which it gets its arguments and gives its results.

    Returns (exit status, what was written to stderr): 0 if the function returned, 1 if it raised, -9 if it was killed.
    Raises TimeoutError if it takes more than limit_s seconds by the clock; it is killed then.
    """
    with _lock:
        start()
        server = _server[1]
        path = [str(entry) for entry in sys.path]
        request = {"function": function, "folder": str(folder), "path": path, "cwd": os.getcwd(), "limit_s": limit_s}
        try:
            server.stdin.write(json.dumps(request) + "\n")
            server.stdin.flush()
            status = json.loads(server.stdout.readline() or "-9") if _is_written_to(server.stdout, limit_s) else None
        except BaseException:  # an interrupt, or a limit of the caller's: the answer would be taken for the next call's
            _stop()
            raise
        if status in (None, -signal.SIGKILL):  # the second may mean that it is gone itself
            _stop()
    if status is None:
        raise TimeoutError(f"{function} did not return within {limit_s:g} s")
    errors = Path(folder) / "stderr"
    return status, errors.read_text(errors="replace") if errors.exists() else ""


def _is_written_to(pipe, limit_s):
    """Whether something can be read from the pipe, or it has been closed, within limit_s."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    end_s = float("inf") if limit_s is None else time.monotonic() + limit_s
    while (left_s := end_s - time.monotonic()) > 0:
        # In pieces, for what another thread raises in this one waits for a call to return.
        if poll.poll(1000 * min(left_s, 0.2)):
            return True
    return False


def start():
    """Start the process, unless it runs. RuntimeError, with its last words, if it does not come up."""
    global _server
    with _lock:
        if _server and _server[0] == os.getpid() and _server[1].poll() is None:
            return
        environment = os.environ | {
            "TRITON_INTERPRET": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",  # threads do not survive a fork
            "PYTHONPATH": os.pathsep.join(str(entry) for entry in sys.path if entry),
        }
        server = subprocess.Popen(
            [sys.executable, "-c", "from course_lib.tracing import interpreter_process; interpreter_process.serve()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment, start_new_session=True,
        )  # fmt: skip
        _server = os.getpid(), server
        try:
            if not server.stdout.readline():
                raise RuntimeError(f"the process that interprets kernels did not start:\n{server.stderr.read()}")
        except BaseException:
            _stop()
            raise


def _stop():
    global _server
    server, _server = _server[1], None
    try:
        os.killpg(server.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    server.communicate()


def serve():
    """In that process: fork for each line of stdin, a request of `run`, and write the exit status to stdout."""
    from course_lib import runtime

    runtime.choose()
    # What calls will need is imported once, here.
    for name in ("hypothesis", "course_lib.tracer", "course_lib.grading.checking", "course_lib.kernels"):
        importlib.import_module(name)
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _answer(json.loads(line))
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if _is_written_to(sys.stdin, 0.01):
                os.killpg(0, signal.SIGKILL)  # nobody asks during a call: the process that started this one has ended
        print(os.waitstatus_to_exitcode(ended[1]), flush=True)


def _answer(request):
    status = 1
    try:
        # What an answer prints, at whatever level, must not mix with the exit statuses.
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        os.dup2(os.open(os.path.join(request["folder"], "stderr"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.chdir(request["cwd"])
        sys.path[:] = request["path"]
        module, name = request["function"].split(":")
        getattr(importlib.import_module(module), name)(request["folder"])
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
