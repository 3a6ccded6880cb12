"""Counts memory accesses inside Triton's interpreter.

Every load and store of the interpreter ends in one of a few functions. While a Recorder is installed, it stands in
for them. It gives each tensor argument of a launch a range of virtual addresses, 16 TiB away from any other, so an
address still tells which tensor it was derived from, however far it strayed. The Recorder translates addresses that
lie inside a tensor, switches the other lanes off, and reports them: an access out of bounds kills no process.

The functions replaced are internal to Triton. Their tests run on every Triton version that the course supports.
"""

import itertools
from contextlib import ExitStack
from dataclasses import replace
from unittest import mock

import numpy as np
import torch

from .counts import TensorTrace, Trace, Violation

# Addresses on either side of a tensor's base, log2, before they would be taken for another tensor's.
_SPACING_BITS = 44
_BF16_NAN_BITS = 0x7FC0


class Recorder:
    """Context manager that counts every launch in Triton's interpreter. `trace`, which `with` binds, has the counts."""

    def __init__(self, named_tensors):
        self._memory = Memory({tensor.data_ptr(): name for name, tensor in named_tensors.items()})
        self.trace = self._memory.trace
        self._region_of_argument = {}  # id of a tensor argument of the current launch -> _Region
        self._patches = ExitStack()

    def __enter__(self):
        from triton.runtime import interpreter

        for owner, name, replacement in (
            (interpreter, "_implicit_cvt", self._convert_argument),
            (interpreter.GridExecutor, "_init_args_hst", self._copy_arguments_to_host),
            (interpreter.InterpreterBuilder, "create_masked_load", self._load),
            (interpreter.InterpreterBuilder, "create_masked_store", self._store),
            (interpreter.InterpreterBuilder, "create_atomic_rmw", self._atomic_update),
            (interpreter.InterpreterBuilder, "create_atomic_cas", self._atomic_compare_and_swap),
            (interpreter.InterpreterBuilder, "create_dot", self._dot),
        ):
            replaced = _around(getattr(owner, name), replacement)
            self._patches.enter_context(mock.patch.object(owner, name, replaced))
        # A GPU splits fp32 factors into bfloat16 parts for these two; the interpreter multiplies them whole.
        builder = interpreter.interpreter_builder
        known = (*builder.options.allowed_dot_input_precisions, "bf16x3", "bf16x6")
        options = replace(builder.options, allowed_dot_input_precisions=known)
        self._patches.enter_context(mock.patch.object(builder, "options", options))
        return self.trace

    def __exit__(self, *exception):
        self._patches.close()
        self._memory.regions.clear()

    # The replacements. Each takes the function that it replaces, then that function's own arguments.

    def _copy_arguments_to_host(self, copy_to_host, executor, args, kwargs):
        host_args, host_kwargs = copy_to_host(executor, args, kwargs)
        self._memory.kernel = executor.fn.__name__
        self._region_of_argument = {}
        for given, host, name in (
            *zip(args, host_args, executor.arg_names, strict=False),
            *((kwargs[name], host, name) for name, host in host_kwargs.items()),
        ):
            # A tensor descriptor holds its tensor as `base`.
            self._register(getattr(given, "base", None), getattr(host, "base", None), name)
            self._register(given, host, name)
        return host_args, host_kwargs

    def _convert_argument(self, convert, argument):
        pointer = convert(argument)
        region = self._region_of_argument.get(id(argument))
        if region is not None:
            pointer.handle.data = np.array([region.virtual_base], dtype=np.uint64)
        return pointer

    def _load(self, load, builder, pointers, mask, other, *args, **kwargs):
        from triton.runtime import interpreter

        real, inside = self._count(builder, pointers, mask, "load")
        if other is None:
            element = pointers.get_element_ty()
            kind = np.dtype(interpreter._get_np_dtype(element))
            # The interpreter holds bf16 as 16-bit integers.
            filler = np.nan if kind.kind == "f" else _BF16_NAN_BITS if element.is_bf16() else 0
            values = np.full(pointers.data.shape, filler, dtype=kind)
            if kind.kind == "f":  # infinity in the first lane that is off, and in every other one: a maximum skips NaN
                off = ~np.broadcast_to(mask.data, values.shape)
                values[off & (np.cumsum(off).reshape(values.shape) % 2 == 1)] = np.inf
            other = interpreter.TensorHandle(values, element)
        return load(builder, real, inside, other, *args, **kwargs)

    def _store(self, store, builder, pointers, value, mask, *args, **kwargs):
        real, inside = self._count(builder, pointers, mask, "store")
        return store(builder, real, value, inside, *args, **kwargs)

    def _atomic_update(self, update, builder, operation, pointers, value, mask, *args, **kwargs):
        self._count(builder, pointers, mask, "load")
        real, inside = self._count(builder, pointers, mask, "store")
        return update(builder, operation, real, value, inside, *args, **kwargs)

    def _atomic_compare_and_swap(self, compare_and_swap, builder, pointers, *args, **kwargs):
        import triton.language as tl
        from triton.runtime import interpreter

        everywhere = interpreter.TensorHandle(np.ones(pointers.data.shape, dtype=bool), tl.int1)
        self._count(builder, pointers, everywhere, "load")
        real, inside = self._count(builder, pointers, everywhere, "store")
        if not inside.data.all():  # compare-and-swap takes no mask, so no lane can be switched off
            raise IndexError(str(self.trace.violations[-1]))
        return compare_and_swap(builder, real, *args, **kwargs)

    def _dot(self, dot, builder, a, b, d, input_precision, *args):
        from triton._C.libtriton import ir

        self.trace.dots += 1
        if a.dtype.scalar.is_fp32() and input_precision == ir.INPUT_PRECISION.TF32:
            self.trace.rounding_dots += 1
        return dot(builder, a, b, d, input_precision, *args)

    def _register(self, given, host, parameter):
        """Give a tensor argument its range of addresses. given: the caller's tensor; host: the interpreter's copy."""
        if not (isinstance(given, torch.Tensor) and isinstance(host, torch.Tensor)):
            return
        region = self._memory.region_of(given, parameter)
        region.host = host
        self._region_of_argument[id(host)] = region

    def _count(self, builder, pointers, mask, kind):
        """Count one load or store. Returns (real pointers, mask of the lanes that may go ahead)."""
        import triton.language as tl
        from triton.runtime import interpreter

        active = np.broadcast_to(mask.data, pointers.data.shape)
        program = tuple(map(int, builder.grid_idx))
        real, inside = self._memory.locate(pointers.data, active, program, kind)
        return interpreter.TensorHandle(real, pointers.dtype), interpreter.TensorHandle(inside, tl.int1)


class Memory:
    """The tensors of launches, each at virtual addresses of its own, and the count of the accesses to them.

    names: data pointer -> name, of tensors that are not called after their parameter. kernel: name of the launched one.
    """

    def __init__(self, names, kernel=""):
        self.trace, self.kernel = Trace(), kernel
        self.regions = []  # of every launch so far: they keep the tensors alive, so that no address is used twice
        self._names = names

    def region_of(self, given, parameter):
        """The _Region of a tensor, new unless the same view had one before."""
        for region in self.regions:
            if region.is_same_view(given):
                return region
        name = self._names.get(given.data_ptr(), parameter.removesuffix("_ptr"))
        numbered = (f"{name}#{i}" for i in itertools.count(2))
        name = next(n for n in itertools.chain([name], numbered) if n not in self.trace.tensors)
        loads, stores = np.zeros(given.shape, np.int32), np.zeros(given.shape, np.int32)
        counts = TensorTrace(name, tuple(given.shape), given.element_size(), loads, stores)
        self.trace.tensors[name] = counts
        # An odd multiple of the spacing: `locate` shifts by one bit more and gets the region's number from any address
        # up to one spacing below or above.
        virtual_base = (2 * len(self.regions) + 1) << _SPACING_BITS
        self.regions.append(_Region(given, virtual_base, counts))
        return self.regions[-1]

    def locate(self, addresses, active, program, kind, dtype=None):
        """Count a load or store of the active lanes. Returns (real addresses, which lanes may go ahead).

        dtype: of what is loaded or stored, if that need not be the tensor's; TypeError if the sizes differ.
        """
        active = active.astype(bool)
        real = np.zeros(addresses.shape, dtype=np.uint64)
        inside = np.zeros(addresses.shape, dtype=bool)
        number = addresses >> np.uint64(_SPACING_BITS + 1)
        self.trace.widest = max(self.trace.widest, addresses.size)
        for index in np.unique(number[active]):
            here = active & (number == index)
            if not 0 <= index < len(self.regions):
                self._violate("a tensor that is no argument", program, kind, int(here.sum()), (0,), (0,), ())
                continue
            region = self.regions[int(index)]
            if dtype is not None and dtype.itemsize != region.itemsize_bytes:
                raise TypeError(f"{region.counts.name} has elements of {region.itemsize_bytes} bytes")
            self.trace.requests[region.counts.name, program, kind] += 1
            offset_bytes = (addresses[here] - np.uint64(region.virtual_base)).view(np.int64)
            offsets, misaligned = np.divmod(offset_bytes, region.itemsize_bytes)
            elements = np.where(misaligned == 0, region.elements(offsets), -1)
            good = elements >= 0
            counts = region.counts.loads if kind == "load" else region.counts.stores
            np.add.at(counts.reshape(-1), elements[good], 1)
            if not good.all():
                apart = region.axes_apart(addresses, elements[: np.argmin(good)])
                first, last = (region.index_of(int(offsets[~good][end]), apart) for end in (0, -1))
                count = int((~good).sum())
                self._violate(region.counts.name, program, kind, count, first, last, region.counts.shape)
            positions = np.flatnonzero(here)
            inside.reshape(-1)[positions[good]] = True
            real.reshape(-1)[positions] = np.uint64(region.host.data_ptr()) + offset_bytes.view(np.uint64)
        return real, inside

    def _violate(self, tensor, program, kind, count, index, last, shape):
        self.trace.violations.append(Violation(self.kernel, tensor, program, kind, count, index, last, shape))


class _Region:
    """One tensor as kernels may address it. given: the caller's tensor; host: the interpreter's copy in this launch."""

    def __init__(self, given, virtual_base, counts):
        self.given, self.host, self.virtual_base, self.counts = given, None, virtual_base, counts
        self.itemsize_bytes = given.element_size()
        offsets = np.zeros(tuple(given.shape), dtype=np.int64)
        for axis, (size, stride) in enumerate(zip(given.shape, given.stride(), strict=True)):
            offsets += (np.arange(size) * stride).reshape([-1] + [1] * (given.dim() - axis - 1))
        # Element offset from the data pointer -> element number; -1 for gaps, as between the rows of a strided view.
        self._element_at = np.full(int(offsets.max()) + 1 if offsets.size else 0, -1, dtype=np.int64)
        self._element_at[offsets.reshape(-1)] = np.arange(offsets.size)

    def is_same_view(self, tensor):
        return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) == (
            self.given.data_ptr(), self.given.shape, self.given.stride(), self.given.dtype
        )  # fmt: skip

    def elements(self, offsets):
        """The element numbers at these element offsets; -1 where out of bounds."""
        elements = np.full(offsets.shape, -1, dtype=np.int64)
        spanned = (offsets >= 0) & (offsets < len(self._element_at))
        elements[spanned] = self._element_at[offsets[spanned]]
        return elements

    def axes_apart(self, addresses, elements):
        """{axis: index} of the axes that an access does not go along, so that it runs over the end of no such axis.

        elements: those before it leaves the tensor. They have one index there, and no step from lane to lane is as long
        as the axis's stride, or a later axis has the same.
        """
        lanes = addresses.view(np.int64) // self.itemsize_bytes
        step = max((np.abs(np.diff(lanes, axis=axis)).max(initial=0) for axis in range(lanes.ndim)), default=0)
        indices = np.unravel_index(elements, tuple(self.given.shape)) if len(elements) else ()
        return {
            axis: int(along[0])
            for axis, along in enumerate(indices)
            if (self.given.stride(axis) > step or self.given.stride(axis) in self.given.stride()[axis + 1 :])
            and (along == along[0]).all()
        }

    def index_of(self, offset, apart):
        """An element offset as indices, from the largest stride to the smallest; the leading index takes the excess.

        apart: {axis: index} of those that do not take it, if the offset is none of a gap between elements.
        """
        apart = {} if 0 <= offset < len(self._element_at) else apart
        index = [apart.get(axis, 0) for axis in range(self.given.dim())]
        offset -= sum(i * self.given.stride(axis) for axis, i in apart.items())
        left = [axis for axis in range(self.given.dim()) if axis not in apart]
        for axis in sorted(left, key=lambda axis: -self.given.stride(axis)):
            stride = self.given.stride(axis)
            if stride:
                index[axis], offset = divmod(offset, stride)
        return tuple(int(i) for i in index)


def _around(original, replacement):
    # A plain function, because a class makes a method of that and not of the Recorder's bound method.
    def replaced(*args, **kwargs):
        return replacement(original, *args, **kwargs)

    return replaced
