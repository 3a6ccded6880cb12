"""What an answer may use in class: every answer that the course knows is let through, every way round is not."""

import ast
import inspect
import textwrap
import types

import numpy as np
import pytest

from course_lib.grading import marking, registry, rules
from tests.exercises.right_answers import right_answers


def sources(exercise):
    """The answer, and every wrong and right answer that the course knows and that is not a lambda."""
    wrong = [answer for slip in exercise.slips for answer in slip.answers(exercise.answer)]
    for answer in (exercise.answer, *wrong, *right_answers(exercise).values()):
        if answer.__name__ != "<lambda>":
            yield textwrap.dedent(inspect.getsource(answer))


@pytest.mark.parametrize("exercise_id", registry.exercises())
def test_no_rule_stands_in_the_way_of_an_answer(exercise_id):
    exercise = registry.find(exercise_id)
    for source in sources(exercise):
        ast.parse(source)
        # The slips that reach behind the memory machine, or for a finished implementation, are the only ones that the
        # rules refuse before the checks do.
        refused = rules.objection(source, exercise.imports) is not None
        assert refused == ("._array" in source or "\n    from course_lib." in source), source


KERNEL_IMPORTS = ("torch", "triton", "triton.language", "course_lib.kernels.primitives")


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nfrom numpy import exp, inf\nfrom math import sqrt\nfrom functools import reduce\nexp(inf)",
        "np.linalg.norm(np.ones(3))\nnp.random.default_rng(0).normal()\nnp.add.reduce([1])",
        "def _helper(x):\n    *_, last = x\n    return x.dtype.type(last)\n",
        "out = np.zeros(3)\nout[1:] = 1\nout.flat[0] += 2\nprint(f'{out}')",
        # The memory machine comes as an argument; its load and store are not NumPy's.
        "def f(machine, Q, O):\n    tile = machine.load(Q, slice(0, 2))\n    machine.store(O, slice(0, 2), tile)\n"
        "    machine.free(tile)\n    return machine.report().read_bytes\n",
    ],
)
def test_what_answers_need_is_allowed(source):
    assert rules.objection(source) is None


def test_an_exercise_may_allow_more():
    source = (
        "import torch\nimport triton\nimport triton.language as tl\n"
        "from course_lib.kernels.primitives import online_softmax_update\nfrom course_lib.kernels import primitives\n"
        "@triton.jit\ndef kernel(x_ptr, BLOCK: tl.constexpr):\n    x = tl.load(x_ptr + tl.arange(0, BLOCK))\n"
    )
    assert "may not import torch" in rules.objection(source)
    assert rules.objection(source, KERNEL_IMPORTS) is None
    for stranger in ("course_lib.kernels.flash", "course_lib.kernels", "course_lib.reference", "torch.nn"):
        assert "may not import" in rules.objection(f"import {stranger}", KERNEL_IMPORTS)


@pytest.mark.parametrize(
    "source",
    [
        "import course_lib",
        "from course_lib import reference",
        "from course_lib.exercises.lesson_05 import merge_states",
        "def f():\n    import torch",
        "from .. import grading",
        "import os",
        "import importlib",
        "__import__('course_lib')",
        "__builtins__",
        "exec('import course_lib')",
        "getattr(np, 'f2' + 'py')",
        "e = eval",
        "open('x')",
        "np.sum = None",
        "del np.sum",
        "for np.sum in [None]: pass",
        "np.sum += 1",
        "np.linalg.norm = None",
        "m = np.linalg\nm",
        "m = np",
        "[np][0]",
        "def f(m=np): pass",
        "import math as m\nm",
        "from numpy import linalg",
        "from numpy import f2py",
        "from numpy import load",
        "from numpy import *",
        "import numpy.f2py",
        "np.f2py.os.system('true')",
        "np.lib.stride_tricks.as_strided",
        "np.ctypeslib",
        "np.random.mtrand",
        "np.load('x', allow_pickle=True)",
        "np.ones(3).tofile('course_lib/grading/rules.py')",
        "np.ones(3).ctypes.data",
        "try:\n    np.none\nexcept AttributeError as e:\n    e.obj.array_equal",
        "(lambda: 0).__globals__",
        "().__class__.__base__.__subclasses__()",
        "(i for i in []).gi_frame.f_back",
        "try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__.tb_frame",
        "class Always: pass",
        "type('Always', (), {})",
        "def __getattr__(name): pass",
        "import functools\nfunctools.update_wrapper(np.sum, None)",
        "match 1:\n    case object(f2py=found): pass",
        "def f(machine):\n    machine.sram_bytes = 10**9",
        "def f(machine):\n    machine._hbm",
    ],
)
def test_a_way_round_is_refused(source):
    assert rules.objection(source), source


def test_source_that_is_no_python_is_left_to_fail():
    assert rules.objection("def f(:") is None


def test_no_module_is_in_reach_but_numpy_itself():
    """From np, over every attribute that the rules let through."""
    reached, new = set(), [np]
    while new:
        module = new.pop()
        reached.add(module.__name__)
        names = [name for name in dir(module) if not rules._hidden(name, module is np)]
        found = [value for name in names if isinstance(value := getattr(module, name, None), types.ModuleType)]
        new += [value for value in found if value.__name__ not in reached]
    # The last two are names from before NumPy 2.0, gone since 2.4.
    old = {"numpy.fft.helper", "numpy.linalg.linalg"}
    assert reached - old == {"numpy", "numpy.fft", "numpy.linalg", "numpy.random"}


def test_without_the_rules_the_reference_would_pass(monkeypatch):
    exercise_id = "05.merge_states"
    answer, check = marking.answer_cell(exercise_id), marking.check_cell(exercise_id)
    cells = {
        answer: "from course_lib.reference import merge_states",
        check: f'check("{exercise_id}", merge_states)',
    }
    assert not marking.mark(cells)[check]["passed"]
    monkeypatch.setattr(marking, "objection", lambda source, imports: None)
    assert marking.mark(cells)[check]["passed"]


def test_a_refused_cell_does_not_run_for_the_answers_after_it_either():
    first, second = "03.stable_softmax", "03.logsumexp"
    check = marking.check_cell(second)
    cells = {
        marking.answer_cell(first): "np.max = None",
        marking.check_cell(first): "",
        marking.answer_cell(second): inspect.getsource(registry.find(second).answer),
        check: f'check("{second}", logsumexp)',
    }
    assert marking.mark(cells)[check]["passed"]
