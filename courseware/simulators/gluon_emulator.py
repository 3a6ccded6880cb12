"""A small interpreter of Gluon: runs a kernel whose warp groups have different jobs on a CPU, and watches over it.

It knows what `hopper_forward` and `hopper_backward` use. Each partition of `warp_specialize` is a thread, and one of
them runs at a time, until it waits for a barrier or arrives at one; who goes on is drawn at random, from `SEED`. These
mistakes raise `GluonError` where that order of events brings them out, which it does far more often than a GPU's
timing:

    a group reads shared memory without having waited for the copy that fills it
    a copy is started over a tile that an unfinished product or load reads, or that nobody has waited for
    a result is used while its product is under way
    a barrier gets more arrivals than it was made for, or more bytes than were announced
    the copy engine reads what was stored without a fence, or something is stored over what it still reads
    everybody waits: deadlock

A finding is a proof, and a run without one is none: try several seeds. Layouts and registers mean nothing here.
"""

import functools
import itertools
import math
import random
import sys
import threading
from dataclasses import dataclass
from types import SimpleNamespace

import torch

from . import barriers

SEED = 0


class GluonError(RuntimeError):
    """What a kernel does wrong. The message says which partition, and which memory or barrier by the kernel's name."""


class Tile(torch.Tensor):
    """A tensor in registers. source: the buffer that it is loaded from, or None. Its first use waits for the load."""

    type = SimpleNamespace(layout=SimpleNamespace(parent=None))
    source = None

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function.__name__ != "__get__":  # of shape, dtype and the like
            for x in args:
                if isinstance(x, Tile) and x.source:
                    x.source.loaded_by.discard(running())
        return super().__torch_function__(function, types, args, kwargs)


class Int(int):
    value = property(int)


class Float(float):
    value = property(float)


@dataclass
class Pointer:
    elements: torch.Tensor
    offsets: object = 0

    def __add__(self, offsets):
        return Pointer(self.elements, self.offsets + offsets)


class Named:
    """Something in a kernel's shared memory that messages call as the kernel does, `k_smem[1]` for instance."""

    @property
    def name(self):
        return self.name_seen_from(sys._getframe(1))

    def name_seen_from(self, frame):
        while frame:
            for variable, value in frame.f_locals.items():
                parts = getattr(value, "parts", ())
                if len(parts) > 1 and self in parts:
                    return f"{variable}[{parts.index(self)}]"
            frame = frame.f_back
        return "shared memory"


class Buffer(Named, barriers.Buffer):
    """One of the parts of an allocation that `index` tells apart, and what is known of its contents."""

    def __init__(self):
        super().__init__()
        self.products = []  # unfinished ones that read it
        self.loaded_by = set()  # partitions that may not have received what they load from it
        self.stored_by = None  # the partition that has stored the contents; None if a copy has
        self.fenced, self.sender = True, None  # the partition whose copy to global memory may still read it

    def told(self):
        return super().told() | {self.stored_by} - {None}

    def check_free(self, doing):
        """Raise GluonError if somebody may still read the contents, over which `running` is doing something."""
        for product in self.products:
            raise GluonError(f"{running()} {doing} {self.name}, which a product of {product.partition} still reads")
        if self.sender:
            raise GluonError(f"{running()} {doing} {self.name}, which the copy engine may still read: no store_wait")


@dataclass
class Shared:
    """An allocation, whose parts are buffers, or a view of one of them."""

    data: torch.Tensor
    parts: list

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)

    @property
    def buffer(self):
        (buffer,) = self.parts
        return buffer

    def index(self, i):
        return Shared(self.data[i], [self.parts[i]])

    def reshape(self, shape):
        return Shared(self.data.reshape(shape), self.parts)

    def slice(self, start, length, dim):
        return Shared(self.data.narrow(dim, start, length), self.parts)

    def permute(self, order):
        return Shared(self.data.permute(order), self.parts)

    def load(self, layout):
        tile = self.read().clone().as_subclass(Tile)
        tile.source = self.buffer
        tile.source.loaded_by.add(running())
        return tile

    def store(self, tile):
        buffer = self.buffer
        buffer.check_free("stores to")
        for partition in buffer.loaded_by - {running()}:
            raise GluonError(f"{running()} stores to {buffer.name}, which {partition} is still loading from")
        buffer.stored_by, buffer.told_by, buffer.fenced = running(), {}, False
        self.data.copy_(tile)

    def read(self):
        if running() not in self.buffer.told():
            raise GluonError(f"{running()} reads {self.buffer.name} without having waited for the copy that fills it")
        return self.data


class Barrier(Named, barriers.Barrier):
    def expect(self, n_bytes):
        self.missing_bytes += n_bytes
        self.arrive()

    def arrive(self, times=1):
        if super().arrive(times):
            raise GluonError(
                f"{running()} arrives at {self.name} once more than the {self.count} times it was made for"
            )
        for buffer in Program.current.buffers:
            if buffer.stored_by == running():
                buffer.told_by.setdefault(self, self.phase)
        self.end_phase()
        Program.current.pause()

    def end_phase(self):
        if self.surplus_bytes:
            raise GluonError(f"copies brought {self.surplus_bytes:,} bytes more than {self.name} was told to expect")
        super().end_phase()


@dataclass(eq=False)
class Product:
    """A matrix product that has been started: what it will give, and what it reads until then."""

    partition: str
    result: torch.Tensor
    buffers: list
    is_under_way: bool = True

    def finish(self):
        self.is_under_way = False
        for buffer in self.buffers:
            buffer.products.remove(self)


class Program:
    """One program of the grid: its partitions take turns."""

    current = None

    def __init__(self, pid, grid):
        self.pid, self.grid, self.buffers = pid, grid, []
        self.random = random.Random(f"{SEED}, {pid}")
        self.running, self.error = "the kernel", None
        self.products = {self.running: []}

    def specialize(self, partitions):
        names = [f"{function.__name__} {number}" for number, (function, _) in enumerate(partitions)]
        self.turns = {name: threading.Semaphore(0) for name in names}
        self.back = threading.Semaphore(0)
        self.waits = dict.fromkeys(names)  # {partition that is not done: a wait, see `pause`, or None}
        self.products = {name: [] for name in names}
        threads = [
            threading.Thread(target=self.partition, args=work, daemon=True)
            for work in zip(names, partitions, strict=True)
        ]
        for thread in threads:
            thread.start()
        while self.waits:
            able = [name for name, wait in self.waits.items() if self.error or not wait or not wait[0].blocks(wait[1])]
            if not able:
                waits = (
                    f"{partition} for phase {phase} of {barrier.name_seen_from(frame)}, which lacks {barrier.lacks}"
                    for partition, (barrier, phase, frame) in self.waits.items()
                )
                self.error = GluonError(f"deadlock, everybody waits: {'; '.join(waits)}")
                continue
            self.running = self.random.choice(able)
            self.turns[self.running].release()
            self.back.acquire()
        if self.error:
            raise self.error

    def partition(self, name, work):
        function, arguments = work
        self.turns[name].acquire()
        try:
            if not self.error:
                function(*arguments)
                if self.products[name] or name in [buffer.sender for buffer in self.buffers]:
                    raise GluonError(f"{name} ends before a product or copy of its own has")
        except BaseException as error:
            self.error = self.error or error
        del self.waits[name]
        self.back.release()

    def pause(self, wait=None):
        """Let others have a turn; with a wait, (barrier, phase, frame that waits), until the phase is over.

        The frame is what the barrier's name is found in. Only a message needs that, so nobody searches before.
        """
        partition = self.running
        if partition == "the kernel":  # alone
            if wait and wait[0].blocks(wait[1]):
                raise GluonError(
                    f"deadlock: the kernel waits for phase {wait[1]} of {wait[0].name}, and nobody else is there"
                )
            return
        self.waits[partition] = wait
        self.back.release()
        self.turns[partition].acquire()
        if self.error:
            raise self.error
        self.waits[partition] = None


def running():
    """The name of the partition that runs."""
    return Program.current.running


class Kernel:
    """A function of a kernel; `kernel[grid](...)` launches it."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.fn = function

    def __call__(self, *args):
        return self.fn(*args)

    def __getitem__(self, grid):
        return functools.partial(self.launch, grid)

    def launch(self, grid, *args, num_warps=4, num_stages=1, **constants):
        args = [Pointer(x.view(-1)) if isinstance(x, torch.Tensor) else x for x in args]
        for pid in itertools.product(*map(range, grid)):
            Program.current = Program(pid, grid)
            self.fn(*args, **constants)


@dataclass
class TensorDescriptor:
    base: torch.Tensor
    shape: list
    strides: list
    block_shape: list
    layout: object

    def __post_init__(self):
        if self.base.numel() == 0:
            raise GluonError(f"the copy engine takes no tensor without elements: {tuple(self.shape)}")

    dtype = property(lambda self: self.base.dtype)

    @property
    def block_type(self):
        return SimpleNamespace(shape=self.block_shape, nbytes=math.prod(self.block_shape) * self.dtype.itemsize)

    def tiles(self, coordinates, data):
        """(The part of the tensor that a block at these coordinates has, the part of the block that this is)."""
        sizes = [
            max(min(n, full - at), 0) for n, full, at in zip(self.block_shape, self.shape, coordinates, strict=True)
        ]
        there = tuple(slice(at, at + size) for at, size in zip(coordinates, sizes, strict=True))
        return self.base[there], data[tuple(slice(size) for size in sizes)]


def _copy_to_shared(descriptor, coordinates, barrier, shared):
    buffer = shared.buffer
    buffer.check_free("starts a copy to")
    for partition in buffer.loaded_by:
        raise GluonError(
            f"{running()} starts a copy to {buffer.name}, which {partition} is still loading from: an arrival does not "
            "wait for a load, only the first use of what was loaded does"
        )
    if buffer.told_by and not buffer.told():
        raise GluonError(f"{running()} starts a copy to {buffer.name}, whose last tile nobody has waited for")
    there, here = descriptor.tiles(coordinates, shared.data)
    shared.data.zero_()
    here.copy_(there)
    buffer.stored_by, buffer.told_by = None, {barrier: barrier.phase}
    barrier.missing_bytes -= descriptor.block_type.nbytes
    barrier.end_phase()


def _copy_to_global(descriptor, coordinates, shared, adding=False):
    buffer = shared.buffer
    if not buffer.fenced:
        raise GluonError(f"the copy engine reads {buffer.name} that was stored without fence_async_shared after it")
    there, here = descriptor.tiles(coordinates, shared.read())
    there.copy_(there + here if adding else here)
    buffer.sender = running()


def async_add_shared_to_global(descriptor, coordinates, shared):
    _copy_to_global(descriptor, coordinates, shared, adding=True)


def _store_wait(pending):
    for buffer in Program.current.buffers:
        if buffer.sender == running():
            buffer.sender = None


def fence_async_shared():
    for buffer in Program.current.buffers:
        buffer.fenced = buffer.fenced or running() in buffer.told()
        buffer.loaded_by.discard(running())


def _wait(barrier, phase):
    Program.current.pause((barrier, phase, sys._getframe()))
    barrier.notice(running())


def warpgroup_mma(a, b, acc, *, use_acc=True, is_async=False):
    operands = [x for x in (a, b) if isinstance(x, Shared)]
    a, b = (x.read() if isinstance(x, Shared) else x for x in (a, b))
    if isinstance(acc, Product):  # under way, too: products of a group add to their sums in turn
        acc = acc.result
    result = (a.float() @ b.float()).as_subclass(Tile)
    product = Product(running(), result + acc if use_acc else result, [x.buffer for x in operands])
    for buffer in product.buffers:
        buffer.products.append(product)
    Program.current.products[running()].append(product)
    return product if is_async else warpgroup_mma_wait(0, deps=[product])


def warpgroup_mma_wait(pending=0, deps=()):
    products = Program.current.products[running()]
    while len(products) > pending:
        products.pop(0).finish()
    results = []
    for x in deps:
        if isinstance(x, Product):
            if x.is_under_way:
                raise GluonError(f"{running()} uses the result of a product that it has not waited for")
            x = x.result
        results.append(x)
    return results[0] if len(results) == 1 else tuple(results)


class Barriers:
    def __init__(self, number):
        self.shape, self.parts = [number, 1], [Barrier(count=0) for _ in range(number)]

    def index(self, i):
        return self.parts[i]


def _allocate(dtype, shape, layout):
    if layout is Barriers:
        return Barriers(shape[0])
    shared = Shared(torch.full(shape, torch.nan, dtype=dtype), [Buffer() for _ in range(shape[0])])
    Program.current.buffers += shared.parts
    return shared


def _larger(a, b):
    return torch.maximum(a, b) if isinstance(a, torch.Tensor) else max(a, b)


def _load(pointer, mask, other):
    return torch.where(mask, pointer.elements[torch.where(mask, pointer.offsets, 0)], other)


def _store(pointer, values, mask):
    pointer.elements[pointer.offsets[mask]] = values[mask]


def _no_layout(*_, **__):
    return None


_no_layout.get_default_for = _no_layout
PROPAGATE_NAN = None  # as `clamp` does
gluon = SimpleNamespace(jit=lambda function=None, **_: Kernel(function) if function else Kernel)
mbarrier = SimpleNamespace(
    MBarrierLayout=lambda: Barriers,
    init=lambda barrier, *, count: setattr(barrier, "count", count),
    expect=Barrier.expect,
    arrive=lambda barrier, *, count=1: barrier.arrive(count),
    wait=_wait,
)
tma = SimpleNamespace(
    async_copy_global_to_shared=_copy_to_shared, async_copy_shared_to_global=_copy_to_global, store_wait=_store_wait
)
gl = SimpleNamespace(
    allocate_shared_memory=_allocate,
    arange=lambda start, end, layout: torch.arange(start, end).as_subclass(Tile),
    constexpr=lambda value: Float(value) if isinstance(value, float) else Int(value),
    convert_layout=lambda x, layout: x,
    BlockedLayout=_no_layout,
    DotOperandLayout=_no_layout,
    NVMMADistributedLayout=_no_layout,
    NVMMASharedLayout=_no_layout,
    SliceLayout=_no_layout,
    SwizzledSharedLayout=_no_layout,
    exp2=torch.exp2,
    float16=torch.float16,
    bfloat16=torch.bfloat16,
    float32=torch.float32,
    int64=torch.int64,
    full=lambda shape, value, dtype, layout: torch.full(shape, value, dtype=dtype).as_subclass(Tile),
    load=_load,
    log2=torch.log2,
    max=lambda x, axis: x.amax(axis),
    maximum=_larger,
    minimum=lambda a, b, propagate_nan=None: a.clamp(max=b) if isinstance(a, torch.Tensor) else min(a, b),
    num_programs=lambda axis: Program.current.grid[axis],
    program_id=lambda axis: Program.current.pid[axis],
    static_range=range,
    store=_store,
    sum=lambda x, axis: x.sum(axis),
    to_tensor=torch.tensor,
    warp_specialize=lambda partitions, warps, registers: Program.current.specialize(partitions),
    where=torch.where,
    zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype).as_subclass(Tile),
)
