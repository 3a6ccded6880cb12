"""What an answer gets in place of the grader's streams, rows, machine and tiles: each of them asks the grader."""

import builtins
import dataclasses
import functools
import itertools
import sys

import numpy as np

from .running import places

MAX_PENDING = 64


class Grader:
    """The worker's end of the channel. What need not be answered at once goes in batches: each message costs time."""

    def __init__(self, channel):
        self.channel, self.pending, self.places, self.numbers = channel, [], [], itertools.count(1)
        channel.of = lambda value: [value._number] if isinstance(value, Proxy | Argument) else None
        channel.found = lambda number, kind: KINDS[kind](self, number)

    def ask(self, number, operation, *arguments, **named):
        """The answer of an object of the grader, or of the grader itself where number is None."""
        return self._send([number, operation, arguments, named, None])

    def later(self, kind, number, operation, *arguments, **named):
        """A proxy of the object that the operation will give; kind None: it gives none."""
        result = None if kind is None else -next(self.numbers)
        self.pending.append([number, operation, *map(self._packed, (arguments, named)), result])
        self.places.append(places(sys._getframe(1)))
        if len(self.pending) >= MAX_PENDING:
            self._send()
        return None if kind is None else kind(self, result)

    def release(self, number):
        self.pending.append([number, "release", [], {}, None])
        self.places.append(None)

    def done(self, returned):
        """What the answer returned, once everything that it asked for has happened."""
        self._send()
        return returned

    def forget(self):
        self.pending, self.places = [], []

    def _packed(self, value):
        # As it is now: an array may change before the message is sent, and a tile that waited here would take SRAM.
        if isinstance(value, tuple | list):
            return [*map(self._packed, value)] if isinstance(value, list) else tuple(map(self._packed, value))
        if isinstance(value, dict):
            return {name: self._packed(part) for name, part in value.items()}
        return value.copy() if isinstance(value, np.ndarray) else getattr(value, "_as_argument", value)

    def _send(self, *last):
        pending, seen = [*self.pending, *last], self.places
        self.forget()
        self.channel.send("ask", pending)
        kind, *rest = self.channel.receive()
        if kind == "raised":
            place, name, text = rest
            error = _exception(name, text)
            if place < len(seen):
                error.places = seen[place]
            raise error
        return rest[0]


def _exception(name, text):
    known = getattr(builtins, name, None)
    is_known = isinstance(known, type) and issubclass(known, Exception)
    return (known if is_known else type(name, (MemoryError,), {}))(text)


def _asking(operation):
    return lambda self, *arguments, **named: self._grader.ask(self._number, operation, *arguments, **named)


def _making(operation, kind="Tile"):
    return lambda self, *arguments, **named: self._grader.later(
        kind and KINDS[kind], self._number, operation, *arguments, **named
    )


@dataclasses.dataclass(frozen=True)
class Argument:
    """A proxy in a message that waits, where it keeps nothing alive."""

    _number: int


class Proxy:
    """An object of the grader. What it offers is the grader's to decide."""

    def __init__(self, grader, number):
        self._grader, self._number, self._as_argument = grader, number, Argument(number)

    def __del__(self):
        self._grader.release(self._number)

    __repr__ = _asking("__repr__")


class Array(Proxy):
    """One that has a shape and a dtype."""

    @functools.cached_property
    def _facts(self):
        return self._grader.ask(self._number, "facts")

    shape, dtype = property(lambda self: self._facts[0]), property(lambda self: self._facts[1])
    ndim = property(lambda self: len(self.shape))
    __array__ = _asking("__array__")

    def __len__(self):
        return self.shape[0]


class Handle(Array):
    """A tensor in the HBM of a machine."""

    nbytes, name = property(_asking("nbytes")), property(_asking("name"))
    __getitem__ = _asking("__getitem__")


class Machine(Proxy):
    """A memory machine."""

    sram_bytes = property(_asking("sram_bytes"))
    hbm, report = map(_asking, ("hbm", "report"))
    load, full, store, free = _making("load"), _making("full"), _making("store", None), _making("free", None)


class Tile(Array, np.lib.mixins.NDArrayOperatorsMixin):
    """Values in the SRAM of a machine: they are computed with there."""

    size, nbytes, name = (property(_asking(name)) for name in ("size", "nbytes", "name"))
    T = property(_making("T"))
    max, min, sum, mean, all, any = map(_making, ("max", "min", "sum", "mean", "all", "any"))
    astype, reshape, copy, __getitem__ = map(_making, ("astype", "reshape", "copy", "__getitem__"))
    __bool__, __setitem__ = _asking("__bool__"), _making("__setitem__", None)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **named):
        named |= {"out": out} if out else {}
        return self._grader.later(Tile, self._number, "ufunc", ufunc.__name__, method, *inputs, **named)

    def __array_function__(self, function, types, arguments, named):
        return self._grader.later(Tile, self._number, "function", function.__name__, *arguments, **named)


class Link(Proxy):
    """What joins the simulated ranks of a ring."""

    send, sent_bytes = _asking("send"), property(_asking("sent_bytes"))


class Kernel(Proxy):
    """Attention of one sequence."""

    attention = _asking("attention")


class Rows(Array):
    """Rows that the grader hands out and counts; anything else that an array can do reads all of them."""

    __getitem__ = _asking("__getitem__")

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype=None, copy=None):
        return np.array(self[:], dtype=dtype)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self[:], name)

    def __matmul__(self, other):
        return self[:] @ other


class Stream(Proxy):
    """An iterator. The grader sends some items at a time."""

    _items = ()

    def __iter__(self):
        return self

    def __next__(self):
        if not self._items:
            self._items = self._grader.ask(self._number, "__next__")[::-1]
        if not self._items:
            raise StopIteration
        return self._items.pop()


KINDS = {kind.__name__: kind for kind in (Proxy, Handle, Machine, Tile, Link, Kernel, Rows, Stream)}
