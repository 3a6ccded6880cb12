"""What an answer may use when it is marked in class, read off its source before anything of it runs.

An answer runs in the process that checks it, so one that could reach the checker, the reference or a file could
give itself marks. The rules leave it Python's operations, NumPy's functions, a few modules that only compute, and
what its exercise lists in `imports`. They stop every way round the checks that we know of, and tell the student
which line and why; they are no wall against an attacker, for Python has none inside a process.
"""

import ast
import re
import types

import numpy as np

MODULES = ("collections", "functools", "itertools", "math", "numpy")
NUMPY_PARTS = ("fft", "linalg", "random")

# Each runs text as code, reaches a name by text, or reaches outside the process.
BUILTINS = frozenset(
    "breakpoint compile delattr eval exec getattr globals help input locals open setattr type vars "
    # What Triton's interpreter leaves among a kernel's globals.
    "inspect interpreter_builder interpreter_semantic".split()
)
# In NumPy: what reads and writes files, and what runs its tests.
NUMPY_NAMES = frozenset(
    "fromfile fromregex genfromtxt load loadtxt memmap save savetxt savez savez_compressed test".split()
)
# As an attribute of anything: NumPy's modules, which lead on to Python's; what hands out files and memory; what
# sets attributes. `obj` of an AttributeError is the module in which a name was not found.
ATTRIBUTES = frozenset(
    "char core ctypeslib dtypes emath exceptions f2py lib ma matlib polynomial rec strings testing typing version "
    "bit_generator mtrand ctypes dump tofile update_wrapper wraps obj os sys builtins subprocess "
    # Triton's modules, and what leads from a kernel to its function and hooks.
    "backends compiler extra inspect knobs runtime semantic standard target_info tools fn add_pre_run_hook".split()
)
# Attributes of generators, frames, tracebacks and code objects that lead to the caller's variables.
FRAMES = re.compile(r"(ag|co|cr|f|gi|tb)_[a-z]+")


def objection(source: str, imports: tuple[str, ...] = ()) -> str | None:
    """Why an answer cell with this source is not run in class, or None. imports: modules allowed besides MODULES.

    Source that is no Python is left to fail where it is run.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    allowed = {*MODULES, *imports}
    modules = {"np", "tl", "triton"} | {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    looked_up_in = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    for node in ast.walk(tree):
        if reason := _objection_to(node, allowed, modules, looked_up_in):
            return f"line {node.lineno}: {reason}"
    return None


def _objection_to(node, allowed, modules, looked_up_in):
    match node:
        case ast.Import(names=names):
            for alias in names:
                if alias.name not in allowed:
                    return f"an answer may not import {alias.name}; it may import {', '.join(sorted(allowed))}"
        case ast.ImportFrom(module=module, names=names, level=level):
            for alias in names:
                whole = f"{'.' * level}{module or ''}.{alias.name}"
                if not level and whole in allowed:
                    continue
                if level or module not in allowed or _hidden(alias.name, module == "numpy"):
                    return f"an answer may not import {whole}; it may import from {', '.join(sorted(allowed))}"
                if module == "numpy" and isinstance(getattr(np, alias.name, None), types.ModuleType):
                    return f"write np.{alias.name} instead of importing it"
        case ast.Attribute(attr=attr, value=value, ctx=ctx):
            if not isinstance(ctx, ast.Load):
                return f"an answer may not set or delete the attribute {attr} of anything"
            in_numpy = isinstance(value, ast.Name) and value.id in ("np", "numpy")
            if _hidden(attr, in_numpy):
                return f"an answer may not use the attribute {attr}"
            if in_numpy and attr in NUMPY_PARTS and id(node) not in looked_up_in:
                return f"np.{attr} may only be used as in np.{attr}.name"
        case ast.Name(id=name):
            if name in BUILTINS or name.startswith("__"):
                return f"an answer may not use {name}" + (", say isinstance or x.dtype" if name == "type" else "")
            if name in modules and id(node) not in looked_up_in:
                return f"{name} may only be used as in {name}.something"
        case ast.FunctionDef(name=name) if name.startswith("__"):
            return f"an answer may not define {name}"
        case ast.ClassDef(name=name):
            return f"an answer is made of functions; it may not define the class {name}"
        case ast.MatchClass():
            return "an answer may not match classes"
    return None


def _hidden(name, in_numpy):
    return (
        name == "*"
        or name.startswith("_")
        or name in ATTRIBUTES
        or FRAMES.fullmatch(name)
        or (in_numpy and name in NUMPY_NAMES)
    )


# In CUDA C++, where the same holds: what leads to other processes, files and memory, or past the compiler.
CUDA_NAMES = re.compile(
    r"\b(system|popen|exec[lv]\w*|posix_spawn\w*|v?fork|clone|kill|raise|signal|sigaction|open(at)?|[fp]open|freopen|"
    r"fdopen|creat|remove|rename|unlink(at)?|rmdir|mkdir|tmpfile|mmap|mprotect|syscall|socket|dlopen|dlsym|getenv|"
    r"setenv|environ|_?exit|abort|longjmp|ptrace|prctl|pthread\w*|[io]?fstream|filebuf|filesystem|runner\w*|"
    r"kernel_(call|kinds)|__\w+_chk|__tsan\w*|__builtin\w*|__attribute__|(__)?asm(__)?|_Pragma)\b"
)
CUDA_DIRECTIVES = "define undef if ifdef ifndef else elif endif".split()


def objection_to_cuda(source: str) -> str | None:
    """Why a kernel with this source is not run, or None."""
    code = re.sub(r"//.*|/\*(?s:.*?)\*/", lambda comment: "\n" * comment[0].count("\n"), source)
    for number, line in enumerate(code.replace("\\\n", "").splitlines(), 1):
        directive = re.match(r"\s*(?:#|%:)\s*(\w*)", line)
        if directive and directive[1] not in CUDA_DIRECTIVES and not re.match(r"\s*#\s*pragma unroll\b", line):
            return f"line {number}: it may not use #{directive[1]}; what CUDA offers a kernel needs no header"
        if "##" in line:
            return f"line {number}: it may not paste names together with ##"
        if name := CUDA_NAMES.search(line):
            return f"line {number}: it may not use {name[0]}"
    return None
