"""The host's side of a launch: descriptors, padding, and a cache of what launches of one shape have in common.

Preparing a launch takes Python longer than a small kernel runs. So a kernel module prepares a `Launch` once for each
combination of `TensorMeta`s and options, in a function under `functools.lru_cache(MAX_CACHED_LAUNCHES)`; whatever the
launch depends on is an argument of that function.
"""

import functools
from typing import NamedTuple

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

MAX_CACHED_LAUNCHES = 4096
# Offsets inside a tile are 32-bit: 128 rows of at most 2^24 elements.
MAX_ROW_STRIDE = 2**24 - 1


class TensorMeta(NamedTuple):
    """All that a launch depends on in a tensor, apart from its address."""

    dtype: torch.dtype
    shape: torch.Size
    strides: tuple
    misalignment_bytes: int  # from a multiple of 16 to the first element
    device: int  # index of the GPU, -1 for the CPU


def tensor_meta(x):
    return TensorMeta(x.dtype, x.shape, x.stride(), x.data_ptr() % 16, x.get_device())


class Launch:
    """`kernel[grid](*tensors, *numbers, **constants, num_warps=..., num_stages=...)`, faster from the second time on.

    kernel: a `@triton.jit` function whose parameters are tensors, then numbers, then the constexprs in constants.
    Call it with the tensors (or descriptors, or None). They must have the same metadata every time, because the binary
    that Triton compiled for the first ones is then started without asking Triton which of its binaries fits. A call
    that fails, because the tiles do not fit the GPU for instance, caches nothing.
    """

    def __init__(self, kernel, grid, *numbers, num_warps=4, num_stages=1, **constants):
        self.kernel, self.grid, self.numbers, self.constants = kernel, grid, numbers, constants
        self.options = {"num_warps": num_warps, "num_stages": num_stages}
        self._compiled, self._arguments = None, ()

    def __call__(self, *tensors):
        if self._compiled is not None:
            self._compiled[self.grid](*tensors, *self._arguments)
            return
        compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.constants, **self.options)
        # The interpreter compiles nothing. On AMD's GPUs a binary depends on the size of a tensor's storage, too.
        if compiled is not None and torch.version.cuda:
            names = self.kernel.arg_names[len(tensors) + len(self.numbers) :]
            self._arguments = *self.numbers, *(self.constants[name] for name in names)
            self._compiled = compiled


def padded_head_dim(head_dim):
    """BLOCK_D: the power of two, 16 at least, that holds head_dim. `triton.next_power_of_2` takes 3 microseconds."""
    return max(16, 1 << (head_dim - 1).bit_length())


def addressable(x):
    """x, or a copy that the kernels' offsets can address."""
    _, _, row_stride, stride = x.stride()
    return x if stride == 1 and row_stride <= MAX_ROW_STRIDE else x.contiguous()


def with_positive_scale(q, scale):
    """(q, scale) whose products are the same, with scale above 0.

    Kernels scale the largest score of a row after they have found it. That takes a positive scale.
    """
    if scale < 0:
        return -q, -scale
    return (q, scale) if scale else (q * 0, 1.0)


def takes_descriptors(capability, *metas):
    """Whether a kernel fetches tiles of these [batch, heads, seq, head_dim] tensors by tensor descriptor.

    That needs compute capability 9.0, rows that begin at multiples of 16 bytes, and sequences long enough to pay for
    making the descriptors.
    """
    if capability is None or capability < (9, 0):
        return False
    for x in metas:
        starts_bytes = x.misalignment_bytes, *(stride * x.dtype.itemsize for stride in x.strides[:3])
        if x.shape[2] < 512 or any(start % 16 for start in starts_bytes) or 0 in x.strides:
            return False
    return True


def with_base(descriptor, x):
    """The same descriptor, but of x. Triton checks each new one: the eleven of a backward took the host 280 us."""
    same = object.__new__(type(descriptor))
    same.__dict__.update(vars(descriptor), base=x)
    return same


@functools.lru_cache(MAX_CACHED_LAUNCHES)
def _descriptor(shape, strides, dtype, rows):
    x = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    return TensorDescriptor(x, shape, strides, [1, 1, rows, padded_head_dim(shape[3])])


def descriptor(x, rows):
    """A descriptor of x [batch, heads, seq, head_dim] that loads `rows` rows of one head, all columns padded."""
    return with_base(_descriptor(x.shape, x.stride(), x.dtype, rows), x)
