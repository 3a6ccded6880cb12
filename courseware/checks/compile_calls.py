"""Answers that are Triton kernels, compiled as well: the interpreter runs much that the compiler refuses."""

import ast
import functools
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from course_lib import runtime
from courseware.worker import sandbox
from courseware.worker.running import MachineBusy

from .calling import AnswerError, is_remote, judging
from .exercise import Finding, Property
from .kernel_calls import plain
from .properties import Checks

SCRIPT = Path(sandbox.__file__).with_name("compile_for_gpu.py")
HEAD = "import numpy as np\nimport triton\nimport triton.language as tl\n"
INSIDE = "\nwhile not hasattr({0}, 'params') and hasattr({0}, 'fn'): {0} = {0}.fn\n"  # below @triton.autotune
CLOCK_LIMIT_S = 600.0  # compile_for_gpu limits the processor time, of which a kernel takes about two seconds
OUT_OF_TIME = (-signal.SIGXCPU, 128 + signal.SIGXCPU)  # exit statuses; the second is the sandbox's
TYPES = {"bool": "i1", "int8": "i8", "int32": "i32", "int64": "i32"}
TYPES |= {"float16": "fp16", "float32": "fp32", "float64": "fp32"}


def compiles(check: Checks, *row, name="Triton's compiler takes the kernel, for an A100", test=None) -> None:
    """Add to the checks of a kernel that Triton's compiler takes it. row: an input for `case`.

    test(report, **inputs): of what it becomes for an H100, as `compile_report` returns it.
    """
    gpu, test = ("H100", test) if test else ("A100", lambda _, **inputs: None)
    judge = judging(check.call, test, launched=functools.partial(_compiled, gpu))
    inputs = row[0] if isinstance(row[0], dict) else check.case(*row)
    check.append(Property(name, check.call, judge, (inputs,), slow=True))


def compile_report(kernel, grid, outputs, **arguments):
    """What the compiler makes for an H100 of a kernel that `launched` would launch with the same arguments.

    A dictionary: see `courseware.worker.compile_for_gpu.report`. Raises ValueError if the compiler refuses the kernel.
    """
    made = _refusal_or_report(plain(kernel), "H100", outputs, **arguments)
    if isinstance(made, str):
        raise ValueError(f"Triton's compiler refuses it: {made}")
    return made


def _compiled(gpu, kernel, grid, outputs, **arguments):
    """What `launched` takes, compiled instead. Raises AnswerError, of kind "compiler", if the compiler refuses it."""
    made = _refusal_or_report(plain(kernel.answer), gpu, outputs, **arguments)
    if isinstance(made, str):
        kernel.note(made)
        raise AnswerError(Finding("", "compiler", f"Triton's compiler refuses it: {made}"))
    return made


def _refusal_or_report(answer, gpu, outputs, strides=None, **arguments):
    from courseware.tracer import sources

    arguments |= dict.fromkeys(outputs, np.zeros(1))
    arguments |= {name: 1 for names in (strides or {}).values() for name in names}
    remote = is_remote(answer)
    try:
        pieces = answer.sources if remote else sources(answer, given=("np", "tl", "triton"))
    except (OSError, TypeError) as error:
        return f"its source cannot be read: {error}"
    source, given = HEAD + "\n".join(pieces) + INSIDE.format(answer.__name__), {}
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    parameters = next(node.args.args for node in reversed(functions) if node.name == answer.__name__)
    for parameter in parameters:
        value = np.asarray(arguments[parameter.arg])
        kind = ("*" if value.ndim else "") + TYPES[str(value.dtype)]
        is_constant = parameter.annotation is not None and "constexpr" in ast.unparse(parameter.annotation)
        given[parameter.arg] = value.item() if is_constant else kind
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "answer.py").write_text(source)
        Path(folder, "arguments.json").write_text(json.dumps(given))
        command, environment = [sys.executable, SCRIPT, answer.__name__, gpu], runtime.environment(interpreting=False)
        if remote and answer.sandboxed:
            line = f"import runpy, sys; sys.argv = {[str(SCRIPT), answer.__name__, gpu]!r}; "
            line += "runpy.run_path(sys.argv[0], {}, '__main__')"
            command = ["/usr/bin/env", "TRITON_CACHE_DIR=/tmp", *sandbox.python(line)]
            command = sandbox.command(command, writable=[folder], readable=[SCRIPT])
        try:
            how = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
            run = subprocess.run(command, timeout=CLOCK_LIMIT_S, **how)
        except subprocess.TimeoutExpired:
            if remote:
                raise MachineBusy from None
            return f"it was not done after {CLOCK_LIMIT_S:g} s"
    if run.returncode in OUT_OF_TIME:
        return "it took too long"
    # tl.static_print has printed before.
    lines = (run.stderr if run.returncode else run.stdout).strip().splitlines() or ["no message"]
    return lines[-1] if run.returncode else json.loads(lines[-1])
