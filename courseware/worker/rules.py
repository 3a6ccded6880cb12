"""What an answer may use in class, read off its source: the same in `check`, `grade`, `validate` and `autograde`.

For Python with NumPy these rules only teach: what they refuse is not there where an answer is marked (`sandbox`). That
a kernel is Triton, its compiler tells; the rules see to it that the compiler is asked about what is run, and runs
nothing. CUDA C++ runs together with the counters of its accesses, and may not reach them.
"""

import ast
import re

MODULES = ("collections", "functools", "itertools", "math", "numpy")

# All that a kernel's cell may name besides what it defines itself. Of Triton that is nothing ready-made (softmax),
# nothing that no exercise needs (atomic operations), and nothing that leads out of its language.
LANGUAGE = set(
    "abs arange argmax argmin associative_scan bfloat16 broadcast broadcast_to cast cat cdiv ceil clamp constexpr "
    "cos cumprod cumsum debug_barrier device_assert device_print div_rn dot erf exp exp2 expand_dims fdiv flip "
    "float16 float32 float64 floor fma full gather histogram int1 int16 int32 int64 int8 interleave join load log "
    "log2 math max max_constancy max_contiguous maximum min minimum multiple_of num_programs permute program_id "
    "range ravel reduce reshape rsqrt sigmoid sin sort split sqrt sqrt_rn static_assert static_print static_range "
    "store sum trans uint16 uint32 uint64 uint8 umulhi view where xor_sum zeros zeros_like".split()
)
OF_MODULES = {
    "tl": LANGUAGE,
    "triton": {"jit", "cdiv", "constexpr", "language", "next_power_of_2"},
    "math": set("ceil e exp floor inf log log2 nan pi sqrt".split()),
    "np": set("e float16 float32 inf int32 int64 nan pi".split()),
}
OF_TENSORS = LANGUAGE | {"T", "dtype", "element_ty", "shape", "to"}
BUILTINS = set("NotImplementedError abs bool float int len max min print range tuple".split())
CONSTANT = re.compile(r"tl\.constexpr|float|math\.\w+")  # calls that make one


def objection(source: str, imports: tuple[str, ...] = (), kernel: bool = False) -> str | None:
    """Why an answer cell with this source is not run in class, or None.

    imports: modules allowed besides MODULES. kernel: the answer is a Triton kernel.
    Source that is no Python is left to fail where it is run.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    allowed, own = sorted({*MODULES, *imports}), _own_names(tree)
    for node in ast.walk(tree):
        if reason := _foreign(node, allowed) or (kernel and _not_triton(node, own)):
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


def _not_triton(node, own):
    match node:
        case ast.Attribute(value=base, attr=name, ctx=ctx):
            allowed = OF_MODULES.get(getattr(base, "id", None), OF_TENSORS)
            refused = name not in allowed or not isinstance(ctx, ast.Load)
        case ast.Name(id=name, ctx=ctx):
            refused = name not in own | BUILTINS | OF_MODULES.keys() or name.startswith("__")
            refused |= name in OF_MODULES and not isinstance(ctx, ast.Load)
        case _:
            return "a kernel's cell may import modules as wholes only" if isinstance(node, ast.ImportFrom) else None
    return f"a kernel may not use {ast.unparse(node)}" if refused else None


def _own_names(tree):
    """What a cell defines: functions, parameters, variables. None of it is a builtin where an answer is marked."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return names | {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


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


# The words and names of CUDA C++ that a kernel may use. Whatever else it names is its own.
CUDA_WORDS = set(
    "auto bool break case char class const const_cast constexpr continue decltype default do double else enum "
    "explicit extern false float for goto if inline int long mutable namespace noexcept nullptr operator private "
    "public reinterpret_cast return short signed sizeof static static_assert static_cast struct switch template "
    "this true typedef typename union unsigned using void volatile while alignas size_t int8_t int16_t int32_t "
    "int64_t uint8_t uint16_t uint32_t uint64_t uintptr_t __global__ __device__ __host__ __constant__ __shared__ "
    "__forceinline__ __noinline__ __launch_bounds__ __align__ __restrict__ threadIdx blockIdx blockDim gridDim "
    "warpSize x y z w uint3 float2 float4 make_float2 make_float4 __syncthreads __syncwarp __ballot_sync __any_sync "
    "__all_sync __shfl_sync __shfl_up_sync __shfl_down_sync __shfl_xor_sync __int_as_float __float_as_int __expf "
    "__logf __fdividef __popc __ldg min max abs isnan isinf isfinite sqrt sqrtf rsqrtf cbrtf exp expf exp2 exp2f "
    "expm1f log logf log2 log2f log10f log1pf pow powf fabs fabsf fmax fmaxf fmin fminf fma fmaf floor floorf ceil "
    "ceilf round roundf rint rintf trunc truncf fmod fmodf copysignf sin sinf cos cosf tan tanf tanh tanhf sinh "
    "sinhf cosh coshf asinf acosf atanf atan2f erff erfcf ldexpf hypotf lroundf lrintf llrintf".split()
)
OWN = "own_"  # stands before a kernel's own names where it is compiled
CUDA_TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n\\]*|/\*[^\\]*?\*/)|(?P<text>\"C\")|(?P<number>\.?\d(?:[eEpP][+-]|'\w|[\w.])*)|(?P<name>[^\W\d]\w*)|"
    r"(?P<pragma>\#[ \t]*pragma[ \t]+unroll\b[^\n\\/]*)|(?P<refused>\[\s*\[|<:|%:|[\"'\#\\$@`]|/\*)|(?P<sign>.)",
    re.DOTALL,
)


def with_own_names(source: str) -> tuple[str, str | None]:
    """A kernel in which all that CUDA C++ does not know is renamed, and why it is not run, or None."""
    # A macro would make names, and a backslash joins lines, also those of comments.
    renamed, line = [], 1
    for token in CUDA_TOKEN.finditer(source):
        if token["refused"]:
            word = re.match(r"#[ \t]*\w+|\[\s*\[|\S", source[token.start() :])[0]
            word = {'"': "character strings", "\\": "a backslash", "/": "a comment with a backslash"}.get(word, word)
            return source, f"line {line}: it may not use {word}" + "; write `const int`" * word.endswith("define")
        is_own = token["name"] and token["name"] not in CUDA_WORDS
        renamed.append(OWN * bool(is_own) + token[0])
        line += token[0].count("\n")
    return "".join(renamed), None


def without_prefix(text: str) -> str:
    """What a compiler or a report says of a renamed kernel, in its own names."""
    return re.sub(rf"\b{OWN}(?=\w)", "", text)
