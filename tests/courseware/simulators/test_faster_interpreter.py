"""With `faster_interpreter`, results and messages are those of Triton's own interpreter: it only takes less time."""

import subprocess
import sys

import pytest

from course_lib import runtime

pytestmark = pytest.mark.skipif(runtime.mode() != "interpreter", reason="no kernel is interpreted here")

# As in a notebook: kernels among arrays, which compare element by element, and mistakes that a learner makes.
SCRIPT = """
import sys
import numpy as np, torch, triton, triton.language as tl
if sys.argv[2:] == ["debug"]:
    import dataclasses
    from triton.runtime import interpreter
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, debug=True)
if sys.argv[1] == "faster":
    from courseware.simulators import faster_interpreter
    faster_interpreter.install()
    faster_interpreter.install()

array, tensor, table = np.arange(3), torch.arange(3), {"a": 1}

@triton.jit
def twice(x):
    return x + x

@triton.jit
def right(x_ptr, y_ptr, n, BLOCK: tl.constexpr, START: tl.constexpr = 0):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=START)
    for i in tl.range(0, 3):
        x = tl.where(x > i, twice(x), tl.maximum(x, 1))
    tl.store(y_ptr + offsets, x + tl.cumsum(x, 0) + tl.sum(x, axis=0), mask=offsets < n)

@triton.jit
def product(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(y_ptr + at, tl.dot(x, tl.trans(x)).to(y_ptr.dtype.element_ty))

@triton.jit
def counted(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.atomic_add(y_ptr + tl.arange(0, BLOCK) * 0, 1)

@triton.jit
def overflowing(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.store(y_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + tl.arange(0, BLOCK)) + 125)

@triton.jit
def misspelt(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.store(y_ptr, tl.laod(x_ptr))

@triton.jit
def unknown_helper(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.store(y_ptr, thrice(tl.load(x_ptr)))

@triton.jit
def wrong_shapes(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.store(y_ptr, tl.arange(0, 4) + tl.arange(0, 8))

@triton.jit
def adds_pointers(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.store(y_ptr, tl.load(x_ptr + y_ptr))

@triton.jit
def jax(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.store(y_ptr, array)

def shown(kernel, x, y, n, BLOCK, **options):
    try:
        kernel[(2,)](x, y, n, BLOCK=BLOCK, **options)
        print(kernel.__name__, y.tolist())
    except Exception as error:
        print(kernel.__name__, type(error).__name__, error, repr(error.__cause__))

for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.uint8):
    x = torch.arange(16).to(dtype)
    for kernel in (right, overflowing, misspelt, unknown_helper, wrong_shapes, adds_pointers, jax, right):
        shown(kernel, x, torch.zeros_like(x), 13, 8)
shown(product, torch.arange(256.0).view(16, 16) / 256, torch.zeros(16, 16), 16, 16)
shown(product, torch.arange(256.0).half().view(16, 16) / 256, torch.zeros(16, 16), 16, 16)
shown(counted, torch.zeros(8), torch.zeros(1, dtype=torch.int32), 8, 8)
shown(right, torch.arange(16.0), torch.zeros(16), 13, 8, START=2)
here = {"triton": triton, "jit": triton.jit}
exec("def blind(x_ptr, y_ptr, n, BLOCK):\\n    pass", here)
shown(triton.jit(here["blind"]), torch.zeros(8), torch.zeros(8), 8, 8)
here["tl"] = tl  # imported after the kernel was defined, and launched in vain once
shown(triton.jit(here["blind"]), torch.zeros(8), torch.zeros(8), 8, 8)
"""


def told(tmp_path, *arguments):
    script = tmp_path / "kernels.py"  # a file, because Triton reads the source of a kernel
    script.write_text(SCRIPT)
    environment = runtime.environment(interpreting=True)
    run = subprocess.run([sys.executable, script, *arguments], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.replace(" at 0x", "").splitlines()


@pytest.mark.parametrize("mode", ([], ["debug"]), ids=["usual", "debug"])
def test_results_and_messages_are_the_same(tmp_path, mode):
    own, faster = (told(tmp_path, which, *mode) for which in ("own", "faster"))
    assert faster == own
    assert len(own) == 6 * 8 + 6
    assert any("laod" in line for line in own) and any("must be visible" in line for line in own)
    assert any("overflow detected" in line for line in own) == bool(mode)
