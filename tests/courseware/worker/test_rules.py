"""What an answer may use in class: every answer that the course knows is let through, and a kernel is Triton alone."""

import inspect
import textwrap

import pytest

from courseware.checks import registry
from courseware.checks.kernel_calls import is_kernel
from courseware.checks.misconceptions import variants
from courseware.classroom import marking
from courseware.simulators.cuda_emulator import compiling
from courseware.worker import rules
from tests.courseware.exercises.right_answers import right_answers


@pytest.mark.parametrize("exercise_id", registry.exercises())
def test_no_rule_stands_in_the_way_of_an_answer(exercise_id):
    """The answer, and every wrong and right answer that the course knows and that is not a lambda."""
    exercise = registry.find(exercise_id)
    wrong = [form.answer for form in variants(exercise).values()]
    for answer in (exercise.answer, *wrong, *right_answers(exercise).values()):
        if answer.__name__ != "<lambda>":
            source = textwrap.dedent(inspect.getsource(answer))
            # The misconceptions that reach for a finished implementation are the only ones that the rules refuse.
            refused = rules.objection(source, exercise.imports, is_kernel(exercise)) is not None
            assert refused == ("\n    from course_lib." in source), source


NEEDED = [
    "import numpy as np\nfrom numpy import exp, inf\nfrom math import sqrt\nfrom functools import reduce\nexp(inf)",
    "np.linalg.norm(np.ones(3))\nnp.random.default_rng(0).normal()\nnp.add.reduce([1])",
    "class Running:\n    pass\ndef _helper(x):\n    *_, last = x\n    return getattr(x, 'dtype').type(last)\n",
    # The memory machine comes as an argument; its load and store are not NumPy's.
    "def f(machine, Q, O):\n    tile = machine.load(Q, 0)\n    machine.store(O, 0, tile)\n    machine.free(tile)\n",
    "def f(:",  # no Python: it is left to fail
]


@pytest.mark.parametrize("source", NEEDED)
def test_what_answers_need_is_allowed(source):
    assert rules.objection(source) is None


@pytest.mark.parametrize(
    "source",
    ["import course_lib", "from courseware.exercises.lesson_05 import dot", "def f():\n    import torch",
     "from .. import grading", "import os", "import numpy.f2py", "from triton import language"],
)  # fmt: skip
def test_an_answer_imports_what_computes_and_nothing_else(source):
    assert "may not import" in rules.objection(source)


KERNEL_IMPORTS = ("torch", "triton", "triton.language", "course_lib.kernels.device")
KERNEL = "@triton.jit\ndef kernel(x_ptr, BLOCK: tl.constexpr):\n    x = tl.load(x_ptr + tl.arange(0, BLOCK))\n"


def test_an_exercise_may_allow_more():
    source = "import torch\nimport triton\nimport triton.language as tl\nfrom course_lib.kernels import device\n"
    assert "may not import torch" in rules.objection(source)
    assert rules.objection(source + KERNEL, KERNEL_IMPORTS) is None
    for stranger in ("course_lib.kernels.attention", "course_lib.kernels", "torch.nn"):
        assert "may not import" in rules.objection(f"import {stranger}", KERNEL_IMPORTS)


@pytest.mark.parametrize(
    "line",
    ["tl.load(x_ptr).handle.data", "tl.core.np.exp(1.0)", "tl.softmax(x)", "tl.atomic_add(x_ptr, x)",
     "tl.math.core.np", "getattr(x, 'handle')", "x.__class__", "__builtins__", "import os", "tl._experimental",
     "from triton.language import core", "isinstance(tl.cdiv, triton.JITFunction)", "exec('1')", "print.__self__",
     "np.exp(x)", "(x + x).data", "y = x.to; type(y)"],
)  # fmt: skip
def test_a_kernel_is_triton(line):
    assert rules.objection(f"{KERNEL}    {line}\n", ("triton", "triton.language"), kernel=True)
    assert not rules.objection(KERNEL, ("triton", "triton.language"), kernel=True)


@pytest.mark.parametrize(
    "cell",
    ["for i in range(3):\n    pass\n", "print('null')\n", "LOG2_E = exit()\n", "class Kernel:\n    pass\n",
     "float = exec\nLOG2_E = float('exit()')\n", "tl.constexpr = exec\nLOG2_E = tl.constexpr('exit()')\n",
     "@(lambda f: f)\ndef kernel(x_ptr):\n    pass\n", "@triton.jit\ndef kernel(x_ptr, n=exit()):\n    pass\n",
     "@triton.jit\ndef kernel(x_ptr: exit()):\n    pass\n"],
)  # fmt: skip
def test_nothing_runs_beside_a_kernel(cell):
    assert rules.objection(cell, kernel=True)


def test_a_kernels_cell_may_hold_constants_and_helpers():
    cell = "LOG2_E: tl.constexpr = 1.4426950408889634\nB = tl.constexpr(float('-inf'))\nC = math.sqrt(2)\n"
    helper = "@triton.jit\ndef _kernel(data, n: tl.constexpr = 3):\n    for _ in range(n):\n        pass\n"
    assert not rules.objection(cell + helper, kernel=True)


CUDA = "__global__ void k(float* y) { y[0] = 1.0f; }\n"


@pytest.mark.parametrize(
    "line, said",
    [*((line, "it may not use") for line in (
        "#include <fstream>", "%:include <fstream>", "#define JOIN(a, b) a##b", "#pragma GCC poison f", "int sys\\\nt;",
        "// \\\nfork();", "/* *\\\n/ fork(); /* */",
        "[[gnu::no_sanitize_thread]] int f();", "<:<:gnu::constructor:>:> int f();", 'const char* s = "/*"; int t;',
        'auto s = R"(*/)";')),
     # Whatever else leads out has a name, which the kernel would have to define itself.
     ('extern "C" int system(const char*); int n = system(0);', "system is declared but not defined"),
     ("int n = fork();", "fork"), ("void f() { __asm__ volatile(0); }", "__asm__"), ("std::ofstream f;", "std"),
     ("__attribute__((constructor)) void f() {}", "__attribute__"), ("auto n = &__builtin_memcpy;", "__builtin_memcpy"),
     ("void f(char* a) { __tsan_read1(a); runner::finish(true); }", "__tsan_read1")],
)  # fmt: skip
def test_cuda_cpp_that_reaches_outside_is_refused(line, said):
    renamed, reason = rules.with_own_names(CUDA + line)
    if reason is None:
        with pytest.raises(compiling.CompileError) as refusal:
            compiling.program_of(renamed, "own_k")
        reason = rules.without_prefix(str(refusal.value))
    assert said in reason and ("line 2" in reason or "declared but" in reason)


def test_what_kernels_in_cuda_cpp_need_is_allowed():
    lines = "#pragma unroll\n  #pragma unroll 4\n// system's \"opens\" #\n/* it's */ int own_kills = 1'000 + 0x1p3f;"
    source = f'{lines}\nextern "C" __global__ void own_f(float* x) {{ if (x[0] > threadIdx.x) x[0] = expf(x[1]); }}'
    renamed, reason = rules.with_own_names(source)
    assert reason is None and rules.without_prefix(renamed) == source
    assert rules.with_own_names(f"{lines}\n\n#if 1")[1].startswith("line 6: it may not use #if")


def test_a_refused_cell_does_not_run_for_the_answers_after_it_either():
    first, second = "03.stable_softmax", "03.logsumexp"
    answers = {first: "import os\nos._exit(0)", second: inspect.getsource(registry.find(second).answer)}
    marks = marking.mark(answers, {second: f'check("{second}", logsumexp)'})
    assert marks[second]["passed"]
