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
    source = edited_text(source, edits, name, plain.__name__)
    namespace = {"np": np} | {key: plain.__globals__[key] for key in ("triton", "tl") if key in plain.__globals__}
    # Of two kernels that share a file name, Triton would run the second in place of the first.
    run_source(source, f"<{name} {zlib.crc32(source.encode()):08x}>", namespace)
    return namespace[plain.__name__]


def edited_text(text, edits, name, place):
    """The text with each key of `edits` in it replaced by its value, one after the other.

    name, place: of the edits and the text, for the ValueError unless each text to be replaced occurs exactly once.
    """
    for old, new in edits.items():
        if text.count(old) != 1:
            raise ValueError(f"{name}: {old!r} occurs {text.count(old)} times in {place}, not once")
        text = text.replace(old, new)
    return text


def source_of_rung(text, rung, rungs, place):
    """The source of a rung of a ladder whose kept diffs lead one after the other to a text, that of the file `place`.

    A rung has a name, a diff, and whether it is kept. A rejected one changes the text; a kept one is the text with the
    diffs undone of the rungs that are kept after it.
    """
    if not rung.kept:
        return edited_text(text, edits_of(rung.diff), rung.name, place)
    for later in reversed(rungs[rungs.index(rung) + 1 :]):
        if later.kept:
            text = edited_text(text, {new: old for old, new in edits_of(later.diff).items()}, later.name, place)
    return text


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
    "@@" parts places that are not neighbours. Raises ValueError for a line that begins otherwise. No diff, no edits.
    """
    edits = {}
    for part in re.split(r"^@@\n", diff, flags=re.MULTILINE) if diff else ():
        lines = part.splitlines(keepends=True)
        if strange := [line for line in lines if line[0] not in "-+ "]:
            raise ValueError(f"the line {strange[0]!r} of a diff begins with none of '-', '+', ' '")
        old, new = ("".join(line[1:] for line in lines if line[0] in kept) for kept in ("- ", "+ "))
        edits[old] = new
    return edits
