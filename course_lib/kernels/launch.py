"""Launches a kernel without Triton's own search for the binary, which takes longer than a small kernel runs."""

import numbers

import torch

MOST_REMEMBERED = 4096
_compiled = {}  # what a binary depends on: the binary, and the constants in the order in which it takes them
_PLAIN = {int, float, type(None)}


def launch(kernel, grid, *arguments, num_warps=4, num_stages=1, **constants):
    """`kernel[grid](*arguments, **constants, num_warps=..., num_stages=...)`, sooner from the second time on.

    kernel: a `@triton.jit` function whose constexpr parameters come last; constants: all of them. grid: three numbers.
    What Triton compiled is remembered, and started directly when a call comes that Triton
    would compile alike: equal numbers, and tensors of equal dtype, alignment and device. (Triton's own key is
    coarser: of a number it asks whether it is 1, or divisible by 16.)
    """
    # A small kernel runs for less time than Python takes for thirty calls of a function.
    described = [x if type(x) in _PLAIN else _as_compiled(x) for x in arguments]
    key = (kernel.fn, num_warps, num_stages, *constants.values(), *described)
    found = _compiled.get(key)
    if found is not None:
        compiled, ordered = found
        compiled[grid](*arguments, *ordered)
        return
    compiled = kernel[grid](*arguments, **constants, num_warps=num_warps, num_stages=num_stages)
    # The interpreter compiles nothing. For AMD's GPUs Triton also asks how large a tensor's storage is.
    if compiled is not None and torch.version.cuda:
        if len(_compiled) == MOST_REMEMBERED:
            _compiled.clear()
        _compiled[key] = compiled, [constants[name] for name in kernel.arg_names[len(arguments) :]]


def _as_compiled(argument):
    """What a binary depends on in one argument."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16, argument.get_device()
    if isinstance(argument, numbers.Number):
        return argument
    return argument.base.dtype, *argument.block_shape, argument.base.get_device()  # a tensor descriptor
