"""Runs code in processes that have imported nbval, nbgrader and what kernels need when they start: forks of one."""

import contextlib
import json
import multiprocessing
import os
import runpy
import sys
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

FORKING = multiprocessing.get_context("forkserver")
OF_KERNELS = ["ipykernel.kernelapp", "ipykernel.ipkernel", "matplotlib.pyplot", "torch"]
PRELOAD = ["nbgrader.apps.nbgraderapp", "nbval.plugin", *OF_KERNELS]
FORKING.set_forkserver_preload(PRELOAD)
# What Python and these modules read once, and a kernel's environment comes too late for: authoring.kernel_environment.
READ_ONCE = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
START = """
import atexit, os, sys
output = os.open({output!r}, os.O_WRONLY | os.O_CREAT)
os.dup2(output, 1), os.dup2(output, 2)
os.environ.clear()
os.environ.update({environment!r})
os.chdir({folder!r})
sys.argv = {arguments!r}
sys.path.insert(0, {path!r})
try:
    exec({code!r})
finally:
    atexit._run_exitfuncs()  # which multiprocessing does not call
"""


def run(code: str, arguments: list, environment: dict, folder: Path, scratch: Path) -> tuple[int, str]:
    """Code that ends with sys.exit: its exit status, and what it and its children wrote."""
    script, output = scratch / "forked.py", scratch / "forked.txt"
    given = dict(output=str(output), environment=environment, folder=str(folder), arguments=list(map(str, arguments)))
    script.write_text(START.format(**given, path=environment["PYTHONPATH"], code=code))
    output.unlink(missing_ok=True)
    process = FORKING.Process(target=runpy.run_path, args=[str(script)])
    with mock.patch.dict(os.environ, READ_ONCE):  # the first one to start starts the process that forks
        process.start()
    process.join()
    return process.exitcode, output.read_text()


@contextlib.contextmanager
def another_server(preload: list):
    """Forks of a process that has imported other modules. Python has one such server: it ends, and so does this one."""
    forkserver._forkserver._stop()
    FORKING.set_forkserver_preload(preload)
    try:
        yield
    finally:
        forkserver._forkserver._stop()
        FORKING.set_forkserver_preload(PRELOAD)


class Kernel:
    """A fork of this process that waits, and becomes a notebook's kernel when `launch` is called: as `launch_kernel` of
    jupyter_client, it returns something like a Popen. Made before this process has threads."""

    stdin = stdout = stderr = returncode = None

    def __init__(self):
        asked, self.asking = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()  # the client sends its signals to the group
            os.close(self.asking)
            with open(asked) as file:
                sys.argv, environment, folder = json.load(file)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            from ipykernel import kernelapp

            kernelapp.launch_new_instance()
            os._exit(0)

    def launch(self, command, env, cwd, **_):
        with open(self.asking, "w") as file:
            json.dump([command[2:], env | {"JPY_PARENT_PID": str(os.getpid())}, cwd], file)
        return self

    def poll(self):
        if self.returncode is None and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.returncode = 0
        return self.returncode

    wait = poll
