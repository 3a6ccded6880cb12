"""What an answer may use in class, read off its source: the same in `check`, `grade`, `validate` and `autograde`.

For Python with NumPy these rules only teach: what they refuse is not there where an answer is marked (`sandbox`).
A kernel may be written in Triton alone, because Triton's interpreter would run any Python: what the rules leave of it
reaches no object behind a tensor. CUDA C++ runs together with the counters of its accesses, and may not reach them.
"""

import ast
import builtins
import re

MODULES = ("collections", "functools", "itertools", "math", "numpy")

# In a kernel: what Python has, and what a tensor, a pointer and a dtype offer.
KERNEL_BUILTINS = frozenset("float int bool range len min max abs tuple isinstance NotImplementedError".split())
KERNEL_ATTRIBUTES = frozenset(
    "T abs argmax argmin associative_scan broadcast_to cast ceil cumsum dtype element_ty exp exp2 expand_dims flip "
    "floor gather is_floating is_fp16 is_fp32 item log log2 logical_and logical_or max min numel permute ravel reduce "
    "reshape rsqrt shape scalar sigmoid sin sort split sqrt store sum to trans type value view".split()
)
# What triton.language has of modules, what its interpreter leaves among a kernel's globals, and the softmax that these
# kernels are to compute.
NOT_IN_KERNELS = frozenset(
    "core extra inspect interpreter_builder interpreter_semantic random semantic softmax standard target_info".split()
)
KERNEL_MODULES = ("math", "np", "tl", "tl.math", "triton")


def objection(source: str, imports: tuple[str, ...] = (), kernel: bool = False) -> str | None:
    """Why an answer cell with this source is not run in class, or None.

    imports: modules allowed besides MODULES. kernel: the answer is a Triton kernel.
    Source that is no Python is left to fail where it is run.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    allowed = sorted({*MODULES, *imports})
    for node in ast.walk(tree):
        if reason := _foreign(node, allowed) or (kernel and _not_triton(node)):
            return f"line {node.lineno}: {reason}"
    if kernel:
        for statement in tree.body:
            if not isinstance(statement, ast.Import | ast.FunctionDef | ast.Assign | ast.AnnAssign | ast.Expr):
                return f"line {statement.lineno}: the cell of a kernel holds functions and constants"
    return None


def _foreign(node, allowed):
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        names = [module if module in allowed else f"{module}.{alias.name}" for alias in node.names]
    else:
        return None
    for name in names:
        if name not in allowed:
            return f"an answer may not import {name}; it may import {', '.join(allowed)}"
    return None


def _not_triton(node):
    match node:
        case ast.Attribute(attr=attr, value=value, ctx=ctx):
            of_module = ast.unparse(value) in KERNEL_MODULES
            if not isinstance(ctx, ast.Load) or attr.startswith("_") or attr in NOT_IN_KERNELS:
                return f"a kernel may not use {ast.unparse(node)}"
            if not of_module and attr not in KERNEL_ATTRIBUTES:
                return f"a kernel may not use the attribute {attr}"
        case ast.Name(id=name):
            if (hasattr(builtins, name) and name not in KERNEL_BUILTINS) or name.startswith("__"):
                return f"a kernel may not use {name}"
            if name in NOT_IN_KERNELS:
                return f"a kernel may not use {name}"
        case ast.ImportFrom():
            return "a kernel's cell may import modules as wholes only"
        case ast.Import(names=names):
            for alias in names:
                usual = {"numpy": "np", "triton.language": "tl"}.get(alias.name, alias.name)
                if (alias.asname or alias.name) != usual:
                    return f"write import {alias.name}" + (f" as {usual}" if usual != alias.name else "")
        case ast.ClassDef() | ast.MatchClass():
            return "a kernel has no classes"
    return None


# In CUDA C++: what leads to other processes, files and memory, or past the compiler.
CUDA_NAMES = re.compile(
    r"\b(system|popen|exec[lv]\w*|posix_spawn\w*|v?fork|clone|kill|raise|signal|sigaction|open(at)?|[fp]open|freopen|"
    r"fdopen|creat|remove|rename|unlink(at)?|rmdir|mkdir|tmpfile|mmap|mprotect|syscall|socket|dlopen|dlsym|getenv|"
    r"setenv|environ|_?exit|abort|longjmp|ptrace|prctl|symlink\w*|linkat|pthread\w*|[io]?fstream|filebuf|filesystem|"
    r"runner\w*|"
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
