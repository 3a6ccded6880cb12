"""Traces launches where kernels run compiled: each is sent to a process that interprets, and its results come back."""

import importlib
import pickle
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch

from . import interpreter_process
from .counts import Trace
from .kernel_source import is_importable, sources
from .recorder import Recorder


class RemoteRecorder:
    """Context manager like `Recorder`, which sends every launch to the process that interprets."""

    def __init__(self, named_tensors):
        self.trace = Trace()
        self._names = {tensor.data_ptr(): name for name, tensor in named_tensors.items()}

    def __enter__(self):
        from triton.runtime.jit import JITFunction

        interpreter_process.start()  # now, so that the first launch does not wait for it
        run = JITFunction.run

        def traced_run(kernel, *args, grid, warmup, **kwargs):
            if warmup:
                return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            if callable(grid):
                grid = grid(_by_name(kernel, args, kwargs))
            self._launch(kernel, args, kwargs, tuple(grid))

        self._patch = mock.patch.object(JITFunction, "run", traced_run)
        self._patch.start()
        return self.trace

    def __exit__(self, *exception):
        self._patch.stop()

    def _launch(self, kernel, args, kwargs, grid):
        tensors = _tensors(kernel, args, kwargs)
        call = {
            "kernel": _description(kernel),
            "args": args,
            "kwargs": {name: value for name, value in kwargs.items() if name in kernel.arg_names},
            "grid": grid,
            "names": {self._names[t.data_ptr()]: t for t in tensors.values() if t.data_ptr() in self._names},
        }
        with tempfile.TemporaryDirectory() as folder:
            torch.save(call, Path(folder) / "call")
            status, errors = interpreter_process.run("courseware.simulators.triton_trace.remote:serve", folder)
            if status:
                raise RuntimeError(f"the traced launch failed (exit status {status}):\n{errors.strip()}")
            if (raised := Path(folder) / "raised").exists():
                raise pickle.loads(raised.read_bytes())
            results = torch.load(Path(folder) / "tensors", weights_only=False)
            self.trace.add(pickle.loads((Path(folder) / "trace").read_bytes()))
        for name, tensor in tensors.items():
            tensor.untyped_storage().copy_(results[name].untyped_storage())


def _by_name(kernel, args, kwargs):
    return dict(zip(kernel.arg_names, args, strict=False)) | kwargs


def _tensors(kernel, args, kwargs):
    named = _by_name(kernel, args, kwargs)
    return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}


def _description(kernel):
    """How another process gets this kernel: (module, name) if it can be imported, else (None, name, source)."""
    function = kernel.fn
    if is_importable(kernel, function):
        return function.__module__, function.__name__
    return None, function.__name__, "\n".join(sources(function))


def serve(folder):
    """In the process that interprets: run one launch under a Recorder, and leave tensors and trace in the folder."""
    folder = Path(folder)
    call = torch.load(folder / "call", weights_only=False, map_location="cpu")
    module, name, *source = call["kernel"]
    if module is None:
        (folder / "traced_kernel.py").write_text(source[0])
        sys.path.insert(0, str(folder))
        module = "traced_kernel"
    kernel = getattr(importlib.import_module(module), name)
    try:
        with Recorder(call["names"]) as trace:
            kernel[call["grid"]](*call["args"], **call["kwargs"])
    except Exception as error:
        if type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
            error = error.__cause__  # what the kernel raised; Triton's interpreter wraps it
        (folder / "raised").write_bytes(pickle.dumps(error))
    else:
        torch.save(_tensors(kernel, call["args"], call["kwargs"]), folder / "tensors")
        (folder / "trace").write_bytes(pickle.dumps(trace))
