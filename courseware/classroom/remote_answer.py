"""An answer in the worker's process, called like any function; what it asks of the grader's objects is answered here.

The worker is not trusted: whatever it sends is a value, or an operation by name on an object that it was given, and
only on what OFFERED lists. Streams, rows, machines, tiles, and all that they count stay in this process.
"""

import contextlib
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from course_lib.machine import HBMArray, Machine, Report, Tile, functions_on_tiles
from courseware.checks import Rows, read_counting
from courseware.simulators.one_sequence import Kernel
from courseware.simulators.ring import Link
from courseware.worker import sandbox
from courseware.worker.ipc import BrokenChannel, Channel
from courseware.worker.running import CALL_LIMIT_S, TEXT_LIMIT_CHARS, MachineBusy, Told, cut

from . import remote_kernels

STREAM_ITEMS = 64  # at a time
OFFERED = {
    "Stream": (Iterator, "__next__"),
    "Rows": (Rows, "facts __getitem__"),
    "Machine": (Machine, "sram_bytes hbm load store full free report"),
    "Handle": (HBMArray, "facts nbytes name __repr__ __array__ __getitem__"),
    "Tile": (
        Tile,
        "facts size nbytes name T max min sum mean all any astype reshape copy __repr__ __bool__ "
        "__getitem__ __setitem__ __array__ ufunc function",
    ),
    "Link": (Link, "send sent_bytes"),
    "Kernel": (Kernel, "attention"),
    "Proxy": (Report, "__repr__"),
}


class CellFails(Exception):
    """The cell of an answer does not run, or does not define it. The message says why."""


class RemoteAnswer:
    """A callable. after: the arguments of the last call, as the answer left them. untouched: it is still the stub.

    cells: (id, source) of the answer's cell, the last, and of those before it. sources: of these cells.
    """

    is_remote = True  # for `is_remote` of checks

    def __init__(self, cells, name, is_kernel, sandboxed, has_torch=False):
        self._start = list(map(list, cells)), name, is_kernel, has_torch
        self.sources = [source for _, source in cells]
        self.sandboxed = sandboxed
        self._process = None
        self.__name__, self.after = name, ()
        self._open()

    def _open(self):
        told, tell = os.pipe()
        command, environment = sandbox.worker(
            self.sandboxed, tell, sandbox.WITH_TORCH if self._start[-1] else sandbox.PACKAGES
        )
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self._process = subprocess.Popen(command, env=environment, pass_fds=[tell], **pipes)
        os.close(tell)
        with open(told) as info:
            # The process that bubblewrap started is a child of its own.
            self.process_id = json.load(info)["child-pid"] if self.sandboxed else self._process.pid
        self._objects, self._number = {}, itertools.count()
        ends = self._process.stdout.fileno(), self._process.stdin.fileno()
        self._channel = Channel(*ends, self._of, _Object)
        try:
            self._channel.send("start", *self._start)
            self._channel.receive()
        except BrokenChannel:
            raise RuntimeError(f"the worker does not start: {self._process.stderr.read().decode()[-2000:]}") from None
        try:
            kind, said = self._channel.receive()
        except (BrokenChannel, ValueError):
            raise CellFails(f"its cell {self._end()}") from None
        if kind != "ready":
            self.close()
            raise MachineBusy if kind == "busy" else CellFails(cut(str(said), TEXT_LIMIT_CHARS))
        self.untouched = said is True

    def processor_s(self):
        """Seconds of processor time, the worker's and this process's. Half of it: the worker keeps its limit first."""
        try:
            with open(f"/proc/{self.process_id}/stat") as file:
                ticks = sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
        except OSError:  # it is gone, or this is not Linux
            return time.thread_time()
        return (time.thread_time() + ticks / os.sysconf("SC_CLK_TCK")) / 2

    def _end(self):
        """What is to be said of a worker that has ended. Raises MachineBusy if it was killed from outside."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        killed = self._process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)  # the second is bubblewrap's
        self.close()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        if killed and used.ru_utime + used.ru_stime < 0.9 * resource.getrlimit(resource.RLIMIT_CPU)[0]:
            raise MachineBusy
        return "did not return in time" if killed else "ended the process"

    def close(self):
        """End the worker. The next call starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None

    def __call__(self, *arguments):
        if hasattr(next(iter(arguments), None), "launch"):  # a kernel, which the answer is to launch
            return remote_kernels.call_host(self, *arguments)
        return self.play("call", arguments, CALL_LIMIT_S)

    def launch(self, grid, call):
        """Run a launch of the kernel that it is, and return its Trace."""
        return remote_kernels.launch(self, grid, call)

    def differentiate(self, launches, *given):
        """What the worker's `gradients.differentiated` makes of it. launches: does what a launch is asked for."""
        return self.play("differentiate", *given, CALL_LIMIT_S, serve=launches)

    def play(self, *message, serve=None):
        """Send a message, answer what the worker asks, and return what comes of it. Raises Told.

        serve(operation, *arguments): answers what is asked of no object.
        """
        try:
            if self._process is None:
                self._open()
            self._asked = itertools.count()
            self._channel.send(*message)
            while True:
                kind, *rest = self._channel.receive()
                if kind != "ask":
                    break
                self._channel.send(*self._reply(serve, *rest))
            returned, after, raised, printed = map(self._resolved, rest)
            self.after = (*after, *message[1])[: len(after)] if message[0] == "call" else ()
            print(str(printed), end="")
            if raised is not None:
                name, text = raised
                if name == "MachineBusy":
                    raise MachineBusy
                raise Told(str(name)[:60], cut(str(text), 2 * TEXT_LIMIT_CHARS))
            return returned
        except Told:
            raise
        except BrokenChannel:
            end = self._end()
            raise Told("BrokenChannel" if end.startswith("ended") else "TimeUp", f"the answer {end}") from None
        except CellFails as error:
            self.close()
            raise Told("BrokenChannel", str(error)) from None
        except (TypeError, ValueError):
            self.close()
            raise Told("BrokenChannel", "the answer's process sent what is no result") from None
        except BaseException as error:  # a time limit: the next call would read this call's result
            self.close()
            raise MachineBusy if getattr(error, "by_clock", False) else error from None
        finally:
            self._objects.clear()

    def _reply(self, serve, operations):
        value = None
        for place, (number, operation, arguments, named, result) in enumerate(operations):
            try:
                if operation == "release":
                    self._objects.pop(number, None)
                elif number is None and serve is not None:
                    value = serve(operation, *arguments)
                else:
                    given = self._resolved(arguments), self._resolved(named)
                    value = self._operate(self._objects[number], operation, *given)
                    if result is not None:
                        if not isinstance(value, Tile):  # whose memory the machine counts
                            raise TypeError("nothing but a tile is kept here")
                        # No other name may hold a tile: it takes SRAM as long as one does.
                        self._objects[int(result)], value = value, None
                given = None  # as it may hold tiles
            except Exception as error:
                return "raised", place, type(error).__name__, cut(str(error), TEXT_LIMIT_CHARS)
        return "value", value

    def _operate(self, value, operation, arguments, named):
        kind = _kind(value)
        if operation not in OFFERED[kind][1].split():
            raise AttributeError(f"there is no {operation!r}")
        if kind in ("Stream", "Rows") and next(self._asked) % 8 == 0 and sys.platform == "linux":
            read_counting.sample(self)
        if kind == "Stream":
            return list(itertools.islice(value, STREAM_ITEMS))
        if operation == "facts":
            return value.shape, value.dtype
        if operation == "ufunc":
            name, method, *inputs = arguments
            function = getattr(np, name, None)
            if not isinstance(function, np.ufunc) or method not in ("__call__", "reduce"):
                raise TypeError(f"np.{name} does not work on tiles")
            return getattr(function, method)(*inputs, **named)
        if operation == "function":
            name, *inputs = arguments
            if name not in functions_on_tiles():
                raise TypeError(f"np.{name} does not work on tiles")
            return functions_on_tiles()[name](*inputs, **named)
        found = getattr(value, operation)
        return found(*arguments, **named) if callable(found) else found

    def _of(self, value):
        kind = _kind(value)
        if kind is None:
            return None
        number = next(self._number)
        self._objects[number] = value
        return number, kind

    def _resolved(self, value):
        """The value with the objects in it. One operation of a message may use what the one before it made."""
        if isinstance(value, _Object):
            return self._objects[value.number]
        if isinstance(value, list | tuple):
            return type(value)(map(self._resolved, value))
        if isinstance(value, dict):
            return {name: self._resolved(part) for name, part in value.items()}
        return value


@dataclass(frozen=True)
class _Object:
    number: int


def _kind(value):
    return next((kind for kind, (types, _) in OFFERED.items() if isinstance(value, types)), None)
