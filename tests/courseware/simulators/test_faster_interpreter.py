"""With `faster_interpreter`, results and messages are those of Triton's own interpreter: it only takes less time."""

import subprocess
import sys

import pytest

from course_lib import runtime

pytestmark = pytest.mark.skipif(runtime.mode() != "interpreter", reason="no kernel is interpreted here")

# As in a notebook: kernels among arrays, which compare element by element, and mistakes that a learner makes.
SCRIPT = """
import dataclasses, itertools, os
import numpy as np, torch, triton, triton.language as tl
from triton.runtime.interpreter import interpreter_builder
from courseware.simulators import faster_interpreter

array, tensor, table = np.arange(3), torch.arange(3), {"a": 1}

@triton.jit
def twice(x):
    return x + x

@triton.jit
def right(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0)
    for i in tl.range(0, 3):
        x = tl.where(x > i, twice(x), tl.maximum(x, 1))
    tl.store(y_ptr + offsets, x + tl.cumsum(x, 0) + tl.sum(x, axis=0), mask=offsets < n)

@triton.jit
def overflowing(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.store(y_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + tl.arange(0, BLOCK)) + 125)

@triton.jit
def misspelt(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.store(y_ptr, tl.laod(x_ptr))

def shown(kernel, x, y, n, BLOCK):
    try:
        kernel[(2,)](x, y, n, BLOCK=BLOCK)
        print(kernel.__name__, y.tolist())
    except Exception as error:
        print(kernel.__name__, type(error).__name__, error, repr(error.__cause__))

def show_all():
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.uint8):
        x = torch.arange(16).to(dtype)
        for kernel in (right, overflowing, misspelt, right):
            shown(kernel, x, torch.zeros_like(x), 13, 8)
    here = {"triton": triton, "jit": triton.jit}
    exec("def blind(x_ptr, y_ptr, n, BLOCK):\\n    pass", here)
    shown(triton.jit(here["blind"]), torch.zeros(8), torch.zeros(8), 8, 8)
    here["tl"] = tl  # imported after the kernel was defined, and launched in vain once
    shown(triton.jit(here["blind"]), torch.zeros(8), torch.zeros(8), 8, 8)

for debug, faster in itertools.product((False, True), repeat=2):
    if (child := os.fork()) == 0:
        interpreter_builder.options = dataclasses.replace(interpreter_builder.options, debug=debug)
        for _ in range(2 * faster):
            faster_interpreter.install()
        show_all()
        print("the end", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_results_and_messages_are_the_same(tmp_path):
    script = tmp_path / "kernels.py"  # a file, because Triton reads the source of a kernel
    script.write_text(SCRIPT)
    environment = runtime.environment(interpreting=True)
    run = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    *printed, _ = run.stdout.replace(" at 0x", "").split("the end\n")
    assert len(printed) == 4, run.stderr
    for debug, own, faster in ((False, *printed[:2]), (True, *printed[2:])):
        assert faster.splitlines() == own.splitlines() and own.count("\n") == 6 * 4 + 2
        assert "laod" in own and "must be visible" in own and ("overflow detected" in own) == debug
