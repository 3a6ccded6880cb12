"""Makes a program of a CUDA kernel and runner.cc, with the machine's own C++ compiler. Programs are cached."""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from course_lib import runtime

HERE = Path(__file__).parent
OURS = [(HERE / name).read_text() for name in ("device.h", "requests.h", "threads.h", "accesses.h", "runner.cc")]
SOURCE_NAME = "kernel.cu"
FIRST_ADDRESS = 1 << 20  # of a program, which begins higher up: smaller numbers are something else
# Level 1 removes loads that a GPU's compiler removes, too, and invents no vectors. -fno-strict-aliasing, because
# kernels read arrays of float as float4.
COMPILE = (
    "-std=c++17 -O1 -g1 -gdwarf-4 -w -fno-pie -fsanitize=thread -fno-strict-aliasing -fno-exceptions -fno-math-errno "
    "-fno-tree-vectorize -fno-tree-slp-vectorize -fstack-clash-protection -c launch.cc -o launch.o"
).split()
# g++ would store once more after some loops. Of `x[i] += 1`, clang announces the load only on request.
GCC = "-fno-tree-loop-im --param=tsan-instrument-func-entry-exit=0".split()
CLANG = (
    "-mllvm -tsan-instrument-read-before-write=1 -mllvm -tsan-instrument-func-entry-exit=0 "
    "-mllvm -tsan-instrument-memintrinsics=0"
).split()
# _FORTIFY_SOURCE takes a jump from one fiber to another for an attack.
COMPILE_RUNNER = "-std=c++17 -O2 -g1 -fno-pie -U_FORTIFY_SOURCE -o runner.o -c".split()
MAX_STATIC_SHARED_BYTES = 48 << 10  # nvcc compiles no more; dynamic shared memory may be larger
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
    """path: of the program. parameters: the kernel's, such as "float*".

    shared: [(name, offset, bytes)], its arrays in shared memory; bytes None: set at launch.
    """

    path: Path
    parameters: list
    shared: list

    def lines(self, places):
        """{place: the line of the source, or 0}. A place is such a line, or the address behind an instruction."""
        lines = {place: place for place in places}
        if codes := [place for place in places if place >= FIRST_ADDRESS]:
            command = ["addr2line", "-a", "-i", "-e", str(self.path), *(hex(code - 1) for code in codes)]
            command = confined(command, readable=[self.path.parent])
            listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            # What is inlined from device.h belongs to the line of the kernel that it is inlined into.
            frames = re.split(r"^0x.*\n", listing, flags=re.MULTILINE)[1:]
            for code, frame in zip(codes, frames, strict=True):
                line = re.search(rf"{SOURCE_NAME}:(\d+)", frame)
                lines[code] = int(line[1]) if line else 0
        return lines


def confined(command, writable=(), readable=()):
    """The command line for a program that needs these folders alone. In class, marking puts a sandbox around it."""
    return command


def program_of(source, kernel):
    """The Program that runs this kernel of a CUDA C++ source. Raises CompileError, or NoCompiler."""
    compiler = runtime.cxx_compiler()
    if compiler is None:
        raise NoCompiler(
            "Without a GPU, a CUDA kernel is compiled with the machine's C++ compiler, and there is none. Install "
            "one on Linux: apt-get install g++ (or clang). CXX may hold the path of another."
        )
    # Arrays declared `extern __shared__ float x[]` are defined here, whatever their type, and so are the functions that
    # initialise them: g++ calls these before it uses the arrays.
    dynamic = sorted(set(re.findall(r"\bextern\s+__shared__[^;=]*?(\w+)\s*\[\s*\]", source)))
    definitions = (
        f'__thread char dynamic_{name}[{MAX_DYNAMIC_SHARED_BYTES}] __asm__("{name}") __attribute__((aligned(128)));\n'
        f'extern "C" void _ZTH{len(name)}{name}() {{}}\n'
        for name in dynamic
    )
    text = f'#include "device.h"\n#include "{SOURCE_NAME}"\nKERNEL_TO_RUN({kernel})\n{"".join(definitions)}'
    compile_kernel = [compiler, *COMPILE, *(CLANG if "clang" in Path(compiler).name else GCC), f"-I{HERE}"]
    try:
        runner = _made(_cache(), [], {}, [compiler, *COMPILE_RUNNER, str(HERE / "runner.cc")])
        link = [compiler, "-no-pie", "launch.o", str(runner / "runner.o"), "-o", "program"]
        list_symbols = ["nm", "--demangle", "--print-size", "program"]
        files = {SOURCE_NAME: source, "launch.cc": text}
        folder = _made(programs(), [runner], files, compile_kernel, link, list_symbols)
    except subprocess.CalledProcessError as failed:
        raise _error(failed.stderr, source, kernel) from None
    return _program(folder, dynamic)


def _program(folder, dynamic):
    symbols = (folder / "printed").read_text()
    (parameters,) = re.findall(r" void runner::call<(.*)>\(", symbols)
    rows = re.findall(r"^(\w+) (\w+) \w (?:.*::)?(\w+)", symbols, re.MULTILINE)
    # A variable in shared memory has an offset for an address. Compilers may name one twice.
    variables = sorted({(int(address, 16), int(size, 16), name) for address, size, name in rows})
    variables = [variable for variable in variables if variable[0] < FIRST_ADDRESS]
    shared = [(name, offset, None if name in dynamic else size) for offset, size, name in variables]
    if (static_bytes := sum(size or 0 for *_, size in shared)) > MAX_STATIC_SHARED_BYTES:
        raise CompileError(
            f"The kernel declares {static_bytes:,} bytes of shared memory, and nvcc accepts at most "
            f"{MAX_STATIC_SHARED_BYTES:,}. More than that must be dynamic: extern __shared__."
        )
    return Program(folder / "program", parameters.split(", ") if parameters else [], shared)


def _made(cache, readable, files, *commands):
    """The folder that has these files, and what commands make of them: from the cache, or made now.

    readable: folders that the commands need. The file "printed" has what the last command printed.
    """
    path = cache / hashlib.sha256(repr((files, commands, OURS)).encode()).hexdigest()[:32]
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=cache, ignore_cleanup_errors=True) as new:
            for name, text in files.items():
                Path(new, name).write_text(text)
            how = {"cwd": new, "env": os.environ | {"LC_ALL": "C"}, "capture_output": True, "text": True, "check": True}
            for command in commands:
                Path(new, "printed").write_text(
                    subprocess.run(confined(command, [new], [HERE, *readable]), **how).stdout
                )
            with contextlib.suppress(OSError):  # another process was first
                Path(new).rename(path)  # at once, so that no other process finds a part of it
        oldest_first = sorted(cache.glob("?" * len(path.name)), key=os.path.getmtime)
        for folder in oldest_first[:-MAX_CACHED_PROGRAMS]:
            shutil.rmtree(folder, ignore_errors=True)
    return path


def _cache():
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "course_lib" / "cuda"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else own_folder()


programs = _cache  # In class, each kernel has a cache of its own, where nobody else's program is.
_temporary = functools.cache(lambda: tempfile.TemporaryDirectory(prefix="cuda-"))


def own_folder():
    """Of this process, which removes it at its end: also for a user without a home to write to."""
    return Path(_temporary().name)


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
