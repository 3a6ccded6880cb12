"""Makes a program of a CUDA kernel and runner.cc, with the machine's own C++ compiler. Programs are cached."""

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from course_lib import runtime

HERE = Path(__file__).parent
SOURCE_NAME = "kernel.cu"
# Level 1 removes loads that a GPU's compiler removes, too, and invents no vectors. -fno-strict-aliasing, because
# kernels read arrays of float as float4.
COMPILE = (
    "-std=c++17 -O1 -g1 -gdwarf-4 -w -fno-pie -fsanitize=thread -fno-strict-aliasing -fno-exceptions -fno-math-errno "
    "-fno-tree-vectorize -fno-tree-slp-vectorize -fstack-clash-protection"
).split()
# g++ would store once more after some loops. Of `x[i] += 1`, clang announces the load only on request.
GCC, CLANG = ["-fno-tree-loop-im"], "-mllvm -tsan-instrument-read-before-write=1".split()
# _FORTIFY_SOURCE takes a jump from one fiber to another for an attack.
COMPILE_RUNNER = "-std=c++17 -O2 -g1 -fno-pie -U_FORTIFY_SOURCE".split()
MAX_DYNAMIC_SHARED_BYTES = 227 << 10  # what a block can have on compute capability 9.0
MAX_CACHED_PROGRAMS = 400


class NoCompiler(RuntimeError):
    """This machine has no C++ compiler, or does not run Linux."""


class CompileError(RuntimeError):
    """A kernel does not compile. line: where in its source, or None."""

    def __init__(self, message, line=None):
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Program:
    """path: of the program. shared: [(name, offset, bytes)], its arrays in shared memory; bytes None: set at launch."""

    path: Path
    shared: list

    def lines(self, instructions):
        """{instruction: the line of the source that it belongs to, or None}.

        An instruction is given by the address behind it, or behind the call that announces it: "0x401234".
        """
        if not instructions:
            return {}
        listing = _output("addr2line", "-a", "-i", "-e", self.path, *(hex(int(x, 16) - 1) for x in instructions))
        # What is inlined from device.h belongs to the line of the kernel that it is inlined into.
        frames = re.split(r"^0x.*\n", listing, flags=re.MULTILINE)[1:]
        lines = (re.search(rf"{SOURCE_NAME}:(\d+)", frame) for frame in frames)
        return {code: line and int(line[1]) for code, line in zip(instructions, lines, strict=True)}


def confined(command, *folders):
    """The command line for a program that works in these folders. In class, grading puts a sandbox around it."""
    return command


def program_of(source, kernel):
    """The Program that runs this kernel of a CUDA C++ source. Raises CompileError, or NoCompiler."""
    compiler = runtime.cxx_compiler()
    if compiler is None:
        raise NoCompiler(
            "Without a GPU, a CUDA kernel is compiled with the machine's C++ compiler, and there is none. Install "
            "one on Linux: apt-get install g++ (or clang). CXX may hold the path of another."
        )
    ours = [(HERE / name).read_text() for name in ("compiling.py", "device.h", "threads.h", "accesses.h", "runner.cc")]
    tools = compiler, COMPILE, GCC, CLANG, COMPILE_RUNNER, ours

    def compile_runner(folder):
        if messages := _compile(compiler, folder, *COMPILE_RUNNER, "-c", HERE / "runner.cc", "-o", "runner.o"):
            raise RuntimeError(f"{compiler} does not compile the runner:\n{messages}")

    runner = _cached(compile_runner, *tools) / "runner.o"
    folder = _cached(lambda folder: _build(compiler, folder, runner, source, kernel), *tools, source, kernel)
    return Program(folder / "program", json.loads((folder / "shared.json").read_text()))


def _build(compiler, folder, runner, source, kernel):
    (folder / SOURCE_NAME).write_text(source)
    # Arrays declared `extern __shared__ float x[]` are defined here, whatever their type, and so are the functions that
    # initialise them: g++ calls these before it uses the arrays.
    dynamic = sorted(set(re.findall(r"\bextern\s+__shared__[^;=]*?(\w+)\s*\[\s*\]", source)))
    definitions = (
        f'__thread char dynamic_{i}[{MAX_DYNAMIC_SHARED_BYTES}] __asm__("{name}") __attribute__((aligned(128)));\n'
        f'extern "C" void _ZTH{len(name)}{name}() {{}}\n'
        for i, name in enumerate(dynamic)
    )
    text = f'#include "device.h"\n#include "{SOURCE_NAME}"\nKERNEL_TO_RUN({kernel})\n{"".join(definitions)}'
    (folder / "launch.cc").write_text(text)
    flags = COMPILE + (CLANG if "clang" in Path(compiler).name else GCC)
    messages = _compile(compiler, folder, *flags, f"-I{HERE}", "-c", "launch.cc", "-o", "launch.o")
    if messages := messages or _compile(compiler, folder, "-no-pie", "launch.o", runner, "-o", "program"):
        raise _error(messages, source, kernel)
    # The rows of readelf's table: number, value, size, type, binding, visibility, section, name.
    rows = map(str.split, _output("readelf", "--wide", "--symbols", folder / "program").splitlines())
    symbols = {(int(row[1], 16), int(row[2], 0), row[7]) for row in rows if len(row) == 8 and row[3] == "TLS"}
    shared = [(_name(name), offset, None if name in dynamic else size) for offset, size, name in sorted(symbols)]
    (folder / "shared.json").write_text(json.dumps(shared))


def _compile(compiler, folder, *arguments):
    """The compiler's messages if it fails, or ""."""
    command, environment = confined([compiler, *map(str, arguments)], folder), os.environ | {"LC_ALL": "C"}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return (run.stderr or "no message") if run.returncode else ""


def _output(*command):
    command = confined(list(map(str, command)))
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _error(messages, source, kernel):
    """The compiler's first error, in terms of the learner's own source."""
    error = re.search(r"^(\S+?):\d+:\d+: (?:fatal )?error: (.*)", messages, re.MULTILINE)
    missing = re.search(r"undefined reference to `([^'(]+)", messages)
    if not error and not missing:
        return RuntimeError(f"the C++ compiler failed:\n{messages}")
    if error and error[1] == "launch.cc":
        return CompileError(f"there is no kernel {kernel}: {error[2]}")
    message = error[2] if error else f"{missing[1]} is declared but not defined"
    # For an error in device.h, or in a header, the compiler names the line that led there.
    found = re.search(rf"{SOURCE_NAME}:(\d+)", messages)
    if not found:
        return CompileError(f"{SOURCE_NAME}: {message}")
    line = int(found[1])
    text = "".join(f"\n    {text.strip()}" for text in source.splitlines()[line - 1 : line])
    return CompileError(f"{SOURCE_NAME}, line {line}: {message}{text}", line)


def _name(symbol):
    """ "tile" of _ZZ7softmaxPKfE4tile, which is how compilers write a function's own variable."""
    found = re.search(r"E(\d+)(\w+)(\.\d+)?$", symbol)
    return found[2][: int(found[1])] if found else symbol


def _cached(make, *parts):
    """The folder of what make(folder) makes of these parts, from the cache or made now."""
    cache = _cache()
    path = cache / hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=cache, ignore_cleanup_errors=True) as new:
            make(Path(new))
            try:
                Path(new).rename(path)  # at once, so that no other process finds a part of it
            except OSError:  # another process was first
                pass
        oldest_first = sorted(cache.glob("?" * len(path.name)), key=os.path.getmtime)
        for folder in oldest_first[:-MAX_CACHED_PROGRAMS]:
            shutil.rmtree(folder, ignore_errors=True)
    return path


def _cache():
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "course_lib" / "cuda"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else Path(_own_folder().name)


@functools.cache
def _own_folder():
    """For a user without a home to write to; removed when this process ends."""
    return tempfile.TemporaryDirectory(prefix="cuda-")
