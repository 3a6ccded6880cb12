"""Answers that are Triton kernels: run in Triton's interpreter under the tracer, so that a bad access kills nothing.

An exercise is one of these if its `imports` name triton; its answer is the plain function inside `@triton.jit`. Where
this process compiles for a GPU, the check as a whole happens in an interpreting process, which gets the kernel's source
with all that it names. Without Triton, the check says so.

A property is made with `kernel_checks`: its call, as the learner reads it and can paste it, is the call that is
made, `launched(kernel, grid, outputs, **arguments)`.
"""

import ast
import functools
import inspect
import json
import re
import tempfile
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from course_lib import runtime
from courseware.simulators.triton_trace import interpreter_process
from courseware.widgets.cells import source_of

from .calling import AnswerError, GuardedAnswer, is_remote, judging
from .diagnosis import compare, named
from .exercise import Evidence, Exercise, ExpectedOutput, Finding, Result, single_finding
from .properties import Checks

TRITON = ("triton", "triton.language")  # what Exercise.imports of a kernel exercise is
GAP_ELEMS = 64  # rows of a matrix lie this much further apart than they are long: a column too many is noticed
EXAMPLES = 12  # random inputs besides a property's cases: a launch takes the interpreter some hundredths of a second
ELSEWHERE_LIMIT_S = 60.0  # by the clock, of a check in another process: some answers not even a call's limit can stop


@dataclass(frozen=True)
class Launch:
    """outputs: parameter name -> array. trace: what the kernel asked of memory, a courseware.tracer.Trace."""

    outputs: dict
    trace: object

    def by_tensor(self) -> dict:
        """{name without _ptr: (bytes requested by loads, by stores)}."""
        return self.trace.by_tensor

    def __repr__(self):  # the trace in full is a page of arrays
        return f"Launch(outputs={self.outputs}, by_tensor={self.by_tensor()}, violations={self.trace.violations})"


def plain(answer: Callable) -> Callable:
    """The function inside `@triton.jit`, `@triton.autotune` or `@torch.compile`; anything else as it is."""
    while type(answer).__module__.startswith("triton.") and hasattr(answer, "fn"):
        answer = answer.fn
    return getattr(answer, "_torchdynamo_orig_callable", answer)


def given_names() -> dict:
    """What an answer cell of a kernel exercise finds defined, besides np."""
    from course_lib import language

    return {"triton": language.triton, "tl": language.tl}


def launched(kernel, grid: tuple, outputs: dict, *, strides: dict | None = None, **arguments) -> Launch:
    """Run a kernel under the tracer.

    grid: number of programs along each axis. outputs: parameter -> shape; these tensors start out as NaN, float32.
    strides: tensor -> names of the parameters that take its strides, axis by axis, as in {"q_ptr": ("stride_qm",)}.
    arguments: the other parameters. Arrays become tensors, float64 as float32. There is a gap between the rows of a
    matrix, different from tensor to tensor, so that a wrong stride or a column too many is noticed. Where the kernel
    takes the stride of columns as well, these do not touch either.

    A property's `answer` is guarded: AnswerError with the learner's own line if the kernel raises.
    """
    import torch

    guarded = isinstance(kernel, GuardedAnswer)
    function = plain(kernel.answer if guarded else kernel)
    remote = is_remote(function)
    arguments |= {name: np.full(shape, np.nan, np.float32) for name, shape in outputs.items()}
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    strides = strides or {}
    tensors = {}
    for i, (name, value) in enumerate(arrays.items()):
        column_stride = 2 + i if 1 < value.ndim == len(strides.get(name, ())) else 1
        tensors[name] = _tensor(torch, value, GAP_ELEMS + i, column_stride)
    given_names()  # imports Triton now, and not within the answer's time limit
    call = arguments | tensors
    for name, parameters in strides.items():
        call |= {parameter: tensors[name].stride(axis) for axis, parameter in enumerate(parameters)}

    def run():
        return function.launch(grid, call) if remote else traced(function, grid, call)

    try:
        seen = kernel.run(run) if guarded else run()
    except AnswerError as error:
        source = function.sources[-1] if remote else source_of(function) or ""
        raise AnswerError(_in_terms_of_a_kernel(error.finding, source)) from None
    made = Launch({name: tensors[name].numpy() for name in outputs}, seen)
    if guarded:
        kernel.loads = {name: tensor.loads for name, tensor in seen.tensors.items() if f"{name}_ptr" not in outputs}
        kernel.note(made.outputs, made.by_tensor(), [str(violation) for violation in seen.violations[:1]])
    return made


def traced(function: Callable, grid: tuple, call: dict):
    """The Trace of a launch of the kernel of a plain function. call: parameter -> argument."""
    from courseware.tracer import trace

    with trace() as seen:
        _runnable(function)[grid](**call)
    return seen


def _in_terms_of_a_kernel(finding, source):
    """The finding; of an exception from NumPy in a kernel, or from an index of a pointer, with what to call there.

    Triton's interpreter says of them such as "'NoneType' object has no attribute 'to_tensor'", if not in a later line.
    """
    (_, *lines), line = finding.text.split("\n"), finding.text.rpartition(":  ")[2]
    if finding.kind == "exception" and (pointer := re.search(r"\b(\w+_ptr)\[", line)):
        said = f"{pointer[1]} is a pointer and has no elements: tl.load({pointer[1]} + offsets) fetches them"
        return replace(finding, kind="numpy exception", text="\n".join([said, *lines]))
    calls = (node for node in ast.walk(ast.parse(textwrap.dedent(source))) if isinstance(node, ast.Call))
    found = re.search(r"\bnp\.([a-z_]\w*)\(.*", line)
    found = found or re.search(r"\bnp\.(arange|zeros|ones|full|where)\(.*", "\n".join(map(ast.unparse, calls)))
    if finding.kind != "exception" or found is None:
        return finding
    call, name = found[0].split("(")[0], found[1]
    instead = f"tl.{name}" if hasattr(given_names()["tl"], name) else "what tl has"
    said = f"{call} is NumPy's, and a kernel's blocks are no arrays: use {instead}"
    said += "" if call in finding.text else f"; the cell has {found[0]}"
    return replace(finding, kind="numpy exception", text="\n".join([said, *lines]))


def _tensor(torch, array, gap_elems, column_stride):
    array = array.astype(np.float32) if array.dtype == np.float64 else array
    gap = gap_elems if array.ndim > 1 else 0
    fill = np.nan if array.dtype.kind == "f" else 0
    columns = array.shape[-1] * column_stride
    spread = torch.from_numpy(np.full((*array.shape[:-1], columns + gap), fill, array.dtype))
    view = spread[..., :columns:column_stride]
    view.copy_(torch.from_numpy(np.array(array)))
    return view


@functools.lru_cache(maxsize=32)
def _runnable(function):
    """The kernel of a plain function, which may have been written down without Triton."""
    if not isinstance(function, types.FunctionType):
        raise TypeError(f"a kernel is a function with @triton.jit, not {type(function).__name__}")
    inspect.getsource(function)  # the interpreter would silently run something else without it
    names = given_names()
    kernel = types.FunctionType(
        function.__code__, function.__globals__ | names, function.__name__, function.__defaults__, function.__closure__
    )
    kernel.__annotations__ = dict(function.__annotations__)
    kernel.__module__ = function.__module__
    return names["triton"].jit(kernel)


def kernel_checks(call: str, test: Callable[..., Evidence | None], case=None) -> Checks:
    """`Checks` of a kernel, whose tests are test(launch, **inputs).

    call: "launched(its_name, ...)" in terms of the inputs. Statements may stand before it, a line each, to make arrays
    that are too long to print; the test receives what they define along with the inputs.
    """
    return Checks(call, test, case, functools.partial(judging, launched=launched), EXAMPLES)


def launch_agrees(oracle, requested_bytes=None) -> Callable[..., Evidence | None]:
    """A test for `kernel_checks`: no access out of bounds, the outputs that oracle(**inputs) states, no more bytes.

    requested_bytes(**inputs): as `compare_bytes` takes them; None leaves them open.
    """

    def test(launch, **inputs):
        enough = requested_bytes(**inputs) if requested_bytes is not None else {}
        return compare_launch(launch, oracle(**inputs)) or compare_bytes(launch, enough)

    return test


def compare_launch(launch: Launch, parts: list[ExpectedOutput]) -> Evidence | None:
    """None if no access was out of bounds and every output is within its budget, otherwise what is wrong.

    A part is called after its output parameter, less the `_ptr`. Findings' kinds besides those of `compare`:
    "reads outside", "writes outside" and "unwritten".
    """
    if evidence := wrong_accesses(launch):
        return evidence
    values = tuple(launch.outputs[f"{part.name}_ptr"].reshape(part.expected.shape) for part in parts)
    return compare(values if len(values) > 1 else values[0], parts)


def wrong_accesses(launch: Launch) -> Evidence | None:
    """An access outside a tensor, or output elements that no program wrote."""
    return _outside(launch) or _unwritten(launch)


def _outside(launch: Launch) -> Evidence | None:
    """The first program that reaches outside a tensor, and where."""
    if not launch.trace.violations:
        return None
    first = launch.trace.violations[0]
    verb = "reads" if first.kind == "load" else "writes"
    program = first.program[0] if not any(first.program[1:]) else tuple(first.program[:2])
    # The axis that is left: rows if a row too many or too few is reached, else columns.
    over = [axis for axis, size in enumerate(first.shape) if not 0 <= first.index[axis] < size]
    if not first.shape:
        where = "an address that belongs to no tensor"
    elif not over:
        where = f"between two elements of {first.tensor}: is each offset times its own stride?"
    else:
        from_last = len(first.shape) - over[0]
        noun = "element" if len(first.shape) == 1 else {1: "column", 2: "row"}.get(from_last, "index")
        low, high = sorted((first.index[over[0]], first.last[over[0]]))
        reached = named(noun, list(range(low, high + 1)) if high - low < 10**6 else [low, high])
        reached += f" of axis {over[0]}" if from_last > 2 else ""
        has = f"which has {first.shape[over[0]]}" if len(first.shape) < 3 else f"whose shape is {tuple(first.shape)}"
        where = f"{reached} of {first.tensor}, {has}"
    part = first.tensor if first.shape else ""
    return single_finding(f"{verb} outside", f"program {program} {verb} {where}", part=part)


def _unwritten(launch: Launch) -> Evidence | None:
    """Output elements that no program wrote."""
    findings, stored = [], {name: stored for name, (_, stored) in launch.by_tensor().items()}
    instead = " and ".join(name for name in stored if stored[name] and f"{name}_ptr" not in launch.outputs)
    for name in (parameter.removesuffix("_ptr") for parameter in launch.outputs):
        missing = launch.trace.unwritten(name)
        if missing.any():
            nouns = {1: ("element",), 2: ("row", "column")}.get(missing.ndim, ("head", "query", "column"))
            axes = [sorted(set(places.tolist())) for places in np.nonzero(missing)]
            each = zip(nouns, axes, missing.shape, strict=False)
            where = ", ".join(named(noun, at) for noun, at, size in each if len(at) < size) or named(nouns[0], axes[0])
            text = f"{name}: {int(missing.sum())} of {missing.size} elements are never written ({where})"
            text += f"; {instead} is written instead" if instead else ""
            findings.append(Finding(name, "unwritten", text))
    return Evidence(tuple(findings)) if findings else None


def compare_bytes(launch: Launch, enough: dict) -> Evidence | None:
    """None if no more bytes than these were requested. enough: name without _ptr -> (bytes loaded, bytes stored)."""
    findings = []
    for name, most in enough.items():
        for verb, asked, limit in zip(("reads", "writes"), launch.by_tensor()[name], most, strict=True):
            if asked > limit:
                text = f"the launch {verb} {asked} bytes of {name}, where {limit} are enough"
                findings.append(Finding(name, f"{verb} more", text))
    return Evidence(tuple(findings)) if findings else None


def is_kernel(exercise: Exercise) -> bool:
    """Whether the exercise's answer is a kernel that is launched."""
    return "launched(" in getattr(exercise.properties, "call", "")


def runs_here(exercise: Exercise) -> bool:
    """Whether this process can check the exercise: any but what it lacks PyTorch for, or an interpreter."""
    needs = {"triton", "torch"}.intersection(exercise.imports)
    # NumPy needs neither, and the mode is not asked for: that imports PyTorch, which takes longer than most checks.
    return not needs or needs.isdisjoint({"gpu": {"triton"}, "numpy": needs}.get(runtime.mode(), ()))


def graded_elsewhere(exercise: Exercise, function: Callable, seed: int | None, serve: str) -> Result:
    """The Result for a kernel that this process cannot interpret: from one that can, or that Triton is missing.

    An answer that never returns, or that takes that process down, is one that did not pass.
    serve: "module:function" that is called there with a folder. It reads the JSON file "request" (id, seed, the pieces
    of the answer's source, the line where the answer begins) and writes the fields of the Result to "result".
    """

    def failed(why):
        return Result(False, True, {}, f"{exercise.id}: {why}")

    if runtime.mode() == "numpy":
        return failed(
            "not checked, for this exercise needs Triton and PyTorch, which cannot run here. The lesson's badge "
            "opens it in Colab, where they can; python -m courseware doctor says what is missing on this machine."
        )
    from courseware.tracer import sources

    try:
        pieces = sources(function, given=("np", "tl", "triton"))
    except (AttributeError, OSError, TypeError, ValueError, SyntaxError) as error:
        return failed(f"not checked, for the kernel's source cannot be read: {error}")
    request = {"id": exercise.id, "seed": seed, "pieces": pieces, "line": function.__code__.co_firstlineno}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "request").write_text(json.dumps(request))
        try:
            status, errors = interpreter_process.run(serve, folder, ELSEWHERE_LIMIT_S)
        except TimeoutError:
            return failed(f"the answer did not return within {ELSEWHERE_LIMIT_S:g} s")
        result = Path(folder) / "result"
        if status or not result.exists():
            why = "".join(f"\n{line}" for line in errors.strip().splitlines()[-1:])
            return failed(f"the answer ended its process (exit status {status}){why}")
        return Result(**json.loads(result.read_text()))
