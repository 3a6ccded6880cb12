"""The tracer: counts, names, heat maps, and what it reports about wrong kernels."""

import linecache
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from course_lib import runtime
from courseware.tracer import TensorTrace, Trace, sources, trace

DEVICE = runtime.device()
interpreted = pytest.mark.skipif(DEVICE != "cpu", reason="kernels run compiled here; the remote test covers tracing")


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, shift, limit, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets + shift, mask=offsets < n)
    tl.store(y_ptr + offsets, x, mask=offsets < limit)


@triton.jit
def add_up_kernel(x_ptr, total_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total_ptr + offsets % 2, tl.load(x_ptr + offsets))


@triton.jit
def square_kernel(x_ptr, PRECISION: tl.constexpr):
    offsets = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(x_ptr + offsets)
    tl.store(x_ptr + offsets, tl.dot(x, x, input_precision=PRECISION).to(x.dtype))


def run_copy(n=10, shift=0, limit=10):
    x, y = torch.arange(10.0), torch.full((10,), -1.0)
    with trace(source=x, target=y) as traced:
        copy_kernel[(3,)](x, y, n, shift, limit, BLOCK=4)
    return traced, x, y


@interpreted
def test_a_right_kernel_is_counted_and_still_works():
    traced, x, y = run_copy()
    assert torch.equal(x, y) and traced.violations == []
    assert traced.by_tensor == {"source": (40, 0), "target": (0, 40)}
    assert (traced.load_bytes, traced.store_bytes) == (40, 40)
    assert (traced.heatmap("source") == 1).all() and not traced.unwritten("target").any()
    assert np.flatnonzero(run_copy(limit=9)[0].unwritten("target")).tolist() == [9]
    _, _, y = run_copy(n=8)
    assert y[8] == np.inf and torch.isnan(y[9]), "masked lanes without `other` are not zero"
    axes = traced.draw("target", kind="store").axes[0]
    assert axes.get_title() == "target: stores per element" and axes.images[0].get_array().shape == (10, 1)


@interpreted
@pytest.mark.parametrize(
    "shift,program,index,count", ((1, (2, 0, 0), 10, 1), (-2, (0, 0, 0), -2, 2), (10**9, (0, 0, 0), 10**9, 4))
)
def test_an_access_out_of_bounds_is_named_and_kills_nothing(shift, program, index, count):
    traced, _, _ = run_copy(shift=shift)
    first = traced.violations[0]
    assert (first.kernel, first.tensor, first.kind) == ("copy_kernel", "source", "load")
    assert (first.program, first.index, first.count, first.shape) == (program, (index,), count, (10,))
    assert f"load of {count} elements outside source [10], the first at [{index}]" in str(first)


@interpreted
def test_running_from_one_tensor_into_the_next_is_noticed_and_not_carried_out():
    # All are views of one storage, so memory itself would never complain.
    storage = torch.zeros(30)
    x, y = storage[:10], storage[10:20]
    with trace(x=x, y=y) as traced:
        copy_kernel[(3,)](x, y, 10, 4, 10, BLOCK=4)
        copy_kernel[(3,)](torch.ones(12), y, 12, 0, 12, BLOCK=4)
    assert [(v.tensor, v.kind, v.index, v.count) for v in traced.violations] == [
        ("x", "load", (10,), 2), ("x", "load", (12,), 2), ("y", "store", (10,), 2),
    ]  # fmt: skip
    assert storage.tolist() == [0.0] * 10 + [1.0] * 10 + [0.0] * 10


@interpreted
def test_what_runs_over_an_axis_of_a_view_is_told_in_indices():
    """Of the axis that the access goes along, whose end it passes; and in the gap between two rows."""
    x, wide = torch.zeros(2, 10), torch.zeros(4, 6)[:, :4]
    with trace(x=x, wide=wide) as traced:
        copy_kernel[(3,)](x[1:], torch.zeros(12), 12, 0, 12, BLOCK=4)
        copy_kernel[(3,)](torch.zeros(12), x.view(2, 1, 10)[1:], 12, 0, 12, BLOCK=4)
        copy_kernel[(2,)](wide, torch.zeros(8), 8, 0, 8, BLOCK=4)
    found = [(v.index, v.last, v.count) for v in traced.violations]
    assert found == [((0, 10), (0, 11), 2), ((0, 0, 10), (0, 0, 11), 2), ((0, 4), (0, 5), 2)]
    assert traced.heatmap("wide").tolist() == [[1, 1, 1, 1], [1, 1, 0, 0], [0] * 4, [0] * 4]


@interpreted
def test_tensors_without_a_name_are_called_after_the_parameter():
    with trace() as traced:
        copy_kernel[(3,)](torch.zeros(10), torch.zeros(10), 10, 0, 10, BLOCK=4)
        copy_kernel[(3,)](torch.zeros(5), torch.zeros(10), 5, 0, 5, BLOCK=4)
    assert traced.by_tensor == {"x": (40, 0), "y": (0, 40), "x#2": (20, 0), "y#2": (0, 20)}


@interpreted
def test_atomics_are_a_load_and_a_store():
    x, total = torch.ones(8), torch.zeros(2)
    with trace(x=x, total=total) as traced:
        add_up_kernel[(2,)](x, total, BLOCK=4)
    assert total.tolist() == [4.0, 4.0] and traced.by_tensor == {"x": (32, 0), "total": (32, 32)}


@interpreted
@pytest.mark.parametrize(
    "dtype, precision, expected",
    [("float32", None, 6), *(("float32", exact, 0) for exact in ("tf32x3", "bf16x6", "ieee")), ("float16", None, 0)],
)
def test_products_that_a_gpu_would_round_are_counted(dtype, precision, expected):
    x = torch.zeros(16, 16, dtype=getattr(torch, dtype))
    with trace() as traced:
        square_kernel[(3,)](x, precision)
        square_kernel[(3,)](x, precision)
    assert traced.rounding_dots == expected


@interpreted
def test_nothing_stays_patched():
    with pytest.raises(ZeroDivisionError):
        with trace() as traced:
            raise ZeroDivisionError
    copy_kernel[(3,)](torch.zeros(10), torch.zeros(10), 10, 0, 10, BLOCK=4)
    assert not traced.tensors


def test_the_counts_of_several_launches_add_up():
    def counted(n, loads, rounding_dots):
        x = TensorTrace("x", (n,), 4, np.full(n, loads), np.zeros(n, int))
        return Trace({"x": x}, [f"violation {loads}"], rounding_dots)

    total = counted(2, 1, 3)
    total.add(counted(2, 4, 5))
    assert (total.load_bytes, total.violations, total.rounding_dots) == (40, ["violation 1", "violation 4"], 8)
    total.add(counted(3, 1, 0))
    assert total.load_bytes == 12, "a tensor of another shape is another tensor"


def test_bad_names_are_refused():
    with pytest.raises(TypeError, match="x must be a torch.Tensor, got list"):
        trace(x=[1])
    with trace() as traced:
        pass
    with pytest.raises(KeyError, match="no tensor 'q' was traced; there are none"):
        traced.heatmap("q")
    with pytest.raises(ValueError, match="kind must be 'load' or 'store', got 'both'"):
        traced.heatmap("q", kind="both")


REMOTE = """
import torch, triton, triton.language as tl
from course_lib import runtime
from courseware.tracer import trace
assert runtime.mode() == "gpu"

HALF = tl.constexpr(0.5)

@triton.jit
def scaled(x):
    return 2 * x * HALF

@triton.jit
def notebook_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, scaled(tl.load(x_ptr + offsets)), mask=offsets < n - 1)

x = torch.arange(10.0)
y = torch.full((10,), -1.0)
with trace(x=x, result=y) as traced:
    notebook_kernel[lambda meta: (triton.cdiv(10, meta["BLOCK"]),)](x, y, 10, BLOCK=4)
    notebook_kernel[(1,)](x, y, 10, BLOCK=4)
print(y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, -1])
try:
    with trace(x=x):
        notebook_kernel[(1,)](x, y, 10, BLOCK=3)
except ValueError as error:
    print("raised", type(error).__name__)
print(traced.by_tensor)
print(*traced.violations)
"""


def test_compiled_launches_are_traced_in_an_interpreted_subprocess(tmp_path):
    """As on a GPU, with a kernel that only a script holds. No GPU is needed: the launch goes to another process."""
    (tmp_path / "notebook.py").write_text(REMOTE)
    run = subprocess.run(
        [sys.executable, tmp_path / "notebook.py"], capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert run.stdout.splitlines() == [
        "True",
        "raised ValueError",
        "{'x': (56, 0), 'result': (0, 52)}",
        "notebook_kernel, program (2, 0, 0): load of 2 elements outside x [10], the first at [10]",
    ], run.stderr


CELL = """
import functools, math
table = np.arange(4.0)
one = 1
least = tl.constexpr(float("-inf"))
x = (i for i in range(3))   # cannot be pickled, and is not what the answer's own x are

def double(a, once=one):
    return factor * a * once

factor = 2
halve = lambda a: a / 2
alias = double
half = halve

@functools.lru_cache
def kept(a):
    return a + one

def answer(n):
    inner = lambda x: x + math.floor(1.5)

    class Local:
        value = factor

    rest = [half(3), kept(4), Local.value, least.value]
    return [inner(x) for x in alias(table)[:n]] + rest
"""
# Of these, nothing can be sent: neither what only this notebook can make, nor what its source no longer defines.
CANNOT = """
class Number:
    pass

number, older = Number(), double

def double(a):
    return 3 * a

def outer(inside):
    return lambda: inside

closed = outer(1)
two = 2; combined = lambda: two

def uses():
    return {}
"""


def a_cell(source):
    """The namespace of a notebook that has run one cell."""
    linecache.cache["<cell>"] = (len(source), None, source.splitlines(keepends=True), "<cell>")
    namespace = {"__name__": "__main__", "np": np, "tl": tl}
    exec(compile(source, "<cell>", "exec"), namespace)
    return namespace


def test_an_answer_takes_what_it_names_to_another_process_and_nothing_else():
    cell, there = a_cell(CELL), {"__name__": "__main__", "np": np}
    exec("\n".join(sources(cell["answer"], given=("np",))), there)
    assert there["answer"](3) == cell["answer"](3) == [1, 3, 5, 1.5, 5, 2, -np.inf]


@pytest.mark.parametrize("name", ("x", "number", "older", "closed", "combined"))
def test_what_cannot_be_sent_is_named(name):
    with pytest.raises(TypeError, match=f"^{name}, a .*, cannot be sent to another process: "):
        sources(a_cell(CELL + CANNOT.format(name))["uses"])
