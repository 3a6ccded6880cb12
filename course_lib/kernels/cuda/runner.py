"""Runs a CUDA kernel on a CPU, thread by thread, and reports what its accesses to memory cost and what is wrong.

    report = launch(source, "plain_attention<64>", grid=4, block=(32, 16), arguments={"Q": Q, "K": K, ..., "M": 64})
    report.tensors["K"].loads.sectors, report.shared.loads.conflicts, report.findings

The source is the CUDA C++ that NVRTC or nvcc compiles for a GPU, unmodified: see device.h for what it may use. The
kernel runs in a process of its own and under a time limit, so that nothing that it does can harm the caller.
"""

import ctypes
import os
import re
import signal
import subprocess
import tempfile

import numpy as np

from . import compiling
from .compiling import MAX_DYNAMIC_SHARED_BYTES, program_of
from .report import read

MAX_THREADS = 1024
SLOT_BYTES = 16 << 30  # of addresses, for each argument: an array begins in the middle, so that all that stray are known
# What a thread did that is ended by a signal.
BY_SIGNAL = {
    signal.SIGPROF: ("time limit", "was running when the time limit was reached"),
    signal.SIGFPE: ("division by zero", "divides an integer by zero, in this line or after it"),
    signal.SIGABRT: ("aborted", "failed an assertion, in this line or after it"),
    signal.SIGSEGV: ("crash", "crashed, in this line or after it: it may have more variables than fit into its memory"),
}
KINDS = str.maketrans("ubS", "iii")  # of NumPy: unsigned, bool and char are kinds of integers
PAGE_BYTES = 1 << 16  # a multiple of every system's

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
    program = program_of(source, kernel)
    if len(arguments) != len(program.parameters):
        raise TypeError(f"the kernel takes {len(program.parameters)} arguments, and not these: {', '.join(arguments)}")
    words, places, copies = [], [], {}
    with tempfile.TemporaryFile() as memory:
        end = PAGE_BYTES
        for (name, value), parameter in zip(arguments.items(), program.parameters, strict=True):
            words.append(_word(name, value, parameter, begin := (len(words) + 1) * SLOT_BYTES))
            if isinstance(value, np.ndarray):
                places += [begin - SLOT_BYTES // 2, begin, value.nbytes, end]
                copies[name] = np.memmap(memory, value.dtype, "r+", end, value.shape)
                copies[name][...] = value
                end += -(-value.nbytes // PAGE_BYTES) * PAGE_BYTES
        for n, (_, offset, size) in enumerate(program.shared):
            places += [offset if n else offset - PAGE_BYTES, offset, shared_bytes if size is None else size, 0]
        header = [0, 0, 0, *divmod(int(limit_s * 1e6), 10**6), *grid, *block, len(places) // 4, *places, *words]
        memory.seek(0)
        memory.write(np.array([number % 2**64 for number in header], np.uint64))
        end = memory.seek(0, os.SEEK_END)
        run = subprocess.run(
            compiling.confined([str(program.path)]), check=False, stdin=memory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
            timeout=60 + 10 * limit_s,  # by the clock: far beyond the limit that the process keeps by itself
        )  # fmt: skip
        for name, copy in copies.items():
            if arguments[name].flags.writeable:
                arguments[name][...] = copy
        memory.seek(0)
        thread, block_number, place = np.frombuffer(memory.read(24), np.uint64)
        memory.seek(end)
        text = memory.read().decode()
    # Whatever is around the program in class adds 128.
    if did := BY_SIGNAL.get(-run.returncode if run.returncode < 0 else run.returncode - 128):
        kind, did = did
        text += f"found\t0\t@{place}\t{block_number}\t{thread}\t{kind}\t<{thread}> of block {block_number} {did}.\n"
        text += "end\t0\t0\t0\t0\n"
    elif run.returncode or not text:
        raise RuntimeError(f"the runner ended with status {run.returncode}: {run.stdout}")
    return read(text, run.stdout, source, program, copies, block)


def _word(name, value, parameter, address):
    """What a kernel gets for this argument, as a number of 8 bytes: an integer, the bits of a double, or an address."""
    if not isinstance(value, np.ndarray | int | float | np.integer | np.floating):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: NumPy arrays, ints and floats")
    given, is_array = np.asarray(value), isinstance(value, np.ndarray)
    if not given.flags.c_contiguous or not given.size:
        raise ValueError(f"{name} must be a C-contiguous array with at least one element")
    # Of types that ctypes has no name for, such as float4, any are accepted.
    c_name = re.sub(r" const|\*| ", "", parameter).replace("unsigned", "u")
    takes = np.dtype(getattr(ctypes, f"c_{c_name}", "V"))
    kind, takes_kind = (dtype.kind.translate(KINDS) for dtype in (given.dtype, takes))
    fits = kind == takes_kind and given.itemsize == takes.itemsize if is_array else kind == "i" or takes_kind == "f"
    if parameter.endswith("*") != is_array or (takes_kind != "V" and not fits):
        raise TypeError(f"{name} does not fit the kernel's parameter, which takes {parameter.replace(' const', '')}")
    if is_array:
        return address
    return int(value) if kind == "i" and takes_kind != "f" else int(np.float64(value).view(np.uint64))


def _three_sizes(name, sizes):
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ValueError(f"{name} is {sizes}; accepted: one to three integers, each at least 1")
    return sizes + (1,) * (3 - len(sizes))


def run(planned, arrays, **options):
    """`launch` for a `launches.Launch`. arrays: of every parameter whose value there is None."""
    arguments = {name: arrays[name] if value is None else value for name, value in planned.arguments.items()}
    return launch(**vars(planned) | {"arguments": arguments}, **options)
