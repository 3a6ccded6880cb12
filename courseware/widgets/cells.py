"""The cells of a notebook as they were run: the source of what they define, also where Python does not know it.

Python finds a function's source by the name of its file. IPython names each cell for it, but whatever stands below a
%%time has the same name as everything else below one, and no source. Below %%prun it is likewise.
"""

import inspect
import linecache
import os
import re
import sys
import types
import zlib
from collections.abc import Iterator

PACKAGES = ("course_lib", "courseware")
FILES = {"%%time": "<timed exec>", "%%prun": "<string>"}
COMPILED_FROM = ("_torchdynamo_orig_callable", "py_func")  # attributes of what torch.compile and Numba's jit return
WRITTEN_IN = ("__wrapped__", "__func__", "func", "pyfunc")  # of decorated functions, methods, partials, np.vectorize


def watch() -> None:
    """From now on, a source is there while the cell below %%time or %%prun runs: compiling, Triton looks then."""

    def begin(cell):
        magic, _, body = cell.raw_cell.lstrip().partition("\n")
        if file := FILES.get(magic.split(" ")[0]):
            _put_source(file, _shell().transform_cell(body))

    def end(_):
        for file in FILES.values():
            linecache.cache.pop(file, None)

    if shell := _shell():
        shell.events.register("pre_run_cell", begin)
        shell.events.register("post_run_cell", end)


def inside(answer):
    """The Python function inside what compiles it, such as @triton.jit below @triton.autotune; anything else as it is.

    Python finds the function's source from now on, if a cell defines it.
    """
    answer = _without_triton(answer)
    for name in COMPILED_FROM:
        function = getattr(answer, name, answer)
        # A decorator's wrapper has the attributes of what it wraps.
        answer = function if getattr(answer, "__wrapped__", function) is function else answer
    _know_sources(answer)
    return answer


def written(answer) -> types.FunctionType | None:
    """The function that was written for an answer: below decorators and partials, or the __call__ of its class."""
    for _ in range(10):  # one within the other
        answer = inside(answer)
        if not isinstance(answer, types.FunctionType) or hasattr(answer, "__wrapped__"):
            found = (getattr(answer, name) for name in WRITTEN_IN if hasattr(answer, name))
            answer = next(found, inspect.getattr_static(type(answer), "__call__", None))
    return answer if isinstance(answer, types.FunctionType) else None


def source_of(answer) -> str | None:
    """What defines an answer: its cell, helpers and all; of a file, the import; of the course, the function alone."""
    function = written(answer)
    try:
        if str(function.__module__).split(".")[0] in PACKAGES:
            return inspect.getsource(function)
        if not os.path.exists(inspect.getfile(function)):
            return "".join(inspect.findsource(function)[0])
        # The function of a partial would not bring the answer back.
        is_found = getattr(sys.modules[function.__module__], function.__name__, None) is answer
        return f"from {function.__module__} import {function.__name__}\n" if is_found else None
    except (AttributeError, LookupError, OSError, TypeError):
        return None


def losing_magic(name: str, function) -> str:
    """ "%%timeit" if the newest cell that defines `name` begins with it, and this function is not from there."""
    for text, body in _cells():
        if re.search(rf"^(def {name}\b|{name} *=)", text, re.MULTILINE):
            is_from_there = getattr(written(function), "__code__", None) in _codes(body)
            return text.split(maxsplit=1)[0] if text.startswith("%%") and not is_from_there else ""
    return ""


def _without_triton(value):
    while type(value).__module__.startswith("triton.") and hasattr(value, "fn"):
        value = value.fn
    return value


def _know_sources(function):
    """Give a function without a source its cell's name for its file, and likewise what it may call from there."""
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    if not isinstance(function, types.FunctionType) or os.path.exists(file) or linecache.getlines(file):
        return
    beside = map(_without_triton, function.__globals__.values())
    for each in [function, *beside]:
        if isinstance(each, types.FunctionType) and each.__code__.co_filename == file:
            body = next((body for _, body in _cells() if each.__code__ in _codes(body)), None)
            if body is not None:
                cell = f"<cell {zlib.crc32(body.encode()):08x}>"
                _put_source(cell, body)
                each.__code__ = _renamed(each.__code__, cell)


def _cells() -> Iterator[tuple[str, str]]:
    """(text, the text below its magics) of the cells that were run, newest first."""
    shell = _shell()
    for text in reversed(getattr(getattr(shell, "history_manager", None), "input_hist_raw", [])):
        body = text = text.lstrip()
        while body.lstrip().startswith("%%"):
            body = body.lstrip().partition("\n")[2]
        yield text, shell.transform_cell(body)


def _shell():
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def _put_source(file, source):
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file


def _codes(source):
    """The code of each function in a source, at whatever depth."""
    try:
        found = [compile(source, "<cell>", "exec")]
    except (SyntaxError, ValueError):  # a cell of another language
        return []
    for code in found:  # grows by those inside
        found += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return found


def _renamed(code, file):
    consts = [_renamed(const, file) if isinstance(const, types.CodeType) else const for const in code.co_consts]
    return code.replace(co_filename=file, co_consts=tuple(consts))
