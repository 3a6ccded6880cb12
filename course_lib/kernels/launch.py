"""What a call prepares before a kernel starts, in a form that calls alike can share: Python takes longer for it than a
small kernel runs.

A plan is made by a function of `kind`s and other plain values, and remembered by `functools.lru_cache`: whatever the
plan depends on is then an argument of that function.
"""

from typing import NamedTuple

import torch

MOST_REMEMBERED = 4096


class Kind(NamedTuple):
    """All that a launch depends on in a tensor but its address."""

    dtype: torch.dtype
    shape: torch.Size
    strides: tuple
    offset: int  # bytes from a multiple of 16 to the first element
    device: int  # its index


def kind(x):
    """The Kind of a tensor."""
    # Kind(...), without the Python function that a named tuple has for it: four of those are felt in a short call.
    return tuple.__new__(Kind, (x.dtype, x.shape, x.stride(), x.data_ptr() % 16, x.get_device()))


class Launch:
    """`kernel[grid](*tensors, *numbers, **constants, num_warps=..., num_stages=...)`, sooner from the second time on.

    kernel: a `@triton.jit` function whose parameters are tensors, then numbers, then constexprs, which are all of
    constants. Called with the tensors (or descriptors, or None), which must be of the same kinds every time: the binary
    that Triton compiled for the first ones is then started directly. (Triton would look again which of its binaries
    fits.) Whatever Triton raises for the first ones it raises again.
    """

    def __init__(self, kernel, grid, *numbers, num_warps=4, num_stages=1, **constants):
        self._kernel, self._grid, self._numbers = kernel, grid, numbers
        self._constants, self._options = constants, {"num_warps": num_warps, "num_stages": num_stages}
        self._compiled, self._ordered = None, ()

    def __call__(self, *tensors):
        if self._compiled is not None:
            self._compiled[self._grid](*tensors, *self._ordered)
            return
        compiled = self._kernel[self._grid](*tensors, *self._numbers, **self._constants, **self._options)
        # The interpreter compiles nothing. For AMD's GPUs a binary also depends on how large a tensor's storage is.
        if compiled is not None and torch.version.cuda:
            names = self._kernel.arg_names[len(tensors) + len(self._numbers) :]
            self._ordered = *self._numbers, *(self._constants[name] for name in names)
            self._compiled = compiled
