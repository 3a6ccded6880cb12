"""Lesson 07's first kernels: a vector sum, one tile of scores for each program, and what the compiler says of it."""

import os
import subprocess
import sys

import triton
import triton.language as tl


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out = x + y; contiguous vectors of n elements, cdiv(n, BLOCK) programs. Each element is read and written once."""
    # 64 bits before the program id multiplies: a vector may have more than 2^31 elements.
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


@triton.jit
def scores_tile(
    q_ptr, k_ptr, s_ptr,
    stride_qm, stride_qd,
    stride_kn, stride_kd,
    stride_sm, stride_sn,
    n_q, n_k, scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """S = scale * Q K^T, tile by tile: program (i, j) computes BLOCK_M queries by BLOCK_N keys.

    q [n_q, HEAD_DIM], k [n_k, HEAD_DIM], one float dtype; s [n_q, n_k]. BLOCK_D: a power of two, at least HEAD_DIM.
    Q is read once for each tile of keys, K once for each tile of queries, S written once.
    """
    start_m = tl.program_id(0).to(tl.int64) * BLOCK_M
    start_n = tl.program_id(1).to(tl.int64) * BLOCK_N
    rows = start_m + tl.arange(0, BLOCK_M)[:, None]
    keys = start_n + tl.arange(0, BLOCK_N)[None, :]
    offs_d = tl.arange(0, BLOCK_D)

    # [BLOCK_M, BLOCK_D]
    q = tl.load(q_ptr + rows * stride_qm + offs_d[None, :] * stride_qd,
                mask=(rows < n_q) & (offs_d < HEAD_DIM)[None, :], other=0.0)  # fmt: skip
    # [BLOCK_D, BLOCK_N]: K's tile, loaded with its axes exchanged.
    k_t = tl.load(k_ptr + keys * stride_kn + offs_d[:, None] * stride_kd,
                  mask=(keys < n_k) & (offs_d < HEAD_DIM)[:, None], other=0.0)  # fmt: skip
    scores = tl.dot(q, k_t, input_precision="ieee") * scale
    tl.store(s_ptr + rows * stride_sm + keys * stride_sn, scores, mask=(rows < n_q) & (keys < n_k))


def compile_scores_tile(block_d, arch=90):
    """The compiler's word on `scores_tile` for tiles of 16 x 16 and this BLOCK_D: "compiled", or why not.

    arch: 90 for sm_90; no GPU is needed. In a process of its own, for one that interprets cannot compile.
    """
    code = "import sys; from course_lib.kernels.warmup import _compile_scores_tile as c; c(*map(int, sys.argv[1:]))"
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run(
        [sys.executable, "-c", code, str(block_d), str(arch)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "compiled" if run.returncode == 0 else run.stderr.strip().splitlines()[-1]


def _compile_scores_tile(block_d, arch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    sizes = {"HEAD_DIM": block_d, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": block_d}
    types = {name: "*fp32" if name.endswith("_ptr") else "i32" for name in scores_tile.arg_names}
    types |= {"scale": "fp32"} | dict.fromkeys(sizes, "constexpr")
    triton.compile(ASTSource(scores_tile, types, sizes), target=GPUTarget("cuda", arch, 32))
