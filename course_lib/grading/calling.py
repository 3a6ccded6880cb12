"""Calls an answer so that nothing it does can hurt the caller: time limit, exceptions, printing, inputs."""

import ast
import contextlib
import ctypes
import dis
import io
import linecache
import os
import re
import signal
import sysconfig
import threading
import time
import traceback
import warnings
from collections.abc import Callable

import numpy as np

from .exercise import Evidence, Finding, Property, single_finding

CALL_LIMIT_S = 2.0  # of processor time, so that no answer fails because the machine is busy
CLOCK_LIMITS = 5  # so many times the limit by the clock, for an answer that sleeps or waits
PRINTED_LIMIT_CHARS = 600

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = (
    _PACKAGE,
    *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
    "<frozen",
    "<__array_function__",
)


class AnswerError(Exception):
    """The answer raised, or did not return in time. Carries the Finding."""

    def __init__(self, finding):
        super().__init__(finding.text)
        self.finding = finding


class TimeUp(BaseException):
    """Raised in an answer that has run too long. Not an Exception: `except Exception` must let it pass."""


class GuardedAnswer:
    """The answer, called on copies of its arguments.

    modified: positions of the arguments that the last call changed in place.
    printed: the beginning of what it wrote to stdout.
    seen: what its calls returned, and whatever else a property notes with `note`: two answers that make the same
        mistake are recognised by it. Who wants to know clears it first.
    """

    def __init__(self, answer, limit_s=CALL_LIMIT_S):
        self.answer, self.limit_s = answer, limit_s
        self.modified = ()
        self.printed = ""
        self.seen = []

    def note(self, *values):
        """Keep values that show what the answer did, besides what its calls return."""
        self.seen.extend(copied(value) for value in values)

    def __call__(self, *arguments):
        given = tuple(copied(a) for a in arguments)
        returned = self.run(lambda: self.answer(*given))
        self.modified = tuple(i for i, a in enumerate(arguments) if not _same(a, given[i]))
        self.note(returned, self.modified, *(a.traces() for a in arguments if hasattr(type(a), "traces")))
        return returned

    def run(self, call):
        """call(), which runs the answer in a way of its own. Raises AnswerError, and nothing else."""
        printed = _ShortBuffer()

        def quietly():
            # NumPy's warnings say in general what the finding will say in particular.
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return call()

        try:
            with contextlib.redirect_stdout(printed):
                return _limited(quietly, self.limit_s)
        except TimeUp:
            text = f"the answer did not return within {self.limit_s:g} s"
            self.note("timeout")
            raise AnswerError(Finding("", "timeout", text)) from None
        except BaseException as error:  # SystemExit and KeyboardInterrupt too: a check never raises
            self.note(type(error).__name__)
            kind = "unknown name" if type(error) is NameError else "exception"
            raise AnswerError(Finding("", kind, describe_exception(error))) from None
        finally:
            self.printed = printed.text()


def attempt(prop: Property, answer: GuardedAnswer, inputs: dict) -> Evidence | None:
    """What the property finds against the answer on one input. Whatever the answer does, nothing is raised."""
    try:
        with np.errstate(all="ignore"):  # what a wrong answer returns overflows
            return prop.test(answer, **copied(inputs))
    except AnswerError as error:
        return Evidence((error.finding,))
    except Exception as error:  # an object that even comparing fails on
        return single_finding("type", f"what the answer returned cannot be used: {error!r}")


def copied(value):
    """A copy of arrays, also inside tuples, lists and dictionaries; anything else as it is."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (tuple, list)):
        return type(value)(copied(v) for v in value)
    if isinstance(value, dict):
        return {key: copied(v) for key, v in value.items()}
    return value


def _same(before, after):
    if isinstance(before, np.ndarray):
        return before.shape == after.shape and np.array_equal(before, after, equal_nan=True)
    if isinstance(before, (tuple, list)):
        return len(before) == len(after) and all(map(_same, before, after))
    # In a list, one number may have taken another's place.
    return not isinstance(before, int | str) or before == after


def judging(call: str, test: Callable, **given) -> Callable:
    """The test of a Property that does what `call` says, and has judged what comes of it: test(outcome, **names).

    call: Python in terms of the inputs, statements and then the line that calls the answer or launches it. Its value
    is the outcome; the names are those of the inputs and of what the statements define.
    given: what the call finds defined besides np and the inputs, also in place of what it imports by that name.
    """
    *statements, last = ast.parse(call).body
    called = last.value.func if last.value.func.id not in given else last.value.args[0]
    called = called.func if isinstance(called, ast.Call) else called
    kept = [s for s in statements if not (isinstance(s, ast.ImportFrom) and s.names[0].name in given)]
    prepare = compile(ast.Module(kept, []), "<call>", "exec")
    run = compile(ast.Expression(last.value), "<call>", "eval")

    def call_and_test(answer, **inputs):
        names = {"np": np, **given, **inputs}
        exec(prepare, names)
        outcome = eval(run, names | {called.id: answer})
        return test(outcome, **{name: names[name] for name in names.keys() - {"np", "__builtins__", *given}})

    return call_and_test


def describe_exception(error):
    """The exception and the learner's own lines on the way to it; no frame of a library or of the grader."""
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__  # Triton's interpreter wraps what a kernel raises
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_LIBRARIES)
    ]
    what = type(error).__name__
    # An address in a message differs from run to run.
    if message := re.sub(r" at 0x[0-9a-fA-F]+", "", str(error)):
        what += f": {message}"
    lines = []
    for frame, line in frames[-4:]:
        source = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
        lines.append(f"  line {line}, in {frame.f_code.co_name}" + (f":  {source}" if source else ""))
    if len(frames) > 4:
        lines.insert(0, f"  ({len(frames)} calls deep; the last 4 are shown)")
    if isinstance(error, NotImplementedError) and lines:
        return "\n".join(["the answer is not finished: it still raises NotImplementedError", *lines])
    return "\n".join([f"the answer raised {what}", *lines])


def is_untouched(function):
    """True if the body is a stub's: a docstring or none, then raise NotImplementedError, `...` or `pass`."""
    return hasattr(function, "__code__") and _instructions(function.__code__) in _STUBS


def _instructions(code):
    """What the body does. Docstring, comments and argument names leave no trace in it."""
    return [(instruction.opname, instruction.argval) for instruction in dis.get_instructions(code)]


_STUBS = [
    _instructions(compile(f"def stub():\n    {body}", "<stub>", "exec").co_consts[0])
    for body in ("raise NotImplementedError", "raise NotImplementedError()", "pass")
]


class _ShortBuffer(io.StringIO):
    """A text file that keeps the beginning only: an endless loop may print without end."""

    def write(self, text):
        super().write(text[: PRINTED_LIMIT_CHARS + 1 - self.tell()])
        return len(text)

    def text(self):
        text = self.getvalue()
        return text[:PRINTED_LIMIT_CHARS].rstrip("\n") + (" ... (cut)" if len(text) > PRINTED_LIMIT_CHARS else "")


def _limited(run, limit_s):
    """run(), or TimeUp after limit_s: by SIGALRM where that exists and reaches us, otherwise by a thread."""
    if hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread():
        return _limited_by_signal(run, limit_s)
    return _limited_by_thread(run, limit_s)


def _limited_by_signal(run, limit_s):
    began, busy_s = time.monotonic(), time.thread_time()

    def ring(signum, frame):
        # The first alarm comes when an answer that had the processor to itself has used limit_s, or just about.
        if time.thread_time() - busy_s > 0.9 * limit_s or time.monotonic() - began > CLOCK_LIMITS * limit_s:
            raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    try:
        # The alarm repeats: it may come too early, and a bare `except:` in the answer may swallow one.
        signal.setitimer(signal.ITIMER_REAL, limit_s, 0.2)
        return run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _limited_by_thread(run, limit_s):
    outcome = {}

    def work():
        try:
            outcome["returned"] = run()
        except BaseException as error:
            outcome["raised"] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        # Takes effect at the thread's next bytecode; one stuck in C is left behind, as a daemon.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(TimeUp))
        raise TimeUp
    if "raised" in outcome:
        raise outcome["raised"]
    return outcome["returned"]
