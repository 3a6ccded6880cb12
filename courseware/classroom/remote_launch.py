"""Launches of a kernel that the worker interprets: its tensors, and the counts of what it asks of them, are here."""

import itertools

import numpy as np

from courseware.simulators.triton_trace.counts import Trace
from courseware.worker.ipc import DTYPES
from courseware.worker.running import CALL_LIMIT_S


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
