"""Counts the bytes that a Triton kernel requests, tensor by tensor, and finds accesses out of bounds.

    with trace(q=q, k=k, v=v) as t:
        o = flash_attention(q, k, v)
    t.load_bytes, t.by_tensor, t.violations, t.draw("k")

The counts are of what programs *request*, element by element, before any cache. A lane that its mask switches off
requests nothing. If its load gives no `other`, the lane holds infinity or NaN here: a GPU promises nothing about it,
although Triton's interpreter by itself gives 0. An access out of bounds is recorded and not carried out.

Tracing takes place in Triton's interpreter. Where kernels run compiled, each launch is sent to a process that
interprets, and its results are copied back. simulators/triton_trace holds the parts.
"""

import torch

from course_lib import runtime
from courseware.simulators.triton_trace.counts import TensorTrace, Trace, Violation
from courseware.simulators.triton_trace.kernel_source import sources
from courseware.simulators.triton_trace.recorder import Recorder
from courseware.simulators.triton_trace.remote import RemoteRecorder

__all__ = ["TensorTrace", "Trace", "Violation", "sources", "trace"]


def trace(**tensors):
    """A context manager: trace every Triton launch inside it. The with-statement binds a `Trace`.

    tensors: names for the tensors passed to the kernels. A tensor without a name here is called after the kernel
    parameter it was passed as, without the `_ptr`. Raises RuntimeError where Triton is not installed.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if runtime.mode() == "numpy":
        raise RuntimeError("tracing runs Triton kernels, and Triton is not installed here")
    return RemoteRecorder(tensors) if runtime.mode() == "gpu" else Recorder(tensors)
