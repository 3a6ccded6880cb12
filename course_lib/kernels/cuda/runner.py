"""Runs a CUDA kernel on a CPU, thread by thread, and reports what its accesses to memory cost and what is wrong.

    report = launch(source, "plain_attention<64>", grid=4, block=(32, 16), arguments={"Q": Q, "K": K, ..., "M": 64})
    report.tensors["K"].loads.sectors, report.shared.loads.conflicts, report.findings

The source is the CUDA C++ that NVRTC or nvcc compiles for a GPU, unmodified: see device.h for what it may use. The
kernel runs in a process of its own and under a time limit, so that nothing that it does can harm the caller.
"""

import os
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

from . import compiling
from .compiling import MAX_DYNAMIC_SHARED_BYTES, program_of
from .report import Reader

MAX_THREADS = 1024


def launch(source, kernel, *, grid, block, arguments, shared_bytes=0, limit_s=10.0):
    """Run a kernel once and return the Report.

    source: CUDA C++. kernel: an expression for its __global__ function, such as "softmax" or "plain_attention<64>".
    grid, block: an int or a tuple of up to three. shared_bytes: dynamic shared memory of a block.
    arguments: {name: value}, in the order of the kernel's parameters: ints, floats, and C-contiguous NumPy arrays, in
        which the kernel's stores are found afterwards. In the kernel, every array begins at a multiple of 4,096 bytes.
    limit_s: of processor time.
    Raises CompileError, or NoCompiler; TypeError or ValueError, naming the argument, for what CUDA would not launch.
    """
    grid, block = _three_sizes("grid", grid), _three_sizes("block", block)
    if np.prod(block) > MAX_THREADS:
        raise ValueError(f"block is {block}, {np.prod(block)} threads; accepted: at most {MAX_THREADS}")
    if not 0 <= shared_bytes <= MAX_DYNAMIC_SHARED_BYTES:
        raise ValueError(f"shared_bytes is {shared_bytes}; accepted: 0 to {MAX_DYNAMIC_SHARED_BYTES}")
    words = [_word(name, value) for name, value in arguments.items()]
    program = program_of(source, kernel)
    shared = [(name, offset, shared_bytes if size is None else size) for name, offset, size in program.shared]
    places = [number for _, *place in shared for number in place]
    arrays = {n: value for n, value in enumerate(arguments.values()) if isinstance(value, np.ndarray)}
    with tempfile.TemporaryDirectory(prefix="cuda-") as folder:
        for n, array in arrays.items():
            array.tofile(Path(folder, str(n)))
        printed = _start(program.path, folder, int(limit_s * 1e6), *grid, *block, len(shared), *places, *words)
        for n, array in arrays.items():
            if array.flags.writeable:
                array.flat = np.frombuffer(_left(folder, str(n)), array.dtype)
        rows = defaultdict(list)
        for line in _left(folder, "report").decode().splitlines():
            kind, *fields = line.split("\t")
            rows[kind].append(fields)
    for number, kind in rows["refused"]:
        raise TypeError(_refusal(list(arguments), int(number), kind))
    return Reader(source, program, arguments, shared, block).read(rows, printed)


def _start(program, folder, *words):
    """Run the program in a process of its own, which reads and writes files in this folder. Returns what it prints."""
    command = compiling.confined(list(map(str, [program, folder, *words])), folder)
    run = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace",
        timeout=60 + 10 * words[0] / 1e6,  # by the clock: far beyond the limit that the process keeps by itself
    )  # fmt: skip
    if run.returncode:
        raise RuntimeError(f"the runner ended with status {run.returncode}: {run.stdout}")
    return run.stdout


def _left(folder, name):
    """What the program left in a file. A link is refused: a program in a sandbox could not read where it leads."""
    with open(os.open(Path(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read()


def _three_sizes(name, sizes):
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ValueError(f"{name} is {sizes}; accepted: one to three integers, each at least 1")
    return sizes + (1,) * (3 - len(sizes))


def _word(name, value):
    """An argument as the program takes it: a number, or "*" and the kind of an array."""
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous or not value.size:
            raise ValueError(f"{name} must be a C-contiguous array with at least one element")
        return "*" + {"u": "i", "b": "i"}.get(value.dtype.kind, value.dtype.kind) + str(value.itemsize)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value)
    raise TypeError(f"{name} is a {type(value).__name__}; accepted: NumPy arrays, ints and floats")


def _refusal(names, number, kind):
    if number >= len(names):
        return f"the kernel takes more arguments than these {number}: {', '.join(names)}"
    if kind == "none":
        return f"{names[number]} is one argument too many: the kernel takes {number}"
    return f"{names[number]} does not fit the kernel's parameter, which takes {kind}"


def run(launch_of_kernel, arrays, **options):
    """`launch` for a `launches.Launch`. arrays: of every parameter whose value there is None."""
    what = launch_of_kernel
    arguments = {name: arrays[name] if value is None else value for name, value in what.arguments.items()}
    return launch(
        what.source, what.kernel, grid=what.grid, block=what.block, shared_bytes=what.shared_bytes, arguments=arguments,
        **options,
    )  # fmt: skip
