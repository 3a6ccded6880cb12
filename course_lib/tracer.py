"""What a Triton kernel asks of memory: bytes per tensor, heat maps, out-of-bounds and unwritten elements.

    with trace(q=q, k=k, v=v) as t:
        o = flash_attention(q, k, v)
    t.load_bytes, t.by_tensor, t.violations, t.draw("k")

Counted is what programs *request*, element by element, before any cache. A lane that its mask switches off
requests nothing.

How: every load and store of Triton's interpreter ends in two functions, which are replaced while tracing.
Each tensor argument of a launch gets an address range of its own, far from all others, that exists only in the
tracer; an address therefore tells which tensor it was derived from however far it strayed, and no access reaches
memory unchecked. An access out of bounds is recorded and not carried out: it kills no process.
A masked-off lane without `other` holds NaN here (a GPU promises nothing; the plain interpreter gives 0).

Where kernels run compiled, a launch under `trace` is sent with its arguments to a process that interprets, traced
there, and its results are copied back.
"""

import ast
import dis
import importlib
import inspect
import itertools
import pickle
import sys
import tempfile
import textwrap
import types
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from course_lib import runtime
from course_lib.tracing import interpreter_process

_SPACING_BITS = 44  # 16 TiB of addresses to either side before one tensor's could be taken for another's


@dataclass(frozen=True)
class Violation:
    """Out-of-bounds accesses of one instruction execution by one program.

    tensor: its name; program: the program ids (x, y, z); kind: "load" or "store"; count: elements;
    index, last: where the first and the last of them point, counted from the tensor's own start: (batch, ..., row,
    column), the leading index taking what is too much or negative; shape: the tensor's.
    """

    kernel: str
    tensor: str
    program: tuple
    kind: str
    count: int
    index: tuple
    last: tuple
    shape: tuple

    def __str__(self):
        return (
            f"{self.kernel}, program {self.program}: {self.kind} of {self.count} elements outside "
            f"{self.tensor} {list(self.shape)}, the first at {list(self.index)}"
        )


@dataclass
class TensorTrace:
    """Counts of one tensor: loads and stores per element, [shape] int32; sums in bytes."""

    name: str
    shape: tuple
    itemsize_bytes: int
    loads: np.ndarray
    stores: np.ndarray

    @property
    def load_bytes(self):
        return int(self.loads.sum()) * self.itemsize_bytes

    @property
    def store_bytes(self):
        return int(self.stores.sum()) * self.itemsize_bytes


@dataclass
class Trace:
    """The result of `trace`: complete when its with-block has ended.

    rounding_dots: how many tl.dot, of all programs together, had float32 inputs that a GPU may round to TF32. The
    interpreter rounds nothing, so results do not show it.
    """

    tensors: dict = field(default_factory=dict)
    violations: list = field(default_factory=list)
    rounding_dots: int = 0

    @property
    def load_bytes(self):
        """Bytes requested by loads, all tensors together."""
        return sum(t.load_bytes for t in self.tensors.values())

    @property
    def store_bytes(self):
        """Bytes requested by stores, all tensors together."""
        return sum(t.store_bytes for t in self.tensors.values())

    @property
    def by_tensor(self):
        """{name: (load_bytes, store_bytes)} in the order of first use."""
        return {name: (t.load_bytes, t.store_bytes) for name, t in self.tensors.items()}

    def heatmap(self, name, kind="load"):
        """How often each element was loaded or stored: int32 array in the tensor's shape."""
        if kind not in ("load", "store"):
            raise ValueError(f"kind must be 'load' or 'store', got {kind!r}")
        tensor = self._tensor(name)
        return tensor.loads if kind == "load" else tensor.stores

    def unwritten(self, name):
        """Elements of a tensor that no store reached: bool array in its shape."""
        return self._tensor(name).stores == 0

    def draw(self, name, kind="load"):
        """A matplotlib Figure of `heatmap`: leading dimensions stacked as rows, head_dim as columns."""
        from matplotlib.figure import Figure

        counts = self.heatmap(name, kind)
        rows = counts.reshape(-1, counts.shape[-1]) if counts.ndim > 1 else counts[:, None]
        figure = Figure(figsize=(4.5, 4), layout="constrained", facecolor="white")
        axes = figure.subplots()
        image = axes.imshow(rows, aspect="auto", cmap="viridis", interpolation="nearest", vmin=0)
        axes.set(xlabel="column", ylabel="row", title=f"{name}: {kind}s per element")
        figure.colorbar(image, label=f"{kind}s")
        return figure

    def _tensor(self, name):
        if name not in self.tensors:
            raise KeyError(f"no tensor {name!r} was traced; there are {', '.join(self.tensors) or 'none'}")
        return self.tensors[name]


class trace:
    """Context manager: trace every Triton launch inside it, and return a `Trace`.

    tensors: names for the tensors passed to the kernels. A tensor that has none here is called after the kernel
    parameter it was passed as, less the `_ptr`. Raises RuntimeError where Triton is not installed.
    """

    def __init__(self, **tensors):
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        self._tensors = tensors

    def __enter__(self):
        if runtime.mode() == "numpy":
            raise RuntimeError("tracing runs Triton kernels, and Triton is not installed here")
        if runtime.mode() == "gpu":
            self._recorder = RemoteRecorder(self._tensors)
        else:
            self._recorder = Recorder(self._tensors)
        self._recorder.install()
        return self._recorder.trace

    def __exit__(self, *exception):
        self._recorder.remove()


class _Region:
    """One tensor as kernels may address it. given: the caller's tensor; host: where the interpreter keeps it."""

    def __init__(self, given, host, virtual_base, record):
        self.given, self.host, self.virtual_base, self.record = given, host, virtual_base, record
        self.itemsize_bytes = given.element_size()
        offsets = np.zeros(tuple(given.shape), dtype=np.int64)
        for axis, (size, stride) in enumerate(zip(given.shape, given.stride(), strict=True)):
            offsets += (np.arange(size) * stride).reshape([-1] + [1] * (given.dim() - axis - 1))
        # Element offset from the data pointer -> element number. -1: between the rows of a strided view.
        self._element_at = np.full(int(offsets.max()) + 1 if offsets.size else 0, -1, dtype=np.int64)
        self._element_at[offsets.reshape(-1)] = np.arange(offsets.size)

    def same_view(self, tensor):
        return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) == (
            self.given.data_ptr(), self.given.shape, self.given.stride(), self.given.dtype
        )  # fmt: skip

    def elements(self, offsets):
        """Logical element numbers for element offsets, -1 where out of bounds."""
        elements = np.full(offsets.shape, -1, dtype=np.int64)
        spanned = (offsets >= 0) & (offsets < len(self._element_at))
        elements[spanned] = self._element_at[offsets[spanned]]
        return elements

    def index_of(self, offset):
        """An element offset as indices, by strides from the largest down; excess goes to the leading one."""
        index = [0] * self.given.dim()
        for axis in sorted(range(self.given.dim()), key=lambda axis: -self.given.stride(axis)):
            stride = self.given.stride(axis)
            if stride:
                index[axis], offset = divmod(offset, stride)
        return tuple(int(i) for i in index)


class Recorder:
    """Replaces the interpreter's loads and stores between `install` and `remove`."""

    def __init__(self, named_tensors):
        self.trace = Trace()
        self._names = {tensor.data_ptr(): name for name, tensor in named_tensors.items()}
        self._regions = []  # never shrinks: keeps the tensors alive, so that no address is used twice
        self._of_argument = {}
        self._kernel = ""

    def install(self):
        import triton.language as tl
        from triton._C.libtriton import ir
        from triton.runtime import interpreter

        builder = interpreter.InterpreterBuilder
        self._saved = [
            (owner, name, getattr(owner, name))
            for owner, name in (
                (interpreter, "_implicit_cvt"),
                (interpreter.GridExecutor, "_init_args_hst"),
                (builder, "create_masked_load"),
                (builder, "create_masked_store"),
                (builder, "create_atomic_rmw"),
                (builder, "create_atomic_cas"),
                (builder, "create_dot"),
            )
        ]
        convert, init_args, load, store, atomic_rmw, atomic_cas, dot = (original for _, _, original in self._saved)
        recorder = self

        def traced_init_args(executor, args, kwargs):
            host_args, host_kwargs = init_args(executor, args, kwargs)
            recorder._kernel = executor.fn.__name__
            recorder._of_argument = {}
            for given, host, name in (
                *zip(args, host_args, executor.arg_names, strict=False),
                *((kwargs[name], host, name) for name, host in host_kwargs.items()),
            ):
                recorder._register(getattr(given, "base", None), getattr(host, "base", None), name)
                recorder._register(given, host, name)
            return host_args, host_kwargs

        def traced_convert(argument):
            region = recorder._of_argument.get(id(argument))
            if region is None:
                return convert(argument)
            pointer = convert(argument)
            pointer.handle.data = np.array([region.virtual_base], dtype=np.uint64)
            return pointer

        def traced_load(builder, pointers, mask, other, *args, **kwargs):
            real, inside = recorder._access(builder, pointers, mask, "load")
            if other is None:
                kind = np.dtype(interpreter._get_np_dtype(pointers.get_element_ty()))
                # bf16 travels as its 16 bits: 0x7FC0 is its NaN.
                is_bf16 = pointers.get_element_ty().is_bf16()
                filler = np.nan if kind.kind == "f" else 0x7FC0 if is_bf16 else 0
                other = interpreter.TensorHandle(
                    np.full(pointers.data.shape, filler, dtype=kind), pointers.get_element_ty()
                )
            return load(builder, real, inside, other, *args, **kwargs)

        def traced_store(builder, pointers, value, mask, *args, **kwargs):
            real, inside = recorder._access(builder, pointers, mask, "store")
            return store(builder, real, value, inside, *args, **kwargs)

        def traced_atomic_rmw(builder, operation, pointers, value, mask, *args, **kwargs):
            recorder._access(builder, pointers, mask, "load")
            real, inside = recorder._access(builder, pointers, mask, "store")
            return atomic_rmw(builder, operation, real, value, inside, *args, **kwargs)

        def traced_atomic_cas(builder, pointers, *args, **kwargs):
            everywhere = interpreter.TensorHandle(np.ones(pointers.data.shape, dtype=bool), tl.int1)
            recorder._access(builder, pointers, everywhere, "load")
            real, inside = recorder._access(builder, pointers, everywhere, "store")
            if not inside.data.all():  # compare-and-swap takes no mask, so there is nothing to switch off
                raise IndexError(str(recorder.trace.violations[-1]))
            return atomic_cas(builder, real, *args, **kwargs)

        def traced_dot(builder, a, b, d, input_precision, *args):
            if a.dtype.scalar.is_fp32() and input_precision != ir.INPUT_PRECISION.IEEE:
                recorder.trace.rounding_dots += 1
            return dot(builder, a, b, d, input_precision, *args)

        replacements = (
            traced_convert, traced_init_args, traced_load, traced_store, traced_atomic_rmw, traced_atomic_cas,
            traced_dot,
        )  # fmt: skip
        for (owner, name, _), replacement in zip(self._saved, replacements, strict=True):
            setattr(owner, name, replacement)

    def remove(self):
        for owner, name, original in self._saved:
            setattr(owner, name, original)
        self._regions.clear()

    def _register(self, given, host, parameter):
        """Give a tensor argument its address range; `given` is the caller's tensor, `host` the one in use."""
        if not (isinstance(given, torch.Tensor) and isinstance(host, torch.Tensor)):
            return
        for region in self._regions:
            if region.same_view(given):
                region.host = host
                break
        else:
            name = self._names.get(given.data_ptr(), parameter.removesuffix("_ptr"))
            numbered = (f"{name}#{i}" for i in itertools.count(2))
            name = next(n for n in itertools.chain([name], numbered) if n not in self.trace.tensors)
            record = TensorTrace(
                name, tuple(given.shape), given.element_size(),
                np.zeros(given.shape, np.int32), np.zeros(given.shape, np.int32),
            )  # fmt: skip
            self.trace.tensors[name] = record
            virtual_base = (2 * len(self._regions) + 1) << _SPACING_BITS
            region = _Region(given, host, virtual_base, record)
            self._regions.append(region)
        self._of_argument[id(host)] = region

    def _access(self, builder, pointers, mask, kind):
        """Count one load or store; returns (real pointers, mask of the lanes that may go ahead)."""
        import triton.language as tl
        from triton.runtime import interpreter

        active = np.broadcast_to(mask.data, pointers.data.shape).astype(bool)
        real = np.zeros(pointers.data.shape, dtype=np.uint64)
        inside = np.zeros(active.shape, dtype=bool)
        # Bases are odd multiples of the spacing, so a range reaches one spacing to either side of its base.
        number = pointers.data >> np.uint64(_SPACING_BITS + 1)
        addresses = pointers.data
        for index in np.unique(number[active]) if active.any() else ():
            here = active & (number == index)
            if not 0 <= index < len(self._regions):
                self._violate("a tensor that is no argument", builder, kind, int(here.sum()), (0,), (0,), ())
                continue
            region = self._regions[int(index)]
            offset_bytes = (addresses[here] - np.uint64(region.virtual_base)).view(np.int64)
            offsets, misaligned = np.divmod(offset_bytes, region.itemsize_bytes)
            elements = np.where(misaligned == 0, region.elements(offsets), -1)
            good = elements >= 0
            counts = region.record.loads if kind == "load" else region.record.stores
            np.add.at(counts.reshape(-1), elements[good], 1)
            if not good.all():
                first, last = (region.index_of(int(offsets[~good][end])) for end in (0, -1))
                count = int((~good).sum())
                self._violate(region.record.name, builder, kind, count, first, last, region.record.shape)
            positions = np.flatnonzero(here)
            inside.reshape(-1)[positions[good]] = True
            real.reshape(-1)[positions] = np.uint64(region.host.data_ptr()) + offset_bytes.view(np.uint64)
        return (
            interpreter.TensorHandle(real, pointers.dtype),
            interpreter.TensorHandle(inside, tl.int1),
        )

    def _violate(self, tensor, builder, kind, count, index, last, shape):
        program = tuple(map(int, builder.grid_idx))
        self.trace.violations.append(Violation(self._kernel, tensor, program, kind, count, index, last, shape))


class RemoteRecorder:
    """Sends launches to a process that interprets, between `install` and `remove`, where kernels run compiled."""

    def __init__(self, named_tensors):
        self.trace = Trace()
        self._names = {tensor.data_ptr(): name for name, tensor in named_tensors.items()}
        self._launches = []

    def install(self):
        from triton.runtime.jit import JITFunction

        interpreter_process.start()  # now, and not within the time that a launch may take
        self._owner, self._run = JITFunction, JITFunction.run
        recorder = self

        def traced_run(kernel, *args, grid, warmup, **kwargs):
            if warmup:
                return recorder._run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            if callable(grid):
                grid = grid(dict(zip(kernel.arg_names, args, strict=False)) | kwargs)
            recorder._launch(kernel, args, kwargs, tuple(grid))

        JITFunction.run = traced_run

    def remove(self):
        self._owner.run = self._run

    def _launch(self, kernel, args, kwargs, grid):
        tensors = {
            name: value
            for name, value in (*zip(kernel.arg_names, args, strict=False), *kwargs.items())
            if isinstance(value, torch.Tensor)
        }
        call = {
            "kernel": _describe(kernel),
            "args": args,
            "kwargs": {name: value for name, value in kwargs.items() if name in kernel.arg_names},
            "grid": grid,
            "names": {self._names[t.data_ptr()]: t for t in tensors.values() if t.data_ptr() in self._names},
        }
        with tempfile.TemporaryDirectory() as folder:
            torch.save(call, Path(folder) / "call")
            status, errors = interpreter_process.run("course_lib.tracer:serve", folder)
            if status:
                raise RuntimeError(f"the traced launch failed (exit status {status}):\n{errors.strip()}")
            if (raised := Path(folder) / "raised").exists():
                raise pickle.loads(raised.read_bytes())
            results = torch.load(Path(folder) / "tensors", weights_only=False)
            launch = pickle.loads((Path(folder) / "trace").read_bytes())
        for name, tensor in tensors.items():
            tensor.untyped_storage().copy_(results[name].untyped_storage())
        self._merge(launch)

    def _merge(self, launch):
        self.trace.violations += launch.violations
        self.trace.rounding_dots += launch.rounding_dots
        for name, tensor in launch.tensors.items():
            known = self.trace.tensors.get(name)
            if known is None or known.shape != tensor.shape:
                self.trace.tensors[name] = tensor
            else:
                known.loads += tensor.loads
                known.stores += tensor.stores


def _describe(kernel):
    """How another process gets this kernel: (module, name) of an importable one, else (None, name, source)."""
    function = kernel.fn
    if _is_importable(kernel, function):
        return function.__module__, function.__name__
    return None, function.__name__, "\n".join(sources(function))


def _is_importable(value, definition):
    """Whether `from definition's module import definition's name` gives the value."""
    module, name = getattr(definition, "__module__", None), getattr(definition, "__name__", None)
    return module != "__main__" and name and getattr(sys.modules.get(module), name, None) is value


def sources(function, given=()):
    """The sources of all that a plain function names, `given` names excepted, and last its own.

    What a module holds is imported, functions that no module holds come as source, other values pickled. TypeError,
    with the name, for what cannot go that way.
    """
    lines = []
    _write_source(function, lines, {*given, function.__name__})
    return lines


def _write_source(function, lines, written):
    if function.__code__.co_freevars:
        names = ", ".join(function.__code__.co_freevars)
        raise TypeError(f"{function.__name__} was defined in another function, whose {names} it uses")
    source = textwrap.dedent(inspect.getsource(function))
    for name in sorted(_names_of_head(source) | _global_names(function.__code__)):
        if name in function.__globals__ and name not in written:
            written.add(name)
            try:
                _write_value(name, function.__globals__, lines, written)
            except Exception as error:
                kind = type(function.__globals__[name]).__name__
                raise TypeError(f"{name}, a {kind}, cannot be sent to another process: {error}") from None
    lines.append(source)


def _write_value(name, namespace, lines, written):
    from triton.runtime.jit import JITFunction

    value = namespace[name]
    plain = inspect.unwrap(value.fn if isinstance(value, JITFunction) else value)
    if isinstance(value, types.ModuleType):
        lines.append(f"import importlib\n{name} = importlib.import_module({value.__name__!r})")
    elif _is_importable(value, plain):
        lines.append(f"from {plain.__module__} import {plain.__name__} as {name}")
    elif isinstance(plain, types.FunctionType):
        defined = plain.__name__
        if defined == "<lambda>":
            (assignment,) = ast.parse(textwrap.dedent(inspect.getsource(plain))).body
            (defined,) = (target.id for target in assignment.targets)
        if namespace.get(defined) is not value:
            raise TypeError(f"its source defines {defined}, which is now something else")
        written.add(defined)
        _write_source(plain, lines, written)
        if defined != name:
            lines.append(f"{name} = {defined}")
    else:
        pickled = pickle.dumps(value)
        if b"__main__" in pickled:
            raise TypeError("no module holds what it is made of")
        lines.append(f"import pickle\n{name} = pickle.loads({pickled!r})")


def _names_of_head(source):
    """Names in a function's decorators, annotations and defaults, which its definition looks up and not its code."""
    (definition,) = ast.parse(source).body
    if not isinstance(definition, ast.FunctionDef):
        return set()
    head = [*definition.decorator_list, definition.args, *filter(None, [definition.returns])]
    return {node.id for part in head for node in ast.walk(part) if isinstance(node, ast.Name)}


def _global_names(code):
    """Names that code, or code inside it (a comprehension, a lambda, a class), looks up among the globals."""
    # Inside a class body, names are looked up by LOAD_NAME; __name__ is, and every module has one.
    steps = [step for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    names = {step.argval for step in steps if step.argval != "__name__"}
    return names.union(*(_global_names(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))


def serve(folder):
    """In the process that interprets: run one launch under a Recorder, leave tensors and trace in the folder."""
    folder = Path(folder)
    call = torch.load(folder / "call", weights_only=False, map_location="cpu")
    module, name, *source = call["kernel"]
    if module is None:
        (folder / "traced_kernel.py").write_text(source[0])
        sys.path.insert(0, str(folder))
        module = "traced_kernel"
    kernel = getattr(importlib.import_module(module), name)
    recorder = Recorder(call["names"])
    recorder.install()
    try:
        kernel[call["grid"]](*call["args"], **call["kwargs"])
    except Exception as error:
        if type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
            error = error.__cause__  # what the kernel raised, which Triton's interpreter wraps
        (folder / "raised").write_bytes(pickle.dumps(error))
        return
    finally:
        recorder.remove()
    named = {**dict(zip(kernel.arg_names, call["args"], strict=False)), **call["kwargs"]}
    torch.save({n: value for n, value in named.items() if isinstance(value, torch.Tensor)}, folder / "tensors")
    (folder / "trace").write_bytes(pickle.dumps(recorder.trace))
