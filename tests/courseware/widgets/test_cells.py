"""Answers as people type them into cells: each is checked and comes back with `restore`, or it is said what to do."""

import inspect
import re

import pytest
from IPython.core.interactiveshell import InteractiveShell

from course_lib import runtime
from courseware.checks import learner, registry
from courseware.widgets import cells, page

PASSED = ": passed, "
SCALE = "def softmax_scale(head_dim):\n    return 1 / np.sqrt(head_dim)\n"
IMPORTS = "import functools, inspect, torch\nimport numpy as np\nfrom course_lib.language import tl, triton"
STUB = "def softmax_scale(head_dim):\n    raise NotImplementedError\n"
# When `@triton.jit` compiles for a GPU, it looks for the source while the cell runs.
POWER = "def power(exponent, x):\n    return x**exponent\ninspect.getsource(power)\nsoftmax_scale = "
ADD = "@triton.jit\n" + inspect.getsource(registry.find("07.vector_add").answer).removeprefix("@triton.jit\n")
CELLS = [  # a cell, what is said, whether it comes back
    (f"%%time\n{POWER}lambda d: power(-0.5, d)\nsoftmax_scale(4)", PASSED, True),
    (f"%%prun -q\n{POWER}functools.partial(power, -0.5)", PASSED, True),
    (f"%%capture\n%%time\n@functools.lru_cache\n{SCALE}", PASSED, True),
    (f"%%timeit -n1 -r1\n{SCALE}", "softmax_scale: what a cell with %%timeit defines is lost.", False),
    (f"%%time\n{STUB}", "not attempted yet", False),
    (f"@torch.compile\n{SCALE}", PASSED, True),
    ("class Scale:\n    def __call__(self, d):\n        return d**-0.5\nsoftmax_scale = Scale()", PASSED, True),
    ("softmax_scale = np.vectorize(lambda d: d**-0.5)", PASSED, True),
    (f"exec({SCALE!r})", "`restore` cannot bring this answer back, because its source is not known.", False),
    (f"%%time\n@triton.jit\ndef plus(a, b):\n    return a + b\n\n{ADD.replace('x + y', 'plus(x, y)')}", PASSED, True),
    (f"%%prun -q\n@triton.autotune([triton.Config({{'BLOCK': 4}})], key=['n'])\n{ADD}", PASSED, True),
    (f"@triton.heuristics({{'BLOCK': lambda given: 4}})\n{ADD}", PASSED, True),
    (f"exec({ADD!r})", "define the kernel with def in a cell", False),
    (f"{ADD}vector_add = functools.partial(vector_add, BLOCK=4)", "@triton.jit, not partial: pass the", False),
]


@pytest.mark.skipif(runtime.mode() != "interpreter", reason="kernels are interpreted")
@pytest.mark.parametrize("cell, told, comes_back", CELLS)
def test_an_answer_in_a_cell(cell, told, comes_back, monkeypatch, tmp_path, capsys):
    shell, exercise = InteractiveShell(), "07.vector_add" if "@triton" in cell else "00.softmax_scale"
    monkeypatch.setattr(cells, "_shell", lambda: shell)
    monkeypatch.setattr(page, "in_notebook", lambda: False)
    cells.watch()
    for text in (IMPORTS, STUB, cell):
        shell.run_cell(text, store_history=True)
    for mode in ("interpreter", "gpu"):  # where kernels are compiled for a GPU, another process checks them
        monkeypatch.setenv("COURSEWARE_PROGRESS", str(tmp_path / f"{mode}.json"))
        monkeypatch.setattr(runtime, "mode", lambda mode=mode: mode)
        learner.check(exercise, shell.user_ns[exercise[3:]])
        assert told in capsys.readouterr().out
        learner.restore(exercise)
        assert (re.sub(r"%%.*\n", "", cell).rstrip() in capsys.readouterr().out) == comes_back
