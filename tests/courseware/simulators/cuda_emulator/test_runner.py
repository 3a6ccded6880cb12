"""The runner on small kernels: mistakes planted in them, each found in its line and by its kind; and right kernels.

In a kernel, `// here` marks the line that the finding must name.
"""

import os
import shutil
import subprocess

import numpy as np
import pytest

from courseware.simulators.cuda_emulator.compiling import CompileError, NoCompiler
from courseware.simulators.cuda_emulator.report import Accesses
from courseware.simulators.cuda_emulator.runner import launch

COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]


@pytest.fixture(params=COMPILERS, autouse=True)
def compiler(request, monkeypatch):
    monkeypatch.setenv("CXX", request.param)
    return request.param


def run(body, *, grid=1, block=32, parameters="const float* x, float* y, int n", before="", limit_s=5, **arguments):
    """Launch a kernel `k` of this body. Without arguments: x holds 0, 1, 2, ..., y is as long, n is its length."""
    source = f"{before}\n__global__ void k({parameters}) {{\n{body}\n}}\n"
    if not arguments:
        x = np.arange(1024, dtype=np.float32)
        arguments = {"x": x, "y": np.full_like(x, np.nan), "n": x.size}
    options = {name: arguments.pop(name) for name in ("shared_bytes",) if name in arguments}
    report = launch(source, "k", grid=grid, block=block, arguments=arguments, limit_s=limit_s, **options)
    marked = [number for number, line in enumerate(source.splitlines(), 1) if "// here" in line]
    return report, marked[0] if marked else None, arguments


REVERSED = """
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];  // here
  {barrier}
  y[threadIdx.x] = s[63 - threadIdx.x];
"""
SUMS_OF_TILES = """
  __shared__ float s[64];
  float sum = 0;
  for (int t = 0; t < n; t += 64) {{
    s[threadIdx.x] = x[t + threadIdx.x];{store}
    {first}
    for (int i = 0; i < 64; i++) sum += s[i];{load}
    {second}
  }}
  y[threadIdx.x] = sum;
"""
BARRIERS = {"first": "__syncthreads();", "second": "__syncthreads();", "store": "", "load": ""}
HERE = "  // here"

# name: (body, options of run, kind of the finding, words of the finding)
MISTAKES = {
    "no barrier between store and load": (
        REVERSED.format(barrier=""), {"block": 64}, "race",
        ["thread 32 of block 0 stores element 32 of s", "thread 31 loads in line 7", "no barrier"],
    ),
    "no first barrier in a loop": (
        SUMS_OF_TILES.format(**BARRIERS | {"first": "", "store": HERE}), {"block": 64}, "race",
        ["thread 32 of block 0 stores element 32 of s", "thread 0 loads in line 9"],
    ),
    "no second barrier in a loop": (
        SUMS_OF_TILES.format(**BARRIERS | {"second": "", "load": HERE}), {"block": 64}, "race",
        ["thread 32 ", "element 0 of s", "thread 0 stores in line 7"],
    ),
    "no __syncwarp within a warp": (
        "__shared__ float s[32]; s[threadIdx.x] = 1; // here\n y[threadIdx.x] = s[threadIdx.x ^ 1];", {}, "race",
        ["thread 1 ", "thread 0 loads in line 4", "__syncwarp()"],
    ),
    "__syncwarp for the other half of the warp": (
        "__shared__ float s[32]; s[threadIdx.x] = 1;\n if (threadIdx.x < 16) __syncwarp(0xffff);\n"
        " y[threadIdx.x] = s[threadIdx.x ^ 17]; // here", {}, "race", ["__syncwarp()"],
    ),
    "a shuffle in the place of a barrier": (
        "__shared__ float s[32]; s[threadIdx.x] = 1;\n float v = __shfl_xor_sync(~0u, 1.0f, 1);\n"
        " y[threadIdx.x] = v + s[threadIdx.x ^ 1]; // here", {}, "race", ["__syncwarp()"],
    ),
    "__syncwarp between two warps": (
        "__shared__ float s[32]; if (threadIdx.x < 32) s[threadIdx.x] = 1; else __syncwarp();\n"
        " if (threadIdx.x >= 32) y[threadIdx.x] = s[threadIdx.x - 32]; // here", {"block": 64}, "race",
        ["thread 32 ", "thread 0 stores in line 3", "no barrier"],
    ),
    "a store of what others load, by the first that loaded it": (
        "__shared__ float s; if (threadIdx.x == 0) s = 1;\n __syncthreads(); float v = s;\n"
        " v += __shfl_xor_sync(~0u, v, 1); if (threadIdx.x == 0) s = v; // here\n y[threadIdx.x] = v;", {}, "race",
        ["thread 0 of block 0 stores element 0 of s", "thread 1 loads in line 4"],
    ),
    "a store long after the load of another warp": (
        "__shared__ float s; if (threadIdx.x == 0) s = 1;\n __syncthreads(); float v = s; __syncwarp();\n"
        " if (threadIdx.x < 32) for (int i = 0; i < 20000; i++) ((volatile float*)y)[threadIdx.x] = i;\n"
        " if (threadIdx.x == 0) s = v; // here\n y[threadIdx.x] = v;", {"block": 64}, "race",
        ["thread 0 of block 0 stores element 0 of s", "thread 32 loads in line 4", "no barrier"],
    ),
    "the same value stored by all": (
        "__shared__ float s[1];\n s[0] = 1; // here\n __syncthreads(); y[threadIdx.x] = s[0];", {}, "race",
        ["thread 1 ", "stores element 0 of s", "thread 0 stores"],
    ),
    "threads share an element of the output": (
        "y[threadIdx.x / 2] = x[threadIdx.x]; // here", {}, "race", ["thread 1 of block 0 stores y[0]"],
    ),
    "blocks share an element of the output": (
        "y[threadIdx.x] = x[threadIdx.x]; // here", {"grid": 2}, "race",
        ["thread 0 of block 1 stores y[0], which thread 0 stores in line 3 as part of block 0. Blocks run in any"],
    ),
    "a block loads what another stores": (
        "if (blockIdx.x == 0) y[threadIdx.x] = 1;\n else y[32 + threadIdx.x] = y[threadIdx.x]; // here",
        {"grid": 2}, "race", ["loads y[0]", "Blocks run in any order"],
    ),
    "load one behind the end": (
        "for (int i = threadIdx.x; i <= n; i += 32)\n y[i % n] = x[i]; // here", {}, "out of bounds",
        ["thread 0 of block 0 loads x[1024]", "shape is [1024]"],
    ),
    "store one behind the end": (
        "for (int i = 1; i <= 32; i++)\n y[i * 32 + threadIdx.x - 31 + 0] = 0; // here", {}, "out of bounds",
        ["thread 31 of block 0 stores y[1024]"],
    ),
    "load before the beginning": (
        "y[threadIdx.x] = x[(int)threadIdx.x - 1]; // here", {}, "out of bounds", ["thread 0 ", "x[-1]"],
    ),
    "far outside": (
        "y[threadIdx.x] = x[1 << 30]; // here", {}, "out of bounds", ["x[1073741824]"],
    ),
    "no array at all": (
        "const float* none = (const float*)(size_t)n;\n y[threadIdx.x] = none[7]; // here", {}, "out of bounds",
        ["from address 0x41c"],
    ),
    "a variable outside the kernel": (
        "kept[threadIdx.x] = x[threadIdx.x]; // here\n y[threadIdx.x] = kept[threadIdx.x];",
        {"before": "__device__ float kept[32];"}, "global variable", ["thread 0 of block 0 stores to a variable"],
    ),
    "shared memory, one behind the end": (
        "__shared__ float s[32];\n s[threadIdx.x + 1] = 1; // here\n __syncthreads(); y[threadIdx.x] = s[0];", {},
        "out of bounds", ["thread 31 ", "stores element 32 of s"],
    ),
    "dynamic shared memory, smaller than needed": (
        "extern __shared__ float s[];\n s[threadIdx.x] = 1; // here",
        {"shared_bytes": 64, "x": np.zeros(1, np.float32), "y": np.zeros(32, np.float32), "n": 1}, "out of bounds",
        ["thread 16 ", "element 16 of s"],
    ),
    "an address that float4 cannot have": (
        "float4 v = *(const float4*)(x + threadIdx.x); // here\n y[threadIdx.x] = v.x;", {}, "misaligned",
        ["thread 1 ", "x[1]", "16 bytes"],
    ),
    "lanes that wait for each other while the other warp has returned": (
        "if (threadIdx.x >= 32) return;\n if (threadIdx.x) y[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 1); // here\n"
        " else __syncwarp();", {"block": 64}, "shuffle", ["thread 1 and 30 more wait for other lanes", "line 5"],
    ),
    "shared memory that nobody has stored": (
        "__shared__ float s[32]; if (threadIdx.x) s[threadIdx.x] = 1;\n __syncthreads();\n"
        " y[threadIdx.x] = s[threadIdx.x]; // here", {}, "unwritten", ["thread 0 ", "element 0 of s"],
    ),
    "shared memory that the previous block has stored": (
        "__shared__ float s[32]; if (blockIdx.x == 0) s[threadIdx.x] = 1;\n __syncthreads();\n"
        " y[32 * blockIdx.x + threadIdx.x] = s[threadIdx.x]; // here", {"grid": 2}, "unwritten", ["block 1"],
    ),
    "a barrier for half of the threads": (
        "if (threadIdx.x < 16)\n  __syncthreads(); // here\n else\n  y[threadIdx.x] = 0;\n __syncthreads();", {},
        "barrier", ["thread 0 and 15 more wait at __syncthreads() in line 4, thread 16 and 15 more wait at", "line 7"],
    ),
    "a barrier for some, when others have returned": (
        "if (threadIdx.x >= 20) return;\n if (threadIdx.x < 16)\n  __syncthreads(); // here\n else\n  __syncthreads();",
        {}, "barrier", ["thread 0 and 15 more wait", "thread 16 and 3 more wait", "thread 20 and 11 more returned"],
    ),
    "a barrier in a loop of unequal length": (
        "for (unsigned i = 0; i <= threadIdx.x / 32; i++)\n  __syncthreads(); // here\n __syncthreads();",
        {"block": 64}, "barrier", ["line 4", "line 5"],
    ),
    "a shuffle for half of the warp": (
        "float v = x[threadIdx.x];\n if (threadIdx.x < 16)\n  v += __shfl_xor_sync(~0u, v, 8); // here\n"
        " __syncthreads(); y[threadIdx.x] = v;", {}, "shuffle",
        ["thread 0 and 15 more wait for other lanes", "thread 16 and 15 more wait at __syncthreads()"],
    ),
    "a shuffle in each branch": (
        "float v = x[threadIdx.x];\n if (threadIdx.x < 16)\n  v = __shfl_xor_sync(~0u, v, 8); // here\n"
        " else v = __shfl_xor_sync(~0u, v, 4);\n y[threadIdx.x] = v;", {}, "shuffle", ["line 5", "line 6"],
    ),
    "a shuffle from a thread that has returned": (
        "if (threadIdx.x >= 16) return;\n y[threadIdx.x] = __shfl_down_sync(~0u, x[threadIdx.x], 1); // here", {},
        "shuffle", ["thread 15 ", "lane 16", "takes no part"],
    ),
    "a shuffle from a lane outside the mask": (
        "if (threadIdx.x < 16)\n y[threadIdx.x] = __shfl_sync(0xffff, x[threadIdx.x], 20); // here", {}, "shuffle",
        ["lane 20"],
    ),
    "a mask without the lane itself": (
        "y[threadIdx.x] = __shfl_sync(0xffff, x[threadIdx.x], 0); // here", {}, "shuffle",
        ["thread 16 ", "its own lane"],
    ),
    "lanes that disagree about the mask": (
        "y[threadIdx.x] = __shfl_sync(threadIdx.x ? ~0u : 3u, x[threadIdx.x], 0); // here", {}, "shuffle",
        ["thread 0 and 31 more wait for other lanes"],
    ),
    "an endless loop over memory": (
        "volatile float* z = y;\n while (z[0] != 1) z[threadIdx.x + 1] = 0; // here", {"limit_s": 0.3},
        "time limit", [],
    ),
    "an endless loop": (
        "volatile int i = 0;\n for (;;) i = i + 1; // here", {"limit_s": 0.3}, "time limit", ["thread 0 of block 0"],
    ),
    "waiting for a thread that waits, too": (
        "__shared__ volatile int flag; if (threadIdx.x == 0) flag = 0;\n __syncthreads();\n"
        " if (threadIdx.x == 32) { __syncthreads(); flag = 1; }\n while (flag == 0) { } // here",
        {"block": 64, "limit_s": 0.3}, "time limit", [],
    ),
    "a division by zero": ("y[threadIdx.x] = n / (n - 1024); // here", {}, "division by zero", ["thread 0 "]),
    "a failed assertion": (
        "assert(threadIdx.x < 31); // here", {"before": "#include <cassert>"}, "aborted", ["thread 31 "],
    ),
    "more variables than fit, in one thread": (
        "y[threadIdx.x] = threadIdx.x == 5 ? many(n) : 0;",
        {"before": "__device__ __noinline__ float many(int n) {\n volatile float v[1 << 17]; v[n] = 1; return v[n]; }"},
        "stack overflow", ["thread 5 "],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_and_its_line_is_named(name):
    body, options, kind, words = MISTAKES[name]
    report, line, _ = run(body, **options)
    assert report.findings, "nothing was found"
    finding = report.findings[0]
    assert {finding.kind for finding in report.findings} == {kind}, report.findings
    if line is not None and kind not in ("stack overflow", "aborted"):
        assert finding.line == line and str(finding).startswith(f"Line {line}: "), finding
    for word in words:
        assert word in str(finding), finding


# name: (body, options of run, what y holds then)
X = np.arange(1024, dtype=np.float32)
RIGHT = {
    "nothing": ("", {}, []),
    "copy": ("for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i];", {}, X),
    "copy, four at once": (
        "for (int i = threadIdx.x; i < n / 4; i += 32) ((float4*)y)[i] = ((const float4*)x)[i];", {}, X,
    ),
    "reversed through shared memory": (REVERSED.format(barrier="__syncthreads();"), {"block": 64}, X[:64][::-1]),
    "sums of tiles": (SUMS_OF_TILES.format(**BARRIERS), {"block": 64}, np.full(64, X.sum())),
    "dynamic shared memory": (
        "extern __shared__ float s[];\n s[threadIdx.x] = x[threadIdx.x]; __syncthreads();\n"
        " y[threadIdx.x] = s[31 - threadIdx.x];",
        {"shared_bytes": 128, "x": X[:32].copy(), "y": np.zeros(32, np.float32), "n": 32}, X[:32][::-1],
    ),
    "a sum over the warp": (
        "float v = x[threadIdx.x];\n for (int i = 16; i; i /= 2) v += __shfl_xor_sync(~0u, v, i); y[threadIdx.x] = v;",
        {}, np.full(32, X[:32].sum()),
    ),
    "sums over eight lanes": (
        "float v = x[threadIdx.x];\n for (int i = 4; i; i /= 2) v += __shfl_down_sync(~0u, v, i, 8);\n"
        " y[threadIdx.x] = __shfl_sync(~0u, v, 0, 8);", {}, X[:32].reshape(4, 8).sum(1).repeat(8),
    ),
    "the lane below": (
        "y[threadIdx.x] = __shfl_up_sync(~0u, x[threadIdx.x], 1);", {}, np.maximum(X[:32] - 1, 0),
    ),
    "half a warp shuffles": (
        "float v = 1;\n if (threadIdx.x < 16) v = __shfl_xor_sync(0xffff, x[threadIdx.x], 1);\n y[threadIdx.x] = v;",
        {}, np.where(X[:32] < 16, X[:32].astype(int) ^ 1, 1),
    ),
    "votes": (
        "unsigned b = __ballot_sync(~0u, threadIdx.x % 2);\n"
        " bool last = threadIdx.x == 31; y[threadIdx.x] = __popc(b) + 100 * __any_sync(~0u, last)"
        " + 1000 * __all_sync(~0u, last);",
        {}, np.full(32, 116),
    ),
    "a warp's own shared memory": (
        "__shared__ float s[2][32]; int w = threadIdx.x / 32, l = threadIdx.x % 32;\n for (int i = 0; i < 3; i++) {\n"
        " s[w][l] = x[threadIdx.x]; __syncwarp(); y[threadIdx.x] = s[w][31 - l]; __syncwarp(); }", {"block": 64},
        np.r_[X[:32][::-1], X[32:64][::-1]],
    ),
    "half of the threads return before the barrier": (
        "__shared__ float s[32]; if (threadIdx.x >= 32) return;\n s[threadIdx.x] = x[threadIdx.x]; __syncthreads();\n"
        " y[threadIdx.x] = s[31 - threadIdx.x];", {"block": 64}, X[:32][::-1],
    ),
    "blocks and threads in three dimensions": (
        "int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);\n"
        " int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); y[24 * b + t] = x[24 * b + t];",
        {"grid": (2, 3, 4), "block": (4, 3, 2)}, X[:576],
    ),
    "each block its own shared memory": (
        "__shared__ float s; if (threadIdx.x == 0) s = blockIdx.x;\n"
        " __syncthreads(); y[blockIdx.x * 32 + threadIdx.x] = s;",
        {"grid": 3}, np.repeat(X[:3], 32),
    ),
    "a shared sum in steps": (
        "__shared__ float s[64]; int t = threadIdx.x; s[t] = x[t];\n for (int i = 32; i; i /= 2) { __syncthreads();"
        " if (t < i) s[t] += s[t + i]; }\n if (t == 0) y[0] = s[0];", {"block": 64}, X[:64].sum(keepdims=True),
    ),
    "bytes side by side": (
        "__shared__ unsigned char s[32]; s[threadIdx.x] = threadIdx.x; __syncwarp();\n"
        " y[threadIdx.x] = s[threadIdx.x ^ 3];",
        {}, X[:32].astype(int) ^ 3,
    ),
    "all ways to declare shared memory": (
        "extern __shared__ __align__(16) float a[];\n static __shared__ float b[32], c[2][16];\n"
        " __shared__ __align__(16) float d[32]; __shared__ alignas(16) float4 e[8];\n int t = threadIdx.x;"
        " a[t] = x[t]; __syncwarp(); b[31 - t] = a[31 - t]; __syncwarp(); c[t / 16][t % 16] = b[t]; __syncwarp();"
        " d[t] = c[t / 16][t % 16]; __syncwarp(); if (t < 8) e[t] = *(float4*)(d + 4 * t); __syncwarp();"
        " y[t] = ((float*)e)[t];",
        {"shared_bytes": 128, "x": X[:32].copy(), "y": np.zeros(32, np.float32), "n": 0}, X[:32],
    ),
    "a kernel that is not launched has more shared memory than there is": (
        "y[threadIdx.x] = x[threadIdx.x];",
        {"before": "__global__ void other(float* y) { __shared__ float s[16384]; s[threadIdx.x] = 1; y[0] = s[0]; }"},
        X[:32],
    ),
    "templates, bounds, restricted pointers, unrolled loops": (
        "float sum = 0;\n#pragma unroll 4\n for (int i = 0; i < 8; i++) sum += at<8>(x, i);\n"
        " y[threadIdx.x] = min(sum, 100) + max(n, blockDim.x) + __fdividef(1, 2) + __expf(0) + rsqrtf(4)\n"
        "   + isnan(0.0f) + isinf(0.0f);",
        {"before": "template <int W> __device__ __noinline__ float at(const float* __restrict__ x, int i) {"
                   " return __ldg(x + i % W); }"}, np.full(32, 28 + 1024 + 2),
    ),
    "names that the runner has, too": (
        "int grid = 1, block = 2, shared = 3; y[threadIdx.x] = SYNC + grid + block + shared + call(access.x);",
        {"before": "enum { SYNC, LOAD }; struct Argument { int x; } __device__ constexpr access = {4}, threads = {5};\n"
                   "struct Thread { int x; }; struct Register {}; __device__ int call(int v) { return v; }"},
        np.full(32, 10),
    ),
    "a constant table, a function and local arrays": (
        "int local[4]; for (int i = 0; i < 4; i++) local[(i + n) % 4] = i;\n"
        " y[threadIdx.x] = twice(table[local[threadIdx.x % 4]]) + ones[n % 2];",
        {"before": "__constant__ float table[4] = {0, 10, 20, 30};\n__device__ int ones[2] = {1, 1};\n"
                   "__device__ __forceinline__ float twice(float v) { return 2 * v; }"},
        20 * (X[:32] % 4) + 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_found_in_a_right_kernel_and_its_answer_is_right(name):
    body, options, expected = RIGHT[name]
    report, _, arguments = run(body, **dict(options))
    assert report.findings == [] and report.complete
    np.testing.assert_array_equal(arguments["y"][: len(expected)], expected)


@pytest.mark.parametrize("width", (2, 8, 32))
@pytest.mark.parametrize("by", (1, 3, 7))
def test_shuffles(width, by):
    """A lane whose source lies outside its segment keeps its own value; a source lane is counted modulo the width."""
    body = """
      int t = threadIdx.x, v = 100 + t;
      y[t] = __shfl_sync(~0u, v, by, width);
      y[32 + t] = __shfl_up_sync(~0u, v, by, width);
      y[64 + t] = __shfl_down_sync(~0u, v, by, width);
      y[96 + t] = __shfl_xor_sync(~0u, v, by, width);
    """
    y = np.zeros((4, 32), np.int32)
    report, _, _ = run(body, parameters="int* y, int by, int width", y=y, by=by, width=width)
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
    assert y.tolist() == [[100 + source for source in row] for row in sources]


def indices(of_t):
    """An index for each of 32 threads, from an expression in t. Given to a kernel, it need not be compiled for each."""
    return np.broadcast_to(eval(of_t, {"t": np.arange(32)}), 32).astype(np.int32)


# Which element each thread loads -> sectors of 32 bytes in which they lie.
@pytest.mark.parametrize(
    "of_t,sectors",
    [("t", 4), ("t + 1", 5), ("31 - t", 4), ("2 * t", 8), ("3 * t", 12), ("8 * t", 32), ("t // 8 * 8", 4), ("0", 1)],
)
def test_sectors_of_a_load(of_t, sectors):
    report, _, _ = run(
        "y[threadIdx.x] = x[index[threadIdx.x]];", parameters="const float* x, float* y, const int* index",
        x=X.copy(), y=X.copy(), index=indices(of_t),
    )  # fmt: skip
    assert report.tensors["x"].loads == Accesses(requests=1, bytes=128, sectors=sectors)
    assert report.tensors["y"].stores == Accesses(requests=1, bytes=128, sectors=4)


def test_only_active_lanes_count():
    report, _, _ = run("if (threadIdx.x < 9) y[threadIdx.x] = x[threadIdx.x];", block=64)
    assert report.tensors["x"].loads == Accesses(requests=1, bytes=36, sectors=2)


def test_lanes_that_load_from_different_arrays_are_counted_by_array():
    report, *_ = run(
        "const float* from = threadIdx.x % 2 ? x : z; float sum = 0;\n"
        " for (int i = 0; i < 2; i++) sum += from[32 * i + threadIdx.x];\n y[threadIdx.x] = sum;",
        parameters="const float* x, const float* z, float* y", x=X.copy(), z=X.copy(), y=X.copy(),
    )  # fmt: skip
    for name in "xz":
        assert report.tensors[name].loads == Accesses(requests=2, bytes=128, sectors=8)


def test_variables_of_a_thread_are_measured():
    kept = "float s[{}]; for (int i = 0; i < n; i++) s[i % {}] = x[i];\n __syncthreads(); y[threadIdx.x] = s[n % 7];"
    few, many = (run(kept.format(count, count))[0].stack_bytes for count in (10, 1010))
    assert few < 400 and many - few == 4000


def test_an_element_that_is_named_twice_is_loaded_once():
    element = "x[blockIdx.x * blockDim.x + threadIdx.x]"
    report, *_ = run(f"y[threadIdx.x] = {element} * {element};")
    assert report.tensors["x"].loads.requests == 1


def test_loads_in_a_loop_are_requests_of_their_own():
    """Lane t loads t + 1 times: the n-th loads of all lanes that have one are one request."""
    report, *_ = run("float s = 0; for (int i = 0; i <= threadIdx.x; i++) s += x[i];\n y[threadIdx.x] = s;")
    assert report.tensors["x"].loads == Accesses(requests=32, bytes=4 * 32 * 33 // 2, sectors=32)


# Which float, float2 or float4 each thread loads -> passes and conflicts.
@pytest.mark.parametrize(
    "width,of_t,passes,conflicts",
    [
        (1, "t", 1, 0), (1, "0", 1, 0), (1, "31 - t", 1, 0), (1, "t // 2", 1, 0), (1, "2 * t", 2, 1),
        (1, "4 * t", 4, 3), (1, "32 * t", 32, 31), (1, "33 * t", 1, 0), (1, "t // 16 * 32", 2, 1), (1, "3 * t", 1, 0),
        (2, "t", 2, 0), (2, "16 * t", 32, 30), (2, "17 * t", 2, 0), (2, "t // 2", 1, 0), (2, "0", 1, 0),
        (4, "t", 4, 0), (4, "0", 2, 0), (4, "t // 2", 2, 0), (4, "t // 16", 2, 0), (4, "8 * t", 32, 28),
        (4, "9 * t", 4, 0), (4, "t % 2", 2, 0), (4, "t % 4", 4, 0), (4, "t % 8", 4, 0), (4, "32 * (t % 2)", 4, 2),
    ],
)  # fmt: skip
def test_passes_and_conflicts_of_a_load_from_shared_memory(width, of_t, passes, conflicts):
    kind = {1: "float", 2: "float2", 4: "float4"}[width]
    body = f"""
      extern __shared__ float4 s[];
      for (int i = threadIdx.x; i < 1024; i += 32) s[i] = make_float4(1, 1, 1, 1);
      __syncthreads();
      {kind} v = (({kind}*)s)[index[threadIdx.x]];
      y[threadIdx.x] = *(float*)&v;
    """
    report, _, _ = run(
        body, parameters="const int* index, float* y", shared_bytes=16384, index=indices(of_t), y=X.copy()
    )
    assert report.shared.loads == Accesses(requests=1, bytes=128 * width, passes=passes, conflicts=conflicts)
    # 16 bytes a lane, side by side: four passes for each of the 32 requests.
    assert report.shared.stores == Accesses(requests=32, bytes=16384, passes=128)


def test_in_a_store_each_lane_has_words_of_its_own():
    """Every second lane of a warp: a load would be paired with the neighbour that takes no part."""
    body = """
      extern __shared__ float4 s[];
      int t = threadIdx.x;
      if (t % 2 == 0) s[t / 2] = make_float4(1, 1, 1, 1);
      __syncthreads();
      y[t] = s[0].x;
    """
    report, _, _ = run(body, parameters="float* y", shared_bytes=512, y=X.copy())
    assert report.shared.stores == Accesses(requests=1, bytes=256, passes=4)


@pytest.mark.parametrize(
    "source,line,words",
    [
        ("__global__ void k(float* x) {\n  x[0] = 1\n}\n", 2, ["expected ';'"]),
        ("__global__ void k(float* x) {\n\n  x[0] = undeclared;\n}\n", 3, ["undeclared", "x[0] = undeclared;"]),
        ("void missing(float*);\n__global__ void k(float* x) {\n  missing(x);\n}\n", 3, ["missing", "not defined"]),
        (
            "struct S { float a[3]; };\n__global__ void k(float* x) {\n  S s;\n  s = __shfl_sync(~0u, s, 0);\n}\n", 4,
            ["8 bytes"],
        ),
        ("__global__ void other(float* x) {}\n", None, ["there is no kernel k"]),
        (
            "__global__ void k(float* x) { __shared__ float s[64 * 256]; s[0] = x[0]; x[1] = s[0]; }\n", None,
            ["65,536 bytes", "49,152"],
        ),
    ],
)  # fmt: skip
def test_a_kernel_that_does_not_compile(source, line, words):
    with pytest.raises(CompileError) as raised:
        launch(source, "k", grid=1, block=32, arguments={"x": np.zeros(32, np.float32)})
    assert raised.value.line == line
    for word in words:
        assert word in str(raised.value)
    assert str(raised.value).count("\n") <= 1 and "/" not in str(raised.value)


def test_without_a_compiler(monkeypatch):
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoCompiler, match="apt-get install g"):
        run("y[0] = 1;")


ZEROS = np.zeros(32, np.float32)


@pytest.mark.parametrize(
    "options,error,words",
    [
        ({"x": ZEROS}, TypeError, r"takes 3 \(float const\*, float\*, int\) arguments, not 1: x"),
        ({"x": ZEROS, "y": ZEROS, "n": 1, "m": 2}, TypeError, r"takes 3 .* arguments, not 4: x, y, n, m"),
        ({"x": ZEROS, "y": ZEROS.astype(np.float64), "n": 1}, TypeError, r"y does not fit .* takes float\*"),
        ({"x": ZEROS, "y": ZEROS, "n": 1.5}, TypeError, "n does not fit .* takes int"),
        ({"x": ZEROS, "y": 1, "n": 1}, TypeError, r"y does not fit .* takes float\*"),
        ({"x": ZEROS, "y": ZEROS, "n": "1"}, TypeError, "n is a str"),
        ({"x": ZEROS, "y": np.zeros((32, 2), np.float32)[:, 0], "n": 1}, ValueError, "y must be a C-contiguous"),
        ({"x": ZEROS, "y": np.zeros(0, np.float32), "n": 1}, ValueError, "y must be .* at least one element"),
        ({"block": 1025}, ValueError, r"block is \(1025, 1, 1\), 1025 threads"),
        ({"block": 0}, ValueError, "block is"),
        ({"grid": (1, 1, 1, 1)}, ValueError, "grid is"),
        ({"shared_bytes": 1 << 20, "x": ZEROS, "y": ZEROS, "n": 1}, ValueError, "shared_bytes is 1048576"),
    ],
)
def test_what_cannot_be_launched_is_refused_by_name(options, error, words):
    with pytest.raises(error, match=words):
        run("y[threadIdx.x] = x[threadIdx.x];", **options)


def test_what_a_kernel_prints_is_in_the_report():
    report, _, _ = run('if (threadIdx.x < 2) printf("thread %d\\n", threadIdx.x);')
    assert report.printed == "thread 0\nthread 1\n"


def test_races_between_blocks_name_both():
    report, _, _ = run("if (threadIdx.x == 0) y[0] = blockIdx.x;", grid=3)
    assert [(finding.block, finding.thread) for finding in report.findings] == [(1, 0)]


def test_a_thread_is_named_by_its_indices():
    report, _, _ = run("if (threadIdx.y == 2 && threadIdx.x == 5) y[1024] = 0;", block=(32, 4))
    assert "thread (5, 2) of block 0" in str(report.findings[0]) and report.findings[0].thread == 69


def test_an_element_is_named_by_row_and_column():
    for index, name in (("6 * 7 + 3", "[6, 3]"), ("-1", "[-1, 6]")):
        report, _, _ = run(f"y[{index}] = 0;", x=ZEROS, y=np.zeros((6, 7), np.float32), n=0)
        assert f"stores y{name}, outside y, whose shape is [6, 7]" in str(report.findings[0])


def test_the_caller_goes_on_whatever_the_kernel_does():
    """A process that ends, and memory that it has no right to."""
    with pytest.raises(RuntimeError, match="status 7"):
        run("_exit(7);", before="#include <unistd.h>")
    report, _, _ = run("raise(SIGSEGV);", before="#include <csignal>")
    assert report.findings[0].kind == "crash"


def test_a_kernel_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run("y[0] = 1;", block=1)
    compiled = subprocess.run
    commands = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **how: commands.append(command[0]) or compiled(command, **how)
    )
    run("y[0] = 1;", block=1)
    assert not [command for command in commands if "++" in os.path.basename(command)]
    run("y[0] = 2;", block=1)
    assert [command for command in commands if "++" in os.path.basename(command)]
