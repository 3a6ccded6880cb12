"""Runs a CUDA kernel on a CPU, thread by thread, and reports what its accesses to memory cost and what is wrong.

    report = launch(source, "plain_attention<64>", grid=4, block=(32, 16), arguments={"Q": Q, "K": K, ..., "M": 64})
    report.tensors["K"].loads.sectors, report.shared.loads.conflicts, report.findings

The source is the CUDA C++ that NVRTC or nvcc compiles for a GPU, unmodified: see device.h for what it may use. The
kernel runs in a process of its own and under a time limit, so that nothing that it does can harm the caller.
"""

import ctypes
import re
import subprocess
import tempfile

import numpy as np

from course_lib.integers import python_integers

from . import compiling
from .compiling import MAX_DYNAMIC_SHARED_BYTES, program_of
from .report import read

MAX_THREADS = 1024
SLOT_BYTES = 16 << 30  # of addresses, for each argument: an array begins in the middle, so what strays is known
PAGE_BYTES = 1 << 16  # a multiple of every system's pages
KINDS = str.maketrans("ubS", "iii")  # NumPy's letters for unsigned, bool and char: to us, all are integers


@python_integers
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
        accepted = f"{len(program.parameters)} ({', '.join(program.parameters)})"
        raise TypeError(f"the kernel takes {accepted} arguments, not {len(arguments)}: {', '.join(arguments)}")
    # Four numbers for each array, as accesses.h has them, and one for each argument.
    places, words, file_bytes = [], [], PAGE_BYTES
    offsets = {}  # of arrays in the file
    for (name, value), parameter in zip(arguments.items(), program.parameters, strict=True):
        begin = SLOT_BYTES * (len(words) + 1)
        words.append(_word(name, value, parameter, begin))
        if isinstance(value, np.ndarray):
            offsets[name] = file_bytes
            places += [begin - SLOT_BYTES // 2, begin, value.nbytes, file_bytes]
            file_bytes += -(-value.nbytes // PAGE_BYTES) * PAGE_BYTES
    for n, (_, offset, size) in enumerate(program.shared):
        places += [offset if n else offset - PAGE_BYTES, offset, shared_bytes if size is None else size, 0]
    header = [int(limit_s * 1e6), *grid, *block, len(places) // 4, *places, *words]
    with tempfile.TemporaryFile() as file:
        file.write(np.array([number % 2**64 for number in header], np.uint64))
        for name, offset in offsets.items():
            file.seek(offset)
            file.write(arguments[name])
        file.truncate(file_bytes)
        run = subprocess.run(
            compiling.confined([str(program.path)], readable=[program.path.parent]),
            check=False, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            timeout=60 + 20 * limit_s,  # by the clock: far beyond the limit that the process keeps by itself
        )  # fmt: skip
        file.seek(file_bytes)
        text = file.read().decode(errors="replace")
        if run.returncode or "end\t" not in text:
            why = f"died of signal {-run.returncode}" if run.returncode < 0 else f"ended with status {run.returncode}"
            raise RuntimeError(f"the process that runs the kernel {why}: {run.stdout}")
        for name, offset in offsets.items():
            array = arguments[name]
            if array.flags.writeable:
                file.seek(offset)
                array[...] = np.frombuffer(file.read(array.nbytes), array.dtype).reshape(array.shape)
    return read(text, run.stdout, source, program, {name: arguments[name] for name in offsets}, block)


def _three_sizes(name, sizes):
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ValueError(f"{name} is {sizes}; accepted: one to three integers, each at least 1")
    return sizes + (1,) * (3 - len(sizes))


def _word(name, value, parameter, address):
    """The 8 bytes that a kernel gets for an argument, as an integer: itself, the bits of a double, or an address."""
    if not isinstance(value, np.ndarray | int | float | np.integer | np.floating):
        raise TypeError(f"{name} is a {type(value).__name__}; accepted: NumPy arrays, ints and floats")
    is_array, array = isinstance(value, np.ndarray), np.asarray(value)
    if not array.flags.c_contiguous or not array.size:
        raise ValueError(f"{name} must be a C-contiguous array with at least one element")
    # An array may be taken for one of a type that ctypes does not know, such as float4.
    c_name = re.sub(r" const|[* ]", "", parameter).replace("unsigned", "u")
    takes = np.dtype(getattr(ctypes, f"c_{c_name}", "V"))
    kind, takes_kind = array.dtype.kind.translate(KINDS), takes.kind.translate(KINDS)
    fits = (kind, array.itemsize) == (takes_kind, takes.itemsize) if is_array else kind == "i" or takes_kind == "f"
    if is_array != parameter.endswith("*") or not (fits or takes_kind == "V"):
        raise TypeError(f"{name} does not fit the kernel's parameter, which takes {parameter.replace(' const', '')}")
    if is_array:
        return address
    return int(np.float64(value).view(np.uint64)) if takes_kind == "f" else int(value)


def run(planned, arrays, **options):
    """`launch` for a `launches.Launch`. arrays: of every parameter whose value there is None."""
    arguments = {name: arrays[name] if value is None else value for name, value in planned.arguments.items()}
    return launch(**vars(planned) | {"arguments": arguments}, **options)
