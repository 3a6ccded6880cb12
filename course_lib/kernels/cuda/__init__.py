"""Attention in CUDA C++, thread by thread, for lesson 12.

plain_attention.cu   the plain kernel
attention.cu         the shipped one: the same algorithm, with what makes it fast
launches.py          how the kernels are launched: grid, block, shared memory; and what the plain one costs
gpu.py               compiles with NVRTC and launches on a GPU
"""

import numbers

from course_lib import runtime
from course_lib.integers import python_integers

from . import launches


@python_integers
def solve(Q, K, V, output, M, N, d):
    """Write softmax(Q K^T / sqrt(d)) V to output, without the M x N matrix.

    Q, output: [M, d]. K, V: [N, d]. float32 torch tensors, contiguous and on one device. M, N: at least 1; d: 1 to 128.
    CUDA tensors are launched on torch's current stream. For CPU tensors the emulator of `runtime.emulators` runs the
    kernel thread by thread, which takes a second for each 3,000,000 of M * N * d, and raises NoCompiler where there is
    no C++ compiler.
    Raises TypeError or ValueError, naming the argument, before anything runs.
    """
    _check(Q, K, V, output, M, N, d)
    if Q.is_cuda:
        from .gpu import on_gpu

        on_gpu(Q, K, V, output, M, N, d)
    else:
        runtime.emulator("cuda").solve(*(x.detach().numpy() for x in (Q, K, V, output)), M, N, d)


def _check(Q, K, V, output, M, N, d):
    import torch  # not at the top: the emulator does without

    for name, size, largest in (("M", M, None), ("N", N, None), ("d", d, launches.MAX_HEAD_DIM)):
        if not isinstance(size, numbers.Integral) or isinstance(size, bool):
            raise TypeError(f"{name} must be an integer, got {size!r}")
        if size < 1 or (largest and size > largest):
            raise ValueError(f"{name} must be {f'1 to {largest}' if largest else 'at least 1'}, got {size}")
    for name, tensor, rows in (("Q", Q, M), ("K", K, N), ("V", V, N), ("output", output, M)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.dtype != torch.float32:
            raise TypeError(f"{name} has dtype {str(tensor.dtype).removeprefix('torch.')}; accepted: float32")
        if tensor.shape != (rows, d):
            raise ValueError(f"{name} must have shape {[rows, d]}, got {list(tensor.shape)}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")
        if tensor.device != Q.device:
            raise ValueError(f"{name} is on {tensor.device} but Q is on {Q.device}; they must be on one device")
    if Q.device.type not in ("cpu", "cuda"):
        raise ValueError(f"Q is on {Q.device}; accepted: cpu and cuda")
