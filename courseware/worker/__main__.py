"""The player: defines a student's answer, and calls it whenever the judge says so, until the judge is gone."""

import functools
import os
import signal

import numpy as np

from courseware.editing import run_source

from . import limits
from .ipc import BrokenWire, Wire
from .proxies import Judge
from .running import CALL_LIMIT_S, TEXT_LIMIT_CHARS, cut, is_untouched, run

MEMORY_BYTES = {False: 1 << 30, True: 4 << 30}  # of addresses; Triton's libraries alone take a part of them


class QuietWire(Wire):
    """A Wire whose messages the alarm of a time limit does not cut in two."""

    def send(self, *message):
        self._undisturbed(super().send, *message)

    def receive(self):
        return self._undisturbed(super().receive)

    def _undisturbed(self, act, *arguments):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        try:
            return act(*arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main():
    # What answers write, at whatever level, must not mix with the messages.
    wire = QuietWire(os.dup(0), os.dup(1), None, None)
    judge, nothing = Judge(wire), os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    _, cells, name, is_kernel = wire.receive()
    namespace = {"__name__": "__main__", "np": np}
    if is_kernel:
        from . import kernels

        namespace |= {"triton": kernels.triton, "tl": kernels.tl}
    limits.limit(MEMORY_BYTES[is_kernel])
    os.dup2(nothing, 2)
    wire.send("limited")
    for place, (cell, source) in enumerate(cells):
        raised = run(functools.partial(run_source, source, f"<cell {cell}>", namespace), CALL_LIMIT_S).raised
        # An earlier answer's cell that fails is that answer's loss alone.
        if raised and place == len(cells) - 1:
            wire.send("failed", f"its cell does not run: {raised[1].removeprefix('the answer raised ')}")
            return
    if name not in namespace:
        wire.send("failed", f"its cell defines no {name}")
        return
    answer = namespace[name]
    if not callable(answer):
        wire.send("failed", f"{name} is no function")
        return
    wire.send("ready", is_untouched(getattr(answer, "fn", answer) if is_kernel else answer))
    while True:
        kind, *rest = wire.receive()
        judge.forget()
        if kind == "call":
            _call(judge, answer, *rest)
        elif kind == "launch":
            _tell(wire, kernels.launched(judge, answer, *rest), [])


def _call(judge, answer, arguments, limit_s):
    outcome = run(lambda: judge.done(answer(*arguments)), limit_s)
    _tell(judge.wire, outcome, arguments)


def _tell(wire, outcome, arguments):
    try:
        wire.send("done", outcome.returned, arguments, outcome.raised, outcome.printed)
    except BrokenWire:
        raise
    except Exception as error:
        text = f"what the answer returned cannot be handed over: {type(error).__name__}: {error}"
        wire.send("done", None, [], ["TypeError", cut(text, TEXT_LIMIT_CHARS)], "")


if __name__ == "__main__":
    try:
        main()
    except BrokenWire:
        pass
