"""What the compiler uses for the forward kernel on any GPU generation: shared memory, registers, stack. No GPU needed.

    python -m course_lib.kernels.resources --head-dim 64 --arch 75 80 90 100 [--config 64 64 4 2] [--json]

Triton compiles for a target it does not have, but not in a process where it interprets; so `forward_resources`
asks a subprocess. Stack bytes are what registers could not hold: spills, each a trip to memory inside the loop.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass

DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True)
class Request:
    """One compilation: dtype by torch's name, arch 75 for sm_75, config (BLOCK_M, BLOCK_N, num_warps, num_stages)
    or None for the shipped one; tail: whether the key length leaves a ragged last tile; tma: whether k and v come
    by tensor descriptor, None for what a launch on that GPU would do."""

    head_dim: int
    arch: int
    dtype: str = "float16"
    causal: bool = False
    config: tuple | None = None
    tail: bool = True
    tma: bool | None = None


@dataclass(frozen=True)
class Resources:
    """Per program: shared memory; per thread: registers and stack. tensor_cores: whether the code uses them."""

    shared_bytes: int
    registers: int
    stack_bytes: int
    tensor_cores: bool
    config: tuple


def forward_resources(requests):
    """Compile the forward kernel for every Request, in a subprocess; returns a Resources for each.

    About a second each. Raises RuntimeError with the compiler's message when one does not compile.
    """
    run = subprocess.run(
        [sys.executable, "-m", "course_lib.kernels.resources", "--stdin"],
        input=json.dumps([asdict(request) for request in requests]),
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode:
        raise RuntimeError(f"the compiler failed:\n{run.stderr.strip()}")
    return [Resources(**{**item, "config": tuple(item["config"])}) for item in json.loads(run.stdout)]


def compile_forward(request):
    """Compile in this process, which must not interpret."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from course_lib.kernels import flash_forward

    kernel = flash_forward.flash_forward_kernel
    tma = request.arch >= 90 if request.tma is None else request.tma
    config = request.config or flash_forward.default_config(
        getattr(torch, request.dtype), request.head_dim, request.causal, divmod(request.arch, 10), tma=tma
    )
    block_m, block_n, num_warps, num_stages = config
    block_d = max(16, triton.next_power_of_2(request.head_dim))
    # As a launch specialises them: aligned pointers and strides, unit stride in the last dimension.
    constants = dict(
        GROUP_SIZE=1, Q_SIGN=1, IS_CAUSAL=request.causal, STORE_LSE=True, TMA=tma, NO_TAIL=not request.tail,
        HEAD_DIM=request.head_dim, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=block_d,
        stride_qd=1, stride_kd=1, stride_vd=1, stride_od=1,
    )  # fmt: skip
    if not tma:
        constants |= {"k_desc": None, "v_desc": None}
    signature, aligned = {}, {}
    for position, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = "*fp32" if name == "lse_ptr" else "*" + DTYPES[request.dtype]
            aligned[(position,)] = [["tt.divisibility", 16]]
        elif name.endswith("_desc"):
            signature[name] = f"tensordesc<{DTYPES[request.dtype]}[1, 1, {block_n}, {block_d}]>"
        elif name == "scale_log2":
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if name.startswith("stride_") and request.head_dim % 16 == 0:
                aligned[(position,)] = [["tt.divisibility", 16]]
    compiled = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned),
        target=GPUTarget("cuda", request.arch, 32),
        options={"num_warps": num_warps, "num_stages": num_stages},
    )
    registers, stack_bytes = _usage(compiled.asm["cubin"])
    ptx = compiled.asm["ptx"]
    return Resources(
        shared_bytes=compiled.metadata.shared, registers=registers, stack_bytes=stack_bytes,
        tensor_cores=any(word in ptx for word in ("mma.sync", "wgmma", "tcgen05.mma")), config=tuple(config),
    )  # fmt: skip


def _usage(cubin):
    """(registers, stack bytes) that a cubin declares, read by the cuobjdump in Triton's package."""
    import triton

    tool = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"REG:(\d+)", text).group(1)), int(re.search(r"STACK:(\d+)", text).group(1))


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m course_lib.kernels.resources", description=__doc__.split("\n")[0])
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--arch", type=int, nargs="+", default=[75, 80, 90, 100], help="90 means sm_90")
    parser.add_argument("--dtype", choices=DTYPES, default="float16")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--config", type=int, nargs=4, metavar=("BLOCK_M", "BLOCK_N", "WARPS", "STAGES"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stdin", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.stdin:
        requests = [Request(**item) for item in json.load(sys.stdin)]
        print(json.dumps([asdict(compile_forward(request)) for request in requests]))
        return
    requests = [
        Request(head_dim, arch, options.dtype, options.causal, options.config)
        for arch in options.arch
        for head_dim in options.head_dim
    ]
    results = forward_resources(requests)
    if options.json:
        print(json.dumps([{**asdict(a), **asdict(b)} for a, b in zip(requests, results, strict=True)], indent=1))
        return
    for request, used in zip(requests, results, strict=True):
        print(
            f"sm_{request.arch} d={request.head_dim} {request.dtype} causal={request.causal} {used.config}: "
            f"{used.shared_bytes} bytes shared, {used.registers} registers, {used.stack_bytes} bytes stack, "
            f"tensor cores {'used' if used.tensor_cores else 'not used'}"
        )


if __name__ == "__main__":
    main()
