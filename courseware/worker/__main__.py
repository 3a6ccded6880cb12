"""The worker: defines a student's answer, and calls it whenever the grader says so, until the grader is gone."""

import functools
import gc
import math
import os
import signal

import numpy as np

from courseware.editing import run_source

from . import limits
from .ipc import BrokenChannel, Channel
from .proxies import Grader
from .running import CALL_LIMIT_S, TEXT_LIMIT_CHARS, cut, is_untouched, run

MEMORY_BYTES = {False: 1 << 30, True: 4 << 30}  # of addresses; Triton's libraries alone take a part of them


def undisturbed(act):
    """What sends or receives a message, so that the alarm of a time limit does not cut it in two."""

    def quietly(*message):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        try:
            return act(*message)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return quietly


def main():
    # What answers write, at whatever level, must not mix with the messages.
    channel = Channel(os.dup(0), os.dup(1), None, None)
    channel.send, channel.receive = undisturbed(channel.send), undisturbed(channel.receive)
    grader, nothing = Grader(channel), os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    _, cells, name, is_kernel, has_torch = channel.receive()
    namespace = {"__name__": "__main__", "math": math, "np": np}
    if is_kernel:
        from . import kernels

        namespace |= {"triton": kernels.triton, "tl": kernels.tl, "__builtins__": kernels.BUILTINS}
    if has_torch:
        global gradients, host_calls
        from . import gradients, host_calls

        namespace |= {"torch": gradients.torch, "triton": host_calls.triton}
    limits.limit(MEMORY_BYTES[is_kernel or has_torch])
    os.dup2(nothing, 2)
    channel.send("limited")
    for place, (cell, source) in enumerate(cells):
        raised = run(functools.partial(run_source, source, f"<cell {cell}>", namespace), CALL_LIMIT_S).raised
        kind = "busy" if raised and raised[0] == "MachineBusy" else "failed"
        # An earlier answer's cell that fails is that answer's loss alone.
        if raised and (place == len(cells) - 1 or kind == "busy"):
            channel.send(kind, f"its cell does not run: {raised[1].removeprefix('the answer raised ')}")
            return
    if name not in namespace:
        channel.send("failed", f"its cell defines no {name}")
        return
    answer = namespace[name]
    if not callable(answer):
        channel.send("failed", f"{name} is no function")
        return
    gc.freeze()  # a collection that looks at all there was before would touch all of its memory
    channel.send("ready", is_untouched(getattr(answer, "fn", answer) if is_kernel else answer))
    while True:
        kind, *rest = channel.receive()
        grader.forget()
        if kind == "call":
            _call(grader, answer, *rest)
        elif kind == "launch":
            _tell(channel, kernels.launched(grader, answer, *rest), [])
        elif kind == "differentiate":
            _serve(grader, gradients.differentiated, answer, *rest)
        elif kind == "host":
            _serve(grader, host_calls.called, answer, *rest)


def _call(grader, answer, arguments, limit_s):
    outcome = run(lambda: grader.done(answer(*arguments)), limit_s)
    _tell(grader.channel, outcome, arguments)


def _serve(grader, function, answer, *given):
    *given, limit_s = given
    ask = functools.partial(grader.ask, None)
    outcome = run(lambda: grader.done(function(answer, ask, *given)), limit_s)
    _tell(grader.channel, outcome, [])


def _tell(channel, outcome, arguments):
    try:
        channel.send("done", outcome.returned, arguments, outcome.raised, outcome.printed)
    except BrokenChannel:
        raise
    except Exception as error:
        text = f"what the answer returned cannot be handed over: {type(error).__name__}: {error}"
        channel.send("done", None, [], ["TypeError", cut(text, TEXT_LIMIT_CHARS)], "")


if __name__ == "__main__":
    try:
        main()
    except BrokenChannel:
        pass
