"""The runner on small kernels: mistakes planted in them, each found in its line and by its kind; and right kernels.

All of them are functions of one source, which is compiled once. In a case, `// here` marks the line that the finding
must name; lines are counted from the first of the case.
"""

import re
import shutil
import subprocess
import uuid

import numpy as np
import pytest

from courseware.simulators.cuda_emulator.compiling import CompileError, NoCompiler
from courseware.simulators.cuda_emulator.report import Accesses, Memory
from courseware.simulators.cuda_emulator.runner import launch

COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
X = np.arange(1024, dtype=np.float32)
ZEROS = np.zeros(32, np.float32)


@pytest.fixture(params=COMPILERS, autouse=True)
def compiler(request, monkeypatch):
    monkeypatch.setenv("CXX", request.param)
    return request.param


# What some cases use. A kernel that is not launched may have more shared memory than there is, and names may be those
# of the runner.
BEFORE = """
#include <cassert>
__device__ float kept[32];
__constant__ float table[4] = {0, 10, 20, 30};
__device__ int ones[2] = {1, 1};
__device__ __forceinline__ float twice(float v) { return 2 * v; }
template <int W> __device__ __noinline__ float at(const float* __restrict__ x, int i) { return __ldg(x + i % W); }
__device__ __noinline__ float many(int n) { volatile float v[1 << 17]; v[n] = 1; return v[n]; }
__global__ void other(float* y) { __shared__ float s[16384]; s[threadIdx.x] = 1; y[0] = s[0]; }
enum { SYNC, LOAD };
struct Argument { int x; } __device__ constexpr access = {4}, threads = {5};
struct Thread { int x; }; struct Register {};
__device__ int call(int v) { return v; }
"""
# In all cases, t is threadIdx.x.
REVERSED = "__shared__ float s[64]; s[t] = x[t]; // here\n {}\n y[t] = s[63 - t];"

# name: (body, options of the launch, kind of the finding, words of the finding)
MISTAKES = {
    "no barrier between store and load": (
        REVERSED.format(""), {"block": 64}, "race",
        ["thread 32 of block 0 stores element 32 of s", "thread 31 loads in line 3", "no barrier"],
    ),
    "no __syncwarp within a warp": (
        "__shared__ float s[32]; s[t] = 1; // here\n y[t] = s[t ^ 1];", {}, "race",
        ["thread 1 ", "thread 0 loads in line 2", "__syncwarp()"],
    ),
    "__syncwarp for the other half of the warp": (
        "__shared__ float s[32]; s[t] = 1;\n if (t < 16) __syncwarp(0xffff);\n y[t] = s[t ^ 17]; // here",
        {}, "race", [],
    ),
    "a shuffle in the place of a barrier": (
        "__shared__ float s[32]; s[t] = 1;\n float v = __shfl_xor_sync(~0u, 1.0f, 1);\n y[t] = v + s[t ^ 1]; // here",
        {}, "race", [],
    ),
    "__syncwarp between two warps": (
        "__shared__ float s[32]; if (t < 32) s[t] = 1; else __syncwarp();\n if (t >= 32) y[t] = s[t - 32]; // here",
        {"block": 64}, "race", ["thread 32 ", "thread 0 stores in line 1", "no barrier"],
    ),
    "a store of what others load, by the first that loaded it": (
        "__shared__ float s; if (t == 0) s = 1;\n __syncthreads(); float v = s;\n"
        " v += __shfl_xor_sync(~0u, v, 1); if (t == 0) s = v; // here\n y[t] = v;", {}, "race",
        ["thread 0 of block 0 stores element 0 of s", "thread 1 loads in line 2"],
    ),
    "a store long after the load of another warp": (
        "__shared__ float s; if (t == 0) s = 1;\n __syncthreads(); float v = s; __syncwarp();\n"
        " if (t < 32) for (int i = 0; i < 20000; i++) ((volatile float*)y)[t] = i;\n"
        " if (t == 0) s = v; // here\n y[t] = v;", {"block": 64}, "race",
        ["thread 0 of block 0 stores", "thread 32 loads in line 2", "no barrier"],
    ),
    "blocks share an element of the output": (
        "if (t == 0)\n y[0] = x[blockIdx.x]; // here", {"grid": 3}, "race",
        ["thread 0 of block 1 stores y[0], which thread 0 stores in line 2 as part of block 0. Blocks run in any"],
    ),
    "store one behind the end, in two dimensions": (
        "if (threadIdx.y == 2 && t == 5) y[n] = 0; // here", {"block": (32, 4)}, "out of bounds",
        ["thread (5, 2) of block 0 stores y[1024]"],
    ),
    "outside a matrix": (
        "y[-1] = 0; // here", {"y": np.zeros((6, 7), np.float32)}, "out of bounds",
        ["stores y[-1, 6], outside y, whose shape is [6, 7]"],
    ),
    "no array at all": (
        "auto none = (const float*)(size_t)n;\n y[t] = none[7]; // here", {}, "out of bounds", ["address 0x41c"],
    ),
    "a variable outside the kernel": (
        "kept[t] = x[t]; // here\n y[t] = kept[t];", {}, "global variable", ["thread 0 of block 0 stores to a"],
    ),
    "dynamic shared memory, smaller than needed": (
        "extern __shared__ float few[];\n few[t] = 1; // here", {"shared_bytes": 64}, "out of bounds",
        ["thread 16 ", "element 16 of few"],
    ),
    "an address that float4 cannot have": (
        "float4 v = *(const float4*)(x + t); // here\n y[t] = v.x;", {}, "misaligned", ["thread 1 ", "x[1]"],
    ),
    "shared memory that nobody has stored": (
        "__shared__ float s[32]; if (t) s[t] = 1;\n __syncthreads();\n y[t] = s[t]; // here", {}, "unwritten",
        ["thread 0 ", "element 0 of s"],
    ),
    "shared memory that the previous block has stored": (
        "__shared__ float s[32]; int b = blockIdx.x; if (b == 0) s[t] = 1;\n __syncthreads();"
        " y[32 * b + t] = s[t]; // here",
        {"grid": 2}, "unwritten", ["block 1"],
    ),
    "a barrier for some, when others have returned": (
        "if (t >= 20) return;\n if (t < 16)\n  __syncthreads(); // here\n else\n  __syncthreads();", {}, "barrier",
        ["thread 0 and 15 more wait at __syncthreads() in line 3, thread 16 and 3 more", "20 and 11 more returned"],
    ),
    "a shuffle for half of the warp": (
        "float v = x[t];\n if (t < 16)\n  v += __shfl_xor_sync(~0u, v, 8); // here\n __syncthreads(); y[t] = v;", {},
        "shuffle", ["thread 0 and 15 more wait for other lanes", "thread 16 and 15 more wait at __syncthreads()"],
    ),
    "a shuffle from a thread that has returned": (
        "if (t >= 16) return;\n y[t] = __shfl_down_sync(~0u, x[t], 1); // here", {}, "shuffle",
        ["thread 15 ", "lane 16", "takes no part"],
    ),
    "a mask without the lane itself": (
        "y[t] = __shfl_sync(0xffff, x[t], 0); // here", {}, "shuffle", ["thread 16 ", "its own lane"],
    ),
    "an endless loop": (
        "volatile int i = 0;\n for (;;) i = i + 1; // here", {"limit_s": 0.1}, "time limit", ["thread 0 of block 0"],
    ),
    "a division by zero": ("y[t] = n / (n - 1024); // here", {}, "division by zero", ["thread 0 "]),
    "a failed assertion": ("assert(t < 31);", {}, "aborted", ["thread 31 "]),
    "an instruction that there is not": ("__builtin_trap();", {}, "crash", ["thread 0 "]),
    "more variables than fit, in one thread": ("y[t] = t == 5 ? many(n) : 0;", {}, "stack overflow", ["thread 5 "]),
}  # fmt: skip

# name: (body, options of the launch, what y holds then)
RIGHT = {
    "half a warp shuffles": (
        "float v = 1;\n if (t < 16) v = __shfl_xor_sync(0xffff, x[t], 1);\n y[t] = v;", {},
        np.where(X[:32] < 16, X[:32].astype(int) ^ 1, 1),
    ),
    "votes": (
        "unsigned b = __ballot_sync(~0u, t % 2);\n bool last = t == 31;"
        " y[t] = __popc(b) + 100 * __any_sync(~0u, last) + 1000 * __all_sync(~0u, last);", {}, np.full(32, 116),
    ),
    "a warp's own shared memory": (
        "__shared__ float s[2][32]; int w = t / 32, l = t % 32;\n for (int i = 0; i < 3; i++) {\n"
        " s[w][l] = x[t]; __syncwarp(); y[t] = s[w][31 - l]; __syncwarp(); }", {"block": 64},
        np.r_[X[:32][::-1], X[32:64][::-1]],
    ),
    "half of the threads return before the barrier": (
        "__shared__ float s[32]; if (t >= 32) return;\n s[t] = x[t]; __syncthreads();\n y[t] = s[31 - t];",
        {"block": 64}, X[:32][::-1],
    ),
    "blocks and threads in three dimensions": (
        "int i = t + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);\n"
        " int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); y[24 * b + i] = x[24 * b + i];",
        {"grid": (2, 3, 4), "block": (4, 3, 2)}, X[:576],
    ),
    "all ways to declare shared memory": (
        "extern __shared__ __align__(16) float a[];\n static __shared__ float b[32], c[2][16];\n"
        " __shared__ __align__(16) float d[32]; __shared__ alignas(16) float4 e[8]; __shared__ unsigned char f[32];\n"
        " a[t] = x[t]; __syncwarp(); b[31 - t] = a[31 - t]; __syncwarp(); c[t / 16][t % 16] = b[t]; __syncwarp();"
        " d[t] = c[t / 16][t % 16]; __syncwarp(); if (t < 8) e[t] = *(float4*)(d + 4 * t); __syncwarp();"
        " f[t] = ((float*)e)[t]; __syncwarp(); y[t] = f[t ^ 3];", {"shared_bytes": 128}, X[:32].astype(int) ^ 3,
    ),
    "templates, bounds, restricted pointers": (
        "float sum = 0;\n#pragma unroll 4\n for (int i = 0; i < 8; i++) sum += at<8>(x, i);\n y[t] = min(sum, 100)"
        " + max(n, blockDim.x) + __fdividef(1, 2) + __expf(0) + rsqrtf(4) + isnan(0.0f) + isinf(0.0f);",
        {}, np.full(32, 28 + 1024 + 2),
    ),
    "names that the runner has, too": (
        "int grid = 1, block = 2, shared = 3; y[t] = SYNC + grid + block + shared + call(access.x);", {},
        np.full(32, 10),
    ),
    "a constant table, a function and local arrays": (
        "int local[4]; for (int i = 0; i < 4; i++) local[(i + n) % 4] = i;\n"
        " y[t] = twice(table[local[t % 4]]) + ones[n % 2];", {}, 20 * (X[:32] % 4) + 1,
    ),
}  # fmt: skip

KEPT = "float s[{0}]; for (int i = 0; i < n; i++) s[i % {0}] = x[i];\n __syncthreads(); y[t] = s[n % 7];"
OTHERS = {
    "shuffles": (
        "int v = 100 + t, by = n % 100, width = n / 100;\n y[t] = __shfl_sync(~0u, v, by, width);"
        " y[32 + t] = __shfl_up_sync(~0u, v, by, width); y[64 + t] = __shfl_down_sync(~0u, v, by, width);"
        " y[96 + t] = __shfl_xor_sync(~0u, v, by, width);"
    ),
    "few variables": KEPT.format(10),
    "many variables": KEPT.format(1010),
    "two of 64 threads print": 'if (t < 2) printf("thread %d\\n", t);',
    "the process ends": "_Exit(7);",
}

# name: (body, threads, what it should count: of loads from x, and of loads from shared memory and stores there)
COUNTED = {
    "only active lanes": ("if (t < 9) y[t] = x[t];", 64, Accesses(1, 36, 2), {}),
    "a lane beside its sector": ("y[t] = x[t + 1];", 32, Accesses(1, 128, 5), {}),
    "two at once": ("float2 v = ((const float2*)x)[t];\n y[t] = v.x + v.y;", 32, Accesses(1, 256, 8), {}),
    "lanes that load from different arrays": (
        "const float* from = t % 2 ? x : y; float sum = 0;\n for (int i = 0; i < 2; i++) sum += from[32 * i + t];\n"
        " y[t] = sum;", 32, Accesses(2, 128, 8), {},
    ),
    "an element that is named twice is loaded once": (
        "y[t] = x[blockIdx.x * blockDim.x + t] * x[blockIdx.x * blockDim.x + t];", 32, Accesses(1, 128, 4), {},
    ),
    "the n-th loads of all lanes that have one are one request": (
        "float s = 0; for (int i = 0; i <= t; i++) s += x[i];\n y[t] = s;", 32, Accesses(32, 4 * 32 * 33 // 2, 32), {},
    ),
    # A load would be paired with the neighbour that takes no part.
    "in a store each lane has words of its own": (
        "__shared__ float4 s[16]; if (t % 2 == 0) s[t / 2] = {1, 1, 1, 1};\n __syncthreads(); y[t] = s[0].x;",
        32, Accesses(), {"stores": Accesses(1, 256, passes=4), "loads": Accesses(1, 128, passes=1)},
    ),
}  # fmt: skip

PARAMETERS = "const float* x, float* y, int n"
BODIES = {name: case[0] for name, case in (MISTAKES | RIGHT | COUNTED).items()} | OTHERS
NUMBERS = {name: number for number, name in enumerate(BODIES)}


def source_of_all():
    """The source, and the number of the line before each case."""
    source, before = BEFORE, {}
    for name, body in BODIES.items():
        source += f"__device__ __noinline__ void case_{NUMBERS[name]}({PARAMETERS}) {{ const int t = threadIdx.x;\n"
        before[name] = source.count("\n")
        source += f"{body}\n}}\n"
    calls = "\n".join(f"case {number}: return case_{number}(x, y, n);" for number in NUMBERS.values())
    return f"{source}__global__ void k(int which, {PARAMETERS}) {{ switch (which) {{\n{calls}\n}} }}\n", before


SOURCE, BEFORE_CASE = source_of_all()


def run(name, *, grid=1, block=32, y=None, n=1024, **options):
    """Launch a case: x holds 0, 1, 2, ..., y is as long. Returns the Report and y."""
    y = np.full_like(X, np.nan) if y is None else y
    arguments = {"which": NUMBERS[name], "x": X.copy(), "y": y, "n": n}
    return launch(SOURCE, "k", grid=grid, block=block, arguments=arguments, **options), y


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_and_its_line_is_named(name):
    body, options, kind, words = MISTAKES[name]
    report, _ = run(name, **options)
    assert report.findings, "nothing was found"
    assert {finding.kind for finding in report.findings} == {kind}, report.findings
    first = report.findings[0]
    for line, code in enumerate(body.splitlines(), 1):
        if "// here" in code:
            assert first.line == BEFORE_CASE[name] + line and first.code == code.strip(), first
            assert str(first).startswith(f"Line {first.line}: ")
    said = re.sub(r"(?<=line )\d+", lambda line: str(int(line[0]) - BEFORE_CASE[name]), str(first))
    for word in words:
        assert word in said, first


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_found_in_a_right_kernel_and_its_answer_is_right(name):
    _, options, expected = RIGHT[name]
    report, y = run(name, **options)
    assert report.findings == [] and report.complete
    np.testing.assert_array_equal(y[: len(expected)], expected)


@pytest.mark.parametrize("name", COUNTED)
def test_requests_of_warps_are_counted(name):
    _, block, of_x, shared = COUNTED[name]
    report, _ = run(name, block=block)
    assert report.tensors["x"].loads == of_x and report.shared == Memory(**shared)


@pytest.mark.parametrize("by, width", [(1, 2), (3, 8), (7, 8), (7, 32)])
def test_shuffles(by, width):
    """A lane whose source lies outside its segment keeps its own value; a source lane is counted modulo the width."""
    report, y = run("shuffles", n=100 * width + by)
    assert report.findings == [] and report.shuffles == 4
    lanes = range(32)
    segment = [lane // width * width for lane in lanes]
    sources = [
        [segment[lane] + by % width for lane in lanes],
        [lane - by if lane - by >= segment[lane] else lane for lane in lanes],
        [lane + by if lane + by < segment[lane] + width else lane for lane in lanes],
        # A lane may read from an earlier segment, but not from a later one.
        [lane ^ by if (lane ^ by) < segment[lane] + width else lane for lane in lanes],
    ]
    assert y[:128].reshape(4, 32).tolist() == [[100 + source for source in row] for row in sources]


def test_what_else_a_launch_reports():
    few, many = (run(f"{how} variables")[0].stack_bytes for how in ("few", "many"))
    assert few < 400 and many - few == 4000
    assert run("two of 64 threads print", block=64)[0].printed == "thread 0\nthread 1\n"
    with pytest.raises(RuntimeError, match="status 7"):
        run("the process ends")


def test_an_index_behind_shared_memory():
    """Not among the others, behind whose shared memory more of it follows."""
    source = "__global__ void k(float* y) { __shared__ float s[32]; s[threadIdx.x + 1] = y[threadIdx.x]; }"
    (finding,) = launch(source, "k", grid=1, block=32, arguments={"y": ZEROS}).findings
    assert finding.kind == "out of bounds" and "thread 31 of block 0 stores element 32 of s, outside s" in finding.text


@pytest.mark.parametrize(
    "source,line,words",
    [
        ("__global__ void k(float* x) {\n\n  x[0] = undeclared;\n}\n", 3, ["undeclared", "x[0] = undeclared;"]),
        ("void missing(float*);\n__global__ void k(float* x) {\n  missing(x);\n}\n", 3, ["missing", "not defined"]),
        (
            "struct S { float a[3]; };\n__global__ void k(float* x) {\n  S s;\n  s = __shfl_sync(~0u, s, 0);\n}\n", 4,
            ["8 bytes"],
        ),
        (
            "__global__ void k(float* x) { __shared__ float s[64 * 256]; s[0] = x[0]; x[1] = s[0]; }\n", None,
            ["65,536 bytes", "49,152"],
        ),
    ],
)  # fmt: skip
def test_a_kernel_that_does_not_compile(source, line, words):
    with pytest.raises(CompileError) as raised:
        launch(source, "k", grid=1, block=32, arguments={"x": ZEROS})
    assert raised.value.line == line
    for word in words:
        assert word in str(raised.value)
    assert str(raised.value).count("\n") <= 1 and "/" not in str(raised.value)


def test_without_a_compiler(monkeypatch):
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoCompiler, match="apt-get install g"):
        run("votes")


@pytest.mark.parametrize(
    "options,error,words",
    [
        ({"arguments": {"which": 1, "x": ZEROS}}, TypeError, r"takes 4 \(int, .*\) arguments, not 2: which, x"),
        ({"y": ZEROS.astype(np.float64)}, TypeError, r"y does not fit .* takes float\*"),
        ({"n": "1"}, TypeError, "n is a str"),
        ({"y": np.zeros((32, 2), np.float32)[:, 0]}, ValueError, "y must be a C-contiguous"),
        ({"y": np.zeros(0, np.float32)}, ValueError, "y must be .* at least one element"),
        ({"block": 1025}, ValueError, r"block is \(1025, 1, 1\), 1025 threads"),
        ({"grid": (1, 1, 1, 1)}, ValueError, "grid is"),
        ({"shared_bytes": 1 << 20}, ValueError, "shared_bytes is 1048576"),
    ],
)
def test_what_cannot_be_launched_is_refused_by_name(options, error, words):
    arguments = {"which": 1, "x": ZEROS, "y": ZEROS, "n": 1}
    arguments |= {name: options.pop(name) for name in ("y", "n") if name in options}
    with pytest.raises(error, match=words):
        launch(SOURCE, "k", **{"grid": 1, "block": 32, "arguments": arguments} | options)


def test_a_kernel_is_compiled_once(compiler, monkeypatch):
    compiled, commands = subprocess.run, []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **how: commands.append(command[0]) or compiled(command, **how)
    )
    source = f"__global__ void k(float* y) {{ y[0] = 1; }}  // {uuid.uuid4()}"
    for is_new in (True, False):
        commands.clear()
        launch(source, "k", grid=1, block=1, arguments={"y": ZEROS})
        assert any("++" in command for command in commands) == is_new
