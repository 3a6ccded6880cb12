"""Messages between the grader and the worker: JSON that says what the values are, and the bytes of arrays behind it.

Nothing is pickled and nothing evaluated. What arrives is a number, a text, an array of a known dtype, a container of
these, or the number of an object that stays with the grader. Whatever else there is arrives as its type's name alone.
"""

import json
import math
import os
import struct

import numpy as np

# dtypes by name: the only ones that travel.
DTYPES = {
    name: np.dtype(name)
    for name in "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex128".split()
}
MAX_HEADER_BYTES, MAX_BODY_BYTES = 4 << 20, 64 << 20
_LENGTHS = struct.Struct("<II")


class BrokenChannel(Exception):
    """The other side is gone, or sent what is no message."""


class Channel:
    """A connection over two pipes.

    of(value): the description of an object that does not travel, or None. found(description): what it stands for.
    """

    def __init__(self, reading, writing, of, found):
        self.reading, self.writing, self.of, self.found = reading, writing, of, found
        self._arrived = b""

    def send(self, *message):
        parts = []
        header = json.dumps(self._encoded(list(message), parts)).encode()
        body = b"".join(parts)
        if len(header) > MAX_HEADER_BYTES or len(body) > MAX_BODY_BYTES:
            raise ValueError(f"{len(header) + len(body):,} bytes are too many to return")
        left = memoryview(_LENGTHS.pack(len(header), len(body)) + header + body)
        try:
            while left:
                left = left[os.write(self.writing, left) :]
        except OSError:
            raise BrokenChannel from None

    def receive(self):
        header_bytes, body_bytes = _LENGTHS.unpack(self._read(_LENGTHS.size))
        if header_bytes > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
            raise BrokenChannel
        header, body = self._read(header_bytes), memoryview(self._read(body_bytes))
        try:
            message, left = self._decoded(json.loads(header), body)
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
            raise BrokenChannel from None
        if left or not isinstance(message, list) or not message:
            raise BrokenChannel
        return message

    def _read(self, count):
        while len(self._arrived) < count:
            part = os.read(self.reading, 1 << 20)
            if not part:
                raise BrokenChannel
            self._arrived += part
        read, self._arrived = self._arrived[:count], self._arrived[count:]
        return read

    def _encoded(self, value, parts):
        if value is None or type(value) in (bool, int, float, str):
            return value
        if (description := self.of(value)) is not None:
            return ["object", *(self._encoded(part, parts) for part in description)]
        if isinstance(value, np.ndarray | np.generic) and value.dtype.name in DTYPES:
            parts.append(np.asarray(value).tobytes())
            return ["array" if isinstance(value, np.ndarray) else "number", value.dtype.name, list(np.shape(value))]
        for kind in (list, tuple, set, frozenset):
            if isinstance(value, kind):
                return [kind.__name__, [self._encoded(item, parts) for item in value]]
        if isinstance(value, dict):
            return ["dict", [[self._encoded(item, parts) for item in pair] for pair in value.items()]]
        if isinstance(value, slice):
            return ["slice", [self._encoded(end, parts) for end in (value.start, value.stop, value.step)]]
        if value is Ellipsis:
            return ["ellipsis"]
        if isinstance(value, int | float | str):  # of a class of its own
            return next(kind(value) for kind in (int, float, str) if isinstance(value, kind))
        if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic | int | float)):
            if np.dtype(value).name in DTYPES:
                return ["dtype", np.dtype(value).name]
        return ["other", type(value).__name__, isinstance(value, BaseException)]

    def _decoded(self, value, body):
        """(the value, the bytes that are left for the values behind it)."""
        if not isinstance(value, list):
            if isinstance(value, dict):
                raise ValueError
            # JSON can hold halves of a character, which no file can.
            return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value, body
        kind, *rest = value
        if kind in ("array", "number"):
            dtype, shape = DTYPES[rest[0]], rest[1]
            if not all(type(size) is int and size >= 0 for size in shape):
                raise ValueError
            size_bytes = math.prod(shape) * dtype.itemsize
            array = np.frombuffer(body[:size_bytes], dtype).reshape(shape).copy()
            return array if kind == "array" else array[()], body[size_bytes:]
        if kind in ("list", "tuple", "set", "frozenset", "dict", "slice"):
            items = []
            for part in rest[0]:
                if kind == "dict":
                    key, body = self._decoded(part[0], body)
                    item, body = self._decoded(part[1], body)
                    items.append((key, item))
                else:
                    item, body = self._decoded(part, body)
                    items.append(item)
            made = slice(*items) if kind == "slice" else _CONTAINERS[kind](items)
            return made, body
        if kind == "ellipsis":
            return ..., body
        if kind == "dtype":
            return DTYPES[rest[0]], body
        if kind == "other":
            return _Unknown.of(*rest), body
        if kind == "object":
            found = []
            for part in rest:
                item, body = self._decoded(part, body)
                found.append(item)
            return self.found(*found), body
        raise ValueError


_CONTAINERS = {kind.__name__: kind for kind in (list, tuple, set, frozenset, dict)}


class _Unknown:
    """What arrives of a value of any other type: the type's name."""

    @staticmethod
    def of(name, is_exception):
        if not isinstance(name, str) or not name.isidentifier() or len(name) > 60:
            raise ValueError
        return type(name, (Exception if is_exception is True else _Unknown,), {"__module__": "the answer"})()

    def __repr__(self):
        return f"<{type(self).__name__}>"
