"""A Triton kernel, interpreted here, whose loads and stores the grader answers: no tensor is in this process.

The functions replaced are internal to Triton; `courseware.simulators.triton_trace.recorder` replaces the same.
"""

import builtins
import math
import types
from dataclasses import dataclass

import numpy as np
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter

from . import rules
from .running import Outcome, run

# Where a kernel is interpreted, there is nothing that executes, looks up or opens.
BUILTINS = {name: getattr(builtins, name) for name in rules.BUILTINS}
BUILTINS["__import__"] = lambda name, *_: {"math": math, "numpy": np}.get(name, triton)


@dataclass(frozen=True)
class Pointer:
    """The first address of a tensor that the grader has. dtype: of Triton, by name."""

    address: int
    dtype: str


def launched(grader, answer, grid, arguments: dict, limit_s: float) -> Outcome:
    """Run every program of a launch. arguments: parameter -> number, or (address, dtype) of a tensor."""
    _connect(grader)
    function = getattr(answer, "fn", answer)
    if not isinstance(function, types.FunctionType):
        function = None
    call = {name: Pointer(*value) if isinstance(value, tuple) else value for name, value in arguments.items()}

    def launch():
        if function is None:
            raise TypeError(f"a kernel is a function with @triton.jit, not {type(answer).__name__}")
        triton.jit(function)[tuple(grid)](**call)
        grader.done(None)

    return run(launch, limit_s)


def _connect(grader):
    convert = interpreter._implicit_cvt

    def converted(argument):
        if not isinstance(argument, Pointer):
            return convert(argument)
        kind = tl.pointer_type(getattr(tl, argument.dtype))
        return tl.tensor(interpreter.TensorHandle(np.array([argument.address], np.uint64), kind), kind)

    def load(builder, pointers, mask, other, *_):
        element = pointers.get_element_ty()
        kind = np.dtype(interpreter._get_np_dtype(element))
        values, inside = grader.ask(None, "load", np.asarray(pointers.data), np.asarray(mask.data), kind.name)
        filler = (np.nan if kind.kind == "f" else 0) if other is None else other.data
        return interpreter.TensorHandle(np.where(inside, values, filler).astype(kind), element)

    def store(builder, pointers, value, mask, *_):
        grader.later(None, None, "store", *(np.asarray(part.data) for part in (pointers, mask, value)))

    multiply, choose = interpreter.InterpreterBuilder.create_dot, interpreter.InterpreterBuilder.set_grid_idx

    def dot(builder, a, b, d, input_precision, *rest):
        rounds = a.dtype.scalar.is_fp32() and input_precision == ir.INPUT_PRECISION.TF32
        grader.later(None, None, "dot", bool(rounds))
        return multiply(builder, a, b, d, input_precision, *rest)

    if hasattr(interpreter, "connected"):
        return
    interpreter.connected, interpreter._implicit_cvt = True, converted
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    executor._init_args_hst = lambda self, arguments, named: (arguments, named)
    executor._restore_args_dev = lambda self, *_: None
    builder.create_masked_load, builder.create_masked_store, builder.create_dot = load, store, dot
    # The grader counts the programs.
    builder.set_grid_idx = lambda self, *_: choose(self, *grader.ask(None, "program"))
