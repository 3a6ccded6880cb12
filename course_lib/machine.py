"""A memory of two levels: a large HBM, touched only through counted loads and stores, and a small SRAM.

    machine = Machine(sram_bytes=64 * 1024)
    Q = machine.hbm(q, "Q")            # a handle: shape, dtype and name, but no values
    q_tile = machine.load(Q, (0, 32))  # a tile: rows 0 to 31, now in SRAM; the bytes read are counted
    machine.store(O, (0, 32), o_tile)  # writes into the array O was made from; the bytes are counted
    print(machine.report())

A tile computes like a NumPy array: operators, ufuncs, slices, `.T`, `.max`, `.sum`, `np.where`. Results are
tiles too, and take SRAM until they are freed or no variable holds them any more. A view (`.T`, a slice) takes
none of its own. An ordinary array that meets a tile in an operation takes SRAM while that operation lasts.
Tiles and handles never turn into arrays, so that nothing is computed unseen; print a tile to look at its
values.

This is a model of one program on one streaming multiprocessor: registers and shared memory are one SRAM, and
there is no cache between it and HBM.
"""

import math
import operator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .traffic import TensorBytes

MOST_SHOWN = 6  # of the tiles that an SRAMOverflow lists


class SRAMOverflow(MemoryError):
    """A tile did not fit in what was left of the SRAM."""


class Access(NamedTuple):
    """One load or store: rows start to stop - 1 of a tensor, and the SRAM in use once it is done."""

    kind: str  # "load" or "store"
    tensor: str
    start: int
    stop: int
    n_bytes: int
    sram_bytes: int


@dataclass(frozen=True)
class Report:
    """What has happened on a machine so far.

    by_tensor: name -> TensorBytes. matmul_flops: 2 m n k for every product of [m, k] and [k, n].
    peak_holders: (name, bytes) of what lay in SRAM when it was fullest. events: every load and store in
    order.
    """

    read_bytes: int
    write_bytes: int
    by_tensor: dict[str, TensorBytes]
    matmul_flops: int
    sram_bytes: float
    peak_sram_bytes: int
    peak_holders: tuple[tuple[str, int], ...]
    events: tuple[Access, ...]

    def __str__(self):
        names = list(self.by_tensor) + ["total"]
        rows = [*self.by_tensor.values(), TensorBytes(self.read_bytes, self.write_bytes)]
        width = max(len(name) for name in names)
        lines = [f"{'':{width}}  {'read_bytes':>14}  {'write_bytes':>14}"]
        lines += [f"{name:{width}}  {r:>14,}  {w:>14,}" for name, (r, w) in zip(names, rows, strict=True)]
        budget = "unlimited" if self.sram_bytes == math.inf else f"{self.sram_bytes:,} bytes"
        lines.append(f"peak SRAM {self.peak_sram_bytes:,} bytes of {budget}; {len(self.events):,} loads and stores")
        return "\n".join(lines)


class HBMArray:
    """A tensor in HBM as a program sees it: `shape`, `dtype`, `name`. `Machine.load` reaches its values."""

    def __init__(self, machine, array, name):
        self._machine = machine
        self._array = array
        self.name = name

    shape = property(lambda self: self._array.shape)
    dtype = property(lambda self: self._array.dtype)
    nbytes = property(lambda self: self._array.nbytes)

    def __len__(self):
        return len(self._array)

    def __repr__(self):
        return f"<{self.name} in HBM: {list(self.shape)} {self.dtype}>"

    def __array__(self, *_, **__):
        raise TypeError(f"{self.name} is in HBM: read it with machine.load({self.name}, (start, stop))")

    __getitem__ = __array__


class Machine:
    """An HBM and an SRAM of `sram_bytes` bytes (math.inf: no limit). See the module's docstring."""

    def __init__(self, sram_bytes=math.inf):
        if not isinstance(sram_bytes, int | float | np.integer) or not sram_bytes > 0:
            raise ValueError(f"sram_bytes is {sram_bytes!r}; accepted: a positive number of bytes, or math.inf")
        self.sram_bytes = sram_bytes
        self._tensors = {}  # name -> [read_bytes, write_bytes]
        self._held = {}  # id of a storage -> (name, bytes); no reference to it, so that it can be collected
        self._used_bytes = 0
        self._peak_sram_bytes = 0
        self._peak_holders = ()
        self._matmul_flops = 0
        self._events = []

    def hbm(self, array, name=None):
        """Place a NumPy array in HBM and return its handle. Stores write into the array itself.

        array: one or more dimensions, rows first, a dtype of numbers or bool. name: appears in reports and
        must be new to this machine; None numbers the tensors. Costs nothing. Raises TypeError or ValueError.
        """
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise TypeError(f"array is {_describe(array)}; accepted: a NumPy array of numbers or bool")
        if array.ndim == 0:
            raise ValueError("array has no dimensions; accepted: an array with rows, [rows, ...]")
        if name is None:
            name = f"tensor{len(self._tensors)}"
        if name in self._tensors:
            raise ValueError(f"name is {name!r}, which is already in this HBM; accepted: a new name")
        self._tensors[name] = [0, 0]
        return HBMArray(self, array, name)

    def load(self, handle, rows):
        """Copy rows of a tensor from HBM into a new tile: [stop - start, ...], of the tensor's dtype.

        rows: (start, stop) or a slice without a step; within bounds, at least one row.
        Raises IndexError for rows out of bounds, SRAMOverflow if the tile does not fit.
        """
        start, stop = self._rows(handle, rows)
        tile = self._tile(handle._array[start:stop].copy(), f"{handle.name}[{start}:{stop}]")
        self._tensors[handle.name][0] += tile.nbytes
        self._events.append(Access("load", handle.name, start, stop, tile.nbytes, self._used_bytes))
        return tile

    def store(self, handle, rows, tile):
        """Copy a tile from SRAM to rows of a tensor in HBM. The tile stays in SRAM.

        The tile's shape and dtype must be those of the rows (convert with `tile.astype`); nothing is
        broadcast. Raises IndexError for rows out of bounds, ValueError or TypeError for another shape or
        dtype.
        """
        start, stop = self._rows(handle, rows)
        if not isinstance(tile, Tile):
            raise TypeError(f"tile is {_describe(tile)}; accepted: a tile (machine.full makes one from a number)")
        array = tile._values_on(self)
        expected = (stop - start, *handle.shape[1:])
        if array.shape != expected:
            raise ValueError(f"tile has shape {array.shape}; {handle.name}[{start}:{stop}] takes {expected}")
        if array.dtype != handle.dtype:
            raise TypeError(f"tile is {array.dtype}, {handle.name} {handle.dtype}; convert it with tile.astype")
        if not handle._array.flags.writeable:
            raise ValueError(f"{handle.name} was made from a read-only array; accepted: a writeable one")
        handle._array[start:stop] = array
        self._tensors[handle.name][1] += array.nbytes
        self._events.append(Access("store", handle.name, start, stop, array.nbytes, self._used_bytes))

    def full(self, shape, value, dtype=np.float32):
        """A new tile in SRAM filled with one number: costs SRAM, but no traffic."""
        return self._tile(np.full(shape, value, dtype), f"full {value}")

    def free(self, tile):
        """Give back a tile's SRAM at once. Neither it nor any view of the same storage can be used again."""
        if not isinstance(tile, Tile):
            raise TypeError(f"tile is {_describe(tile)}; accepted: a tile")
        tile._values_on(self)
        tile._storage.release()

    def report(self):
        """The Report of everything so far."""
        by_tensor = {name: TensorBytes(*counts) for name, counts in self._tensors.items()}
        return Report(
            read_bytes=sum(tensor.read_bytes for tensor in by_tensor.values()),
            write_bytes=sum(tensor.write_bytes for tensor in by_tensor.values()),
            by_tensor=by_tensor,
            matmul_flops=self._matmul_flops,
            sram_bytes=self.sram_bytes,
            peak_sram_bytes=self._peak_sram_bytes,
            peak_holders=self._peak_holders,
            events=tuple(self._events),
        )

    def _rows(self, handle, rows):
        if not isinstance(handle, HBMArray):
            raise TypeError(f"handle is {_describe(handle)}; accepted: what machine.hbm(array) returned")
        if handle._machine is not self:
            raise ValueError(f"{handle.name} is in the HBM of another machine")
        if isinstance(rows, slice) and rows.step in (None, 1):
            start = 0 if rows.start is None else rows.start
            stop = len(handle) if rows.stop is None else rows.stop
        elif isinstance(rows, tuple) and len(rows) == 2:
            start, stop = rows
        else:
            raise TypeError(f"rows is {rows!r}; accepted: (start, stop), or a slice without a step")
        if not isinstance(start, int | np.integer) or not isinstance(stop, int | np.integer):
            raise TypeError(f"rows is {rows!r}; accepted: whole numbers")
        if not 0 <= start < stop <= len(handle):
            raise IndexError(
                f"rows {start}:{stop} of {handle.name}, which has rows 0:{len(handle)}; "
                "accepted: at least one row, all within bounds"
            )
        return int(start), int(stop)

    def _tile(self, array, name):
        return Tile(_Storage(self, array.nbytes, name), array)

    def _take(self, storage_id, n_bytes, name):
        used_bytes = self._used_bytes + n_bytes
        if used_bytes > self.sram_bytes:
            lines = [f"\n  {held_bytes:>10,}  {holder}" for holder, held_bytes in self._held.values()]
            more = f"\n  and {len(lines) - MOST_SHOWN} more" if len(lines) > MOST_SHOWN else ""
            held = "".join(lines[:MOST_SHOWN]) + more
            raise SRAMOverflow(
                f"{name} needs {n_bytes:,} bytes; of the SRAM's {self.sram_bytes:,} bytes "
                f"{self._used_bytes:,} are in use{':' if held else ''}{held}"
            )
        self._held[storage_id] = (name, n_bytes)
        self._used_bytes = used_bytes
        if used_bytes > self._peak_sram_bytes:
            self._peak_sram_bytes = used_bytes
            self._peak_holders = tuple(self._held.values())

    def _give_back(self, storage_id):
        _, n_bytes = self._held.pop(storage_id)
        self._used_bytes -= n_bytes


class _Storage:
    """A piece of SRAM, shared by a tile and its views; given back when freed or when the last is gone."""

    def __init__(self, machine, n_bytes, name):
        self.live = False
        self.machine = machine
        self.name = name
        machine._take(id(self), n_bytes, name)
        self.live = True

    def release(self):
        if self.live:
            self.live = False
            self.machine._give_back(id(self))

    __del__ = release


# NumPy functions that work on tiles beside the ufuncs. None of them hands values out of the machine.
_FUNCTIONS = {
    np.all, np.any, np.clip, np.concatenate, np.copy, np.empty_like, np.expand_dims, np.full_like, np.isneginf,
    np.isposinf, np.max, np.mean, np.min, np.ones_like, np.reshape, np.squeeze, np.stack, np.sum, np.transpose,
    np.where, np.zeros_like,
}  # fmt: skip


def functions_on_tiles():
    """{name: function of NumPy} of those that work on tiles beside the ufuncs."""
    return {function.__name__: function for function in _FUNCTIONS}


def _reduction(function):
    return lambda self, axis=None, **kwargs: function(self, axis, **kwargs)


class Tile(np.lib.mixins.NDArrayOperatorsMixin):
    """Values in SRAM, made by `Machine.load`, by `Machine.full`, or by computing with tiles.

    A tile of one bool can decide an `if`. Using a freed tile raises ValueError.
    """

    def __init__(self, storage, array):
        self._storage = storage
        self._array = array

    shape = property(lambda self: self._array.shape)
    dtype = property(lambda self: self._array.dtype)
    ndim = property(lambda self: self._array.ndim)
    size = property(lambda self: self._array.size)
    nbytes = property(lambda self: self._array.nbytes)
    name = property(lambda self: self._storage.name)
    T = property(lambda self: np.transpose(self))
    max, min, sum, mean, all, any = map(_reduction, (np.max, np.min, np.sum, np.mean, np.all, np.any))

    def __len__(self):
        return len(self._array)

    def __repr__(self):
        described = f"Tile {self.name} {list(self.shape)} {self.dtype}"
        return f"{described}\n{self._array}" if self._storage.live else f"{described}, freed"

    def __bool__(self):
        if self.size != 1 or self.dtype != bool:
            raise TypeError(f"a {self.dtype} tile of shape {self.shape} decides no if; accepted: a tile of one bool")
        return bool(self._values_on(self._storage.machine))

    def __getitem__(self, index):
        return self._compute("indexing", operator.getitem, (self, index), {})

    def __setitem__(self, index, value):
        self._compute("assignment", operator.setitem, (self, index, value), {})

    def astype(self, dtype, copy=True):
        """A new tile of another dtype; with copy=False the tile itself if it has that dtype already."""
        if self.dtype == dtype and not copy:
            return self
        return self._compute(f"astype {np.dtype(dtype)}", lambda array: array.astype(dtype), (self,), {})

    def reshape(self, *shape):
        return np.reshape(self, shape[0] if len(shape) == 1 else shape)

    def copy(self):
        return np.copy(self)

    def __array__(self, dtype=None, copy=None):
        raise TypeError(f"tile {self.name} is in SRAM: compute with it there, store it with machine.store, or print it")

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **kwargs):
        if method not in ("__call__", "reduce") or ufunc.nout != 1:
            raise TypeError(f"np.{ufunc.__name__}.{method} does not work on tiles; accepted: calls and .reduce")
        result = self._compute(ufunc.__name__, getattr(ufunc, method), inputs, kwargs, *out)
        if ufunc is np.matmul:
            self._storage.machine._matmul_flops += 2 * result.size * inputs[0].shape[-1]
        return result

    def __array_function__(self, func, types, args, kwargs):
        if func not in _FUNCTIONS:
            available = ", ".join(sorted(function.__name__ for function in _FUNCTIONS))
            raise TypeError(f"np.{func.__name__} does not work on tiles; accepted: operators, ufuncs, {available}")
        out = kwargs.pop("out", None)
        return self._compute(func.__name__, func, args, kwargs, out)

    def _compute(self, name, func, args, kwargs, out=None):
        """func(*args, **kwargs) on the machine: tiles in, a tile out, ordinary arrays in SRAM meanwhile."""
        machine = self._storage.machine
        entered = []
        args = [_enter(value, machine, name, entered) for value in args]
        kwargs = {key: _enter(value, machine, name, entered) for key, value in kwargs.items()}
        if out is not None:
            if not isinstance(out, Tile):
                raise TypeError(f"the result of {name} would leave the SRAM; accepted: out= a tile")
            kwargs["out"] = _enter(out, machine, name, entered)
        result = func(*args, **kwargs)
        if result is None:
            return None
        result = np.asarray(result)
        for tile in entered:
            if isinstance(tile, Tile) and np.may_share_memory(result, tile._array):
                return Tile(tile._storage, result)
        return machine._tile(result, f"result of {name}")

    def _values_on(self, machine):
        """The values, for the machine alone."""
        if self._storage.machine is not machine:
            raise ValueError(f"tile {self.name} is in the SRAM of another machine")
        if not self._storage.live:
            raise ValueError(f"tile {self.name} was freed; load or compute it again")
        return self._array


def _enter(value, machine, name, entered):
    """What NumPy computes with in place of `value`; what holds SRAM for it is appended to `entered`."""
    if isinstance(value, Tile):
        entered.append(value)
        return value._values_on(machine)
    if isinstance(value, np.ndarray):
        entered.append(_Storage(machine, value.nbytes, f"an array in {name}"))
    if isinstance(value, tuple | list):
        items = [_enter(item, machine, name, entered) for item in value]
        return tuple(items) if isinstance(value, tuple) else items  # a namedtuple takes its items one by one
    return value


def _describe(value):
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype}"
    return f"a {type(value).__name__}"
