"""Runs a CUDA kernel on a CPU, thread by thread, and reports what its accesses to memory cost and what is wrong.

    report = launch(source, "plain_attention<64>", grid=4, block=(32, 16), arguments={"Q": Q, "K": K, ..., "M": 64})
    report.tensors["K"].loads.sectors, report.shared.loads.conflicts, report.findings

The source is the CUDA C++ that NVRTC or nvcc compiles for a GPU, unmodified: see device.h for what it may use. The
kernel runs in a process of its own and under a time limit, so that nothing that it does can harm the caller.
"""

import mmap
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from .compiling import MAX_DYNAMIC_SHARED_BYTES, program_of
from .report import Reader

MAX_THREADS = 1024
SLOT_BYTES = 1 << 34  # of addresses, for each array: as in accesses.h


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
    given = [_kind(name, value) for name, value in arguments.items()]
    program = program_of(source, kernel)
    _check_kinds(list(arguments), given, program.kinds)
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    address = {name: number * SLOT_BYTES for number, name in enumerate(arrays, 1)}
    pairs = zip(arguments.items(), program.kinds, strict=True)
    words = [address.get(name) or _word(value, kind) for (name, value), kind in pairs]
    shared = [(name, offset, shared_bytes if size is None else size) for name, offset, size in program.shared]
    places = [number for _, *place in shared for number in place]
    sizes = [array.nbytes for array in arrays.values()]
    numbers = [int(limit_s * 1e6), *grid, *block, len(shared), *places, len(sizes), *sizes, *words]
    with tempfile.TemporaryDirectory(prefix="cuda-") as name:
        data, report, printed = (Path(name, file) for file in ("data", "report", "printed"))
        offsets = _write(data, arrays.values())
        with printed.open("wb") as output:
            run = subprocess.run(
                list(map(str, [program.path, data, report, *numbers])), check=False,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                timeout=60 + 10 * limit_s,  # by the clock: far beyond the limit that the process keeps by itself
            )  # fmt: skip
        printed = printed.read_text(errors="replace")
        if run.returncode:
            raise RuntimeError(f"the runner ended with status {run.returncode}: {printed}")
        for array, offset in zip(arrays.values(), offsets, strict=True):
            if array.flags.writeable:
                array.flat = np.fromfile(data, array.dtype, array.size, offset=offset)
        rows = [line.split("\t") for line in report.read_text().splitlines()]
    return Reader(source, program, arrays, shared, block).read(rows, printed)


def _three_sizes(name, sizes):
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ValueError(f"{name} is {sizes}; accepted: one to three integers, each at least 1")
    return sizes + (1,) * (3 - len(sizes))


def _kind(name, value):
    """The kind of an argument: "*" and the NumPy dtype for an array, "i" or "f" for a number."""
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous or not value.size:
            raise ValueError(f"{name} must be a C-contiguous array with at least one element")
        return "*" + {"u": "i", "b": "i"}.get(value.dtype.kind, value.dtype.kind) + str(value.itemsize)
    if isinstance(value, int | np.integer):
        return "i"
    if isinstance(value, float | np.floating):
        return "f"
    raise TypeError(f"{name} is a {type(value).__name__}; accepted: NumPy arrays, ints and floats")


def _check_kinds(names, given, wanted):
    for name, kind, parameter in zip(names, given, wanted, strict=False):
        vectors = kind[0] == "*" and parameter.startswith("*V")  # of whatever: float4, for instance
        number = kind == parameter[0] or kind + parameter[0] == "if"
        if kind != parameter and not vectors and not number:
            raise TypeError(f"{name} does not fit the kernel's parameter, which takes {parameter}")
    if len(names) < len(wanted):
        raise TypeError(f"the kernel takes more arguments than these {len(names)}: {', '.join(names)}")
    if len(names) > len(wanted):
        raise TypeError(f"{names[len(wanted)]} is one argument too many: the kernel takes {len(wanted)}")


def _word(value, kind):
    """The 8 bytes in which a number of this kind begins, as a number."""
    return int(value) % 2**64 if kind[0] == "i" else int.from_bytes(np.array(value, kind).tobytes(), "little")


def _write(path, arrays):
    """Write the arrays, each from a new page on, and return where."""
    offsets = []
    with path.open("wb") as file:
        for array in arrays:
            offsets.append(file.seek(-(-file.tell() // mmap.PAGESIZE) * mmap.PAGESIZE))
            array.tofile(file)
    return offsets


def run(launch_of_kernel, arrays, **options):
    """`launch` for a `launches.Launch`. arrays: of every parameter whose value there is None."""
    what = launch_of_kernel
    arguments = {name: arrays[name] if value is None else value for name, value in what.arguments.items()}
    return launch(
        what.source, what.kernel, grid=what.grid, block=what.block, shared_bytes=what.shared_bytes, arguments=arguments,
        **options,
    )  # fmt: skip
