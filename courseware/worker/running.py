"""Runs an answer so that nothing it does can hurt the caller: time limit, exceptions, printing."""

import ast
import contextlib
import ctypes
import dis
import functools
import inspect
import io
import itertools
import linecache
import os
import re
import signal
import sysconfig
import textwrap
import threading
import time
import tokenize
import traceback
import warnings
from dataclasses import dataclass

import numpy as np

CALL_LIMIT_S = 2.0  # of processor time, so that no answer fails because the machine is busy
CLOCK_LIMITS = 20  # so many times the limit by the clock: for what hangs, and not for what a busy machine makes wait
PRINTED_LIMIT_CHARS = 600
TEXT_LIMIT_CHARS = 2000  # of the message of an exception
UNWRITTEN = np.array(0x7E55, np.uint16).view(np.float16)[()]  # a NaN that no computation makes, in any precision

# Called by Python where nobody catches: what they raise is printed, and lost.
UNRAISABLE = {"__del__", "release", "gc_callback"}

COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>"}
_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LIBRARIES = (
    *(os.path.join(_HOME, package) + os.sep for package in ("course_lib", "courseware")),
    os.path.dirname(os.path.dirname(np.__file__)) + os.sep,
    *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
    "<frozen",
    "<__array_function__",
)


class TimeUp(BaseException):
    """Raised in an answer that has run too long. Not an Exception: `except Exception` must let it pass."""

    by_clock = property(lambda self: self.args == (True,))  # little processor time was used meanwhile


class MachineBusy(BaseException):
    """Raised where an answer is marked, and says nothing of it: a limit by the clock was reached while it waited."""


class Told(Exception):
    """An exception of an answer that has been described already, where it was raised. name: of its class."""

    def __init__(self, name, text):
        super().__init__(text)
        self.name, self.text = name, text


@dataclass(frozen=True)
class Outcome:
    """What came of a call. raised: (name of the exception's class, what the learner reads), or None."""

    returned: object
    raised: tuple[str, str] | None
    printed: str


def run(call, limit_s: float, processor_s=time.thread_time) -> Outcome:
    """call(), whatever it does. processor_s(): what counts for the limit. Raises MachineBusy if the call does."""
    returned, raised, printed = None, None, _ShortBuffer()

    def quietly():
        # NumPy's warnings say in general what the finding will say in particular.
        with warnings.catch_warnings(), np.errstate(all="ignore"), _unwritten_is_nan():
            warnings.simplefilter("ignore")
            return call()

    reached_by_signal = hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
    limited = _limited_by_signal if reached_by_signal else _limited_by_thread
    try:
        with contextlib.redirect_stdout(printed):
            returned = limited(quietly, limit_s, processor_s)
    except MachineBusy:
        raise
    except TimeUp as error:
        loop = next(map(_loop_around, _learners(traceback.walk_tb(error.__traceback__))), "")
        within = f"{CLOCK_LIMITS * limit_s:g} s by the clock" if error.by_clock else f"{limit_s:g} s"
        raised = "MachineBusy" if error.by_clock else "TimeUp", f"the answer did not return within {within}{loop}"
    except Told as error:
        raised = error.name, error.text
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: a check never raises
        raised = type(_causes(error)[-1]).__name__, describe_exception(error)
    return Outcome(returned, raised, printed.text())


@contextlib.contextmanager
def _unwritten_is_nan():
    """np.empty and np.empty_like fill their arrays: memory that is given again may hold the right result."""
    made = {name: getattr(np, name) for name in ("empty", "empty_like")}

    def filling(make):
        @functools.wraps(make)
        def filled(*arguments, **named):
            array = make(*arguments, **named)
            kind = array.dtype.kind
            if type(array) is np.ndarray and kind in "fciub":
                array[...] = UNWRITTEN if kind in "fc" else True if kind == "b" else np.iinfo(array.dtype).max
            return array

        return filled

    try:
        for name, make in made.items():
            setattr(np, name, filling(make))
        yield
    finally:
        for name, make in made.items():
            setattr(np, name, make)


def is_unwritten(array):
    """Which elements of a float64 array were left by np.empty while an answer ran, or are computed from such."""
    return np.isnan(array) & ((array.view(np.uint64) >> 42) & 0x3FF == 0x255)


def describe_exception(error):
    """The exception and the learner's own lines on the way to it; no frame of a library or of the grader."""
    causes = _causes(error)
    frames = [frame for each in causes for frame in _learners(traceback.walk_tb(each.__traceback__))]
    error = causes[-1]
    frames = getattr(error, "places", None) or frames
    what = type(error).__name__
    if isinstance(error, ValueError) and what != "ValueError":
        what += ", a ValueError"
    # An address in a message differs from run to run.
    if message := re.sub(r" at 0x[0-9a-fA-F]+", "", str(error)):
        what += f": {cut(message, TEXT_LIMIT_CHARS)}"
    lines = [_line_of(*frame) for frame in frames[-4:]]
    if len(frames) > 4:
        lines.insert(0, f"  ({len(frames)} calls deep; the last 4 are shown)")
    if isinstance(error, NotImplementedError) and lines:
        return "\n".join(["the answer is not finished: it still raises NotImplementedError", *lines])
    return "\n".join([f"the answer raised {what}", *lines])


def _causes(error):
    """The exception, and those it wraps: Triton's interpreter wraps what a kernel raises, once in each function."""
    causes = [error]
    while type(causes[-1]).__name__ == "InterpreterError" and causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    return causes


def _line_of(code, names, line):
    source = linecache.getline(code.co_filename, line, names).strip()[:TEXT_LIMIT_CHARS]
    return f"  line {line}, in {code.co_name}" + (f":  {source}" if source else "")


def _loop_around(frame):
    """The outermost loop of the learner's function that a frame is in, or nothing: which line of it, is chance."""
    code, names, line = frame  # a frame may have no line
    try:
        block = inspect.getblock(linecache.getlines(code.co_filename, names)[code.co_firstlineno - 1 :])
        tree = ast.parse(textwrap.dedent("".join(block)))
    except (SyntaxError, tokenize.TokenError):
        return ""
    ast.increment_lineno(tree, code.co_firstlineno - 1)
    for node in ast.walk(tree):  # outer ones come first
        if isinstance(node, ast.For | ast.While) and node.lineno <= (line or 0) <= node.end_lineno:
            return f"; it was in this loop\n{_line_of(code, names, node.lineno)}"
    return ""


def places(frame):
    """The learner's own lines that have led to a frame, for an error that shows only later."""
    inside = itertools.takewhile(lambda step: step[0].f_code.co_filename != __file__, traceback.walk_stack(frame))
    return _learners(reversed(list(inside)))


def _learners(frames):
    return [
        (frame.f_code, frame.f_globals, line)
        for frame, line in frames
        if not frame.f_code.co_filename.startswith(_LIBRARIES)
        # A comprehension is a frame of its own up to Python 3.11.
        and not (frame.f_code.co_name in COMPREHENSIONS and line == getattr(frame.f_back, "f_lineno", 0))
    ]


def is_untouched(function):
    """True if the body is a stub's: a docstring or none, then raise NotImplementedError, `...` or `pass`."""
    if hasattr(function, "untouched"):  # found out where it is defined
        return function.untouched
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
        return cut(self.getvalue(), PRINTED_LIMIT_CHARS)


def cut(text, most):
    """The text, or its beginning."""
    return text[:most].rstrip("\n") + (" ... (cut)" if len(text) > most else "")


def _limited_by_signal(run, limit_s, processor_s):
    """run(), or TimeUp after limit_s."""
    began, busy_s = time.monotonic(), processor_s()

    def ring(signum, frame):
        if frame is not None and frame.f_code.co_name in UNRAISABLE:
            return  # the alarm repeats
        # The first alarm comes when an answer that had the processor to itself has used limit_s, or just about.
        used_up = processor_s() - busy_s > 0.9 * limit_s
        if used_up or time.monotonic() - began > CLOCK_LIMITS * limit_s:
            raise TimeUp(not used_up)

    before = signal.signal(signal.SIGALRM, ring)
    try:
        # The alarm repeats: it may come too early, and a bare `except:` in the answer may swallow one.
        signal.setitimer(signal.ITIMER_REAL, limit_s, 0.2)
        return run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _limited_by_thread(run, limit_s, _):
    """Fallback where SIGALRM is unavailable."""
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
