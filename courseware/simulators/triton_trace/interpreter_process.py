"""A second process in which Triton interprets kernels, for a process in which it compiles them.

Triton can do only one of the two in a process. The interpreting process takes seconds to start, at the first call, and
then stays until the process that started it ends. It forks for each call, so that no call sees what an earlier one left
behind, and a call that crashes takes nothing with it.
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

from course_lib import runtime

_lock = threading.RLock()
_server = None  # (id of the process that started it, its Popen)


def run(function, folder, limit_s=None):
    """Call the function "module:name" there with the folder, in which it finds its arguments and leaves its results.

    Returns (exit status, what it wrote to stderr): status 0 if the function returned, 1 if it raised, -9 if it was
    killed. After limit_s seconds by the clock, kills it and raises TimeoutError.
    """
    with _lock:
        start()
        server = _server[1]
        path = [str(entry) for entry in sys.path]
        request = {"function": function, "folder": str(folder), "path": path, "cwd": os.getcwd(), "limit_s": limit_s}
        try:
            server.stdin.write(json.dumps(request) + "\n")
            server.stdin.flush()
            status = json.loads(server.stdout.readline() or "-9") if _becomes_readable(server.stdout, limit_s) else None
        except BaseException:  # such as an interrupt: the next call would read this call's exit status
            _stop()
            raise
        if status in (None, -signal.SIGKILL):  # -9 may mean that the server itself is gone
            _stop()
    if status is None:
        raise TimeoutError(f"{function} did not return within {limit_s:g} s")
    errors = Path(folder) / "stderr"
    return status, errors.read_text(errors="replace") if errors.exists() else ""


def _becomes_readable(pipe, limit_s):
    """Whether there is something to read from the pipe, or it is closed, within limit_s seconds."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    end_s = float("inf") if limit_s is None else time.monotonic() + limit_s
    while (left_s := end_s - time.monotonic()) > 0:
        # In short waits: an exception that another thread raises in this one arrives only when a call returns.
        if poll.poll(1000 * min(left_s, 0.2)):
            return True
    return False


def start():
    """Start the process unless it runs. Raises RuntimeError, with what it wrote to stderr, if it does not start."""
    global _server
    with _lock:
        if _server and _server[0] == os.getpid() and _server[1].poll() is None:
            return
        # One thread, because a fork copies no thread but the one that forks.
        environment = runtime.environment(interpreting=True) | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        server = subprocess.Popen(
            [sys.executable, "-c", f"from {__package__} import interpreter_process; interpreter_process.serve()"],
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
    """In the interpreting process: fork for each line of stdin, a request of `run`, and print the exit status."""
    runtime.choose()
    # The slow imports that calls need, once for all of them.
    import hypothesis.extra.numpy  # noqa: F401
    import torch  # noqa: F401
    import triton.language  # noqa: F401

    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _answer(json.loads(line))
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            # No request comes during a call: stdin is readable only once the process that started this one has ended.
            if _becomes_readable(sys.stdin, 0.01):
                os.killpg(0, signal.SIGKILL)
        print(os.waitstatus_to_exitcode(ended[1]), flush=True)


def _answer(request):
    status = 1
    try:
        # Whatever the function prints, even from C, must not mix with the exit statuses on stdout.
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
