"""Compiles a kernel for an A100: a script, because a process that interprets kernels cannot compile any.

`python compile_for_gpu.py NAME` runs answer.py, in the current folder, and compiles its function NAME for the arguments
in arguments.json: parameter -> a type such as "*fp32", or the value of a constant. It prints as JSON why the compiler
refuses the kernel, with the line, or null. Nothing but Triton is imported: that alone takes most of the time.
"""

import json
import resource
import runpy
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompilationError


def refusal(kernel, arguments):
    constants = {p.name: arguments[p.name] for p in kernel.params if p.is_constexpr}
    types = arguments | dict.fromkeys(constants, "constexpr")
    try:
        triton.compile(ASTSource(kernel, types, constants), target=GPUTarget("cuda", 80, 32))
    except CompilationError as error:
        with open("answer.py") as file:
            written = file.read()
        own = cause = error
        while cause.__cause__ is not None:  # in a function that the kernel calls, perhaps one of Triton's own
            cause = cause.__cause__
            own = cause if isinstance(cause, CompilationError) and cause.src in written else own
        why = str(getattr(cause, "error_message", None) or cause).strip()
        return f"{why}\n  in the line:  {own.src.splitlines()[own.node.lineno - 1].strip()}"
    return None


if __name__ == "__main__":
    _, most_s = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (30 if most_s == resource.RLIM_INFINITY else min(30, most_s), most_s))
    name = sys.argv[1]
    kernel = runpy.run_path("answer.py")[name]
    with open("arguments.json") as file:
        found = refusal(kernel, json.load(file)) if hasattr(kernel, "params") else "there is no @triton.jit above it"
    print(json.dumps(found))
