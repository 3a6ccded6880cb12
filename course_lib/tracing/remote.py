"""Traces launches where kernels run compiled: each is sent to a process that interprets, and its results come back."""

import importlib
import pickle
import sys
import tempfile
from pathlib import Path

import torch

from . import interpreter_process
from .counts import Trace
from .kernel_source import is_importable, sources
from .recorder import Recorder


class RemoteRecorder:
    """Sends every launch to the process that interprets between `install` and `remove`. `trace` holds the counts."""

    def __init__(self, named_tensors):
        self.trace = Trace()
        self._names = {tensor.data_ptr(): name for name, tensor in named_tensors.items()}

    def install(self):
        from triton.runtime.jit import JITFunction

        interpreter_process.start()  # now, so that the first launch does not wait for it
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
            "kernel": _description(kernel),
            "args": args,
            "kwargs": {name: value for name, value in kwargs.items() if name in kernel.arg_names},
            "grid": grid,
            "names": {self._names[t.data_ptr()]: t for t in tensors.values() if t.data_ptr() in self._names},
        }
        with tempfile.TemporaryDirectory() as folder:
            torch.save(call, Path(folder) / "call")
            status, errors = interpreter_process.run("course_lib.tracing.remote:serve", folder)
            if status:
                raise RuntimeError(f"the traced launch failed (exit status {status}):\n{errors.strip()}")
            if (raised := Path(folder) / "raised").exists():
                raise pickle.loads(raised.read_bytes())
            results = torch.load(Path(folder) / "tensors", weights_only=False)
            self.trace.add(pickle.loads((Path(folder) / "trace").read_bytes()))
        for name, tensor in tensors.items():
            tensor.untyped_storage().copy_(results[name].untyped_storage())


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
    recorder = Recorder(call["names"])
    recorder.install()
    try:
        kernel[call["grid"]](*call["args"], **call["kwargs"])
    except Exception as error:
        if type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
            error = error.__cause__  # what the kernel raised; Triton's interpreter wraps it
        (folder / "raised").write_bytes(pickle.dumps(error))
        return
    finally:
        recorder.remove()
    named = {**dict(zip(kernel.arg_names, call["args"], strict=False)), **call["kwargs"]}
    torch.save({n: value for n, value in named.items() if isinstance(value, torch.Tensor)}, folder / "tensors")
    (folder / "trace").write_bytes(pickle.dumps(recorder.trace))
