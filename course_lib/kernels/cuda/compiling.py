"""Makes a program of a CUDA kernel and runner.cc, with the machine's own C++ compiler. Programs are cached."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from course_lib import runtime

HERE = Path(__file__).parent
SOURCE_NAME = "kernel.cu"
# Level 1 removes loads that a GPU's compiler removes, too, and invents no vectors. -fno-strict-aliasing, because
# kernels read arrays of float as float4. -fno-tree-loop-im, because g++ would store once more after some loops.
COMPILE = (
    "-std=c++17 -O1 -g1 -gdwarf-4 -w -fPIE -fsanitize=thread -fno-strict-aliasing -fno-exceptions -fno-math-errno "
    "-fno-tree-vectorize -fno-tree-slp-vectorize -fno-tree-loop-im -fstack-clash-protection"
).split()
# Of `x[i] += 1`, clang announces the load only on request.
CLANG = "-mllvm -tsan-instrument-read-before-write=1".split()
# _FORTIFY_SOURCE takes a jump from one fiber to another for an attack.
COMPILE_RUNNER = "-std=c++17 -O2 -g1 -fPIE -U_FORTIFY_SOURCE".split()
MAX_DYNAMIC_SHARED_BYTES = 227 << 10  # what a block can have on compute capability 9.0
MAX_CACHED_PROGRAMS = 400


class NoCompiler(RuntimeError):
    """This machine has no C++ compiler, or does not run Linux."""


class CompileError(RuntimeError):
    """A kernel does not compile. line: where in its source, or None."""

    def __init__(self, message, line=None):
        super().__init__(message)
        self.line = line


class Program:
    """path: of the program. shared: [(name, offset, bytes)], its arrays in shared memory; bytes None: set at launch."""

    def __init__(self, source, kernel):
        compiler = runtime.cxx_compiler()
        if compiler is None:
            raise NoCompiler(
                "Without a GPU, a CUDA kernel is compiled with the machine's C++ compiler, and there is none. Install "
                "one on Linux: apt-get install g++ (or clang). CXX may hold the path of another."
            )
        ours = [(HERE / name).read_text() for name in ("device.h", "threads.h", "accesses.h", "runner.cc")]
        cache = _cache()
        folder = cache / _key(compiler, COMPILE, CLANG, COMPILE_RUNNER, ours, source, kernel)
        if folder.exists():
            os.utime(folder)  # its latest use
        else:
            with tempfile.TemporaryDirectory(prefix="cuda-") as name:
                _Build(compiler, Path(name), source, kernel).run(cache / f"{_key(compiler, COMPILE_RUNNER, ours)}.o")
                _keep(folder, Path(name, "program"), Path(name, "shared.json"))
            _forget_old_programs(cache)
        self.path = folder / "program"
        self.shared = json.loads((folder / "shared.json").read_text())

    def lines(self, instructions, begin):
        """{instruction: the line of the source that it belongs to, or None}, for a program that begins at `begin`.

        An instruction is given by the address behind it, or behind the call that announces it.
        """
        command = ["addr2line", "-a", "-i", "-e", str(self.path), *(hex(code - 1 - begin) for code in instructions)]
        if not instructions or shutil.which(command[0]) is None:
            return dict.fromkeys(instructions)
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = {}
        for address, frames in zip(instructions, re.split(r"^0x.*\n", listing, flags=re.MULTILINE)[1:], strict=True):
            # What is inlined from device.h belongs to the line of the kernel that it is inlined into.
            line = re.search(rf"{re.escape(SOURCE_NAME)}:(\d+)", frames)
            found[address] = line and int(line[1])
        return found


class _Build:
    def __init__(self, compiler, folder, source, kernel):
        self.compiler, self.folder, self.source, self.kernel = compiler, folder, source, kernel

    def run(self, runner):
        (self.folder / SOURCE_NAME).write_text(self.source)
        (self.folder / "launch.cc").write_text(
            f'#include "device.h"\n#include "{SOURCE_NAME}"\nKERNEL_TO_RUN({self.kernel})\n'
        )
        if not runner.exists():
            self._compile(*COMPILE_RUNNER, "-c", HERE / "runner.cc", "-o", "runner.o")
            _keep(runner, self.folder / "runner.o")
        flags = COMPILE + (CLANG if "clang" in Path(self.compiler).name else [])
        self._compile(*flags, f"-I{HERE}", "-c", "launch.cc", "-o", "launch.o")
        # Arrays declared `extern __shared__ float x[]` are the ones that are still missing.
        dynamic = [symbol for symbol, _, _, missing in self._thread_locals("launch.o") if missing]
        definitions = [
            f'__thread char dynamic_{i}[{MAX_DYNAMIC_SHARED_BYTES}] __asm__("{symbol}") __attribute__((aligned(128)));'
            for i, symbol in enumerate(dynamic)
        ]
        # Before such an array is used, compilers call a function that initialises it, in case it is defined elsewhere.
        # g++ with -fPIE calls it even where there is none.
        definitions += [f'extern "C" void {symbol}() {{}}' for symbol in self._missing("_ZTH", "launch.o")]
        (self.folder / "dynamic.cc").write_text("\n".join(definitions) + "\n")
        self._compile("-pie", "launch.o", "dynamic.cc", runner, "-o", "program")
        shared = [
            (_name(symbol), offset, None if symbol in dynamic else size)
            for symbol, offset, size, _ in self._thread_locals("program")
        ]
        (self.folder / "shared.json").write_text(json.dumps(shared))

    def _compile(self, *arguments):
        run = subprocess.run(
            [self.compiler, *map(str, arguments)], cwd=self.folder, env=os.environ | {"LC_ALL": "C"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if run.returncode:
            if "launch.cc" not in arguments and "launch.o" not in arguments:
                raise RuntimeError(f"{self.compiler} does not compile the runner:\n{run.stderr}")
            raise self._error(run.stderr)

    def _error(self, messages):
        """The compiler's first error, in terms of the learner's own source."""
        lines = self.source.splitlines()
        missing = re.search(r"undefined reference to `([^'(]+)", messages)
        error = re.search(rf"^{re.escape(SOURCE_NAME)}:(\d+):\d+: (?:fatal )?error: (.*)", messages, re.MULTILINE)
        elsewhere = re.search(r"^(\S+?):\d+:\d+: (?:fatal )?error: (.*)", messages, re.MULTILINE)
        if missing:
            line = re.search(rf"{re.escape(SOURCE_NAME)}:(\d+):[^\n]*undefined", messages)
            message, line = f"{missing[1]} is declared but not defined", line and int(line[1])
        elif elsewhere and elsewhere[1] == "launch.cc" and not error:
            return CompileError(f"there is no kernel {self.kernel}: {elsewhere[2]}")
        elif elsewhere and (error is None or elsewhere.start() < error.start()):
            # In device.h, or in a header: what the compiler says next names the line that led there.
            line = re.search(rf"{re.escape(SOURCE_NAME)}:(\d+)", messages)
            message, line = elsewhere[2], line and int(line[1])
        elif error:
            message, line = error[2], int(error[1])
        else:
            raise RuntimeError(f"{self.compiler} failed:\n{messages}")
        where = f"{SOURCE_NAME}, line {line}: " if line else f"{SOURCE_NAME}: "
        text = f"\n    {lines[line - 1].strip()}" if line and line <= len(lines) else ""
        return CompileError(where + message + text, line)

    def _symbols(self, file):
        """The rows of readelf's table: number, value, size, type, binding, visibility, section, name."""
        command = ["readelf", "--wide", "--symbols", file]
        listing = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True).stdout
        return [row for row in map(str.split, listing.splitlines()) if len(row) == 8]

    def _missing(self, prefix, file):
        return sorted({row[7] for row in self._symbols(file) if row[6] == "UND" and row[7].startswith(prefix)})

    def _thread_locals(self, file):
        """[(symbol, offset, bytes, whether it is only declared)] of the variables in shared memory."""
        found = [
            (row[7], int(row[1], 16), int(row[2], 0), row[6] == "UND") for row in self._symbols(file) if row[3] == "TLS"
        ]
        return sorted(set(found), key=lambda symbol: symbol[1])


def _name(symbol):
    """ "tile" of _ZZ7softmaxPKfE4tile, which is how compilers write a function's own variable."""
    found = re.search(r"E(\d+)(\w+)(\.\d+)?$", symbol)
    return found[2][: int(found[1])] if found else symbol


def _key(*parts):
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _cache():
    """The folder of programs, which only this user can write to."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    for parent in (Path(home), Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"):
        folder = parent / "course_lib" / "cuda"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    raise OSError("there is no folder to keep compiled kernels in; set XDG_CACHE_HOME to one")


def _keep(path, *files):
    """Put a file, or a folder of files, into the cache at once, so that no other process finds a part of it."""
    new = path.with_name(f"new-{os.getpid()}-{path.name}")
    if path.suffix:
        shutil.copy(*files, new)
    else:
        new.mkdir(exist_ok=True)
        for file in files:
            shutil.copy(file, new)
    try:
        new.rename(path)
    except OSError:  # another process was first
        shutil.rmtree(new)


def _forget_old_programs(cache):
    programs = [path for path in cache.iterdir() if path.is_dir()]
    for path in sorted(programs, key=lambda path: path.stat().st_mtime)[:-MAX_CACHED_PROGRAMS]:
        shutil.rmtree(path, ignore_errors=True)
