"""Kernels of answers in the worker: what it launches on torch tensors, and what it interprets, whose tensors are here.

`courseware.worker.host_calls` and `courseware.worker.kernels` have the worker's side of it.
"""

import itertools

import numpy as np

from courseware.simulators.triton_trace.counts import Trace
from courseware.worker.ipc import DTYPES
from courseware.worker.running import CALL_LIMIT_S


def call_host(answer, kernel, *arguments):
    """What a RemoteAnswer returns for (kernel, *arguments). kernel: has `launch`, and signature. Raises Told."""
    import torch

    from courseware.worker.host_calls import TENSOR, Memories

    memories = Memories()

    def resolved(value):
        if not isinstance(value, list):
            return value
        if value[:1] != [TENSOR]:
            return [resolved(part) for part in value]
        _, number, dtype, *place = value
        if number not in memories.of_number or not isinstance(getattr(torch, dtype, None), torch.dtype):
            return torch.empty(0, device="meta")  # one that no launch has seen
        return memories.tensor(number, dtype, *place)

    def serve(operation, *given):
        if operation != "launch":
            return kernel()
        grid, positional, named, contents = given
        memories.update(contents)
        kernel.launch(grid, *map(resolved, positional), **{name: resolved(value) for name, value in named.items()})
        return memories.contents()

    sent = memories.described(arguments)
    names = list(kernel.arg_names)
    returned = resolved(answer.play("host", names, sent, memories.contents(), CALL_LIMIT_S, serve=serve))
    answer.after = kernel, *arguments
    return tuple(returned) if isinstance(returned, list) else returned


def launch(answer, grid: tuple, call: dict) -> Trace:
    """Run a launch of a RemoteAnswer. call: parameter -> number or tensor. Raises Told."""
    import torch
    from triton._C.libtriton import interpreter

    from courseware.simulators.triton_trace.recorder import Memory

    memory, programs = Memory({}, answer.__name__), itertools.product(*(range(size) for size in (*grid, 1, 1)[:3]))
    arguments, program = {}, [None]
    for name, value in call.items():
        if isinstance(value, torch.Tensor):
            region = memory.region_of(value, name)
            region.host, value = value, (region.virtual_base, str(value.dtype).removeprefix("torch."))
        arguments[name] = value.item() if isinstance(value, np.generic) else value

    def serve(operation, *given):
        if operation == "program":
            program[0] = next(programs)
            return program[0]
        if operation == "dot":
            memory.trace.dots += 1
            memory.trace.rounding_dots += given[0] is True
            return None
        if operation not in ("load", "store"):
            raise ValueError(f"there is no {operation!r}")
        addresses, mask, last = given
        if addresses.dtype != np.uint64:
            raise TypeError("an address is an unsigned number of 64 bits")
        dtype = DTYPES[last] if operation == "load" else last.dtype
        real, inside = memory.locate(addresses, np.broadcast_to(mask, addresses.shape), program[0], operation, dtype)
        if operation == "load":
            return interpreter.load(real, inside, np.zeros(real.shape, dtype), dtype), inside
        return interpreter.store(real, np.ascontiguousarray(np.broadcast_to(last, real.shape)), inside)

    answer.play("launch", list(grid), arguments, CALL_LIMIT_S, serve=serve)
    return memory.trace
