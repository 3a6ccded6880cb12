"""What an answer may use in class, read off its source: the same in `check`, `grade`, `validate` and `autograde`.

For Python with NumPy these rules only teach: what they refuse is not there where an answer is marked (`sandbox`). That
a kernel is Triton, its compiler tells; the rules see to it that the compiler is asked about what is run, and runs
nothing. CUDA C++ runs together with the counters of its accesses, and may not reach them.
"""

import ast
import re

MODULES = ("collections", "functools", "itertools", "math", "numpy")

# In a kernel: what is ready-made, what no exercise needs, and what leads out of Triton.
NOT_IN_KERNELS = re.compile(r"softmax|atomic_\w+|_\w*|core|data|handle|inspect|interpreter_\w+|semantic|standard")
# Calls that make a constant.
CONSTANT = re.compile(r"tl\.constexpr|float|math\.\w+")


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
    for statement in tree.body if kernel else ():
        if not _defines(statement):
            return f"line {statement.lineno}: the cell of a kernel holds functions with @triton.jit, and constants"
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
        case ast.Attribute(attr=name, ctx=ctx):
            refused = NOT_IN_KERNELS.fullmatch(name) or not isinstance(ctx, ast.Load)
        case ast.Name(id=name, ctx=ctx):
            refused = name.startswith("__") or name == "getattr"
            refused |= name in ("float", "math", "tl") and not isinstance(ctx, ast.Load)
        case _:
            return "a kernel's cell may import modules as wholes only" if isinstance(node, ast.ImportFrom) else None
    return f"a kernel may not use {ast.unparse(node)}" if refused else None


def _defines(statement):
    """Whether a statement of a cell defines something, and runs nothing else."""
    parts = statement
    if isinstance(statement, ast.FunctionDef):
        if [ast.unparse(decorator) for decorator in statement.decorator_list] not in ([], ["triton.jit"]):
            return False
        parts = statement.args
    elif not isinstance(statement, ast.Import | ast.Assign | ast.AnnAssign | ast.Expr):
        return False
    calls = [node for node in ast.walk(parts) if isinstance(node, ast.Call)]
    return all(CONSTANT.fullmatch(ast.unparse(call.func)) for call in calls)


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
