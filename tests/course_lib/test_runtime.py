"""The choice of mode, each time in a new process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    """A fresh Python in the repository, with no GPU in sight and TRITON_INTERPRET unset unless given."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"CUDA_VISIBLE_DEVICES": ""} | variables
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


# An interpreted kernel that needs Triton's own library, which half-works when the mode is set too late.
KERNEL = """
import torch, triton, triton.language as tl
from course_lib import runtime

@triton.jit
def row_sum(x_ptr, out_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK)) + tl.zeros((BLOCK,), tl.float32)
    tl.store(out_ptr, tl.sum(x, 0))

x, out = torch.arange(16.0, device=runtime.device()), torch.zeros(1, device=runtime.device())
row_sum[(1,)](x, out, BLOCK=16)
print(out.item())
"""


def test_a_new_process_interprets_and_needs_course_lib_only(tmp_path):
    """The mode is chosen before Triton is imported. Then the README's code runs; Gluon kernels need an emulator."""
    (of_readme,) = re.findall("```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL)
    script = tmp_path / "kernel.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import torch; from course_lib import runtime; "
        "print(runtime.choose(), runtime.mode(), runtime.device(), 'triton' in sys.modules)\n"
        f"{KERNEL}\n{of_readme}\nprint(tuple(out.shape), 'courseware' in sys.modules)\n"
        "from course_lib.kernels.hopper import forward"
    )
    result = python(str(script))
    said = ["interpreter interpreter cpu False", "120.0", "(1, 2, 100, 64) False"]
    assert result.stdout.splitlines() == said, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last == "RuntimeError: without a GPU, gluon kernels need an emulator: import courseware first"


TRITON_FIRST = """
import os, triton
os.environ["TRITON_INTERPRET"] = "1"
for code in ("from courseware import start; start()", "import course_lib.kernels"):
    try:
        exec(code)
    except RuntimeError as error:
        print(error)
"""


def test_importing_triton_first_is_a_clear_error():
    """Changing the environment afterwards does not deceive."""
    result = python("-c", TRITON_FIRST)
    lines = result.stdout.splitlines()
    assert len(lines) == 2, result.stderr
    for line in lines:
        assert line.startswith("Triton was imported before course_lib, and its kernels are compiled")
        assert "they must be interpreted. Restart the kernel" in line


@pytest.mark.parametrize("given, chosen", (("0", "gpu 0"), ("on", "interpreter 1")))
def test_the_users_own_choice_is_honoured(given, chosen):
    """Even where Triton was imported in the right mode before."""
    code = "import triton, os; from course_lib import runtime; print(runtime.choose(), os.environ['TRITON_INTERPRET'])"
    assert python("-c", code, TRITON_INTERPRET=given).stdout.strip() == chosen
