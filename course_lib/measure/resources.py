"""What the compiler uses for an attention kernel on any GPU generation: shared memory, registers, stack. No GPU needed.

    python -m course_lib.measure.resources --head-dim 64 --arch 75 80 90 100 [--config 64 64 4 2] [--json]
    python -m course_lib.measure.resources --kernel dkdv --head-dim 64 128 --causal
    python -m course_lib.measure.resources --record FILE     every block size of the block-size explorer, resumable

Triton compiles for a target it does not have, but not in a process where it interprets; so `forward_resources`
asks a subprocess. Stack bytes beyond the 24 that a division may take are spills: what registers could not hold.
"""

import argparse
import ast
import concurrent.futures
import datetime
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from course_lib.hardware import GPUS

KERNELS = Path(__file__).parents[1] / "kernels"
DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True)
class Request:
    """One compilation: dtype by torch's name, arch 75 for sm_75, config (BLOCK_M, BLOCK_N, num_warps, num_stages)
    or None for the shipped one; tail: whether the length looped over leaves a ragged last tile; kernel: "forward",
    or of the backward "dkdv" or "dq"; tma: whether the forward's k and v come by tensor descriptor, None for what a
    launch on that GPU would do."""

    head_dim: int
    arch: int
    dtype: str = "float16"
    causal: bool = False
    config: tuple | None = None
    tail: bool = True
    kernel: str = "forward"
    tma: bool | None = None


@dataclass(frozen=True)
class Resources:
    """Per program: shared memory, and columns of Blackwell's tensor memory (512 an SM; 0 before it). Per thread:
    registers and stack. tensor_cores: whether the code uses them. serialized: whether it waits for each of Hopper's
    matrix products by itself, where they should run while other instructions do; ptxas does that when it cannot keep
    their registers apart (warnings C7510 to C7520 of `ptxas -v`, which Triton does not show)."""

    shared_bytes: int
    tensor_memory_columns: int
    registers: int
    stack_bytes: int
    tensor_cores: bool
    serialized: bool
    config: tuple


# What `record` compiles: everything that the block-size explorer can be set to.
BLOCK_SIZES = (16, 32, 64, 128)
HEAD_DIMS = (32, 64, 128)
ARCHS = tuple(10 * major + minor for major, minor in (gpu.compute_capability for gpu in GPUS.values()))
COLUMNS = (
    "arch", "dtype", "head_dim", "causal", "block_q", "block_k", "num_warps", "num_stages",
    "shared_bytes", "tensor_memory_columns", "registers", "stack_bytes", "tensor_cores",
)  # fmt: skip


def forward_resources(requests):
    """Compile the kernel of every Request, in a subprocess; returns a Resources for each.

    About a second each. Raises RuntimeError with the compiler's message when one does not compile.
    """
    run = subprocess.run(
        [sys.executable, "-m", "course_lib.measure.resources", "--stdin"],
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

    from course_lib.kernels.flash_backward import default_backward_config, dkdv_kernel, dq_kernel
    from course_lib.kernels.flash_forward import default_config, flash_forward_kernel, masks_whole_tiles

    shape = getattr(torch, request.dtype), request.head_dim, request.causal, divmod(request.arch, 10)
    tma = request.arch >= 90 if request.tma is None else request.tma
    kernel, shipped = {
        "forward": lambda: (flash_forward_kernel, default_config(*shape, tma=tma)),
        "dkdv": lambda: (dkdv_kernel, default_backward_config(*shape, tma)[0]),
        "dq": lambda: (dq_kernel, default_backward_config(*shape, tma)[1]),
    }[request.kernel]()
    config = request.config or shipped
    block_m, block_n, num_warps, num_stages = config
    block_d = max(16, triton.next_power_of_2(request.head_dim))
    # As a launch specialises them: aligned pointers and strides, unit stride in the last dimension.
    constants = dict(
        GROUP_SIZE=1, Q_SIGN=1, IS_CAUSAL=request.causal, STORE_LSE=True, TMA=tma, NO_TAIL=not request.tail,
        NO_Q_TAIL=not (request.tail or masks_whole_tiles(block_m)), NO_K_TAIL=not request.tail,
        HEAD_DIM=request.head_dim, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=block_d,
        stride_qd=1, stride_kd=1, stride_vd=1, stride_od=1,
    )  # fmt: skip
    if not tma:
        constants |= dict.fromkeys(("q_desc", "k_desc", "v_desc", "do_desc"))
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    signature, aligned = {}, {}
    for position, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = "*fp32" if name in ("lse_ptr", "delta_ptr") else "*" + DTYPES[request.dtype]
            aligned[(position,)] = [["tt.divisibility", 16]]
        elif name.endswith("_desc"):
            rows = block_n if name in ("k_desc", "v_desc") else block_m
            signature[name] = f"tensordesc<{DTYPES[request.dtype]}[1, 1, {rows}, {block_d}]>"
        elif name in ("scale", "scale_log2"):
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
        shared_bytes=compiled.metadata.shared,
        tensor_memory_columns=getattr(compiled.metadata, "tmem_size", None) or 0,
        registers=registers, stack_bytes=stack_bytes,
        tensor_cores=any(word in ptx for word in ("mma.sync", "wgmma", "tcgen05.mma")),
        serialized="wgmma" in ptx and _serialized(compiled.asm["cubin"]), config=tuple(config),
    )  # fmt: skip


def _usage(cubin):
    """(registers, stack bytes) that a cubin declares."""
    text = _cuobjdump("-res-usage", cubin)
    return int(re.search(r"REG:(\d+)", text).group(1)), int(re.search(r"STACK:(\d+)", text).group(1))


def _serialized(cubin):
    """Whether there is a wait (WARPGROUP.DEPBAR) for each product (HGMMA); else one wait stands for many."""
    instructions = _cuobjdump("-sass", cubin)
    return instructions.count("WARPGROUP.DEPBAR") >= instructions.count("HGMMA")


def _cuobjdump(option, cubin):
    """What the cuobjdump in Triton's package tells about a cubin."""
    import triton

    tool = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout


def kernel_sha256():
    """Hash of what is compiled: the jitted functions and constants of the forward kernel and its primitives.

    Comments, docstrings and launch code do not count; configurations are in the rows themselves.
    """
    text = []
    for name in ("primitives.py", "flash_forward.py"):
        for node in ast.parse((KERNELS / name).read_text()).body:
            jitted = isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list)
            if jitted and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
            if jitted or isinstance(node, ast.Assign):
                text.append(ast.unparse(node))
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def record(path, *, archs=ARCHS, dtypes=tuple(DTYPES), head_dims=HEAD_DIMS, block_sizes=BLOCK_SIZES, jobs=None):
    """Compile the forward kernel as `flash_attention(block_q=, block_k=)` launches it, and write JSON to `path`.

    Rows that are there already, of the same kernel and Triton, are kept: an interrupted run goes on where it was,
    and a run for other `archs` adds to the file. jobs: compilers at a time, None for one a core. A second or so a
    row; up to 40 for sm_75, whose products are unrolled. Raises RuntimeError if one does not compile.
    """
    import triton

    from course_lib.kernels.flash import chosen_config

    path = Path(path)
    header = {"triton": triton.__version__, "kernel_sha256": kernel_sha256(), "columns": list(COLUMNS)}
    rows = {}
    if path.exists():
        before = json.loads(path.read_text())
        if all(before.get(name) == value for name, value in header.items()):
            rows = {tuple(row[:8]): row for row in before["rows"]}
    header["date"] = datetime.date.today().isoformat()

    configs = [chosen_config(*blocks) for blocks in itertools.product(block_sizes, repeat=2)]
    batches = []
    for arch, dtype, head_dim, causal in itertools.product(archs, dtypes, head_dims, (False, True)):
        missing = [config for config in configs if (arch, dtype, head_dim, causal, *config) not in rows]
        batches.append([Request(head_dim, arch, dtype, causal, config) for config in missing])
    batches = list(filter(None, batches))
    with concurrent.futures.ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        compiling = {pool.submit(forward_resources, batch): batch for batch in batches}
        try:
            for done, future in enumerate(concurrent.futures.as_completed(compiling), start=1):
                for request, used in zip(compiling[future], future.result(), strict=True):
                    key = (request.arch, request.dtype, request.head_dim, request.causal, *request.config)
                    rows[key] = [*key, used.shared_bytes, used.tensor_memory_columns, used.registers,
                                 used.stack_bytes, used.tensor_cores]  # fmt: skip
                _write(path, header, rows)
                print(f"{done} of {len(batches)} batches, {len(rows)} rows", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _write(path, header, rows):
    """One line a row, in order; never half a file."""
    lines = ",\n".join(json.dumps(rows[key], separators=(",", ":")) for key in sorted(rows))
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(header)[:-1] + f', "rows": [\n{lines}\n]}}\n')
    scratch.replace(path)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m course_lib.measure.resources", description=__doc__.split("\n")[0])
    parser.add_argument("--head-dim", type=int, nargs="+", help="64 and 128 by default; 32 too for --record")
    parser.add_argument("--arch", type=int, nargs="+", default=ARCHS, help="90 means sm_90; all of hardware.GPUS")
    parser.add_argument("--dtype", choices=DTYPES, nargs="+", help="float16 by default; all for --record")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--kernel", choices=("forward", "dkdv", "dq"), default="forward")
    parser.add_argument("--config", type=int, nargs=4, metavar=("BLOCK_M", "BLOCK_N", "WARPS", "STAGES"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", metavar="FILE", help="write or complete a record of all block sizes")
    parser.add_argument("--jobs", type=int, help="processes for --record; one a core by default")
    parser.add_argument("--stdin", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.stdin:
        requests = [Request(**item) for item in json.load(sys.stdin)]
        print(json.dumps([asdict(compile_forward(request)) for request in requests]))
        return
    if options.record:
        record(
            options.record, archs=options.arch, dtypes=options.dtype or tuple(DTYPES),
            head_dims=options.head_dim or HEAD_DIMS, jobs=options.jobs,
        )  # fmt: skip
        return
    requests = [
        Request(head_dim, arch, dtype, options.causal, options.config, kernel=options.kernel)
        for arch, head_dim, dtype in itertools.product(
            options.arch, options.head_dim or (64, 128), options.dtype or ("float16",)
        )
    ]
    results = forward_resources(requests)
    if options.json:
        print(json.dumps([{**asdict(a), **asdict(b)} for a, b in zip(requests, results, strict=True)], indent=1))
        return
    for request, used in zip(requests, results, strict=True):
        print(
            f"{request.kernel} sm_{request.arch} d={request.head_dim} {request.dtype} causal={request.causal} "
            f"{used.config}: "
            f"{used.shared_bytes} bytes shared, {used.registers} registers, {used.stack_bytes} bytes stack, "
            f"tensor cores {'used' if used.tensor_cores else 'not used'}{', products one by one' * used.serialized}"
        )


if __name__ == "__main__":
    main()
