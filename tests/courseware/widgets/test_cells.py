"""Answers as people type them into cells: each is checked and comes back with `restore`, or it is said what to do."""

import inspect
import re

import IPython
import pytest
from IPython.core.interactiveshell import InteractiveShell

from course_lib import runtime
from courseware.checks import learner, registry
from courseware.widgets import cells, page

PASSED, UNKNOWN = ": passed, ", ": Python does not know the answer's source"
IMPORTS = "import functools, torch\nimport numpy as np\nfrom course_lib.language import tl, triton"
STUB = "def softmax_scale(head_dim):\n    raise NotImplementedError\n"
SCALE = "def softmax_scale(head_dim):\n    return 1 / np.sqrt(head_dim)\n"
ADD = inspect.getsource(registry.find("07.vector_add").answer)
CELLS = [  # a cell, what is said; where no more than that it passed, it comes back
    (f"@torch.compile\n{STUB}", ["not attempted yet"]),
    (f"@functools.lru_cache\n{SCALE}", [PASSED]),
    (f"@triton.jit\ndef plus(a, b):\n    return a + b\n\n{ADD.replace('x + y', 'plus(x, y)')}", [PASSED]),
    (f"@triton.autotune([triton.Config({{'BLOCK': 4}})], key=['n'])\n{ADD}", [PASSED]),
    (f"@triton.heuristics({{'BLOCK': lambda given: 4}})\n{ADD}", [PASSED]),
    (f"%%time\n{SCALE}", [PASSED, "scale: its cell begins with %%time. ", "Run the cell without %%time."]),
    (f"%%capture\n%%prun -q\n{SCALE}", [PASSED, "begins with %%capture."]),
    (f"{SCALE})", ["the cell above has a syntax error in line 3, so Python still has the softmax_scale"]),
    (f"%%timeit -n1 -r1\n{SCALE}", ["not attempted yet", "begins with %%timeit."]),
    (f"%%time\n{ADD}", ["vector_add: its cell begins with %%time."]),
    ("softmax_scale = functools.partial(pow, exp=-0.5)", [PASSED, UNKNOWN]),
    (f"{ADD}vector_add = functools.partial(vector_add, BLOCK=4)", [UNKNOWN]),
]


@pytest.mark.skipif(runtime.mode() != "interpreter", reason="kernels are interpreted")
@pytest.mark.parametrize("cell, told", CELLS)
def test_an_answer_in_a_cell(cell, told, monkeypatch, tmp_path, capsys):
    shell, exercise = InteractiveShell(), "07.vector_add" if "@triton" in cell else "00.softmax_scale"
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.setattr(page, "in_notebook", lambda: False)
    for text in (IMPORTS, STUB, cell):
        shell.run_cell(text, store_history=True)
    for mode in ("interpreter", "gpu"):  # where kernels are compiled for a GPU, another process checks them
        monkeypatch.setenv("COURSEWARE_PROGRESS", str(tmp_path / f"{mode}.json"))
        monkeypatch.setattr(runtime, "mode", lambda mode=mode: mode)
        learner.check(exercise, shell.user_ns[exercise[3:]])
        said = re.sub(r"\s+", " ", capsys.readouterr().out)  # it may break its lines anywhere
        assert all(part in said for part in told), said
        learner.restore(exercise)
        assert (cell.rstrip() in capsys.readouterr().out) == (told == [PASSED])


def test_a_name_that_is_gone_after_a_restart_is_explained(monkeypatch, capsys):
    shell = InteractiveShell()
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    cells.explain_unknown_names(lambda: print("explained"))
    for cell, said in (("softmax_scale", True), ("1 / 0", False)):
        shell.run_cell(cell)
        assert ("explained" in capsys.readouterr().out) == said
