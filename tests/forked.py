"""Runs code in processes that have imported nbval and nbgrader when they start: forks of one that has done so."""

import multiprocessing
import runpy
from pathlib import Path

FORKING = multiprocessing.get_context("forkserver")
PRELOAD = ["nbgrader.apps.nbgraderapp", "nbval.plugin"]
FORKING.set_forkserver_preload(PRELOAD)
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
    process.start()
    process.join()
    return process.exitcode, output.read_text()
