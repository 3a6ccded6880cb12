"""The command line that runs a program under bubblewrap, where it finds nothing to steal and nothing to break.

It has no network, no home and none of the course but courseware/worker. It can read Python, NumPy, Triton, /usr, and
PyTorch where an exercise is about it, and write only to the folders that are named.
"""

import functools
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

COURSE = Path(__file__).resolve().parents[2]
PACKAGES = ("numpy", "triton")
WITH_TORCH = (*PACKAGES, "torch", "torchgen", "typing_extensions", "nvidia", "sympy", "mpmath")
REFUSAL = """\
Answers are not marked: they would run with your rights, because bubblewrap {why}.
On Debian or Ubuntu: apt-get install bubblewrap. Elsewhere, mark in a container: docs/instructors.md has the line.
To mark without it all the same: c.MarkAnswers.sandbox = False in nbgrader_config.py."""


class NoSandbox(RuntimeError):
    """bubblewrap is not to be had on this machine."""


@functools.cache
def bubblewrap() -> str:
    """Path of bwrap. Raises NoSandbox, with what to do, where it is missing or does not work."""
    path = shutil.which("bwrap")
    if path is None:
        raise NoSandbox(REFUSAL.format(why="(bwrap) is not installed"))
    run = subprocess.run([*_confined(path), "/usr/bin/env", "true"], capture_output=True, text=True)
    if run.returncode:
        raise NoSandbox(REFUSAL.format(why=f"does not work here ({run.stderr.strip()})"))
    return path


def works() -> bool:
    """Whether there is a sandbox on this machine."""
    try:
        return bool(bubblewrap())
    except NoSandbox:
        return False


def command(arguments, writable=(), readable=()) -> list[str]:
    """The command line that runs these arguments in the sandbox. Raises NoSandbox."""
    line = [*_confined(bubblewrap()), "--size", str(64 << 20), "--tmpfs", "/tmp"]
    for option, folders in (("--ro-bind", readable), ("--bind", writable)):
        for folder in folders:
            line += [option, str(folder), str(folder)]
    line += ["--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "LC_ALL", "C"]
    limits = ["/usr/bin/prlimit", f"--as={6 << 30}", f"--fsize={64 << 20}"]
    return [*line, "--chdir", str([*writable, "/"][0]), "--", *limits, *map(str, arguments)]


def worker(sandboxed: bool, info: int, packages=PACKAGES) -> tuple[list[str], dict[str, str]]:
    """The command line of the worker, and its environment. info: a file descriptor on which bwrap tells its process."""
    script = "from courseware.worker import __main__ as worker; worker.main()"
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TRITON_INTERPRET": "1", "HOME": "/"}
    environment |= {"MALLOC_MMAP_THRESHOLD_": "16384"}  # arrays take pages of their own, which can be counted
    if not sandboxed:
        return [sys.executable, "-c", _found(str(COURSE)) + script], environment | {"PATH": "/usr/bin:/bin"}
    shown = ["--ro-bind", COURSE / "courseware/worker", "/course/courseware/worker"]
    shown += ["--ro-bind", COURSE / "courseware/editing.py", "/course/courseware/editing.py"]
    line = [*_confined(bubblewrap(), packages), *map(str, shown), "--remount-ro", "/", "--chdir", "/"]
    line += ["--as-pid-1", "--info-fd", str(info), "--"]
    return [*line, *python(script, "/course")], environment


def python(line, *folders) -> list[str]:
    """The command that runs a line of Python in the sandbox: by the one that the environment was made from."""
    return [str(Path(sys.executable).resolve()), "-I", "-S", "-c", _found(*folders, "/packages") + line]


def _found(*folders):
    return f"import sys; sys.path[:0] = {list(folders)!r}; "


def _confined(path, packages=PACKAGES):
    line = [path, "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]
    line += ["--die-with-parent", "--new-session"]
    base = Path(sys.base_prefix).resolve()
    for folder in ("/bin", "/lib", "/lib64", "/sbin"):
        if Path(folder).is_symlink():
            line += ["--symlink", str(Path(folder).readlink()), folder]
        elif Path(folder).exists():
            line += ["--ro-bind", folder, folder]
    line += ["--ro-bind", "/usr", "/usr"]
    line += [] if base.is_relative_to("/usr") else ["--ro-bind", str(base), str(base)]
    for name in ("ld.so.cache", "alternatives"):
        line += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    # Installed packages, among which this course may be.
    covered = [
        *base.glob("lib/python3*/*-packages"),
        *Path("/usr").glob("lib/python3*/dist-packages"),
        *Path("/usr/local").glob("lib/python3*/*-packages"),
        *(folder.parent for folder in [COURSE / "pyproject.toml"] if folder.exists()),  # a clone
    ]
    for folder in covered:
        if folder.is_relative_to(base) or folder.is_relative_to("/usr"):
            line += ["--tmpfs", str(folder)]
    for found in filter(None, map(importlib.util.find_spec, packages)):
        home = Path(next(iter(found.submodule_search_locations or [found.origin])))
        for part in (home, *home.parent.glob(f"{home.name}.libs"), *home.parent.glob(f"{home.name}-*.dist-info")):
            line += ["--ro-bind", str(part), f"/packages/{part.name}"]
    for file in ("/proc/cpuinfo", "/sys/devices/system/cpu"):  # torch asks which instructions there are
        line += ["--ro-bind", file, file] if "torch" in packages else []
    for device in ("null", "zero", "urandom"):
        line += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    return line
