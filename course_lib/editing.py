"""A function with parts of its source replaced: wrong answers, right variants, and kernels with a few words changed."""

import inspect
import linecache
import re
import textwrap
import zlib

import numpy as np


def with_edits(function, edits, name):
    """The function that `function`'s source defines when each key of `edits` in it is replaced by its value.

    function: a Python function or a Triton kernel. Its source must stand alone: of its module's globals, the new
    function finds np, triton and tl, as in a learner's cell. name: stands for the file in tracebacks.
    Raises ValueError unless each text to be replaced occurs exactly once.
    """
    plain = getattr(function, "fn", function)  # a Triton kernel holds the Python function that it was made from
    source = textwrap.dedent(inspect.getsource(plain))
    for old, new in edits.items():
        if source.count(old) != 1:
            raise ValueError(f"{name}: {old!r} occurs {source.count(old)} times in {plain.__name__}, not once")
        source = source.replace(old, new)
    namespace = {"np": np} | {key: plain.__globals__[key] for key in ("triton", "tl") if key in plain.__globals__}
    # Of two kernels that share a file name, Triton would run the second in place of the first.
    run_source(source, f"<{name} {zlib.crc32(source.encode()):08x}>", namespace)
    return namespace[plain.__name__]


def run_source(source, filename, namespace):
    """Run a piece of Python, as if from a file of that name, such as "<answer>"."""
    # Tracebacks look for the source here, and so does Triton when it compiles or interprets a kernel.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), namespace)


def edited(function, edits, name="edited"):
    """`with_edits`, of a kernel the plain function inside @triton.jit."""
    built = with_edits(function, edits, name)
    return getattr(built, "fn", built)


def edits_of(diff):
    """The edits {old lines: new lines} that a diff stands for, to be made one after the other.

    Lines that go begin with "-", those that come with "+", and those that stay and show the place with a space. A line
    "@@" parts places that are not neighbours. Raises ValueError for a line that begins otherwise.
    """
    edits = {}
    for part in re.split(r"^@@\n", diff, flags=re.MULTILINE):
        lines = part.splitlines(keepends=True)
        if strange := [line for line in lines if line[0] not in "-+ "]:
            raise ValueError(f"the line {strange[0]!r} of a diff begins with none of '-', '+', ' '")
        old, new = ("".join(line[1:] for line in lines if line[0] in kept) for kept in ("- ", "+ "))
        edits[old] = new
    return edits
